//! A connection: what this process knows of one TCP socket.
//!
//! It has two parts, because of `fork`:
//! * [`Conn`] is private to the process (a fork copies it): addresses of mappings, epoll registrations, the handshake.
//! * [`SharedState`] lies in memory that a parent and its forked children share: how far the stream has come, on which
//!   lane, and the two locks. These processes hold the same socket, so they must agree on this.
//!
//! # Receive modes ([`RxMode`], in [`SharedState::rx_gate`])
//!
//! | mode | bytes come by | counted |
//! |---|---|---|
//! | `Plain` | TCP; lane not open yet | `rx_count` |
//! | `Cold` | TCP: lane open, this side is parked and the ring is empty | `Rx` |
//! | `Hot` | ring and TCP, by the sender's map | `Rx` |
//! | `Drain` | ring and TCP until the ring is empty; then `Ended` | `Rx` |
//! | `Ended` | TCP for good | no |
//! | `Moving` | (momentary, under `rx_lock`) | – |
//!
//! A call that may sleep in the kernel on this socket enters the gate while the mode is `Plain` or `Cold`; `Plain` may
//! become `Cold` while it sleeps. The mode changes from these to one in which bytes may come by the ring only when no such
//! call is inside ([`crate::state::gate`]).
//!
//! # Send modes ([`TxMode`], in [`SharedState::tx_gate`])
//!
//! `Plain` (the lane is not open; bytes are counted in `tx_count`), `Open`, `Ended`. The same rule holds for calls that
//! write in `Plain`. In `Open`, `tx_flight` bytes are being written to TCP by calls that do not hold the lock; these
//! bytes were promised (see `ring`) beforehand.

use crate::state::crowd::Writes;
use crate::state::foreign::Cost;
use crate::state::gate::{Gate, Mode};
use crate::state::read_naps::ReadNaps;
use crate::state::readers::Reader;
use crate::state::sets::{Reg, Regs, SleeperCell};
use crate::state::thread::Lock;
use crate::state::typed::{Typed, bits_enum};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicI32, AtomicI64, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use memlane_core::access::SharedBytes;
use memlane_core::layout::{DmbWords, ReadyWords};
use memlane_core::ring::{Rx, Tx};
use memlane_core::stores::StoreChoice;
use memlane_core::sync::Cpu;
use memlane_sys::sock::Tuple;

/// The words of a DMB, on a real CPU.
pub type Dmb = DmbWords<Cpu>;

/// One direction's shared memory: the words of its DMB and its ring.
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
    /// The view, or `None` while `dmb` is null. `dmb` is written last, with release, after the ring's address and size.
    #[inline(always)]
    fn of(dmb: &'a AtomicPtr<Dmb>, ring: &AtomicPtr<u8>, size: &AtomicU32) -> Option<LaneView<'a>> {
        // SAFETY: not null from `lane::open` (or the hand-over of an exec) until `process::reap`; during that time the
        // DMB and its whole ring stay mapped, because their group counts the connection. The DMB consists of atomics.
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
    /// How bytes are received: see the table in the module's documentation.
    pub enum RxMode {
        /// By TCP: the lane is not open yet.
        Plain = 0,
        /// By TCP: the lane is open, this side is parked and the ring is empty.
        Cold = 1,
        /// By the ring and TCP, by the sender's map.
        Hot = 2,
        /// By the ring and TCP until the ring is empty.
        Drain = 3,
        /// A thread is changing the mode: momentary, under `rx_lock`.
        Moving = 5,
        ;
        /// By TCP for good.
        Ended = 4,
    }
}

bits_enum! {
    /// How bytes are sent: see the module's documentation.
    pub enum TxMode {
        /// By TCP: the lane is not open yet.
        Plain = 0,
        /// By the ring, or by TCP where the ring cannot be used.
        Open = 6,
        /// A thread is changing the mode: momentary, under `tx_lock`.
        Moving = 5,
        ;
        /// By TCP for good.
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
    /// May the ring hold bytes for this side?
    #[inline(always)]
    pub fn is_awake(self) -> bool {
        matches!(self, RxMode::Hot | RxMode::Drain)
    }
}

/// What a parent and its forked children share of a connection. All-zero is a fresh value.
///
/// The fields up to [`worn`](SharedState::worn) are all that a connection without a lane uses. They lie in one cache line.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct SharedState {
    /// The number of processes that hold the socket; 0: this value is free.
    pub procs: AtomicU32,
    /// 1 = `O_NONBLOCK` is set on the socket, as far as the hooks have seen.
    pub nonblock: AtomicU32,
    /// The receive mode, with two counts: the calls that may sleep in the kernel on this socket while it is `Plain` or
    /// `Cold`, and the threads that sleep on it in poll or select, during which it must not wake up (`Cold` → `Hot`).
    pub rx_gate: Gate<Cpu, RxMode>,
    /// The send mode, and the calls that write to TCP while it is `Plain`.
    pub tx_gate: Gate<Cpu, TxMode>,
    /// Bytes taken while the mode was `Plain`.
    pub rx_count: AtomicU64,
    /// Bytes written while the mode was `Plain`.
    pub tx_count: AtomicU64,
    /// An error that TCP reported while the ring still had bytes to deliver, or to a send of which some bytes had gone.
    pub pending_error: AtomicI32,
    /// 1 = TCP's send buffer was full at the last try.
    pub tx_blocked: AtomicU32,
    /// 1: the fields below may have been written since this value was fresh. Written by a fork, and when a connection ends;
    /// read when the next one begins. `pool_lock` orders the two.
    pub worn: AtomicU32,
    /// Bytes of the current TCP run that readers without the lock are taking.
    pub rx_flight: AtomicU64,
    /// Guards everything about receiving.
    pub rx_lock: Lock,
    /// Guarded by `rx_lock`: see `guard::RxGuard`.
    pub rx: UnsafeCell<Rx>,
    /// The stream offset of the next byte to be received. The thread that releases `rx_lock` writes it. Others read it
    /// without the lock, relaxed: a value that is a moment old only makes a guess wrong.
    pub rx_taken: AtomicU64,
    /// Guards everything about sending.
    pub tx_lock: Lock,
    /// Ticks that non-blocking sends by name have waited for room since TCP last said `EAGAIN`.
    pub tx_waited: AtomicU64,
    /// A send must wait until the receiver has read up to this stream offset; 0: it need not: see `lane::room`.
    pub tx_full: AtomicU64,
    /// `ticks` at which a sender that waits for room last saw the receiver read something: see `lane::room`.
    pub tx_stalled_at: AtomicU64,
    /// The receiver's stream offset at that time.
    pub tx_stalled_by: AtomicU64,
    /// How long a blocking send has napped for room last, in microseconds.
    pub tx_napped_us: AtomicU64,
    /// Bytes that calls without the lock are writing to TCP while the mode is `Open`.
    pub tx_flight: AtomicU64,
    /// Bytes sent by TCP because the receiver was parked, since it was last awake. Below 0: as many bytes more may go
    /// before the sender waits for it to wake up.
    pub tx_to_parked: AtomicI64,
    /// Guarded by `tx_lock`: see `guard::TxGuard`.
    pub tx: UnsafeCell<Tx>,
    /// The stream offset of the next byte to be sent. The thread that releases `tx_lock` writes it. The trace reads it
    /// without the lock, relaxed.
    pub tx_sent: AtomicU64,
    /// Bytes written since the lane ended, counted only while a tracer is there.
    pub tx_after: AtomicU64,
    /// Bytes taken since the lane ended, counted only while a tracer is there.
    pub rx_after: AtomicU64,
}

/// The number of TCP options that an open lane sets.
pub const TUNED: usize = 2;

/// How far a connection's handshake has come: see `protocol::upgrade`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// Nothing has happened yet, or the handshake begins anew.
    Idle,
    /// The agent has been asked who has the other end.
    Asking,
    /// The accepting side waits for a Proposal.
    Listening,
    /// The accepting side has a Proposal and could not answer it yet.
    Answering,
    /// The accepting side has sent its Accept.
    Accepted,
    /// The connecting side has sent its Proposal.
    Proposed,
    /// Both sides have attached; this one opens as soon as no thread is inside a call that sends.
    Agreed,
    /// The connecting side has opened and could not send its Confirm yet.
    Confirming,
    /// The lane is open.
    Open,
    /// The connection stays on TCP.
    Over,
}

/// The handshake of one connection, guarded by `Conn::hs_lock`.
#[repr(C)]
#[derive(Debug)]
pub struct Handshake {
    /// When the handshake started, in monotonic ns.
    pub since: u64,
    /// The number of tries to begin so far.
    pub tries: u32,
    /// How far it has come.
    pub stage: Stage,
    /// How often this stage has looked in vain for what it waits for.
    pub looks: u32,
    /// The count of operations at which the next step is due.
    pub next_op: u64,
    /// The socket that has the accepting side's rendezvous name; −1: none.
    pub name_fd: i32,
    /// The peer's id of the connection, which messages to the peer echo.
    pub peer_id: u64,
    /// Index of the link group + 1; 0: none.
    pub group: u32,
    /// The chunk of our DMB: its index + 1; 0: none.
    pub rx_chunk: u32,
    /// The slot of our DMB in that chunk.
    pub rx_slot: u32,
    /// The token of our DMB.
    pub rx_token: u64,
    /// Is the peer's DMB attached? Then `Conn::tx_dmb` is valid.
    pub attached: bool,
    /// The link group over whose life line the peer speaks: its index + 1; 0: it speaks by mail.
    pub line: u32,
    /// The name of the peer's mailbox.
    pub peer_name: [u8; 108],
    /// The length of `peer_name`.
    pub peer_name_len: usize,
    /// The peer process's random id, as it says.
    pub peer_gid: u64,
    /// The peer's process id, from the kernel.
    pub peer_pid: i32,
    /// The peer runs on another machine.
    pub is_across: bool,
    /// The peer's user id, from the kernel.
    pub peer_uid: u32,
    /// The EID that both sides share, if one is required.
    pub eid: Option<[u8; crate::config::EID_LEN]>,
    /// The features that the peer announced (`wire::OWN_RINGS` and others).
    pub peer_features: u8,
    /// The mapping of the peer's ring, if that lies in a file of its own. It is unmapped in the end.
    pub tx_map: Option<core::ptr::NonNull<u8>>,
    /// The length of that mapping, in bytes.
    pub tx_map_len: usize,
    /// The next Proposal goes to the rendezvous name, even if a mailbox is known.
    pub by_name: bool,
    /// The Proposal that waits for an answer went to a process that is known to serve the address, and not to the rendezvous
    /// name.
    pub by_mail: bool,
    /// How often that Proposal has gone to the rendezvous name as well.
    pub asked_by_name: u32,
    /// A process that serves the address has said that it does not have the other end, or not yet. So it runs memlane.
    pub told_too_young: bool,
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
    /// Is it as [`Self::NEW`] is, since its first step was never due?
    #[inline]
    pub fn has_not_begun(&self) -> bool {
        self.stage == Stage::Idle && self.since == 0 && self.tries == 0
    }

    /// Do its messages go over a channel that the agent made?
    pub fn by_channel(&self) -> bool {
        self.channel >= 0
    }

    /// The handshake of a new connection.
    pub const NEW: Handshake = Handshake {
        stage: Stage::Idle,
        tries: 0,
        looks: 0,
        next_op: 0,
        name_fd: -1,
        peer_id: 0,
        group: 0,
        rx_chunk: 0,
        rx_slot: 0,
        rx_token: 0,
        attached: false,
        since: 0,
        line: 0,
        peer_name: [0; 108],
        peer_name_len: 0,
        peer_gid: 0,
        peer_pid: 0,
        is_across: false,
        peer_uid: 0,
        eid: None,
        peer_features: 0,
        tx_map: None,
        tx_map_len: 0,
        by_name: false,
        by_mail: false,
        asked_by_name: 0,
        told_too_young: false,
        by_agent: false,
        asked: 0,
        asked_inode: 0,
        asked_over: 0,
        channel: -1,
        agent_peer: 0,
    };
}

/// One connection of this process.
///
/// A connection without a lane uses the fields up to [`hs`](Conn::hs), and the first words of that. They lie in two cache lines,
/// since most of a short connection's calls find cold caches.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Conn {
    /// The number of this process's descriptors that refer to the connection; 0: the index is free.
    pub refs: AtomicU32,
    /// Counts the uses of this index.
    pub generation: AtomicU32,
    /// The number of calls that use the connection right now.
    pub holds: AtomicU32,
    /// 1: all descriptors are closed, and the last hold frees the connection.
    pub closing: AtomicU32,
    /// One descriptor that refers to it.
    pub fd: AtomicI32,
    /// Which end of the connection this is. Written when the connection is made.
    pub role: Typed<Role>,
    /// The reason code for staying on TCP for good; 0: the connection may upgrade.
    pub barred: AtomicU32,
    /// Not 0 in a forked child that has not used the connection yet.
    pub inherited: AtomicU32,
    /// What parent and forked children share.
    pub shared: AtomicPtr<SharedState>,
    /// The DMB that this side receives from; null until the upgrade.
    pub rx_dmb: AtomicPtr<Dmb>,
    /// The number of send calls so far.
    pub tx_calls: AtomicU64,
    /// The number of receive calls so far.
    pub rx_calls: AtomicU64,
    /// The count of operations at which the handshake takes its next step; `u64::MAX`: never.
    pub hs_due: AtomicU64,
    /// The count at which its first step was due when the connection was made.
    pub hs_first: AtomicU64,
    /// Flags: see `SEEN_*`.
    pub seen: AtomicU32,
    /// The connection's index in the process's pool.
    pub index: AtomicU32,
    /// Who waited for it last: the thread that polled it, as far as bells could wake that thread, or the epoll set that it came
    /// into. While it is in no set, its bell should wake them. Written and read in no order: a wrong answer costs a bell.
    pub last_waiter: SleeperCell,
    /// 1: more than the fields above may have been written since this index was fresh. Written when a connection ends, and
    /// read when the next one begins. `pool_lock` orders the two.
    pub worn: AtomicU32,
    /// Guards `hs`.
    pub hs_lock: Lock,
    /// The handshake, guarded by `hs_lock`.
    pub hs: UnsafeCell<Handshake>,
    /// The connection's epoll registrations.
    pub regs: Regs,
    /// The DMB that this side sends into; null until the upgrade.
    pub tx_dmb: AtomicPtr<Dmb>,
    /// The first byte of the ring that this side sends into.
    pub tx_ring: AtomicPtr<u8>,
    /// The size of that ring, in bytes.
    pub tx_size: AtomicU32,
    /// The slot of that DMB in the peer's chunk, for the ready word.
    pub tx_slot: AtomicU32,
    /// The ready words of the peer's chunk.
    pub tx_ready: AtomicPtr<ReadyWords>,
    /// How to ring the bell of that chunk: a place in `process::bells`, +1; 0: not at all.
    pub tx_bell: AtomicU32,
    /// `ticks` at which this side last wrote since when the peer has news (see `lane::order`). Guarded by `tx_lock`.
    pub tx_ready_since: AtomicU64,
    /// `rx_calls` at that time. Guarded by `tx_lock`.
    pub tx_ready_rx_calls: AtomicU64,
    /// The lengths of its writes, for the window of a stream in a crowd. Guarded by `tx_lock`.
    pub tx_writes: Writes,
    /// What that ring costs this process, where the peer is of another network namespace.
    pub cost: Cost,
    /// The process that reads from that ring.
    pub reader: Reader,
    /// By which stores this side copies into that ring. Guarded by `tx_lock`.
    pub tx_stores: StoreChoice,
    /// The state of `lane::copying` in mode `copy`; null: bytes go straight into the ring. Set before the lane opens.
    pub tx_own: AtomicPtr<u8>,
    /// The first byte of the ring that this side receives from.
    pub rx_ring: AtomicPtr<u8>,
    /// The size of that ring, in bytes.
    pub rx_size: AtomicU32,
    /// The chunk of `rx_dmb`.
    pub rx_chunk: AtomicU32,
    /// The slot of that DMB in its chunk.
    pub rx_slot: AtomicU32,
    /// The addresses of both ends; valid with [`SEEN_TUPLE`].
    pub tuple: UnsafeCell<Tuple>,
    /// Memory that the user gave for our DMB's ring; null: the ring lies in a chunk. Set before the first step.
    pub given_ring: AtomicPtr<u8>,
    /// The size of that memory, in bytes.
    pub given_size: AtomicU32,
    /// The file that this memory is mapped from; the user keeps it open.
    pub given_fd: AtomicI32,
    /// The offset of that memory in the file, in bytes.
    pub given_at: AtomicU64,
    /// The program's own values of the options that the lane sets: see `lane::tune`.
    pub tuned: [AtomicI32; TUNED],
    /// `ticks` at which a sender last made sure that the peer lives; the lowest bit: see `lane::send`.
    pub looked: AtomicU64,
    /// `ticks` at which a poll last asked the kernel.
    pub glanced: AtomicU64,
    /// The number of its set's last report when a read that found no bytes looked at TCP, which had nothing; 0: none has looked.
    /// Threads that read from the connection write and read it; nothing is ordered by it.
    pub looked_after: AtomicU64,
    /// `rx_calls` when a thread last looked whether the connection is idle, and the highest bit if it was then (see
    /// `lane::is_idle`).
    pub rx_calls_swept: AtomicU64,
    /// The naps of its reads: see `lane::naps`.
    pub naps: ReadNaps,
    /// The number of wake-ups in a row without a byte by the ring: see `lane::wake_backoff`.
    pub wakes_in_vain: AtomicU32,
    /// The number of further chances to wake that the connection skips: see `lane::wake_backoff`.
    pub stays_parked: AtomicU32,
}

/// Bit of `Conn::seen`: the program has waited by epoll until it can write.
pub const SEEN_OUT: u32 = 8192;
/// Bit of `Conn::seen`: it has been put into an epoll set. Set before its first registration is claimed.
pub const SEEN_IN_SET: u32 = 16384;
/// Bit of `Conn::seen`: the addresses are known.
pub const SEEN_TUPLE: u32 = 1;
/// Bit of `Conn::seen`: bytes of a TCP run were taken while awake.
pub const SEEN_RUN: u32 = 4;
/// Bit of `Conn::seen`: a child is to get the connection under another descriptor number.
pub const SEEN_TO_CHILD: u32 = 8;
/// Bit of `Conn::seen`: TCP's receive window has been widened (see `lane::tune`).
pub const SEEN_WIDENED: u32 = 16;
/// Bit of `Conn::seen`: the connection has parked with a window larger than the smallest (see `lane::trim`).
pub const SEEN_GROWN: u32 = 32;
/// Bit of `Conn::seen`: the other end is in this process too.
pub const SEEN_SELF: u32 = 64;
/// Bit of `Conn::seen`: the connection counts as large (see `state::large`).
pub const SEEN_LARGE: u32 = 128;
/// Bit of `Conn::seen`: when the connection last woke up, its sender was asked to ring a bell that wakes a thread in poll.
pub const SEEN_BELL: u32 = 256;
/// Bit of `Conn::seen`: the program has set `TCP_INQ` (see `calls::control`).
pub const SEEN_INQ: u32 = 512;
/// Bit of `Conn::seen`: the kernel has said that no option asks when bytes came (see `calls::control`).
pub const SEEN_NO_TIMES: u32 = 4096;
/// Flag: the peer runs on another machine. No futex wakes it, and its clock and the numbers of its CPUs are others. Set before
/// the lane opens.
pub const SEEN_ACROSS: u32 = 1024;
/// Bit of `Conn::seen`: the program has set `TCP_WINDOW_CLAMP` (see `lane::tune`).
pub const SEEN_CLAMPED: u32 = 2048;
/// Bit of `Conn::seen`: the connection has carried data, so it is established.
pub const SEEN_DATA: u32 = 2;

/// A cache line, in bytes.
const LINE: usize = 64;
const _: () = {
    use core::mem::offset_of;
    assert!(offset_of!(Conn, hs) + offset_of!(Handshake, stage) < 2 * LINE);
    assert!(offset_of!(SharedState, worn) < LINE && offset_of!(SharedState, rx_lock) == LINE);
};

// SAFETY: every field is an atomic, or guarded by a lock as its comment says.
unsafe impl Sync for Conn {}
// SAFETY: every field is an atomic, or guarded by a lock as its comment says.
unsafe impl Sync for SharedState {}

impl Conn {
    /// What parent and forked children share of this connection.
    #[inline(always)]
    pub fn shared(&self) -> &SharedState {
        // SAFETY: set before the Conn is published in the descriptor table; shared states are never unmapped.
        unsafe { &*self.shared.load(Ordering::Relaxed) }
    }

    /// Has the connection, which nobody uses any more, left all fields fresh but those that each new one resets?
    pub fn is_as_made(&self) -> bool {
        // SAFETY: the last hold is gone: nobody else looks at `hs`.
        let hs = unsafe { &*self.hs.get() };
        let shared = self.shared();
        let seen = self.seen.load(Ordering::Relaxed);
        !self.upgraded()
            && seen & SEEN_TUPLE == 0
            && hs.has_not_begun()
            && self.inherited.load(Ordering::Relaxed) == 0
            && shared.rx_gate.is_fresh()
            && shared.tx_gate.is_fresh()
            && (seen & SEEN_IN_SET == 0 || !self.has_registrations())
    }

    /// Is it in an epoll set, or has it registrations from the pool?
    pub fn has_registrations(&self) -> bool {
        let is_used = |reg: &Reg| !reg.ep.load(Ordering::Relaxed).is_null();
        self.regs.own().iter().any(is_used) || self.regs.has_more()
    }

    /// The memory that this side receives from; `None`: the lane has not been opened.
    #[inline(always)]
    pub fn rx_lane(&self) -> Option<LaneView<'_>> {
        LaneView::of(&self.rx_dmb, &self.rx_ring, &self.rx_size)
    }

    /// The memory that this side sends into; `None`: the lane has not been opened.
    #[inline(always)]
    pub fn tx_lane(&self) -> Option<LaneView<'_>> {
        if !self.upgraded() {
            return None; // it may be attached, but it may be detached again
        }
        LaneView::of(&self.tx_dmb, &self.tx_ring, &self.tx_size)
    }

    /// Has the memory lane been opened (and perhaps ended since)?
    #[inline(always)]
    pub fn upgraded(&self) -> bool {
        !self.rx_dmb.load(Ordering::Relaxed).is_null()
    }

    /// The receive mode.
    #[inline(always)]
    pub fn rx_mode(&self) -> RxMode {
        self.shared().rx_gate.mode()
    }

    /// The send mode.
    #[inline(always)]
    pub fn tx_mode(&self) -> TxMode {
        self.shared().tx_gate.mode()
    }

    /// The number of send and receive calls so far.
    #[inline(always)]
    pub fn ops(&self) -> u64 {
        self.tx_calls.load(Ordering::Relaxed) + self.rx_calls.load(Ordering::Relaxed)
    }

    /// Must a call with these flags (`MSG_*`) not block?
    pub fn must_not_block(&self, flags: i32) -> bool {
        self.is_nonblock() || flags & libc::MSG_DONTWAIT != 0
    }

    /// Does the peer run on another machine ([`SEEN_ACROSS`])?
    #[inline(always)]
    pub fn is_across(&self) -> bool {
        self.seen.load(Ordering::Relaxed) & SEEN_ACROSS != 0
    }

    /// Does the program use this socket in non-blocking mode?
    #[inline(always)]
    pub fn is_nonblock(&self) -> bool {
        self.shared().nonblock.load(Ordering::Relaxed) != 0
    }
}
