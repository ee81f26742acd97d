//! The file: what the kernel asks of it, as requests to the volume.

use super::lane::{Answer, Lane, Range, Target};
use super::ranges::{Hold, Ranges};
use super::seek::Seek;
use fuser::{
    BsdFileFlags, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenAccMode, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyLseek,
    ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use memlane_block::volume::{Errno, Flags, Info, Op, Volume};
use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, SystemTime};

/// Always ask: the size may change, and asking costs nothing.
const NO_TIME: Duration = Duration::ZERO;
/// Requests that the kernel keeps under way by itself (read ahead, direct I/O that is not waited for).
const BACKGROUND: u16 = 128;

/// Most bytes of one of the kernel's requests: what it sends by default at most (`fs.fuse.max_pages_limit`).
const MAX_REQUEST: u32 = 1 << 20;

/// Does the kernel keep pages?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cache {
    /// Yes, as of any file.
    Kernel,
    /// No: each read comes to the volume. Maps need Linux 6.6.
    None,
}

pub(super) struct File {
    volume: Arc<dyn Volume>,
    pub(super) lanes: Vec<Arc<Lane>>,
    writes: Arc<Ranges>,
    cache: Cache,
    mode: u16,
    owner: (u32, u32),
    since: SystemTime,
    next_lane: AtomicUsize,
    /// How many times it is open, in whichever mount namespace. The threads that take requests write it; who unmounts
    /// reads it. It orders nothing else.
    open: AtomicUsize,
}

impl File {
    pub(super) fn new(
        volume: Arc<dyn Volume>,
        lanes: usize,
        cache: Cache,
        mode: u16,
    ) -> io::Result<File> {
        let lane = |_| Lane::new(&*volume).map(Arc::new);
        let owner = (
            rustix::process::getuid().as_raw(),
            rustix::process::getgid().as_raw(),
        );
        Ok(File {
            lanes: (0..lanes.max(1)).map(lane).collect::<io::Result<_>>()?,
            volume,
            writes: Arc::default(),
            cache,
            mode,
            owner,
            since: SystemTime::now(),
            next_lane: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
        })
    }

    /// Whether any program has it open or mapped. The kernel tells of a close a moment after it.
    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed) > 0
    }

    /// The calling thread's.
    fn lane(&self) -> &Lane {
        thread_local!(static MINE: Cell<Option<usize>> = const { Cell::new(None) });
        let mine = MINE.get().unwrap_or_else(|| {
            let mine = self.next_lane.fetch_add(1, Ordering::Relaxed);
            MINE.set(Some(mine));
            mine
        });
        &self.lanes[mine % self.lanes.len()]
    }

    fn attr(&self) -> FileAttr {
        let info = self.volume.info();
        FileAttr {
            ino: INodeNo::ROOT,
            size: info.size,
            blocks: info.size / 512,
            atime: self.since,
            mtime: self.since,
            ctime: self.since,
            crtime: self.since,
            kind: FileType::RegularFile,
            perm: self.mode,
            nlink: 1,
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            blksize: info.preferred,
            flags: 0,
        }
    }

    fn read_at(&self, at: u64, len: u32, reply: ReplyData) {
        let info = self.volume.info();
        let end = at
            .saturating_add(u64::from(len.min(MAX_REQUEST)))
            .min(info.size);
        let Some(wanted) = end.checked_sub(at).filter(|wanted| *wanted > 0) else {
            return reply.data(&[]);
        };
        let (start, end) = blocks(&info, at, end);
        match (usize::try_from(at - start), usize::try_from(wanted)) {
            (Ok(skip), Ok(wanted)) => {
                let answer = Answer::Read(reply, skip, wanted);
                self.lane().read(answer, &info, start, len_of(start, end));
            }
            _ => reply.error(fuser::Errno::EINVAL),
        }
    }

    fn write_at(&self, at: u64, data: &[u8], flags: Flags, reply: ReplyWrite) {
        let info = self.volume.info();
        let len = usize::try_from(info.size.saturating_sub(at)).unwrap_or(usize::MAX);
        let data = &data[..data.len().min(len)];
        if info.read_only {
            return reply.error(fuser::Errno::EROFS);
        }
        if data.is_empty() {
            // The volume ends here, and does not grow.
            return reply.error(fuser::Errno::ENOSPC);
        }
        let count = u32::try_from(data.len()).unwrap_or(u32::MAX);
        self.put(&info, at, data, flags, Answer::Write(reply, count));
    }

    /// Writes any bytes: parts of blocks are read before.
    fn put(&self, info: &Info, at: u64, data: &[u8], flags: Flags, answer: Answer) {
        let end = at + data.len() as u64;
        let (start, stop) = blocks(info, at, end);
        let patch = (start, stop) != (at, end);
        let hold = self.writes.hold(start, stop, patch);
        let to = |hold| Target {
            at: start,
            flags,
            hold,
        };
        if !patch {
            return self.lane().write(answer, info, to(hold), data);
        }
        match self.around(info, at, data) {
            Ok(whole) => self.lane().write(answer, info, to(hold), &whole),
            Err(errno) => answer.fail(errno),
        }
    }

    /// `data`, which belongs to `at`, with what is around it in its blocks.
    fn around(&self, info: &Info, at: u64, data: &[u8]) -> Result<Vec<u8>, Errno> {
        let end = at + data.len() as u64;
        let (start, stop) = blocks(info, at, end);
        let block = info.block as usize;
        let mut whole = vec![0; len_of(start, stop)];
        let first = (start != at) || whole.len() == block;
        if first {
            whole[..block].copy_from_slice(&self.block_at(info, start)?);
        }
        if stop != end && whole.len() > block {
            let from = whole.len() - block;
            let last = self.block_at(info, stop - u64::from(info.block))?;
            whole[from..].copy_from_slice(&last);
        }
        let skip = len_of(start, at);
        whole[skip..skip + data.len()].copy_from_slice(data);
        Ok(whole)
    }

    /// Reads one block, and waits for it.
    fn block_at(&self, info: &Info, at: u64) -> Result<Vec<u8>, Errno> {
        let block = info.block as usize;
        let data = self.wait(|answer| self.lane().read(answer, info, at, block))?;
        if data.len() == block {
            Ok(data)
        } else {
            Err(Errno(libc::EIO))
        }
    }

    fn wait(&self, start: impl FnOnce(Answer)) -> Result<Vec<u8>, Errno> {
        let (tell, told) = sync_channel(1);
        start(Answer::Thread(tell));
        told.recv().unwrap_or(Err(Errno(libc::EIO)))
    }

    /// Makes bytes zero: parts of blocks are written, whole ones named.
    fn zero(&self, at: u64, len: u64, flags: Flags, reply: ReplyEmpty) {
        let info = self.volume.info();
        let end = at.saturating_add(len).min(info.size);
        if info.read_only {
            return reply.error(fuser::Errno::EROFS);
        }
        if !info.zeroes || info.max_trim < info.block {
            return reply.error(fuser::Errno::EOPNOTSUPP);
        }
        if at >= end {
            return reply.ok();
        }
        let block = u64::from(info.block);
        let first_whole = at.next_multiple_of(block).min(end);
        let last_whole = (end - end % block).max(first_whole);
        for (from, to) in [(at, first_whole), (last_whole, end)] {
            let nothing = vec![0; len_of(from, to)];
            let put = |answer| self.put(&info, from, &nothing, Flags::NONE, answer);
            if from < to
                && let Err(errno) = self.wait(put)
            {
                return reply.error(fuser::Errno::from_i32(errno.0));
            }
        }
        if first_whole == last_whole {
            return reply.ok();
        }
        let range = Range {
            op: Op::WriteZeroes,
            at: first_whole,
            end: last_whole,
            step: info.max_trim - info.max_trim % info.block,
            flags,
        };
        let hold = self.writes.hold(first_whole, last_whole, false);
        self.bare(Answer::Empty(reply), Some(range), Some(hold));
    }

    fn bare(&self, answer: Answer, range: Option<Range>, hold: Option<Hold>) {
        self.lane().bare(answer, range, hold);
    }
}

impl Answer {
    fn fail(self, errno: Errno) {
        let failed = fuser::Errno::from_i32(errno.0);
        match self {
            Answer::Read(reply, ..) => reply.error(failed),
            Answer::Write(reply, _) => reply.error(failed),
            Answer::Empty(reply) => reply.error(failed),
            Answer::Seek(reply) => reply.error(failed),
            Answer::Thread(thread) => drop(thread.send(Err(errno))),
        }
    }
}

/// The whole blocks around these bytes.
fn blocks(info: &Info, at: u64, end: u64) -> (u64, u64) {
    let block = u64::from(info.block);
    (at - at % block, end.next_multiple_of(block))
}

fn len_of(at: u64, end: u64) -> usize {
    usize::try_from(end - at).unwrap_or(usize::MAX)
}

/// What the kernel sees: one inode.
pub(super) struct Shared(pub(super) Arc<File>);

impl Filesystem for Shared {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // What a kernel cannot do is not asked for; the rest works without.
        let wanted = [
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
        ];
        for flag in wanted {
            let _ = config.add_capabilities(flag);
        }
        let _ = config.set_max_write(MAX_REQUEST);
        let _ = config.set_max_background(BACKGROUND);
        Ok(())
    }

    fn getattr(&self, _: &Request, _: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&NO_TIME, &self.0.attr());
    }

    /// A volume keeps its size, owner and mode; times are nobody's business.
    fn setattr(
        &self,
        _: &Request,
        _: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let attr = self.0.attr();
        let same = size.is_none_or(|size| size == attr.size)
            && mode.is_none_or(|mode| mode & 0o7777 == u32::from(attr.perm))
            && uid.is_none_or(|uid| uid == attr.uid)
            && gid.is_none_or(|gid| gid == attr.gid);
        if same {
            reply.attr(&NO_TIME, &attr);
        } else {
            reply.error(fuser::Errno::EPERM);
        }
    }

    fn open(&self, _: &Request, _: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if self.0.volume.info().read_only && flags.acc_mode() != OpenAccMode::O_RDONLY {
            return reply.error(fuser::Errno::EROFS);
        }
        let mut how = FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES | FopenFlags::FOPEN_NOFLUSH;
        if self.0.cache == Cache::None {
            how |= FopenFlags::FOPEN_DIRECT_IO;
        }
        self.0.open.fetch_add(1, Ordering::Relaxed);
        reply.opened(FileHandle(0), how);
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
        reply.ok();
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        at: u64,
        len: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.0.read_at(at, len, reply);
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        at: u64,
        data: &[u8],
        _: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let durable = flags.0 & libc::O_DSYNC != 0;
        let flags = if durable { Flags::FUA } else { Flags::NONE };
        self.0.write_at(at, data, flags, reply);
    }

    /// A close: nothing is kept back here. The kernel asks no more.
    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.error(fuser::Errno::ENOSYS);
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.0.bare(Answer::Empty(reply), None, None);
    }

    /// Holes are promised to read as zeros, which is more than a trim promises: both modes write zeros.
    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        at: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        const HOLE: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        match mode {
            HOLE => self.0.zero(at, len, Flags::NONE, reply),
            _ if mode & !libc::FALLOC_FL_KEEP_SIZE == libc::FALLOC_FL_ZERO_RANGE => {
                self.0.zero(at, len, Flags::NO_HOLE, reply);
            }
            _ => reply.error(fuser::Errno::EOPNOTSUPP),
        }
    }

    fn lseek(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        from: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let info = self.0.volume.info();
        let inside = u64::try_from(from).ok().filter(|from| *from < info.size);
        let hole = match whence {
            libc::SEEK_HOLE => true,
            libc::SEEK_DATA => false,
            _ => return reply.error(fuser::Errno::EINVAL),
        };
        match inside {
            None => reply.error(fuser::Errno::ENXIO),
            // Nobody knows: all of it is data.
            Some(_) if !info.extents && hole => {
                reply.offset(i64::try_from(info.size).unwrap_or(i64::MAX));
            }
            Some(_) if !info.extents => reply.offset(from),
            Some(from) => {
                let seek = Seek::new(hole, from, &info);
                self.0.lane().seek(Answer::Seek(reply), seek);
            }
        }
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let info = self.0.volume.info();
        let blocks = info.size / u64::from(info.block);
        reply.statfs(blocks, 0, 0, 1, 0, info.block, 0, info.block);
    }
}
