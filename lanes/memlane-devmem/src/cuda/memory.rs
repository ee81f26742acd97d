//! Memory of a device.

use super::driver::{Context, Driver};
use super::refused::Refused;
use crate::error::{AccessError, RegionError};
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

/// Whole ones of these are allocated: a dma-buf wants whole pages of the host, and the device's are of this size.
const GRANULE: usize = 2 << 20;

/// Bytes of a device that the CPU cannot reach: they are copied in and out by the driver.
#[derive(Debug)]
pub struct Memory {
    context: Arc<Context>,
    number: u32,
    at: u64,
    len: usize,
}

impl Memory {
    /// Allocates at least this many bytes of a device.
    ///
    /// # Errors
    /// [`RegionError::Missing`]: there is no such device; [`RegionError::Device`]: it has not that much.
    pub fn new(driver: &'static Driver, number: u32, bytes: usize) -> Result<Memory, RegionError> {
        let context = Arc::new(driver.context(number)?);
        let len = bytes.max(1).next_multiple_of(GRANULE);
        let at = context.alloc(len).map_err(|why| {
            RegionError::Device(format!("cuda:{number}: {len} bytes cannot be had: {why}"))
        })?;
        Ok(Memory {
            context,
            number,
            at,
            len,
        })
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The device's number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// As people call the device.
    pub fn device_name(&self) -> String {
        self.context.name()
    }

    /// Where it begins in the device's addresses (`CUdeviceptr`).
    pub fn address(&self) -> u64 {
        self.at
    }

    /// As a dma-buf.
    ///
    /// # Errors
    /// Why it cannot be one.
    pub fn dma_buf(&self) -> Result<OwnedFd, String> {
        let fd = self.context.export(self.at, self.len)?;
        if fd < 0 {
            return Err("the driver gave no descriptor".into());
        }
        // SAFETY: the driver has just made this descriptor for us.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// The address of `len` bytes from `at`.
    pub(super) fn place(&self, at: u64, len: usize) -> Result<u64, AccessError> {
        let end = at.checked_add(len as u64);
        match end.filter(|end| *end <= self.len as u64) {
            Some(_) => Ok(self.at + at),
            None => Err(AccessError::Outside),
        }
    }

    /// Copies bytes out of it.
    ///
    /// # Errors
    /// Beyond its end; the driver's.
    pub fn read(&self, at: u64, into: &mut [u8]) -> Result<(), AccessError> {
        let from = self.place(at, into.len())?;
        // SAFETY: `into` is ours for its whole length; the range was checked.
        unsafe { self.context.read(from, into.as_mut_ptr(), into.len()) }.map_err(refused)
    }

    /// Copies bytes into it.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    ///
    /// # Safety
    /// `from` is readable for `len` bytes.
    pub unsafe fn write(&self, at: u64, from: *const u8, len: usize) -> Result<(), AccessError> {
        let to = self.place(at, len)?;
        // SAFETY: the caller's promise; the range was checked.
        unsafe { self.context.write(to, from, len) }.map_err(refused)
    }

    /// Other memory of the same device, with copies of these stretches (offset and bytes of each), one behind the other.
    ///
    /// # Errors
    /// A stretch beyond the end; the driver's.
    pub fn gathered(
        &self,
        stretches: impl Iterator<Item = (u64, usize)> + Clone,
    ) -> Result<Memory, AccessError> {
        let len = stretches.clone().map(|(_, len)| len).sum::<usize>();
        let len = len.max(1);
        let at = self.context.alloc(len).map_err(refused)?;
        let gathered = Memory {
            context: Arc::clone(&self.context),
            number: self.number,
            at,
            len,
        };
        let mut end = 0;
        let copy = |(from, len): (u64, usize)| {
            let to = gathered.place(end, len)?;
            end += len as u64;
            Ok((to, self.place(from, len)?, len))
        };
        let copies = stretches.map(copy).collect::<Result<Vec<_>, _>>()?;
        // SAFETY: each range was checked, and both memories live until all copies are done.
        unsafe { self.context.copy(copies.into_iter()) }.map_err(refused)?;
        Ok(gathered)
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Tells the driver of host memory that copies will come from; `None`: it does not want it, and copies without.
    ///
    /// # Safety
    /// A mapping that lives longer than what is returned.
    pub(crate) unsafe fn register(&self, at: NonNull<u8>, len: usize) -> Option<Registered> {
        // SAFETY: the caller's promise.
        let registered = unsafe { self.context.register(at.as_ptr(), len) };
        registered.is_ok().then(|| Registered {
            context: Arc::clone(&self.context),
            at: at.as_ptr() as usize,
        })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`; who copies there holds the region.
        unsafe { self.context.free(self.at) };
    }
}

pub(super) fn refused(why: Refused) -> AccessError {
    AccessError::Cuda(why.0)
}

/// Host memory that the driver knows of; until this is dropped.
#[derive(Debug)]
pub(crate) struct Registered {
    context: Arc<Context>,
    at: usize,
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: registered once, by `Memory::register`.
        unsafe { self.context.unregister(self.at as *mut u8) };
    }
}
