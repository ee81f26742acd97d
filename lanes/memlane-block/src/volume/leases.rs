//! Memory that a queue lends for requests, in pieces of one length.

use super::{Errno, Lease, Lender, Memory};
use crate::store::wakeup::Wakeup;
use memlane_core::region::Region;
use memlane_wait::mutex::lock;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// The pieces. Mapped until the last lease is back.
#[derive(Debug)]
pub(super) struct Leases {
    memory: Region,
    each: usize,
    free: Mutex<Vec<u32>>,
    /// A thread wanted a lease when there was none, and sleeps.
    wanted: AtomicBool,
    wakeup: Arc<Wakeup>,
}

impl Leases {
    /// `count` pieces of `each` bytes; `wakeup` wakes who was refused one.
    pub(super) fn new(count: u32, each: u32, wakeup: Arc<Wakeup>) -> io::Result<Arc<Leases>> {
        let len = count as usize * each as usize;
        let memory = Region::create(c"memlane-leases", len, false);
        Ok(Arc::new(Leases {
            memory: memory.map_err(|errno| io::Error::from_raw_os_error(errno.0))?,
            each: each as usize,
            // The lowest first: memory that nobody needs is never touched.
            free: Mutex::new((0..count).rev().collect()),
            wanted: AtomicBool::new(false),
            wakeup,
        }))
    }

    fn number(&self) -> Option<u32> {
        let mut number = self.free().pop();
        if number.is_none() {
            self.wanted.store(true, Ordering::SeqCst);
            // One that came back before that was seen.
            number = self.free().pop();
        }
        if number.is_some() {
            self.wanted.store(false, Ordering::SeqCst);
        }
        number
    }

    /// One that lies in its user's memory; it has a piece all the same.
    pub(super) fn take_in(
        self: &Arc<Self>,
        memory: &Arc<dyn Memory>,
        (at, len): (usize, u32),
    ) -> Result<Option<Lease>, Errno> {
        if memory.bytes().is_empty() && memory.dma_buf().is_some() {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        if memory.bytes().part(at, len as usize).is_none() {
            return Err(Errno::INVAL);
        }
        let Some(number) = self.number() else {
            return Ok(None);
        };
        let owner: Arc<dyn Lender> = Arc::clone(self) as _;
        let lease = Lease::of(memory, (at, len as usize), number, owner);
        if lease.is_none() {
            self.give_back(number);
        }
        lease.map(Some).ok_or(Errno::INVAL)
    }

    /// One of `len` bytes, which are no more than a piece has.
    pub(super) fn take(self: &Arc<Self>, len: u32) -> Option<Lease> {
        let number = self.number()?;
        let at = number as usize * self.each;
        let bytes = self.memory.bytes().part(at, len as usize);
        let owner: Arc<dyn Lender> = Arc::clone(self) as _;
        match bytes {
            Some(bytes) => Some(Lease::new(bytes, number, owner)),
            None => {
                self.free().push(number);
                None
            }
        }
    }

    /// Is there one for who was refused before?
    pub(super) fn to_be_had(&self) -> bool {
        self.wanted.load(Ordering::SeqCst) && !self.free().is_empty()
    }

    fn free(&self) -> std::sync::MutexGuard<'_, Vec<u32>> {
        lock(&self.free)
    }
}

impl Lender for Leases {
    fn give_back(&self, number: u32) {
        self.free().push(number);
        if self.wanted.swap(false, Ordering::SeqCst) {
            self.wakeup.signal();
        }
    }
}
