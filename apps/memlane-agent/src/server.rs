//! The agent's sockets: who asks, what is looked at for him, and the ends of channels that are handed out.

mod machines;

use crate::across::extents::Lifetime;
use crate::across::{Across, CHANNEL};
use crate::folder::{Content, Folder, Member};
use crate::kernel::{Looker, Record};
use crate::pairs::{Asker, Pairs, Verdict};
use crate::party::{self, Parties, party_of};
use memlane_socket::protocol::agent::{Answer, LEN, Outcome, Parting, Question, Refusal, SOCKET};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::fs::{FlockOperation, Mode};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, sockopt,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::io::{self, IoSlice};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Connections of one domain that wait for their other end, at a time.
const WAITING: usize = 65_536;
/// Questions of one process that are taken together: one look serves them all.
const TOGETHER: usize = 32;
/// Processes that wait to be accepted.
const BACKLOG: i32 = 1_024;
/// An agent that has no descriptor left takes nobody in for this time: then some may have gone.
const REST: Duration = Duration::from_millis(100);
/// A directory that somebody has locked, and that nobody serves after this time, is served all the same.
const LOCK_PATIENCE: Duration = Duration::from_millis(500);

/// What the agent has done since it began.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Counts {
    /// Processes that are connected.
    pub processes: u64,
    /// Connections that are remembered: one end has asked, or both have, within the last second.
    pub remembered: u64,
    /// Questions that were asked.
    pub questions: u64,
    /// Connections whose two ends were introduced.
    pub met: u64,
    /// Questions whose other end did not ask in time.
    pub nobody: u64,
    /// Questions about sockets that are not seen.
    pub not_seen: u64,
    /// Questions refused for the owner of a network namespace.
    pub untrusted: u64,
    /// Questions refused because too many sockets have the same numbers.
    pub forged: u64,
    /// Questions refused because too many wait.
    pub busy: u64,
    /// Questions refused because all memory that is shared with other machines is in use.
    #[serde(default)]
    pub no_memory: u64,
    /// Processes that were sent away: too many of one party, or messages that are none.
    pub sent_away: u64,
}

/// What has happened to a directory of a folder of domains.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum News {
    /// It is served from now on.
    Serves(PathBuf),
    /// It is gone, or no longer fit to be served.
    Closed(PathBuf),
    /// It is not served, and why.
    Ignored(PathBuf, String),
}

/// A directory whose members may be introduced to each other.
struct Domain {
    directory: PathBuf,
    listener: OwnedFd,
    pairs: Pairs,
    /// Nobody is taken in until this time: there are no descriptors.
    rests: Option<Instant>,
    place: Place,
}

/// How a domain came to be served.
enum Place {
    /// By its name. The directory is locked as long as this agent serves it, unless a stranger has locked it.
    Named { _lock: OwnedFd },
    /// As a member of the folder of domains; which directory it was then.
    Member((u64, u64)),
}

/// The folder of domains, and what was told of it.
struct Members {
    folder: Folder,
    /// What is not served, and why, as it was told last.
    ignored: BTreeMap<PathBuf, String>,
    /// When to look again without having heard of a change: another agent serves one of them still.
    again: Option<Instant>,
}

impl Members {
    /// Remembers what is ignored now; news of it, less what was told before.
    fn ignore(&mut self, now: BTreeMap<PathBuf, String>) -> Vec<News> {
        let is_new = |(path, why): &(&PathBuf, &String)| self.ignored.get(*path) != Some(*why);
        let news = now.iter().filter(is_new);
        let news = news.map(|(path, why)| News::Ignored(path.clone(), why.clone()));
        let news = news.collect();
        self.ignored = now;
        news
    }
}

/// A process that is connected.
struct Process {
    socket: OwnedFd,
    process: OwnedFd,
    domain: u64,
    /// Its name in answers to others.
    name: u64,
    /// Which process it is. `None`: it is gone already.
    lifetime: Option<Lifetime>,
    party: String,
    /// It has asked all that its party may: it is heard again at this time.
    paused: Option<Instant>,
}

/// The agent.
pub struct Agent {
    looker: Looker,
    epoll: OwnedFd,
    domains: BTreeMap<u64, Domain>,
    members: Option<Members>,
    news: Vec<News>,
    processes: HashMap<u64, Process>,
    parties: Parties,
    /// What it has of other machines.
    across: Option<Across>,
    next: u64,
    counts: Counts,
}

/// Numbers of processes begin here; lower ones are domains.
const FIRST_PROCESS: u64 = 1 << 16;
/// The number of the folder of domains. Lower ones are domains.
const FOLDER: u64 = FIRST_PROCESS - 1;
/// After this time, a directory that another agent serves is tried again.
const ANOTHER_SERVES: Duration = Duration::from_secs(1);

impl Agent {
    /// An agent that serves no domain yet.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new(looker: Looker) -> io::Result<Agent> {
        Ok(Agent {
            looker,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            domains: BTreeMap::new(),
            members: None,
            news: Vec::new(),
            processes: HashMap::new(),
            parties: Parties::default(),
            across: None,
            next: FIRST_PROCESS,
            counts: Counts::default(),
        })
    }

    /// Serves a domain: makes the directory, if it is not there, and the socket in it.
    ///
    /// # Errors
    /// `AddrInUse` if another agent serves it; else the kernel's.
    pub fn serve(&mut self, directory: &Path) -> io::Result<()> {
        make_directory(directory)?;
        let lock = lock(directory, &directory.join(SOCKET))?;
        self.open(directory, Place::Named { _lock: lock })
    }

    /// Serves each directory of a folder as a domain, also those that appear later, until they are gone. [`Agent::news`] tells
    /// of them. Makes the folder, if it is not there.
    ///
    /// # Errors
    /// `AddrInUse` if another agent serves the folder; `PermissionDenied` if others than root and this user can write to the folder; else the kernel's.
    pub fn serve_each(&mut self, folder: &Path) -> io::Result<()> {
        let watched = Folder::open(folder)?;
        let token = EventData::new_u64(FOLDER);
        epoll::add(&self.epoll, watched.descriptor(), token, EventFlags::IN)?;
        self.members = Some(Members {
            folder: watched,
            ignored: BTreeMap::new(),
            again: None,
        });
        self.compare_with_folder()
    }

    /// What has happened to the directories of the folder since this was asked last.
    pub fn news(&mut self) -> Vec<News> {
        core::mem::take(&mut self.news)
    }

    /// The directories that are served.
    pub fn domains(&self) -> Vec<PathBuf> {
        let domains = self.domains.values();
        domains.map(|domain| domain.directory.clone()).collect()
    }

    /// Puts a socket into a directory.
    fn open(&mut self, directory: &Path, place: Place) -> io::Result<()> {
        let Some(number) = (0..FOLDER).find(|n| !self.domains.contains_key(n)) else {
            return Err(io::ErrorKind::QuotaExceeded.into());
        };
        let socket = directory.join(SOCKET);
        // Left by an agent that was killed: nobody serves it.
        let _ = std::fs::remove_file(&socket);
        let listener = listen(&socket)?;
        let token = EventData::new_u64(number);
        epoll::add(&self.epoll, &listener, token, EventFlags::IN)?;
        let domain = Domain {
            directory: directory.to_owned(),
            listener,
            pairs: Pairs::new(WAITING),
            rests: None,
            place,
        };
        self.domains.insert(number, domain);
        Ok(())
    }

    /// Ends a domain: its processes are sent away, and the socket goes.
    fn close(&mut self, number: u64) {
        let Some(domain) = self.domains.remove(&number) else {
            return;
        };
        let _ = std::fs::remove_file(domain.directory.join(SOCKET));
        let its = self.processes.iter().filter(|(_, p)| p.domain == number);
        let its: Vec<u64> = its.map(|(&process, _)| process).collect();
        for process in its {
            self.forget(process);
        }
        self.news.push(News::Closed(domain.directory));
    }

    /// Makes what is served equal to what is in the folder.
    fn compare_with_folder(&mut self) -> io::Result<()> {
        let Some(members) = &mut self.members else {
            return Ok(());
        };
        members.folder.hear();
        let Content {
            members: there,
            others,
        } = members.folder.look()?;
        self.close_what_is_gone(&there);
        let busy = self.open_what_is_new(there);
        if let Some(members) = &mut self.members {
            members.again = (!busy.is_empty()).then(|| Instant::now() + ANOTHER_SERVES);
            let others = others.into_iter().map(|(path, why)| (path, why.to_owned()));
            self.news
                .extend(members.ignore(others.chain(busy).collect()));
        }
        Ok(())
    }

    fn close_what_is_gone(&mut self, there: &[Member]) {
        let is_there = |domain: &Domain| match domain.place {
            // A directory that was made anew may have the number of the old one. It has no socket.
            Place::Member(id) => {
                let is_it = |member: &Member| member.id == id && member.path == domain.directory;
                there.iter().any(is_it) && domain.directory.join(SOCKET).exists()
            }
            Place::Named { .. } => true,
        };
        let gone = self.domains.iter().filter(|(_, d)| !is_there(d));
        let gone: Vec<u64> = gone.map(|(&number, _)| number).collect();
        for number in gone {
            self.close(number);
        }
    }

    /// Serves what is in the folder and not served yet; what cannot be, and why.
    fn open_what_is_new(&mut self, there: Vec<Member>) -> Vec<(PathBuf, String)> {
        let mut failed = Vec::new();
        for member in there {
            if self.serves(&member.path) {
                continue;
            }
            match self.open_member(&member) {
                Ok(()) => self.news.push(News::Serves(member.path)),
                Err(e) => failed.push((member.path, why_not(&e))),
            }
        }
        failed
    }

    fn serves(&self, directory: &Path) -> bool {
        self.domains.values().any(|d| d.directory == directory)
    }

    /// Serves a directory of the folder. It is not locked: whoever has it mounted could lock it, too, and would delay the agent.
    fn open_member(&mut self, member: &Member) -> io::Result<()> {
        if is_served(&member.path.join(SOCKET))? {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        self.open(&member.path, Place::Member(member.id))
    }

    /// What the agent has done.
    pub fn counts(&self) -> Counts {
        Counts {
            processes: self.processes.len() as u64,
            remembered: self.domains.values().map(|d| d.pairs.len() as u64).sum(),
            ..self.counts
        }
    }

    /// A descriptor that is readable when `turn` has something to do before its time is up.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Waits for something to do, `limit` at most, and does it.
    ///
    /// # Errors
    /// The kernel's, if it cannot wait, or cannot read the folder of domains.
    pub fn turn(&mut self, limit: Duration) -> io::Result<()> {
        let mut events = [const {
            epoll::Event {
                flags: EventFlags::empty(),
                data: EventData::new_u64(0),
            }
        }; 64];
        let limit = limit.min(self.until_next());
        let timeout = rustix::time::Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(limit.subsec_nanos()),
        };
        let n = match epoll::wait(&self.epoll, &mut events, Some(&timeout)) {
            Ok(n) => n,
            Err(Errno::INTR) => 0,
            Err(e) => return Err(e.into()),
        };
        for event in &events[..n] {
            let (flags, data) = (event.flags, event.data); // a packed structure: no references into it
            match data.u64() {
                FOLDER => self.compare_with_folder()?,
                domain if domain < FOLDER => self.accept(domain),
                channel if channel & CHANNEL != 0 => self.hear_channel(channel & !CHANNEL),
                process if flags.contains(EventFlags::IN) => self.hear(process),
                process => self.forget(process),
            }
        }
        let now = Instant::now();
        self.end_what_is_over(now);
        self.look_across(now);
        let again = self.members.as_ref().and_then(|members| members.again);
        match again.is_some_and(|at| at <= now) {
            true => self.compare_with_folder(),
            false => Ok(()),
        }
    }

    /// Until a question has waited long enough or a party may ask again: `turn` is due then at the latest.
    pub fn until_next(&self) -> Duration {
        let now = Instant::now();
        let ends = self.domains.values().filter_map(|d| d.pairs.next_end());
        let rests = self.domains.values().filter_map(|d| d.rests);
        let pauses = self.processes.values().filter_map(|p| p.paused);
        let again = self.members.as_ref().and_then(|members| members.again);
        let mail = self.across.as_ref().map(|across| across.relay.next());
        ends.chain(rests)
            .chain(pauses)
            .chain(again)
            .chain(mail)
            .min()
            .map_or(Duration::MAX, |at| at.saturating_duration_since(now))
    }

    fn end_what_is_over(&mut self, now: Instant) {
        let mut over = Vec::new();
        for domain in self.domains.values_mut() {
            domain.pairs.expire(now, |asker| over.push(asker));
        }
        for asker in over {
            self.refuse(asker, Refusal::Nobody);
        }
        let heard_again: Vec<u64> = self
            .processes
            .iter()
            .filter(|(_, p)| p.paused.is_some_and(|at| at <= now))
            .map(|(&number, _)| number)
            .collect();
        for number in heard_again {
            self.pause(number, None);
        }
        let rested = |(&number, domain): (&u64, &Domain)| {
            let over = domain.rests.is_some_and(|at| at <= now);
            over.then_some(number)
        };
        let rested: Vec<u64> = self.domains.iter().filter_map(rested).collect();
        for domain in rested {
            self.rest(domain, None);
        }
        self.parties.forget_rested(now);
    }

    // --- processes ----------------------------------------------------------

    /// Takes in who waits at a domain's socket.
    fn accept(&mut self, domain: u64) {
        for _ in 0..BACKLOG {
            let Some(at) = self.domains.get(&domain) else {
                return;
            };
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = match rustix::net::accept_with(&at.listener, flags) {
                Ok(socket) => socket,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(Errno::AGAIN) => return,
                // Who waits makes the listener readable for as long as there is no descriptor for him.
                Err(_) => return self.rest(domain, Some(Instant::now() + REST)),
            };
            if self.take_in(domain, socket).is_err() {
                self.counts.sent_away += 1;
            }
        }
    }

    /// Takes nobody in until `until`, or again.
    fn rest(&mut self, domain: u64, until: Option<Instant>) {
        let Some(at) = self.domains.get_mut(&domain) else {
            return;
        };
        at.rests = until;
        let token = EventData::new_u64(domain);
        let _ = epoll::modify(&self.epoll, &at.listener, token, readable(until.is_none()));
    }

    fn take_in(&mut self, domain: u64, socket: OwnedFd) -> io::Result<()> {
        let who = sockopt::socket_peercred(&socket)?;
        let process = pidfd_of_peer(&socket)?;
        let name = random_name()?;
        let party = party_of(who.pid.as_raw_nonzero().get(), who.uid.as_raw());
        if !self.parties.join(&party, Instant::now()) {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let token = EventData::new_u64(self.next);
        if let Err(e) = epoll::add(&self.epoll, &socket, token, EventFlags::IN) {
            self.parties.leave(&party);
            return Err(e.into());
        }
        let member = Process {
            socket,
            process,
            domain,
            name,
            lifetime: Lifetime::of(who.pid.as_raw_nonzero().get()),
            party,
            paused: None,
        };
        self.processes.insert(self.next, member);
        self.next += 1;
        Ok(())
    }

    fn forget(&mut self, number: u64) {
        if let Some(gone) = self.processes.remove(&number) {
            self.parties.leave(&gone.party);
        }
        if let Some(across) = &mut self.across {
            across.relay.process_gone(number);
        }
        self.act();
    }

    /// Stops to hear a process until `until`, or hears it again.
    fn pause(&mut self, number: u64, until: Option<Instant>) {
        let Some(process) = self.processes.get_mut(&number) else {
            return;
        };
        process.paused = until;
        let token = EventData::new_u64(number);
        let flags = readable(until.is_none());
        if epoll::modify(&self.epoll, &process.socket, token, flags).is_err() {
            self.forget(number);
        }
    }

    // --- questions ----------------------------------------------------------

    /// Takes the questions of a process, looks at its sockets once for all of them, and answers those that can be.
    fn hear(&mut self, number: u64) {
        let now = Instant::now();
        let Some(process) = self.processes.get(&number) else {
            return;
        };
        let wanted = u32::try_from(TOGETHER).unwrap_or(0);
        let granted = self.parties.take(&process.party, wanted, now);
        if granted == 0 {
            return self.pause(number, Some(now + party::PAUSE));
        }
        let (mut questions, mut partings) = (Vec::with_capacity(TOGETHER), Vec::new());
        let over = read(
            &process.socket,
            granted as usize,
            &mut questions,
            &mut partings,
        );
        self.parties
            .give_back(&process.party, granted - count(questions.len()));
        self.counts.questions += questions.len() as u64;
        for (question, seen) in self.look(number, &questions) {
            self.judge(number, &question, seen, now);
        }
        self.part(number, &partings);
        match over {
            Over::NotYet => {}
            Over::Gone => self.forget(number),
            Over::Misbehaved => {
                self.counts.sent_away += 1;
                self.forget(number);
            }
        }
    }

    /// What the kernel shows of the sockets that are asked about: twice the same, or nothing.
    fn look(&self, number: u64, questions: &[Question]) -> Vec<(Question, Option<Record>)> {
        let Some(process) = self.processes.get(&number) else {
            return Vec::new();
        };
        let fds = || questions.iter().map(|q| q.fd);
        let (Some(from), Some(to)) = (fds().min(), fds().max()) else {
            return Vec::new();
        };
        // The numbers change while bytes flow, and are read without the socket's lock: a look that catches two of them
        // between two changes differs from the next.
        let [first, second] = [(); 2].map(|()| {
            let mut seen = HashMap::new();
            let looked = self.looker.look(process.process.as_fd(), (from, to), |r| {
                seen.insert(r.fd, r);
            });
            looked.map(|()| seen).unwrap_or_default()
        });
        let same = |q: &Question| {
            let seen = first.get(&q.fd).filter(|r| second.get(&q.fd) == Some(r))?;
            (seen.inode == q.inode).then_some(*seen)
        };
        questions.iter().map(|q| (*q, same(q))).collect()
    }

    fn judge(&mut self, number: u64, question: &Question, seen: Option<Record>, now: Instant) {
        let asker = Asker {
            process: number,
            id: question.id,
        };
        let Some(socket) = seen else {
            return self.refuse(asker, Refusal::NotSeen);
        };
        let Some(process) = self.processes.get(&number) else {
            return;
        };
        let Some(domain) = self.domains.get_mut(&process.domain) else {
            return;
        };
        match domain.pairs.ask(asker, question.role, &socket, now) {
            Verdict::Wait => self.ask_across(number, question.role, &socket, now),
            Verdict::Meet(other) => self.introduce(asker, other),
            Verdict::NotEstablished => self.refuse(asker, Refusal::NotSeen),
            Verdict::Full => self.refuse(asker, Refusal::Busy),
            Verdict::Untrusted(other) => {
                self.refuse(asker, Refusal::Untrusted);
                self.refuse(other, Refusal::Untrusted);
            }
            Verdict::Forged(other) => {
                self.refuse(asker, Refusal::Forged);
                if let Some(other) = other {
                    self.refuse(other, Refusal::Forged);
                }
            }
        }
    }

    // --- answers ------------------------------------------------------------

    /// Gives each of the two one end of a channel.
    fn introduce(&mut self, one: Asker, other: Asker) {
        let Ok((for_one, for_other)) = channel() else {
            self.refuse(one, Refusal::Busy);
            return self.refuse(other, Refusal::Busy);
        };
        // If one does not get its end, the other sees that the channel has ended.
        let told = [(one, other, for_one), (other, one, for_other)].map(|(asker, peer, end)| {
            let peer = self.processes.get(&peer.process).map_or(0, |p| p.name);
            peer != 0 && self.answer(asker, Outcome::Meet { peer }, &[end.as_fd()])
        });
        self.counts.met += u64::from(told == [true, true]);
    }

    fn refuse(&mut self, asker: Asker, why: Refusal) {
        let count = match why {
            Refusal::Nobody => &mut self.counts.nobody,
            Refusal::NotSeen => &mut self.counts.not_seen,
            Refusal::Untrusted => &mut self.counts.untrusted,
            Refusal::Forged => &mut self.counts.forged,
            Refusal::Busy => &mut self.counts.busy,
            Refusal::NoMemory => &mut self.counts.no_memory,
        };
        *count += 1;
        self.answer(asker, Outcome::Refuse(why), &[]);
    }

    /// Sends an answer. `false`: the asker is gone, or does not read what he is told.
    fn answer(&self, asker: Asker, outcome: Outcome, given: &[BorrowedFd<'_>]) -> bool {
        let Some(process) = self.processes.get(&asker.process) else {
            return false;
        };
        let answer = Answer {
            id: asker.id,
            outcome,
        };
        let (bytes, len) = answer.encode();
        let mut space = [core::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !given.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(given));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        rustix::net::sendmsg(
            &process.socket,
            &[IoSlice::new(&bytes[..len])],
            &mut control,
            flags,
        )
        .is_ok()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        for domain in self.domains.values() {
            let _ = std::fs::remove_file(domain.directory.join(SOCKET));
        }
    }
}

fn readable(is_heard: bool) -> EventFlags {
    match is_heard {
        true => EventFlags::IN,
        false => EventFlags::empty(),
    }
}

/// Makes a directory, unless it is there. Whoever may write to it could put himself in the agent's place.
pub(crate) fn make_directory(directory: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(directory)
}

fn why_not(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => "another agent serves it".to_owned(),
        _ => error.to_string(),
    }
}

/// Locks a directory against other agents. Everybody who can read it can lock it, too, even where it is mounted read-only;
/// only an agent answers at the socket.
fn lock(directory: &Path, socket: &Path) -> io::Result<OwnedFd> {
    let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
    let lock = rustix::fs::open(directory, flags, Mode::empty())?;
    let begin = Instant::now();
    while rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        if is_served(socket)? {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        if begin.elapsed() >= LOCK_PATIENCE {
            break;
        }
        std::thread::sleep(LOCK_PATIENCE / 20);
    }
    Ok(lock)
}

/// Does somebody listen there? One who has no time does, too.
fn is_served(socket: &Path) -> io::Result<bool> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let asks = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let reached = rustix::net::connect(&asks, &SocketAddrUnix::new(socket)?);
    Ok(matches!(reached, Ok(()) | Err(Errno::AGAIN)))
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// A socket at which processes connect; anybody who can reach the directory may.
fn listen(path: &Path) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    // Not by chmod: whoever could exchange the file in between would choose what that changes.
    let mask = rustix::process::umask(Mode::from_raw_mode(0o111));
    let bound = rustix::net::bind(&socket, &SocketAddrUnix::new(path)?);
    rustix::process::umask(mask);
    bound?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// A pidfd of the process that connected.
fn pidfd_of_peer(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let pidfd = memlane_sys::sock::peer_pidfd(socket.as_raw_fd());
    let pidfd = pidfd.map_err(|errno| io::Error::from_raw_os_error(errno.0))?;
    // SAFETY: it was owned, and is given away.
    Ok(unsafe { OwnedFd::from_raw_fd(pidfd.into_raw()) })
}

/// A name that nobody can guess, not 0.
fn random_name() -> io::Result<u64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes).max(1))
}

/// Two ends of a private channel, on which each end's messages carry the sender's credentials.
fn channel() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (one, other) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    sockopt::set_socket_passcred(&one, true)?;
    sockopt::set_socket_passcred(&other, true)?;
    Ok((one, other))
}

/// How reading a process's questions ended.
enum Over {
    /// More may come.
    NotYet,
    /// It is gone.
    Gone,
    /// What it sent is neither a question nor a parting.
    Misbehaved,
}

fn read(
    socket: &OwnedFd,
    most: usize,
    questions: &mut Vec<Question>,
    partings: &mut Vec<Parting>,
) -> Over {
    while questions.len() + partings.len() < most {
        let mut bytes = [0u8; LEN + 1];
        // No room for descriptors: the kernel closes what a process tries to hand in.
        match rustix::net::recv(socket, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Over::Gone,
            Ok((n, _)) => {
                let message = &bytes[..n];
                match (Question::decode(message), Parting::decode(message)) {
                    (Some(question), _) => questions.push(question),
                    (None, Some(parting)) => partings.push(parting),
                    (None, None) => return Over::Misbehaved,
                }
            }
            Err(Errno::AGAIN | Errno::INTR) => return Over::NotYet,
            Err(_) => return Over::Gone,
        }
    }
    Over::NotYet
}
