//! A connection: what this process knows of one TCP socket.
//!
//! Split in two, because of `fork`:
//! * [`Conn`] is process-private (copied by a fork): addresses of mappings, wait
//!   registrations, handshake;
//! * [`SharedState`] lies in memory that a parent and its forked children share: how
//!   far the stream has come, on which lane, and the two locks. Both processes
//!   hold the same socket, so they must agree on this.
//!
//! # Receive modes ([`RxMode`], in [`SharedState::rx_gate`])
//!
//! | mode | bytes come by | counted |
//! |---|---|---|
//! | `Plain` | TCP; lane not open yet | `rx_count` |
//! | `Cold` | TCP: lane open, we are parked and the ring is empty | `Rx` |
//! | `Hot` | ring and TCP, by the sender's map | `Rx` |
//! | `Drain` | ring and TCP until the ring is empty; then `Ended` | `Rx` |
//! | `Ended` | TCP for ever | no |
//! | `Moving` | (momentary, under `rx_lock`) | – |
//!
//! A call that may sleep in the kernel on this socket enters the gate while the mode is `Plain` or `Cold`; `Plain` and
//! `Cold` are left for a mode in which bytes may come by the ring only when nobody is inside ([`crate::state::gate`]).
//!
//! # Send modes ([`TxMode`], in [`SharedState::tx_gate`])
//!
//! `Plain` (the lane is not open; bytes are counted in `tx_count`), `Open`, `Ended`; the same rule for calls that write
//! in `Plain`. In `Open`, `tx_flight` bytes are being written to TCP by calls that do not hold the lock; they are
//! promised (see `ring`) beforehand.

use crate::state::gate::{Gate, Mode};
use crate::state::sets::{REGS, Reg};
use crate::state::thread::Lock;
use crate::state::typed::{Typed, bits_enum};
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

bits_enum! {
    /// Which end of a connection a socket is.
    pub enum Role {
        /// The one that connected.
        Connected = 0,
        ;
        /// The one that was accepted.
        Accepted = 1,
    }
}

bits_enum! {
    /// How bytes are received: see the module's head.
    pub enum RxMode {
        /// By TCP: the lane is not open yet.
        Plain = 0,
        /// By TCP: the lane is open, we are parked and the ring is empty.
        Cold = 1,
        /// By the ring and TCP, by the sender's map.
        Hot = 2,
        /// By the ring and TCP until the ring is empty.
        Drain = 3,
        /// Somebody is changing it: momentary, under `rx_lock`.
        Moving = 5,
        ;
        /// By TCP for ever.
        Ended = 4,
    }
}

bits_enum! {
    /// How bytes are sent: see the module's head.
    pub enum TxMode {
        /// By TCP: the lane is not open yet.
        Plain = 0,
        /// By the ring; by TCP where that must be.
        Open = 6,
        /// Somebody is changing it: momentary, under `tx_lock`.
        Moving = 5,
        ;
        /// By TCP for ever.
        Ended = 4,
    }
}

impl Mode for RxMode {
    const MOVING: RxMode = RxMode::Moving;
}

impl Mode for TxMode {
    const MOVING: TxMode = TxMode::Moving;
}

impl RxMode {
    /// May the ring have bytes for us?
    #[inline(always)]
    pub fn is_awake(self) -> bool {
        matches!(self, RxMode::Hot | RxMode::Drain)
    }
}

/// Shared by a parent and its forked children; all-zero is a fresh value.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct SharedState {
    /// Processes that hold the socket; 0 = cell free.
    pub procs: AtomicU32,
    /// 1 = `O_NONBLOCK` is set on the socket, as far as the hooks have seen.
    pub nonblock: AtomicU32,
    /// Guards everything about receiving.
    pub rx_lock: Lock,
    /// The receive mode; the calls that may sleep in the kernel on this socket while it is `Plain` or `Cold`; the
    /// threads that sleep on it in poll or select, under which it must not wake up (`Cold` → `Hot`).
    pub rx_gate: Gate<Cpu, RxMode>,
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
    /// The send mode, and the calls that write to TCP while it is `Plain`.
    pub tx_gate: Gate<Cpu, TxMode>,
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

/// TCP options that an open lane sets.
pub const TUNED: usize = 2;

/// How far a connection's handshake has come: see `protocol::upgrade`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// Nothing has happened yet, or it begins anew.
    Idle,
    /// The agent has been asked who has the other end.
    Asking,
    /// The accepting side waits for a Proposal.
    Listening,
    /// The accepting side has a Proposal, and could not answer it yet.
    Answering,
    /// The accepting side has sent its Accept.
    Accepted,
    /// The connecting side has sent its Proposal.
    Proposed,
    /// Both sides have attached; this one opens as soon as nobody is inside a call.
    Agreed,
    /// The connecting side has opened, and could not send its Confirm yet.
    Confirming,
    /// Open.
    Open,
    /// The connection stays on TCP.
    Over,
}

/// Handshake of one connection, guarded by `Conn::hs_lock`.
#[derive(Debug)]
pub struct Handshake {
    /// How far it has come.
    pub stage: Stage,
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
    /// The peer's user id, by the kernel's word.
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
    /// The other end is in another network namespace: the agent is asked for it.
    pub by_agent: bool,
    /// Questions to the agent so far.
    pub asked: u32,
    /// The socket's inode when the agent was asked last.
    pub asked_inode: u64,
    /// Over which of this process's connections to an agent that was.
    pub asked_over: u32,
    /// Channel to the other end, by the agent; −1 = none.
    pub channel: i32,
    /// The agent's name for the process at its other end.
    pub agent_peer: u64,
}

impl Handshake {
    /// Nothing has happened yet.
    pub const NEW: Handshake = Handshake {
        stage: Stage::Idle,
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
        by_agent: false,
        asked: 0,
        asked_inode: 0,
        asked_over: 0,
        channel: -1,
        agent_peer: 0,
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
    /// Which end of the connection this is. Written when the connection is made.
    pub role: Typed<Role>,
    /// Reason code why it may never upgrade (0 = it may).
    pub barred: AtomicU32,
    /// Set in a forked child: not used here yet.
    pub inherited: AtomicU32,
    /// Shared part.
    pub cell: AtomicPtr<SharedState>,
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
    /// In mode `copy`: what `lane::copying` has (null = bytes go straight into the ring). Set before the lane opens.
    pub tx_own: AtomicPtr<u8>,
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
    /// Wake-ups in a row since which nothing has come by the ring: see `lane::wake_backoff`.
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
/// `Conn::seen`: it was parked with more of its ring in use than the least part (see `lane::trim`).
pub const SEEN_GROWN: u32 = 32;
/// `Conn::seen`: its other end is in this process, too.
pub const SEEN_SELF: u32 = 64;
/// `Conn::seen`: the connection has carried data (so it is established).
pub const SEEN_DATA: u32 = 2;

// SAFETY: every field is an atomic, or guarded by a lock as its comment says.
unsafe impl Sync for Conn {}
// SAFETY: as above.
unsafe impl Sync for SharedState {}

impl Conn {
    /// The shared part.
    #[inline(always)]
    pub fn shared(&self) -> &SharedState {
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
    pub fn rx_mode(&self) -> RxMode {
        self.shared().rx_gate.mode()
    }

    /// Send mode.
    #[inline(always)]
    pub fn tx_mode(&self) -> TxMode {
        self.shared().tx_gate.mode()
    }

    /// Operations so far.
    #[inline(always)]
    pub fn ops(&self) -> u64 {
        self.tx_calls.load(Ordering::Relaxed) + self.rx_calls.load(Ordering::Relaxed)
    }

    /// The program works in non-blocking mode on this socket.
    #[inline(always)]
    pub fn is_nonblock(&self) -> bool {
        self.shared().nonblock.load(Ordering::Relaxed) != 0
    }
}
