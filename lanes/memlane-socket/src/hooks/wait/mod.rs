//! Waiting: epoll, poll and select over kernel descriptors and rings together.

pub mod epoll;
pub mod poll;
mod relied;
mod waited;
