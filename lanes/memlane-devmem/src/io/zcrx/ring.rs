//! The ring that tells, and the ring by which buffers go back.

use crate::engine::zcrx::{Area, Completion, Entry};
use crate::error::ZcrxError;
use crate::io::Binding;
use crate::io::kernel::Interface;
use crate::region::DeviceRegion;
use core::fmt::Debug;
use io_uring::types::{
    Fd, IORING_MEM_REGION_TYPE_USER, io_uring_region_desc, io_uring_zcrx_area_reg,
    io_uring_zcrx_ifq_reg,
};
use io_uring::{IoUring, cqueue, opcode, squeue};
use memlane_sys::{Errno, mem};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Where payload comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum From<'a> {
    /// A receive queue of an interface.
    Queue(&'a Interface, u32),
    /// Any socket: everything is copied. For tests (Linux 7.1).
    Anywhere,
}

/// What a stream asks of its ring.
pub trait Ring: Send + Debug {
    /// Begins the request that completes again and again.
    ///
    /// # Errors
    /// The kernel's.
    fn arm(&mut self, number: u64) -> Result<(), Errno>;

    /// Takes completions, at most `most`. Never waits.
    ///
    /// # Errors
    /// The kernel's.
    fn reap(&mut self, most: usize, into: &mut Vec<Completion>) -> Result<(), Errno>;

    /// Readable when there are some, or when there may be.
    fn bell(&self) -> BorrowedFd<'_>;
}

/// Entries of the refill ring: as many buffers can be on their way back at a time.
const REFILL: u32 = 4096;
/// Entries for requests, and for completions: what does not fit waits in the kernel, or ends the request (ENOSPC).
const REQUESTS: u32 = 8;
const COMPLETIONS: u32 = 4096;
/// `IORING_ZCRX_AREA_DMABUF`; `ZCRX_REG_NODEV`.
const AREA_DMABUF: u32 = 1;
const NO_DEVICE: u32 = 2;
/// `IORING_ENTER_GETEVENTS`: what waits to be done for this ring is done.
const GETEVENTS: u32 = 1;
/// `ENODEV`.
const NO_SUCH_DEVICE: Errno = Errno(19);
/// `IORING_CQE_F_MORE`.
const MORE: u32 = 2;

/// A ring of the kernel's, with a queue registered.
pub struct Uring {
    ring: IoUring<squeue::Entry, cqueue::Entry32>,
    id: u32,
    enabled: bool,
    socket: Option<Arc<OwnedFd>>,
    /// Until the ring is closed, the kernel reads it.
    _refill: Arc<Pages>,
}

impl Debug for Uring {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Uring")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl Uring {
    pub(super) fn open(
        binding: &Arc<Binding>,
        from: From<'_>,
    ) -> Result<(Uring, RefillRing, Area), ZcrxError> {
        let ring = IoUring::builder()
            .setup_cqsize(COMPLETIONS)
            .setup_single_issuer()
            .setup_defer_taskrun()
            // Whoever enables it is its thread: the one that receives, not this one.
            .setup_r_disabled()
            .dontfork()
            .build(REQUESTS);
        let ring = ring.map_err(|error| ZcrxError::NoRing(errno(&error)))?;
        let pages = mem::PAGE + REFILL as usize * ENTRY;
        let pages = Pages::new(pages).map_err(ZcrxError::Memory)?;
        let region = binding.region();
        let len = region.len();
        let mut area = io_uring_zcrx_area_reg {
            addr: region.bytes().as_ptr() as u64,
            len: len as u64,
            rq_area_token: 0,
            flags: 0,
            dmabuf_fd: 0,
            __resv2: [0; 2],
        };
        if let Some(fd) = region.dma_buf() {
            area.addr = 0;
            area.flags = AREA_DMABUF;
            // Not negative: it is open.
            area.dmabuf_fd = fd.as_raw_fd().unsigned_abs();
        } else if !region.is_mapped() {
            return Err(ZcrxError::Unreachable);
        }
        let mut there = io_uring_region_desc {
            user_addr: pages.base.as_ptr() as u64,
            size: pages.len as u64,
            flags: IORING_MEM_REGION_TYPE_USER,
            ..io_uring_region_desc::default()
        };
        let mut queue = io_uring_zcrx_ifq_reg {
            rq_entries: REFILL,
            area_ptr: (&raw mut area) as u64,
            region_ptr: (&raw mut there) as u64,
            ..io_uring_zcrx_ifq_reg::default()
        };
        match from {
            From::Queue(interface, number) => {
                (queue.if_idx, queue.if_rxq) = (interface.index, number);
            }
            From::Anywhere => queue.flags = NO_DEVICE,
        }
        let told = ring.submitter().register_ifq(&queue);
        told.map_err(|error| {
            // EINVAL is also what a kernel says that does not know the call. Others look for the interface first.
            let nowhere = io_uring_zcrx_ifq_reg {
                if_idx: i32::MAX.unsigned_abs(),
                ..queue
            };
            let is_known = || {
                let told = ring.submitter().register_ifq(&nowhere);
                told.is_err_and(|error| errno(&error) == NO_SUCH_DEVICE)
            };
            refused(errno(&error), from, region, is_known)
        })?;
        // SAFETY: both are plain numbers, which the kernel has written over behind the compiler's back.
        let (queue, area) = unsafe {
            let queue = (&raw const queue).read_volatile();
            (queue, (&raw const area).read_volatile())
        };
        let pages = Arc::new(pages);
        let offsets = [queue.offsets.head, queue.offsets.tail, queue.offsets.rqes];
        let refill = RefillRing::within(&pages, offsets, queue.rq_entries);
        let area = Area {
            bytes: len as u64,
            token: area.rq_area_token,
        };
        let uring = Uring {
            ring,
            id: queue.zcrx_id,
            enabled: false,
            socket: None,
            _refill: pages,
        };
        Ok((uring, refill.ok_or(ZcrxError::NoAnswer)?, area))
    }

    /// Receives from there.
    pub(super) fn of(mut self, socket: Arc<OwnedFd>) -> Uring {
        self.socket = Some(socket);
        self
    }

    /// From the first call on, this thread's.
    fn enable(&mut self) -> Result<(), Errno> {
        if !self.enabled {
            let enabled = self.ring.submitter().register_enable_rings();
            enabled.map_err(|error| errno(&error))?;
            self.enabled = true;
        }
        Ok(())
    }

    fn enter(&self, submitted: u32) -> Result<usize, Errno> {
        // SAFETY: no argument; what is submitted names a socket and no memory.
        let entered = unsafe {
            let none: Option<&()> = None;
            self.ring.submitter().enter(submitted, 0, GETEVENTS, none)
        };
        entered.map_err(|error| errno(&error))
    }
}

fn errno(error: &std::io::Error) -> Errno {
    Errno(error.raw_os_error().unwrap_or(5))
}

impl Ring for Uring {
    fn arm(&mut self, number: u64) -> Result<(), Errno> {
        self.enable()?;
        let socket = self.socket.as_ref().ok_or(Errno::INVAL)?;
        let request = opcode::RecvZc::new(Fd(socket.as_raw_fd()), 0)
            .ifq(self.id)
            .build()
            .user_data(number);
        let mut requests = self.ring.submission();
        // SAFETY: the socket lives as long as the ring; no memory is named.
        let pushed = unsafe { requests.push(&request) };
        drop(requests);
        pushed.map_err(|_| Errno::AGAIN)?;
        self.enter(1).map(drop)
    }

    fn reap(&mut self, most: usize, into: &mut Vec<Completion>) -> Result<(), Errno> {
        self.enable()?;
        self.enter(0)?;
        let completions = self.ring.completion();
        into.extend(completions.take(most).map(|one| Completion {
            number: one.user_data(),
            result: one.result(),
            more: one.flags() & MORE != 0,
            offset: one.big_cqe()[0],
        }));
        Ok(())
    }

    fn bell(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as the ring is.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

/// Memory that the kernel reads.
#[derive(Debug)]
struct Pages {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: an address range, which is reached by `RefillRing` only.
unsafe impl Send for Pages {}
// SAFETY: as above; its writer holds a lock.
unsafe impl Sync for Pages {}

impl Pages {
    fn new(len: usize) -> Result<Pages, Errno> {
        let len = len.next_multiple_of(mem::PAGE);
        let base = mem::map_anon(len, false)?;
        Ok(Pages { base, len })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the whole mapping from `new`; the kernel has pages of its own hold on it.
        unsafe { mem::unmap(self.base, self.len) };
    }
}

/// Bytes of an entry (`struct io_uring_zcrx_rqe`).
const ENTRY: usize = 16;

/// Buffers on their way back, in memory that the kernel reads.
///
/// | word | who writes | who reads | order |
/// |---|---|---|---|
/// | head | the kernel | who gives back | acquire: entries before it are read |
/// | tail | who gives back, with a lock of his | the kernel | release, behind the entries |
/// | entries | likewise | the kernel | between head and tail nobody writes |
#[derive(Debug)]
pub struct RefillRing {
    pages: Arc<Pages>,
    head: usize,
    tail: usize,
    entries: usize,
    count: u32,
}

impl RefillRing {
    /// For tests that play the kernel: a ring of `count` entries, a power of two. `None`: no memory.
    pub fn own(count: u32) -> Option<RefillRing> {
        let pages = Pages::new(64 + count as usize * ENTRY).ok()?;
        RefillRing::within(&Arc::new(pages), [0, 4, 64], count)
    }

    /// Where the kernel says. `None`: that is nowhere.
    fn within(pages: &Arc<Pages>, offsets: [u32; 3], count: u32) -> Option<RefillRing> {
        let [head, tail, entries] = offsets.map(|offset| offset as usize);
        let word = |at: usize| at.is_multiple_of(4) && at + 4 <= pages.len;
        let end = (count as usize).checked_mul(ENTRY)?.checked_add(entries)?;
        let fits = word(head) && word(tail) && entries.is_multiple_of(8) && end <= pages.len;
        (fits && count.is_power_of_two()).then(|| RefillRing {
            pages: Arc::clone(pages),
            head,
            tail,
            entries,
            count,
        })
    }

    /// Entries that it has.
    pub fn entries(&self) -> u32 {
        self.count
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: within the pages, aligned (`within`), zeroed at first; both sides treat it as an atomic.
        unsafe { AtomicU32::from_ptr(self.pages.base.as_ptr().add(at).cast()) }
    }

    fn entry(&self, at: u32) -> *mut [u64; 2] {
        let at = self.entries + (at & (self.count - 1)) as usize * ENTRY;
        // SAFETY: within the pages (`within`).
        unsafe { self.pages.base.as_ptr().add(at).cast() }
    }

    /// How far the kernel has read.
    pub fn head(&self) -> u32 {
        self.word(self.head).load(Ordering::Acquire)
    }

    /// Writes an entry that the kernel does not read before it is published. One thread at a time.
    pub(super) fn write(&self, at: u32, entry: Entry) {
        let words = [entry.offset, u64::from(entry.len)];
        // SAFETY: aligned to 8 (`within`); behind the tail, where the kernel does not read, and who writes has a lock.
        unsafe { self.entry(at).write_volatile(words) };
    }

    /// What is before it may be read.
    pub(super) fn publish(&self, tail: u32) {
        self.word(self.tail).store(tail, Ordering::Release);
    }

    /// For who plays the kernel: the next entry, if there is one.
    pub fn read(&self) -> Option<Entry> {
        let head = self.head();
        if head == self.word(self.tail).load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: published, and not written before the head has passed it.
        let [offset, len] = unsafe { self.entry(head).read_volatile() };
        self.word(self.head)
            .store(head.wrapping_add(1), Ordering::Release);
        let len = u32::try_from(len).ok()?;
        Some(Entry { offset, len })
    }
}

/// What a number means when a queue is registered (`io_register_zcrx_ifq`, `net_mp_open_rxq` in the kernel).
fn refused(
    errno: Errno,
    from: From<'_>,
    region: &DeviceRegion,
    is_known: impl FnOnce() -> bool,
) -> ZcrxError {
    let From::Queue(interface, queue) = from else {
        return match errno.0 {
            22 => ZcrxError::TooOld,
            _ => ZcrxError::Refused(errno),
        };
    };
    let name = || interface.name.clone();
    match errno.0 {
        1 => ZcrxError::Permission,
        22 if !is_known() => ZcrxError::TooOld,
        19 => ZcrxError::Interface(name(), "is not in this network namespace"),
        95 => ZcrxError::Interface(
            name(),
            "has a driver that cannot give single queues other memory",
        ),
        34 => ZcrxError::NoQueue(name(), queue),
        17 => ZcrxError::Interface(
            name(),
            "has a program (XDP), or that queue has other memory already",
        ),
        22 if region.dma_buf().is_some() => ZcrxError::Interface(
            name(),
            "does not split headers off all packets (ethtool -G INTERFACE tcp-data-split on hds-thresh 0), or cannot reach that dma-buf",
        ),
        22 => ZcrxError::Interface(
            name(),
            "does not split headers off all packets: ethtool -G INTERFACE tcp-data-split on hds-thresh 0",
        ),
        _ => ZcrxError::Refused(errno),
    }
}
