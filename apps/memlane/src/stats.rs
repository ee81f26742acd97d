//! `memlane stats`: counters of the processes under memlane, and their totals.

mod baseline;

use std::fmt::Write;

use memlane_core::reason::Reason;
use memlane_core::stats::{ConnState, Counter, SIZE_CLASSES};
use memlane_observe::counters::Counters;
use memlane_observe::page::{Conn, Flow, Page};
use memlane_observe::processes::{Process, Survey};
use memlane_observe::rings;
use serde::Serialize;

use crate::out::{self, human};
use baseline::Baseline;

/// Names of the size classes, as `smcd stats` prints them.
const CLASSES: [&str; SIZE_CLASSES] = [
    "8KB", "16KB", "32KB", "64KB", "128KB", "256KB", "512KB", ">512KB",
];

/// Show counters: connections, fall-backs and their reasons, bytes by lane, wake-ups.
///
/// They count from the start of each process, or from the last `memlane stats reset` of this user.
#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    show: Show,
}

#[derive(clap::Args, Debug)]
struct Show {
    /// Details: by role, each reason with its text, special calls one by one
    #[arg(short, long)]
    details: bool,
    /// From the start of each process on, whatever was reset
    #[arg(short, long)]
    absolute: bool,
    #[command(flatten)]
    which: Which,
    /// Say what could not be read
    #[arg(short, long)]
    verbose: bool,
    /// One JSON document: totals and every process
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args, Debug)]
struct Which {
    /// Only this process
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
}

impl Which {
    fn survey(&self) -> anyhow::Result<Survey> {
        match self.pid {
            Some(pid) => Ok(Survey::of(pid)?),
            None => Ok(Survey::all()?),
        }
    }
}

#[derive(clap::Subcommand, Debug)]
enum Verb {
    /// Let the counters begin at 0 now, for this user: what they are at is put aside
    ///
    /// The processes notice nothing, and other users see what they saw. A process that begins later counts from its
    /// start. --absolute shows the counters as they are.
    Reset(Reset),
}

#[derive(clap::Args, Debug)]
struct Reset {
    #[command(flatten)]
    which: Which,
    /// One JSON document: how many processes, and where it was put aside
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn json(&self) -> bool {
        match &self.verb {
            None => self.show.json,
            Some(Verb::Reset(reset)) => reset.json,
        }
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    match &args.verb {
        None => show(&args.show),
        Some(Verb::Reset(args)) => reset(args),
    }
}

fn show(args: &Show) -> anyhow::Result<()> {
    let mut survey = args.which.survey()?;
    rings::measure(&mut survey);
    if args.verbose {
        out::warn(&survey.unseen());
    }
    let baseline = match args.absolute {
        true => Baseline::default(),
        false => Baseline::load().unwrap_or_else(|error| {
            out::warn(&format!(
                "{error:#}: counted from the start of each process"
            ));
            Baseline::default()
        }),
    };
    let each: Vec<Counted> = survey
        .processes
        .iter()
        .map(|process| Counted::new(process, &baseline))
        .collect();
    let text = match args.json {
        true => out::json(&Document::new(&survey, &each))?,
        false => {
            let since = each.iter().filter(|one| one.since.is_some()).count();
            Counts::total(&each).text(each.len(), since, args.details)
        }
    };
    out::print(&text)
}

#[derive(Serialize)]
struct ResetDocument {
    schema: &'static str,
    processes: usize,
    processes_unreadable: u64,
    baseline: String,
}

fn reset(args: &Reset) -> anyhow::Result<()> {
    let survey = args.which.survey()?;
    let everybody = match args.which.pid {
        Some(_) => Some(Survey::all()?),
        None => None,
    };
    let alive = everybody.as_ref().unwrap_or(&survey);
    let file = Baseline::change(|baseline| baseline.reset(&survey.processes, &alive.processes))?;
    let done = ResetDocument {
        schema: "memlane.stats-reset/1",
        processes: survey.processes.len(),
        processes_unreadable: survey.unreadable,
        baseline: file.display().to_string(),
    };
    let text = match args.json {
        true => out::json(&done)?,
        false => format!(
            "{} processes count from now on, for this user; {} of other users were not looked at ({})\n",
            done.processes, done.processes_unreadable, done.baseline
        ),
    };
    out::print(&text)
}

/// A process, and what it has counted since a moment (in seconds since 1970) or its start.
struct Counted<'a> {
    process: &'a Process,
    sums: Counters,
    since: Option<u64>,
}

impl<'a> Counted<'a> {
    fn new(process: &'a Process, baseline: &Baseline) -> Counted<'a> {
        let sums = Counters::of(&process.page);
        match baseline.of(process) {
            None => Counted {
                process,
                sums,
                since: None,
            },
            Some((before, at)) => Counted {
                process,
                sums: sums.since(before),
                since: Some(at),
            },
        }
    }
}

/// Counters of one process or of many.
#[derive(Serialize, Default, Clone)]
struct Counts {
    connections: Connections,
    fallbacks: Fallbacks,
    tx: Direction,
    rx: Direction,
    waits: Waits,
    special_calls: Special,
    peers_misbehaved: u64,
}

#[derive(Serialize, Default, Clone)]
struct Connections {
    handled: u64,
    client: u64,
    server: u64,
    upgraded: u64,
    upgraded_client: u64,
    upgraded_server: u64,
    downgraded: u64,
    handshake_errors: u64,
    link_groups: u64,
    open: Open,
}

/// Connections that are open now.
#[derive(Serialize, Default, Clone)]
struct Open {
    memlane: u64,
    /// Of these, those that this process sends on in mode `copy`.
    memlane_copy: u64,
    tcp: u64,
    handshake: u64,
    downgraded: u64,
    not_connected: u64,
}

#[derive(Serialize, Default, Clone)]
struct Fallbacks {
    total: u64,
    reasons: Vec<ReasonCounts>,
}

#[derive(Serialize, Clone)]
struct ReasonCounts {
    code: u32,
    name: &'static str,
    text: &'static str,
    client: u64,
    server: u64,
}

#[derive(Serialize, Default, Clone)]
struct Direction {
    ring_bytes: u64,
    tcp_bytes: u64,
    calls: u64,
    /// Bytes in, and room of, the rings of open connections.
    ring_used_bytes: RingUse,
    ring_size_bytes: u64,
    /// Rings of open connections by size, in the classes of the calls.
    rings_by_size: [u64; SIZE_CLASSES],
    /// Calls that moved more than the ring holds; not counted of those that receive.
    calls_beyond_ring: Option<u64>,
    /// Calls on the memory lane by size: up to 8, 16 … 512 KiB, more.
    calls_by_size: [u64; SIZE_CLASSES],
}

/// Bytes in many rings; not known if that of one is not.
#[derive(Serialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(transparent)]
struct RingUse(Option<u64>);

impl Default for RingUse {
    /// That of no rings.
    fn default() -> RingUse {
        RingUse(Some(0))
    }
}

impl RingUse {
    fn add(&mut self, flow: &Flow) {
        let used = flow.ring_used.map(u64::from);
        self.0 = self.0.zip(used).map(|(sum, used)| sum.saturating_add(used));
    }
}

#[derive(Serialize, Default, Clone)]
struct Waits {
    ring_full: u64,
    memory_scarce: u64,
    parks: u64,
    wakeups_sent: u64,
    spin_hits: u64,
    spin_misses: u64,
    waits_avoided: u64,
    kernel_waits: u64,
    epoll_ctl_avoided: u64,
}

#[derive(Serialize, Default, Clone)]
struct Special {
    cork: u64,
    nodelay: u64,
    sendfile: u64,
    splice: u64,
    urgent: u64,
}

/// `to += from`, for counters that nobody vouches for.
fn add(to: &mut u64, from: u64) {
    *to = to.saturating_add(from);
}

impl Counts {
    fn total(all: &[Counted<'_>]) -> Counts {
        let mut sums = Counters::default();
        for one in all {
            sums.add(&one.sums);
        }
        let pages = all.iter().map(|one| &one.process.page);
        Counts::new(&sums, pages)
    }

    /// What was counted, and what is open now.
    fn new<'a>(sums: &Counters, pages: impl Iterator<Item = &'a Page>) -> Counts {
        let mut counts = Counts {
            connections: Connections::new(sums),
            fallbacks: Fallbacks::new(sums),
            tx: Direction::sent(sums),
            rx: Direction::received(sums),
            waits: Waits::new(sums),
            special_calls: Special::new(sums),
            peers_misbehaved: sums.get(Counter::PeerMisbehaved),
        };
        for conn in pages.flat_map(|page| &page.conns) {
            counts.connections.open.add(conn);
            counts.tx.add_ring(&conn.tx);
            counts.rx.add_ring(&conn.rx);
        }
        counts
    }
}

impl Connections {
    fn new(sums: &Counters) -> Connections {
        Connections {
            handled: sums.get(Counter::Conns),
            client: sums.get(Counter::ConnsClient),
            server: sums.get(Counter::ConnsServer),
            upgraded: sums.get(Counter::Upgraded),
            upgraded_client: sums.get(Counter::UpgradedClient),
            upgraded_server: sums.get(Counter::UpgradedServer),
            downgraded: sums.get(Counter::Downgrades),
            handshake_errors: sums.get(Counter::HandshakeErrors),
            link_groups: sums.get(Counter::LinkGroups),
            open: Open::default(),
        }
    }
}

impl Open {
    fn add(&mut self, conn: &Conn) {
        let open = match conn.state {
            ConnState::Free | ConnState::New => &mut self.not_connected,
            ConnState::Tcp => &mut self.tcp,
            ConnState::Pending => &mut self.handshake,
            ConnState::Memlane => &mut self.memlane,
            ConnState::Downgraded => &mut self.downgraded,
        };
        add(open, 1);
        let copies = conn.state == ConnState::Memlane && conn.tx.copied;
        add(&mut self.memlane_copy, u64::from(copies));
    }
}

impl Fallbacks {
    fn new(sums: &Counters) -> Fallbacks {
        let reasons = sums.reasons.iter();
        let reasons = reasons.map(|(code, (client, server))| ReasonCounts {
            code: *code,
            name: Reason(*code).name(),
            text: Reason(*code).text(),
            client: *client,
            server: *server,
        });
        Fallbacks {
            total: sums.get(Counter::Fallbacks),
            reasons: reasons.collect(),
        }
    }

    /// The most frequent first.
    fn ranked(&self) -> Vec<&ReasonCounts> {
        let mut ranked: Vec<_> = self.reasons.iter().collect();
        ranked.sort_by_key(|r| std::cmp::Reverse(r.client.saturating_add(r.server)));
        ranked
    }
}

impl Waits {
    fn new(sums: &Counters) -> Waits {
        Waits {
            ring_full: sums.get(Counter::RingFull),
            memory_scarce: sums.get(Counter::Scarce),
            parks: sums.get(Counter::Parks),
            wakeups_sent: sums.get(Counter::WakeupsSent),
            spin_hits: sums.get(Counter::SpinHits),
            spin_misses: sums.get(Counter::SpinMisses),
            waits_avoided: sums.get(Counter::WaitsAvoided),
            kernel_waits: sums.get(Counter::KernelWaits),
            epoll_ctl_avoided: sums.get(Counter::CtlAvoided),
        }
    }
}

impl Special {
    fn new(sums: &Counters) -> Special {
        Special {
            cork: sums.get(Counter::Cork),
            nodelay: sums.get(Counter::NoDelay),
            sendfile: sums.get(Counter::Sendfile),
            splice: sums.get(Counter::Splice),
            urgent: sums.get(Counter::Urgent),
        }
    }
}

impl Direction {
    fn sent(sums: &Counters) -> Direction {
        Direction {
            ring_bytes: sums.get(Counter::TxRingBytes),
            tcp_bytes: sums.get(Counter::TxTcpBytes),
            calls: sums.get(Counter::TxCalls),
            calls_by_size: sums.tx_sizes,
            calls_beyond_ring: Some(sums.get(Counter::TxBeyondRing)),
            ..Direction::default()
        }
    }

    fn received(sums: &Counters) -> Direction {
        Direction {
            ring_bytes: sums.get(Counter::RxRingBytes),
            tcp_bytes: sums.get(Counter::RxTcpBytes),
            calls: sums.get(Counter::RxCalls),
            calls_by_size: sums.rx_sizes,
            ..Direction::default()
        }
    }

    fn add_ring(&mut self, flow: &Flow) {
        self.ring_used_bytes.add(flow);
        add(&mut self.ring_size_bytes, flow.ring_size.into());
        if flow.ring_size > 0 {
            add(&mut self.rings_by_size[size_class(flow.ring_size)], 1);
        }
    }
}

/// As the library counts calls: up to 8 KiB, up to 16 KiB …
fn size_class(bytes: u32) -> usize {
    let class = u32::BITS - (bytes.saturating_sub(1) >> 13).leading_zeros();
    usize::try_from(class).map_or(0, |class| class.min(SIZE_CLASSES - 1))
}

/// Text in the manner of `smcd stats`: a heading, then `label value` lines.
#[derive(Default)]
struct Sheet(String);

impl Sheet {
    fn heading(&mut self, text: &str) {
        if !self.0.is_empty() {
            self.0.push('\n');
        }
        self.0.push_str(text);
        self.0.push('\n');
    }

    fn line(&mut self, label: &str, value: impl std::fmt::Display) {
        let _ = writeln!(self.0, "  {label:<34}{value:>14}");
    }

    fn sizes(&mut self, of: &Direction) {
        for (label, cells) in [
            ("", CLASSES.map(str::to_owned)),
            ("Rings", of.rings_by_size.map(|n| n.to_string())),
            ("Calls", of.calls_by_size.map(|n| n.to_string())),
        ] {
            let mut line = format!("  {label:<6}");
            for cell in cells {
                let _ = write!(line, "{cell:>9}");
            }
            self.0.push_str(&line);
            self.0.push('\n');
        }
    }
}

impl Counts {
    fn text(&self, processes: usize, since: usize, details: bool) -> String {
        let mut sheet = Sheet::default();
        sheet.heading("Connections");
        sheet.line("Processes", processes);
        if since > 0 {
            sheet.line("  counted since a reset", since);
        }
        self.summary(&mut sheet, details);
        self.fallback_lines(&mut sheet, details);
        sheet.heading("RX");
        self.rx.lines(&mut sheet);
        sheet.line("Parked (asked to be woken by TCP)", self.waits.parks);
        sheet.sizes(&self.rx);
        sheet.heading("TX");
        self.tx.lines(&mut sheet);
        let full = share(self.waits.ring_full, self.tx.calls);
        sheet.line("Ring full", format!("{} ({full})", self.waits.ring_full));
        if self.waits.memory_scarce > 0 {
            sheet.line("Too little memory for rings", self.waits.memory_scarce);
        }
        sheet.line("Wake-ups sent by TCP", self.waits.wakeups_sent);
        if let Some(beyond) = self.tx.calls_beyond_ring {
            let part = share(beyond, self.tx.calls);
            sheet.line("Larger than the ring", format!("{beyond} ({part})"));
        }
        sheet.sizes(&self.tx);
        self.wait_lines(&mut sheet);
        self.extra_lines(&mut sheet, details);
        sheet.0
    }

    fn summary(&self, sheet: &mut Sheet, details: bool) {
        let c = &self.connections;
        sheet.line("Connections handled", c.handled);
        if details {
            sheet.line("  as client", c.client);
            sheet.line("  as server", c.server);
        }
        sheet.line("Got the memory lane", c.upgraded);
        if details {
            sheet.line("  as client", c.upgraded_client);
            sheet.line("  as server", c.upgraded_server);
        }
        sheet.line("  and went back to TCP", c.downgraded);
        sheet.line("Open now on the memory lane", c.open.memlane);
        if details {
            sheet.line("  sending in mode copy", c.open.memlane_copy);
        }
        sheet.line(
            "Open now on TCP",
            c.open.tcp.saturating_add(c.open.downgraded),
        );
        sheet.line("Handshakes under way", c.open.handshake);
        sheet.line("Handshake errors", c.handshake_errors);
        sheet.line("Link groups (peer processes)", c.link_groups);
        let calls = self.tx.calls.saturating_add(self.rx.calls);
        sheet.line(
            "Calls per connection",
            calls.checked_div(c.handled).unwrap_or(0),
        );
    }

    fn fallback_lines(&self, sheet: &mut Sheet, details: bool) {
        sheet.line("TCP fallback", self.fallbacks.total);
        if !details {
            return;
        }
        for reason in self.fallbacks.ranked() {
            let label = format!("  0x{:08x} {}", reason.code, reason.name);
            let times = format!("{} client, {} server", reason.client, reason.server);
            let _ = writeln!(sheet.0, "  {label:<34}{times:>26}  {}", reason.text);
        }
    }

    fn wait_lines(&self, sheet: &mut Sheet) {
        let w = &self.waits;
        sheet.heading("Waiting");
        sheet.line("Answered without a system call", w.waits_avoided);
        sheet.line("Went to the kernel", w.kernel_waits);
        let spins = w.spin_hits.saturating_add(w.spin_misses);
        sheet.line(
            "Spun and found",
            format!("{} ({})", w.spin_hits, share(w.spin_hits, spins)),
        );
        sheet.line("Spun in vain", w.spin_misses);
        sheet.line("epoll_ctl calls saved", w.epoll_ctl_avoided);
    }

    fn extra_lines(&self, sheet: &mut Sheet, details: bool) {
        let s = &self.special_calls;
        let special = [
            ("  cork", s.cork),
            ("  nodelay", s.nodelay),
            ("  sendfile", s.sendfile),
            ("  splice", s.splice),
            ("  urgent data", s.urgent),
        ];
        sheet.heading("Extras");
        let sum = special
            .iter()
            .fold(0_u64, |sum, (_, n)| sum.saturating_add(*n));
        sheet.line("Special socket calls", sum);
        if details {
            for (label, count) in special {
                sheet.line(label, count);
            }
        }
        sheet.line("Peers that misbehaved", self.peers_misbehaved);
    }
}

impl Direction {
    fn lines(&self, sheet: &mut Sheet) {
        sheet.line(
            "Bytes through memory",
            format!("{} ({})", self.ring_bytes, human(self.ring_bytes)),
        );
        sheet.line(
            "Bytes through TCP",
            format!("{} ({})", self.tcp_bytes, human(self.tcp_bytes)),
        );
        sheet.line("Calls", self.calls);
        let used = self.ring_used_bytes.0.map(human);
        let used = used.unwrap_or_else(|| "-".to_owned());
        let ring = format!("{used}/{}", human(self.ring_size_bytes));
        sheet.line("Rings in use", ring);
    }
}

/// `part` of `whole`, in percent with two decimals.
fn share(part: u64, whole: u64) -> String {
    let per_myriad = (u128::from(part) * 10_000)
        .checked_div(u128::from(whole))
        .unwrap_or(0);
    format!("{}.{:02}%", per_myriad / 100, per_myriad % 100)
}

#[derive(Serialize)]
struct Document {
    schema: &'static str,
    version: &'static str,
    processes_read: usize,
    processes_unreadable: u64,
    pages_skipped: usize,
    totals: Counts,
    processes: Vec<ProcessDocument>,
}

#[derive(Serialize)]
struct ProcessDocument {
    pid: u32,
    process: String,
    uid: u32,
    id: String,
    start_unix_nanoseconds: u64,
    /// When `memlane stats reset` let it begin anew, in seconds since 1970.
    since_reset_unix_seconds: Option<u64>,
    no_new_upgrades: bool,
    settings: Settings,
    entries_skipped: u64,
    #[serde(flatten)]
    counts: Counts,
}

#[derive(Serialize)]
struct Settings {
    ring_bytes: u64,
    spin_microseconds: u32,
    upgrade: &'static str,
    mode: &'static str,
}

impl Document {
    fn new(survey: &Survey, each: &[Counted<'_>]) -> Document {
        Document {
            schema: "memlane.stats/1",
            version: env!("CARGO_PKG_VERSION"),
            processes_read: survey.processes.len(),
            processes_unreadable: survey.unreadable,
            pages_skipped: survey.bad_pages.len(),
            totals: Counts::total(each),
            processes: each.iter().map(ProcessDocument::new).collect(),
        }
    }
}

impl ProcessDocument {
    fn new(one: &Counted<'_>) -> ProcessDocument {
        let process = one.process;
        let page = &process.page;
        ProcessDocument {
            pid: process.pid,
            process: process.comm.clone(),
            uid: page.uid,
            id: format!("0x{:016x}", page.gid),
            start_unix_nanoseconds: page.start_ns,
            since_reset_unix_seconds: one.since,
            no_new_upgrades: page.flags & 1 != 0,
            settings: Settings {
                ring_bytes: page.ring_size,
                spin_microseconds: page.spin_us,
                upgrade: match page.upgrade {
                    0 => "off",
                    1 => "auto",
                    2 => "eager",
                    _ => "unknown",
                },
                mode: match page.mode {
                    0 => "nocopy",
                    1 => "copy",
                    _ => "unknown",
                },
            },
            entries_skipped: page.bad_entries,
            counts: Counts::new(&one.sums, std::iter::once(page)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_survive_any_counter() {
        assert_eq!(share(1, 3), "33.33%");
        assert_eq!(share(5, 0), "0.00%");
        assert_eq!(share(u64::MAX, 1), format!("{}00.00%", u64::MAX));
        assert_eq!(share(1, u64::MAX), "0.00%");
    }

    #[test]
    fn rings_are_in_the_class_that_their_size_is_the_end_of() {
        let classes = [
            1,
            8192,
            8193,
            16384,
            65536,
            512 << 10,
            (512 << 10) + 1,
            u32::MAX,
        ];
        assert_eq!(classes.map(size_class), [0, 0, 1, 1, 3, 6, 7, 7]);
    }

    #[test]
    fn a_sum_with_something_unknown_in_it_is_unknown() {
        let ring = |used| Flow {
            ring_used: used,
            ..Flow::default()
        };
        let mut sum = RingUse::default();
        sum.add(&ring(Some(7)));
        sum.add(&ring(Some(5)));
        assert_eq!(sum, RingUse(Some(12)));
        sum.add(&ring(None));
        sum.add(&ring(Some(1)));
        assert_eq!(sum, RingUse(None));
    }
}
