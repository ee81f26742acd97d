//! Replies on their way out: headers of our own, and data where it lies.

use super::stream::{MAX_PARTS, Stream};
use super::wire::{self, CHUNK_LEN, SIMPLE_REPLY_LEN};
use memlane_block::volume::{Lease, Op, Queue};
use memlane_core::access::SharedBytes;
use std::collections::VecDeque;
use std::io;
use std::ptr::NonNull;

/// A chunk's header and an offset.
const MAX_HEADER: usize = CHUNK_LEN + 8;

/// Data of a reply.
pub(super) enum Body {
    /// None.
    Empty,
    /// In a lease.
    Lease(Leased),
    /// `len` bytes of the volume from `at` on, sent from where they are, and the rest in a lease.
    InPlace { at: u64, len: u32, rest: Leased },
    /// Our own.
    Bytes(Vec<u8>),
}

/// `len` bytes from `at` on of a lease, which goes back when they are sent.
pub(super) struct Leased {
    pub(super) lease: Lease,
    pub(super) at: u32,
    pub(super) len: u32,
}

impl Leased {
    fn bytes(&self) -> Option<SharedBytes> {
        self.lease.bytes().part(self.at as usize, self.len as usize)
    }
}

impl Body {
    fn heap(&self) -> usize {
        match self {
            Body::Empty | Body::Lease(_) | Body::InPlace { .. } => 0,
            Body::Bytes(bytes) => bytes.len(),
        }
    }
}

struct Reply {
    header: [u8; MAX_HEADER],
    header_len: usize,
    body: Body,
}

/// Bytes of the volume that are to be sent next: the first, and how many.
pub(super) type Place = (u64, u32);

/// Bytes of the volume that could not be sent from where they are, and were read by a request.
struct Fetched {
    /// The first of them, in the reply's data.
    from: usize,
    leased: Leased,
}

impl Reply {
    fn len(&self) -> usize {
        self.header_len
            + match &self.body {
                Body::Empty => 0,
                Body::Lease(leased) => leased.len as usize,
                Body::InPlace { len, rest, .. } => (len + rest.len) as usize,
                Body::Bytes(bytes) => bytes.len(),
            }
    }

    /// Appends what is left of the reply after its first `sent` bytes, up to the bytes that are sent from the volume itself. Returns
    /// where those are.
    fn parts(
        &self,
        sent: usize,
        fetched: Option<&Fetched>,
        into: &mut Vec<SharedBytes>,
    ) -> Option<Place> {
        let header = private(&self.header[..self.header_len]);
        into.extend(rest(header, sent));
        let sent = sent.saturating_sub(self.header_len);
        let (bytes, sent) = match &self.body {
            Body::Empty => return None,
            Body::Lease(leased) => (leased.bytes(), sent),
            Body::Bytes(bytes) => (Some(private(bytes)), sent),
            Body::InPlace { at, len, rest } => {
                let place = in_place(*at, *len, sent, fetched, into);
                if place.is_some() {
                    return place;
                }
                (rest.bytes(), sent.saturating_sub(*len as usize))
            }
        };
        into.extend(bytes.and_then(|bytes| rest(bytes, sent)));
        None
    }
}

/// Which bytes of the volume are left to be sent after the first `sent`. Those that were fetched are appended instead.
fn in_place(
    at: u64,
    len: u32,
    sent: usize,
    fetched: Option<&Fetched>,
    into: &mut Vec<SharedBytes>,
) -> Option<Place> {
    let mut sent = sent;
    if let Some(Fetched { from, leased }) = fetched
        && let Some(done) = sent.checked_sub(*from)
        && done < leased.len as usize
    {
        into.extend(leased.bytes().and_then(|bytes| rest(bytes, done)));
        sent = from + leased.len as usize;
    }
    let sent = u32::try_from(sent).ok()?;
    let left = len.checked_sub(sent).filter(|left| *left > 0)?;
    Some((at + u64::from(sent), left))
}

fn rest(bytes: SharedBytes, from: usize) -> Option<SharedBytes> {
    let left = bytes.len().checked_sub(from).filter(|left| *left > 0)?;
    bytes.part(from, left)
}

/// A window on our own bytes, for one call.
fn private(bytes: &[u8]) -> SharedBytes {
    // SAFETY: the windows made here live as long as one call of `Outbox::send`, which holds the replies borrowed.
    unsafe { SharedBytes::read_only(NonNull::from(bytes).cast(), bytes.len()) }
}

/// Replies that wait for their turn, in order.
#[derive(Default)]
pub(super) struct Outbox {
    replies: VecDeque<Reply>,
    /// The bytes of the first reply that are sent.
    sent: usize,
    /// Bytes of replies that are on the heap.
    heap: usize,
    /// Bytes of all replies.
    bytes: usize,
    parts: Vec<SharedBytes>,
    /// Bytes of the first reply that were read by a request after all.
    fetched: Option<Fetched>,
    /// What keeps everything from being sent.
    misses: Option<Place>,
}

impl Outbox {
    pub(super) fn is_empty(&self) -> bool {
        self.replies.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.replies.len()
    }

    /// Bytes of memory that the replies have for themselves.
    pub(super) fn heap(&self) -> usize {
        self.heap
    }

    /// Bytes that wait to be sent.
    pub(super) fn bytes(&self) -> usize {
        self.bytes - self.sent
    }

    /// Nobody will read them.
    pub(super) fn clear(&mut self) {
        self.replies.clear();
        (self.sent, self.heap, self.bytes) = (0, 0, 0);
        (self.fetched, self.misses) = (None, None);
    }

    /// A simple reply.
    pub(super) fn simple(&mut self, error: u32, cookie: u64, body: Body) {
        let mut header = [0; MAX_HEADER];
        header[..SIMPLE_REPLY_LEN].copy_from_slice(&wire::simple_reply(error, cookie));
        self.add(header, SIMPLE_REPLY_LEN, body);
    }

    /// A chunk of data.
    pub(super) fn data(&mut self, last: bool, cookie: u64, at: u64, len: u32, body: Body) {
        let kind = wire::chunk::OFFSET_DATA;
        let mut header = [0; MAX_HEADER];
        header[..CHUNK_LEN].copy_from_slice(&wire::chunk_header(done(last), kind, cookie, 8 + len));
        header[CHUNK_LEN..].copy_from_slice(&at.to_be_bytes());
        self.add(header, MAX_HEADER, body);
    }

    /// The last chunk: without data, or an error.
    pub(super) fn end(&mut self, error: u32, cookie: u64) {
        let (kind, len) = match error {
            0 => (wire::chunk::NONE, 0),
            _ => (wire::chunk::ERROR, 6),
        };
        let mut header = [0; MAX_HEADER];
        header[..CHUNK_LEN].copy_from_slice(&wire::chunk_header(done(true), kind, cookie, len));
        header[CHUNK_LEN..CHUNK_LEN + 4].copy_from_slice(&error.to_be_bytes());
        self.add(header, CHUNK_LEN + len as usize, Body::Empty);
    }

    /// Block status: `(length, state)` of each extent.
    pub(super) fn status(&mut self, cookie: u64, extents: &[(u32, u32)]) {
        let mut bytes = wire::BASE_ALLOCATION_ID.to_be_bytes().to_vec();
        for (len, state) in extents {
            bytes.extend(len.to_be_bytes());
            bytes.extend(state.to_be_bytes());
        }
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let kind = wire::chunk::BLOCK_STATUS;
        let mut header = [0; MAX_HEADER];
        header[..CHUNK_LEN].copy_from_slice(&wire::chunk_header(done(true), kind, cookie, len));
        self.add(header, CHUNK_LEN, Body::Bytes(bytes));
    }

    fn add(&mut self, header: [u8; MAX_HEADER], header_len: usize, body: Body) {
        self.heap += body.heap();
        let reply = Reply {
            header,
            header_len,
            body,
        };
        self.bytes += reply.len();
        self.replies.push_back(reply);
    }

    /// The bytes of the volume without which nothing more can be sent: they are to be [`fetched`](Self::fetched).
    pub(super) fn misses(&self) -> Option<Place> {
        self.misses
    }

    /// Goes on with these bytes, the first of those that it [`misses`](Self::misses).
    pub(super) fn fetched(&mut self, leased: Leased) {
        self.misses = None;
        if let Some(reply) = self.replies.front() {
            let from = self.sent.saturating_sub(reply.header_len);
            self.fetched = Some(Fetched { from, leased });
        }
    }

    /// Sends what the stream takes at once, some of it from where the volume has it; tells how many bytes that were.
    ///
    /// # Errors
    /// The stream's, or the volume's: then some of what was sent is wrong, and the rest must not follow it.
    pub(super) fn send(&mut self, stream: &mut Stream, queue: &mut dyn Queue) -> io::Result<usize> {
        let mut total = 0;
        while self.misses.is_none() && (!self.replies.is_empty() || stream.holds_back()) {
            let sent = match self.gather() {
                None => stream.send(&self.parts),
                Some(place) => self.send_in_place(place, stream, queue),
            };
            match sent {
                Ok(0) => break,
                Ok(n) => {
                    total += n;
                    self.advance(n);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        self.parts.clear();
        Ok(total)
    }

    /// Finds the parts that are to be sent next, and the bytes of the volume behind them, if there are any.
    fn gather(&mut self) -> Option<Place> {
        self.parts.clear();
        let (mut skip, mut fetched) = (self.sent, self.fetched.as_ref());
        for reply in &self.replies {
            if self.parts.len() + 3 > MAX_PARTS {
                return None;
            }
            let place = reply.parts(skip, fetched, &mut self.parts);
            if place.is_some() {
                return place;
            }
            (skip, fetched) = (0, None);
        }
        None
    }

    /// Sends the parts, and with them bytes of the volume from where they are. If they cannot be had there, they are missed.
    fn send_in_place(
        &mut self,
        (at, len): Place,
        stream: &mut Stream,
        queue: &mut dyn Queue,
    ) -> io::Result<usize> {
        let (whole, parts) = (self.parts.len(), &mut self.parts);
        let before: usize = parts.iter().map(SharedBytes::len).sum();
        let mut sent = Ok(0);
        let used = queue.in_place(Op::Read, (at, len), &mut |bytes| {
            parts.push(bytes);
            sent = stream.send(parts);
            let all = sent.as_ref().copied().unwrap_or(0);
            all.saturating_sub(before)
        });
        parts.truncate(whole);
        let is_told = !matches!(sent, Ok(0)) && !is_out_of_reach(&sent);
        match used {
            Err(errno) => Err(io::Error::from_raw_os_error(errno.0)),
            Ok(_) if is_told => sent,
            Ok(_) if before > 0 => stream.send(parts),
            Ok(_) => {
                self.misses = Some((at, len));
                Ok(0)
            }
        }
    }

    fn advance(&mut self, n: usize) {
        self.sent += n;
        while let Some(reply) = self.replies.front() {
            if self.sent < reply.len() {
                return;
            }
            self.sent -= reply.len();
            self.bytes -= reply.len();
            self.heap -= reply.body.heap();
            self.replies.pop_front();
            self.fetched = None;
        }
    }
}

/// Is a page of the volume gone, so that the kernel does not get at it?
fn is_out_of_reach(sent: &io::Result<usize>) -> bool {
    let error = sent.as_ref().err();
    error.is_some_and(|error| error.raw_os_error() == Some(libc::EFAULT))
}

fn done(last: bool) -> u16 {
    if last { wire::REPLY_FLAG_DONE } else { 0 }
}
