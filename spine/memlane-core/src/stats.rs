//! The stats page: what a process under memlane shows of itself.
//!
//! One memfd per process, named `memlane-stats`, sealed so that nobody but its
//! owner's existing mapping can write it. Readers (`memlane ss`, `memlane
//! stats`) find it as `/proc/PID/fd/*` → `/memfd:memlane-stats`, open it read
//! only and copy it out; they believe nothing in it that they have not checked.
//!
//! Layout (native endian, offsets asserted below): one `Header` page, then
//! `Header::conn_capacity` × `ConnEntry`.
//!
//! Each word is written by the owning process only (relaxed stores: they are
//! statistics) and read by anybody. `ConnEntry::seq` is odd while the identity
//! fields (everything up to `since_ns`) are being rewritten; a reader that sees
//! an odd or changed `seq` reads again.

use core::sync::atomic::{AtomicU32, AtomicU64};

/// Name of the memfd.
pub const MEMFD_NAME: &core::ffi::CStr = c"memlane-stats";
/// `Header::magic`: "MLSTATS1", little endian.
pub const MAGIC: u64 = u64::from_le_bytes(*b"MLSTATS1");
/// `Header::version`.
pub const VERSION: u32 = 1;
/// Bytes of `Header`.
pub const HEADER_LEN: usize = 4096;
/// Bytes of one `ConnEntry`.
pub const CONN_ENTRY_LEN: usize = 192;
/// Most connections that one process can show.
pub const CONN_CAPACITY: usize = 65536;
/// Bytes of the whole memfd (sparse: costs only what is touched).
pub const PAGE_LEN: usize = HEADER_LEN + CONN_CAPACITY * CONN_ENTRY_LEN;
/// Number of size classes in the request histograms: ≤8K ≤16K … ≤512K >512K, as `smcd stats`.
pub const SIZE_CLASSES: usize = 8;
/// Number of reason slots.
pub const REASON_SLOTS: usize = 40;

/// Process-wide counters. The variant's number is its index in `Header::counters`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Counter {
    /// TCP connections seen (connect or accept).
    Conns = 0,
    /// … of which this process connected.
    ConnsClient,
    /// … of which this process accepted.
    ConnsServer,
    /// Connections that got the memory lane.
    Upgraded,
    /// Upgrades tried that ended in an error rather than a decline.
    HandshakeErrors,
    /// Connections that ended, or went on, as TCP with a reason.
    Fallbacks,
    /// Memory-lane connections that went back to TCP only.
    Downgrades,
    /// Bytes sent through the ring by connections that have ended.
    TxRingBytes,
    /// Bytes sent through TCP, likewise.
    TxTcpBytes,
    /// Bytes received through the ring, likewise.
    RxRingBytes,
    /// Bytes received through TCP, likewise.
    RxTcpBytes,
    /// Send calls of connections that have ended.
    TxCalls,
    /// Receive calls of connections that have ended.
    RxCalls,
    /// Times a sender found the ring full.
    RingFull,
    /// Times a receiver parked (asked to be woken by TCP).
    Parks,
    /// Waits that found what they waited for while spinning.
    SpinHits,
    /// Waits that spun in vain and slept.
    SpinMisses,
    /// Sends that took TCP in order to wake a parked peer.
    WakeupsSent,
    /// Waits answered from the rings without a system call.
    WaitsAvoided,
    /// Waits that went to the kernel.
    KernelWaits,
    /// `EPOLL_CTL_MOD` calls that never had to reach the kernel.
    CtlAvoided,
    /// Peers cut off for impossible values in shared memory.
    PeerMisbehaved,
    /// `sendfile` calls served by the ring.
    Sendfile,
    /// `splice` calls on a memory-lane connection.
    Splice,
    /// `TCP_CORK` changes.
    Cork,
    /// `TCP_NODELAY` changes.
    NoDelay,
    /// Urgent data events.
    Urgent,
    /// Link groups made (peer processes).
    LinkGroups,
    /// Connections that got the memory lane and that this process had made.
    UpgradedClient = 40,
    /// … and that it had accepted.
    UpgradedServer,
    /// Send calls that moved more than the ring holds.
    TxBeyondRing,
    /// Times that memory was found to be too scarce for rings.
    Scarce,
    /// Times that it woke a sleeping peer without TCP: by its bell, or out of a nap.
    BellsRung,
}

/// Number of counter slots (more than there are counters: room to grow).
pub const COUNTERS: usize = 64;

/// One reason and how often it was given.
#[repr(C)]
#[derive(Debug)]
pub struct ReasonCount {
    /// `Reason` code; 0 = unused slot.
    pub code: AtomicU32,
    /// Alignment.
    pub reserved: AtomicU32,
    /// Times on connections this process had made.
    pub client: AtomicU64,
    /// Times on connections this process had accepted.
    pub server: AtomicU64,
}

/// First page.
#[repr(C)]
#[derive(Debug)]
pub struct Header {
    /// `MAGIC`, stored last when the page is ready.
    pub magic: AtomicU64,
    /// `VERSION`.
    pub version: AtomicU32,
    /// `HEADER_LEN`.
    pub header_len: AtomicU32,
    /// `PAGE_LEN`.
    pub page_len: AtomicU64,
    /// Owner's process id (in its own pid namespace).
    pub pid: AtomicU32,
    /// Owner's effective user id when the page was made.
    pub uid: AtomicU32,
    /// Wall clock, ns since 1970, when the page was made.
    pub start_ns: AtomicU64,
    /// Random id of this process (SMC's GID).
    pub gid: AtomicU64,
    /// Process name, NUL padded.
    pub comm: [AtomicU64; 2],
    /// `CONN_CAPACITY`.
    pub conn_capacity: AtomicU32,
    /// `CONN_ENTRY_LEN`.
    pub conn_entry_len: AtomicU32,
    /// One more than the highest entry index ever used.
    pub conn_high: AtomicU32,
    /// Bit 0: no new upgrades (sandboxed, io_uring, switched off).
    pub flags: AtomicU32,
    /// Setting: ring bytes per direction.
    pub ring_size: AtomicU64,
    /// Setting: longest spin in µs (0 = off).
    pub spin_us: AtomicU32,
    /// Setting: 0 off, 1 auto, 2 eager.
    pub upgrade: AtomicU32,
    /// Setting: 0 nocopy, 1 copy.
    pub mode: AtomicU32,
    /// Filler up to 256.
    pub reserved0: [AtomicU32; 39],
    /// By `Counter`.
    pub counters: [AtomicU64; COUNTERS],
    /// Fallback reasons.
    pub reasons: [ReasonCount; REASON_SLOTS],
    /// Send calls by size class (connections on the memory lane).
    pub tx_sizes: [AtomicU64; SIZE_CLASSES],
    /// Receive calls by size class.
    pub rx_sizes: [AtomicU64; SIZE_CLASSES],
    /// Filler up to 4096.
    pub reserved1: [AtomicU64; 280],
}

/// Values of `ConnEntry::state`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum ConnState {
    /// Slot not in use.
    Free = 0,
    /// Socket made, not connected.
    New = 1,
    /// Plain TCP; `reason` says why (`TOO_YOUNG`: it may still upgrade).
    Tcp = 2,
    /// Handshake under way.
    Pending = 3,
    /// Memory lane open in both directions.
    Memlane = 4,
    /// Was on the memory lane, is TCP only now; `reason` says why.
    Downgraded = 5,
}

/// `ConnEntry::copied`: what is sent in memory goes by way of the sender's own buffer (mode `copy`).
pub const COPIED_TX: u32 = 1;
/// `ConnEntry::copied`: so does what the peer sends.
pub const COPIED_RX: u32 = 2;

/// One connection.
#[repr(C)]
#[derive(Debug)]
pub struct ConnEntry {
    /// Odd while being rewritten.
    pub seq: AtomicU32,
    /// `ConnState`.
    pub state: AtomicU32,
    /// Descriptor number in the owner.
    pub fd: AtomicU32,
    /// 0 = this process connected, 1 = it accepted.
    pub role: AtomicU32,
    /// Own port (host order) in the low half, the peer's in the high half; 0 = not asked yet.
    pub ports: AtomicU32,
    /// Process id of the peer (0 = not known).
    pub peer_pid: AtomicU32,
    /// Own address, as `sock::Addr::ip`.
    pub local_ip: [AtomicU64; 2],
    /// Peer's address.
    pub remote_ip: [AtomicU64; 2],
    /// Socket inode (0 = not asked yet).
    pub inode: AtomicU64,
    /// Wall clock, ns since 1970, when the connection was made.
    pub since_ns: AtomicU64,
    /// Why it is on TCP.
    pub reason: AtomicU32,
    /// The peer's own reason, if it declined.
    pub peer_reason: AtomicU32,
    /// User id of the peer.
    pub peer_uid: AtomicU32,
    /// 1 = the receiver is parked (next bytes come by TCP).
    pub parked: AtomicU32,
    /// Bytes of the ring that we send into / receive from (0 = none).
    pub tx_ring_size: AtomicU32,
    /// Bytes of the ring that we receive from (0 = none).
    pub rx_ring_size: AtomicU32,
    /// Bytes sent through the ring.
    pub tx_ring_bytes: AtomicU64,
    /// Bytes sent through TCP.
    pub tx_tcp_bytes: AtomicU64,
    /// Bytes received through the ring.
    pub rx_ring_bytes: AtomicU64,
    /// Bytes received through TCP.
    pub rx_tcp_bytes: AtomicU64,
    /// Send calls.
    pub tx_calls: AtomicU64,
    /// Receive calls.
    pub rx_calls: AtomicU64,
    /// `COPIED_TX | COPIED_RX`.
    pub copied: AtomicU32,
    /// The window of the ring that this side sends into, in bytes; 0: not known.
    pub tx_ring_window: AtomicU32,
    /// The lane's name, the same at both ends: the tokens of its two DMBs, one XOR the other; 0 = no lane.
    pub lane: AtomicU64,
    /// Filler up to 192.
    pub reserved: [AtomicU32; 8],
}

const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<Header>() == HEADER_LEN);
    assert!(offset_of!(Header, counters) == 256);
    assert!(offset_of!(Header, reasons) == 768);
    assert!(offset_of!(Header, tx_sizes) == 1728);
    assert!(size_of::<ConnEntry>() == CONN_ENTRY_LEN);
    assert!(offset_of!(ConnEntry, reason) == 72);
    assert!(offset_of!(ConnEntry, tx_ring_bytes) == 96);
    assert!(offset_of!(ConnEntry, lane) == 152);
};
