//! Stock programs against each other, plain and under memlane.
//!
//! A test is a [`Story`]: its body runs once without memlane (which proves the
//! test itself), then under `memlane run --upgrade eager` and `--upgrade auto`.
//! The body starts programs through a [`Stage`]; what they print goes to files,
//! which are shown, with the state of every process, if the story fails.
//!
//! - [`lane`]: what the stats pages of the programs say, and what they must say.
//! - [`http`], [`kv`], [`postgres`], [`lang`], [`iperf3`]: starting servers and clients.
//! - [`held`]: what a process holds, and that it does not come to hold more.
//!
//! Variables: `MEMLANE_TEST_PLAIN_ONLY=1` leaves memlane out,
//! `MEMLANE_TEST_MODE=plain|eager|auto` runs one mode only,
//! `MEMLANE_TEST_REQUIRE_ALL=1` makes a missing program a failure.

pub mod data;
pub mod fetched;
pub mod held;
pub mod http;
pub mod iperf3;
pub mod kv;
pub mod lane;
pub mod lang;
pub mod net;
pub mod postgres;
pub mod proc;
pub mod stage;
pub mod tree;

pub use crate::harness::Mode;
pub use data::{blob, counts, sha256_of_bytes, sha256_of_file};
pub use lane::{LaneReport, Reason, SHORT_LIVED};
pub use net::{free_port, wait_listening, wait_until};
pub use proc::{Done, Proc, note};
pub use stage::{Stage, Story, program, script, story};
