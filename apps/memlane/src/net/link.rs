//! `memlane net link`: joins two ends, and joins them again when the other process of a link has come back.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use memlane_packet::ends::generate::Verdict;
use memlane_packet::ends::join::{Join, Over, Side, Terms, run_all};
use memlane_packet::ends::memif::{
    self, ClientTerms, MemifLink, MemifListener, MemifQueue, ServerTerms,
};
use memlane_packet::ends::port::Port;
use memlane_packet::ends::vhost::{VhostDoor, VhostLink, VhostTerms};
use memlane_packet::ends::{End, EndCounts, EndError};
use memlane_packet::io::{BackTerms, FrontTerms, Link, Listener, connect};
use memlane_packet::{AttachError, Mode};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

use super::place::Place;
use crate::blocks::{bell_of_the_end, duration};
use crate::exit::{Exit, fail};
use crate::out;

/// The first pause before another try to attach, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(500)];
/// A front that has connected answers at once.
const ACCEPT_WITHIN: Duration = Duration::from_secs(5);

/// Join two ends: what comes from one goes to the other, both ways
///
/// An end is tap:NAME (made if it is not there), afpacket:INTERFACE, pcap:FILE (written), replay:FILE[?paced],
/// gen:[size=BYTES[-BYTES],][count=N,][rate=N], sink:, memif:SOCKET[?role=server|client] (DPDK, VPP; a client, unless it
/// is said), vhost-user:SOCKET[?role=server|client,memory=sealed|any] (a virtual machine; a server of sealed memory, unless
/// it is said), or the packet lane: back:SOCKET listens there, front:SOCKET connects to it and brings the memory. When the other process of a link goes, its ends stay, and it is attached again
/// as soon as it is back.
#[derive(clap::Args, Debug)]
#[command(verbatim_doc_comment)]
pub(crate) struct Args {
    /// One end
    #[arg(value_name = "END")]
    a: String,
    /// The other
    #[arg(value_name = "END")]
    b: String,
    /// front: how the back is to get at packets; back: the only way that it offers [default: the best that both have]
    #[arg(long, value_parser = mode, value_name = "persistent|map|copy")]
    mode: Option<Mode>,
    /// Queues, each with a thread; the same at both sides of a link
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=16))]
    queues: u16,
    /// Slots of each ring: a power of two, 32 to 4096
    #[arg(long, default_value = "256", value_parser = ring, value_name = "SLOTS")]
    ring: u8,
    /// Of a back: mappings that it keeps for each direction of a queue [default: one for each slot]
    #[arg(long, value_name = "N")]
    max_grants: Option<u32>,
    /// How long to look for more frames before a sleep
    #[arg(long, default_value = "10us", value_parser = spin, value_name = "TIME")]
    spin: Duration,
    /// At the end, say what was counted as JSON
    #[arg(long)]
    pub(super) json: bool,
}

fn mode(text: &str) -> Result<Mode, String> {
    let found = Mode::ALL.into_iter().find(|mode| mode.name() == text);
    found.ok_or_else(|| "persistent, map or copy".into())
}

fn ring(text: &str) -> Result<u8, String> {
    let slots: u32 = text.parse().map_err(|_| "a number".to_owned())?;
    let fits = slots.is_power_of_two() && (32..=4096).contains(&slots);
    // At most 12.
    let log2 = u8::try_from(slots.trailing_zeros()).unwrap_or(0);
    fits.then_some(log2)
        .ok_or_else(|| "a power of two, 32 to 4096".into())
}

/// As other times, and microseconds.
fn spin(text: &str) -> Result<Duration, String> {
    match text.strip_suffix("us").map(str::parse) {
        Some(Ok(micros)) => Ok(Duration::from_micros(micros)),
        Some(Err(_)) => Err(format!("{text}: no number of microseconds")),
        None => duration(text),
    }
}

/// An end that we have: its queues, and what holds them together.
#[derive(Default)]
struct Held {
    queues: Vec<Box<dyn End>>,
    link: Option<Tie>,
}

/// What holds both sides of an end together.
enum Tie {
    Lane(Link),
    Memif(MemifLink),
    Vhost(VhostLink),
}

impl Tie {
    /// What the other side has said of its end.
    fn ended(&self) -> Option<String> {
        match self {
            Tie::Lane(link) => link.ended().map(|why| why.to_string()),
            Tie::Memif(link) => link.reason(),
            Tie::Vhost(link) => link.reason(),
        }
    }

    fn mode(&self) -> String {
        match self {
            Tie::Lane(link) => format!(", mode {}", link.mode().name()),
            Tie::Memif(link) => format!(", memif, other side {}", link.peer()),
            Tie::Vhost(_) => ", vhost-user".into(),
        }
    }
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

struct Linking<'a> {
    args: &'a Args,
    stop: OwnedFd,
    /// Of a `back:`, a memif server, or for machine monitors.
    door: Option<Door>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let usage = |text: String| fail(Exit::Usage, text);
    let texts = [&args.a, &args.b];
    let [a, b] = texts.map(|text| {
        text.parse::<Place>()
            .map_err(|error| format!("{text}: {error}"))
    });
    let places = [a.map_err(usage)?, b.map_err(usage)?];
    if places.iter().all(Place::is_link) {
        return Err(usage(
            "one of the two ends must be something else than the lane, memif or vhost-user".into(),
        ));
    }
    let mut linking = Linking {
        args,
        stop: bell_of_the_end()?,
        door: None,
    };
    let mut totals = [Totals::default(), Totals::default()];
    let mut ends = [Held::default(), Held::default()];
    for ((end, place), text) in ends.iter_mut().zip(&places).zip(texts) {
        end.queues = place.open(text, args.queues)?;
        if let Place::Back(at) = place {
            let door = Listener::bind(at).map_err(|error| refused(text, &error))?;
            linking.door = Some(Door::Back(door));
        }
        if let Place::Memif(at, true) = place {
            let door = MemifListener::bind(at).map_err(|error| refused(text, &error))?;
            linking.door = Some(Door::Memif(door));
        }
        if let Place::Vhost(at) = place {
            let terms = VhostTerms {
                queues: args.queues,
                any_memory: at.any_memory,
                ..VhostTerms::default()
            };
            let door = VhostDoor::open(&at.socket, at.role, &terms);
            let door = door.map_err(|error| refused(text, &error))?;
            linking.door = Some(Door::Vhost(door));
        }
    }
    let outcome = linking.serve(&places, &mut ends, &mut totals);
    for (end, total) in ends.iter().zip(&mut totals) {
        total.take(&end.queues);
    }
    outcome?;
    say(args, &totals)
}

impl Linking<'_> {
    /// Until it is to stop, or an end that does not come back ends.
    fn serve(
        &mut self,
        places: &[Place; 2],
        ends: &mut [Held; 2],
        totals: &mut [Totals; 2],
    ) -> anyhow::Result<()> {
        loop {
            for (n, place) in places.iter().enumerate() {
                if place.is_link() {
                    // An earlier link ends here: its other side is told.
                    totals[n].take(&std::mem::take(&mut ends[n]).queues);
                    let Some(held) = self.attach(place)? else {
                        return Ok(());
                    };
                    ends[n] = held;
                }
            }
            out::warn(&format!("linked: {}", self.describe(ends)));
            let Some((side, error)) = self.work(ends)? else {
                return Ok(());
            };
            let n = usize::from(side == Side::B);
            if !places[n].is_link() {
                return match error {
                    EndError::Finished => Ok(()),
                    error => Err(fail(Exit::Failed, format!("{}: {error}", self.text(n)))),
                };
            }
            let said = ends[n].link.as_ref().and_then(Tie::ended);
            let why = said.unwrap_or_else(|| error.to_string());
            out::warn(&format!("{}: {why}; waiting for another", self.text(n)));
        }
    }

    fn text(&self, n: usize) -> &str {
        [&self.args.a, &self.args.b][n]
    }

    fn describe(&self, ends: &[Held; 2]) -> String {
        let link = ends.iter().find_map(|end| end.link.as_ref());
        let how = link.map_or(String::new(), Tie::mode);
        let (a, b) = (&self.args.a, &self.args.b);
        format!("{a} and {b}, {} queue(s){how}", self.args.queues)
    }

    /// Joins the ends' queues until one is over; `None`: we are to stop.
    fn work(&self, ends: &mut [Held; 2]) -> anyhow::Result<Option<(Side, EndError)>> {
        let terms = Terms {
            spin: self.args.spin,
            ..Terms::default()
        };
        let [a, b] = ends;
        let mut joins = Vec::new();
        for (a, b) in a.queues.drain(..).zip(b.queues.drain(..)) {
            joins.push(Join::new(a, b, terms)?);
        }
        let overs = run_all(&mut joins, &[self.stop.as_fd()])?;
        for join in joins {
            let [left, right] = join.into_ends();
            a.queues.push(left);
            b.queues.push(right);
        }
        let ended = overs.into_iter().find_map(|over| match over {
            Over::Ended(side, error) => Some((side, error)),
            Over::Stopped => None,
        });
        Ok(ended)
    }

    /// Attaches until it works; `None`: we are to stop before.
    fn attach(&self, place: &Place) -> anyhow::Result<Option<Held>> {
        let [mut pause, longest] = PAUSES;
        let mut told = false;
        loop {
            let tried = match place {
                Place::Front(at) => self.front(at),
                Place::Memif(at, false) => self.memif_client(at),
                _ => match self.back()? {
                    None => return Ok(None),
                    Some(held) => held,
                },
            };
            let error = match tried {
                Ok(held) => return Ok(Some(held)),
                Err(error) => error,
            };
            if matches!(place, Place::Front(_)) && !passes(&error) {
                return Err(refused("the back", &error));
            }
            if !told {
                out::warn(&format!("no link yet: {error}"));
                told = true;
            }
            if self.stops_within(pause)? {
                return Ok(None);
            }
            pause = (pause * 2).min(longest);
        }
    }

    fn front(&self, at: &str) -> Result<Held, AttachError> {
        let terms = FrontTerms {
            mode: self.args.mode,
            queues: self.args.queues,
            ring_log2: self.args.ring,
            ..FrontTerms::default()
        };
        let (link, queues) = connect(at, &terms)?;
        let port = |queue| Box::new(Port::new(format!("front:{at}"), queue, &link)) as Box<dyn End>;
        let queues = queues.into_iter().map(port).collect();
        Ok(Held {
            queues,
            link: Some(Tie::Lane(link)),
        })
    }

    /// Waits for a front; `None`: we are to stop.
    fn back(&self) -> anyhow::Result<Option<Result<Held, AttachError>>> {
        let Some(door) = &self.door else {
            return Ok(None);
        };
        let fds = &mut [
            PollFd::new(&self.stop, PollFlags::IN),
            PollFd::new(door, PollFlags::IN),
        ];
        while let Err(errno) = poll(fds, None) {
            anyhow::ensure!(errno == rustix::io::Errno::INTR, "waiting: {errno}");
        }
        if !fds[0].revents().is_empty() {
            return Ok(None);
        }
        Ok(Some(match door {
            Door::Back(door) => self.accept(door),
            Door::Memif(door) => self.memif_server(door),
            Door::Vhost(door) => vhost(door),
        }))
    }

    fn memif_client(&self, at: &str) -> Result<Held, AttachError> {
        let terms = ClientTerms {
            queues: self.args.queues,
            ..ClientTerms::default()
        };
        self.memif(memif::connect(at, &terms)?)
    }

    fn memif_server(&self, door: &MemifListener) -> Result<Held, AttachError> {
        let terms = ServerTerms {
            queues: self.args.queues,
            ..ServerTerms::default()
        };
        self.memif(door.accept(&terms, ACCEPT_WITHIN)?)
    }

    fn memif(&self, (link, queues): (MemifLink, Vec<MemifQueue>)) -> Result<Held, AttachError> {
        if queues.len() != usize::from(self.args.queues) {
            return Err(AttachError::Config(
                "the other side has fewer queues: start both sides with the same number",
            ));
        }
        let end = |queue| Box::new(queue) as Box<dyn End>;
        Ok(Held {
            queues: queues.into_iter().map(end).collect(),
            link: Some(Tie::Memif(link)),
        })
    }

    fn accept(&self, door: &Listener) -> Result<Held, AttachError> {
        let modes = Mode::ALL.map(|mode| self.args.mode.is_none_or(|only| only == mode));
        let terms = BackTerms {
            modes,
            queues: self.args.queues,
            max_grants: self.args.max_grants,
            ..BackTerms::default()
        };
        let (link, queues) = door.accept(&terms, ACCEPT_WITHIN)?;
        if queues.len() != usize::from(self.args.queues) {
            return Err(AttachError::Config(
                "the front has fewer queues: start both sides with the same --queues",
            ));
        }
        let port = |queue| Box::new(Port::new("back".into(), queue, &link)) as Box<dyn End>;
        let queues = queues.into_iter().map(port).collect();
        Ok(Held {
            queues,
            link: Some(Tie::Lane(link)),
        })
    }

    fn stops_within(&self, pause: Duration) -> anyhow::Result<bool> {
        let pause = Timespec::try_from(pause)?;
        let fds = &mut [PollFd::new(&self.stop, PollFlags::IN)];
        Ok(poll(fds, Some(&pause)).is_ok_and(|n| n > 0))
    }
}

fn vhost(door: &VhostDoor) -> Result<Held, AttachError> {
    let (link, queues) = door.accept(ACCEPT_WITHIN)?;
    let end = |queue| Box::new(queue) as Box<dyn End>;
    Ok(Held {
        queues: queues.into_iter().map(end).collect(),
        link: Some(Tie::Vhost(link)),
    })
}

/// Can the next try of a front be better?
fn passes(error: &AttachError) -> bool {
    matches!(error, AttachError::Socket(_) | AttachError::Timeout)
}

fn refused(text: &str, error: &AttachError) -> anyhow::Error {
    let exit = match error {
        AttachError::Refused(_)
        | AttachError::NotOffered(_)
        | AttachError::Stranger(_)
        | AttachError::Wire(_)
        | AttachError::Memif(_)
        | AttachError::VhostUser(_) => Exit::PeerRefused,
        _ => Exit::Failed,
    };
    fail(exit, format!("{text}: {error}"))
}

/// What an end has counted, over all its queues and attaches.
#[derive(Default)]
struct Totals {
    counts: EndCounts,
    verdict: Option<Verdict>,
}

impl Totals {
    fn take(&mut self, queues: &[Box<dyn End>]) {
        for queue in queues {
            let (more, sum) = (queue.counts(), &mut self.counts);
            sum.received += more.received;
            sum.received_bytes += more.received_bytes;
            sum.sent += more.sent;
            sum.sent_bytes += more.sent_bytes;
            sum.full += more.full;
            sum.failed += more.failed;
            self.verdict = queue.verdict().or(self.verdict);
        }
    }
}

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    ends: [EndDocument<'a>; 2],
}

#[derive(Serialize)]
struct EndDocument<'a> {
    end: &'a str,
    received: u64,
    received_bytes: u64,
    sent: u64,
    sent_bytes: u64,
    full: u64,
    failed: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    verdict: Option<VerdictDocument>,
}

#[derive(Serialize)]
struct VerdictDocument {
    good: u64,
    missing: u64,
    late: u64,
    twice: u64,
    changed: u64,
    strange: u64,
}

impl<'a> EndDocument<'a> {
    fn new(end: &'a str, totals: &Totals) -> EndDocument<'a> {
        let counts = totals.counts;
        EndDocument {
            end,
            received: counts.received,
            received_bytes: counts.received_bytes,
            sent: counts.sent,
            sent_bytes: counts.sent_bytes,
            full: counts.full,
            failed: counts.failed,
            verdict: totals.verdict.map(|seen| VerdictDocument {
                good: seen.good,
                missing: seen.missing,
                late: seen.late,
                twice: seen.twice,
                changed: seen.changed,
                strange: seen.strange,
            }),
        }
    }

    fn text(&self) -> String {
        let mut text = format!(
            "{}: {} frames ({} bytes) came, {} ({} bytes) went, {} found no room at once, {} were of no use\n",
            self.end,
            self.received,
            self.received_bytes,
            self.sent,
            self.sent_bytes,
            self.full,
            self.failed
        );
        if let Some(seen) = &self.verdict {
            text += &format!(
                "{}: {} good, {} missing, {} late, {} twice, {} changed, {} strange\n",
                self.end,
                seen.good,
                seen.missing,
                seen.late,
                seen.twice,
                seen.changed,
                seen.strange
            );
        }
        text
    }
}

fn say(args: &Args, totals: &[Totals; 2]) -> anyhow::Result<()> {
    let [a, b] = totals;
    let document = Document {
        schema: "memlane.net-link/1",
        ends: [EndDocument::new(&args.a, a), EndDocument::new(&args.b, b)],
    };
    let text = match args.json {
        true => out::json(&document)?,
        false => document.ends.iter().map(EndDocument::text).collect(),
    };
    out::print(&text)
}
