//! What a queue of memlane's packet lane is joined to: interfaces of the kernel, files, other protocols.
//!
//! Each of them is an [`End`]: it lends the frames that it receives in bursts, it copies each frame that it sends once,
//! and it names the descriptors to sleep on. An end is one queue and belongs to one thread. [`join`] moves frames between
//! two ends.
//!
//! | module | what is at the end |
//! |---|---|
//! | [`port`] | a queue of the packet lane ([`memlane_packet`]) |
//! | [`tap`], [`afpacket`] | an interface of the kernel: a TAP device, any interface through a packet socket ([`kernel`], [`vnet`]) |
//! | [`loan`] | a TAP device that another process lends |
//! | [`memif`] | VPP or DPDK, over memif 2.0 |
//! | `vhost` | a virtual machine, over vhost-user (feature `vhost`, on by default) |
//! | [`pcap`] | a capture file, written or replayed |
//! | [`generate`] | a generator of numbered frames, and a sink that checks them |
//! | [`split`] | headers to host memory, payload into a region of device memory |
//! | `smoltcp` | the user-space TCP/IP stack of that name (feature `smoltcp`) |
//!
//! [`segment`] and [`headers`] cut up large frames and fill in checksums for ends that do not; [`merge`] makes segments large
//! frames again for ends that ask the kernel for each; [`tally`] publishes what an
//! end has counted to other threads.
//!
//! ```
//! use memlane_packet_ends::generate::{Generator, Plan, Sink};
//! use memlane_packet_ends::join::{Join, Over, Side, Terms};
//! use memlane_packet_ends::EndError;
//!
//! // A thousand numbered frames go to a sink, which checks that they arrive in order and unchanged.
//! let plan = Plan { stream: 1, sizes: (64, 1500), count: 1000, rate: 0 };
//! let generator = Generator::new(plan.checked().expect("sizes that a frame can have"));
//! let mut join = Join::new(Box::new(generator), Box::new(Sink::new()), Terms::default())?;
//! assert_eq!(join.run(&[]), Over::Ended(Side::A, EndError::Finished));
//! let verdict = join.ends()[1].verdict().expect("a sink has one");
//! assert_eq!((verdict.good, verdict.missing, verdict.changed), (1000, 0, 0));
//! # Ok::<(), EndError>(())
//! ```

pub mod afpacket;
mod end;
mod error;
pub mod generate;
pub mod headers;
pub mod join;
pub mod kernel;
pub mod loan;
pub mod memif;
pub mod merge;
pub mod pcap;
mod peer_event;
pub mod port;
mod presence;
pub mod segment;
#[cfg(feature = "smoltcp")]
pub mod smoltcp;
pub mod split;
pub mod tally;
pub mod tap;
mod tun;
#[cfg(feature = "vhost")]
pub mod vhost;
pub mod vnet;

pub use end::{End, Filled, Taker, lend};
pub(crate) use end::{Taking, carry, lend_both};
pub use error::{EndError, LoanError, OpenError};
pub use memlane_packet::{Frame, More, Placed, Room, Sent, Sleep};
pub use tally::EndCounts;
