//! Reads what memlane's processes show: their stats pages and control sockets.
//!
//! There is no daemon to ask. Each process under memlane keeps a page of counters in a memfd, and this crate finds these
//! pages under `/proc`, copies them, and checks every value before it is used. The command `memlane` is made with it: `ss`,
//! `stats`, `top`, `exporter`, `check` and `trace`.
//!
//! | module | what |
//! |---|---|
//! | [`processes`] | finds the processes and reads their pages: [`Survey`](processes::Survey) |
//! | [`page`] | one page, checked: settings, counters, connections |
//! | [`rings`] | how full the rings are, from the pages of both ends |
//! | [`containers`] | which container a process is in, and its name |
//! | [`counters`] | counters of one process or of many, and what was counted between two readings |
//! | [`kernel_sockets`] | addresses from the kernel's socket table, where a page has none |
//! | [`control`] | control sockets: one JSON question to a running process, one reply |
//! | [`trace`] | records of what a process's connections carry |
//!
//! # Example
//!
//! Print how many bytes each process has sent through memory.
//!
//! ```
//! use memlane_core::stats::Counter;
//! use memlane_observe::processes::Survey;
//! use memlane_observe::counters::Counters;
//!
//! let survey = Survey::all()?;
//! for process in &survey.processes {
//!     let counters = Counters::of(&process.page);
//!     println!("{} {}: {} bytes", process.pid, process.comm, counters.get(Counter::TxRingBytes));
//! }
//! println!("{} processes of other users could not be read", survey.unreadable);
//! # Ok::<(), std::io::Error>(())
//! ```

pub mod containers;
pub mod control;
pub mod counters;
pub mod kernel_sockets;
pub mod page;
mod printable;
pub mod processes;
pub mod rings;
pub mod trace;

pub use printable::printable;
