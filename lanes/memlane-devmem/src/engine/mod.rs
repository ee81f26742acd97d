//! What decides: which chunk the next bytes go to, which token names them, when a chunk is free again. No descriptors,
//! no threads, no clock.

pub mod chunks;
pub mod flights;
pub mod held;
pub mod inflow;
pub mod tokens;
pub mod zcrx;

pub use chunks::Chunks;
pub use flights::{Flights, Span};
pub use inflow::Inflow;
pub use tokens::{Origin, Range, Tokens};

/// Bytes of payload in a region, and the name by which they are given back: the kernel's `struct dmabuf_cmsg`
/// (`linux/uio.h`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Fragment {
    /// Where they begin, in bytes from the region's beginning (`frag_offset`).
    pub offset: u64,
    /// How many (`frag_size`); never 0.
    pub len: u32,
    /// What to hand back when they are no longer needed (`frag_token`). It means something to one stream only.
    pub token: u32,
}
