//! Frontends of memlane's volumes: each shows a [`memlane_block::volume::Volume`] to programs that know nothing of
//! memlane.
//!
//! | module | what a program sees | who may use it |
//! |---|---|---|
//! | [`nbd`] | an NBD export at a unix or TCP socket | anybody |
//! | [`fuse`] | a regular file (feature `fuse`) | whoever may mount by FUSE |
//! | [`loopdev`] | `/dev/loopN` over such a file | root |
//! | [`nbd_kernel`] | `/dev/nbdN` | root |
//! | [`ublk`] | `/dev/ublkbN` (feature `ublk`) | root |
//! | [`vhost`] | a virtual machine's disk (feature `vhost`) | anybody |
//!
//! A frontend takes a queue of the volume for each of its threads, checks each request before it submits it, and
//! lets the data lie in memory that the queue has leased.

#[cfg(feature = "fuse")]
pub mod fuse;
pub mod loopdev;
pub mod nbd;
pub mod nbd_kernel;
#[cfg(feature = "ublk")]
pub mod ublk;
#[cfg(feature = "vhost")]
pub mod vhost;
