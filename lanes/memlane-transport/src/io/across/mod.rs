//! Memory that the machines of server and client share: a file of the host, which guests have as a PCI device
//! (`docs/formats/ivshmem-volumes.md`).
//!
//! The server divides it, and is its only owner. Each session that asks for it has its chunks there, and each connection
//! its queues; TCP carries everything else, and wakes whoever sleeps.
//!
//! | room | what |
//! |---|---|
//! | `layout` | what lies where |
//! | [`SharedMemory`] | the mapping |
//! | `lot` | at the server: lends extents, and takes them back when nobody can write there any more |
//! | `hold` | at the client: an extent that this process has mapped, and letting go of it |
//! | `mapped` | memory of either kind: this host's own, or an extent |
//!
//! A machine that is paused may wake and write. So an extent is free again when its client has let go of it, or is
//! proven dead: by another boot of its machine, or by a process of the same machine that looks for it.

mod hold;
mod layout;
mod lot;
mod mapped;
mod memory;
mod place;

pub(super) use hold::Hold;
pub(super) use lot::{Lent, Lot};
pub(super) use mapped::Mapped;
pub use memory::{Holder, SharedMemory, SharedMemoryError};
pub(super) use place::{Place, Sharing};
