//! memif 2.0, the shared memory interface of VPP and DPDK: server (*master*) and client (*slave*).
//!
//! The client owns the memory: rings and buffers in regions that it hands over, with an eventfd for each ring, over a
//! unix socket. Frames go by descriptors; one that is longer than a buffer takes several (docs/formats/memif.md).
//!
//! | room | what |
//! |---|---|
//! | [`wire`], [`layout`] | bytes on the socket; bytes in regions |
//! | [`handshake`], [`rings`] | what decides: who is let in, which slots are whose |
//! | [`attach`], [`link`] | descriptors: two processes become connected, and learn that the other is gone |
//! | [`queue`], `end` | doorbells and sleep; a queue as an [`End`](super::End) |
//!
//! ```
//! use memlane_packet_ends::memif::{ClientTerms, MemifListener, ServerTerms, connect};
//! use memlane_packet::{Meta, PacketPort, Sent, Sleep};
//! use memlane_packet_ends::OpenError;
//! use std::time::Duration;
//!
//! let second = Duration::from_secs(1);
//! # let second = second * 30;
//! let name = format!("@memif-example-{}", std::process::id());
//! let listener = MemifListener::bind(&name)?;
//! let client = std::thread::spawn(move || {
//!     let (link, mut queues) = connect(&name, &ClientTerms::default())?;
//!     // Longer than a buffer: it takes several.
//!     let sent = queues[0].send(9000, Meta::default(), |room| {
//!         room.copy_in(0, b"to you all, from me, hello");
//!     });
//!     assert_eq!(sent, Ok(Sent::Queued));
//!     queues[0].flush().expect("the server is there");
//!     Ok::<_, OpenError>((link, queues))
//! });
//! let (_link, mut queues) = listener.accept(&ServerTerms::default(), second)?;
//! assert_eq!(queues[0].wait(Sleep::FOR_FRAMES, second), Ok(true));
//! assert_eq!(queues[0].receive(32, |frame| assert_eq!(frame.len(), 9000)), Ok(1));
//! # drop(client.join());
//! # Ok::<(), OpenError>(())
//! ```

pub mod attach;
mod end;
pub mod handshake;
pub mod layout;
pub mod link;
pub mod queue;
pub mod rings;
pub mod wire;

use crate::OpenError;
pub use attach::{MemifListener, connect, connect_until};
use core::fmt;
pub use handshake::{ClientTerms, Refusal, ServerTerms};
pub use link::MemifLink;
pub use queue::MemifQueue;

/// Why the memif handshake failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemifError {
    /// What came is no message.
    Wire(wire::WireError),
    /// We don't take what the other side says.
    Refusal(Refusal),
    /// The other side does not take what we say.
    Refused(wire::Text<96>),
}

impl fmt::Display for MemifError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemifError::Wire(error) => write!(f, "{error}: is that another protocol's socket?"),
            MemifError::Refusal(why) => write!(f, "not taken from the other side: {why}"),
            MemifError::Refused(why) if why.bytes().is_empty() => {
                f.write_str("the other side refused, and does not say why")
            }
            MemifError::Refused(why) => write!(
                f,
                "the other side refused: {why}: compare id, secret, role and numbers of queues on both sides"
            ),
        }
    }
}

impl From<Refusal> for OpenError {
    fn from(why: Refusal) -> Self {
        OpenError::Memif(MemifError::Refusal(why))
    }
}
