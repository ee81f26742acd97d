//! What is done with a request: refused or served, and in which pieces. Pure.

use super::wire::{self, Request, cmd, cmd_flag, error};
use memlane_block::volume::{Flags, Info};

/// A payload that is too long is read to its end up to here, so that the connection can go on.
pub const MAX_SWALLOWED: u32 = 2 * wire::MAX_PAYLOAD;

/// What one client may do with its export.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// The volume. Its size is a multiple of its block, as is `max_io`.
    pub info: Info,
    /// Nothing can be written.
    pub read_only: bool,
    /// Replies in chunks.
    pub structured: bool,
    /// Block status.
    pub allocation: bool,
    /// Nothing new is begun.
    pub stopping: bool,
}

impl Terms {
    /// Takes the volume as it is, but in whole blocks; `None` if nothing could be done with it.
    #[must_use]
    pub fn whole_blocks(mut info: Info) -> Option<Info> {
        if !info.block.is_power_of_two() || info.block > 1 << 16 || info.max_io < info.block {
            return None;
        }
        info.size -= info.size % u64::from(info.block);
        info.max_io -= info.max_io % info.block;
        info.max_trim -= info.max_trim % info.block;
        (info.trim, info.zeroes) = match info.max_trim {
            0 => (false, false),
            _ => (info.trim, info.zeroes),
        };
        Some(info)
    }

    /// Transmission flags.
    #[must_use]
    pub fn offered(info: &Info, read_only: bool) -> u16 {
        use wire::flag;
        let always = flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_FUA;
        let mut flags = always | flag::CAN_MULTI_CONN | flag::SEND_CACHE;
        if read_only {
            return flags | flag::READ_ONLY;
        }
        if info.trim {
            flags |= flag::SEND_TRIM;
        }
        if info.zeroes {
            flags |= flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO;
        }
        flags
    }

    /// Is it served?
    #[must_use]
    pub fn judge(&self, request: &Request) -> Verdict {
        let refused = match request.command {
            cmd::DISC => return Verdict::End,
            cmd::WRITE if request.len > MAX_SWALLOWED => return Verdict::Broken,
            _ if self.stopping => Some(error::ESHUTDOWN),
            cmd::READ => self.read(request),
            cmd::WRITE => self.write(request),
            cmd::FLUSH => self.flush(request),
            cmd::TRIM => self.trim(request),
            cmd::WRITE_ZEROES => self.write_zeroes(request),
            cmd::CACHE => self.cache(request),
            cmd::BLOCK_STATUS => self.block_status(request),
            _ => Some(error::EINVAL),
        };
        match refused {
            Some(error) => Verdict::Refuse(error),
            None => Verdict::Serve,
        }
    }

    fn read(&self, request: &Request) -> Option<u32> {
        // FUA means nothing here, but "existing clients are known to set this bit on other commands".
        let df = if self.structured { cmd_flag::DF } else { 0 };
        let wrong = self.outside(request) || has_other(request, df | cmd_flag::FUA);
        let too_long = (request.len > wire::MAX_PAYLOAD).then_some(error::EOVERFLOW);
        wrong.then_some(error::EINVAL).or(too_long)
    }

    fn write(&self, request: &Request) -> Option<u32> {
        if self.read_only {
            return Some(error::EPERM);
        }
        if has_other(request, cmd_flag::FUA) || request.len > wire::MAX_PAYLOAD {
            return Some(error::EINVAL);
        }
        self.outside(request).then_some(error::ENOSPC)
    }

    fn flush(&self, request: &Request) -> Option<u32> {
        let wrong = has_other(request, cmd_flag::FUA) || (request.at, request.len) != (0, 0);
        wrong.then_some(error::EINVAL)
    }

    fn trim(&self, request: &Request) -> Option<u32> {
        if self.read_only {
            return Some(error::EPERM);
        }
        let known = self.info.trim && !has_other(request, cmd_flag::FUA);
        (!known || self.outside(request)).then_some(error::EINVAL)
    }

    fn write_zeroes(&self, request: &Request) -> Option<u32> {
        let flags = cmd_flag::FUA | cmd_flag::NO_HOLE | cmd_flag::FAST_ZERO;
        let slow = || !self.in_blocks(request) && request.flags & cmd_flag::FAST_ZERO != 0;
        match () {
            () if self.read_only => Some(error::EPERM),
            () if !self.info.zeroes || has_other(request, flags) => Some(error::EINVAL),
            () if self.outside(request) => Some(error::ENOSPC),
            () => slow().then_some(error::ENOTSUP),
        }
    }

    fn cache(&self, request: &Request) -> Option<u32> {
        let wrong = has_other(request, cmd_flag::FUA) || self.outside(request);
        wrong.then_some(error::EINVAL)
    }

    fn block_status(&self, request: &Request) -> Option<u32> {
        let known = self.allocation && !has_other(request, cmd_flag::REQ_ONE | cmd_flag::FUA);
        let wrong = !known || request.len == 0 || self.outside(request);
        wrong.then_some(error::EINVAL)
    }

    fn outside(&self, request: &Request) -> bool {
        let end = request.at.checked_add(u64::from(request.len));
        end.is_none_or(|end| end > self.info.size)
    }

    fn in_blocks(&self, request: &Request) -> bool {
        let block = u64::from(self.info.block);
        request.at.is_multiple_of(block) && u64::from(request.len).is_multiple_of(block)
    }
}

fn has_other(request: &Request, known: u16) -> bool {
    request.flags & !known != 0
}

/// What becomes of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Do it.
    Serve,
    /// Answer so. The payload of a WRITE comes nevertheless and is thrown away.
    Refuse(u32),
    /// DISC.
    End,
    /// Its payload is so long that nobody reads it: hang up.
    Broken,
}

/// How the volume is to do it.
#[must_use]
pub fn flags_of(request: &Request) -> Flags {
    let writes = matches!(request.command, cmd::WRITE | cmd::TRIM | cmd::WRITE_ZEROES);
    let mut flags = Flags::NONE;
    if writes && request.flags & cmd_flag::FUA != 0 {
        flags = flags.and(Flags::FUA);
    }
    if request.command == cmd::WRITE_ZEROES {
        if request.flags & cmd_flag::NO_HOLE != 0 {
            flags = flags.and(Flags::NO_HOLE);
        }
        if request.flags & cmd_flag::FAST_ZERO != 0 {
            flags = flags.and(Flags::FAST);
        }
    }
    flags
}

/// The next piece of something that changes bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Piece {
    /// Whole blocks.
    Whole {
        /// First byte.
        at: u64,
        /// Bytes.
        len: u32,
    },
    /// A part of one block: it must be read, changed and written.
    Part {
        /// First byte of the block.
        block: u64,
        /// Where the part begins in it.
        from: u32,
        /// Its bytes.
        len: u32,
    },
}

impl Piece {
    /// The next piece of `at..end`, which is not empty; whole blocks up to `most`, which is a multiple of `block`.
    #[must_use]
    pub fn next(at: u64, end: u64, block: u32, most: u32) -> Piece {
        let size = u64::from(block);
        let start = at - at % size;
        if at != start || end - at < size {
            let len = end.min(start + size) - at;
            return Piece::Part {
                block: start,
                from: low(at - start),
                len: low(len),
            };
        }
        let len = (end - at).min(u64::from(most));
        Piece::Whole {
            at,
            len: low(len - len % size),
        }
    }

    /// Bytes of the request that it covers.
    #[must_use]
    pub fn len(&self) -> u32 {
        match *self {
            Piece::Whole { len, .. } | Piece::Part { len, .. } => len,
        }
    }

    /// Never.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Whole blocks that are read for a part of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// First byte.
    pub at: u64,
    /// Bytes read.
    pub len: u32,
    /// Bytes before those that are wanted.
    pub skip: u32,
    /// Bytes that are wanted.
    pub take: u32,
}

impl Span {
    /// The next one of `at..end`, of at most `most` bytes, which is a multiple of `block`.
    #[must_use]
    pub fn next(at: u64, end: u64, block: u32, most: u32) -> Span {
        let size = u64::from(block);
        let start = at - at % size;
        let stop = end.min(start + u64::from(most));
        Span {
            at: start,
            len: low(stop.next_multiple_of(size) - start),
            skip: low(at - start),
            take: low(stop - at),
        }
    }
}

/// The whole blocks inside of `at..end`: perhaps none.
#[must_use]
pub fn inner_blocks(at: u64, end: u64, block: u32) -> (u64, u64) {
    let block = u64::from(block);
    let from = at.next_multiple_of(block);
    (from, (end - end % block).max(from))
}

/// The callers' numbers are bounded by a `u32`.
fn low(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
