//! Processors other than amd64: every program is refused.

use crate::executor::Executor;
use crate::obstacle::Obstacle;
use core::ffi::CStr;
use memlane_sys::fd::Fd;

/// Nobody has one.
#[derive(Clone, Copy, Debug)]
pub enum Examined {}

/// Nobody has one.
#[derive(Debug)]
pub enum Arranged {}

/// Refuses.
///
/// # Errors
/// Always.
pub fn examine(_: &Fd) -> Result<Examined, Obstacle> {
    Err(Obstacle::Other)
}

/// Prepares for the exec of a program, of which there is none.
///
/// # Errors
/// None.
pub fn arrange(program: Examined, _: &CStr, _: Executor) -> Result<Arranged, Obstacle> {
    match program {}
}
