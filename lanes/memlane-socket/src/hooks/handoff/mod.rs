//! Unread bytes in rings, across an exec.
//!
//! The descriptor that a new program inherits is the real socket, but only a process that has the ring can read what
//! lies in it. So the new program gets the memory too: the memfds of the rings that are not empty (their lanes have
//! ended, so nothing is added any more), the memfds of the shared states that tell how far the rings have been read,
//! and a list of what is where. The new program's own copy of this library looks for the list when it starts. If the
//! parent goes on with the same socket, both processes share that state and agree on what has been read, as they do on
//! a socket.

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

/// The most connections that one exec can hand over.
pub const MOST: usize = 64;
/// How many descriptor numbers, from the highest one down, the list may be put at …
const LIST_AMONG: i32 = 8;
/// … and how many below these the memfds may be put at.
const FILES_AMONG: i32 = 200;
/// A new program looks for its sockets below this descriptor number.
const SOCKETS_BELOW: i32 = 4096;
/// The most memfds that one exec can hand over.
const FILES: usize = 64;

/// "MLCARRY4", little endian.
const MAGIC: u64 = u64::from_le_bytes(*b"MLCARRY4");

/// An offset in one of the memfds.
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
    /// The socket's inode number.
    inode: u64,
    ring_size: u32,
    role: u32,
    shared: MemfdPlace,
    words: MemfdPlace,
    ring: MemfdPlace,
}

/// The content of the memfd at the highest number. Written before the exec, read once after it: plain bytes, in this
/// machine's byte order.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct List {
    magic: u64,
    /// The user id of the process that made the list: the memory is for nobody else.
    uid: u64,
    count: u64,
    items: [Item; MOST],
}

// docs/formats/exec-handoff.md
const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<Item>() == 64 && offset_of!(Item, shared) == 16);
    assert!(offset_of!(Item, words) == 32 && offset_of!(Item, ring) == 48);
    assert!(offset_of!(List, items) == 24 && size_of::<List>() == 24 + 64 * MOST);
};

/// What is handed over, held for as long as the exec or spawn takes.
#[derive(Debug)]
pub struct Handoff {
    _list: Fd,
    _files: [Option<Fd>; FILES],
}

/// Memfds with their numbers in the new program.
struct Handed {
    files: [Option<Fd>; FILES],
    from: [i32; FILES],
}

/// Prepares what the new program needs to read the unread bytes of `conns`. `None`: that is not possible.
pub fn give(conns: &[&'static Conn]) -> Option<Handoff> {
    if proc::euid() != process::owner() {
        return None; // the memory also holds connections of another user
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
        shared: handed.place(core::ptr::from_ref(conn.shared()) as usize)?,
        words: handed.place(core::ptr::from_ref(view.words) as usize)?,
        ring: handed.place(view.ring.as_ptr() as usize)?,
    };
    drop(held);
    Some(item)
}

impl Handed {
    /// Where the new program finds what this one has mapped at `at`.
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

/// Makes a duplicate that survives an exec, at one of the `among` highest numbers.
fn put_high(file: i32, among: i32) -> Option<Fd> {
    let from = (process::fd_limit() - among).max(3);
    // SAFETY: no pointers are passed.
    let n = unsafe { memlane_sys::syscall!(libc::SYS_fcntl, file, libc::F_DUPFD, from) };
    // SAFETY: the kernel just made this number for us.
    n.ok().map(|n| unsafe { Fd::from_raw(fd::as_fd(n)) })
}

// --- in the new program ------------------------------------------------------

/// Takes over what the previous program of this process has left, when a program starts.
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
    // SAFETY: as long as a List, which is plain integers: every bit pattern is a valid one.
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

/// The memfds that the previous program has left, once they are mapped.
struct Mapped {
    numbers: [i32; FILES],
    bases: [*mut u8; FILES],
    lens: [usize; FILES],
}

impl Mapped {
    /// The address of `len` bytes at `place`, aligned to `align`.
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

    /// Closes all descriptors of the list, so that the program sees none of them.
    fn close_the_rest(&self, list: &List) {
        for item in &list.items {
            for place in [item.shared, item.words, item.ring] {
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
        // SAFETY: the previous program put it there for this library; no other code knows the number.
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

/// Finds the socket's descriptor in the new program: the first number from `from` on and below `SOCKETS_BELOW`.
fn socket_at(inode: u64, from: i32) -> Option<i32> {
    (from..SOCKETS_BELOW.min(process::fd_limit())).find(|&n| {
        fd::stat(n).is_ok_and(|s| s.ino == inode && s.mode & libc::S_IFMT == libc::S_IFSOCK)
    })
}

fn adopt_item(item: &Item, files: &mut Mapped) {
    let size = item.ring_size as usize;
    // A list that was meant for another child has nothing for this process.
    let Some(first) = socket_at(item.inode, 0).filter(|_| ring_size_ok(size)) else {
        return;
    };
    let (Some(shared), Some(words), Some(ring)) = (
        files.at(
            item.shared,
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
    conn.shared.store(shared.cast(), Ordering::Release);
    conn.hs_due.store(u64::MAX, Ordering::Relaxed);
    process::appear(); // no later step of this connection would show the process
    crate::protocol::upgrade::bar(&conn, Reason::PASSED_ON);
    let mut last = first;
    while let Some(n) = socket_at(item.inode, last + 1) {
        process::dup_entry(first, n);
        last = n;
    }
}
