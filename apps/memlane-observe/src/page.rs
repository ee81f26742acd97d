//! Reads the [stats page](memlane_core::stats) of a process.
//!
//! The process that wrote the page may be hostile. The reader copies bytes out of the file, checks the copy, and takes
//! nothing from it that it has not checked.

use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::FileExt;

use memlane_core::reason::Reason;
use memlane_core::stats::{
    CONN_CAPACITY, CONN_ENTRY_LEN, COPIED_RX, COPIED_TX, COUNTERS, ConnEntry, ConnState, Counter,
    HEADER_LEN, Header, MAGIC, PAGE_LEN, REASON_SLOTS, ReasonCount, SIZE_CLASSES, VERSION,
};

use crate::printable::printable;

/// Connection entries that one read covers.
const BATCH: usize = 256;
/// Times that the reader tries an entry that keeps changing before it gives the entry up.
const TRIES: usize = 64;

/// Why a page was rejected.
#[derive(Debug, PartialEq, Eq)]
pub enum PageError {
    /// The file is shorter than its header says, or a read failed.
    Short,
    /// The magic number is missing: the file is not a stats page, or its owner has not finished it.
    Magic,
    /// The page has this version, and this reader knows only [`VERSION`].
    Version(u32),
    /// The header holds impossible lengths.
    Lengths,
}

impl std::fmt::Display for PageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PageError::Short => f.write_str("it is shorter than it says"),
            PageError::Magic => f.write_str("it has no magic number"),
            PageError::Version(v) => write!(f, "it has version {v}, this program reads {VERSION}"),
            PageError::Lengths => f.write_str("its lengths cannot be right"),
        }
    }
}

impl std::error::Error for PageError {}

/// The bytes of a page: a file, or memory in a test.
pub trait Source {
    /// Reads into `buffer` from `offset` on and returns the number of bytes read, as [`FileExt::read_at`] does.
    ///
    /// # Errors
    ///
    /// Those of the read.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Number of bytes.
    ///
    /// # Errors
    ///
    /// Those of asking for the size.
    fn size(&self) -> io::Result<u64>;
}

impl Source for File {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, buffer, offset)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }
}

/// One direction of a connection.
#[derive(Clone, Copy, Default, Debug)]
pub struct Flow {
    /// Size of the ring in bytes. 0: the connection has no ring.
    pub ring_size: u32,
    /// Bytes of the ring that its sender uses by now. Only the sender's page has this number: for the receiving
    /// direction, [`rings::measure`](crate::rings::measure) fills it in from the peer's page. `None`: not known.
    pub ring_window: Option<u32>,
    /// Bytes sent and not yet received. No page has this number: [`rings::measure`](crate::rings::measure) computes it
    /// from the pages of both ends. `None`: not known.
    pub ring_used: Option<u32>,
    /// Mode `copy`: bytes go through the sender's own buffer.
    pub copied: bool,
    /// Bytes that went through the ring.
    pub ring_bytes: u64,
    /// Bytes that went through TCP.
    pub tcp_bytes: u64,
    /// Send calls, or receive calls.
    pub calls: u64,
}

/// One connection.
#[derive(Clone, Debug)]
pub struct Conn {
    /// Index of its entry on the page.
    pub index: usize,
    /// Which lane it is on.
    pub state: ConnState,
    /// Descriptor number in the process.
    pub fd: u32,
    /// True: the process accepted the connection. False: it connected.
    pub accepted: bool,
    /// Local and remote address. `None`: the process has not asked the kernel for them yet.
    pub addresses: Option<(SocketAddr, SocketAddr)>,
    /// Inode of the socket. 0: not known.
    pub inode: u64,
    /// When the entry was made, in nanoseconds since 1970.
    pub since_ns: u64,
    /// Process id of the peer, as the handshake showed it. 0: not known.
    pub peer_pid: u32,
    /// User id of the peer.
    pub peer_uid: u32,
    /// Why the connection is on TCP. [`Reason::NONE`]: it is not, or nothing is decided yet.
    pub reason: Reason,
    /// The reason that the peer gave.
    pub peer_reason: Reason,
    /// The receiver sleeps: the next bytes come through TCP to wake it.
    pub parked: bool,
    /// What the process sends.
    pub tx: Flow,
    /// What the process receives.
    pub rx: Flow,
}

/// How often one reason for staying on TCP was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fallback {
    /// The reason.
    pub reason: Reason,
    /// Times on connections that the process made.
    pub client: u64,
    /// Times on connections that the process accepted.
    pub server: u64,
}

/// A checked copy of a stats page.
#[derive(Clone, Debug)]
pub struct Page {
    /// Process id of the owner, in the owner's pid namespace.
    pub pid: u32,
    /// Effective user id of the owner when it made the page.
    pub uid: u32,
    /// When the owner made the page, in nanoseconds since 1970.
    pub start_ns: u64,
    /// Random id of the owner.
    pub gid: u64,
    /// Name of the owner, printable.
    pub comm: String,
    /// Bit 0: new connections of this process stay on TCP.
    pub flags: u32,
    /// Setting: ring size for each direction, in bytes.
    pub ring_size: u64,
    /// Setting: longest spin, in microseconds. 0: no spin.
    pub spin_us: u32,
    /// Setting: 0 off, 1 auto, 2 eager.
    pub upgrade: u32,
    /// Setting: 0 nocopy, 1 copy.
    pub mode: u32,
    counters: [u64; COUNTERS],
    /// Reasons for staying on TCP that were given at least once.
    pub fallbacks: Vec<Fallback>,
    /// Send calls on the memory lane by size class.
    pub tx_sizes: [u64; SIZE_CLASSES],
    /// Receive calls on the memory lane by size class.
    pub rx_sizes: [u64; SIZE_CLASSES],
    /// The connections.
    pub conns: Vec<Conn>,
    /// Entries left out because they held an impossible value or never stopped changing.
    pub bad_entries: u64,
}

impl Page {
    /// One counter of the header. Byte and call counters cover connections that have ended:
    /// [`Counters`](crate::counters::Counters) adds those that are open.
    pub fn counter(&self, counter: Counter) -> u64 {
        self.counters[counter as usize]
    }

    /// All counters of the header, indexed by [`Counter`].
    pub fn counters(&self) -> &[u64] {
        &self.counters
    }

    /// Reads and checks a page with all its connections.
    ///
    /// # Errors
    ///
    /// [`PageError`], if the header is not that of a page that this reader knows.
    pub fn read(source: &impl Source) -> Result<Page, PageError> {
        let file_len = source.size().map_err(|_| PageError::Short)?;
        let mut header = vec![0; HEADER_LEN];
        fill(source, &mut header, 0)?;
        let words = Words(&header);
        check(&words, file_len)?;
        let entries = entry_count(&words, file_len);
        let mut page = Page::from_header(&words);
        page.read_conns(source, entries)?;
        Ok(page)
    }

    fn from_header(words: &Words<'_>) -> Page {
        let list = |start: usize, index: usize| words.u64(start + 8 * index);
        let comm = words.bytes::<16>(offset_of!(Header, comm));
        Page {
            pid: words.u32(offset_of!(Header, pid)),
            uid: words.u32(offset_of!(Header, uid)),
            start_ns: words.u64(offset_of!(Header, start_ns)),
            gid: words.u64(offset_of!(Header, gid)),
            comm: printable(&comm),
            flags: words.u32(offset_of!(Header, flags)),
            ring_size: words.u64(offset_of!(Header, ring_size)),
            spin_us: words.u32(offset_of!(Header, spin_us)),
            upgrade: words.u32(offset_of!(Header, upgrade)),
            mode: words.u32(offset_of!(Header, mode)),
            counters: std::array::from_fn(|i| list(offset_of!(Header, counters), i)),
            fallbacks: fallbacks(words),
            tx_sizes: std::array::from_fn(|i| list(offset_of!(Header, tx_sizes), i)),
            rx_sizes: std::array::from_fn(|i| list(offset_of!(Header, rx_sizes), i)),
            conns: Vec::new(),
            bad_entries: 0,
        }
    }

    fn read_conns(&mut self, source: &impl Source, entries: usize) -> Result<(), PageError> {
        let mut first = vec![0; BATCH * CONN_ENTRY_LEN];
        let mut again = first.clone();
        for start in (0..entries).step_by(BATCH) {
            let len = BATCH.min(entries - start) * CONN_ENTRY_LEN;
            let offset = HEADER_LEN + start * CONN_ENTRY_LEN;
            fill(source, &mut first[..len], offset)?;
            fill(source, &mut again[..len], offset)?;
            let pairs = first[..len]
                .chunks_exact(CONN_ENTRY_LEN)
                .zip(again[..len].chunks_exact(CONN_ENTRY_LEN));
            for (index, (entry, later)) in (start..).zip(pairs) {
                let verdict = match stable(&Words(entry), &Words(later)) {
                    true => Conn::parse(&Words(entry), index),
                    false => retry(source, index)?,
                };
                self.take(verdict);
            }
        }
        Ok(())
    }

    fn take(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Conn(conn) => self.conns.push(*conn),
            Verdict::Free => {}
            Verdict::Bad => self.bad_entries += 1,
        }
    }
}

/// What an entry holds.
enum Verdict {
    Conn(Box<Conn>),
    Free,
    Bad,
}

impl Conn {
    /// Reads the same entry again. `None`: the entry belongs to another connection by now.
    pub fn again(&self, source: &impl Source) -> Option<Conn> {
        match retry(source, self.index) {
            Ok(Verdict::Conn(now))
                if now.addresses == self.addresses && now.since_ns == self.since_ns =>
            {
                Some(*now)
            }
            _ => None,
        }
    }

    fn parse(words: &Words<'_>, index: usize) -> Verdict {
        let state = match words.u32(offset_of!(ConnEntry, state)) {
            0 => return Verdict::Free,
            1 => ConnState::New,
            2 => ConnState::Tcp,
            3 => ConnState::Pending,
            4 => ConnState::Memlane,
            5 => ConnState::Downgraded,
            _ => return Verdict::Bad,
        };
        let accepted = match words.u32(offset_of!(ConnEntry, role)) {
            0 => false,
            1 => true,
            _ => return Verdict::Bad,
        };
        let copied = words.u32(offset_of!(ConnEntry, copied));
        Verdict::Conn(Box::new(Conn {
            index,
            state,
            fd: words.u32(offset_of!(ConnEntry, fd)),
            accepted,
            addresses: addresses(words),
            inode: words.u64(offset_of!(ConnEntry, inode)),
            since_ns: words.u64(offset_of!(ConnEntry, since_ns)),
            peer_pid: words.u32(offset_of!(ConnEntry, peer_pid)),
            peer_uid: words.u32(offset_of!(ConnEntry, peer_uid)),
            reason: Reason(words.u32(offset_of!(ConnEntry, reason))),
            peer_reason: Reason(words.u32(offset_of!(ConnEntry, peer_reason))),
            parked: words.u32(offset_of!(ConnEntry, parked)) != 0,
            tx: Flow {
                ring_size: words.u32(offset_of!(ConnEntry, tx_ring_size)),
                ring_window: match words.u32(offset_of!(ConnEntry, tx_ring_window)) {
                    0 => None,
                    window => Some(window.min(words.u32(offset_of!(ConnEntry, tx_ring_size)))),
                },
                ring_used: None,
                copied: copied & COPIED_TX != 0,
                ring_bytes: words.u64(offset_of!(ConnEntry, tx_ring_bytes)),
                tcp_bytes: words.u64(offset_of!(ConnEntry, tx_tcp_bytes)),
                calls: words.u64(offset_of!(ConnEntry, tx_calls)),
            },
            rx: Flow {
                ring_size: words.u32(offset_of!(ConnEntry, rx_ring_size)),
                ring_window: None,
                ring_used: None,
                copied: copied & COPIED_RX != 0,
                ring_bytes: words.u64(offset_of!(ConnEntry, rx_ring_bytes)),
                tcp_bytes: words.u64(offset_of!(ConnEntry, rx_tcp_bytes)),
                calls: words.u64(offset_of!(ConnEntry, rx_calls)),
            },
        }))
    }
}

/// Native-endian words in a private copy of shared bytes.
struct Words<'a>(&'a [u8]);

impl Words<'_> {
    fn bytes<const N: usize>(&self, offset: usize) -> [u8; N] {
        std::array::from_fn(|i| self.0.get(offset + i).copied().unwrap_or(0))
    }

    fn u32(&self, offset: usize) -> u32 {
        u32::from_ne_bytes(self.bytes(offset))
    }

    fn u64(&self, offset: usize) -> u64 {
        u64::from_ne_bytes(self.bytes(offset))
    }
}

/// Reads exactly `buffer.len()` bytes.
fn fill(source: &impl Source, buffer: &mut [u8], offset: usize) -> Result<(), PageError> {
    let mut done = 0;
    while done < buffer.len() {
        match source.read_at(&mut buffer[done..], (offset + done) as u64) {
            Ok(0) => return Err(PageError::Short),
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Err(PageError::Short),
        }
    }
    Ok(())
}

fn check(words: &Words<'_>, file_len: u64) -> Result<(), PageError> {
    if words.u64(offset_of!(Header, magic)) != MAGIC {
        return Err(PageError::Magic);
    }
    match words.u32(offset_of!(Header, version)) {
        VERSION => {}
        other => return Err(PageError::Version(other)),
    }
    let page_len = words.u64(offset_of!(Header, page_len));
    let capacity = u64::from(words.u32(offset_of!(Header, conn_capacity)));
    let right = words.u32(offset_of!(Header, header_len)) as usize == HEADER_LEN
        && words.u32(offset_of!(Header, conn_entry_len)) as usize == CONN_ENTRY_LEN
        && capacity <= CONN_CAPACITY as u64
        && page_len <= PAGE_LEN as u64
        && page_len == HEADER_LEN as u64 + capacity * CONN_ENTRY_LEN as u64;
    match right {
        false => Err(PageError::Lengths),
        true if file_len < page_len => Err(PageError::Short),
        true => Ok(()),
    }
}

/// Number of entries to read: what the owner says, limited by the length of the file.
fn entry_count(words: &Words<'_>, file_len: u64) -> usize {
    let there = file_len.saturating_sub(HEADER_LEN as u64) / CONN_ENTRY_LEN as u64;
    let high = words.u32(offset_of!(Header, conn_high));
    let capacity = words.u32(offset_of!(Header, conn_capacity));
    let count = u64::from(high.min(capacity)).min(there);
    usize::try_from(count).map_or(0, |n| n.min(CONN_CAPACITY))
}

fn fallbacks(words: &Words<'_>) -> Vec<Fallback> {
    let start = offset_of!(Header, reasons);
    (0..REASON_SLOTS)
        .map(|slot| start + slot * size_of::<ReasonCount>())
        .map(|at| Fallback {
            reason: Reason(words.u32(at + offset_of!(ReasonCount, code))),
            client: words.u64(at + offset_of!(ReasonCount, client)),
            server: words.u64(at + offset_of!(ReasonCount, server)),
        })
        .filter(|f| f.reason != Reason::NONE)
        .collect()
}

/// Whether the owner left the entry alone between the two copies.
fn stable(first: &Words<'_>, later: &Words<'_>) -> bool {
    let at = offset_of!(ConnEntry, seq);
    let seq = first.u32(at);
    seq.is_multiple_of(2) && seq == later.u32(at)
}

/// Reads one entry until two copies agree, [`TRIES`] times at most.
fn retry(source: &impl Source, index: usize) -> Result<Verdict, PageError> {
    let offset = HEADER_LEN + index * CONN_ENTRY_LEN;
    let mut first = [0; CONN_ENTRY_LEN];
    let mut again = [0; CONN_ENTRY_LEN];
    for _ in 0..TRIES {
        fill(source, &mut first, offset)?;
        fill(source, &mut again, offset)?;
        if stable(&Words(&first), &Words(&again)) {
            return Ok(Conn::parse(&Words(&first), index));
        }
        std::thread::yield_now();
    }
    Ok(Verdict::Bad)
}

fn addresses(words: &Words<'_>) -> Option<(SocketAddr, SocketAddr)> {
    let ports = words.u32(offset_of!(ConnEntry, ports));
    if ports == 0 {
        return None;
    }
    let [a, b, c, d] = ports.to_le_bytes();
    let address = |offset, port| {
        let ip = Ipv6Addr::from(words.bytes::<16>(offset));
        SocketAddr::new(plain(ip), port)
    };
    Some((
        address(offset_of!(ConnEntry, local_ip), u16::from_le_bytes([a, b])),
        address(offset_of!(ConnEntry, remote_ip), u16::from_le_bytes([c, d])),
    ))
}

/// Turns a v4-mapped address into the IPv4 address that it stands for.
pub(crate) fn plain(ip: Ipv6Addr) -> IpAddr {
    ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4)
}

#[cfg(test)]
mod tests;
