//! memlane's packet lane: Ethernet frames between two processes, by reference (persistent grants for Xen net).
//!
//! *Set the memory up once; after that, move only descriptors.* One side, the **front**, owns the memory. It *grants*
//! each of its buffers by a number, and says in a ring which of them hold a packet, or may be filled with one. The
//! other, the **back**, reaches them by number: in mode `persistent` it maps each once and keeps it; the two older
//! ways, which the series of 2015 was measured against, are `map` (map and unmap for each packet) and `copy` (the
//! kernel copies each packet).
//!
//! ```text
//!  front                    control memory                       back
//!   buffers ── granted ──► │ grant table │ ──── by number ────►  mappings, kept (engine::cache)
//!   send    ── requests ─► │ tx ring     │ ── requests ───────►  receive
//!           ◄─ responses ─ │             │ ◄─ responses ───────
//!   receive ── buffers ──► │ rx ring     │ ── buffers ────────►  send
//!           ◄─ packets ─── │             │ ◄─ packets ─────────
//! ```
//!
//! | room | what |
//! |---|---|
//! | [`layout`], [`wire`] | bytes in shared memory: netif's; bytes on the link's socket |
//! | [`ring`] | indices, events: what is believed, and who is rung for |
//! | [`engine`] | what decides: [`Front`](engine::front::Front), [`Back`](engine::back::Back), kept mappings |
//! | [`io`] | descriptors: the handshake, doorbells, granted memory |
//! | [`offload`] | what a frame leaves to a later station: checksum, segmentation |
//! | [`port`] | what users see of a queue: [`PacketPort`] |
//! | [`stats`], [`error`] | what is counted, why a link ends |
//!
//! ```
//! use memlane_packet::io::{BackTerms, FrontTerms, Listener, connect};
//! use memlane_packet::{Meta, PacketPort, Sent, Sleep};
//! use std::time::Duration;
//!
//! let second = Duration::from_secs(1);
//! # let second = second * 30;
//! let name = format!("@example-{}", std::process::id());
//! let listener = Listener::bind(&name)?;
//! let front = std::thread::spawn(move || {
//!     let (link, mut queues) = connect(&name, &FrontTerms::default())?;
//!     let sent = queues[0].send(60, Meta::default(), |room| {
//!         room.copy_in(0, b"to you all, from me, hello");
//!     });
//!     assert_eq!(sent, Ok(Sent::Queued));
//!     queues[0].flush().map(|()| (link, queues)).map_err(|_| memlane_packet::AttachError::Timeout)
//! });
//! let (_link, mut queues) = listener.accept(&BackTerms::default(), second)?;
//! assert_eq!(queues[0].wait(Sleep::FOR_FRAMES, second), Ok(true));
//! let frames = queues[0].receive(32, |frame| {
//!     let mut header = [0; 14];
//!     // Copy once, then look: the front could still change it.
//!     frame.copy_out(0, &mut header);
//!     assert_eq!((frame.len(), &header), (60, b"to you all, fr"));
//! });
//! assert_eq!(frames, Ok(1));
//! # drop(front.join());
//! # Ok::<(), memlane_packet::AttachError>(())
//! ```

pub mod engine;
pub mod error;
pub mod io;
pub mod layout;
pub mod offload;
pub mod port;
pub mod ring;
pub mod stats;
pub mod wire;

pub use engine::chain::{Frame, Part, Room};
pub use engine::grant::Mode;
pub use error::{AttachError, Detach};
pub use offload::{Gso, GsoKind, Meta, Offloads};
pub use port::{More, PacketPort, Placed, Sent, Sleep};
