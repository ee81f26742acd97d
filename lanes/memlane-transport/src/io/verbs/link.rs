//! One connection over a queue pair.
//!
//! ```text
//! client: resolve address ─► resolve route ─► queue pair, connect ─► established: receives, Accept ─► up
//! server: asked ─► (the engine accepts) queue pair, receives, accept ─► up
//! ```

use super::reach::{Reach, Reaches};
use super::receives::Receives;
use super::sends::Sends;
use crate::io::address::{Epoll, Interest};
use crate::io::frame::{MAX_MESSAGE_TO_SERVER, Step, WriteTarget};
use crate::io::inflow::Received;
use crate::io::link_error::LinkError;
use crate::wire::{CONN_LEN, ConnReq, ConnRsp, DESC_LEN};
use memlane_core::access::SharedBytes;
use memlane_sys::Errno;
use memlane_verbs::{
    Capacity, Completed, Completion, Event, Id, Pair, Status, Verb, Verbs, VerbsError,
};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the kernel may look for an address, and for a route.
const RESOLVE: Duration = Duration::from_secs(2);
/// Requests of a client that does not know the server's chunks yet.
const CLIENT: u32 = 1024;
/// Beside requests: heartbeats, fences, keys.
const BESIDE: u32 = 64;
/// The least that a queue pair must hold.
const LEAST: u32 = 64;
/// The most that is asked for; a longer queue only waits at the other end.
const MOST: u32 = 4096;
/// The tail of a read (user message of a volume, header, descriptor, replay) and some.
const INLINE: u32 = 96;
/// Fetches of completions in one go.
const TURN: usize = 32;
/// While completions ring all the time, a connection is asked for its own events only when this number of rings have gone by.
const ASK_EVERY: u32 = 32;
/// How long the last message of a connection may take to leave.
const LAST_WORD: Duration = Duration::from_millis(5);

/// What waits in the set of what is waited for.
const CONNECTION: u64 = 0;
const COMPLETIONS: u64 = 1;

/// Which end of the connection this is.
#[derive(Debug)]
enum End {
    /// With what it asks for the connection, and what the session has registered.
    Client([u8; CONN_LEN], Arc<Reaches>),
    Server,
}

/// What there is once there is a queue pair. Dropped in this order: the queue pair before the memory that it uses.
#[derive(Debug)]
struct Queues {
    pair: Pair,
    sends: Sends,
    /// Posted when it is known how long messages are.
    receives: Option<Receives>,
    reach: Arc<Reach>,
}

/// One connection.
#[derive(Debug)]
pub(in crate::io) struct VerbsLink {
    queues: Option<Queues>,
    id: Arc<Id>,
    end: End,
    /// Number of this connection in its path.
    cid: u16,
    /// The kernel says that it is there.
    is_up: bool,
    /// The next completion makes the channel readable.
    is_armed: bool,
    /// How often it was made readable by one.
    rings: u32,
    /// A message was sent, and may be the last thing that is.
    has_last_word: bool,
    came: VecDeque<Received>,
    moved: bool,
    looks: usize,
    broken: Option<LinkError>,
    found: Vec<Completion>,
    /// Readable when something has happened.
    set: Epoll,
}

impl VerbsLink {
    /// At a client: begins to connect.
    pub(in crate::io) fn to(
        from: Option<SocketAddr>,
        to: &SocketAddr,
        private: &[u8; CONN_LEN],
        reaches: &Arc<Reaches>,
    ) -> Result<VerbsLink, LinkError> {
        let id = Id::new(Verbs::find()?)?;
        id.resolve(from.as_ref(), to, RESOLVE)?;
        VerbsLink::new(id, private, End::Client(*private, Arc::clone(reaches)))
    }

    /// At a server: a client has asked for it.
    pub(in crate::io) fn asked(id: Id, private: &[u8; CONN_LEN]) -> Result<VerbsLink, LinkError> {
        VerbsLink::new(id, private, End::Server)
    }

    fn new(id: Id, private: &[u8; CONN_LEN], end: End) -> Result<VerbsLink, LinkError> {
        let set = Epoll::new().map_err(os)?;
        set.add(&id, CONNECTION, Interest::READ).map_err(os)?;
        Ok(VerbsLink {
            queues: None,
            id: Arc::new(id),
            end,
            cid: ConnReq::decode(private).map_or(0, |req| req.cid),
            is_up: false,
            is_armed: false,
            rings: 0,
            has_last_word: false,
            came: VecDeque::new(),
            moved: false,
            looks: 0,
            broken: None,
            found: Vec::new(),
            set,
        })
    }

    /// The connection that is being made.
    pub(in crate::io) fn id(&self) -> &Arc<Id> {
        &self.id
    }

    /// What its session has registered with its device, once it has a queue pair.
    pub(in crate::io) fn reach(&self) -> Option<&Arc<Reach>> {
        self.queues.as_ref().map(|queues| &queues.reach)
    }

    /// Is it connected?
    pub(in crate::io) fn is_up(&self) -> bool {
        self.is_up
    }

    // ---- how it comes about ----

    fn heed(&mut self, event: Event) -> Result<(), LinkError> {
        match (event, &self.end) {
            (Event::AddressResolved, End::Client(..)) => self.id.resolve_route(RESOLVE)?,
            (Event::RouteResolved, End::Client(private, reaches)) => {
                let reach = reaches.of(&self.id)?;
                let private = *private;
                self.make_queues(reach, CLIENT)?;
                self.id.connect(&private)?;
            }
            (Event::Established(private), End::Client(..)) => self.is_accepted(&private)?,
            (Event::Established(_), End::Server) => self.is_up = true,
            (Event::Rejected(_, private), _) => {
                self.came.push_back(refusal(&private)?);
            }
            (Event::Failed(errno), _) => return Err(LinkError::Os(Errno(errno))),
            (Event::Disconnected, _) => return Err(LinkError::Ended),
            (Event::DeviceRemoved, _) => return Err(LinkError::Os(Errno(libc::ENODEV))),
            (Event::AddressChanged, _) => return Err(LinkError::Os(Errno(libc::EADDRNOTAVAIL))),
            // Nobody asks a connection that is there, or is being made, for another one.
            (Event::Request(..) | Event::AddressResolved | Event::RouteResolved, _)
            | (Event::Other(_), _) => {}
        }
        Ok(())
    }

    /// As large as the device allows.
    fn make_queues(&mut self, reach: Arc<Reach>, most: u32) -> Result<(), VerbsError> {
        let mut size = most.clamp(LEAST, MOST);
        let mut inline = INLINE;
        let pair = loop {
            let capacity = Capacity {
                sends: size,
                receives: size,
                inline,
            };
            match Pair::new(&self.id, reach.domain(), capacity) {
                Ok(pair) => break pair,
                Err(_) if inline > 0 => inline = 0,
                Err(_) if size > LEAST => (size, inline) = ((size / 2).max(LEAST), INLINE),
                Err(error) => return Err(error),
            }
        };
        let added = self.set.add(pair.channel(), COMPLETIONS, Interest::READ);
        added.map_err(|error| VerbsError::Failed {
            function: "epoll_ctl",
            errno: error.raw_os_error(),
        })?;
        self.queues = Some(Queues {
            sends: Sends::new(reach.domain(), size)?,
            pair,
            receives: None,
            reach,
        });
        Ok(())
    }

    fn post_receives(&mut self, depth: u32, long: usize) -> Result<(), VerbsError> {
        let Some(queues) = &mut self.queues else {
            return Ok(());
        };
        let count = (depth + BESIDE).min(queues.pair.receives());
        let domain = Arc::clone(queues.reach.domain());
        let receives = Receives::post(&mut queues.pair, &domain, count, long)?;
        queues.receives = Some(receives);
        Ok(())
    }

    /// The server sends nothing before it has been introduced to: receives are posted in time.
    fn is_accepted(&mut self, private: &[u8]) -> Result<(), LinkError> {
        let private = first(private).ok_or(LinkError::Queue)?;
        let depth = ConnRsp::decode(&private).map_or(0, |rsp| rsp.queue_depth);
        let table = 8 + usize::from(depth) * DESC_LEN;
        let long = if self.cid == 0 { table } else { 0 };
        self.post_receives(u32::from(depth), long)?;
        self.is_up = true;
        self.came.push_back(Received::Step(Step::Accept, private));
        Ok(())
    }

    /// At a server: makes ready what `reach` may be reached by, for a session of this many chunks.
    pub(in crate::io) fn make_ready(
        &mut self,
        reach: Arc<Reach>,
        depth: u16,
    ) -> Result<(), LinkError> {
        let depth = u32::from(depth);
        self.make_queues(reach, depth + BESIDE)?;
        let long = if self.cid == 0 {
            MAX_MESSAGE_TO_SERVER
        } else {
            0
        };
        self.post_receives(depth, long)?;
        Ok(())
    }

    /// At a server: accepts, or refuses.
    pub(in crate::io) fn step(&mut self, step: Step, private: &[u8; CONN_LEN]) {
        let done = match step {
            Step::Accept => self.id.accept(private),
            Step::Reject => self.id.reject(private),
            Step::Connect => Ok(()),
        };
        self.note(done);
    }

    fn note(&mut self, done: Result<(), VerbsError>) {
        if let Err(error) = done {
            self.broken.get_or_insert(error.into());
        }
    }

    // ---- what comes ----

    pub(in crate::io) fn turn(&mut self, readable: bool) {
        (self.moved, self.looks) = (false, 0);
        if !readable {
            return;
        }
        let queues = self.queues.as_mut();
        let rang = queues.is_some_and(|queues| queues.pair.hush());
        if rang {
            self.is_armed = false;
            self.rings = self.rings.wrapping_add(1);
        }
        // What has happened to the connection itself stays readable until it is asked for.
        if rang && self.is_up && !self.rings.is_multiple_of(ASK_EVERY) {
            return;
        }
        loop {
            let happened = match self.id.event() {
                Ok(Some(event)) => self.heed(event),
                Ok(None) => return,
                Err(error) => Err(error.into()),
            };
            if let Err(error) = happened {
                self.broken.get_or_insert(error);
                return;
            }
        }
    }

    pub(in crate::io) fn has_moved(&self) -> bool {
        self.moved
    }

    /// The next thing that has come; `None`: nothing more, or this turn is over.
    pub(in crate::io) fn next(&mut self) -> Result<Option<Received>, LinkError> {
        loop {
            if let Some(received) = self.came.pop_front() {
                self.moved = true;
                return Ok(Some(received));
            }
            if let Some(error) = self.broken {
                return Err(error);
            }
            self.looks += 1;
            if self.looks > TURN || !self.look() {
                return Ok(None);
            }
        }
    }

    /// Fetches completions. Were there some?
    fn look(&mut self) -> bool {
        let Some(queues) = &mut self.queues else {
            return false;
        };
        let mut found = std::mem::take(&mut self.found);
        if let Err(error) = queues.pair.poll(&mut found) {
            self.broken.get_or_insert(error.into());
        }
        let some = !found.is_empty();
        for completion in found.drain(..) {
            if let Err(error) = self.understand(completion) {
                self.broken.get_or_insert(error);
            }
        }
        self.found = found;
        some
    }

    fn understand(&mut self, completion: Completion) -> Result<(), LinkError> {
        let Some(queues) = &mut self.queues else {
            return Ok(());
        };
        let Completion { number, what } = completion;
        match what {
            Completed::Sent => queues.sends.completed(&mut queues.pair, number)?,
            Completed::Message { len, immediate } => {
                let message = queues
                    .receives
                    .as_ref()
                    .and_then(|r| r.message(number, len));
                queues.receive_again(number)?;
                match message {
                    // Mainline invalidates keys by messages without anything in them.
                    Some(bytes) if !bytes.is_empty() => {
                        self.came.push_back(Received::Send(bytes, immediate));
                    }
                    _ => self.came.extend(immediate.map(Received::Immediate)),
                }
            }
            Completed::Immediate(imm) => {
                queues.receive_again(number)?;
                self.came.push_back(Received::Immediate(imm));
            }
            Completed::Failed(Status::FLUSHED) => return Err(LinkError::Ended),
            Completed::Failed(status) => return Err(LinkError::Device(status)),
        }
        Ok(())
    }

    /// Has something come? `None`: it is not connected yet.
    pub(in crate::io) fn has_ready(&mut self) -> Option<bool> {
        if !self.is_up {
            return None;
        }
        Some(self.look() && (!self.came.is_empty() || self.broken.is_some()))
    }

    /// From now on what comes makes the set readable. `false`: something has come already.
    pub(in crate::io) fn park(&mut self) -> bool {
        if !self.is_up {
            return true;
        }
        if !self.is_armed
            && let Some(queues) = &mut self.queues
        {
            let armed = queues.pair.arm();
            self.is_armed = armed.is_ok();
            self.note(armed);
        }
        while self.look() {}
        self.came.is_empty() && self.broken.is_none()
    }

    // ---- what goes ----

    fn post_verb(&mut self, verb: Verb, data: Option<SharedBytes>, tail: &[u8]) {
        let Some(queues) = &mut self.queues else {
            return;
        };
        let piece = data.map(|bytes| queues.reach.piece(&bytes));
        let done = match piece {
            // The driver has brought the data where the device reaches it.
            Some(None) => Err(VerbsError::Failed {
                function: "ibv_post_send",
                errno: libc::EFAULT,
            }),
            piece => queues
                .sends
                .send(&mut queues.pair, verb, piece.flatten(), tail),
        };
        self.note(done);
    }

    pub(in crate::io) fn send(&mut self, bytes: &[u8]) {
        self.has_last_word = true;
        self.post_verb(Verb::Send, None, bytes);
    }

    pub(in crate::io) fn immediate(&mut self, immediate: u32) {
        let (to, key) = (0, 0);
        self.post_verb(Verb::WriteImmediate { to, key, immediate }, None, &[]);
    }

    pub(in crate::io) fn post(
        &mut self,
        place: WriteTarget,
        data: Option<SharedBytes>,
        tail: &[u8],
        immediate: u32,
    ) {
        let data = data.filter(|_| place.len > 0);
        let data = data.and_then(|data| data.part(0, place.len as usize));
        // The tail comes behind the data: one write for both.
        let begin = if data.is_some() {
            0
        } else {
            u64::from(place.tail_at)
        };
        let verb = Verb::WriteImmediate {
            to: place.addr + begin,
            key: place.key,
            immediate,
        };
        self.post_verb(verb, data, tail);
    }

    pub(in crate::io) fn reply(
        &mut self,
        place: WriteTarget,
        data: Option<SharedBytes>,
        immediate: u32,
    ) {
        self.post(place, data, &[], immediate);
    }

    /// The same for a client that wants its key to be invalidated, as mainline's does: the data, a message that makes the device
    /// forget the key, and the immediate. The device executes them in this order.
    pub(in crate::io) fn reply_and_invalidate(
        &mut self,
        place: Option<WriteTarget>,
        data: Option<SharedBytes>,
        key: u32,
        immediate: u32,
    ) {
        if let Some(place) = place {
            let data = data.and_then(|data| data.part(0, place.len as usize));
            let verb = Verb::Write {
                to: place.addr,
                key: place.key,
            };
            self.post_verb(verb, data, &[]);
        }
        self.post_verb(Verb::SendInvalidate(key), None, &[]);
        self.immediate(immediate);
    }

    pub(in crate::io) fn flush(&mut self) -> Result<bool, LinkError> {
        if let Some(error) = self.broken {
            return Err(error);
        }
        let queues = self.queues.as_ref();
        match queues.is_some_and(|queues| queues.sends.is_clogged()) {
            true => Err(LinkError::Clogged),
            false => Ok(true),
        }
    }

    /// Lets the last message leave.
    fn say_last_word(&mut self) {
        let until = Instant::now() + LAST_WORD;
        let is_out = |queues: &Option<Queues>| queues.as_ref().is_none_or(|q| q.sends.is_out());
        while self.is_up && self.broken.is_none() && !is_out(&self.queues) && Instant::now() < until
        {
            self.look();
        }
    }
}

impl Queues {
    fn receive_again(&mut self, number: u64) -> Result<(), VerbsError> {
        match &self.receives {
            Some(receives) => receives.again(&mut self.pair, number),
            None => Ok(()),
        }
    }
}

impl Drop for VerbsLink {
    fn drop(&mut self) {
        if self.has_last_word {
            self.say_last_word();
        }
        // The id may live on as long as its device's registrations do.
        self.id.disconnect();
    }
}

impl AsFd for VerbsLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }
}

/// The CM pads private data with zeros.
fn first(private: &[u8]) -> Option<[u8; CONN_LEN]> {
    private.first_chunk().copied()
}

/// What a rejection says: the server's reason, or that nobody listens.
fn refusal(private: &[u8]) -> Result<Received, LinkError> {
    let told = first(private).filter(|private| ConnRsp::decode(private).is_ok());
    match told {
        Some(private) => Ok(Received::Step(Step::Reject, private)),
        None => Err(LinkError::Os(Errno(libc::ECONNREFUSED))),
    }
}

fn os(error: rustix::io::Errno) -> LinkError {
    LinkError::Os(Errno(error.raw_os_error()))
}
