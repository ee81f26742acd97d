//! x
pub mod frame;
pub mod inflow;
pub mod link;
pub mod outflow;
