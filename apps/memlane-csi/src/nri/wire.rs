//! How calls lie on the runtime's socket: messages of ttrpc, on one of several connections that share the socket.
//!
//! ```text
//! piece     connection u32 · length u32 · that many bytes of the connection's stream       (big-endian)
//! message   length u32 · call u32 · kind u8 · flags u8 · that many bytes                   (big-endian)
//! ```
//!
//! A message may come in several pieces, and a piece may have several messages in it.
//! Sources: `pkg/net/multiplex` of github.com/containerd/nri, `channel.go` of github.com/containerd/ttrpc.

use std::fmt;

/// Longest message of ttrpc, in bytes, without its header.
const LONGEST: usize = 4 << 20;
const PIECE_HEADER: usize = 8;
const MESSAGE_HEADER: usize = 10;
/// Longest piece that is sent, in bytes: the runtime reads into a buffer of this size, and takes no piece that is longer.
const PIECE: usize = 4096;

/// The kind of a message that calls.
pub(super) const REQUEST: u8 = 1;
/// The kind of a message that answers.
pub(super) const RESPONSE: u8 = 2;
/// The flag of a call that sends nothing after this message.
pub(super) const ALL_SENT: u8 = 1;

/// A connection of the socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Line {
    /// The runtime calls the plugin.
    ToPlugin = 1,
    /// The plugin calls the runtime.
    ToRuntime = 2,
}

/// A message on a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Frame {
    pub(super) line: Line,
    /// Which call it belongs to.
    pub(super) call: u32,
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) payload: Vec<u8>,
}

/// Bytes that are no frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WireError {
    /// A piece has more bytes than the longest message.
    Piece(usize),
    /// A message has more bytes than the longest one.
    Message(usize),
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, length) = match self {
            WireError::Piece(length) => ("piece", length),
            WireError::Message(length) => ("message", length),
        };
        write!(f, "a {what} of {length} bytes; {LONGEST} are the limit")
    }
}

impl Frame {
    /// Its bytes on the socket.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut message = Vec::with_capacity(MESSAGE_HEADER + self.payload.len());
        message.extend(number(self.payload.len()));
        message.extend(self.call.to_be_bytes());
        message.extend([self.kind, self.flags]);
        message.extend(&self.payload);
        let mut bytes = Vec::with_capacity(message.len() + PIECE_HEADER);
        for piece in message.chunks(PIECE) {
            bytes.extend((self.line as u32).to_be_bytes());
            bytes.extend(number(piece.len()));
            bytes.extend(piece);
        }
        bytes
    }
}

fn number(length: usize) -> [u8; 4] {
    u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes()
}

/// Makes frames of the bytes that come.
#[derive(Default, Debug)]
pub(super) struct Frames {
    pieces: Vec<u8>,
    to_plugin: Vec<u8>,
    to_runtime: Vec<u8>,
}

impl Frames {
    /// The frames that are complete with these bytes.
    ///
    /// # Errors
    /// After one, nothing on the socket can be understood any more.
    pub(super) fn read(&mut self, bytes: &[u8]) -> Result<Vec<Frame>, WireError> {
        self.pieces.extend(bytes);
        self.take_pieces()?;
        let mut frames = messages(Line::ToPlugin, &mut self.to_plugin)?;
        frames.extend(messages(Line::ToRuntime, &mut self.to_runtime)?);
        Ok(frames)
    }

    fn take_pieces(&mut self) -> Result<(), WireError> {
        let mut rest = self.pieces.as_slice();
        while let Some((line, after)) = word(rest)
            && let Some((length, after)) = word(after)
        {
            let length = length as usize;
            if length > MESSAGE_HEADER + LONGEST {
                return Err(WireError::Piece(length));
            }
            let Some((piece, after)) = after.split_at_checked(length) else {
                break;
            };
            match line {
                1 => self.to_plugin.extend(piece),
                2 => self.to_runtime.extend(piece),
                // Nobody has opened it.
                _ => {}
            }
            rest = after;
        }
        let taken = self.pieces.len() - rest.len();
        self.pieces.drain(..taken);
        Ok(())
    }
}

/// Takes the whole messages from the beginning of a connection's bytes.
fn messages(line: Line, bytes: &mut Vec<u8>) -> Result<Vec<Frame>, WireError> {
    let mut frames = Vec::new();
    let mut rest = bytes.as_slice();
    while let Some((length, after)) = word(rest)
        && let Some((call, after)) = word(after)
        && let Some((&[kind, flags], after)) = after.split_first_chunk()
    {
        let length = length as usize;
        if length > LONGEST {
            return Err(WireError::Message(length));
        }
        let Some((payload, after)) = after.split_at_checked(length) else {
            break;
        };
        frames.push(Frame {
            line,
            call,
            kind,
            flags,
            payload: payload.to_vec(),
        });
        rest = after;
    }
    let taken = bytes.len() - rest.len();
    bytes.drain(..taken);
    Ok(frames)
}

fn word(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (word, rest) = bytes.split_first_chunk()?;
    Some((u32::from_be_bytes(*word), rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(line: Line, call: u32, length: usize) -> Frame {
        Frame {
            line,
            call,
            kind: REQUEST,
            flags: ALL_SENT,
            payload: vec![7; length],
        }
    }

    #[test]
    fn frames_come_out_as_they_went_in_however_the_bytes_are_cut() {
        let sent = [
            frame(Line::ToPlugin, 1, 0),
            frame(Line::ToPlugin, 3, 10_000),
            frame(Line::ToPlugin, 5, 4096 - MESSAGE_HEADER),
        ];
        let bytes: Vec<u8> = sent.iter().flat_map(Frame::bytes).collect();
        for cut in [1, 7, 4096, bytes.len()] {
            let mut frames = Frames::default();
            let read = bytes.chunks(cut).map(|part| frames.read(part));
            let read: Vec<Frame> = read.flat_map(|read| read.expect("frames")).collect();
            assert_eq!(read, sent, "{cut}");
        }
    }

    /// The layout that the runtime reads, byte by byte.
    #[test]
    fn a_short_message_is_one_piece() {
        let bytes = frame(Line::ToRuntime, 1, 2).bytes();
        let expected = [
            0, 0, 0, 2, 0, 0, 0, 12, // the piece
            0, 0, 0, 2, 0, 0, 0, 1, 1, 1, 7, 7, // the message
        ];
        assert_eq!(bytes, expected);
    }

    #[test]
    fn the_runtime_gets_no_piece_that_is_longer_than_its_buffer() {
        let bytes = frame(Line::ToPlugin, 1, 10_000).bytes();
        let mut rest = bytes.as_slice();
        while let Some((_, after)) = word(rest) {
            let (length, after) = word(after).expect("a length");
            assert!(length as usize <= PIECE);
            rest = &after[length as usize..];
        }
    }

    #[test]
    fn lengths_that_no_message_has_end_the_connection() {
        let mut piece = vec![0, 0, 0, 1];
        piece.extend(u32::MAX.to_be_bytes());
        let error = Frames::default().read(&piece).expect_err("too long");
        assert_eq!(error, WireError::Piece(u32::MAX as usize));
        let mut message = vec![0, 0, 0, 1, 0, 0, 0, 10];
        message.extend([0xff; 10]);
        let error = Frames::default().read(&message).expect_err("too long");
        assert_eq!(error, WireError::Message(u32::MAX as usize));
    }

    #[test]
    fn a_connection_that_nobody_opened_is_not_listened_to() {
        let mut bytes = vec![0, 0, 0, 9, 0, 0, 0, 3, 1, 2, 3];
        bytes.extend(frame(Line::ToPlugin, 1, 1).bytes());
        let frames = Frames::default().read(&bytes).expect("frames");
        assert_eq!(frames, [frame(Line::ToPlugin, 1, 1)]);
    }

    proptest! {
        #[test]
        fn whatever_bytes_come_there_is_an_end(bytes in proptest::collection::vec(any::<u8>(), 0..4096)) {
            let mut frames = Frames::default();
            for part in bytes.chunks(100) {
                if frames.read(part).is_err() {
                    break;
                }
            }
        }
    }
}
