//! Bytes of a stream into frames, without the stream: a receiver asks where the next bytes go ([`Inflow::room`]), says
//! how many came ([`Inflow::came`]), and takes out what is complete ([`Inflow::next`]).
//!
//! Small frames come many at a time, through a buffer. Data that is longer than what the buffer already has of it goes
//! straight to its place.

use super::frame::{FrameError, HEADER, Header, Step, WriteTarget};
use crate::wire::CONN_LEN;
use memlane_core::access::SharedBytes;
use memlane_sys::iov::Piece;

/// Bytes that are taken at a time, beside those that go straight to their place.
pub const BUFFER: usize = 64 << 10;

/// Who knows what a peer may write. Asked before a byte is taken.
pub trait Granted {
    /// The memory of a write's span, if this peer may write there now.
    fn window(&mut self, place: &WriteTarget) -> Option<SharedBytes>;
}

/// Nothing may be written.
#[derive(Debug)]
pub struct Nothing;

impl Granted for Nothing {
    fn window(&mut self, _: &WriteTarget) -> Option<SharedBytes> {
        None
    }
}

/// What has come.
#[derive(PartialEq, Eq, Debug)]
pub enum Received {
    /// A step of making the connection, with its private data.
    Step(Step, [u8; CONN_LEN]),
    /// A message.
    Send(Vec<u8>, Option<u32>),
    /// An immediate; what was written before it is in place.
    Immediate(u32),
    /// Shared memory: slots of each queue, and where the server counts the chunks from.
    Share(u32, u64),
    /// Memory that machines share: the same, and where in it both lie.
    Place(u32, u64, [u8; CONN_LEN]),
}

/// What follows the header that was read last.
#[derive(Debug)]
enum Body {
    None,
    /// Data on its way to its place.
    Data {
        window: SharedBytes,
        done: usize,
        imm: Option<u32>,
    },
    Message {
        bytes: Vec<u8>,
        len: usize,
        imm: Option<u32>,
    },
}

/// The receiving half of one stream.
#[derive(Debug)]
pub struct Inflow {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    body: Body,
    /// Most bytes of a message.
    most: usize,
    /// Data is to go to its place and nowhere else: no more is read ahead than tells where that is.
    narrow: bool,
    /// Bytes of data that came through the buffer.
    copied: u64,
}

impl Inflow {
    /// One that takes messages of up to `most` bytes.
    #[must_use]
    pub fn new(most: usize) -> Inflow {
        Inflow {
            buffer: vec![0; BUFFER].into_boxed_slice(),
            start: 0,
            end: 0,
            body: Body::None,
            most,
            narrow: false,
            copied: 0,
        }
    }

    /// From now on data goes straight to its place, at the price of more reads of less.
    pub fn narrows(&mut self) {
        self.narrow = true;
    }

    /// Bytes of data that came through the buffer, since this was asked last.
    pub fn take_copied(&mut self) -> u64 {
        std::mem::take(&mut self.copied)
    }

    /// Where the next bytes go, in this order. Never empty after `next` said that there is nothing.
    pub fn room(&mut self) -> [Piece; 2] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.buffer.len() - self.end < self.buffer.len() / 2 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let straight = match &self.body {
            Body::Data { window, done, .. } => Piece {
                base: window.as_ptr().wrapping_add(*done),
                len: window.len() - done,
            },
            _ => Piece::NONE,
        };
        let have = self.end - self.start;
        let ahead = match self.body {
            Body::None | Body::Data { .. } if self.narrow && have < HEADER => HEADER - have,
            _ => BUFFER,
        };
        let spare = &mut self.buffer[self.end..];
        let spare = match spare.len() {
            len if len > ahead => &mut spare[..ahead],
            _ => spare,
        };
        let buffered = Piece {
            base: spare.as_mut_ptr(),
            len: spare.len(),
        };
        [straight, buffered]
    }

    /// Notes that this many bytes came into the last `room`.
    pub fn came(&mut self, mut count: usize) {
        if let Body::Data { window, done, .. } = &mut self.body {
            let straight = count.min(window.len() - *done);
            *done += straight;
            count -= straight;
        }
        self.end += count.min(self.buffer.len() - self.end);
    }

    /// What is in the buffer, and was not taken out.
    #[must_use]
    pub fn waiting(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// The next thing that is complete. `None`: more bytes are needed. After an error, nothing more may be asked.
    pub fn next(&mut self, granted: &mut impl Granted) -> Result<Option<Received>, FrameError> {
        loop {
            match std::mem::replace(&mut self.body, Body::None) {
                Body::None => match self.begin(granted)? {
                    Begun::Needs => return Ok(None),
                    Begun::Whole(received) => return Ok(Some(received)),
                    Begun::Body => {}
                },
                Body::Data {
                    window,
                    mut done,
                    imm,
                } => {
                    done += self.place(&window, done);
                    if done < window.len() {
                        self.body = Body::Data { window, done, imm };
                        return Ok(None);
                    }
                    if let Some(imm) = imm {
                        return Ok(Some(Received::Immediate(imm)));
                    }
                }
                Body::Message {
                    mut bytes,
                    len,
                    imm,
                } => {
                    let take = (len - bytes.len()).min(self.end - self.start);
                    bytes.extend(&self.buffer[self.start..self.start + take]);
                    self.start += take;
                    if bytes.len() < len {
                        self.body = Body::Message { bytes, len, imm };
                        return Ok(None);
                    }
                    return Ok(Some(Received::Send(bytes, imm)));
                }
            }
        }
    }

    /// Moves what the buffer has of some data to its place; how much?
    fn place(&mut self, window: &SharedBytes, done: usize) -> usize {
        let take = (window.len() - done).min(self.end - self.start);
        let from = self.buffer[self.start..].as_ptr();
        // SAFETY: the buffer has at least `take` bytes from `start`.
        unsafe { window.copy_in(done, from, take) };
        self.start += take;
        self.copied += take as u64;
        take
    }

    /// Reads a header, once it and what must be whole with it is there.
    fn begin(&mut self, granted: &mut impl Granted) -> Result<Begun, FrameError> {
        let have = &self.buffer[self.start..self.end];
        let Some(header) = have.first_chunk::<HEADER>() else {
            return Ok(Begun::Needs);
        };
        let behind = &have[HEADER..];
        let (used, begun) = match Header::decode(header)? {
            Header::Step(step) => {
                let Some(private) = behind.first_chunk::<CONN_LEN>() else {
                    return Ok(Begun::Needs);
                };
                let received = Received::Step(step, *private);
                (HEADER + CONN_LEN, Begun::Whole(received))
            }
            Header::Immediate(imm) => (HEADER, Begun::Whole(Received::Immediate(imm))),
            Header::Share { slots, base } => (HEADER, Begun::Whole(Received::Share(slots, base))),
            Header::Place { slots, base } => {
                let Some(places) = behind.first_chunk::<CONN_LEN>() else {
                    return Ok(Begun::Needs);
                };
                let received = Received::Place(slots, base, *places);
                (HEADER + CONN_LEN, Begun::Whole(received))
            }
            Header::Send { len, imm } => {
                if len as usize > self.most {
                    return Err(FrameError::TooLong(len));
                }
                let (bytes, len) = (Vec::new(), len as usize);
                self.body = Body::Message { bytes, len, imm };
                (HEADER, Begun::Body)
            }
            Header::Write { place, imm } => {
                let tail = usize::from(place.tail);
                if behind.len() < tail {
                    return Ok(Begun::Needs);
                }
                // Before anything is taken: may it?
                let span = granted.window(&place).ok_or(FrameError::NotGranted)?;
                let tail_at = place.tail_at as usize;
                // SAFETY: `behind` has `tail` bytes.
                let placed = unsafe { span.copy_in(tail_at, behind.as_ptr(), tail) };
                let data = span.part(0, place.len as usize);
                let window = data.filter(|_| placed || tail == 0);
                let window = window.ok_or(FrameError::NotGranted)?;
                let done = 0;
                self.body = Body::Data { window, done, imm };
                (HEADER + tail, Begun::Body)
            }
        };
        self.start += used;
        Ok(begun)
    }
}

/// The result of reading a header.
enum Begun {
    /// It is not there yet.
    Needs,
    /// Nothing follows it.
    Whole(Received),
    /// Something does.
    Body,
}
