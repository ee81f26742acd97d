//! What the verbs that join are told, and what becomes of it: a [`Job`].

use std::net::SocketAddr;
use std::time::Duration;

use memlane_observe::control;
use memlane_packet::Mode;

use super::options;
use super::place::{self, EndSpec};
use crate::cli::exit::{Exit, fail};
use crate::cli::values::duration;

/// Join two ends: frames from each go to the other
///
/// An END is one of:
///   tap:NAME[?netns=NAMESPACE]
///                           TAP device, made if it does not exist
///   lent:SOCKET             TAP device that memlane net lend lends
///   afpacket:INTERFACE[?netns=NAMESPACE]
///                           interface of the kernel
///   pcap:FILE[?snap=N]      capture file to write
///   replay:FILE[?paced&loop]
///                           capture file to read
///   gen:[size=BYTES[-BYTES],count=N,rate=N]
///                           generator of frames
///   sink:[count=N]          checks frames of a generator
///   memif:SOCKET[?role=server|client&id=N&secret=TEXT&ring=SLOTS&buffer=BYTES]
///                           DPDK or VPP; role is client by default
///   vhost-user:SOCKET[?role=server|client&memory=sealed|any]
///                           virtual machine; by default a server that wants sealed memory
///   into:REGION?flow=RULE[;RULE][&chunk=SIZE&unchecked&validate=N&output=FILE]
///                           payload of the packets that match goes to device memory
///   back:SOCKET             packet lane: listen here
///   front:SOCKET            packet lane: connect here and bring the memory
///
/// If the other process of a link ends, this one keeps its ends and attaches again when the other process is back.
#[derive(clap::Args, Debug)]
#[command(verbatim_doc_comment)]
pub(crate) struct LinkArgs {
    /// First end
    #[arg(value_name = "END")]
    a: String,
    /// Second end
    #[arg(value_name = "END")]
    b: String,
    #[command(flatten)]
    queues: Queues,
    #[command(flatten)]
    lane: LaneArgs,
    #[command(flatten)]
    common: Common,
}

/// Listen for a front of the packet lane, and join it to an end
///
/// The front brings the memory. The permissions of the socket decide who may attach; @NAME is an abstract name, for
/// processes of the same user. memlane net link --help lists the ends.
#[derive(clap::Args, Debug)]
pub(crate) struct BackArgs {
    /// Listen here: a path, or @NAME
    socket: String,
    /// End to join it to
    end: String,
    /// Offer only this way to reach the front's memory [default: the best one that both support]
    #[arg(long, value_parser = mode, value_name = "persistent|map|copy")]
    mode: Option<Mode>,
    /// Mappings to keep for each direction of a queue [default: one for each slot]
    #[arg(long, value_name = "N")]
    max_grants: Option<u32>,
    #[command(flatten)]
    queues: Queues,
    #[command(flatten)]
    common: Common,
}

/// Connect to a back of the packet lane, bring the memory, and join it to an end
///
/// memlane net link --help lists the ends.
#[derive(clap::Args, Debug)]
pub(crate) struct FrontArgs {
    /// Socket of the back: a path, or @NAME
    socket: String,
    /// End to join it to
    end: String,
    /// How the back reaches this memory [default: the best way that both support]
    #[arg(long, value_parser = mode, value_name = "persistent|map|copy")]
    mode: Option<Mode>,
    /// Slots in each ring: a power of two from 32 to 4096 [default: 256]
    #[arg(long, value_parser = ring, value_name = "SLOTS")]
    ring: Option<u8>,
    #[command(flatten)]
    queues: Queues,
    #[command(flatten)]
    common: Common,
}

/// Send frames to an end that memlane net sink can check
///
/// Each frame has a number, and its contents follow from the number. memlane net sink at the other side tells whether all
/// frames arrived once, in order and unchanged. memlane net link --help lists the ends.
#[derive(clap::Args, Debug)]
pub(crate) struct GenArgs {
    /// End to send to
    end: String,
    /// Size of the frames; MIN-MAX cycles through all sizes from MIN to MAX
    #[arg(long, default_value = "64", value_parser = place::sizes, value_name = "BYTES")]
    size: (usize, usize),
    /// Number of frames [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Frames each second [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    rate: Option<u64>,
    /// Stop after this many seconds, counted from the first attach
    #[arg(long, value_parser = seconds, value_name = "N")]
    seconds: Option<Duration>,
    #[command(flatten)]
    lane: LaneArgs,
    #[command(flatten)]
    common: Common,
}

/// Check frames of memlane net gen that come from an end
///
/// Exit code 0: all frames arrived once and unchanged; 6: they did not. Frames of other senders are counted as strange and
/// do not change the exit code. memlane net link --help lists the ends.
#[derive(clap::Args, Debug)]
pub(crate) struct SinkArgs {
    /// End to receive from
    end: String,
    /// Stop after N good frames; exit code 6 if it stops earlier
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Stop after this many seconds, counted from the first attach
    #[arg(long, value_parser = seconds, value_name = "N")]
    seconds: Option<Duration>,
    #[command(flatten)]
    lane: LaneArgs,
    #[command(flatten)]
    common: Common,
}

#[derive(clap::Args, Debug, Clone)]
struct Queues {
    /// Number of queues, each with a thread; both sides of a link need the same number
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=16))]
    queues: u16,
}

#[derive(clap::Args, Debug, Clone)]
struct LaneArgs {
    /// For a front: how the back reaches its memory. For a back: the only way that it offers [default: the best way that
    /// both support]
    #[arg(long, value_parser = mode, value_name = "persistent|map|copy")]
    mode: Option<Mode>,
    /// For a front: slots in each ring, a power of two from 32 to 4096 [default: 256]
    #[arg(long, value_parser = ring, value_name = "SLOTS")]
    ring: Option<u8>,
    /// For a back: mappings to keep for each direction of a queue [default: one for each slot]
    #[arg(long, value_name = "N")]
    max_grants: Option<u32>,
}

#[derive(clap::Args, Debug, Clone)]
struct Common {
    /// Longest time to spin for more frames before a sleep
    #[arg(long, default_value = "10us", value_parser = spin, value_name = "TIME")]
    spin: Duration,
    /// Exit when the link ends, instead of waiting for another
    #[arg(long)]
    once: bool,
    /// Exit with code 7 if nothing attaches within this time [default: wait for ever]
    #[arg(long, value_parser = duration, value_name = "TIME")]
    wait: Option<Duration>,
    /// Name of this process in memlane net stats [default: its process id]
    #[arg(long, value_parser = name)]
    name: Option<String>,
    /// Serve metrics for Prometheus here
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
    /// Print the counters as one JSON document at the end
    #[arg(long)]
    json: bool,
}

fn mode(text: &str) -> Result<Mode, String> {
    let found = Mode::ALL.into_iter().find(|mode| mode.name() == text);
    found.ok_or_else(|| "persistent, map or copy".into())
}

fn ring(text: &str) -> Result<u8, String> {
    options::slots(text, 32..=4096)
}

/// Parses a time, also in microseconds (`10us`).
fn spin(text: &str) -> Result<Duration, String> {
    match text.strip_suffix("us").map(str::parse) {
        Some(Ok(micros)) => Ok(Duration::from_micros(micros)),
        Some(Err(_)) => Err(format!("{text}: no number of microseconds")),
        None => duration(text),
    }
}

/// Parses a time, also in fractions of a second (`0.5`).
fn seconds(text: &str) -> Result<Duration, String> {
    let parts = text.parse().ok().map(Duration::try_from_secs_f64);
    let time = match parts {
        Some(time) => time.map_err(|error| error.to_string()),
        None => duration(text),
    };
    time.and_then(|time| match time.is_zero() {
        true => Err("more than nothing".into()),
        false => Ok(time),
    })
}

fn name(text: &str) -> Result<String, String> {
    let fine = control::is_name(text).then(|| text.to_owned());
    fine.ok_or_else(|| "1 to 64 letters, digits, dots, dashes and underscores".into())
}

/// Which verb it was: where their ends differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Link,
    Back,
    Front,
    Gen,
    Sink,
}

impl Kind {
    pub(super) fn word(self) -> &'static str {
        match self {
            Kind::Link => "link",
            Kind::Back => "back",
            Kind::Front => "front",
            Kind::Gen => "gen",
            Kind::Sink => "sink",
        }
    }

    /// Of the document at the end.
    pub(super) fn schema(self) -> &'static str {
        match self {
            Kind::Link | Kind::Back | Kind::Front => "memlane.net-link/1",
            Kind::Gen => "memlane.net-gen/1",
            Kind::Sink => "memlane.net-sink/1",
        }
    }
}

/// An end, and what it may be called.
#[derive(Debug)]
pub(super) struct Given {
    pub(super) label: String,
    pub(super) place: EndSpec,
}

/// What is to be done.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) kind: Kind,
    pub(super) ends: [Given; 2],
    pub(super) mode: Option<Mode>,
    pub(super) queues: u16,
    pub(super) ring: Option<u8>,
    pub(super) max_grants: Option<u32>,
    /// Frames without which it has failed; 0: it can't.
    pub(super) count: u64,
    pub(super) seconds: Option<Duration>,
    pub(super) spin: Duration,
    pub(super) once: bool,
    pub(super) wait: Option<Duration>,
    pub(super) name: Option<String>,
    pub(super) metrics: Option<SocketAddr>,
    pub(super) json: bool,
}

impl Job {
    fn new(
        kind: Kind,
        ends: [&str; 2],
        queues: u16,
        lane: &LaneArgs,
        common: &Common,
    ) -> anyhow::Result<Job> {
        let [a, b] = ends.map(given);
        let job = Job {
            kind,
            ends: [a?, b?],
            mode: lane.mode,
            queues,
            ring: lane.ring,
            max_grants: lane.max_grants,
            count: 0,
            seconds: None,
            spin: common.spin,
            once: common.once,
            wait: common.wait,
            name: common.name.clone(),
            metrics: common.metrics,
            json: common.json,
        };
        match job.complaint() {
            None => Ok(job),
            Some(text) => Err(fail(Exit::Usage, text)),
        }
    }

    /// Which options do not go together, and what to do about it.
    fn complaint(&self) -> Option<String> {
        let has = |is: fn(&EndSpec) -> bool| self.ends.iter().any(|end| is(&end.place));
        let front = has(|place| matches!(place, EndSpec::Front(_)));
        let back = has(|place| matches!(place, EndSpec::Back(_)));
        let memif = has(|place| matches!(place, EndSpec::Memif(_)));
        let [a, b] = &self.ends;
        if a.place.is_link() && a.place.socket() == b.place.socket() {
            let text = "both ends have the same socket: give one of them another, since another process must be at its other side";
            return Some(text.into());
        }
        if self.mode.is_some() && !front && !back {
            return Some("--mode needs an end front: or back:".into());
        }
        if self.ring.is_some() && !front {
            return Some(match memif {
                true => "--ring needs an end front:; for memif, use memif:SOCKET?ring=SLOTS".into(),
                false => "--ring needs an end front:, which brings the memory: use it on that side"
                    .to_owned(),
            });
        }
        if self.max_grants.is_some() && !back {
            return Some(
                "--max-grants needs an end back:, which keeps the mappings: use it on that side"
                    .into(),
            );
        }
        if (self.once || self.wait.is_some()) && !has(EndSpec::is_link) {
            return Some(
                "--once and --wait need an end front:, back:, lent:, memif: or vhost-user:".into(),
            );
        }
        None
    }
}

fn given(text: &str) -> anyhow::Result<Given> {
    let place: EndSpec = text
        .parse()
        .map_err(|error| fail(Exit::Usage, format!("{text}: {error}")))?;
    Ok(Given {
        label: place.label(text),
        place,
    })
}

/// `SOCKET` of `back` and `front`.
fn socket(kind: Kind, at: &str) -> anyhow::Result<String> {
    if at.contains(':') && at.parse::<EndSpec>().is_ok() {
        let text = format!(
            "{at}: say where, and no kind of end: memlane net {} SOCKET END",
            kind.word()
        );
        return Err(fail(Exit::Usage, text));
    }
    Ok(format!("{}:{at}", kind.word()))
}

const NO_LANE: LaneArgs = LaneArgs {
    mode: None,
    ring: None,
    max_grants: None,
};

impl LinkArgs {
    pub(super) fn job(&self) -> anyhow::Result<Job> {
        let ends = [self.a.as_str(), &self.b];
        Job::new(
            Kind::Link,
            ends,
            self.queues.queues,
            &self.lane,
            &self.common,
        )
    }

    pub(super) fn json(&self) -> bool {
        self.common.json
    }
}

impl BackArgs {
    pub(super) fn job(&self) -> anyhow::Result<Job> {
        let lane = LaneArgs {
            mode: self.mode,
            max_grants: self.max_grants,
            ..NO_LANE
        };
        let at = socket(Kind::Back, &self.socket)?;
        Job::new(
            Kind::Back,
            [&at, &self.end],
            self.queues.queues,
            &lane,
            &self.common,
        )
    }

    pub(super) fn json(&self) -> bool {
        self.common.json
    }
}

impl FrontArgs {
    pub(super) fn job(&self) -> anyhow::Result<Job> {
        let lane = LaneArgs {
            mode: self.mode,
            ring: self.ring,
            ..NO_LANE
        };
        let at = socket(Kind::Front, &self.socket)?;
        Job::new(
            Kind::Front,
            [&at, &self.end],
            self.queues.queues,
            &lane,
            &self.common,
        )
    }

    pub(super) fn json(&self) -> bool {
        self.common.json
    }
}

impl GenArgs {
    pub(super) fn job(&self) -> anyhow::Result<Job> {
        let (low, high) = self.size;
        let mut text = format!("gen:size={low}-{high}");
        if low == high {
            text = format!("gen:size={low}");
        }
        for (key, value) in [("count", self.count), ("rate", self.rate)] {
            if let Some(value) = value {
                text += &format!("&{key}={value}");
            }
        }
        let mut job = Job::new(Kind::Gen, [&text, &self.end], 1, &self.lane, &self.common)?;
        job.count = self.count.unwrap_or(0);
        job.seconds = self.seconds;
        Ok(job)
    }

    pub(super) fn json(&self) -> bool {
        self.common.json
    }
}

impl SinkArgs {
    pub(super) fn job(&self) -> anyhow::Result<Job> {
        let text = match self.count {
            None => "sink:".to_owned(),
            Some(count) => format!("sink:count={count}"),
        };
        let mut job = Job::new(Kind::Sink, [&self.end, &text], 1, &self.lane, &self.common)?;
        job.count = self.count.unwrap_or(0);
        job.seconds = self.seconds;
        Ok(job)
    }

    pub(super) fn json(&self) -> bool {
        self.common.json
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn common() -> Common {
        Common {
            spin: Duration::ZERO,
            once: false,
            wait: None,
            name: None,
            metrics: None,
            json: false,
        }
    }

    fn complaint(ends: [&str; 2], lane: &LaneArgs, common: &Common) -> Option<String> {
        let job = Job::new(Kind::Link, ends, 1, lane, common);
        job.err().map(|error| {
            assert_eq!(crate::cli::exit::code_of(&error), Exit::Usage);
            error.to_string()
        })
    }

    #[test]
    fn what_belongs_to_the_other_side_is_sent_there() {
        let ring = LaneArgs {
            ring: Some(8),
            ..NO_LANE
        };
        let grants = LaneArgs {
            max_grants: Some(8),
            ..NO_LANE
        };
        let mode = LaneArgs {
            mode: Some(Mode::Copy),
            ..NO_LANE
        };
        let said = |ends, lane| complaint(ends, lane, &common()).unwrap_or_default();
        assert!(said(["back:/x", "sink:"], &ring).contains("needs an end front:"));
        assert!(said(["memif:/x", "sink:"], &ring).contains("?ring="));
        assert!(said(["front:/x", "sink:"], &grants).contains("needs an end back:"));
        assert!(said(["memif:/x", "sink:"], &mode).contains("--mode"));
        assert!(said(["back:/x", "front:/x"], &NO_LANE).contains("same socket"));
        assert_eq!(said(["back:/x", "front:/y"], &NO_LANE), "");
        for (end, lane) in [
            ("front:/x", &ring),
            ("back:/x", &grants),
            ("front:/x", &mode),
            ("back:/x", &mode),
        ] {
            assert_eq!(said([end, "sink:"], lane), "");
        }
    }

    #[test]
    fn who_has_no_link_has_nothing_to_wait_for() {
        let once = Common {
            once: true,
            ..common()
        };
        let wait = Common {
            wait: Some(Duration::ZERO),
            ..common()
        };
        for common in [once, wait] {
            assert!(complaint(["gen:", "sink:"], &NO_LANE, &common).is_some());
            assert_eq!(complaint(["gen:", "front:/x"], &NO_LANE, &common), None);
        }
    }

    #[test]
    fn a_socket_is_no_end() {
        assert!(socket(Kind::Back, "back:/x").is_err());
        assert!(socket(Kind::Front, "tap:x").is_err());
        assert_eq!(
            socket(Kind::Back, "/x:y").ok().as_deref(),
            Some("back:/x:y")
        );
        assert_eq!(socket(Kind::Front, "@x").ok().as_deref(), Some("front:@x"));
    }

    #[test]
    fn times_may_be_parts_of_a_second_but_not_nothing() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(seconds("250ms"), Ok(Duration::from_millis(250)));
        for wrong in ["0", "0s", "-1", "nan", "inf", "x", ""] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
        assert_eq!(spin("10us"), Ok(Duration::from_micros(10)));
    }
}
