//! How the threads of a lane wait for each other, for descriptors and for time to pass.
//!
//! | module | what |
//! |---|---|
//! | [`event`] | an eventfd that one thread signals and another waits for; `poll(2)` with a time-out |
//! | [`spin`] | how long a thread looks again before it sleeps |
//! | [`mutex`] | locks that a panic of another thread does not poison |
//!
//! The crate needs `std`. The socket lane runs inside other people's programs, without `std`, and has its own waiting.
//!
//! A worker thread that takes jobs from a queue, and spins a little before it sleeps:
//!
//! ```
//! use memlane_wait::event::EventFd;
//! use memlane_wait::mutex::lock;
//! use memlane_wait::spin::{Policy, Spin};
//! use std::sync::Mutex;
//!
//! let jobs = Mutex::new(Vec::new());
//! let event = EventFd::new()?;
//! let sum = std::thread::scope(|scope| {
//!     let worker = scope.spawn(|| {
//!         let mut spin = Spin::new(Policy::default());
//!         loop {
//!             let found = std::mem::take(&mut *lock(&jobs));
//!             if !found.is_empty() {
//!                 return found.iter().sum::<u32>();
//!             }
//!             if spin.is_over() {
//!                 event.wait(None);
//!                 // Before the next look: a job that comes from here on is signalled once more.
//!                 event.drain();
//!             } else {
//!                 spin.pause();
//!             }
//!         }
//!     });
//!     lock(&jobs).extend([1, 2, 3]);
//!     event.signal();
//!     worker.join().expect("the worker does not panic")
//! });
//! assert_eq!(sum, 6);
//! # Ok::<(), rustix::io::Errno>(())
//! ```

pub mod event;
pub mod mutex;
pub mod spin;
