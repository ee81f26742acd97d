//! What is kept, per connection, process, thread and epoll set. Nothing here decides what two processes do together.
//!
//! From the ground up: [`typed`], [`gate`] and [`thread`] (words and locks); [`sets`] and [`conn`] (epoll sets and
//! connections as they are remembered); [`guard`] (a connection's held locks); [`process`] (settings, tables, pools);
//! [`spin`], [`stats`], [`trace`] and [`idle`], which note and show.

pub mod conn;
pub mod gate;
pub mod guard;
pub mod idle;
pub mod process;
pub mod sets;
pub mod spin;
pub mod stats;
pub mod thread;
pub mod trace;
pub mod typed;
