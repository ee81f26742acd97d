//! A connection: what this process knows of one TCP socket.
//!
//! Split in two, because of `fork`:
//! * [`Conn`] is process-private (copied by a fork): addresses of mappings, wait
//!   registrations, handshake;
//! * [`Cell`] lies in memory that a parent and its forked children share: how
//!   far the stream has come, on which lane, and the two locks. Both processes
//!   hold the same socket, so they must agree on this.
//!
//! # Receive modes ([`Cell::rx_mode`])
//!
//! | mode | bytes come by | counted |
//! |---|---|---|
//! | `PLAIN` | TCP; lane not open yet | `rx_count` |
//! | `COLD` | TCP: lane open, we are parked and the ring is empty | `Rx` |
//! | `HOT` | ring and TCP, by the sender's map | `Rx` |
//! | `DRAIN` | ring and TCP until the ring is empty; then `ENDED` | `Rx` |
//! | `ENDED` | TCP for ever | no |
//! | `MOVING` | (momentary, under `rx_lock`) | – |
//!
//! `rx_inflight` counts calls that may sleep in the kernel on this socket while
//! the mode is `PLAIN` or `COLD`. Whoever enters: increments, then looks at the
//! mode (both sequentially consistent). Whoever leaves those modes: stores
//! `MOVING`, then looks at the count. So nobody sleeps on TCP while bytes may
//! come by the ring.
//!
//! # Send modes ([`Cell::tx_mode`])
//!
//! `PLAIN` (lane not open, bytes counted in `tx_count`), `OPEN`, `ENDED`; the
//! same rule between `tx_inflight` and `MOVING`. In `OPEN`, `tx_flight` bytes
//! are being written to TCP by calls that do not hold the lock; they are
//! promised (see `ring`) beforehand.

use crate::thread::Lock;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use memlane_core::access::SharedBytes;
use memlane_core::layout::{DmbWords, ReadyWords};
use memlane_core::ring::{Rx, Tx};
use memlane_core::sync::Cpu;
use memlane_sys::sock::Tuple;

/// The CPU's words.
pub type Dmb = DmbWords<Cpu>;

/// One direction's shared memory: the words of its DMB, and its ring.
#[derive(Clone, Copy)]
pub struct LaneView<'a> {
    /// The words.
    pub words: &'a Dmb,
    /// The ring.
    pub ring: SharedBytes,
}

impl core::fmt::Debug for LaneView<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let words = core::ptr::from_ref(self.words);
        f.debug_struct("LaneView")
            .field("words", &words)
            .field("ring", &self.ring)
            .finish()
    }
}

impl<'a> LaneView<'a> {
    /// `dmb` is written last, with release, after the ring's address and size; `None` as long as it is null.
    #[inline(always)]
    fn of(dmb: &'a AtomicPtr<Dmb>, ring: &AtomicPtr<u8>, size: &AtomicU32) -> Option<LaneView<'a>> {
        // SAFETY: not null from `lane::open` (or the hand-over of an exec) until `process::reap`, for which time the DMB and
        // its whole ring stay mapped: their group counts the connection. It consists of atomics.
        let words = unsafe { dmb.load(Ordering::Acquire).as_ref() }?;
        let base = core::ptr::NonNull::new(ring.load(Ordering::Relaxed))?;
        let len = size.load(Ordering::Relaxed) as usize;
        // SAFETY: the ring is mapped for its whole size for as long as its DMB.
        let ring = unsafe { SharedBytes::new(base, len) };
        Some(LaneView { words, ring })
    }
}

/// Receive and send modes: see the module's head.
pub mod mode {
    /// Lane not open yet.
    pub const PLAIN: u32 = 0;
    /// Receive: lane open, parked.
    pub const COLD: u32 = 1;
    /// Receive: lane open, awake.
    pub const HOT: u32 = 2;
    /// Receive: emptying the ring for the last time.
    pub const DRAIN: u32 = 3;
    /// TCP for ever.
    pub const ENDED: u32 = 4;
    /// Momentary.
    pub const MOVING: u32 = 5;
    /// Send: lane open.
    pub const OPEN: u32 = 6;
}

/// Shared by a parent and its forked children; all-zero is a fresh value.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Cell {
    /// Processes that hold the socket; 0 = cell free.
    pub procs: AtomicU32,
    /// 1 = `O_NONBLOCK` is set on the socket, as far as the hooks have seen.
    pub nonblock: AtomicU32,
    /// Guards everything about receiving.
    pub rx_lock: Lock,
    /// See the module's head.
    pub rx_mode: AtomicU32,
    /// See the module's head.
    pub rx_inflight: AtomicU32,
    /// Threads that sleep in poll or select on this socket: it must not wake up
    /// (`COLD` → `HOT`) under them.
    pub rx_pollers: AtomicU32,
    /// An error that TCP reported while the ring still had bytes to deliver.
    pub pending_error: AtomicI32,
    /// Bytes taken in `PLAIN`.
    pub rx_count: AtomicU64,
    /// Bytes of the current TCP run that readers without the lock are taking.
    pub rx_flight: AtomicU64,
    /// Guarded by `rx_lock`: see `guard::RxGuard`.
    pub rx: UnsafeCell<Rx>,
    /// The stream offset of the next byte to be received. Written by whoever releases `rx_lock`, read without it, relaxed:
    /// a value that is a moment old only makes a guess wrong.
    pub rx_taken: AtomicU64,
    /// Guards everything about sending.
    pub tx_lock: Lock,
    /// See the module's head.
    pub tx_mode: AtomicU32,
    /// See the module's head.
    pub tx_inflight: AtomicU32,
    /// 1 = TCP's send buffer was full at the last try.
    pub tx_blocked: AtomicU32,
    /// Ticks that non-blocking sends have waited for room since TCP last said `EAGAIN`.
    pub tx_waited: AtomicU64,
    /// Bytes written in `PLAIN`.
    pub tx_count: AtomicU64,
    /// See the module's head.
    pub tx_flight: AtomicU64,
    /// Bytes sent by TCP because the receiver was parked, since it last was awake.
    pub tx_to_parked: AtomicU64,
    /// Guarded by `tx_lock`: see `guard::TxGuard`.
    pub tx: UnsafeCell<Tx>,
    /// The stream offset of the next byte to be sent. Written by whoever releases `tx_lock`, read without it, relaxed, for
    /// the trace.
    pub tx_sent: AtomicU64,
    /// Bytes written since the lane ended, as far as somebody traced.
    pub tx_after: AtomicU64,
    /// Bytes taken since the lane ended, likewise.
    pub rx_after: AtomicU64,
}

/// One registration in an epoll set.
#[derive(Debug)]
pub struct Reg {
    /// The set; null = none.
    pub ep: AtomicPtr<crate::wait::epoll::Ep>,
    /// Descriptor it was registered by.
    pub fd: AtomicI32,
    /// Events asked for (`EPOLLIN | …`).
    pub events: AtomicU32,
    /// Events that the kernel has been told; `STALE` = tell it in any case.
    pub kernel_events: AtomicU32,
    /// `data` as the kernel has been told.
    pub kernel_data: AtomicU64,
    /// The program's word.
    pub data: AtomicU64,
    /// With `EPOLLONESHOT`: 1 = may still report once. Guarded by the set's lock.
    pub armed: AtomicU32,
    /// Counts uses, so that a late event of an earlier one is known. Guarded by the set's lock.
    pub generation: AtomicU32,
    /// `REG_*` bits, guarded by the set's lock.
    pub marks: AtomicU32,
    /// Next in the set's ready list, guarded by the set's lock.
    pub next_ready: AtomicPtr<Reg>,
    /// Neighbours in the set's hot list, guarded by the set's lock.
    pub next_hot: AtomicPtr<Reg>,
    /// See `next_hot`.
    pub prev_hot: AtomicPtr<Reg>,
    /// Next in the set's dirty list, guarded by the set's lock.
    pub next_dirty: AtomicPtr<Reg>,
    /// The connection; set once when the `Conn` is made.
    pub conn: AtomicPtr<Conn>,
}

/// TCP options that an open lane sets.
pub const TUNED: usize = 2;

/// `Reg::marks`: in the ready list.
pub const REG_READY: u32 = 1;
/// `Reg::marks`: in the hot list.
pub const REG_HOT: u32 = 2;
/// `Reg::marks`: in the dirty list.
pub const REG_DIRTY: u32 = 4;
/// `Reg::marks`: an edge for `EPOLLOUT` is due.
pub const REG_OUT_EDGE: u32 = 8;
/// `Reg::marks`: an edge for `EPOLLIN` is due.
pub const REG_IN_EDGE: u32 = 16;
/// `Reg::marks`: the program has deleted it; the kernel has not been told yet.
pub const REG_ABSENT: u32 = 32;

/// Registrations that one connection can have; more: TCP only.
pub const REGS: usize = 2;

/// Handshake of one connection, guarded by `Conn::hs_lock`.
#[derive(Debug)]
pub struct Handshake {
    /// `upgrade::Stage` as a number.
    pub stage: u32,
    /// Tries so far.
    pub tries: u32,
    /// Operation count at which the next step is due.
    pub next_op: u64,
    /// Name socket of the accepting side; −1 = none.
    pub name_fd: i32,
    /// The peer's connection id (to echo).
    pub peer_id: u64,
    /// Link group index + 1; 0 = none.
    pub group: u32,
    /// Our DMB: chunk index + 1; 0 = none.
    pub rx_chunk: u32,
    /// Our DMB's slot in the chunk.
    pub rx_slot: u32,
    /// Token of our DMB.
    pub rx_token: u64,
    /// The peer's DMB is attached (`Conn::tx_dmb` valid).
    pub attached: bool,
    /// Monotonic ns when the handshake started.
    pub since: u64,
    /// Where the peer's mailbox is.
    pub peer_name: [u8; 108],
    /// Its length.
    pub peer_name_len: usize,
    /// Peer by the kernel's word.
    pub peer_pid: i32,
    /// Likewise.
    pub peer_uid: u32,
    /// The EID that both sides share, if any is needed.
    pub eid: Option<[u8; crate::config::EID_LEN]>,
    /// What the peer can do (`wire::OWN_RINGS`).
    pub peer_features: u8,
    /// The peer's ring, if it lies in a file of its own: mapped here, to be unmapped in the end.
    pub tx_map: Option<core::ptr::NonNull<u8>>,
    /// Bytes of it.
    pub tx_map_len: usize,
    /// The next Proposal goes to the rendezvous name, whatever mailboxes are known.
    pub by_name: bool,
}

impl Handshake {
    /// Nothing has happened yet.
    pub const NEW: Handshake = Handshake {
        stage: 0,
        tries: 0,
        next_op: 0,
        name_fd: -1,
        peer_id: 0,
        group: 0,
        rx_chunk: 0,
        rx_slot: 0,
        rx_token: 0,
        attached: false,
        since: 0,
        peer_name: [0; 108],
        peer_name_len: 0,
        peer_pid: 0,
        peer_uid: 0,
        eid: None,
        peer_features: 0,
        tx_map: None,
        tx_map_len: 0,
        by_name: false,
    };
}

/// One connection of this process.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Conn {
    /// Descriptors of this process that refer to it; 0 = slot free.
    pub refs: AtomicU32,
    /// Counts reuses of the slot.
    pub generation: AtomicU32,
    /// Calls that are using it right now.
    pub holds: AtomicU32,
    /// 1 = all descriptors are closed, the last hold frees it.
    pub closing: AtomicU32,
    /// One descriptor that refers to it.
    pub fd: AtomicI32,
    /// 0 = connected by us, 1 = accepted.
    pub role: AtomicU32,
    /// Reason code why it may never upgrade (0 = it may).
    pub barred: AtomicU32,
    /// Set in a forked child: not used here yet.
    pub inherited: AtomicU32,
    /// Shared part.
    pub cell: AtomicPtr<Cell>,
    /// DMB that we send into (null until upgraded), its ring, its ready word.
    pub tx_dmb: AtomicPtr<Dmb>,
    /// First byte of the ring that we send into.
    pub tx_ring: AtomicPtr<u8>,
    /// Bytes of it.
    pub tx_size: AtomicU32,
    /// Our DMB's slot there, for the ready word.
    pub tx_slot: AtomicU32,
    /// Ready words of the peer's chunk.
    pub tx_ready: AtomicPtr<ReadyWords>,
    /// `ticks` at which we last told the peer since when it has news of us (see `lane::order`). Guarded by `tx_lock`.
    pub tx_ready_since: AtomicU64,
    /// `rx_calls` at that time. Guarded by `tx_lock`.
    pub tx_ready_rx_calls: AtomicU64,
    /// In mode `copy`: our own buffer (null = bytes go straight into the ring). Set before the lane opens.
    pub tx_own: AtomicPtr<crate::lane::copying::Outgoing>,
    /// DMB that we receive from.
    pub rx_dmb: AtomicPtr<Dmb>,
    /// First byte of its ring.
    pub rx_ring: AtomicPtr<u8>,
    /// Bytes of it.
    pub rx_size: AtomicU32,
    /// Chunk of it.
    pub rx_chunk: AtomicU32,
    /// Its slot there.
    pub rx_slot: AtomicU32,
    /// Slot index in the process's pool.
    pub index: AtomicU32,
    /// Send calls seen.
    pub tx_calls: AtomicU64,
    /// Receive calls seen.
    pub rx_calls: AtomicU64,
    /// Addresses, once asked.
    pub tuple: UnsafeCell<Tuple>,
    /// Guards `hs`.
    pub hs_lock: Lock,
    /// Memory that the user gave for our DMB's ring (null = it lies in a chunk); set before the first step.
    pub given_ring: AtomicPtr<u8>,
    /// Bytes of it.
    pub given_size: AtomicU32,
    /// The file that it is mapped from; the user keeps it open.
    pub given_fd: AtomicI32,
    /// Where in that file.
    pub given_at: AtomicU64,
    /// Operation count at which the handshake wants a step (`u64::MAX` = never).
    pub hs_due: AtomicU64,
    /// See `Handshake`.
    pub hs: UnsafeCell<Handshake>,
    /// Epoll registrations.
    pub regs: [Reg; REGS],
    /// The program's own values of the options that the lane sets: see `lane::tune`.
    pub tuned: [AtomicI32; TUNED],
    /// `ticks` when a sender last asked TCP whether the peer is there.
    pub looked: AtomicU64,
    /// `ticks` when a poll last asked the kernel.
    pub glanced: AtomicU64,
    /// Seen flags: see `SEEN_*`.
    pub seen: AtomicU32,
    /// Wake-ups in a row since which nothing has come by the ring: see `lane::worth`.
    pub wakes_in_vain: AtomicU32,
    /// So many times it stays parked though bytes have come: likewise.
    pub stays_parked: AtomicU32,
}

/// `Conn::seen`: addresses are known.
pub const SEEN_TUPLE: u32 = 1;
/// `Conn::seen`: bytes of a TCP run were taken while awake.
pub const SEEN_RUN: u32 = 4;
/// `Conn::seen`: a child is to get it under another number.
pub const SEEN_TO_CHILD: u32 = 8;
/// `Conn::seen`: TCP's receive buffer has been widened (see `lane::tune`).
pub const SEEN_WIDENED: u32 = 16;
/// `Conn::seen`: it was parked with more of its ring in use than the least part (see `lane::shed`).
pub const SEEN_GROWN: u32 = 32;
/// `Conn::seen`: the connection has carried data (so it is established).
pub const SEEN_DATA: u32 = 2;

// SAFETY: every field is an atomic, or guarded by a lock as its comment says.
unsafe impl Sync for Conn {}
// SAFETY: as above.
unsafe impl Sync for Cell {}

impl Conn {
    /// The shared part.
    #[inline(always)]
    pub fn cell(&self) -> &Cell {
        // SAFETY: set before the Conn is published in the descriptor table; cells are never unmapped.
        unsafe { &*self.cell.load(Ordering::Relaxed) }
    }

    /// The memory that we receive from; `None`: the lane has not been opened.
    #[inline(always)]
    pub fn rx_lane(&self) -> Option<LaneView<'_>> {
        LaneView::of(&self.rx_dmb, &self.rx_ring, &self.rx_size)
    }

    /// The memory that we send into; `None`: the lane has not been opened.
    #[inline(always)]
    pub fn tx_lane(&self) -> Option<LaneView<'_>> {
        if !self.upgraded() {
            return None; // attached perhaps, but it may be let go of again
        }
        LaneView::of(&self.tx_dmb, &self.tx_ring, &self.tx_size)
    }

    /// Has the memory lane been opened (and perhaps ended since)?
    #[inline(always)]
    pub fn upgraded(&self) -> bool {
        !self.rx_dmb.load(Ordering::Relaxed).is_null()
    }

    /// Receive mode.
    #[inline(always)]
    pub fn rx_mode(&self) -> u32 {
        self.cell().rx_mode.load(Ordering::SeqCst)
    }

    /// Send mode.
    #[inline(always)]
    pub fn tx_mode(&self) -> u32 {
        self.cell().tx_mode.load(Ordering::SeqCst)
    }

    /// Operations so far.
    #[inline(always)]
    pub fn ops(&self) -> u64 {
        self.tx_calls.load(Ordering::Relaxed) + self.rx_calls.load(Ordering::Relaxed)
    }

    /// The program works in non-blocking mode on this socket.
    #[inline(always)]
    pub fn is_nonblock(&self) -> bool {
        self.cell().nonblock.load(Ordering::Relaxed) != 0
    }
}

/// A hold on a connection: it is not freed while this lives.
#[derive(Debug)]
pub struct Use(&'static Conn);

impl Use {
    /// Wraps a hold that has been counted.
    pub fn counted(conn: &'static Conn) -> Use {
        Use(conn)
    }

    /// One more hold.
    pub fn another(held: &Use) -> Use {
        held.0.holds.fetch_add(1, Ordering::AcqRel);
        Use(held.0)
    }
}

impl core::ops::Deref for Use {
    type Target = Conn;
    #[inline(always)]
    fn deref(&self) -> &Conn {
        self.0
    }
}

impl Use {
    /// The connection, for as long as the process lives (its slot may be reused
    /// once the hold is gone).
    #[inline(always)]
    pub fn conn(&self) -> &'static Conn {
        self.0
    }
}

impl Drop for Use {
    #[inline]
    fn drop(&mut self) {
        if self.0.holds.fetch_sub(1, Ordering::AcqRel) == 1
            && self.0.closing.load(Ordering::Acquire) != 0
        {
            crate::process::reap(self.0);
        }
    }
}
