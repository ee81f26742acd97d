//! memlane's socket lane: TCP connections between two processes of one host, carried through shared memory.
//!
//! The program's descriptor is always the real TCP socket. A connection starts as plain TCP, and stays one. Beside it, a
//! memory lane may open in mid-stream: a ring for each direction, in memory that the receiver owns. The sender chooses the
//! lane for each stretch of bytes; the receiver follows the map that the sender publishes. The method is that of SMC-D's
//! loopback, in user space.
//!
//! * The memory lane is for speed. The TCP lane is for waiting: a thread that has nothing to do sleeps in the kernel on the
//!   real socket, and TCP wakes it.
//! * TCP carries the lifetime of the connection: FIN, RST, keepalive, the death of a process.
//! * What the memory lane cannot carry goes by TCP, from an exact byte on.
//!
//! Programs use it unchanged, through the preload library, or call it by name:
//!
//! ```
//! use memlane_socket::{Listener, Stream};
//!
//! let listener = Listener::bind(&"127.0.0.1:0".parse()?)?;
//! let address = listener.local_addr()?;
//! let client = std::thread::spawn(move || {
//!     let mut stream = Stream::connect(&address)?;
//!     stream.write(b"hello")
//! });
//! let mut stream = listener.accept()?;
//! let mut bytes = [0; 5];
//! let mut have = 0;
//! while have < bytes.len() {
//!     have += stream.read(&mut bytes[have..])?;
//! }
//! assert_eq!(&bytes, b"hello");
//! client.join().expect("it does not panic")?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | room | what |
//! |---|---|
//! | [`native`] | the lane by name, for programs that are not preloaded: [`Stream`], [`Listener`] |
//! | [`hooks`] | what libc's calls become: bytes, waits, forks, execs |
//! | [`protocol`] | what two processes do together: the handshake, the shared memory, the two lanes of a connection |
//! | [`state`] | what is kept: per connection, process, thread, epoll set; what is shown and traced of it |
//! | [`config`], [`mod@real`], [`iov`], [`message`], [`faults`] | settings, libc's own functions, the program's buffers and message headers, where tests make a process fail |
//!
//! Each room uses only those below it, and no module of a room uses another in a circle: `verify/memlane-system` checks it.
//!
//! The crate is `no_std` and allocates nothing. Its locks are spin locks over short sections that only touch memory.
//! Feature `std` gives streams the traits of `std::io`.
#![cfg_attr(not(any(test, feature = "std")), no_std)]
// The bodies take the program's pointers as libc's functions of the same names
// do; what the program promised its call is what each SAFETY note refers to.
#![allow(clippy::not_unsafe_ptr_arg_deref)]

pub mod config;
pub mod faults;
pub mod hooks;
pub mod iov;
pub mod message;
pub mod native;
pub mod protocol;
pub mod real;
pub mod state;

pub use native::{Listener, Stream};
