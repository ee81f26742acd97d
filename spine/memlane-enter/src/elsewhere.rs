//! Processors other than amd64: every program is refused.

use crate::obstacle::Obstacle;
use core::ffi::CStr;
use memlane_sys::fd::Fd;

/// Nobody has one.
#[derive(Debug)]
pub enum Arranged {}

/// Refuses.
///
/// # Errors
/// Always.
pub fn arrange(_: &Fd, _: &CStr) -> Result<Arranged, Obstacle> {
    Err(Obstacle::Other)
}

/// Says that the program cannot be entered.
#[must_use]
pub fn obstacle_of(_: &Fd) -> Option<Obstacle> {
    Some(Obstacle::Other)
}
