//! Large payloads, received to where the volume has their bytes and sent from there: one copy, which is the kernel's.
//!
//! The volume lends its memory for one system call at a time, and may stop doing so at any moment (it is closed, or its server
//! wants it back). Then the rest goes by leases. So does the end of each payload, always: an ordinary request for it says
//! whether the volume may be read or written, and sets a file's times. A reply's end is read first and sent last, so that a reply is
//! complete only if everything before its end was right.

use super::tasks::leased;
use super::{Conn, Input, Kind, Target, Then};
use crate::nbd::request::Span;
use crate::nbd::wire::{Request, cmd, error_of};
use memlane_block::volume::{Done, Io, Op};

/// Fewer bytes go by a lease: the calls that this needs besides cost more than the copy.
const LEAST: u32 = 64 << 10;
/// The bytes at the end that go by a lease.
const LAST: u32 = 4096;
/// Most bytes that are received by one call: of more, the first are out of the caches before the last have come
/// (docs/decisions/0047).
const MOST: u32 = 256 << 10;
/// The request of a task that has none.
const OF_NO_REQUEST: u32 = u32::MAX;

impl Conn<'_> {
    /// How many of the bytes of `at..end` can be received in place. Their end is the end of a block.
    pub(super) fn write_in_place(&mut self, at: u64, end: u64) -> Option<usize> {
        let block = u64::from(self.terms.info.block);
        let until = end.saturating_sub(LAST.into());
        let until = until - until % block;
        let suits = self.large && !self.by_leases && at.is_multiple_of(block);
        let len = until
            .checked_sub(at)
            .filter(|_| suits && end - at >= LEAST.into())?;
        self.is_in_place(Op::Write, at, len)
            .then(|| usize::try_from(len).ok())?
    }

    /// How many bytes at the beginning of a request can be sent from where they are.
    pub(super) fn read_in_place(&mut self, request: &Request) -> u32 {
        let has_room = self.terms.info.max_io >= 2 * self.terms.info.block + LAST;
        let suits = request.command == cmd::READ && request.len >= self.in_place_from;
        let len = request.len.saturating_sub(LAST);
        match suits && has_room && self.is_in_place(Op::Read, request.at, len.into()) {
            true => len,
            false => 0,
        }
    }

    /// Asks about the first of the bytes; those behind them are asked about when they are moved.
    fn is_in_place(&mut self, op: Op, at: u64, len: u64) -> bool {
        let place = (at, u32::try_from(len).map_or(MOST, |len| len.min(MOST)));
        self.stream.is_plain() && matches!(self.queue.in_place(op, place, &mut |_| 0), Ok(Some(_)))
    }

    /// Is a payload on its way to where the volume has its bytes?
    pub(super) fn fills_in_place(&self) -> bool {
        matches!(
            self.input,
            Input::Payload {
                into: Some(Target::InPlace { .. }),
                ..
            }
        )
    }

    /// Receives what there is of such a payload. Has that changed anything?
    pub(super) fn receive_in_place(&mut self) -> bool {
        let Input::Payload {
            at,
            into: Some(Target::InPlace { len, filled }),
            ..
        } = self.input
        else {
            return false;
        };
        let from = at + filled as u64;
        let whole = match self.stream.waiting() {
            Ok(waiting) => self.whole_blocks(waiting.min(len - filled)),
            Err(error) => return self.receive_failed(&error),
        };
        if whole == 0 {
            self.has_less_than_a_block = true;
            return self.go_on_elsewhere(from);
        }
        let lock = self.around.lock;
        let Some(held) = lock.try_share((from, from + u64::from(whole))) else {
            self.by_leases = true;
            return self.go_on_elsewhere(from);
        };
        let (stream, mut came) = (&mut self.stream, Ok(0));
        let place = (from, whole);
        let used = self.queue.in_place(Op::Write, place, &mut |bytes| {
            came = stream.recv_into(bytes);
            came.as_ref().copied().unwrap_or(0)
        });
        lock.release(held);
        let lost = came.as_ref().copied().unwrap_or(0) as u64;
        match (used, came) {
            (Err(errno), _) => self.give_up(from + lost, errno.0),
            (Ok(Some(n)), Ok(_)) => self.came_in_place(n),
            (_, Err(error)) if error.raw_os_error() != Some(libc::EFAULT) => {
                self.receive_failed(&error)
            }
            _ => {
                self.by_leases = true;
                self.go_on_elsewhere(from)
            }
        }
    }

    fn came_in_place(&mut self, n: usize) -> bool {
        if let Input::Payload {
            into: Some(Target::InPlace { filled, .. }),
            ..
        } = &mut self.input
        {
            *filled += n;
        }
        true
    }

    /// So many bytes, or some of them, in whole blocks: a client that dies amid a payload leaves no block half written.
    fn whole_blocks(&self, bytes: usize) -> u32 {
        let bytes = u32::try_from(bytes).map_or(MOST, |bytes| bytes.min(MOST));
        bytes - bytes % self.terms.info.block
    }

    /// The payload's bytes from `from` on go where [`target`](Self::target) says.
    fn go_on_elsewhere(&mut self, from: u64) -> bool {
        if let Input::Payload { at, into, .. } = &mut self.input {
            (*at, *into) = (from, None);
        }
        true
    }

    /// Bytes of the payload are lost: the request fails when those from `from` on have come, too.
    fn give_up(&mut self, from: u64, errno: i32) -> bool {
        if let Input::Payload { pending, end, .. } = self.input {
            self.fail(pending, error_of(errno));
            let left = usize::try_from(end - from).unwrap_or(usize::MAX);
            let then = Then::Finish(pending);
            self.input = Input::Swallow { left, then };
        }
        true
    }

    /// Reads what the outbox misses by a request, once. Has that begun?
    pub(super) fn fetch(&mut self) -> bool {
        let Some((at, len)) = self.outbox.misses().filter(|_| !self.fetches) else {
            return false;
        };
        let info = &self.terms.info;
        let span = Span::next(at, at + u64::from(len), info.block, info.max_io);
        match self.queue.lease(span.len) {
            Ok(Some(lease)) => {
                let io = Io::data(0, Op::Read, span.at, span.len, lease);
                self.submit(OF_NO_REQUEST, Kind::Fetch(span), io, None);
                self.fetches = true;
            }
            Ok(None) => {}
            Err(_) => self.hang_up(),
        }
        self.fetches || self.dead
    }

    /// What was missed has come, or cannot be had: half of a reply is sent, so all that is left is to hang up.
    pub(super) fn fetched(&mut self, span: Span, done: Done) {
        self.fetches = false;
        match (done.result, done.lease) {
            (Ok(()), Some(lease)) => self.outbox.fetched(leased(lease, span)),
            _ => self.hang_up(),
        }
    }

    fn hang_up(&mut self) {
        self.close();
        self.die();
    }
}
