//! Large reads and writes of a file in memory (tmpfs, memfd) by copies to or from a mapping, which take less
//! time than `preadv2` and `pwritev2` (docs/decisions/0033).
//!
//! What is read, and what the file has afterwards, is what those would have brought, with the same errors:
//!
//! - **Holes stay holes** when they are read: a read of one through a mapping would allocate its pages. So `mincore` is asked
//!   first, and a piece that is not all in memory goes by the system call. It does when it is written, too: to fill a hole, the
//!   system call is faster.
//! - **The file may become shorter at any time**, also within a page. A page that is gone breaks the mapping (see
//!   [`super::guard`]), and after each copy the file is asked for its length.
//! - **It may grow.** What lies behind the mapping is mapped anew.
//! - **Its times change**, and its limits and seals count: the last bytes of a write always go by the system call, and go first.
//!
//! Whoever moves bytes by a system call of its own, from or to a socket, needs no memory of its own for them: it is given the mapping
//! for that one call ([`Mapped::in_place`]).

use super::guard::{Guarded, allows_mappings};
use crate::volume::{Errno, Op};
use memlane_core::access::SharedBytes;
use memlane_sys::mem::{self, PAGE};
use memlane_wait::mutex::{read, write};
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::ptr::NonNull;
use std::sync::RwLock;

/// Reads of fewer bytes go by the system call: the questions cost more than the copy saves.
const LEAST: usize = 32 << 10;
/// The same for writes, whose last bytes go by the system call in any case.
const LEAST_WRITTEN: usize = 64 << 10;
/// The bytes at the end of a write that go by the system call.
pub(super) const LAST: usize = 4096;
/// Pages that are asked about, and copied, at a time.
const PIECE_PAGES: usize = 64;
/// Most bytes that are moved in place by one call. TCP moves 1 MiB by one call in 0.6 of the time that four calls take, since it
/// wakes the receiver once (docs/decisions/0047).
const MOST_IN_PLACE: usize = 1 << 20;
/// Mappings of one file that may break before it is not mapped any more: each costs its page faults again.
const MOST_BROKEN: u32 = 16;

/// The mapping of one file, made by the first request that wants it.
#[derive(Debug)]
pub(super) struct Mapped(RwLock<State>);

#[derive(Debug)]
struct State {
    mapping: Option<Mapping>,
    /// The file can be written, and so is the mapping to be.
    writable: bool,
    broken: u32,
    /// It cannot be mapped, or not be asked for its holes.
    never: bool,
}

impl Mapped {
    /// Of a file that is open for writing, or only for reading.
    pub(super) fn new(writable: bool) -> Mapped {
        Mapped(RwLock::new(State {
            mapping: None,
            writable,
            broken: 0,
            never: false,
        }))
    }

    /// Copies the bytes from `at` on. `false`: they must be read by the system call, which may find an error; what has been
    /// copied means nothing.
    pub(super) fn read(&self, file: BorrowedFd<'_>, at: u64, into: SharedBytes) -> bool {
        into.len() >= LEAST && self.copy(file, at, into, Direction::ToUs)
    }

    /// Would [`write`](Self::write) find a mapping, and its first bytes in memory? To be asked before the [`LAST`] bytes are written.
    pub(super) fn takes(&self, file: BorrowedFd<'_>, at: u64, len: usize) -> bool {
        let end = at.checked_add(len as u64);
        if len < LEAST_WRITTEN || !end.is_some_and(|end| self.reach(file, end)) {
            return false;
        }
        let state = read(&self.0);
        let mapping = state.mapping.as_ref();
        mapping.is_some_and(|mapping| mapping.begins_in_memory(at))
    }

    /// Writes these bytes from `at` on, all but the [`LAST`], which the caller has written. `false`: all must be written by the
    /// system call.
    pub(super) fn write(&self, file: BorrowedFd<'_>, at: u64, from: SharedBytes) -> bool {
        let len = from.len().checked_sub(LAST);
        let most = len.and_then(|len| from.part(0, len));
        most.is_some_and(|most| self.copy(file, at, most, Direction::ToFile))
    }

    /// Has `moves` read or write the first of these bytes in the mapping. `None`: there is none, or they are not in memory.
    ///
    /// # Errors
    /// `EIO`: the file has become shorter meanwhile.
    pub(super) fn in_place(
        &self,
        file: BorrowedFd<'_>,
        op: Op,
        (at, len): (u64, u32),
        moves: &mut dyn FnMut(SharedBytes) -> usize,
    ) -> Result<Option<usize>, Errno> {
        let Some(end) = at.checked_add(len.into()).filter(|_| len > 0) else {
            return Ok(None);
        };
        if !self.reach(file, end) {
            return Ok(None);
        }
        let state = read(&self.0);
        let Some(mapping) = &state.mapping else {
            return Ok(None);
        };
        if !mapping.tells_the_truth() {
            drop(state);
            self.unmap();
            return Ok(None);
        }
        let Some(bytes) = mapping.window(at, len as usize, op == Op::Write) else {
            return Ok(None);
        };
        let moved = moves(bytes);
        let is_whole = !mapping.pages.is_broken() && length(file).is_some_and(|now| end <= now);
        match (moved, is_whole) {
            (0, false) => Ok(None),
            (_, false) => Err(Errno(libc::EIO)),
            (_, true) => Ok(Some(moved)),
        }
    }

    fn copy(&self, file: BorrowedFd<'_>, at: u64, ours: SharedBytes, how: Direction) -> bool {
        let Some(end) = at.checked_add(ours.len() as u64) else {
            return false;
        };
        if !self.reach(file, end) {
            return false;
        }
        match self.copy_now(at, ours, how) {
            Copied::All => length(file).is_some_and(|length| end <= length),
            Copied::Missing => false,
            Copied::Untold => {
                self.unmap();
                false
            }
        }
    }

    fn copy_now(&self, at: u64, ours: SharedBytes, how: Direction) -> Copied {
        let state = read(&self.0);
        let mapping = state.mapping.as_ref();
        mapping.map_or(Copied::Missing, |mapping| mapping.copy(at, ours, how))
    }

    /// Is there a mapping of all before `end`? If there is none, the file is mapped as far as it goes now.
    fn reach(&self, file: BorrowedFd<'_>, end: u64) -> bool {
        if !allows_mappings() {
            return false;
        }
        {
            let state = read(&self.0);
            if state.never || state.reaches(end) {
                return !state.never;
            }
        }
        let mut state = write(&self.0);
        let Some(length) = length(file).filter(|length| end <= *length) else {
            return false;
        };
        if !state.reaches(end) && !state.never {
            state.map(file, length);
        }
        state.reaches(end)
    }

    /// The next request maps the file anew, if it still can.
    fn unmap(&self) {
        write(&self.0).mapping = None;
    }
}

impl State {
    fn reaches(&self, end: u64) -> bool {
        let mapping = self.mapping.as_ref();
        mapping.is_some_and(|mapping| mapping.reaches(end))
    }

    fn map(&mut self, file: BorrowedFd<'_>, length: u64) {
        let old = self.mapping.take();
        self.broken += u32::from(old.is_some_and(|old| old.pages.is_broken()));
        self.mapping =
            Mapping::new(file, length, self.writable).filter(|_| self.broken < MOST_BROKEN);
        self.never = self.mapping.is_none();
    }
}

/// Where a copy goes.
#[derive(Clone, Copy, Debug)]
enum Direction {
    ToUs,
    ToFile,
}

/// What became of a copy.
enum Copied {
    /// Each byte was the file's, or is now.
    All,
    /// Some page is not in memory, or is not the file's any more.
    Missing,
    /// The kernel does not tell any more what is in memory.
    Untold,
}

/// A file's bytes, and one page that the file does not have.
#[derive(Debug)]
struct Mapping {
    pages: Guarded,
}

impl Mapping {
    /// `None`: it cannot be mapped, or the kernel does not tell us what is in memory.
    fn new(file: BorrowedFd<'_>, length: u64, writable: bool) -> Option<Mapping> {
        let whole = usize::try_from(length)
            .ok()?
            .checked_next_multiple_of(PAGE)?;
        let len = whole.checked_add(PAGE)?;
        let map = |writable| Guarded::new(file.as_raw_fd(), len, writable);
        // One that is sealed can be read.
        let pages = map(writable).or_else(|_| map(false)).ok()?;
        let mapping = Mapping { pages };
        mapping.tells_the_truth().then_some(mapping)
    }

    /// The bytes of the file that it has. The last page is one of which the file had nothing when it was mapped.
    fn len(&self) -> usize {
        self.pages.len() - PAGE
    }

    /// Does it have the bytes before `end`, and is each page of it the file's?
    fn reaches(&self, end: u64) -> bool {
        end <= self.len() as u64 && !self.pages.is_broken()
    }

    /// Copies, if all of it is in memory. It lies in the mapping ([`reaches`](Self::reaches)).
    fn copy(&self, at: u64, ours: SharedBytes, how: Direction) -> Copied {
        if !self.tells_the_truth() {
            return Copied::Untold;
        }
        let begin = usize::try_from(at).unwrap_or(usize::MAX);
        let mut done = 0;
        while done < ours.len() {
            let file = begin.saturating_add(done);
            let most = PIECE_PAGES * PAGE - file % PAGE;
            let len = most.min(ours.len() - done);
            let part = ours.part(done, len);
            if !part.is_some_and(|part| self.copy_piece(file, part, how)) {
                return Copied::Missing;
            }
            done += len;
        }
        match self.pages.is_broken() {
            true => Copied::Missing,
            false => Copied::All,
        }
    }

    fn copy_piece(&self, at: usize, ours: SharedBytes, how: Direction) -> bool {
        let lies_inside = at <= self.len() && ours.len() <= self.len() - at;
        if !lies_inside || !self.is_resident(at, ours.len()) {
            return false;
        }
        match how {
            Direction::ToUs => {
                let from = self.pages.base().as_ptr().wrapping_add(at);
                // SAFETY: it lies in the mapping, whose pages can be read whatever becomes of the file.
                unsafe { ours.copy_in(0, from, ours.len()) }
            }
            Direction::ToFile if self.pages.is_writable() => {
                // SAFETY: the mapping lives as long as `self`, and its pages can be written whatever becomes of the file.
                let file = unsafe { SharedBytes::new(self.pages.base(), self.len()) };
                // SAFETY: the window is readable for its whole length.
                unsafe { file.copy_in(at, ours.as_ptr(), ours.len()) }
            }
            Direction::ToFile => false,
        }
    }

    /// The first of these bytes, as far as they are in memory.
    fn window(&self, at: u64, len: usize, to_write: bool) -> Option<SharedBytes> {
        let at = usize::try_from(at).ok().filter(|at| *at < self.len())?;
        let len = self.resident(at, len.min(MOST_IN_PLACE));
        if len == 0 || (to_write && !self.pages.is_writable()) {
            return None;
        }
        let base = self.pages.base();
        // SAFETY: the mapping lives as long as `self`, which the caller keeps for as long as it uses the window, and its pages can be
        // read whatever becomes of the file; and written, if it is writable.
        let file = unsafe {
            match self.pages.is_writable() {
                true => SharedBytes::new(base, self.len()),
                false => SharedBytes::read_only(base, self.len()),
            }
        };
        file.part(at, len)
    }

    /// Is the page that has the byte at `at` in memory, and may it be written?
    fn begins_in_memory(&self, at: u64) -> bool {
        let at = usize::try_from(at).ok().filter(|at| *at < self.len());
        self.pages.is_writable() && at.is_some_and(|at| self.is_resident(at, 1))
    }

    /// How many of these bytes, from the first on, are in memory: all, or as many as some pieces have.
    fn resident(&self, from: usize, len: usize) -> usize {
        let mut known = 0;
        while known < len {
            let at = from + known;
            let piece = (PIECE_PAGES * PAGE - at % PAGE).min(len - known);
            if !self.is_resident(at, piece) {
                break;
            }
            known += piece;
        }
        known
    }

    /// Is there a page in memory for each of these bytes? They begin and end in `PIECE_PAGES` pages.
    fn is_resident(&self, from: usize, len: usize) -> bool {
        let mut told = [0; PIECE_PAGES];
        let first = from / PAGE;
        let pages = (from + len).div_ceil(PAGE) - first;
        let at = self.page(first);
        let known = told.get_mut(..pages).zip(at);
        known.is_some_and(|(told, at)| {
            mem::resident(at, told).is_ok() && told.iter().all(|page| page & 1 != 0)
        })
    }

    /// Asked by somebody who may not know, the kernel says that every page is in memory: even the last one, which the file
    /// does not have. (A file that has become longer may have it by now. Then this mapping is of no use either.)
    fn tells_the_truth(&self) -> bool {
        let mut told = [1];
        let at = self.page(self.len() / PAGE);
        at.is_some_and(|at| mem::resident(at, &mut told).is_ok() && told[0] & 1 == 0)
    }

    fn page(&self, number: usize) -> Option<NonNull<u8>> {
        NonNull::new(self.pages.base().as_ptr().wrapping_add(number * PAGE))
    }
}

fn length(file: BorrowedFd<'_>) -> Option<u64> {
    let stat = rustix::fs::fstat(file).ok()?;
    u64::try_from(stat.st_size).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::allow_mappings;
    use memlane_core::region::Region;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use std::fs::File;
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::FileExt as _;

    #[test]
    fn a_broken_mapping_is_followed_by_another_but_not_for_ever() {
        allow_mappings();
        let file = File::from(memfd_create("mapped", MemfdFlags::CLOEXEC).expect("a file"));
        let room = Region::create(c"room", LEAST, false).expect("memory");
        let mapped = Mapped::new(true);
        for round in 0..=MOST_BROKEN {
            let byte = u8::try_from(round + 1).expect("few");
            file.write_all_at(&[byte; LEAST], 0).expect("written");
            let copied = mapped.read(file.as_fd(), 0, room.bytes());
            assert_eq!(copied, round < MOST_BROKEN, "round {round}");
            let mut first = [0];
            // SAFETY: room for one byte.
            assert!(unsafe { room.bytes().copy_out(0, first.as_mut_ptr(), 1) });
            assert!(!copied || first[0] == byte, "round {round}");
            ftruncate(&file, 0).expect("shorter");
            if let Some(mapping) = &read(&mapped.0).mapping {
                // SAFETY: the mapping can always be read.
                assert!(unsafe { room.bytes().copy_in(0, mapping.pages.base().as_ptr(), 1) });
                assert!(mapping.pages.is_broken());
            }
        }
    }

    #[test]
    fn bytes_are_moved_where_they_are_if_they_are_in_memory() {
        allow_mappings();
        let file = File::from(memfd_create("in-place", MemfdFlags::CLOEXEC).expect("a file"));
        let (page, some) = (PAGE as u64, 2 * MOST_IN_PLACE);
        file.set_len(2 * some as u64).expect("a size");
        file.write_all_at(&vec![7; some], 0).expect("written");
        let mapped = Mapped::new(true);
        let move_all = |op, at, len: usize| {
            let len = u32::try_from(len).expect("small");
            let mut seen = None;
            let mut moves = |bytes: SharedBytes| {
                seen = Some(bytes.len());
                bytes.len()
            };
            let moved = mapped.in_place(file.as_fd(), op, (at, len), &mut moves);
            assert_eq!(moved, Ok(seen), "{op:?} {at} {len}");
            seen
        };
        assert_eq!(move_all(Op::Read, 3, 5), Some(5));
        assert_eq!(move_all(Op::Write, 0, some), Some(MOST_IN_PLACE));
        assert_eq!(move_all(Op::Read, some as u64, PAGE), None, "a hole");
        let near = some as u64 - page;
        assert_eq!(move_all(Op::Read, near, 2 * PAGE), None, "half a hole");
        assert_eq!(move_all(Op::Read, 2 * some as u64, 1), None, "the end");
        assert_eq!(move_all(Op::Read, u64::MAX, 1), None);
        assert_eq!(move_all(Op::Read, 0, 0), None);
        let read_only = Mapped::new(false);
        let refused = read_only.in_place(file.as_fd(), Op::Write, (0, 1), &mut |_| 1);
        assert_eq!(refused, Ok(None));
    }

    #[test]
    fn what_is_moved_while_a_file_becomes_shorter_is_told_as_lost() {
        allow_mappings();
        let file = File::from(memfd_create("in-place", MemfdFlags::CLOEXEC).expect("a file"));
        let mapped = Mapped::new(true);
        for (op, moved) in [(Op::Read, 5), (Op::Write, 5), (Op::Write, 0)] {
            file.write_all_at(&[7; LEAST], 0).expect("written");
            let mut moves = |_| {
                ftruncate(&file, 0).expect("shorter");
                moved
            };
            let told = mapped.in_place(file.as_fd(), op, (0, 64), &mut moves);
            let nothing_moved = moved == 0;
            let expected = if nothing_moved {
                Ok(None)
            } else {
                Err(Errno(libc::EIO))
            };
            assert_eq!(told, expected, "{op:?}");
        }
    }
}
