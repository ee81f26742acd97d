//! Replies on their way out: headers of our own, and data where it lies.

use super::stream::{MAX_PARTS, Stream};
use super::wire::{self, CHUNK_LEN, SIMPLE_REPLY_LEN};
use memlane_block::volume::Lease;
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
    /// `len` bytes from `at` on of a lease, which goes back when they are sent.
    Lease { lease: Lease, at: u32, len: u32 },
    /// Our own.
    Bytes(Vec<u8>),
}

impl Body {
    fn heap(&self) -> usize {
        match self {
            Body::Empty | Body::Lease { .. } => 0,
            Body::Bytes(bytes) => bytes.len(),
        }
    }
}

struct Reply {
    header: [u8; MAX_HEADER],
    header_len: usize,
    body: Body,
}

impl Reply {
    fn len(&self) -> usize {
        self.header_len
            + match &self.body {
                Body::Empty => 0,
                Body::Lease { len, .. } => *len as usize,
                Body::Bytes(bytes) => bytes.len(),
            }
    }

    /// Appends what is left of it after its first `sent` bytes.
    fn parts(&self, sent: usize, into: &mut Vec<SharedBytes>) {
        let header = private(&self.header[..self.header_len]);
        let body = match &self.body {
            Body::Empty => None,
            Body::Lease { lease, at, len } => lease.bytes().part(*at as usize, *len as usize),
            Body::Bytes(bytes) => Some(private(bytes)),
        };
        into.extend(rest(header, sent));
        into.extend(body.and_then(|body| rest(body, sent.saturating_sub(self.header_len))));
    }
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

    /// Sends what the stream takes at once; tells how many bytes that were.
    pub(super) fn send(&mut self, stream: &mut Stream) -> io::Result<usize> {
        let mut total = 0;
        while !self.replies.is_empty() || stream.holds_back() {
            self.parts.clear();
            let mut skip = self.sent;
            for reply in &self.replies {
                if self.parts.len() + 2 > MAX_PARTS {
                    break;
                }
                reply.parts(skip, &mut self.parts);
                skip = 0;
            }
            match stream.send(&self.parts) {
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
        }
    }
}

fn done(last: bool) -> u16 {
    if last { wire::REPLY_FLAG_DONE } else { 0 }
}
