//! Memory for requests' data at a client: one region for a session, lent in slots.

use super::chunks::{Chunks, Claim};
use super::frame::WriteTarget;
use super::inflow::Granted;
use super::link_error::LinkError;
use super::port_state::PortState;
use super::verbs::Reach;
use crate::engine::path::Conn;
use crate::lease::{Detour, Lease, Lender, Memory};
use crate::port::LeaseError;
use crate::wire::{Geometry, SgDesc};
use memlane_core::access::SharedBytes;
use memlane_core::region::{Pages, Region};
use memlane_core::token::Token;
use memlane_wait::mutex::{lock, read, write};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock, Weak};

/// Slots beyond the permits: what is being filled, or was not dropped yet, while others are under way.
const SPARE: u32 = 32;

/// A lease of fewer bytes is not worth a chunk.
const LEAST: u32 = 512;

/// Memories of users that a session takes leases from, at most: they are kept until its end.
const MEMORIES: usize = 64;

/// Bytes of a slot, and how many slots a session has.
fn slots_of(geometry: &Geometry) -> (usize, u32) {
    let slot = (geometry.max_io() as usize).next_multiple_of(4096);
    (slot, u32::from(geometry.depth()) + SPARE)
}

/// Bytes of a session's slots.
pub(super) fn len_of(geometry: &Geometry) -> usize {
    let (slot, count) = slots_of(geometry);
    slot * count as usize
}

/// The slots of a session. It lives until the last lease is dropped.
#[derive(Debug)]
pub(super) struct Pool {
    region: Arc<Region>,
    /// What a server is told: addresses of no process, so that they say nothing about this one.
    base: u64,
    key: u32,
    slot: usize,
    /// Most bytes of a request.
    most: u32,
    count: u32,
    /// A bit for each that is free. The lowest goes first, so that few stay warm.
    free: Vec<AtomicU64>,
    /// The server's chunks, while a connection shares them: leases lie there, as far as there are any to be had.
    chunks: RwLock<Option<Arc<Chunks>>>,
    /// Where leases of users' own memory lie. Kept for good: a server that answers twice, by two connections, may still
    /// be sending into one that was dropped.
    memories: Mutex<Vec<Arc<dyn Memory>>>,
    /// There is some.
    has_memories: AtomicBool,
    /// Ports that were refused, and have had none since, nor were told that there is one.
    starved: Mutex<Vec<Weak<PortState>>>,
    /// How many they are, roughly: asked before their lock is.
    hungry: AtomicUsize,
}

impl Pool {
    pub(super) fn new(geometry: &Geometry, pages: Pages) -> memlane_sys::Result<Arc<Pool>> {
        let (slot, count) = slots_of(geometry);
        let random = Token::fresh()?.bits();
        let words = count.div_ceil(64);
        let word = |n: u32| match count - n * 64 {
            left @ 0..64 => (1 << left) - 1,
            _ => u64::MAX,
        };
        Ok(Arc::new(Pool {
            region: Arc::new(Region::create_of(
                c"memlane-leases",
                slot * count as usize,
                pages,
            )?),
            base: (random >> 1) & !4095,
            key: Token::fresh()?.bits().to_le_bytes()[..4]
                .try_into()
                .map_or(1, u32::from_le_bytes),
            slot,
            most: geometry.max_io(),
            count,
            free: (0..words).map(|n| AtomicU64::new(word(n))).collect(),
            chunks: RwLock::new(None),
            memories: Mutex::default(),
            has_memories: AtomicBool::new(false),
            starved: Mutex::new(Vec::new()),
            hungry: AtomicUsize::new(0),
        }))
    }

    /// A slot's number for a port; `None` if there is none, or if those who were refused before come first.
    fn number(&self, port: &Arc<PortState>) -> Option<u32> {
        match self.hungry.load(Ordering::SeqCst) {
            0 => self.take().or_else(|| self.take_in_turn(port)),
            _ => self.take_in_turn(port),
        }
    }

    /// A lease that lies in its user's memory. It has a slot all the same, by whose number it is known.
    pub(super) fn lend_in(
        self: &Arc<Pool>,
        port: &Arc<PortState>,
        memory: &Arc<dyn Memory>,
        (at, len): (usize, usize),
    ) -> Result<Option<Lease>, LeaseError> {
        let is_beyond_cpu = memory.bytes().is_empty() && memory.dma_buf().is_some();
        let has = match memory.dma_buf() {
            Some((_, has)) if is_beyond_cpu => has,
            _ => memory.bytes().len(),
        };
        if at.checked_add(len).is_none_or(|end| end > has) {
            return Err(LeaseError::Outside);
        }
        self.know(memory)?;
        let Some(number) = self.number(port) else {
            return Ok(None);
        };
        let home = self.bytes(number).and_then(|home| home.part(0, len));
        if let Some(home) = home.filter(|_| is_beyond_cpu) {
            let owner = Arc::clone(self) as _;
            let lease = Lease::beyond_cpu(memory, at, home, number, owner);
            return Ok(Some(lease));
        }
        let lease = Lease::of(memory, (at, len), number, Arc::clone(self) as _);
        if lease.is_none() {
            self.give_back(number);
        }
        lease.map(Some).ok_or(LeaseError::Outside)
    }

    fn know(&self, memory: &Arc<dyn Memory>) -> Result<(), LeaseError> {
        let mut memories = lock(&self.memories);
        if memories.iter().any(|known| Arc::ptr_eq(known, memory)) {
            return Ok(());
        }
        if memories.len() == MEMORIES {
            return Err(LeaseError::TooManyMemories);
        }
        memories.push(Arc::clone(memory));
        self.has_memories.store(true, Ordering::Release);
        Ok(())
    }

    /// Do reads go to users' own memory, where they are to arrive without a detour?
    pub(super) fn has_memories(&self) -> bool {
        self.has_memories.load(Ordering::Acquire)
    }

    /// The chunks that leases lie in, if a connection shares them.
    pub(super) fn chunks(&self) -> Option<Arc<Chunks>> {
        let chunks = read(&self.chunks);
        chunks.clone()
    }

    /// A slot for a port; `None` as above.
    pub(super) fn lend(self: &Arc<Pool>, port: &Arc<PortState>, len: u32) -> Option<Lease> {
        let number = self.number(port)?;
        let at = number as usize * self.slot;
        let bytes = self.region.bytes().part(at, len as usize)?;
        let lease = Lease::new(bytes, number, Arc::clone(self) as _);
        Some(match self.claim(len) {
            Some((claim, bytes)) => lease.in_chunk(claim, bytes),
            None => lease,
        })
    }

    fn claim(&self, len: u32) -> Option<(Claim, SharedBytes)> {
        let chunks = read(&self.chunks);
        let chunks = chunks.as_ref().filter(|_| len >= LEAST)?;
        chunks.claim(len as usize)
    }

    /// New leases lie there from now on, or nowhere but here.
    pub(super) fn lie_in(&self, chunks: Option<Arc<Chunks>>) {
        *write(&self.chunks) = chunks;
    }

    /// A lease of ours leaves its chunk for its slot, with all that it has.
    pub(super) fn bring_home(self: &Arc<Pool>, lease: &mut Lease) -> Option<Claim> {
        let slot = self.bytes(lease.number()).filter(|_| lease.is_from(self));
        let home = slot.and_then(|slot| slot.part(0, lease.bytes().len()))?;
        lease.move_to(home)
    }

    fn take_in_turn(&self, port: &Arc<PortState>) -> Option<u32> {
        let mut starved = self.starved.lock().ok()?;
        starved.retain(|other| other.strong_count() > 0);
        let me = position(&starved, port);
        let others = starved.len() - usize::from(me.is_some());
        if me.is_none() {
            starved.push(Arc::downgrade(port));
            self.hungry.store(starved.len(), Ordering::SeqCst);
        }
        // After that: a slot that comes back from now on is announced.
        let due = me.is_some() || self.available() as usize > others;
        let number = due.then(|| self.take()).flatten();
        if number.is_some() {
            self.satisfied(&mut starved, port);
        }
        number
    }

    fn satisfied(&self, starved: &mut Vec<Weak<PortState>>, port: &Arc<PortState>) {
        if let Some(me) = position(starved, port) {
            starved.swap_remove(me);
        }
        self.hungry.store(starved.len(), Ordering::SeqCst);
    }

    fn take(&self) -> Option<u32> {
        for (at, word) in (0..).zip(&self.free) {
            let mut seen = word.load(Ordering::Acquire);
            while seen != 0 {
                let less = seen & (seen - 1);
                match word.compare_exchange_weak(seen, less, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => return Some(at * 64 + seen.trailing_zeros()),
                    Err(now) => seen = now,
                }
            }
        }
        None
    }

    fn available(&self) -> u32 {
        let ones = |word: &AtomicU64| word.load(Ordering::Acquire).count_ones();
        self.free.iter().map(ones).sum()
    }

    /// Was this port refused, and would it not be now? Told once.
    pub(super) fn has_again(&self, port: &Arc<PortState>) -> bool {
        if self.hungry.load(Ordering::SeqCst) == 0 {
            return false;
        }
        let Ok(mut starved) = self.starved.lock() else {
            return false;
        };
        let again = position(&starved, port).is_some() && self.available() > 0;
        if again {
            self.satisfied(&mut starved, port);
        }
        again
    }

    /// Lets a device write there.
    pub(super) fn let_reach(&self, reach: &Reach) -> Result<(), LinkError> {
        let (bytes, owner) = (self.region.bytes(), Arc::clone(&self.region));
        // SAFETY: the region is mapped as long as it lives.
        unsafe { reach.add(bytes, self.base, owner) }.map_err(LinkError::from)
    }

    /// How a server is told of a slot.
    pub(super) fn describe(&self, number: u32, len: u32) -> SgDesc {
        SgDesc {
            addr: self.base + u64::from(number) * self.slot as u64,
            key: self.key,
            len,
        }
    }

    /// Most bytes of a lease.
    pub(super) fn most(&self) -> u32 {
        self.most
    }

    pub(super) fn slots(&self) -> usize {
        self.count as usize
    }

    /// All of one slot.
    pub(super) fn bytes(&self, number: u32) -> Option<SharedBytes> {
        let at = (number as usize).checked_mul(self.slot)?;
        self.region.bytes().part(at, self.slot)
    }
}

fn position(starved: &[Weak<PortState>], port: &Arc<PortState>) -> Option<usize> {
    let is_me = |other: &Weak<PortState>| other.as_ptr() == Arc::as_ptr(port);
    starved.iter().position(is_me)
}

impl Lender for Pool {
    fn give_back(&self, number: u32) {
        if let Some(word) = self.free.get(number as usize / 64) {
            word.fetch_or(1 << (number % 64), Ordering::SeqCst);
        }
        if self.hungry.load(Ordering::SeqCst) == 0 {
            return;
        }
        let Ok(starved) = self.starved.lock() else {
            return;
        };
        starved
            .iter()
            .filter_map(Weak::upgrade)
            .for_each(|port| port.call());
    }
}

/// A read that is under way into a slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    /// The one connection that may bring it.
    pub(super) by: Conn,
    /// Bytes.
    pub(super) len: u32,
    /// Where they go: the lease's memory, which its flight keeps until this is gone.
    pub(super) into: SharedBytes,
    /// It lies in the chunk of the request.
    pub(super) in_place: bool,
    /// It comes to the lease's slot, and is to be copied to the lease.
    pub(super) by_slot: bool,
    /// Why it does not go straight to its user's memory.
    pub(super) detour: Option<Detour>,
}

/// What a server may write by one connection: slots of reads that were sent by it and are not over.
pub(super) struct ByReads<'a> {
    pub(super) pool: Option<&'a Pool>,
    pub(super) reading: &'a [Option<Reading>],
    pub(super) by: Conn,
}

impl Granted for ByReads<'_> {
    fn window(&mut self, place: &WriteTarget) -> Option<SharedBytes> {
        let pool = self.pool.filter(|pool| pool.key == place.key)?;
        let at = place.addr.checked_sub(pool.base)?;
        let number = u32::try_from(at / pool.slot as u64).ok()?;
        let from = usize::try_from(at % pool.slot as u64).ok()?;
        let reading = self.reading.get(number as usize)?.as_ref()?;
        let end = (from as u64).checked_add(place.span())?;
        if reading.by != self.by || end > u64::from(reading.len) {
            return None;
        }
        let span = usize::try_from(place.span()).ok()?;
        reading.into.part(from, span)
    }
}
