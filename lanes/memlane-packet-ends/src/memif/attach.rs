//! Both halves of the handshake: two sockets that are connected become a link with queues.

use super::MemifError;
use super::handshake::{ClientTerms, Plan, Refusal, Server, ServerTerms, Step};
use super::layout::{Memory, RingMemory};
use super::link::{MemifLink, disconnect};
use super::queue::MemifQueue;
use super::rings::{Buffers, Rx, Tx};
use super::wire::{LEN, Message, Text, WireError};
use crate::OpenError;
use crate::peer_event::PeerEventFd;
use memlane_core::region::Region;
use memlane_packet::error::{AttachError, Ring};
use memlane_packet::io::door::{Door, again_until, knock};
use memlane_packet::io::socket::{owned, receive_bytes, send_bytes};
use memlane_sys::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// For the whole handshake.
const WITHIN: Duration = Duration::from_secs(5);

fn send(socket: &OwnedFd, message: &Message, fd: Option<BorrowedFd<'_>>) -> Result<(), OpenError> {
    Ok(send_bytes(socket, &message.encode(), fd.as_slice())?)
}

fn receive(socket: &OwnedFd, end: Instant) -> Result<(Message, Option<OwnedFd>), OpenError> {
    // One byte more: so a longer message shows.
    let mut buffer = [0; LEN + 1];
    let (n, mut descriptors) = receive_bytes(socket, end, &mut buffer)?;
    if descriptors.len() > 1 {
        return Err(AttachError::Descriptors("more than one with a message").into());
    }
    let bytes = buffer
        .get(..n)
        .ok_or(MemifError::Wire(WireError::Length(n)))?;
    let message = Message::decode(bytes).map_err(MemifError::Wire)?;
    Ok((message, descriptors.pop()))
}

/// A server's door. The name is removed when it is dropped.
#[derive(Debug)]
pub struct MemifListener(Door, String);

impl MemifListener {
    /// Listens at a path, or at `@name`. A file that a dead server left there is replaced; one where a process listens
    /// is not.
    ///
    /// # Errors
    /// The socket's.
    pub fn bind(at: &str) -> Result<MemifListener, AttachError> {
        Ok(MemifListener(Door::open(at)?, at.to_owned()))
    }

    /// Waits for a client, not longer than `limit`, and connects it.
    ///
    /// # Errors
    /// [`AttachError::Timeout`] in [`OpenError::Attach`], or what became of the client that came, which was told: the door stays open.
    pub fn accept(
        &self,
        terms: &ServerTerms,
        limit: Duration,
    ) -> Result<(MemifLink, Vec<MemifQueue>), OpenError> {
        let socket = self.0.come_in(Instant::now() + limit)?;
        let served = serve(&Arc::new(socket), terms, &self.1);
        match served {
            Ok(done) => Ok(done),
            Err((socket, error)) => {
                let reason = match &error {
                    OpenError::Memif(MemifError::Refusal(why)) => why.0.to_owned(),
                    other => other.to_string(),
                };
                disconnect(&socket, 1, &reason);
                Err(error)
            }
        }
    }
}

impl AsFd for MemifListener {
    /// Readable when a client comes.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

type Served = (MemifLink, Vec<MemifQueue>);

fn serve(
    socket: &Arc<OwnedFd>,
    terms: &ServerTerms,
    at: &str,
) -> Result<Served, (Arc<OwnedFd>, OpenError)> {
    serve_on(socket, terms, at).map_err(|error| (Arc::clone(socket), error))
}

fn serve_on(socket: &Arc<OwnedFd>, terms: &ServerTerms, at: &str) -> Result<Served, OpenError> {
    let end = Instant::now() + WITHIN;
    let mut server = Server::new(terms);
    let (mut regions, mut doorbells) = (Vec::new(), Vec::new());
    send(socket, &server.hello(), None)?;
    loop {
        let (message, fd) = receive(socket, end)?;
        match (server.take(&message, fd.is_some())?, fd) {
            (Step::Region, Some(fd)) => regions.push(fd),
            (Step::Doorbell, Some(fd)) => doorbells.push(PeerEventFd::of(fd)?),
            (Step::Connect, _) => break,
            _ => {}
        }
        send(socket, &Message::Ack, None)?;
    }
    let queues = server_queues(socket, &server, regions, doorbells, at)?;
    send(socket, &Message::Connected(Text::new(&terms.name)), None)?;
    Ok((MemifLink::new(socket, server.peer()), queues))
}

/// Maps what the client handed over, and takes its rings.
fn server_queues(
    socket: &Arc<OwnedFd>,
    server: &Server,
    regions: Vec<OwnedFd>,
    doorbells: Vec<PeerEventFd>,
    at: &str,
) -> Result<Vec<MemifQueue>, OpenError> {
    let mut mapped = Vec::new();
    for (fd, size) in regions.into_iter().zip(server.regions()) {
        let size = usize::try_from(*size).unwrap_or(usize::MAX);
        let region = Region::attach_unshrinkable(owned(fd), size);
        mapped.push(Arc::new(region.map_err(|error| match error.0 {
            // EPERM and EINVAL of a file without seals: memory of a client in zero-copy mode.
            1 | 22 => AttachError::Descriptors(
                "a region that is shorter than said, or could be made so (run the client without zero-copy)",
            ),
            _ => AttachError::Memory(error),
        })?));
    }
    let memory = Arc::new(Memory::new(mapped));
    let mut queues: Vec<MemifQueue> = Vec::new();
    for (ring, doorbell) in server.rings().iter().zip(doorbells) {
        let index = usize::from(ring.index);
        while queues.len() <= index {
            queues.push(MemifQueue::new(format!("memif:{at}"), socket));
        }
        let direction = if ring.s2m { Ring::Tx } else { Ring::Rx };
        let words = memory.ring(direction, ring.region, ring.offset, ring.log2);
        let words = words.filter(RingMemory::has_cookie);
        let words = words.ok_or(Refusal("Wrong ring"))?;
        let wrong = Refusal("Wrong ring");
        if ring.s2m {
            let mut rx = Rx::new(words, None).ok_or(wrong)?;
            rx.start();
            queues[index].set_rx(rx, doorbell);
        } else {
            let mut tx = Tx::new(words, None).ok_or(wrong)?;
            tx.start();
            queues[index].set_tx(tx, doorbell);
        }
    }
    Ok(queues)
}

/// Connects to a server that listens at a path or `@name`.
///
/// # Errors
/// No interface came to be.
pub fn connect(at: &str, terms: &ClientTerms) -> Result<(MemifLink, Vec<MemifQueue>), OpenError> {
    let end = Instant::now() + WITHIN;
    let socket = Arc::new(knock(at)?);
    let hello = match receive(&socket, end)?.0 {
        Message::Hello(hello) => hello,
        Message::Disconnect { reason, .. } => return Err(MemifError::Refused(reason).into()),
        _ => return Err(Refusal("the first message is no hello").into()),
    };
    let plan = Plan::new(terms, &hello)?;
    let client = Client::create(&plan)?;
    let mut peer = Text::new("");
    for (n, message) in plan.messages(terms).iter().enumerate() {
        send(&socket, message, client.descriptor(n))?;
        match (message, receive(&socket, end)?.0) {
            (Message::Connect(_), Message::Connected(name)) => peer = name,
            (Message::Connect(_), _) => return Err(Refusal("the answer to connect").into()),
            (_, Message::Ack) => {}
            (_, Message::Disconnect { reason, .. }) => {
                return Err(MemifError::Refused(reason).into());
            }
            _ => return Err(Refusal("an answer that is no ack").into()),
        }
    }
    let queues = client.queues(&plan, &socket, at)?;
    Ok((MemifLink::new(&socket, peer), queues))
}

/// Connects to a server, trying again until `end`: for a server that is not there yet, or comes back. What was in the rings of
/// an earlier link is lost, as frames can be on any wire.
///
/// # Errors
/// The last try's, or one that another try would not mend.
pub fn connect_until(
    at: &str,
    terms: &ClientTerms,
    end: Instant,
) -> Result<(MemifLink, Vec<MemifQueue>), OpenError> {
    // A server can listen before its interface is there ("ID not found"), and have an earlier client's death before it
    // ("Already connected").
    let mends = |error: &OpenError| {
        matches!(
            error,
            OpenError::Attach(AttachError::Socket(_) | AttachError::Timeout)
                | OpenError::Memif(MemifError::Refused(_))
        )
    };
    again_until(end, mends, || connect(at, terms))
}

/// A client's memory and doorbells. They are new for each connection: an old server may still have the old ones.
struct Client {
    region: Arc<Region>,
    memory: Arc<Memory>,
    /// S2M rings' first, as the messages are.
    doorbells: Vec<PeerEventFd>,
}

impl Client {
    fn create(plan: &Plan) -> Result<Client, OpenError> {
        let region = Region::create(c"memlane-memif", plan.len as usize, false);
        let region = Arc::new(region.map_err(AttachError::Memory)?);
        let memory = Arc::new(Memory::new(vec![Arc::clone(&region)]));
        let mut doorbells = Vec::new();
        for s2m in [true, false] {
            for n in 0..plan.queues {
                ring_of(&memory, plan, s2m, n)?.0.init();
                doorbells.push(PeerEventFd::new().map_err(AttachError::Memory)?);
            }
        }
        Ok(Client {
            region,
            memory,
            doorbells,
        })
    }

    /// What goes with message `n`: init, region, rings, connect.
    fn descriptor(&self, n: usize) -> Option<BorrowedFd<'_>> {
        match n {
            0 => None,
            1 => {
                let fd = self.region.fd()?;
                // SAFETY: a region that was created here has its descriptor, and lives as long as `self`.
                Some(unsafe { BorrowedFd::borrow_raw(fd) })
            }
            n => self.doorbells.get(n - 2).map(AsFd::as_fd),
        }
    }

    /// Once the server has connected: it may have set all indices back until then.
    fn queues(
        self,
        plan: &Plan,
        socket: &Arc<OwnedFd>,
        at: &str,
    ) -> Result<Vec<MemifQueue>, OpenError> {
        let wrong = || AttachError::Memory(Errno::INVAL);
        let mut doorbells = self.doorbells.into_iter();
        let mut queues = Vec::new();
        for n in 0..plan.queues {
            let (ring, buffers) = ring_of(&self.memory, plan, true, n)?;
            let mut tx = Tx::new(ring, Some(buffers)).ok_or_else(wrong)?;
            tx.start();
            let mut queue = MemifQueue::new(format!("memif:{at}"), socket);
            queue.set_tx(tx, doorbells.next().ok_or_else(wrong)?);
            queues.push(queue);
        }
        for n in 0..plan.queues {
            let (ring, buffers) = ring_of(&self.memory, plan, false, n)?;
            let mut rx = Rx::new(ring, Some(buffers)).ok_or_else(wrong)?;
            rx.start();
            queues[usize::from(n)].set_rx(rx, doorbells.next().ok_or_else(wrong)?);
        }
        Ok(queues)
    }
}

fn ring_of(
    memory: &Arc<Memory>,
    plan: &Plan,
    s2m: bool,
    index: u16,
) -> Result<(RingMemory, Buffers), OpenError> {
    let place = plan.ring(s2m, index);
    let direction = if s2m { Ring::Tx } else { Ring::Rx };
    let ring = memory.ring(direction, place.region, place.offset, place.log2);
    let ring = ring.ok_or(AttachError::Memory(Errno::INVAL))?;
    Ok((ring, plan.buffers(s2m, index)))
}
