//! Memory that a device may reach.

use crate::cm::Id;
use crate::error::VerbsError;
use crate::layout::{Element, LOCAL_WRITE, MemoryRegion, ProtectionDomain, REMOTE_WRITE};
use core::any::Any;
use core::ptr::NonNull;
use memlane_core::access::SharedBytes;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

/// A protection domain: what peers may reach by one queue pair of it, they may reach by each of them.
#[derive(Debug)]
pub struct Domain {
    raw: NonNull<ProtectionDomain>,
    /// librdmacm closes a device that was taken away when its last id goes: this one stays.
    keeper: Arc<Id>,
}

// SAFETY: libibverbs locks what its functions share.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    /// A domain of the device that `id` has.
    ///
    /// # Errors
    /// It has none yet, or the device has no more domains.
    pub fn new(id: &Arc<Id>) -> Result<Arc<Domain>, VerbsError> {
        let device = id.context().ok_or(VerbsError::Failed {
            function: "ibv_alloc_pd",
            errno: libc::ENODEV,
        })?;
        // SAFETY: the device is open as long as the id lives.
        let raw = unsafe { (id.verbs().functions.ibv_alloc_pd)(device.as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(|| VerbsError::last("ibv_alloc_pd"))?;
        Ok(Arc::new(Domain {
            raw,
            keeper: Arc::clone(id),
        }))
    }

    /// Does `id` have the device that this domain is of?
    #[must_use]
    pub fn is_for(&self, id: &Id) -> bool {
        self.keeper.context() == id.context()
    }

    /// Lets the device, and peers that are told the key, write `bytes`. Peers call its first byte `named`, so that they
    /// learn no address of this process; `named` and the address must be equal modulo the page size.
    ///
    /// The pages are locked, and count against `RLIMIT_MEMLOCK`.
    ///
    /// # Safety
    /// The bytes stay mapped as long as `owner` lives.
    ///
    /// # Errors
    /// `ENOMEM`: more than this process may lock; the device has no more regions.
    pub unsafe fn register(
        self: &Arc<Self>,
        bytes: SharedBytes,
        named: u64,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<Registration, VerbsError> {
        let register = self.keeper.verbs().functions.ibv_reg_mr_iova;
        let access = LOCAL_WRITE | REMOTE_WRITE;
        let at = bytes.as_ptr();
        // SAFETY: the domain lives as long as the registration, and the bytes are mapped at least as long.
        let raw = unsafe { register(self.raw.as_ptr(), at.cast(), bytes.len(), named, access) };
        let raw = NonNull::new(raw).ok_or_else(|| VerbsError::last("ibv_reg_mr_iova"))?;
        Ok(self.registered(raw, (bytes, bytes.len()), named, owner))
    }

    /// As [`register`](Self::register), of the first `len` bytes of a dma-buf: memory that a device has, or that devices
    /// were given. The device of this domain reaches it without the CPU. `mapped` is the same memory as far as it is mapped here, or
    /// nothing; `named` is a page's beginning.
    ///
    /// # Safety
    /// As `register`, if anything is mapped.
    ///
    /// # Errors
    /// [`VerbsError::Missing`]: libibverbs is too old. `EOPNOTSUPP`: the device's driver cannot do that (rxe and siw cannot). Others are
    /// the driver's, and those of the dma-buf's exporter.
    pub unsafe fn register_dma_buf(
        self: &Arc<Self>,
        dma_buf: BorrowedFd<'_>,
        len: usize,
        mapped: SharedBytes,
        named: u64,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<Registration, VerbsError> {
        let register = self.keeper.verbs().register_dma_buf;
        let register = register.ok_or_else(|| {
            let text = "no dma-bufs by RDMA: libibverbs has no ibv_reg_dmabuf_mr: install rdma-core 34 or later";
            VerbsError::Missing(text.into())
        })?;
        let (fd, access) = (dma_buf.as_raw_fd(), LOCAL_WRITE | REMOTE_WRITE);
        // SAFETY: the domain lives as long as the registration; the kernel keeps the dma-buf as long as it is registered.
        let raw = unsafe { register(self.raw.as_ptr(), 0, len, named, fd, access) };
        let raw = NonNull::new(raw).ok_or_else(|| VerbsError::last("ibv_reg_dmabuf_mr"))?;
        Ok(self.registered(raw, (mapped, len), named, owner))
    }

    fn registered(
        self: &Arc<Self>,
        raw: NonNull<MemoryRegion>,
        (bytes, len): (SharedBytes, usize),
        named: u64,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Registration {
        // SAFETY: the keys were written before the call that made it returned.
        let keys = unsafe { ((*raw.as_ptr()).local_key, (*raw.as_ptr()).remote_key) };
        Registration {
            raw,
            keys,
            bytes,
            len,
            named,
            domain: Arc::clone(self),
            _owner: owner,
        }
    }

    pub(crate) fn raw(&self) -> *mut ProtectionDomain {
        self.raw.as_ptr()
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: nothing of it is left: registrations and queue pairs keep it.
        unsafe { (self.keeper.verbs().functions.ibv_dealloc_pd)(self.raw.as_ptr()) };
    }
}

/// Memory that a domain's device may reach, until this is dropped.
pub struct Registration {
    raw: NonNull<MemoryRegion>,
    keys: (u32, u32),
    /// As far as it is mapped: all of it, or nothing.
    bytes: SharedBytes,
    len: usize,
    named: u64,
    domain: Arc<Domain>,
    _owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: libibverbs locks what its functions share.
unsafe impl Send for Registration {}
// SAFETY: as above.
unsafe impl Sync for Registration {}

impl Registration {
    /// The key with which a peer writes here.
    #[must_use]
    pub fn key(&self) -> u32 {
        self.keys.1
    }

    /// How peers call `len` bytes from `at` on. `None`: not all of them are registered.
    #[must_use]
    pub fn name_at(&self, at: usize, len: usize) -> Option<u64> {
        let inside = at.checked_add(len)? <= self.len;
        inside.then(|| self.named + at as u64)
    }

    /// How peers call these bytes, if they are registered here.
    #[must_use]
    pub fn name(&self, bytes: &SharedBytes) -> Option<u64> {
        let first = self.bytes.as_ptr().addr();
        let at = bytes.as_ptr().addr().checked_sub(first)?;
        let inside = at.checked_add(bytes.len())? <= self.bytes.len();
        inside.then(|| self.named + at as u64)
    }

    /// These bytes for a work request, if they are registered here.
    #[must_use]
    pub fn piece(&self, bytes: &SharedBytes) -> Option<Piece> {
        let length = u32::try_from(bytes.len()).ok()?;
        Some(Piece(Element {
            addr: self.name(bytes)?,
            length,
            key: self.keys.0,
        }))
    }
}

impl core::fmt::Debug for Registration {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Registration")
            .field("len", &self.len)
            .field("named", &self.named)
            .finish_non_exhaustive()
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: it is ours, and its domain lives. Work requests that still name it fail.
        unsafe { (self.domain.keeper.verbs().functions.ibv_dereg_mr)(self.raw.as_ptr()) };
    }
}

/// Registered bytes. If their registration is gone, the device refuses them.
#[derive(Clone, Copy, Debug)]
pub struct Piece(pub(crate) Element);

impl Piece {
    /// None.
    pub const NONE: Piece = Piece(Element {
        addr: 0,
        length: 0,
        key: 0,
    });

    /// How many.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.0.length
    }

    /// Are there none?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.length == 0
    }
}
