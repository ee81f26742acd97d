//! A connection over a stream: TCP, or a unix socket of the same host.

use super::across::{Hold, Lent, Mapped, Place, SharedMemory, Sharing};
use super::chunks::Chunks;
use super::frame::{Header, Step, WriteTarget};
use super::inflow::{Granted, Inflow, Received};
use super::link_error::LinkError;
use super::outflow::Outflow;
use super::shared::{self, Shared};
use super::tls::Tls;
use crate::wire::CONN_LEN;
use memlane_core::access::SharedBytes;
use memlane_core::region::Region;
use memlane_sys::fd::Fd;
use memlane_sys::iov::{self, Piece};
use memlane_sys::{Errno, sock};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Reads of one link in one go: after that, it is the others' turn.
const TURN: usize = 16;
/// The most immediates of one link in one go.
const TURN_SHARED: usize = 1024;

/// Descriptors that a server hands over: of the queues and of the chunks.
const HANDED_OVER: usize = 2;

/// One connection.
#[derive(Debug)]
pub(super) struct StreamLink {
    socket: OwnedFd,
    inflow: Inflow,
    out: Outflow,
    /// The last read left nothing.
    dry: bool,
    /// Reads since [`turn`](Self::turn).
    reads: usize,
    moved: bool,
    /// The kernel says that there is something to read.
    readable: bool,
    /// Memory that both ends have.
    shared: Option<Shared>,
    /// It was accepted, so that what is shared is used; what comes by the socket only rings.
    accepted: bool,
    /// At the client of a server of this host, until it has accepted: descriptors may come.
    awaits: bool,
    handed: Vec<Fd>,
    /// At the client of a server of another machine: it is to be accepted with a place in memory that both have.
    awaits_place: bool,
    /// What encrypts it, if anything does.
    tls: Option<Box<Tls>>,
}

impl StreamLink {
    /// Over a non-blocking stream socket; takes messages of up to `most` bytes.
    #[must_use]
    pub(super) fn new(socket: OwnedFd, most: usize) -> StreamLink {
        StreamLink {
            socket,
            inflow: Inflow::new(most),
            out: Outflow::default(),
            dry: false,
            reads: 0,
            moved: false,
            readable: true,
            shared: None,
            accepted: false,
            awaits: false,
            handed: Vec::new(),
            awaits_place: false,
            tls: None,
        }
    }

    /// All that goes over it is encrypted.
    pub(super) fn encrypts(&mut self, tls: Tls) {
        self.tls = Some(Box::new(tls));
    }

    /// Does the socket carry frames as they are? If not, nothing may be sent past the encryption.
    pub(super) fn is_plain(&self) -> bool {
        self.tls.is_none()
    }

    /// Who the peer has proven to be: the sessions that its certificate names. `None`: it has not (yet).
    pub(super) fn certified(&self) -> Option<Vec<String>> {
        let tls = self.tls.as_ref().filter(|tls| tls.is_open());
        tls.map(|tls| tls.sessions())
    }

    /// Has reading left something to be sent?
    pub(super) fn owes(&self) -> bool {
        let owes = |tls: &Tls| tls.holds_back() || (tls.is_open() && !self.out.is_empty());
        self.tls.as_deref().is_some_and(owes)
    }

    /// Before the connection is dropped: why, as far as the encryption has a word for it.
    pub(super) fn say_why(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.say_why(self.socket.as_raw_fd());
        }
    }

    /// What has come and was not understood (yet).
    pub(super) fn waiting(&self) -> &[u8] {
        self.inflow.waiting()
    }

    /// Takes what comes, and forgets it. Has the peer closed?
    pub(super) fn is_drained(&self) -> bool {
        match hush(&self.socket, TURN) {
            Ok(()) => false,
            Err(_) => true,
        }
    }

    /// What follows is not encrypted, whatever was before: for who does not speak TLS.
    pub(super) fn gives_up_tls(&mut self) {
        self.tls = None;
    }

    /// Data that comes goes straight to its place.
    pub(super) fn narrows(&mut self) {
        self.inflow.narrows();
    }

    /// Bytes of data that did not, since this was asked last.
    pub(super) fn take_copied(&mut self) -> u64 {
        self.inflow.take_copied()
    }

    /// Descriptors may come until it is accepted.
    pub(super) fn awaits_descriptors(&mut self) {
        self.awaits = true;
    }

    /// It is to be accepted with a place in memory that both machines have.
    pub(super) fn awaits_place(&mut self) {
        self.awaits_place = true;
    }

    /// At the client: was it accepted without what it asked for?
    pub(super) fn misses_its_place(&self) -> bool {
        self.awaits_place && self.shared.is_none()
    }

    /// Begins a turn: something may have come. `readable`: by the socket, the kernel says.
    pub(super) fn turn(&mut self, readable: bool) {
        self.dry = false;
        self.reads = 0;
        self.moved = false;
        self.readable = readable;
        if let Some(shared) = &mut self.shared {
            shared.unpark();
        }
    }

    /// Has something come in this turn, if only a part?
    pub(super) fn has_moved(&self) -> bool {
        self.moved
    }

    /// The next thing that has come; reads when it must. `None`: nothing more is there, or this turn is over
    /// (what is left makes the socket readable, so nothing is forgotten).
    pub(super) fn next(
        &mut self,
        granted: &mut impl Granted,
    ) -> Result<Option<Received>, LinkError> {
        if let (Some(shared), true) = (&mut self.shared, self.accepted) {
            if std::mem::take(&mut self.readable) {
                hush(&self.socket, 1)?;
            }
            self.reads += 1;
            if self.reads > TURN_SHARED {
                return Ok(None);
            }
            let taken = shared.take().map_err(|_| LinkError::Queue)?;
            self.moved |= taken.is_some();
            return Ok(taken.map(Received::Immediate));
        }
        loop {
            if let Some(received) = self.inflow.next(granted)? {
                self.accepted |= matches!(received, Received::Step(Step::Accept, _));
                return Ok(Some(received));
            }
            let over = self.reads >= TURN;
            if self.dry || (over && self.is_plain()) {
                return Ok(None);
            }
            self.read(over)?;
        }
    }

    /// Reads what there is room for. If the turn is `over`: only what has been read, and waits to be decrypted.
    fn read(&mut self, over: bool) -> Result<(), LinkError> {
        let room = self.inflow.room();
        let pieces = if room[0].len == 0 { &room[1..] } else { &room };
        let wanted: usize = pieces.iter().map(|piece| piece.len).sum();
        if let Some(tls) = &mut self.tls {
            let socket = self.socket.as_raw_fd();
            // SAFETY: as below.
            let received = unsafe { tls.receive(socket, pieces, !over) };
            return self.came(received, wanted);
        }
        let received = match self.awaits && !self.accepted {
            true => {
                let piece = room[1];
                // SAFETY: a piece of our own buffer, which nobody else looks at meanwhile.
                let buffer = unsafe { std::slice::from_raw_parts_mut(piece.base, piece.len) };
                self.receive_with_descriptors(buffer)
            }
            // SAFETY: the buffer is ours, and the window stays mapped; nothing in either is borrowed.
            false => unsafe { iov::receive(self.socket.as_raw_fd(), pieces) },
        };
        self.came(received.map_err(LinkError::Os), wanted)
    }

    /// Takes what has come, and the descriptors with it. Those beyond the two that there should be are closed; so many
    /// that the kernel cuts some off end the connection.
    fn receive_with_descriptors(&mut self, buffer: &mut [u8]) -> memlane_sys::Result<usize> {
        let received = sock::recv_with_fds(self.socket.as_raw_fd(), buffer)?;
        let room = HANDED_OVER.saturating_sub(self.handed.len());
        let descriptors = received.fds.into_iter().flatten();
        self.handed.extend(descriptors.take(room));
        // A stream cuts off nothing but descriptors.
        received.len.ok_or(Errno::PROTO)
    }

    fn came(&mut self, received: Result<usize, LinkError>, wanted: usize) -> Result<(), LinkError> {
        match received {
            Ok(0) => return Err(LinkError::Ended),
            Ok(count) => {
                self.reads += 1;
                self.moved = true;
                // A short read has emptied the socket: to ask again would only cost a call.
                self.dry = count < wanted;
                self.inflow.came(count);
            }
            Err(LinkError::Os(Errno::AGAIN)) => self.dry = true,
            Err(error) => return Err(error),
        }
        Ok(())
    }

    // ---- memory that both ends have ----

    /// At the server, before it accepts: shares the chunks behind this descriptor.
    pub(super) fn share(&mut self, depth: u16, chunks: i32, base: u64) -> Result<(), LinkError> {
        let slots = shared::slots_for(depth);
        let queues = Region::create(c"memlane-queues", shared::len_of(slots), false)?;
        let shared = Shared::offer(Mapped::Own(queues), slots)?;
        let slots = u32::try_from(slots).unwrap_or(0);
        let header = Header::Share { slots, base }.encode();
        let queues = shared.descriptor().ok_or(LinkError::Queue)?;
        // The socket is new and has room for that. So few bytes are sent as a whole or not at all.
        sock::send_to_peer(self.socket.as_raw_fd(), &header, &[queues, chunks])?;
        self.shared = Some(shared);
        self.accepted = true;
        Ok(())
    }

    /// At the server, before it accepts: shares chunks that lie in memory of both machines, and queues beside them.
    pub(super) fn place(&mut self, depth: u16, chunks: &Lent, base: u64) -> Result<(), LinkError> {
        let slots = shared::slots_for(depth);
        let queues = chunks.lot().lend(shared::len_of(slots))?;
        let sharing = Sharing {
            region: chunks.lot().len() as u64,
            queues: queues.place()?,
            chunks: chunks.place()?,
        };
        self.shared = Some(Shared::offer(Mapped::Lent(queues), slots)?);
        self.accepted = true;
        let slots = u32::try_from(slots).unwrap_or(0);
        self.out.place(slots, base, &sharing.encode());
        Ok(())
    }

    /// At the client: takes what came with the frame that said so.
    pub(super) fn join(
        &mut self,
        slots: u32,
        base: u64,
        attach: impl FnOnce(Fd) -> memlane_sys::Result<Arc<Chunks>>,
    ) -> Result<(), LinkError> {
        let mut handed = self.handed.drain(..);
        let (Some(queues), Some(chunks)) = (handed.next(), handed.next()) else {
            return Err(LinkError::Queue);
        };
        let chunks = attach(chunks)?;
        let shared = Shared::join(slots as usize, (chunks, base), |len| {
            Region::attach(queues, len).map(Mapped::Own)
        });
        self.shared = Some(shared?);
        Ok(())
    }

    /// At the client: takes what the server has told the places of.
    pub(super) fn join_at(
        &mut self,
        (slots, base): (u32, u64),
        places: &[u8; CONN_LEN],
        memory: &Arc<SharedMemory>,
        attach: impl FnOnce(Place) -> Result<Arc<Chunks>, LinkError>,
    ) -> Result<(), LinkError> {
        if !self.misses_its_place() {
            return Err(LinkError::Queue);
        }
        let sharing = Sharing::decode(places).ok_or(LinkError::Queue)?;
        if sharing.region != memory.len() as u64 {
            return Err(LinkError::OtherMemory);
        }
        let chunks = attach(sharing.chunks)?;
        let shared = Shared::join(slots as usize, (chunks, base), |len| {
            let hold = Hold::claim(memory, sharing.queues, len)?;
            Ok::<_, LinkError>(Mapped::Held(hold))
        });
        self.shared = Some(shared?);
        Ok(())
    }

    /// At the client: what it shares, once it was accepted.
    pub(super) fn chunks(&self) -> Option<&Arc<Chunks>> {
        let shared = self.shared.as_ref().filter(|_| self.accepted);
        shared.and_then(Shared::chunks)
    }

    /// At the client: does what it shares have the chunk of this permit at that address?
    pub(super) fn has_chunk(&self, addr: u64, permit: u16) -> bool {
        let shared = self.shared.as_ref();
        shared.is_some_and(|shared| shared.is_at(addr, permit))
    }

    pub(super) fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// At the client: what a read has brought, if it did not come by the stream.
    pub(super) fn pull(&self, at: usize, into: &SharedBytes) -> bool {
        let shared = self.shared.as_ref();
        shared.is_none_or(|shared| shared.pull(at, into))
    }

    /// Has something come? `None`: only the kernel knows.
    pub(super) fn has_ready(&self) -> Option<bool> {
        let shared = self.shared.as_ref().filter(|_| self.accepted);
        shared.map(Shared::has_some)
    }

    /// It will not be looked at until the kernel says so. `false`: there is something.
    pub(super) fn park(&mut self) -> bool {
        let shared = self.shared.as_mut().filter(|_| self.accepted);
        shared.is_none_or(Shared::park)
    }

    // ---- sending ----

    /// A step of making the connection.
    pub(super) fn step(&mut self, step: Step, private: &[u8; CONN_LEN]) {
        self.out.step(step, private);
    }

    /// A message. It is for connection 0, which shares nothing: on others nobody would hear it.
    pub(super) fn send(&mut self, bytes: &[u8]) {
        self.out.send(bytes);
    }

    /// An immediate alone.
    pub(super) fn immediate(&mut self, imm: u32) {
        match &mut self.shared {
            Some(shared) => shared.immediate(imm),
            None => self.out.immediate(imm),
        }
    }

    /// At a client: a request into its chunk.
    pub(super) fn post(
        &mut self,
        place: WriteTarget,
        data: Option<SharedBytes>,
        tail: &[u8],
        imm: u32,
    ) {
        match &mut self.shared {
            Some(shared) => shared.write(place, data, tail, imm),
            None => self.out.write(place, data, tail, imm),
        }
    }

    /// At a server: what was read, to where it is wanted. Who has the chunk needs only to be told.
    pub(super) fn reply(&mut self, place: WriteTarget, data: Option<SharedBytes>, imm: u32) {
        match &mut self.shared {
            Some(shared) => shared.immediate(imm),
            None => self.out.write(place, data, &[], imm),
        }
    }

    /// Does the peer not read?
    pub(super) fn is_clogged(&self) -> bool {
        self.out.is_clogged()
    }

    /// Sends what the stream takes. Is everything out?
    pub(super) fn flush(&mut self) -> Result<bool, LinkError> {
        let all = match self.tls {
            Some(_) => self.flush_encrypted()?,
            None => self.out.flush(self.socket.as_raw_fd())?,
        };
        // Once memory is shared, nothing but bells goes over the socket, and a bell has nothing to hide.
        if let Some(shared) = &mut self.shared
            && shared.publish().map_err(|_| LinkError::Queue)?
        {
            ring(&self.socket)?;
        }
        Ok(all)
    }

    /// As `flush`: is there nothing left for the socket? What waits for the peer's word does not wait for the socket.
    fn flush_encrypted(&mut self) -> Result<bool, LinkError> {
        let socket = self.socket.as_raw_fd();
        let Some(tls) = &mut self.tls else {
            return Ok(true);
        };
        tls.greet(socket)?;
        // SAFETY: what the pieces describe stays mapped, as is promised where it is queued.
        let sent = self
            .out
            .flush_by(|pieces| unsafe { tls.send(socket, pieces) });
        match sent {
            Ok(()) | Err(LinkError::Os(Errno::AGAIN)) => Ok(!tls.holds_back()),
            Err(error) => Err(error),
        }
    }
}

/// Wakes the peer. If the socket is full, so much has rung already.
fn ring(socket: &OwnedFd) -> Result<(), LinkError> {
    let mut byte = [1_u8];
    let piece = Piece {
        base: byte.as_mut_ptr(),
        len: 1,
    };
    // SAFETY: one byte of our own.
    match unsafe { iov::send(socket.as_raw_fd(), &[piece]) } {
        Ok(_) | Err(Errno::AGAIN) => Ok(()),
        Err(errno) => Err(LinkError::Os(errno)),
    }
}

/// Reads wake-up bytes, at most this many times. What is left wakes the thread again.
fn hush(socket: &OwnedFd, times: usize) -> Result<(), LinkError> {
    let mut bytes = [0_u8; 256];
    let piece = Piece {
        base: bytes.as_mut_ptr(),
        len: bytes.len(),
    };
    for _ in 0..times {
        // SAFETY: bytes of our own.
        match unsafe { iov::receive(socket.as_raw_fd(), &[piece]) } {
            Ok(0) => return Err(LinkError::Ended),
            Ok(_) => {}
            Err(Errno::AGAIN) => return Ok(()),
            Err(errno) => return Err(LinkError::Os(errno)),
        }
    }
    Ok(())
}

impl AsFd for StreamLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::super::inflow::{BUFFER, Nothing};
    use super::super::tls::certs::Both;
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    /// Both ends of an encrypted connection.
    fn pair() -> (StreamLink, StreamLink) {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let sockets = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let (one, other) = sockets.expect("a pair");
        let both = Both::good();
        let (mut client, mut server) = (StreamLink::new(one, 512), StreamLink::new(other, 512));
        let to = [127, 0, 0, 1].into();
        client.encrypts(Tls::client(&both.client(), to).expect("a client"));
        server.encrypts(Tls::server(&both.server()).expect("a server"));
        while client.certified().is_none() || server.certified().is_none() {
            for link in [&mut client, &mut server] {
                link.flush().expect("it is sent");
                link.turn(true);
                assert_eq!(link.next(&mut Nothing), Ok(None));
                link.flush().expect("it is sent");
            }
        }
        (client, server)
    }

    fn is_readable(link: &StreamLink) -> bool {
        let mut set = [PollFd::new(link, PollFlags::IN)];
        poll(&mut set, Some(&Timespec::default())).expect("a poll") > 0
    }

    #[test]
    fn what_was_decrypted_when_a_turn_ends_is_not_forgotten() {
        const FRAME: usize = super::super::frame::HEADER;
        let (mut client, mut server) = pair();
        // As much as a turn reads, and a last record that is so short that it comes from the socket with the rest.
        for more in [1, 8, 16, 24, 1000] {
            let count = TURN * BUFFER / FRAME + more;
            (0..count).for_each(|_| client.immediate(0x8000_0000));
            let mut got = 0;
            while client.flush().is_ok_and(|all| !all) || is_readable(&server) {
                server.turn(true);
                while let Some(received) = server.next(&mut Nothing).expect("frames") {
                    assert_eq!(received, Received::Immediate(0x8000_0000));
                    got += 1;
                    // There is always more in the socket, until there is nothing more at all.
                    if got % 64 == 0 {
                        client.flush().expect("it is sent");
                    }
                }
            }
            assert_eq!(got, count, "{more}");
        }
    }
}
