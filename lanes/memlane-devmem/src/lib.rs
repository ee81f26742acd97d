//! memlane's device-memory lane: payload straight into device memory (Device Memory TCP).
//!
//! *Set the memory up once; after that, move only descriptors.* A [`DeviceRegion`] is memory that the CPU need not touch:
//! a GPU's, a dma-buf, or, without any device, a memfd. [Bound](io::Binding), it is a pool of chunks. What a
//! [`Stream`](io::Stream) receives lands there, and its user gets [`Fragment`]s: where the bytes are, how many, and a
//! *token*. Tokens are handed back, in batches, when the bytes are no longer needed; a region whose chunks are all out
//! receives nothing until then, and TCP holds the sender back.
//!
//! ```text
//!  sender ──TCP──►  socket ──path──►  region: │ chunk │ chunk │ chunk │ …
//!                                              ▲ offset, len
//!  user   ◄── fragments (offset, len, token) ──┘
//!         ──── tokens, in ranges ────────────►  chunk is free again
//! ```
//!
//! | room | what |
//! |---|---|
//! | [`region`] | memory for payload: what there is, and what is missing |
//! | `cuda` | NVIDIA's devices (feature `cuda`, which is on) |
//! | [`engine`] | what decides: chunks, tokens, where the next bytes go |
//! | [`io`] | descriptors: bindings, streams, the [paths](io::Path) by which payload comes |
//! | [`wire`] | bytes that go to the kernel and come from it |
//! | [`probe`] | what this machine can do, path by path, with the reason for each no |
//! | [`error`] | one enum for each thing that can fail |
//!
//! ```
//! use memlane_devmem::io::{Binding, Stream, Terms, Wait};
//! use memlane_devmem::region::DeviceRegion;
//! use std::io::Write;
//! use std::time::Duration;
//!
//! let region = DeviceRegion::create(&"memfd:1M".parse()?)?;
//! let binding = Binding::new(region, 64 << 10)?;
//! let (mut sender, receiver) = std::os::unix::net::UnixStream::pair()?;
//! let mut stream = Stream::new(receiver.into(), &binding, &Terms::default());
//!
//! sender.write_all(b"a row of numbers")?;
//! assert_eq!(stream.wait(Wait::Payload, Duration::from_secs(30)), Ok(true));
//! let mut fragments = Vec::new();
//! assert_eq!(stream.receive(&mut fragments), Ok(16));
//!
//! // Whoever computes on the device needs the offset; this looks at the bytes.
//! let mut seen = [0; 5];
//! stream.read(fragments[0].token, 2, &mut seen)?;
//! assert_eq!(&seen, b"row o");
//! assert_eq!(stream.release_all(&fragments), 1);
//! assert_eq!(stream.counts().out, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(feature = "cuda")]
pub mod cuda;
pub mod engine;
pub mod error;
pub mod io;
pub mod probe;
pub mod region;
pub mod wire;

pub use engine::{Fragment, Range};
pub use region::DeviceRegion;
