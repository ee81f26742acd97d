//! One connection's encryption: a stream's pieces into records and back, without a thread and without waiting.
//!
//! What comes is read into a buffer, decrypted there, and copied to its place; what goes is copied together into whole
//! records, encrypted, and sent some at a time.

use super::{ClientTls, PROTOCOL, ServerTls, fault, sessions};
use crate::error::{CertificateFault, TlsError};
use crate::io::link_error::LinkError;
use memlane_core::access;
use memlane_sys::Errno;
use memlane_sys::iov::{self, Piece};
use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, EncryptError, UnbufferedStatus, WriteTraffic,
};
use rustls::{CommonState, Error};
use std::fmt;
use std::net::IpAddr;

/// Most bytes in a record (RFC 8446, 5.1).
const PLAIN: usize = 16 << 10;
/// What encryption adds to a record, at most (RFC 8446, 5.2), with its header.
const ADDED: usize = 256 + 5;
/// Received bytes until who is there has proven who he is: more than any chain of certificates that makes sense.
const SMALL: usize = 20 << 10;
/// Received bytes after that: some records.
const LARGE: usize = 4 * (PLAIN + ADDED);
/// Encrypted bytes that wait to be sent, at most, but for one record.
const WAITING: usize = 4 * PLAIN;
/// The first byte of a record (`ContentType`: change_cipher_spec to application_data).
const CONTENT_TYPES: std::ops::RangeInclusive<u8> = 20..=23;

enum Side {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

impl Side {
    fn common(&self) -> &CommonState {
        match self {
            Side::Client(connection) => connection,
            Side::Server(connection) => connection,
        }
    }
}

/// The encryption of one connection.
pub(in crate::io) struct Tls {
    side: Side,
    /// As it came, from `start` to `end`.
    incoming: Vec<u8>,
    start: usize,
    end: usize,
    /// Decrypted, and nobody has taken it yet; from `taken` on.
    held: Vec<u8>,
    taken: usize,
    /// To be sent, from `gone` on.
    outgoing: Vec<u8>,
    gone: usize,
    /// A record before it is encrypted.
    plain: Box<[u8]>,
    /// Both have shown who they are.
    open: bool,
    /// The peer has said that there will be no more.
    ended: bool,
    /// It has failed: rustls must not be asked for anything any more.
    failed: Option<TlsError>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("open", &self.open)
            .finish_non_exhaustive()
    }
}

/// The result of a step.
enum Stepped {
    /// There may be more.
    On,
    /// Bytes of the peer are needed.
    Needs,
    /// This many bytes were taken to be sent.
    Sealed(usize),
}

/// What a step may fill and empty.
struct Sides<'a> {
    room: Option<&'a mut Room>,
    held: &'a mut Vec<u8>,
    outgoing: &'a mut Vec<u8>,
    seal: Option<(&'a [Piece], &'a mut [u8])>,
    ended: &'a mut bool,
}

impl Tls {
    /// At a client: to the server that `tls` believes, at this address.
    pub(in crate::io) fn client(tls: &ClientTls, to: IpAddr) -> Result<Tls, TlsError> {
        let connection = UnbufferedClientConnection::new(tls.config(), tls.name(to));
        let connection = connection.map_err(|error| fault(&error))?;
        Ok(Tls::new(Side::Client(connection)))
    }

    /// At a server.
    pub(in crate::io) fn server(tls: &ServerTls) -> Result<Tls, TlsError> {
        let connection = UnbufferedServerConnection::new(tls.config());
        let connection = connection.map_err(|error| fault(&error))?;
        Ok(Tls::new(Side::Server(connection)))
    }

    fn new(side: Side) -> Tls {
        Tls {
            side,
            incoming: vec![0; SMALL],
            start: 0,
            end: 0,
            held: Vec::new(),
            taken: 0,
            outgoing: Vec::new(),
            gone: 0,
            plain: vec![0; PLAIN].into_boxed_slice(),
            open: false,
            ended: false,
            failed: None,
        }
    }

    /// Have both shown who they are?
    pub(in crate::io) fn is_open(&self) -> bool {
        self.open
    }

    /// Is there something encrypted that was not sent?
    pub(in crate::io) fn holds_back(&self) -> bool {
        self.gone < self.outgoing.len()
    }

    /// The sessions that the peer's certificate names.
    pub(in crate::io) fn sessions(&self) -> Vec<String> {
        let chain = self.side.common().peer_certificates();
        let own = chain.and_then(|chain| chain.first());
        own.map(sessions).unwrap_or_default()
    }

    // ---- receiving ----

    /// Decrypted bytes into the pieces, in order. Fewer than they take: no more has come. Reads from the socket only
    /// if it `may`; what was read before is always taken.
    ///
    /// # Safety
    /// Each piece is writable for its length, and nothing in it is borrowed. There are two at most.
    pub(in crate::io) unsafe fn receive(
        &mut self,
        socket: i32,
        pieces: &[Piece],
        may: bool,
    ) -> Result<usize, LinkError> {
        let mut room = Room::new(pieces);
        let mut may = may;
        loop {
            self.give(&mut room);
            if room.is_full() {
                return Ok(room.filled);
            }
            if let Stepped::On = self.step(Some(&mut room), None)? {
                continue;
            }
            if self.ended {
                return Ok(room.filled);
            }
            if !may {
                break;
            }
            match self.fill(socket) {
                Ok(emptied) => may = !emptied,
                Err(LinkError::Os(Errno::AGAIN)) => break,
                // What came before the end counts; the end comes again.
                Err(_) if room.filled > 0 => break,
                Err(error) => return Err(error),
            }
        }
        match room.filled {
            0 => Err(LinkError::Os(Errno::AGAIN)),
            filled => Ok(filled),
        }
    }

    /// What was decrypted before there was room for it.
    fn give(&mut self, room: &mut Room) {
        self.taken += room.put(&self.held[self.taken..]);
        if self.taken == self.held.len() {
            self.held.clear();
            self.taken = 0;
        }
    }

    /// Reads once. Has that emptied the socket?
    fn fill(&mut self, socket: i32) -> Result<bool, LinkError> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0 {
            self.incoming.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.open && self.incoming.len() < LARGE {
            self.incoming.resize(LARGE, 0);
        }
        let spare = &mut self.incoming[self.end..];
        if spare.is_empty() {
            return Err(LinkError::Tls(TlsError::Broken));
        }
        let piece = Piece {
            base: spare.as_mut_ptr(),
            len: spare.len(),
        };
        // SAFETY: a piece of our own buffer, which nobody else looks at meanwhile.
        let count = unsafe { iov::receive(socket, &[piece]) }.map_err(LinkError::Os)?;
        match count {
            0 if self.open => Err(LinkError::Ended),
            0 => Err(LinkError::Tls(TlsError::Ended)),
            count => {
                self.end += count;
                self.speaks_tls()?;
                Ok(count < piece.len)
            }
        }
    }

    /// Who begins with something else is told from who breaks off.
    fn speaks_tls(&self) -> Result<(), LinkError> {
        let first = self.incoming[self.start..self.end].first();
        match !self.open && first.is_some_and(|first| !CONTENT_TYPES.contains(first)) {
            true => Err(LinkError::Tls(TlsError::NotTls)),
            false => Ok(()),
        }
    }

    // ---- sending ----

    /// Encrypts what there is room for, and sends. How many of the pieces' bytes it has taken; `AGAIN`: none now,
    /// either because the socket is full ([`holds_back`](Self::holds_back)) or because the peer has to say something.
    ///
    /// # Safety
    /// Each piece is readable for its length.
    pub(in crate::io) unsafe fn send(
        &mut self,
        socket: i32,
        pieces: &[Piece],
    ) -> Result<usize, LinkError> {
        self.greet(socket)?;
        if self.holds_back() || !self.open {
            return Err(LinkError::Os(Errno::AGAIN));
        }
        loop {
            match self.step(None, Some(pieces))? {
                Stepped::On => {}
                Stepped::Needs => return Err(LinkError::Os(Errno::AGAIN)),
                Stepped::Sealed(taken) => {
                    self.push(socket)?;
                    return Ok(taken);
                }
            }
        }
    }

    /// Goes on with what both ends have to say before anything else, and sends it.
    pub(in crate::io) fn greet(&mut self, socket: i32) -> Result<(), LinkError> {
        while !self.open
            && let Stepped::On = self.step(None, None)?
        {}
        self.push(socket)
    }

    /// Sends what is encrypted, as far as the socket takes it.
    fn push(&mut self, socket: i32) -> Result<(), LinkError> {
        while self.holds_back() {
            let rest = &mut self.outgoing[self.gone..];
            let piece = Piece {
                base: rest.as_mut_ptr(),
                len: rest.len(),
            };
            // SAFETY: bytes of our own.
            match unsafe { iov::send(socket, &[piece]) } {
                Ok(sent) => self.gone += sent,
                Err(Errno::AGAIN) => return Ok(()),
                Err(errno) => return Err(LinkError::Os(errno)),
            }
        }
        self.outgoing.clear();
        self.gone = 0;
        Ok(())
    }

    /// What is to be said about an error goes out, if there is room.
    pub(in crate::io) fn say_why(&mut self, socket: i32) {
        // The connection is over in any case.
        let _ = self.push(socket);
    }

    // ---- both ----

    /// One step of the protocol. It is always shown all that has come: it remembers where it was.
    fn step(
        &mut self,
        room: Option<&mut Room>,
        seal: Option<&[Piece]>,
    ) -> Result<Stepped, LinkError> {
        if let Some(error) = self.failed {
            return Err(LinkError::Tls(error));
        }
        let sides = Sides {
            room,
            held: &mut self.held,
            outgoing: &mut self.outgoing,
            seal: seal.map(|pieces| (pieces, &mut *self.plain)),
            ended: &mut self.ended,
        };
        let bytes = &mut self.incoming[self.start..self.end];
        let (used, stepped) = match &mut self.side {
            Side::Client(connection) => act(connection.process_tls_records(bytes), sides),
            Side::Server(connection) => act(connection.process_tls_records(bytes), sides),
        };
        self.start += used;
        match stepped {
            Ok(stepped) => {
                if !self.open && !self.side.common().is_handshaking() {
                    self.open = true;
                    self.looks_right()?;
                }
                Ok(stepped)
            }
            Err(error) => {
                self.alert();
                let error = fault(&error);
                self.failed = Some(error);
                Err(LinkError::Tls(error))
            }
        }
    }

    /// The handshake is over. Is it what was meant?
    fn looks_right(&self) -> Result<(), LinkError> {
        let common = self.side.common();
        if common.alpn_protocol() != Some(PROTOCOL) {
            return Err(LinkError::Tls(TlsError::NothingInCommon));
        }
        match common.peer_certificates() {
            Some([_, ..]) => Ok(()),
            _ => Err(LinkError::Tls(TlsError::Theirs(CertificateFault::Missing))),
        }
    }

    /// After an error: what is to be said about it, and not a step more.
    fn alert(&mut self) {
        while self.side.common().wants_write() {
            let bytes = &mut self.incoming[self.start..self.end];
            match &mut self.side {
                Side::Client(c) => encode_only(c.process_tls_records(bytes), &mut self.outgoing),
                Side::Server(c) => encode_only(c.process_tls_records(bytes), &mut self.outgoing),
            }
        }
    }
}

fn act<D>(
    status: UnbufferedStatus<'_, '_, D>,
    sides: Sides<'_>,
) -> (usize, Result<Stepped, Error>) {
    let UnbufferedStatus { discard, state } = status;
    let Sides {
        mut room,
        held,
        outgoing,
        seal,
        ended,
    } = sides;
    let stepped = match state {
        Err(error) => Err(error),
        Ok(ConnectionState::ReadTraffic(mut traffic)) => {
            let mut used = discard;
            while let Some(record) = traffic.next_record() {
                let Ok(record) = record else { break };
                used += record.discard;
                let placed = match (&mut room, held.is_empty()) {
                    (Some(room), true) => room.put(record.payload),
                    _ => 0,
                };
                held.extend_from_slice(&record.payload[placed..]);
            }
            return (used, Ok(Stepped::On));
        }
        Ok(ConnectionState::EncodeTlsData(mut data)) => {
            encode(&mut data, outgoing).map(|()| Stepped::On)
        }
        Ok(ConnectionState::TransmitTlsData(data)) => {
            // It lies with what is sent next, in order.
            data.done();
            Ok(Stepped::On)
        }
        Ok(ConnectionState::BlockedHandshake) => Ok(Stepped::Needs),
        Ok(ConnectionState::WriteTraffic(mut traffic)) => match seal {
            Some((pieces, plain)) => {
                encrypt(&mut traffic, pieces, plain, outgoing).map(Stepped::Sealed)
            }
            None => Ok(Stepped::Needs),
        },
        Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => {
            *ended = true;
            Ok(Stepped::Needs)
        }
        Ok(_) => Err(Error::General("a state that was not asked for".into())),
    };
    (discard, stepped)
}

fn encode_only<D>(status: UnbufferedStatus<'_, '_, D>, outgoing: &mut Vec<u8>) {
    if let Ok(ConnectionState::EncodeTlsData(mut data)) = status.state {
        // If it does not work, the peer is not told.
        let _ = encode(&mut data, outgoing);
    }
}

fn encode<D>(data: &mut EncodeTlsData<'_, D>, outgoing: &mut Vec<u8>) -> Result<(), Error> {
    append(outgoing, |into| match data.encode(into) {
        Err(EncodeError::InsufficientSize(size)) => Err(Some(size.required_size)),
        Err(EncodeError::AlreadyEncoded) => Err(None),
        Ok(written) => Ok(written),
    })
}

/// Some records of the pieces' bytes; how many bytes?
fn encrypt<D>(
    traffic: &mut WriteTraffic<'_, D>,
    pieces: &[Piece],
    plain: &mut [u8],
    outgoing: &mut Vec<u8>,
) -> Result<usize, Error> {
    let (mut from, mut sealed) = (Gather::new(pieces), 0);
    while outgoing.len() < WAITING {
        let count = from.take(plain);
        if count == 0 {
            break;
        }
        append(outgoing, |into| {
            match traffic.encrypt(&plain[..count], into) {
                Err(EncryptError::InsufficientSize(size)) => Err(Some(size.required_size)),
                Err(EncryptError::EncryptExhausted) => Err(None),
                Ok(written) => Ok(written),
            }
        })?;
        sealed += count;
    }
    Ok(sealed)
}

/// Lets `write` write behind what there is; when it says how much room it needs, it gets that.
fn append(
    outgoing: &mut Vec<u8>,
    mut write: impl FnMut(&mut [u8]) -> Result<usize, Option<usize>>,
) -> Result<(), Error> {
    let end = outgoing.len();
    let mut need = PLAIN + ADDED;
    for _ in 0..2 {
        outgoing.resize(end + need, 0);
        match write(&mut outgoing[end..]) {
            Ok(written) => {
                outgoing.truncate(end + written);
                return Ok(());
            }
            Err(Some(more)) => need = more,
            Err(None) => break,
        }
    }
    outgoing.truncate(end);
    Err(Error::EncryptError)
}

/// Places that are filled one after another.
struct Room {
    pieces: [Piece; 2],
    filled: usize,
}

impl Room {
    fn new(pieces: &[Piece]) -> Room {
        let mut room = [Piece::NONE; 2];
        for (to, piece) in room.iter_mut().zip(pieces) {
            *to = *piece;
        }
        Room {
            pieces: room,
            filled: 0,
        }
    }

    fn is_full(&self) -> bool {
        self.pieces.iter().all(|piece| piece.len == 0)
    }

    /// As much as there is room for.
    fn put(&mut self, mut bytes: &[u8]) -> usize {
        let whole = bytes.len();
        for piece in &mut self.pieces {
            let count = piece.len.min(bytes.len());
            if count == 0 {
                continue;
            }
            // SAFETY: the piece has room for `count` bytes more, as who gave it has promised; the bytes are ours.
            unsafe { access::copy(piece.base, bytes.as_ptr(), count) };
            piece.base = piece.base.wrapping_add(count);
            piece.len -= count;
            bytes = &bytes[count..];
        }
        let put = whole - bytes.len();
        self.filled += put;
        put
    }
}

/// Bytes that are taken out of pieces one after another.
struct Gather<'a> {
    pieces: &'a [Piece],
    /// Bytes of the first that are taken.
    begun: usize,
}

impl<'a> Gather<'a> {
    fn new(pieces: &'a [Piece]) -> Gather<'a> {
        Gather { pieces, begun: 0 }
    }

    /// As many as there are, and fit.
    fn take(&mut self, into: &mut [u8]) -> usize {
        let mut filled = 0;
        while let [piece, rest @ ..] = self.pieces {
            let count = (piece.len - self.begun).min(into.len() - filled);
            let from = piece.base.wrapping_add(self.begun);
            // SAFETY: the piece is readable, as who gave it has promised; there is room for `count` bytes.
            unsafe { access::copy(into[filled..].as_mut_ptr(), from, count) };
            filled += count;
            self.begun += count;
            if self.begun < piece.len {
                break;
            }
            (self.pieces, self.begun) = (rest, 0);
        }
        filled
    }
}
