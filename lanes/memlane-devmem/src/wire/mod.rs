//! Bytes that go to the kernel and come from it.

pub mod control;
pub mod ethtool;
pub mod netdev;
pub mod steer;
