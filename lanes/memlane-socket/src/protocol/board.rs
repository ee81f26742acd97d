//! Boards: what other threads read of this process's chunks without a lock. They show which connections are awake,
//! which peers have published something (the *ready words*), and since when.

// Indices are bounded by the tables' sizes, far below 2^31.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss
)]

pub mod polled;

use crate::state::conn::{Conn, Dmb, SharedState};
use crate::state::far::far;
use crate::state::idle::{self, CHUNKS};
use crate::state::process::PROCESS;
use crate::state::sets::{self, Bell, Ep, Sleeper, SleeperCell};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use memlane_core::layout::{ChunkHeader, DMB_WORDS_LEN, DMBS_AT, ReadyWords, SLOTS};
use memlane_core::sync::{Cpu, Words as _};
use memlane_sys::time;

/// What [`harvest`] reads of a chunk of ours.
#[derive(Debug)]
pub(super) struct Board {
    pub(super) base: AtomicPtr<u8>,
    /// The size of each ring, in bytes. Written before `base`.
    pub(super) ring_size: AtomicU32,
    /// How many chunks have had this number before. Written under the groups' lock.
    pub(super) serial: AtomicU32,
    pub(super) hot: AtomicU32,
    /// Whom the bell wakes. Written under the groups' lock, or by the first thread that wakes a connection which somebody waits
    /// for.
    pub(super) sleeper: SleeperCell,
    /// Our end of its bell; 0: none.
    pub(super) bell: AtomicI32,
    /// 1: its senders run on another machine, whose clock and CPUs are others. Written before `base`.
    pub(super) is_across: AtomicU32,
    /// 1: the descriptors that the peer gets are still open here. Written under the groups' lock.
    pub(super) is_to_arrive: AtomicU32,
    pub(super) conns: [AtomicPtr<Conn>; SLOTS],
    /// Of slots in quarantine: the shared states of connections that other processes hold.
    pub(super) shared_states: [AtomicPtr<SharedState>; SLOTS],
}

far! {
    pub(super) static BOARDS: [Board; CHUNKS] = [const {
        Board {
            base: AtomicPtr::new(core::ptr::null_mut()),
            ring_size: AtomicU32::new(0),
            serial: AtomicU32::new(0),
            hot: AtomicU32::new(0),
            sleeper: SleeperCell::new(),
            bell: AtomicI32::new(0),
            is_across: AtomicU32::new(0),
            is_to_arrive: AtomicU32::new(0),
            conns: [const { AtomicPtr::new(core::ptr::null_mut()) }; SLOTS],
            shared_states: [const { AtomicPtr::new(core::ptr::null_mut()) }; SLOTS],
        }
    }; CHUNKS];
}

/// Boards from this index on were never used.
pub(super) static BOARD_HIGH: AtomicU32 = AtomicU32::new(0);

/// Bits of a chunk's name that are its number; the others tell it from chunks that had the number before.
const NUMBER_BITS: u32 = 16;
const _: () = assert!(CHUNKS <= 1 << NUMBER_BITS);

/// The name by which a peer knows chunk `chunk` of ours. A peer that has kept a chunk of ours which is gone does not take
/// the next one for it.
pub fn name_of(chunk: u32) -> u32 {
    let serial = BOARDS[chunk as usize].serial.load(Ordering::Relaxed);
    chunk | serial << NUMBER_BITS
}

/// The number of the chunk with this name, which a peer told: it may be any number.
pub fn number_of(name: u32) -> u32 {
    name & ((1 << NUMBER_BITS) - 1)
}

/// Puts a connection on the board, so that [`harvest`] finds it.
pub fn post(chunk: u32, slot: u32, conn: &Conn) {
    BOARDS[chunk as usize].conns[slot as usize]
        .store(core::ptr::from_ref(conn).cast_mut(), Ordering::Release);
}

/// Is this connection on the board, in this slot? In a forked child, its numbers are those of the parent's board.
pub fn is_posted(chunk: u32, slot: u32, conn: &Conn) -> bool {
    let on_board = &BOARDS[chunk as usize].conns[slot as usize & (SLOTS - 1)];
    core::ptr::eq(on_board.load(Ordering::Acquire), conn)
}

/// The number of chunks of ours that have ever been used: all indices are below it.
pub fn chunks_in_use() -> usize {
    BOARD_HIGH.load(Ordering::Acquire) as usize
}

/// The bell of the chunk that this connection receives from, if its sender can ring it.
pub fn bell_of(conn: &Conn) -> Option<Bell> {
    let chunk = conn.rx_chunk.load(Ordering::Relaxed);
    let board = &BOARDS[chunk as usize];
    let fd = board.bell.load(Ordering::Acquire);
    if fd <= 0 || !is_posted(chunk, conn.rx_slot.load(Ordering::Relaxed), conn) {
        return None;
    }
    can_ring(chunk).then(|| Bell {
        chunk: name_of(chunk),
        fd,
        sleeper: sleeper_of(conn, board),
    })
}

/// Whom the bell of a board wakes. If that is nobody yet, it is who waits for this connection from now on.
fn sleeper_of(conn: &Conn, board: &Board) -> Sleeper {
    match board.sleeper.get() {
        Sleeper::NOBODY => board.sleeper.claim(sleeper_for(conn)),
        known => known,
    }
}

/// Makes the bell of chunk `chunk` wake this sleeper from now on. The chunk has no connections, or none that anybody waits for.
/// The caller holds the groups' lock.
pub(super) fn give_to(chunk: u32, sleeper: Sleeper) {
    let board = &BOARDS[chunk as usize];
    let before = board.sleeper.get();
    if let Some(ep) = before.set() {
        let bell = Bell {
            chunk: name_of(chunk),
            fd: board.bell.load(Ordering::Relaxed),
            sleeper: before,
        };
        sets::take_down(ep, &bell);
    }
    polled::close(chunk);
    board.sleeper.set(sleeper);
}

/// Whom a bell should wake for this connection: who waits on the one set that it is in, or else who waited for it last.
pub fn sleeper_for(conn: &Conn) -> Sleeper {
    if sets::is_registered(&conn.regs) {
        Sleeper::on_set(sets::only_set(&conn.regs))
    } else {
        conn.last_waiter.get().unless_closed()
    }
}

/// Does the sender into chunk `chunk` of ours say that it can ring the chunk's bell?
pub fn can_ring(chunk: u32) -> bool {
    let ready = ready_words(&BOARDS[chunk as usize]);
    ready.is_some_and(|ready| ready.rings.load(Ordering::Acquire) == 1)
}

/// The board of the chunk with this name, and its ready words, if the chunk is still there for connections of this set.
fn of_set(ep: &Ep, name: u32) -> Option<(&'static Board, &'static ReadyWords)> {
    let board = &BOARDS[number_of(name) as usize % CHUNKS];
    let is_sets = board.sleeper.get() == Sleeper::on_set(ep);
    if !is_sets || name_of(number_of(name)) != name {
        return None;
    }
    ready_words(board).map(|ready| (board, ready))
}

/// Is the chunk with this name no longer there for connections of this set?
fn is_gone(ep: &Ep, name: u32) -> bool {
    of_set(ep, name).is_none()
}

/// Asks the senders into this chunk to ring its bell from now on.
fn ask_for(bell: &Bell) {
    if let Some(ep) = bell.sleeper.set()
        && let Some((_, ready)) = of_set(ep, bell.chunk)
    {
        ready.lie_down(ep.bells.ring_of(bell.chunk));
    }
}

/// Puts this bell into the set, and returns whether it is there. The caller holds the set's lock.
pub fn hang(ep: &Ep, bell: &Bell) -> bool {
    sets::hang(ep, bell, |chunk| is_gone(ep, chunk))
}

/// A connection is about to be awake while threads sleep on the set: its senders ring. The caller holds the set's lock.
pub fn count_on(ep: &Ep, bell: &Bell) {
    ask_for(bell);
    sets::count_on_bell(ep, &crate::state::process::HIDING);
}

/// The ready words of the chunk with this bell, if it is still there and the bell wakes the calling thread.
pub fn of_this_thread(bell: &Bell) -> Option<&'static ReadyWords> {
    let number = number_of(bell.chunk);
    let board = &BOARDS[number as usize % CHUNKS];
    let is_threads = board.sleeper.get() == Sleeper::this_thread();
    if !is_threads || name_of(number) != bell.chunk {
        return None;
    }
    ready_words(board)
}

/// Asks the senders into the chunks of a set to ring their bells from now on. Returns `false`, and asks for nothing, if one
/// of them has news. The caller holds the set's lock.
pub fn lie_down(ep: &Ep) -> bool {
    let known = |(name, ring)| of_set(ep, name).map(|of_set| (of_set, ring));
    let all = || ep.bells.chunks().filter_map(known);
    all().for_each(|((_, ready), ring)| ready.lie_down(ring));
    Cpu::full_fence();
    // Where no connection is awake, a bit is left over from one that has parked since.
    let has_news = |(board, ready): (&Board, &ReadyWords)| {
        ready.has_news() && board.hot.load(Ordering::Acquire) != 0
    };
    let quiet = !all().any(|(of_set, _)| has_news(of_set));
    if quiet {
        sets::hear_edges(ep);
    } else if ep.bells.sleepers.load(Ordering::Relaxed) == 0 {
        get_up(ep);
    }
    quiet
}

/// Tells the senders into the chunks of a set that they need not ring. The caller holds the set's lock.
pub fn get_up(ep: &Ep) {
    let all = ep.bells.chunks();
    all.filter_map(|(name, _)| of_set(ep, name))
        .for_each(|(_, ready)| ready.get_up());
}

/// Does a thread of this process rely on the bell of this board? Then it takes the news, and the others leave them to it.
fn is_left_to_another(board: &Board, ready: &ReadyWords, own: &Ep) -> bool {
    let others = board
        .sleeper
        .get()
        .set()
        .filter(|set| !core::ptr::eq(*set, own));
    let relies = |set: &Ep| set.bells.sleepers.load(Ordering::Acquire) != 0;
    ready.is_asleep() && others.is_some_and(relies)
}

/// A bit for each chunk of ours with awake connections. `HOT_WORDS_USED` has a bit for each word that has ever had one,
/// so the cost of a look depends on the chunks that are awake, not on all chunks. A thread that clears a bit looks
/// again whether a connection has woken up meanwhile. The bit is missing for that moment; a connection that parks then
/// finds the news in the ring itself.
static HOT_CHUNKS: [AtomicU64; CHUNKS / 64] = [const { AtomicU64::new(0) }; CHUNKS / 64];
static HOT_WORDS_USED: AtomicU32 = AtomicU32::new(0);

/// Counts one more (`up`) or one less connection of this chunk as awake.
pub fn hot(chunk: u32, up: bool) {
    let board = &BOARDS[chunk as usize];
    let (word, bit) = (&HOT_CHUNKS[chunk as usize / 64], 1 << (chunk % 64));
    if up {
        show_looking(board, time::ticks());
        if board.hot.fetch_add(1, Ordering::SeqCst) == 0 {
            word.fetch_or(bit, Ordering::SeqCst);
            HOT_WORDS_USED.fetch_or(1 << (chunk / 64), Ordering::SeqCst);
        }
    } else if board.hot.fetch_sub(1, Ordering::SeqCst) == 1 {
        word.fetch_and(!bit, Ordering::SeqCst);
        if board.hot.load(Ordering::SeqCst) != 0 {
            word.fetch_or(bit, Ordering::SeqCst);
        }
    }
}

/// May any connection of the process be awake?
#[inline(always)]
pub fn any_hot() -> bool {
    HOT_WORDS_USED.load(Ordering::Relaxed) != 0
}

/// Calls `f` with each chunk that has awake connections, until it returns `true`. Returns whether it did.
#[inline]
fn any_hot_chunk(mut f: impl FnMut(&Board, &ReadyWords) -> bool) -> bool {
    for of_words in ones(u64::from(HOT_WORDS_USED.load(Ordering::Acquire))) {
        for bit in ones(HOT_CHUNKS[of_words].load(Ordering::Acquire)) {
            let board = &BOARDS[of_words * 64 + bit];
            if board.hot.load(Ordering::Relaxed) != 0
                && let Some(ready) = ready_words(board)
                && f(board, ready)
            {
                return true;
            }
        }
    }
    false
}

/// The ready words of a board's chunk, if the chunk is in use.
#[inline]
fn ready_words(board: &Board) -> Option<&ReadyWords> {
    let base = board.base.load(Ordering::Acquire);
    // SAFETY: null, or a chunk that stays mapped while it has connections; atomics only.
    unsafe { base.cast::<ChunkHeader>().as_ref() }.map(|header| &header.ready)
}

/// Calls `f` with each ready word that is not 0, of chunks with awake connections, until it returns `true`. Returns
/// whether it did. Leaves out what a thread that sleeps on another set than `ep` will be woken for.
#[inline]
fn any_ready_word(ep: &Ep, mut f: impl FnMut(&Board, &AtomicU64) -> bool) -> bool {
    any_hot_chunk(|board, ready| {
        ready.has_news() && !is_left_to_another(board, ready, ep) && f(board, &ready.bits)
    })
}

/// The numbers of the bits that are set in a word.
#[inline]
fn ones(mut word: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let bit = word.trailing_zeros() as usize;
        word &= word.wrapping_sub(1);
        (bit < 64).then_some(bit)
    })
}

/// Calls `f` for every connection whose peer has published something since the last look, in the order in which the
/// peers did. Costs one load for each chunk with awake connections. The caller waits on the set `ep`.
#[inline]
pub fn harvest(ep: &Ep, mut f: impl FnMut(&'static Conn)) {
    let mut found = Found::new();
    any_ready_word(ep, |board, bits| {
        for slot in ones(bits.swap(0, Ordering::AcqRel)) {
            if let Some(conn) = posted(board, slot) {
                found.add(since(board, slot), conn, &mut f);
            }
        }
        false
    });
    found.tell(&mut f);
}

#[inline]
fn posted(board: &Board, slot: usize) -> Option<&'static Conn> {
    let conn = board.conns[slot].load(Ordering::Acquire);
    // SAFETY: null or an address in the pool, which is never unmapped.
    unsafe { conn.as_ref() }
}

/// Has any peer made a mark after `since`?
#[inline]
pub fn is_marked_since(since: u64) -> bool {
    any_hot_chunk(|_, ready| ready.is_marked_since(since))
}

/// Calls `f` with each mark that peers made after `since`, up to `now`, and the connection that it came by.
pub fn marks(since: u64, now: u64, mut f: impl FnMut(u64, &'static Conn)) {
    any_hot_chunk(|board, ready| {
        for mark in ready.marks_between(since, now) {
            if let Some(conn) = posted(board, mark.slot) {
                f(mark.at, conn);
            }
        }
        false
    });
}

/// When the peer of this connection says that it had the news that this side has not read yet.
pub fn since_of(conn: &Conn) -> u64 {
    let (chunk, slot) = (&conn.rx_chunk, &conn.rx_slot);
    let board = &BOARDS[chunk.load(Ordering::Relaxed) as usize % CHUNKS];
    since(board, slot.load(Ordering::Relaxed) as usize % SLOTS)
}

/// When the peer of this slot says that it had news. A lie only changes the position of the peer's own connection.
#[inline]
fn since(board: &Board, slot: usize) -> u64 {
    let base = board.base.load(Ordering::Acquire);
    if base.is_null() {
        return 0;
    }
    // SAFETY: a chunk that stays mapped while it has connections, and `slot` is below SLOTS; atomics only.
    let words = unsafe { &*base.add(DMBS_AT + slot * DMB_WORDS_LEN).cast::<Dmb>() };
    words.sent.0.ready_since.load(Ordering::Relaxed)
}

/// Connections with news, sorted by the age of the news. More than [`FOUND_MOST`] are reported in several batches.
struct Found {
    /// The first `count` are set. To fill in all of them before each look would take sixteen cache lines.
    all: [MaybeUninit<(u64, &'static Conn)>; FOUND_MOST],
    count: usize,
}

/// The most connections in one batch: 1 KiB of stack.
const FOUND_MOST: usize = 64;

impl Found {
    #[inline]
    fn new() -> Found {
        Found {
            all: [const { MaybeUninit::uninit() }; FOUND_MOST],
            count: 0,
        }
    }

    #[inline]
    fn add(&mut self, since: u64, conn: &'static Conn, f: &mut impl FnMut(&'static Conn)) {
        if self.count == FOUND_MOST {
            self.tell(f);
        }
        self.all[self.count].write((since, conn));
        self.count += 1;
    }

    #[inline]
    fn tell(&mut self, f: &mut impl FnMut(&'static Conn)) {
        let found = self.all[..self.count].as_mut_ptr();
        // SAFETY: `add` has written the first `count`, whose type has the size of their places.
        let found = unsafe {
            core::slice::from_raw_parts_mut(found.cast::<(u64, &'static Conn)>(), self.count)
        };
        if found.len() > 1 {
            found.sort_unstable_by_key(|(since, _)| *since);
        }
        for (_, conn) in found {
            f(conn);
        }
        self.count = 0;
    }
}

/// The least time between two stores to `looked`, in µs.
const SHOW_LOOKING_EVERY_US: u64 = 200;
/// `ticks` of the last store.
static SHOWN_LOOKING: AtomicU64 = AtomicU64::new(0);

/// Stores `now`, in `ticks`, to `looked` in all chunks with awake connections. Peers read it: see `lane::order`.
#[inline]
pub fn looking(now: u64) {
    let every = SHOW_LOOKING_EVERY_US * PROCESS.ticks_per_us.load(Ordering::Relaxed);
    if now.wrapping_sub(SHOWN_LOOKING.load(Ordering::Relaxed)) >= every {
        SHOWN_LOOKING.store(now, Ordering::Relaxed);
        any_hot_chunk(|board, _| {
            show_looking(board, now);
            false
        });
    }
}

fn show_looking(board: &Board, now: u64) {
    if board.is_across.load(Ordering::Relaxed) != 0 {
        return; // to its senders, this clock says nothing
    }
    if let Some(ready) = ready_words(board) {
        ready.looked.store(now, Ordering::Relaxed);
    }
}

/// Has any peer published anything since the last [`harvest`]? For spin loops.
#[inline]
pub fn any_ready(ep: &Ep) -> bool {
    any_ready_word(ep, |_, _| true)
}

/// How many connections have something published since the last [`harvest`].
pub fn count_ready(ep: &Ep) -> u64 {
    let sum = core::cell::Cell::new(0);
    any_ready_word(ep, |_, ready| {
        sum.set(sum.get() + u64::from(ready.load(Ordering::Relaxed).count_ones()));
        false
    });
    sum.get()
}

/// Forgets the parent's boards in the child of a fork.
pub(super) fn forget_all() {
    for board in &BOARDS[..BOARD_HIGH.load(Ordering::Relaxed) as usize] {
        board.base.store(core::ptr::null_mut(), Ordering::Relaxed);
        board.hot.store(0, Ordering::Relaxed);
        board.sleeper.set(Sleeper::NOBODY);
        board.bell.store(0, Ordering::Relaxed);
        board.is_to_arrive.store(0, Ordering::Relaxed);
        for conn in &board.conns {
            conn.store(core::ptr::null_mut(), Ordering::Relaxed);
        }
        for shared in &board.shared_states {
            shared.store(core::ptr::null_mut(), Ordering::Relaxed);
        }
    }
    for chunk in 0..BOARD_HIGH.swap(0, Ordering::Relaxed) as usize {
        idle::forget(chunk);
        polled::forget(chunk);
    }
    for word in &HOT_CHUNKS {
        word.store(0, Ordering::Relaxed);
    }
    HOT_WORDS_USED.store(0, Ordering::Relaxed);
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use memlane_core::layout::{ASLEEP, ASLEEP_AT_EDGE, AWAKE};
    use memlane_sys::{epoll, sock};

    /// Makes a chunk of zeros that wakes this sleeper, and whose sender can ring. No other test uses its number. Returns its words
    /// and its name.
    pub(crate) fn chunk_of_zeros(number: u32, sleeper: Sleeper) -> (&'static ReadyWords, u32) {
        // SAFETY: a header consists of atomics, for which zeros are valid.
        let header: Box<ChunkHeader> = unsafe { Box::new(core::mem::zeroed()) };
        let header: &'static ChunkHeader = Box::leak(header);
        header.ready.rings.store(1, Ordering::Relaxed);
        let board = &BOARDS[number as usize];
        let base = core::ptr::from_ref(header).cast_mut().cast();
        board.base.store(base, Ordering::Release);
        board.sleeper.set(sleeper);
        (&header.ready, name_of(number))
    }

    #[test]
    fn a_set_asks_for_bytes_before_its_first_sleep_and_for_edges_from_then_on() {
        crate::state::thread::tests::set_own_locator();
        let set = epoll::create().expect("a set");
        // SAFETY: zeros are valid for all of its fields, which are atomics; nobody else has this set.
        let ep: &'static Ep = Box::leak(unsafe { Box::new(core::mem::zeroed()) });
        ep.reset(set.raw());
        let sleeper = Sleeper::on_set(ep);
        let (ready, chunk) = chunk_of_zeros(1950, sleeper);
        let asleep = || ready.asleep.load(Ordering::Relaxed);
        let (ours, theirs) = sock::unix_stream().expect("a pair");
        let fd = ours.raw();
        let bell = Bell { chunk, fd, sleeper };
        let is_told = || epoll::take_edge(set.raw()).is_some();
        assert!(hang(ep, &bell) && !is_told());
        assert!(lie_down(ep) && asleep() == ASLEEP);
        assert!(is_told() && !is_told(), "once, since it is heard now");
        get_up(ep);
        assert_eq!(asleep(), AWAKE);
        assert!(lie_down(ep) && asleep() == ASLEEP_AT_EDGE);
        assert!(!is_told());
        sock::make_edge(theirs.raw()).expect("an edge");
        assert!(is_told());
        get_up(ep);
        ask_for(&bell);
        assert_eq!(asleep(), ASLEEP_AT_EDGE, "a connection wakes up meanwhile");
    }

    fn is_looked_at(chunk: u32) -> bool {
        let word = HOT_CHUNKS[chunk as usize / 64].load(Ordering::SeqCst);
        let of_words = HOT_WORDS_USED.load(Ordering::SeqCst);
        word & 1 << (chunk % 64) != 0 && of_words & 1 << (chunk / 64) != 0
    }

    #[test]
    fn a_chunk_is_looked_at_from_its_first_awake_connection_to_its_last() {
        // No other test uses these chunks.
        for chunk in [1984, 1985, 2047] {
            assert!(!is_looked_at(chunk));
            hot(chunk, true);
            hot(chunk, true);
            assert!(is_looked_at(chunk));
            hot(chunk, false);
            assert!(is_looked_at(chunk), "one is still awake");
            hot(chunk, false);
            assert!(!is_looked_at(chunk), "none is awake");
        }
    }

    #[test]
    fn a_chunk_stays_listed_while_others_of_its_word_come_and_go() {
        let restless = |chunk: u32| {
            std::thread::spawn(move || {
                for _ in 0..20_000 {
                    hot(chunk, true);
                    hot(chunk, false);
                }
            })
        };
        hot(1920, true);
        let threads = [1920, 1920, 1921, 1921, 1922].map(restless);
        for thread in threads {
            thread.join().expect("it ends");
        }
        assert!(is_looked_at(1920), "one has been awake all the time");
        assert!((1921..1984).all(|chunk| !is_looked_at(chunk)));
        hot(1920, false);
        assert!(!is_looked_at(1920));
    }
}
