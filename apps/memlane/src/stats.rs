//! `memlane stats`: counters of the processes under memlane, and their totals.

use std::collections::BTreeMap;
use std::fmt::Write;

use memlane_core::reason::Reason;
use memlane_core::stats::{ConnState, Counter, SIZE_CLASSES};
use serde::Serialize;

use crate::out::{self, human};
use crate::page::{Flow, Page};
use crate::procs::{Process, Survey};
use crate::rings;

/// Names of the size classes, as `smcd stats` prints them.
const CLASSES: [&str; SIZE_CLASSES] = [
    "8KB", "16KB", "32KB", "64KB", "128KB", "256KB", "512KB", ">512KB",
];

/// Show counters: connections, fall-backs and their reasons, bytes by lane, wake-ups.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Details: by role, each reason with its text, special calls one by one
    #[arg(short, long)]
    details: bool,
    /// Only this process
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// Say what could not be read
    #[arg(short, long)]
    verbose: bool,
    /// One JSON document: totals and every process
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut survey = match args.pid {
        Some(pid) => Survey::of(pid)?,
        None => Survey::take(None)?,
    };
    rings::measure(&mut survey);
    if args.verbose {
        out::warn(&survey.unseen());
    }
    let text = match args.json {
        true => out::json(&Document::new(&survey))?,
        false => Counts::total(&survey).text(survey.processes.len(), args.details),
    };
    out::print(&text)
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
    fn total(survey: &Survey) -> Counts {
        let mut total = Counts::default();
        for process in &survey.processes {
            total.add_page(&process.page);
        }
        total
    }

    fn add_page(&mut self, page: &Page) {
        let get = |counter| page.counter(counter);
        self.connections.add_page(page);
        self.fallbacks.add_page(page);
        self.waits.add_page(page);
        let special = &mut self.special_calls;
        add(&mut special.cork, get(Counter::Cork));
        add(&mut special.nodelay, get(Counter::NoDelay));
        add(&mut special.sendfile, get(Counter::Sendfile));
        add(&mut special.splice, get(Counter::Splice));
        add(&mut special.urgent, get(Counter::Urgent));
        add(&mut self.peers_misbehaved, get(Counter::PeerMisbehaved));

        // The header counts connections that have ended; the open ones are added to it.
        add(&mut self.tx.ring_bytes, get(Counter::TxRingBytes));
        add(&mut self.tx.tcp_bytes, get(Counter::TxTcpBytes));
        add(&mut self.tx.calls, get(Counter::TxCalls));
        add(&mut self.rx.ring_bytes, get(Counter::RxRingBytes));
        add(&mut self.rx.tcp_bytes, get(Counter::RxTcpBytes));
        add(&mut self.rx.calls, get(Counter::RxCalls));
        for conn in &page.conns {
            self.tx.add_flow(&conn.tx);
            self.rx.add_flow(&conn.rx);
        }
        self.tx.add_sizes(&page.tx_sizes);
        self.rx.add_sizes(&page.rx_sizes);
    }
}

impl Connections {
    fn add_page(&mut self, page: &Page) {
        let get = |counter| page.counter(counter);
        add(&mut self.handled, get(Counter::Conns));
        add(&mut self.client, get(Counter::ConnsClient));
        add(&mut self.server, get(Counter::ConnsServer));
        add(&mut self.upgraded, get(Counter::Upgraded));
        add(&mut self.downgraded, get(Counter::Downgrades));
        add(&mut self.handshake_errors, get(Counter::HandshakeErrors));
        add(&mut self.link_groups, get(Counter::LinkGroups));
        for conn in &page.conns {
            let open = match conn.state {
                ConnState::Free | ConnState::New => &mut self.open.not_connected,
                ConnState::Tcp => &mut self.open.tcp,
                ConnState::Pending => &mut self.open.handshake,
                ConnState::Memlane => &mut self.open.memlane,
                ConnState::Downgraded => &mut self.open.downgraded,
            };
            add(open, 1);
            let copies = conn.state == ConnState::Memlane && conn.tx.copied;
            add(&mut self.open.memlane_copy, u64::from(copies));
        }
    }
}

impl Fallbacks {
    fn add_page(&mut self, page: &Page) {
        add(&mut self.total, page.counter(Counter::Fallbacks));
        let mut by_code: BTreeMap<u32, (u64, u64)> = self
            .reasons
            .iter()
            .map(|r| (r.code, (r.client, r.server)))
            .collect();
        for fallback in &page.fallbacks {
            let (client, server) = by_code.entry(fallback.reason.0).or_default();
            add(client, fallback.client);
            add(server, fallback.server);
        }
        self.reasons = by_code
            .into_iter()
            .map(|(code, (client, server))| ReasonCounts {
                code,
                name: Reason(code).name(),
                text: Reason(code).text(),
                client,
                server,
            })
            .collect();
    }

    /// The most frequent first.
    fn ranked(&self) -> Vec<&ReasonCounts> {
        let mut ranked: Vec<_> = self.reasons.iter().collect();
        ranked.sort_by_key(|r| std::cmp::Reverse(r.client.saturating_add(r.server)));
        ranked
    }
}

impl Waits {
    fn add_page(&mut self, page: &Page) {
        let get = |counter| page.counter(counter);
        add(&mut self.ring_full, get(Counter::RingFull));
        add(&mut self.parks, get(Counter::Parks));
        add(&mut self.wakeups_sent, get(Counter::WakeupsSent));
        add(&mut self.spin_hits, get(Counter::SpinHits));
        add(&mut self.spin_misses, get(Counter::SpinMisses));
        add(&mut self.waits_avoided, get(Counter::WaitsAvoided));
        add(&mut self.kernel_waits, get(Counter::KernelWaits));
        add(&mut self.epoll_ctl_avoided, get(Counter::CtlAvoided));
    }
}

impl Direction {
    fn add_flow(&mut self, flow: &Flow) {
        add(&mut self.ring_bytes, flow.ring_bytes);
        add(&mut self.tcp_bytes, flow.tcp_bytes);
        add(&mut self.calls, flow.calls);
        self.ring_used_bytes.add(flow);
        add(&mut self.ring_size_bytes, flow.ring_size.into());
    }

    fn add_sizes(&mut self, sizes: &[u64; SIZE_CLASSES]) {
        for (to, from) in self.calls_by_size.iter_mut().zip(sizes) {
            add(to, *from);
        }
    }
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

    fn sizes(&mut self, sizes: &[u64; SIZE_CLASSES]) {
        for (label, cells) in [
            ("", CLASSES.map(str::to_owned)),
            ("Calls", sizes.map(|n| n.to_string())),
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
    fn text(&self, processes: usize, details: bool) -> String {
        let mut sheet = Sheet::default();
        self.summary(&mut sheet, processes, details);
        self.fallback_lines(&mut sheet, details);
        sheet.heading("RX");
        self.rx.lines(&mut sheet);
        sheet.line("Parked (asked to be woken by TCP)", self.waits.parks);
        sheet.sizes(&self.rx.calls_by_size);
        sheet.heading("TX");
        self.tx.lines(&mut sheet);
        let full = share(self.waits.ring_full, self.tx.calls);
        sheet.line("Ring full", format!("{} ({full})", self.waits.ring_full));
        sheet.line("Wake-ups sent by TCP", self.waits.wakeups_sent);
        sheet.sizes(&self.tx.calls_by_size);
        self.wait_lines(&mut sheet);
        self.extra_lines(&mut sheet, details);
        sheet.0
    }

    fn summary(&self, sheet: &mut Sheet, processes: usize, details: bool) {
        let c = &self.connections;
        sheet.heading("Connections");
        sheet.line("Processes", processes);
        sheet.line("Connections handled", c.handled);
        if details {
            sheet.line("  as client", c.client);
            sheet.line("  as server", c.server);
        }
        sheet.line("Got the memory lane", c.upgraded);
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
    fn new(survey: &Survey) -> Document {
        Document {
            schema: "memlane.stats/1",
            version: env!("CARGO_PKG_VERSION"),
            processes_read: survey.processes.len(),
            processes_unreadable: survey.unreadable,
            pages_skipped: survey.bad_pages.len(),
            totals: Counts::total(survey),
            processes: survey.processes.iter().map(ProcessDocument::new).collect(),
        }
    }
}

impl ProcessDocument {
    fn new(process: &Process) -> ProcessDocument {
        let page = &process.page;
        let mut counts = Counts::default();
        counts.add_page(page);
        ProcessDocument {
            pid: process.pid,
            process: process.comm.clone(),
            uid: page.uid,
            id: format!("0x{:016x}", page.gid),
            start_unix_nanoseconds: page.start_ns,
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
            counts,
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
    fn totals_saturate_instead_of_wrapping() {
        let mut direction = Direction {
            ring_bytes: u64::MAX,
            ..Direction::default()
        };
        direction.add_flow(&Flow {
            ring_bytes: 7,
            ..Flow::default()
        });
        assert_eq!(direction.ring_bytes, u64::MAX);
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
