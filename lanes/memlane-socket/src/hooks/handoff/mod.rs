//! Bytes unread in rings, over an exec.
//!
//! The descriptor that a new program inherits is the real socket, but what lies
//! in a ring can only be read by somebody who has the ring. So the new program
//! gets the memory too: the memfds of the rings that are not empty (their lanes
//! have ended: nothing is added any more) and of the cells that say how far they
//! have been read, and a list of what is where. Its own copy of this library
//! looks for the list when it starts. A parent that goes on with the same socket
//! shares the cell, so all agree on what has been read, as they do on a socket.

pub mod target;

use crate::state::conn::{Conn, Dmb, Role, SharedState};
use crate::state::process;
use crate::state::typed::Bits as _;
use core::sync::atomic::Ordering;
use memlane_core::layout::ring_size_ok;
use memlane_core::reason::Reason;
use memlane_core::region::Region;
use memlane_sys::fd::{self, Fd};
use memlane_sys::{mem, proc};

/// Connections that one exec can carry.
pub const MOST: usize = 64;
/// Highest descriptor numbers among which the list is put, and looked for.
const LIST_AMONG: i32 = 8;
/// … and those below, among which the memfds are put.
const FILES_AMONG: i32 = 200;
/// A new program looks for its sockets below this number.
const SOCKETS_BELOW: i32 = 4096;
/// Memfds that one exec can carry.
const FILES: usize = 64;

/// "MLCARRY4", little endian.
const MAGIC: u64 = u64::from_le_bytes(*b"MLCARRY4");

/// A place in one of the memfds.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct MemfdPlace {
    /// Descriptor number in the new program.
    file: u64,
    offset: u64,
}

/// One connection.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Item {
    /// The socket's.
    inode: u64,
    ring_size: u32,
    role: u32,
    cell: MemfdPlace,
    words: MemfdPlace,
    ring: MemfdPlace,
}

/// What the memfd at the highest number holds. Written before the exec, read
/// once after it: plain bytes, in this machine's order.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct List {
    magic: u64,
    /// Who made it: its memory is for nobody else.
    uid: u64,
    count: u64,
    items: [Item; MOST],
}

// docs/formats/exec-handoff.md
const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<Item>() == 64 && offset_of!(Item, cell) == 16);
    assert!(offset_of!(Item, words) == 32 && offset_of!(Item, ring) == 48);
    assert!(offset_of!(List, items) == 24 && size_of::<List>() == 24 + 64 * MOST);
};

/// What is handed over, for as long as the exec or spawn takes.
#[derive(Debug)]
pub struct Handoff {
    _list: Fd,
    _files: [Option<Fd>; FILES],
}

/// Memfds as they are numbered for the new program.
struct Handed {
    files: [Option<Fd>; FILES],
    from: [i32; FILES],
}

/// Prepares what the program that is about to start must have in order to read
/// what is unread on `conns`. `None`: not possible.
pub fn give(conns: &[&'static Conn]) -> Option<Handoff> {
    if proc::euid() != process::owner() {
        return None; // the memory has other connections too, of another user
    }
    let mut handed = Handed {
        files: [const { None }; FILES],
        from: [-1; FILES],
    };
    let mut list = List {
        magic: MAGIC,
        uid: u64::from(proc::euid()),
        count: conns.len() as u64,
        items: [Item::default(); MOST],
    };
    for (item, conn) in list.items.iter_mut().zip(conns) {
        *item = describe(conn, &mut handed)?;
    }
    let file = mem::memfd(c"memlane-handoff", size_of::<List>(), false).ok()?;
    // SAFETY: `list` is plain integers without padding.
    let bytes =
        unsafe { core::slice::from_raw_parts((&raw const list).cast::<u8>(), size_of::<List>()) };
    fd::write_at(file.raw(), bytes, 0).ok()?;
    mem::add_seals(file.raw(), mem::SEALS_FIXED).ok()?;
    Some(Handoff {
        _list: put_high(file.raw(), LIST_AMONG)?,
        _files: handed.files,
    })
}

fn describe(conn: &Conn, handed: &mut Handed) -> Option<Item> {
    let held = crate::state::guard::lock_rx(conn)?;
    let view = held.lane()?;
    let item = Item {
        inode: fd::stat(conn.fd.load(Ordering::Relaxed)).ok()?.ino,
        ring_size: u32::try_from(view.ring.len()).ok()?,
        role: conn.role.load(Ordering::Relaxed).bits(),
        cell: handed.place(core::ptr::from_ref(conn.shared()) as usize)?,
        words: handed.place(core::ptr::from_ref(view.words) as usize)?,
        ring: handed.place(view.ring.as_ptr() as usize)?,
    };
    drop(held);
    Some(item)
}

impl Handed {
    /// Where the new program finds what we have mapped at `at`.
    fn place(&mut self, at: usize) -> Option<MemfdPlace> {
        let (ours, offset) = process::find_file(at)?;
        let known = self.from.iter().position(|&n| n == ours);
        let i = match known {
            Some(i) => i,
            None => {
                let i = self.from.iter().position(|&n| n == -1)?;
                self.files[i] = Some(put_high(ours, LIST_AMONG + FILES_AMONG)?);
                self.from[i] = ours;
                i
            }
        };
        Some(MemfdPlace {
            file: u64::try_from(self.files[i].as_ref()?.raw()).ok()?,
            offset: offset as u64,
        })
    }
}

/// A duplicate that survives an exec, at one of the `among` highest numbers.
fn put_high(file: i32, among: i32) -> Option<Fd> {
    let from = (process::fd_limit() - among).max(3);
    // SAFETY: no pointers are passed.
    let n = unsafe { memlane_sys::syscall!(libc::SYS_fcntl, file, libc::F_DUPFD, from) };
    // SAFETY: the kernel just made this number for us.
    n.ok().map(|n| unsafe { Fd::from_raw(fd::as_fd(n)) })
}

// --- in the new program ------------------------------------------------------

/// A program starts: has the one before it left something?
pub fn adopt() {
    let top = process::fd_limit();
    for n in (top - LIST_AMONG).max(3)..top {
        if let Some(list) = read_list(n) {
            fd::close(n);
            if list.uid == u64::from(proc::euid()) {
                adopt_all(&list);
            }
        }
    }
}

fn read_list(n: i32) -> Option<List> {
    let seals = mem::seals(n).ok()?;
    let mut bytes = [0u8; size_of::<List>()];
    let whole = seals & mem::SEALS_FIXED == mem::SEALS_FIXED
        && fd::read_at(n, &mut bytes, 0) == Ok(bytes.len());
    // SAFETY: as long as a List, which is plain integers: every value is one.
    let list = unsafe { bytes.as_ptr().cast::<List>().read_unaligned() };
    (whole && list.magic == MAGIC && list.count <= MOST as u64).then_some(list)
}

fn adopt_all(list: &List) {
    let mut files = Mapped {
        numbers: [-1; FILES],
        bases: [core::ptr::null_mut(); FILES],
        lens: [0; FILES],
    };
    for item in list
        .items
        .iter()
        .take(usize::try_from(list.count).unwrap_or(0))
    {
        adopt_item(item, &mut files);
    }
    files.close_the_rest(list);
}

/// The memfds that came along, once they are mapped.
struct Mapped {
    numbers: [i32; FILES],
    bases: [*mut u8; FILES],
    lens: [usize; FILES],
}

impl Mapped {
    /// Address of `len` bytes at `place`, aligned to `align`.
    fn at(&mut self, place: MemfdPlace, len: usize, align: usize) -> Option<*mut u8> {
        let number = i32::try_from(place.file).ok()?;
        let known = self.numbers.iter().position(|&n| n == number);
        let i = match known {
            Some(i) => i,
            None => self.map(number)?,
        };
        let offset = usize::try_from(place.offset).ok()?;
        let fits = offset.checked_add(len)? <= self.lens[i] && offset.is_multiple_of(align);
        fits.then(|| self.bases[i].wrapping_add(offset))
    }

    /// Nothing of what came along stays in the program's sight.
    fn close_the_rest(&self, list: &List) {
        for item in &list.items {
            for place in [item.cell, item.words, item.ring] {
                let number = i32::try_from(place.file).unwrap_or(0);
                let sealed = mem::seals(number).is_ok_and(|s| s & mem::SEALS_FIXED != 0);
                if number > 2 && sealed && !self.numbers.contains(&number) {
                    fd::close(number);
                }
            }
        }
    }

    fn map(&mut self, number: i32) -> Option<usize> {
        let i = self.numbers.iter().position(|&n| n == -1)?;
        let len = usize::try_from(fd::stat(number).ok()?.size).ok()?;
        // SAFETY: it was put there for us; nobody else knows the number.
        let file = unsafe { Fd::from_raw(number) };
        let region = Region::attach(fd::duplicate(number).ok()?, len).ok()?;
        let (base, _) = region.leak();
        process::keep_file(base, len, file);
        self.numbers[i] = number;
        self.bases[i] = base.as_ptr();
        self.lens[i] = len;
        Some(i)
    }
}

/// Where the new program has the socket; the first number below `SOCKETS_BELOW` at or above `from`.
fn socket_at(inode: u64, from: i32) -> Option<i32> {
    (from..SOCKETS_BELOW.min(process::fd_limit())).find(|&n| {
        fd::stat(n).is_ok_and(|s| s.ino == inode && s.mode & libc::S_IFMT == libc::S_IFSOCK)
    })
}

fn adopt_item(item: &Item, files: &mut Mapped) {
    let size = item.ring_size as usize;
    // A list that was meant for another child has nothing for us.
    let Some(first) = socket_at(item.inode, 0).filter(|_| ring_size_ok(size)) else {
        return;
    };
    let (Some(cell), Some(words), Some(ring)) = (
        files.at(
            item.cell,
            size_of::<SharedState>(),
            align_of::<SharedState>(),
        ),
        files.at(item.words, size_of::<Dmb>(), align_of::<Dmb>()),
        files.at(item.ring, size, 1),
    ) else {
        return;
    };
    let Some(conn) = process::open_conn(first, Role::from_bits(item.role & 1), false) else {
        return;
    };
    conn.rx_size.store(item.ring_size, Ordering::Relaxed);
    conn.rx_ring.store(ring, Ordering::Relaxed);
    conn.rx_dmb.store(words.cast(), Ordering::Release);
    conn.cell.store(cell.cast(), Ordering::Release);
    conn.hs_due.store(u64::MAX, Ordering::Relaxed);
    crate::protocol::upgrade::bar(&conn, Reason::PASSED_ON);
    let mut last = first;
    while let Some(n) = socket_at(item.inode, last + 1) {
        process::dup_entry(first, n);
        last = n;
    }
}
