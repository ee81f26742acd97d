//! Waiting: epoll, poll and select over kernel descriptors and rings together.

mod call;
pub mod epoll;
mod long;
mod poll;
mod relied;
mod select;
mod strangers;
mod waited;

pub use call::{Limit, limit_ms, limit_ts, limit_tv, tell_left};
pub use poll::poll;
pub use select::select;
