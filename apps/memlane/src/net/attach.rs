//! A link that comes to be: waiting for the other process, by whatever protocol.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use memlane_packet::io::{BackTerms, FrontTerms, Link, Listener, connect};
use memlane_packet::{AttachError, Detach, Mode};
use memlane_packet_ends::loan::{self, Loan};
use memlane_packet_ends::memif::{
    self, ClientTerms, MemifLink, MemifListener, MemifQueue, ServerTerms,
};
use memlane_packet_ends::port::Port;
use memlane_packet_ends::vhost::{VhostDoor, VhostLink, VhostTerms};
use memlane_packet_ends::{End, LoanError, OpenError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use super::args::Job;
use super::documents::Peer;
use super::place::{EndSpec, Memif};
use super::watched::Attached;
use crate::cli::exit::{Exit, fail};
use crate::cli::out;
use crate::daemon::service::bell_of_the_end;

/// The first pause before another try to attach, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(500)];
/// A front that has connected answers at once.
const ACCEPT_WITHIN: Duration = Duration::from_secs(5);
/// After so long it is said again that nobody came; then four times as long.
const SAY_AGAIN: Duration = Duration::from_secs(3);

/// What ends the work from without: signals, and the time that was set.
#[derive(Debug)]
pub(super) struct Stops {
    bell: OwnedFd,
    timer: OwnedFd,
    time: Option<Duration>,
}

impl Stops {
    pub(super) fn new(time: Option<Duration>) -> anyhow::Result<Stops> {
        Ok(Stops {
            bell: bell_of_the_end()?,
            timer: timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?,
            time,
        })
    }

    /// From now on the time counts, unless it does already.
    pub(super) fn start(&mut self) -> anyhow::Result<()> {
        let Some(time) = self.time.take() else {
            return Ok(());
        };
        let once = Itimerspec {
            it_interval: Timespec::default(),
            it_value: Timespec::try_from(time)?,
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)?;
        Ok(())
    }

    pub(super) fn all(&self) -> [BorrowedFd<'_>; 2] {
        [self.bell.as_fd(), self.timer.as_fd()]
    }

    /// Was it a signal?
    pub(super) fn signalled(&self) -> bool {
        is_ready(&[self.bell.as_fd()], Duration::ZERO) == Some(0)
    }
}

/// Waits for one of them, not longer than `limit`; which.
pub(super) fn is_ready(fds: &[BorrowedFd<'_>], limit: Duration) -> Option<usize> {
    let mut polled: Vec<PollFd<'_>> = fds
        .iter()
        .map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
        .collect();
    let limit = Timespec::try_from(limit).ok();
    // Interrupted: who waits looks again, and at the time.
    poll(&mut polled, limit.as_ref()).ok()?;
    polled.iter().position(|fd| !fd.revents().is_empty())
}

/// A link that is attached: its queues, and what holds them together.
pub(super) struct AttachedLink {
    pub(super) queues: Vec<Box<dyn End>>,
    tie: Tie,
}

/// What holds both sides of a link together.
enum Tie {
    Lane(Link),
    Loan(Loan),
    Memif(MemifLink),
    Vhost(VhostLink),
}

impl AttachedLink {
    /// What the other side has said of its end.
    pub(super) fn ended(&self) -> Option<String> {
        match &self.tie {
            Tie::Lane(link) => link.ended().map(|why| why.to_string()),
            Tie::Loan(loan) => loan.ended().map(|why| why.to_string()),
            Tie::Memif(link) => link.reason(),
            Tie::Vhost(link) => link.reason(),
        }
    }

    /// Tells the other side why this one ends.
    pub(super) fn close(self, why: &Detach) {
        match self.tie {
            Tie::Lane(link) => link.close(why),
            Tie::Memif(link) => link.close(why),
            // That the socket closes says it.
            Tie::Loan(loan) => drop(loan),
            // A guest is told nothing: its device is gone.
            Tie::Vhost(link) => drop(link),
        }
    }

    /// For people.
    pub(super) fn how(&self) -> String {
        match &self.tie {
            Tie::Lane(link) => format!(", mode {}", link.mode().name()),
            Tie::Loan(_) => ", a lent device".into(),
            Tie::Memif(link) => format!(", memif, other side {}", link.peer()),
            Tie::Vhost(_) => ", a virtual machine".into(),
        }
    }

    pub(super) fn attached(&self) -> Attached {
        let (socket, mode, interface) = match &self.tie {
            Tie::Lane(link) => (Some(link.as_fd()), Some(link.mode().name()), None),
            Tie::Loan(loan) => (Some(loan.as_fd()), None, None),
            Tie::Memif(link) => (Some(link.as_fd()), None, Some(printable(&link.peer()))),
            // The monitor's socket is its thread's.
            Tie::Vhost(_) => (None, None, None),
        };
        let peer = socket.and_then(|socket| memlane_observe::control::peer(socket).ok());
        let peer = peer.map(|(pid, uid)| Peer {
            pid,
            uid,
            interface,
        });
        Attached { mode, peer }
    }
}

fn printable(text: &str) -> String {
    memlane_observe::printable(text.as_bytes())
}

/// Where others come to us.
enum Door {
    Back(Listener),
    Memif(MemifListener),
    Vhost(VhostDoor),
}

impl AsFd for Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Door::Back(door) => door.as_fd(),
            Door::Memif(door) => door.as_fd(),
            Door::Vhost(door) => door.as_fd(),
        }
    }
}

/// The end of a job that is a link.
pub(super) struct Attacher<'a> {
    job: &'a Job,
    label: &'a str,
    place: &'a EndSpec,
    door: Option<Door>,
}

impl<'a> Attacher<'a> {
    /// Listens, if it is for others to come. `None`: this end is no link.
    pub(super) fn open(job: &'a Job, n: usize) -> anyhow::Result<Option<Attacher<'a>>> {
        let end = &job.ends[n];
        if !end.place.is_link() {
            return Ok(None);
        }
        let door = match &end.place {
            EndSpec::Back(at) => Some(Listener::bind(at).map(Door::Back)),
            EndSpec::Memif(memif) if memif.server => {
                Some(MemifListener::bind(&memif.socket).map(Door::Memif))
            }
            EndSpec::Vhost(machine) => {
                let terms = VhostTerms {
                    queues: job.queues,
                    any_memory: machine.any_memory,
                    ..VhostTerms::default()
                };
                let door = VhostDoor::open(&machine.socket, machine.role, &terms);
                Some(door.map(Door::Vhost))
            }
            _ => None,
        };
        let door = door.transpose();
        Ok(Some(Attacher {
            job,
            label: &end.label,
            place: &end.place,
            door: door.map_err(|error| not_bound(&end.label, error))?,
        }))
    }

    /// Attaches, however long it takes; `None`: we are to stop. `limit`: then that is a failure.
    pub(super) fn attach(
        &self,
        stops: &Stops,
        first: bool,
        limit: Option<Duration>,
    ) -> anyhow::Result<Option<AttachedLink>> {
        let mut vigil = Vigil::new(self.place.awaited(), first, limit);
        match &self.door {
            Some(door) => self.let_in(door, stops, &mut vigil),
            None => self.call(stops, &mut vigil),
        }
    }

    fn let_in(
        &self,
        door: &Door,
        stops: &Stops,
        vigil: &mut Vigil,
    ) -> anyhow::Result<Option<AttachedLink>> {
        let [bell, timer] = stops.all();
        let [mut pause, longest] = PAUSES;
        let mut why = None;
        loop {
            let limit = vigil.look(why.as_ref())?;
            match is_ready(&[bell, timer, door.as_fd()], limit) {
                Some(0 | 1) => return Ok(None),
                Some(_) => {}
                None => continue,
            }
            let tried = match door {
                Door::Back(door) => self.back(door),
                Door::Memif(door) => self.memif_server(door),
                Door::Vhost(door) => guest(door),
            };
            match tried {
                Ok(held) => return Ok(Some(held)),
                Err(error) => why = Some(error.to_string()),
            }
            // Whoever comes in vain again and again shall not keep us busy.
            if is_ready(&stops.all(), pause).is_some() {
                return Ok(None);
            }
            pause = (pause * 2).min(longest);
        }
    }

    fn call(&self, stops: &Stops, vigil: &mut Vigil) -> anyhow::Result<Option<AttachedLink>> {
        let [mut pause, longest] = PAUSES;
        loop {
            let tried = match self.place {
                EndSpec::Memif(memif) => self.memif_client(memif),
                EndSpec::Front(at) => self.front(at),
                EndSpec::Lent(at) => self.borrow(at),
                // Who comes to us has a door.
                _ => Err(AttachError::Config("no link").into()),
            };
            let error = match tried {
                Ok(held) => return Ok(Some(held)),
                Err(error) => error,
            };
            let whom = match self.place {
                EndSpec::Front(_) => Some("the back"),
                EndSpec::Lent(_) => Some("the lender"),
                _ => None,
            };
            if let Some(whom) = whom.filter(|_| !passes(&error)) {
                return Err(refused(self.label, whom, &error));
            }
            let limit = vigil.look(Some(&because(&error)))?;
            if is_ready(&stops.all(), pause.min(limit)).is_some() {
                return Ok(None);
            }
            pause = (pause * 2).min(longest);
        }
    }

    fn front(&self, at: &str) -> Result<AttachedLink, OpenError> {
        let defaults = FrontTerms::default();
        let terms = FrontTerms {
            mode: self.job.mode,
            queues: self.job.queues,
            ring_log2: self.job.ring.unwrap_or(defaults.ring_log2),
            ..defaults
        };
        let (link, queues) = connect(at, &terms)?;
        let port = |queue| Box::new(Port::new(self.label.to_owned(), queue, &link)) as Box<dyn End>;
        Ok(AttachedLink {
            queues: queues.into_iter().map(port).collect(),
            tie: Tie::Lane(link),
        })
    }

    fn back(&self, door: &Listener) -> Result<AttachedLink, OpenError> {
        let terms = BackTerms {
            modes: Mode::ALL.map(|mode| self.job.mode.is_none_or(|only| only == mode)),
            queues: self.job.queues,
            queues_least: self.job.queues,
            max_grants: self.job.max_grants,
            ..BackTerms::default()
        };
        let (link, queues) = door.accept(&terms, ACCEPT_WITHIN)?;
        let port = |queue| Box::new(Port::new(self.label.to_owned(), queue, &link)) as Box<dyn End>;
        Ok(AttachedLink {
            queues: queues.into_iter().map(port).collect(),
            tie: Tie::Lane(link),
        })
    }

    fn borrow(&self, at: &str) -> Result<AttachedLink, OpenError> {
        let (loan, queues) = loan::borrow(at, self.job.queues)?;
        let end = |queue| Box::new(queue) as Box<dyn End>;
        Ok(AttachedLink {
            queues: queues.into_iter().map(end).collect(),
            tie: Tie::Loan(loan),
        })
    }

    fn memif_client(&self, place: &Memif) -> Result<AttachedLink, OpenError> {
        let defaults = ClientTerms::default();
        let terms = ClientTerms {
            id: place.id,
            secret: place.secret.clone(),
            queues: self.job.queues,
            ring_log2: place.ring.unwrap_or(defaults.ring_log2),
            buffer: place.buffer.unwrap_or(defaults.buffer),
            ..defaults
        };
        self.memif(memif::connect(&place.socket, &terms)?)
    }

    fn memif_server(&self, door: &MemifListener) -> Result<AttachedLink, OpenError> {
        let EndSpec::Memif(place) = self.place else {
            return Err(AttachError::Config("no memif").into());
        };
        let defaults = ServerTerms::default();
        let terms = ServerTerms {
            id: place.id,
            secret: place.secret.clone(),
            queues: self.job.queues,
            ring_log2: place.ring.unwrap_or(defaults.ring_log2),
            ..defaults
        };
        self.memif(door.accept(&terms, ACCEPT_WITHIN)?)
    }

    fn memif(
        &self,
        (link, queues): (MemifLink, Vec<MemifQueue>),
    ) -> Result<AttachedLink, OpenError> {
        if queues.len() != usize::from(self.job.queues) {
            let fewer = "the other side has fewer queues: start both sides with the same number";
            return Err(AttachError::Config(fewer).into());
        }
        let end = |queue| Box::new(queue) as Box<dyn End>;
        Ok(AttachedLink {
            queues: queues.into_iter().map(end).collect(),
            tie: Tie::Memif(link),
        })
    }
}

/// A guest whose driver is there.
fn guest(door: &VhostDoor) -> Result<AttachedLink, OpenError> {
    let (link, queues) = door.accept(ACCEPT_WITHIN)?;
    let end = |queue| Box::new(queue) as Box<dyn End>;
    Ok(AttachedLink {
        queues: queues.into_iter().map(end).collect(),
        tie: Tie::Vhost(link),
    })
}

/// Who waits, for how long already, and when that is said.
struct Vigil {
    whom: String,
    since: Instant,
    limit: Option<Duration>,
    /// The next time that it is said; nothing: at once.
    next: Duration,
    /// What was said last, and when.
    said: (String, Instant),
}

impl Vigil {
    fn new(whom: String, first: bool, limit: Option<Duration>) -> Vigil {
        let now = Instant::now();
        Vigil {
            whom,
            since: now,
            limit,
            // That an earlier link has gone was said, and that another is awaited.
            next: if first { Duration::ZERO } else { SAY_AGAIN },
            said: (String::new(), now),
        }
    }

    /// Says it, if it is time to; how long until it is to be looked at again.
    fn look(&mut self, why: Option<&String>) -> anyhow::Result<Duration> {
        let waited = self.since.elapsed();
        if let Some(limit) = self.limit.filter(|limit| waited >= *limit) {
            let why = why.map_or(String::new(), |why| format!(": {why}"));
            let text = format!(
                "nobody came within {limit:?}: {} was awaited{why}",
                self.whom
            );
            return Err(fail(Exit::NobodyCame, text));
        }
        let (said, when) = &self.said;
        let news = why.is_some_and(|why| why != said) && when.elapsed() >= Duration::from_secs(1);
        let first_reason = said.is_empty() && why.is_some();
        if waited >= self.next || news || first_reason {
            self.say(waited, why);
        }
        let again = self.next.saturating_sub(waited);
        let left = self.limit.map(|limit| limit.saturating_sub(waited));
        Ok(left.map_or(again, |left| left.min(again)))
    }

    fn say(&mut self, waited: Duration, why: Option<&String>) {
        let seconds = waited.as_secs();
        let since = match seconds {
            0 => String::new(),
            seconds => format!(" (since {seconds} s)"),
        };
        let whom = &self.whom;
        match why {
            None => out::note(&format!("waiting for {whom}{since}")),
            Some(why) => out::note(&format!("no link yet: {why}; waiting for {whom}{since}")),
        }
        self.said = (why.cloned().unwrap_or_default(), Instant::now());
        while self.next <= waited {
            self.next = (self.next * 4).max(SAY_AGAIN);
        }
    }
}

/// May the next try of a front or of a borrower succeed?
fn passes(error: &OpenError) -> bool {
    // EPROTOTYPE, ENAMETOOLONG, EINVAL: another kind of socket, or not a valid name.
    let hopeless = |errno: i32| [91, 36, 22].contains(&errno);
    match error {
        OpenError::Attach(AttachError::Socket(errno)) => !hopeless(errno.0),
        OpenError::Attach(AttachError::Timeout) | OpenError::Loan(LoanError::Taken) => true,
        _ => false,
    }
}

/// Why there is no link, for the user.
fn because(error: &OpenError) -> String {
    let OpenError::Attach(AttachError::Socket(errno)) = error else {
        return error.to_string();
    };
    match errno.0 {
        2 => "the socket does not exist: start the other side first".into(),
        111 => "no process listens on this socket: start the other side first".into(),
        13 => "permission denied: the permissions of the socket decide who may attach".into(),
        104 => "the other side closed the connection".into(),
        91 => "it is another kind of socket".into(),
        36 | 22 => "not a valid name for a socket: use a path of up to 107 bytes, or @NAME".into(),
        _ => error.to_string(),
    }
}

fn refused(label: &str, whom: &str, error: &OpenError) -> anyhow::Error {
    let exit = match error {
        OpenError::Attach(
            AttachError::Refused(_)
            | AttachError::NotOffered(_)
            | AttachError::Stranger(_)
            | AttachError::Wire(_),
        )
        | OpenError::Loan(_)
        | OpenError::Memif(_)
        | OpenError::VhostUser(_) => Exit::PeerRefused,
        _ => Exit::Failed,
    };
    let advice = match error {
        OpenError::Attach(AttachError::NotOffered("this number of queues")) => {
            ": start both sides with the same --queues"
        }
        OpenError::Attach(AttachError::NotOffered("that mode")) => {
            ": it was started with another --mode"
        }
        _ => "",
    };
    let why = because(error);
    let why = why.strip_prefix("the back ").unwrap_or(&why);
    fail(exit, format!("{label}: {whom}: {why}{advice}"))
}

/// Why nobody can listen there, for the user.
pub(super) fn not_bound(label: &str, error: AttachError) -> anyhow::Error {
    let why = match &error {
        // EADDRINUSE, ENOENT, EACCES, EPERM.
        AttachError::Socket(errno) => match errno.0 {
            98 => "another process listens there, or a file that is not a socket has this name: choose another name".into(),
            2 => "the directory does not exist".into(),
            1 | 13 => "permission denied: a socket cannot be made in this directory".into(),
            36 | 22 => because(&error.into()),
            _ => format!("cannot listen: {errno}"),
        },
        _ => error.to_string(),
    };
    fail(Exit::Failed, format!("{label}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_says_so_at_once_when_the_reason_changes_and_ever_more_rarely() {
        let mut vigil = Vigil::new("a back".into(), true, None);
        let again = vigil.look(None).expect("no limit");
        assert!(again <= SAY_AGAIN && again > SAY_AGAIN / 2, "{again:?}");
        vigil.look(Some(&"because".into())).expect("no limit");
        assert_eq!(vigil.said.0, "because");
        // Not twice within a second.
        vigil.look(Some(&"of this".into())).expect("no limit");
        assert_eq!(vigil.said.0, "because");
        vigil.say(SAY_AGAIN * 5, None);
        assert_eq!(vigil.next, SAY_AGAIN * 16);
    }

    #[test]
    fn a_wait_with_a_limit_ends_with_a_code_of_its_own() {
        let mut vigil = Vigil::new("a back at /x".into(), true, Some(Duration::ZERO));
        let error = vigil.look(Some(&"why".into())).expect_err("it is over");
        assert_eq!(crate::cli::exit::code_of(&error), Exit::NobodyCame);
        let text = error.to_string();
        assert!(
            text.contains("a back at /x") && text.contains("why"),
            "{text}"
        );
        let mut vigil = Vigil::new("x".into(), true, Some(Duration::from_secs(1)));
        assert!(vigil.look(None).expect("not yet") <= Duration::from_secs(1));
    }

    #[test]
    fn a_set_time_counts_from_its_start() {
        let mut stops = Stops::new(Some(Duration::from_millis(1))).expect("descriptors");
        assert_eq!(is_ready(&stops.all(), Duration::from_millis(20)), None);
        stops.start().expect("a timer");
        assert_eq!(is_ready(&stops.all(), Duration::from_secs(10)), Some(1));
        assert!(!stops.signalled());
    }
}
