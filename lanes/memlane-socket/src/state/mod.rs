//! What the library keeps for each connection, process, thread and epoll set. Nothing here decides what two processes
//! do together.
//!
//! From the lowest level up: [`typed`], [`gate`] and [`thread`] hold words and locks; [`foreign`] counts what peers of
//! other containers cost, [`readers`] knows which peers read, and [`read_naps`] what naps brought; [`sets`] and [`conn`] hold what is
//! known of epoll sets and connections; [`guard`] has a connection's held locks; [`large`] bounds what large windows take, and [`crowd`] those of many streams; [`process`] has settings, tables and pools;
//! [`uring`] has the program's submission queues; [`spin`], [`stats`], [`trace`] and [`idle`] note and show.

pub mod conn;
pub mod crowd;
pub mod far;
pub mod foreign;
pub mod gate;
pub mod guard;
pub mod idle;
pub mod large;
pub mod process;
pub mod read_naps;
pub mod readers;
pub mod runnable;
pub mod sets;
pub mod spin;
pub mod stats;
pub mod stderr;
pub mod thread;
pub mod trace;
pub mod typed;
pub mod uring;
