//! The document of `memlane stats --json`, `memlane.stats/1`. The text is made from it, too.

use memlane_core::reason::Reason;
use memlane_core::stats::{ConnState, Counter, SIZE_CLASSES};
use memlane_observe::counters::Counters;
use memlane_observe::page::{Conn, Flow, Page};
use memlane_observe::processes::{Process, Survey};
use serde::Serialize;

use super::baseline::Baseline;

/// A process, and what it has counted since its counters were reset, or since its start.
pub(super) struct Counted<'a> {
    pub(super) process: &'a Process,
    pub(super) sums: Counters,
    /// When its counters were reset, in seconds since 1970.
    pub(super) since: Option<u64>,
}

impl<'a> Counted<'a> {
    pub(super) fn new(process: &'a Process, baseline: &Baseline) -> Counted<'a> {
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

/// The counters of all processes together.
pub(super) fn sum(all: &[Counted<'_>]) -> Counters {
    let mut sum = Counters::default();
    for one in all {
        sum.add(&one.sums);
    }
    sum
}

#[derive(Serialize)]
pub(super) struct Document {
    pub(super) schema: &'static str,
    pub(super) version: &'static str,
    pub(super) processes_read: usize,
    pub(super) processes_unreadable: u64,
    pub(super) pages_skipped: usize,
    pub(super) totals: Counts,
    pub(super) processes: Vec<ProcessDocument>,
}

#[derive(Serialize)]
pub(super) struct ProcessDocument {
    pub(super) pid: u32,
    pub(super) process: String,
    pub(super) uid: u32,
    pub(super) id: String,
    pub(super) start_unix_nanoseconds: u64,
    /// When `memlane stats reset` covered it, in seconds since 1970.
    pub(super) since_reset_unix_seconds: Option<u64>,
    pub(super) no_new_upgrades: bool,
    pub(super) settings: Settings,
    pub(super) entries_skipped: u64,
    #[serde(flatten)]
    pub(super) counts: Counts,
}

#[derive(Serialize)]
pub(super) struct Settings {
    pub(super) ring_bytes: u64,
    pub(super) spin_microseconds: u32,
    pub(super) upgrade: &'static str,
    pub(super) mode: &'static str,
}

impl Document {
    pub(super) fn new(survey: &Survey, each: &[Counted<'_>]) -> Document {
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

/// Counters of one process or of many.
#[derive(Serialize, Default, Clone)]
pub(super) struct Counts {
    pub(super) connections: Connections,
    pub(super) fallbacks: Fallbacks,
    pub(super) tx: Direction,
    pub(super) rx: Direction,
    pub(super) waits: Waits,
    pub(super) special_calls: Special,
    pub(super) peers_misbehaved: u64,
}

#[derive(Serialize, Default, Clone)]
pub(super) struct Connections {
    pub(super) handled: u64,
    pub(super) client: u64,
    pub(super) server: u64,
    pub(super) upgraded: u64,
    pub(super) upgraded_client: u64,
    pub(super) upgraded_server: u64,
    pub(super) downgraded: u64,
    pub(super) handshake_errors: u64,
    pub(super) link_groups: u64,
    pub(super) open: Open,
}

/// Connections that are open now.
#[derive(Serialize, Default, Clone)]
pub(super) struct Open {
    pub(super) memlane: u64,
    /// Of those in `memlane`, those on which the process sends in mode `copy`.
    pub(super) memlane_copy: u64,
    pub(super) tcp: u64,
    pub(super) handshake: u64,
    pub(super) downgraded: u64,
    pub(super) not_connected: u64,
}

#[derive(Serialize, Default, Clone)]
pub(super) struct Fallbacks {
    pub(super) total: u64,
    pub(super) reasons: Vec<ReasonCounts>,
}

#[derive(Serialize, Clone)]
pub(super) struct ReasonCounts {
    pub(super) code: u32,
    pub(super) name: &'static str,
    pub(super) text: &'static str,
    pub(super) client: u64,
    pub(super) server: u64,
}

#[derive(Serialize, Default, Clone)]
pub(super) struct Direction {
    pub(super) ring_bytes: u64,
    pub(super) tcp_bytes: u64,
    pub(super) calls: u64,
    /// Bytes in the rings of open connections.
    pub(super) ring_used_bytes: RingUse,
    /// Size of all rings of open connections together.
    pub(super) ring_size_bytes: u64,
    /// Rings of open connections by size, in the classes of `calls_by_size`.
    pub(super) rings_by_size: [u64; SIZE_CLASSES],
    /// Calls that moved more bytes than the ring holds. `None` for calls that receive: they are not counted.
    pub(super) calls_beyond_ring: Option<u64>,
    /// Calls on the memory lane by size: up to 8 KiB, 16 KiB … 512 KiB, and more.
    pub(super) calls_by_size: [u64; SIZE_CLASSES],
}

/// Bytes in many rings. `None`: not known, because it is not known of one of them.
#[derive(Serialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(transparent)]
pub(super) struct RingUse(pub(super) Option<u64>);

impl Default for RingUse {
    /// The use of no rings: 0.
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
pub(super) struct Waits {
    pub(super) ring_full: u64,
    pub(super) memory_scarce: u64,
    pub(super) parks: u64,
    pub(super) wakeups_sent: u64,
    pub(super) bells_rung: u64,
    pub(super) spin_hits: u64,
    pub(super) spin_misses: u64,
    pub(super) waits_avoided: u64,
    pub(super) kernel_waits: u64,
    pub(super) epoll_ctl_avoided: u64,
}

#[derive(Serialize, Default, Clone)]
pub(super) struct Special {
    pub(super) cork: u64,
    pub(super) nodelay: u64,
    pub(super) sendfile: u64,
    pub(super) splice: u64,
    pub(super) urgent: u64,
}

/// Adds without overflow: a hostile process can write any number to its page.
fn add(to: &mut u64, from: u64) {
    *to = to.saturating_add(from);
}

impl Counts {
    /// Those of all processes together.
    pub(super) fn total(all: &[Counted<'_>]) -> Counts {
        let pages = all.iter().map(|one| &one.process.page);
        Counts::new(&sum(all), pages)
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

    /// The reasons, the most frequent first.
    pub(super) fn ranked(&self) -> Vec<&ReasonCounts> {
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
            bells_rung: sums.get(Counter::BellsRung),
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

/// The size class of a ring: up to 8 KiB, up to 16 KiB …, as the library classifies calls.
fn size_class(bytes: u32) -> usize {
    let class = u32::BITS - (bytes.saturating_sub(1) >> 13).leading_zeros();
    usize::try_from(class).map_or(0, |class| class.min(SIZE_CLASSES - 1))
}

#[cfg(test)]
mod tests {
    use memlane_observe::counters::table::ROWS;

    use super::*;

    #[test]
    fn each_counter_of_the_table_is_in_the_field_that_the_table_names() {
        let mut sums = Counters::default();
        for (row, value) in ROWS.iter().zip(1000..) {
            sums.set(row.counter, value);
        }
        let counts = Counts::new(&sums, std::iter::empty());
        let document = serde_json::to_value(&counts).expect("a document");
        for (row, value) in ROWS.iter().zip(1000_u64..) {
            let pointer = format!("/{}", row.field.replace('.', "/"));
            assert_eq!(document.pointer(&pointer), Some(&value.into()), "{pointer}");
        }
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
