//! What comes in: headers are judged, payload goes to leases, pieces to the volume.

use super::{
    Conn, EXTENTS_LEN, INBOX, Input, Kind, LARGE, MAX_GATHERED, MAX_REPLIES, MAX_UNSENT, Pending,
    Target, Then, Wants,
};
use crate::nbd::outbox::Body;
use crate::nbd::request::{self, Piece, Span, Terms, Verdict};
use crate::nbd::stats::add;
use crate::nbd::wire::{self, REQUEST_LEN, Request, cmd};
use memlane_block::volume::{Flags, Io, Lease, Op};
use memlane_core::access::SharedBytes;
use std::io;

impl Target {
    fn len(&self) -> usize {
        match self {
            Target::Lease { piece, .. } | Target::Bytes { piece, .. } => piece.len() as usize,
            Target::InPlace { len, .. } => *len,
        }
    }

    fn missing(&self) -> usize {
        let there = match self {
            Target::Lease { filled, .. } | Target::InPlace { filled, .. } => *filled,
            Target::Bytes { bytes, .. } => bytes.len(),
        };
        self.len().saturating_sub(there)
    }
}

impl Conn<'_> {
    /// Takes in what the inbox has, as far as it goes.
    pub(super) fn take_in(&mut self) -> Wants {
        loop {
            let wants = match self.input {
                Input::Header => self.header(),
                Input::Issue { .. } => self.issue(),
                Input::Payload { .. } => self.payload(),
                Input::Swallow { .. } => self.swallow(),
                Input::Closed => Some(Wants::Nothing),
            };
            if let Some(wants) = wants {
                return wants;
            }
        }
    }

    fn header(&mut self) -> Option<Wants> {
        let full = self.pending.len() >= self.around.max_requests
            || self.outbox.len() >= MAX_REPLIES
            || self.gathered + self.outbox.heap() > MAX_GATHERED;
        if full {
            return Some(Wants::Room);
        }
        let bytes = &self.inbox[self.begin..self.end];
        let Some(bytes) = bytes.first_chunk::<REQUEST_LEN>() else {
            return Some(Wants::Bytes);
        };
        if self.turn == 0 {
            return Some(Wants::Turn);
        }
        let request = Request::decode(bytes);
        (self.begin, self.turn) = (self.begin + REQUEST_LEN, self.turn - 1);
        match request {
            Some(request) => self.begin(&request),
            None => {
                self.close();
                self.die();
            }
        }
        None
    }

    fn begin(&mut self, request: &Request) {
        let mut verdict = self.terms.judge(request);
        if matches!(verdict, Verdict::Refuse(_)) && self.grew() {
            verdict = self.terms.judge(request);
        }
        add(&self.around.stats.requests, 1);
        self.large = request.command == cmd::WRITE && request.len >= LARGE;
        (self.by_leases, self.has_less_than_a_block) = (false, false);
        match verdict {
            Verdict::End => self.close(),
            Verdict::Broken => {
                self.close();
                self.die();
            }
            Verdict::Refuse(error) if request.command == cmd::WRITE => {
                self.input = Input::Swallow {
                    left: request.len as usize,
                    then: Then::Refuse {
                        error,
                        cookie: request.cookie,
                    },
                };
            }
            Verdict::Refuse(error) => self.answer(request, error),
            Verdict::Serve => self.serve(request),
        }
    }

    /// The volume may have grown since we looked.
    fn grew(&mut self) -> bool {
        let Some(info) = Terms::whole_blocks(self.around.volume.info()) else {
            return false;
        };
        let grew = info.size != self.terms.info.size;
        self.terms.info.size = info.size;
        grew
    }

    /// Begins what is all right.
    fn serve(&mut self, request: &Request) {
        let nothing = request.len == 0 && request.command != cmd::FLUSH;
        if nothing || request.command == cmd::CACHE {
            return self.answer(request, 0);
        }
        let (mut at, mut end) = (request.at, request.at + u64::from(request.len));
        match request.command {
            cmd::TRIM => (at, end) = request::inner_blocks(at, end, self.terms.info.block),
            // One piece, of whatever length.
            cmd::FLUSH => (at, end) = (0, 1),
            _ => {}
        }
        if at == end {
            return self.answer(request, 0);
        }
        let in_place = self.read_in_place(request);
        at += u64::from(in_place);
        let in_one_piece = request.command == cmd::READ
            && (!self.terms.structured || request.flags & wire::cmd_flag::DF != 0);
        let span = Span::next(at, end, self.terms.info.block, self.terms.info.max_io);
        let gathered = (in_one_piece && in_place == 0 && span.take < request.len).then(|| {
            self.gathered += request.len as usize;
            vec![0; request.len as usize]
        });
        let pending = self.pending.insert(Pending {
            request: *request,
            open: 0,
            more: true,
            error: 0,
            gathered,
            in_place,
            told: false,
        });
        self.input = match request.command {
            cmd::WRITE => Input::Payload {
                pending,
                at,
                end,
                into: None,
            },
            _ => Input::Issue { pending, at, end },
        };
    }

    /// Gives out the pieces of a request without payload.
    fn issue(&mut self) -> Option<Wants> {
        let Input::Issue { pending, at, end } = self.input else {
            return None;
        };
        if self.tasks.len() >= 4 * self.around.max_requests {
            return Some(Wants::Room);
        }
        let Some(waiting) = self.pending.get_mut(pending) else {
            self.input = Input::Header;
            return None;
        };
        let request = waiting.request;
        if request.command == cmd::READ && self.outbox.bytes() >= MAX_UNSENT {
            return Some(Wants::Room);
        }
        if self.turn_bytes == 0 {
            return Some(Wants::Turn);
        }
        let issued = match request.command {
            // The rest of what has failed already is not tried.
            _ if waiting.error != 0 => Some(end),
            cmd::READ => self.issue_read(pending, at, end),
            cmd::FLUSH => self.issue_bare(pending, Io::bare(0, Op::Flush, 0, 0), end),
            cmd::BLOCK_STATUS => self.issue_extents(pending, at, end),
            _ => self.issue_change(pending, &request, at, end),
        };
        match issued {
            None => Some(Wants::Room),
            Some(at) if at < end => {
                self.input = Input::Issue { pending, at, end };
                None
            }
            Some(_) => {
                self.all_given_out(pending);
                None
            }
        }
    }

    fn all_given_out(&mut self, pending: u32) {
        self.input = Input::Header;
        if let Some(waiting) = self.pending.get_mut(pending) {
            waiting.more = false;
        }
        self.finish_if_done(pending);
    }

    /// `Some(Err)`: the request cannot be served, and gets an error. `None`: there is no memory at the moment.
    fn lease(&mut self, pending: u32, len: u32) -> Option<Result<Lease, ()>> {
        match self.queue.lease(len) {
            Ok(lease) => lease.map(Ok),
            Err(errno) => {
                self.fail(pending, wire::error_of(errno.0));
                Some(Err(()))
            }
        }
    }

    fn issue_read(&mut self, pending: u32, at: u64, end: u64) -> Option<u64> {
        let span = Span::next(at, end, self.terms.info.block, self.terms.info.max_io);
        let Ok(lease) = self.lease(pending, span.len)? else {
            return Some(end);
        };
        let io = Io::data(0, Op::Read, span.at, span.len, lease);
        self.submit(pending, Kind::Read(span), io, None);
        let in_place = self.pending.get_mut(pending).map_or(0, |p| p.in_place);
        let bytes = (span.len + in_place) as usize;
        self.turn_bytes = self.turn_bytes.saturating_sub(bytes);
        Some(at + u64::from(span.take))
    }

    fn issue_extents(&mut self, pending: u32, at: u64, end: u64) -> Option<u64> {
        if !self.terms.info.extents {
            // "A MAY always safely report a status of 0".
            if let Some(waiting) = self.pending.remove(pending) {
                let request = waiting.request;
                self.outbox.status(request.cookie, &[(request.len, 0)]);
            }
            self.input = Input::Header;
            return Some(end);
        }
        let span = Span::next(at, end, self.terms.info.block, 1 << 30);
        let Ok(lease) = self.lease(pending, EXTENTS_LEN.min(self.terms.info.max_io))? else {
            return Some(end);
        };
        let io = Io::data(0, Op::Extents, span.at, span.len, lease);
        self.submit(pending, Kind::Extents, io, None);
        Some(end)
    }

    fn issue_bare(&mut self, pending: u32, io: Io, next: u64) -> Option<u64> {
        self.submit(pending, Kind::Plain, io, None);
        Some(next)
    }

    /// TRIM and WRITE_ZEROES.
    fn issue_change(&mut self, pending: u32, request: &Request, at: u64, end: u64) -> Option<u64> {
        let info = &self.terms.info;
        let piece = Piece::next(at, end, info.block, info.max_trim);
        let flags = request::flags_of(request);
        let next = at + u64::from(piece.len());
        match piece {
            Piece::Whole { at, len } => {
                let op = match request.command {
                    cmd::TRIM => Op::Trim,
                    _ => Op::WriteZeroes,
                };
                self.change(pending, Kind::Plain, Io::bare(0, op, at, len).with(flags));
            }
            Piece::Part { block, from, len } => {
                let Ok(lease) = self.lease(pending, self.terms.info.block)? else {
                    return Some(end);
                };
                let zeroes = vec![0; len as usize];
                // The block is written, so there is no hole and nothing that could be refused for being slow.
                let fua = if flags.has(Flags::FUA) {
                    Flags::FUA
                } else {
                    Flags::NONE
                };
                self.patch(pending, lease, block, from, zeroes, fua);
            }
        }
        Some(next)
    }

    /// Receives and gives out a WRITE.
    fn payload(&mut self) -> Option<Wants> {
        let input = std::mem::replace(&mut self.input, Input::Header);
        let Input::Payload {
            pending,
            at,
            end,
            into,
        } = input
        else {
            self.input = input;
            return None;
        };
        let into = match into.map_or_else(|| self.target(pending, at, end), |into| Some(Ok(into))) {
            Some(Ok(into)) => into,
            Some(Err(())) => {
                // Said by `target`; the rest comes nevertheless.
                let left = usize::try_from(end - at).unwrap_or(usize::MAX);
                self.input = Input::Swallow {
                    left,
                    then: Then::Finish(pending),
                };
                return None;
            }
            None => {
                self.input = Input::Payload {
                    pending,
                    at,
                    end,
                    into: None,
                };
                return Some(Wants::Room);
            }
        };
        let (into, whole) = self.fill(into);
        if !whole {
            self.input = Input::Payload {
                pending,
                at,
                end,
                into: Some(into),
            };
            return Some(Wants::Bytes);
        }
        let next = at + into.len() as u64;
        self.write(pending, into);
        if next < end {
            self.input = Input::Payload {
                pending,
                at: next,
                end,
                into: None,
            };
        } else {
            self.all_given_out(pending);
        }
        None
    }

    fn target(&mut self, pending: u32, at: u64, end: u64) -> Option<Result<Target, ()>> {
        let begun = std::mem::take(&mut self.has_less_than_a_block);
        let here = (self.end - self.begin).max(begun.into());
        let end_of_here = at + here.next_multiple_of(self.terms.info.block as usize) as u64;
        let end = match self.write_in_place(end_of_here, end) {
            Some(len) if here == 0 => return Some(Ok(Target::InPlace { len, filled: 0 })),
            // What is here already goes by a lease.
            Some(_) => end_of_here,
            None => end,
        };
        let info = &self.terms.info;
        let piece = Piece::next(at, end, info.block, info.max_io);
        let len = match piece {
            Piece::Whole { len, .. } => len,
            Piece::Part { .. } => info.block,
        };
        let Ok(lease) = self.lease(pending, len)? else {
            return Some(Err(()));
        };
        Some(Ok(match piece {
            Piece::Whole { .. } => Target::Lease {
                lease,
                piece,
                filled: 0,
            },
            Piece::Part { len, .. } => Target::Bytes {
                lease,
                piece,
                bytes: Vec::with_capacity(len as usize),
            },
        }))
    }

    /// Moves bytes out of the inbox; is it all there?
    fn fill(&mut self, mut into: Target) -> (Target, bool) {
        let there = self.end - self.begin;
        let missing = into.missing();
        let n = missing.min(there);
        let from = &self.inbox[self.begin..self.begin + n];
        match &mut into {
            Target::Lease { lease, filled, .. } => {
                lease.fill(*filled, from);
                *filled += n;
            }
            Target::Bytes { bytes, .. } => bytes.extend(from),
            // It is begun when nothing is there, and is received by calls that read nothing ahead.
            Target::InPlace { .. } => {}
        }
        self.begin += n;
        (into, n == missing)
    }

    fn write(&mut self, pending: u32, target: Target) {
        let Some(waiting) = self.pending.get_mut(pending) else {
            return;
        };
        let flags = request::flags_of(&waiting.request);
        match target {
            Target::Lease { lease, piece, .. } => {
                if let Piece::Whole { at, len } = piece {
                    let io = Io::data(0, Op::Write, at, len, lease).with(flags);
                    self.change(pending, Kind::Plain, io);
                }
            }
            Target::Bytes {
                lease,
                piece,
                bytes,
            } => {
                if let Piece::Part { block, from, .. } = piece {
                    self.patch(pending, lease, block, from, bytes, flags);
                }
            }
            Target::InPlace { .. } => {}
        }
    }

    fn swallow(&mut self) -> Option<Wants> {
        let Input::Swallow { left, then } = &mut self.input else {
            return None;
        };
        let n = (*left).min(self.end - self.begin);
        (*left, self.begin) = (*left - n, self.begin + n);
        if *left > 0 {
            return Some(Wants::Bytes);
        }
        let then = *then;
        self.input = Input::Header;
        match then {
            Then::Finish(pending) => self.all_given_out(pending),
            Then::Refuse { error, cookie } => {
                self.outbox.simple(error, cookie, Body::Empty);
                add(&self.around.stats.errors, 1);
            }
        }
        None
    }

    /// Reads from the socket what the input waits for; if asked to, waits a while for it.
    pub(super) fn receive(&mut self, wait: bool) -> bool {
        if self.begin == self.end {
            (self.begin, self.end) = (0, 0);
        } else if self.begin > 0 {
            self.inbox.copy_within(self.begin..self.end, 0);
            (self.begin, self.end) = (0, self.end - self.begin);
        }
        if self.fills_in_place() {
            return self.receive_in_place();
        }
        let (payload, ahead) = self.where_to();
        let room = (self.inbox.len() - self.end).min(ahead);
        let buffer = &mut self.inbox[self.end..self.end + room];
        match self.stream.recv(payload, buffer, wait) {
            Ok(came) => {
                self.end += came.buffer;
                if let Input::Payload {
                    into: Some(Target::Lease { filled, .. }),
                    ..
                } = &mut self.input
                {
                    *filled += came.payload;
                }
                true
            }
            Err(error) => self.receive_failed(&error),
        }
    }

    /// Does this error change anything?
    pub(super) fn receive_failed(&mut self, error: &io::Error) -> bool {
        if error.kind() == io::ErrorKind::WouldBlock {
            return false;
        }
        self.close();
        if error.kind() != io::ErrorKind::UnexpectedEof {
            self.die();
        }
        true
    }

    /// The rest of a large payload goes to its lease, and only a header is read ahead: what follows may be payload
    /// again. Everything else comes into the inbox, as much as there is.
    fn where_to(&self) -> (Option<SharedBytes>, usize) {
        if !self.large || !self.stream.is_plain() {
            return (None, INBOX);
        }
        match &self.input {
            Input::Payload {
                into:
                    Some(Target::Lease {
                        lease,
                        piece,
                        filled,
                    }),
                at,
                end,
                ..
            } => {
                let bytes = lease.bytes();
                let rest = bytes.part(*filled, bytes.len() - filled);
                let last = at + u64::from(piece.len()) == *end;
                let ahead = if last { REQUEST_LEN } else { 0 };
                (rest.filter(|rest| !rest.is_empty()), ahead)
            }
            Input::Payload {
                into: Some(part), ..
            } => (None, part.missing()),
            Input::Swallow { .. } => (None, INBOX),
            _ => (None, REQUEST_LEN),
        }
    }
}
