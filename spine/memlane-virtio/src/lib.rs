//! A guest's memory and its descriptors, checked before they are touched: what the block lane's disks and the packet
//! lane's network devices have in common (vhost-user, by rust-vmm's crates).
//!
//! | room | what |
//! |---|---|
//! | [`memory`] | may it be touched? windows on it |
//! | [`chain`] | a chain's descriptors, copied once |
//! | [`socket`] | a socket for one user; descriptors that are eventfds |

pub mod chain;
pub mod memory;
pub mod socket;
