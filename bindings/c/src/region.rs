//! Memory for payload: a region and its chunks, which are one thing in C.

use crate::fault::{Code, Fault, guard, guard_int};
use crate::pointer::{Out, array, room, text};
use crate::table::{Held, get, insert, remove};
use core::ffi::{c_char, c_int, c_void};
use memlane_devmem::DeviceRegion;
use memlane_devmem::io::Binding;
use memlane_devmem::region::Spec;
use std::os::fd::{AsRawFd, IntoRawFd};

/// Bytes of a chunk, unless the program says otherwise.
const CHUNK: u32 = 64 << 10;

impl Held for Binding {
    const NAME: &str = "memlane_region";
}

/// A region (`memfd:64M`) in chunks of `chunk` bytes (0: 64 KiB).
///
/// # Safety
/// As `memlane.h` says: pointers are NULL, or point to what they are for. So in all functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlane_region_create(
    what: *const c_char,
    chunk: u32,
    out: *mut usize,
) -> c_int {
    guard_int(|| {
        // SAFETY: the program's promise.
        let (what, out) = unsafe { (text("what", what)?, Out::new("out", out, 1)?) };
        let region = DeviceRegion::create(&what.parse::<Spec>()?)?;
        let chunk = if chunk == 0 { CHUNK } else { chunk };
        out.put(0, insert(Binding::new(region, chunk)?)?);
        Ok(0)
    })
}

/// The handle is none from now on; the memory goes when its streams and kept fragments have gone.
#[unsafe(no_mangle)]
pub extern "C" fn memlane_region_destroy(region: usize) -> c_int {
    guard_int(|| remove::<Binding>(region).map(|_| 0))
}

/// Bytes.
#[unsafe(no_mangle)]
pub extern "C" fn memlane_region_size(region: usize) -> i64 {
    guard(|| {
        let binding = get::<Binding>(region)?;
        Ok(i64::try_from(binding.region().len()).unwrap_or(i64::MAX))
    })
}

/// A descriptor of its memory, the dma-buf's if it is one; the caller's to close.
#[unsafe(no_mangle)]
pub extern "C" fn memlane_region_fd(region: usize) -> c_int {
    guard_int(|| {
        let binding = get::<Binding>(region)?;
        let why = "a device's memory, for which its driver gives no descriptor";
        let fd = binding.region().descriptor();
        let fd = fd.ok_or_else(|| Fault::new(Code::Missing, why))?;
        let own = fd.try_clone_to_owned();
        let own = own.map_err(|error| Fault::system("duplicating a descriptor", &error))?;
        Ok(own.into_raw_fd().into())
    })
}

/// 1: it is a dma-buf, which devices can be given. 0: it is not.
#[unsafe(no_mangle)]
pub extern "C" fn memlane_region_is_dma_buf(region: usize) -> c_int {
    guard_int(|| {
        let binding = get::<Binding>(region)?;
        let dma_buf = binding.region().dma_buf().map(|fd| fd.as_raw_fd());
        Ok(dma_buf.is_some().into())
    })
}

/// Copies bytes out of it.
///
/// # Safety
/// Pointers are NULL or valid for what the function reads and writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlane_region_read(
    region: usize,
    offset: u64,
    into: *mut c_void,
    len: usize,
) -> c_int {
    guard_int(|| {
        let binding = get::<Binding>(region)?;
        crate::devmem::fits(binding.region().len(), offset, len)?;
        // SAFETY: the program's promise.
        let into = unsafe { room("into", into.cast(), len)? };
        binding.region().read(offset, into)?;
        Ok(0)
    })
}

/// Copies bytes into it.
///
/// # Safety
/// Pointers are NULL or valid for what the function reads and writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlane_region_write(
    region: usize,
    offset: u64,
    from: *const c_void,
    len: usize,
) -> c_int {
    guard_int(|| {
        let binding = get::<Binding>(region)?;
        // SAFETY: the program's promise.
        let from = unsafe { array("from", from.cast(), len)? };
        binding.region().write(offset, from)?;
        Ok(0)
    })
}
