//! A virtual machine's network device (vhost-user-net): QEMU, or another machine monitor, hands over the guest's
//! memory, and the guest's own rings are read and written from here (docs/formats/vhost-user.md).
//!
//! | room | what |
//! |---|---|
//! | `door` | the socket, and the thread that talks with the monitor; a guest that is there is taken |
//! | `device`, `early` | what the monitor says, and what it says too early |
//! | `shared` | what that thread and those that carry frames have in common |
//! | `vring` | a virtqueue: whose chain is whose, what is believed, who is rung for |
//! | `queue` | a pair of them as an [`End`](super::End) |
//!
//! A frame from the guest is lent where it lies in the guest's memory; one for it is copied there once. The thread that
//! carries frames waits for the guest's kicks itself, so that no frame goes from one thread to another. A guest whose
//! driver is not there (it boots, it has stopped) is a link that is down; each new start is a new session.
//!
//! ```no_run
//! use memlane_packet_ends::join::{Join, Terms};
//! use memlane_packet_ends::vhost::{Role, VhostDoor, VhostTerms};
//! use memlane_packet_ends::{End, tap};
//! use std::time::Duration;
//!
//! let door = VhostDoor::open("/run/guest.sock", Role::Server, &VhostTerms::default())?;
//! let (_link, mut queues) = door.accept(Duration::from_secs(60))?;
//! let tap = tap::open_queues("guest", 1).expect("a TAP device").remove(0);
//! let queue: Box<dyn End> = Box::new(queues.remove(0));
//! let mut join = Join::new(queue, Box::new(tap), Terms::default()).expect("both are there");
//! println!("{:?}", join.run(&[]));
//! # Ok::<(), memlane_packet_ends::OpenError>(())
//! ```

mod device;
mod door;
mod early;
mod queue;
mod shared;
mod vring;

pub use door::{Role, VhostDoor, VhostLink, VhostTerms};
pub use queue::VhostQueue;
