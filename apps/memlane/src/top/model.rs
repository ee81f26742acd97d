//! What `memlane top` shows, without a terminal: two looks become rates, and keys change what is shown of them.

use std::cmp::{Ordering, Reverse};
use std::collections::HashMap;
use std::time::Instant;

use memlane_core::reason::Reason;
use memlane_core::stats::{ConnState, Counter};
use memlane_observe::counters::Counters;
use memlane_observe::page::{Conn, Flow};
use memlane_observe::processes::{Process, Survey};

/// A process, whatever has its number: that, its start in ticks, its page's random id.
type Key = (u32, u64, u64);
/// A connection of a process: its entry, and when it was made.
type ConnKey = (usize, u64);

/// One look at everything.
#[derive(Debug)]
pub(super) struct Sample {
    at: Instant,
    processes: Vec<Seen>,
    pub(super) unreadable: u64,
}

#[derive(Debug)]
struct Seen {
    key: Key,
    name: String,
    sums: Counters,
    conns: Vec<Conn>,
}

impl Sample {
    pub(super) fn new(survey: Survey) -> Sample {
        let unreadable = survey.unreadable;
        let seen = |process: Process| {
            let started = process.started()?;
            Some(Seen {
                key: (process.pid, started, process.page.gid),
                sums: Counters::of(&process.page),
                name: process.comm,
                conns: process.page.conns,
            })
        };
        Sample {
            at: Instant::now(),
            processes: survey.processes.into_iter().filter_map(seen).collect(),
            unreadable,
        }
    }
}

/// How full rings are; not known if that of one is not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Fill {
    pub(super) used: Option<u64>,
    pub(super) size: u64,
}

impl Fill {
    const NONE: Fill = Fill {
        used: Some(0),
        size: 0,
    };

    fn of(flow: &Flow) -> Fill {
        Fill {
            used: flow.ring_used.map(u64::from),
            size: flow.ring_size.into(),
        }
    }

    fn plus(self, other: Fill) -> Fill {
        let used = self.used.zip(other.used);
        Fill {
            used: used.map(|(one, other)| one.saturating_add(other)),
            size: self.size.saturating_add(other.size),
        }
    }

    /// In percent.
    pub(super) fn percent(self) -> Option<u64> {
        let used = self.used.filter(|_| self.size > 0)?;
        u64::try_from(u128::from(used) * 100 / u128::from(self.size)).ok()
    }
}

/// Bytes and calls for each second.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Rates {
    pub(super) sent: u64,
    pub(super) received: u64,
    /// Of both, those that went through memory.
    pub(super) memory: u64,
    pub(super) calls: u64,
}

impl Rates {
    pub(super) fn bytes(&self) -> u64 {
        self.sent.saturating_add(self.received)
    }

    /// In percent; `None` if nothing was carried.
    pub(super) fn memory_percent(&self) -> Option<u64> {
        let all = self.bytes();
        (all > 0).then(|| u64::try_from(u128::from(self.memory) * 100 / u128::from(all)).ok())?
    }

    fn plus(self, other: Rates) -> Rates {
        Rates {
            sent: self.sent.saturating_add(other.sent),
            received: self.received.saturating_add(other.received),
            memory: self.memory.saturating_add(other.memory),
            calls: self.calls.saturating_add(other.calls),
        }
    }
}

/// A line of either table.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) pid: u32,
    pub(super) name: String,
    pub(super) rates: Rates,
    pub(super) fill: Fill,
    /// Of a process: connections on the memory lane, and on TCP.
    pub(super) open: (u64, u64),
    /// Of a process: the reason that it has given most often. Of a connection: its lane, or why it has none.
    pub(super) reason: String,
    /// Of a connection.
    pub(super) ends: Option<(String, String)>,
    /// Is a connection on the memory lane, or most of a process's?
    pub(super) fast: bool,
}

impl Row {
    fn has(&self, text: &str) -> bool {
        let in_ends = |(own, peer): &(String, String)| own.contains(text) || peer.contains(text);
        let text_lower = text.to_ascii_lowercase();
        self.name.to_ascii_lowercase().contains(&text_lower)
            || self.pid.to_string() == text
            || self.reason.to_ascii_lowercase().contains(&text_lower)
            || self.ends.as_ref().is_some_and(in_ends)
    }
}

/// Which table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum View {
    Processes,
    Connections,
}

/// What decides about the order; the largest first, names and numbers the smallest.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) enum Sort {
    /// Bytes for each second, both ways
    #[default]
    Rate,
    /// Calls for each second
    Calls,
    /// Connections that are open
    Open,
    /// How full the rings are
    Rings,
    /// Name of the program
    Name,
    /// Process id
    Pid,
}

impl Sort {
    const ALL: [Sort; 6] = [
        Sort::Rate,
        Sort::Calls,
        Sort::Open,
        Sort::Rings,
        Sort::Name,
        Sort::Pid,
    ];

    pub(super) fn word(self) -> &'static str {
        match self {
            Sort::Rate => "rate",
            Sort::Calls => "calls",
            Sort::Open => "open",
            Sort::Rings => "rings",
            Sort::Name => "name",
            Sort::Pid => "pid",
        }
    }

    fn next(self, step: usize) -> Sort {
        let at = Sort::ALL.iter().position(|one| *one == self).unwrap_or(0);
        Sort::ALL[(at + step) % Sort::ALL.len()]
    }

    fn compare(self, one: &Row, other: &Row) -> Ordering {
        let open = |row: &Row| Reverse(row.open.0.saturating_add(row.open.1));
        let key = match self {
            Sort::Rate => Reverse(one.rates.bytes()).cmp(&Reverse(other.rates.bytes())),
            Sort::Calls => Reverse(one.rates.calls).cmp(&Reverse(other.rates.calls)),
            Sort::Open => open(one).cmp(&open(other)),
            Sort::Rings => Reverse(one.fill.percent()).cmp(&Reverse(other.fill.percent())),
            Sort::Name => one.name.cmp(&other.name),
            Sort::Pid => Ordering::Equal,
        };
        key.then(one.pid.cmp(&other.pid))
            .then_with(|| one.ends.cmp(&other.ends))
    }
}

/// Everything that is shown.
#[derive(Default, Debug)]
pub(super) struct Totals {
    pub(super) processes: usize,
    pub(super) memory: u64,
    pub(super) tcp: u64,
    pub(super) rates: Rates,
}

/// A key, as far as it matters here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Press {
    Char(char),
    Enter,
    Escape,
    Backspace,
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
}

/// The state of the screen.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) view: View,
    pub(super) sort: Sort,
    pub(super) reversed: bool,
    pub(super) filter: String,
    /// The filter is being typed.
    pub(super) typing: bool,
    pub(super) paused: bool,
    pub(super) help: bool,
    /// First row that is shown.
    pub(super) top: usize,
    /// Rows that the last screen had room for.
    pub(super) room: usize,
    pub(super) over: bool,
    pub(super) totals: Totals,
    pub(super) unreadable: u64,
    last: Option<Sample>,
    processes: Vec<Row>,
    connections: Vec<Row>,
}

impl Model {
    pub(super) fn new(view: View, sort: Sort, filter: String) -> Model {
        Model {
            view,
            sort,
            reversed: false,
            filter,
            typing: false,
            paused: false,
            help: false,
            top: 0,
            room: 1,
            over: false,
            totals: Totals::default(),
            unreadable: 0,
            last: None,
            processes: Vec::new(),
            connections: Vec::new(),
        }
    }

    /// One more look; rates are those since the one before.
    pub(super) fn take(&mut self, sample: Sample) {
        let before = self.last.take();
        let old: HashMap<Key, &Seen> = before
            .iter()
            .flat_map(|old| &old.processes)
            .map(|seen| (seen.key, seen))
            .collect();
        let seconds = before.as_ref().map(|old| sample.at - old.at);
        let seconds = seconds.map_or(0.0, |time| time.as_secs_f64());
        self.processes.clear();
        self.connections.clear();
        self.totals = Totals::default();
        for seen in &sample.processes {
            let old = old.get(&seen.key).copied();
            let row = process_row(seen, old, seconds);
            self.totals.processes += 1;
            self.totals.memory += row.open.0;
            self.totals.tcp += row.open.1;
            self.totals.rates = self.totals.rates.plus(row.rates);
            self.processes.push(row);
            // Of a process that is new, nobody knows since when its connections have counted.
            let seconds = old.map_or(0.0, |_| seconds);
            self.connections.extend(conn_rows(seen, old, seconds));
        }
        self.unreadable = sample.unreadable;
        self.last = Some(sample);
    }

    /// The rows of this view, in order, that the filter lets through.
    pub(super) fn rows(&self) -> Vec<&Row> {
        let all = match self.view {
            View::Processes => &self.processes,
            View::Connections => &self.connections,
        };
        let shown = all.iter().filter(|row| row.has(&self.filter));
        let mut rows: Vec<&Row> = shown.collect();
        rows.sort_by(|one, other| self.sort.compare(one, other));
        if self.reversed {
            rows.reverse();
        }
        rows
    }

    pub(super) fn press(&mut self, key: Press) {
        match key {
            _ if self.help => self.help = false,
            key if self.typing => self.type_filter(key),
            Press::Char(c) => self.letter(c),
            Press::Escape => self.filter.clear(),
            Press::Enter | Press::Backspace => {}
            key => self.scroll(key),
        }
        self.hold();
    }

    fn type_filter(&mut self, key: Press) {
        match key {
            Press::Char(c) if self.filter.chars().count() < 40 => self.filter.push(c),
            Press::Backspace => drop(self.filter.pop()),
            Press::Enter => self.typing = false,
            Press::Escape => {
                self.typing = false;
                self.filter.clear();
            }
            _ => {}
        }
    }

    fn letter(&mut self, c: char) {
        match c {
            'q' => self.over = true,
            'p' | ' ' => self.paused = !self.paused,
            'r' => self.reversed = !self.reversed,
            's' | '>' => self.sort = self.sort.next(1),
            '<' => self.sort = self.sort.next(Sort::ALL.len() - 1),
            '/' => self.typing = true,
            '?' | 'h' => self.help = true,
            'c' | '\t' => {
                self.view = match self.view {
                    View::Processes => View::Connections,
                    View::Connections => View::Processes,
                };
                self.top = 0;
            }
            'k' => self.scroll(Press::Up),
            'j' => self.scroll(Press::Down),
            _ => {}
        }
    }

    fn scroll(&mut self, key: Press) {
        self.top = match key {
            Press::Up => self.top.saturating_sub(1),
            Press::Down => self.top.saturating_add(1),
            Press::PageUp => self.top.saturating_sub(self.room),
            Press::PageDown => self.top.saturating_add(self.room),
            Press::Home => 0,
            Press::End => usize::MAX,
            _ => self.top,
        };
    }

    /// Not beyond the last row.
    pub(super) fn hold(&mut self) {
        let most = self.rows().len().saturating_sub(self.room);
        self.top = self.top.min(most);
    }
}

fn process_row(seen: &Seen, old: Option<&Seen>, seconds: f64) -> Row {
    let since = old
        .map(|old| seen.sums.since(&old.sums))
        .unwrap_or_default();
    let get = |counter| since.get(counter);
    let is = |wanted: &[ConnState]| {
        let all = seen.conns.iter();
        all.filter(|conn| wanted.contains(&conn.state)).count() as u64
    };
    let open = (
        is(&[ConnState::Memlane]),
        is(&[ConnState::Tcp, ConnState::Downgraded, ConnState::Pending]),
    );
    let rings = seen.conns.iter().flat_map(|conn| [&conn.tx, &conn.rx]);
    Row {
        pid: seen.key.0,
        name: seen.name.clone(),
        rates: rates(
            [Counter::TxRingBytes, Counter::TxTcpBytes].map(get),
            [Counter::RxRingBytes, Counter::RxTcpBytes].map(get),
            get(Counter::TxCalls).saturating_add(get(Counter::RxCalls)),
            seconds,
        ),
        fill: rings.map(Fill::of).fold(Fill::NONE, Fill::plus),
        open,
        reason: often(&seen.sums),
        ends: None,
        fast: open.0 > open.1,
    }
}

/// The reason that was given most often.
fn often(sums: &Counters) -> String {
    let times = |(client, server): &(u64, u64)| client.saturating_add(*server);
    let most = sums.reasons.iter().max_by_key(|(_, both)| times(both));
    most.map_or_else(String::new, |(code, _)| Reason(*code).name().to_owned())
}

fn conn_rows(seen: &Seen, old: Option<&Seen>, seconds: f64) -> Vec<Row> {
    let key = |conn: &Conn| -> ConnKey { (conn.index, conn.since_ns) };
    let before: HashMap<ConnKey, &Conn> = old
        .iter()
        .flat_map(|old| &old.conns)
        .map(|conn| (key(conn), conn))
        .collect();
    let connected = seen
        .conns
        .iter()
        .filter(|conn| !matches!(conn.state, ConnState::Free | ConnState::New));
    connected
        .map(|conn| conn_row(seen, conn, before.get(&key(conn)).copied(), seconds))
        .collect()
}

fn conn_row(seen: &Seen, conn: &Conn, old: Option<&Conn>, seconds: f64) -> Row {
    // Of a connection that is new since then, everything is.
    let since = |now: u64, then: fn(&Conn) -> u64| now.saturating_sub(old.map_or(0, then));
    let fast = conn.state == ConnState::Memlane;
    let address = |address: Option<std::net::SocketAddr>| {
        address.map_or_else(|| "-".to_owned(), |address| address.to_string())
    };
    Row {
        pid: seen.key.0,
        name: seen.name.clone(),
        rates: rates(
            [
                since(conn.tx.ring_bytes, |old| old.tx.ring_bytes),
                since(conn.tx.tcp_bytes, |old| old.tx.tcp_bytes),
            ],
            [
                since(conn.rx.ring_bytes, |old| old.rx.ring_bytes),
                since(conn.rx.tcp_bytes, |old| old.rx.tcp_bytes),
            ],
            since(conn.tx.calls, |old| old.tx.calls)
                .saturating_add(since(conn.rx.calls, |old| old.rx.calls)),
            seconds,
        ),
        fill: Fill::of(&conn.tx).plus(Fill::of(&conn.rx)),
        open: (u64::from(fast), u64::from(!fast)),
        reason: match conn.state {
            ConnState::Memlane => "MEMLANE".into(),
            ConnState::Pending => "HANDSHAKE".into(),
            _ if conn.reason == Reason::NONE => "TCP".into(),
            _ => conn.reason.name().into(),
        },
        ends: Some((
            address(conn.addresses.map(|both| both.0)),
            address(conn.addresses.map(|both| both.1)),
        )),
        fast,
    }
}

fn rates(sent: [u64; 2], received: [u64; 2], calls: u64, seconds: f64) -> Rates {
    let each = |count: u64| match seconds > 0.0 {
        // A rate has three digits on the screen.
        #[allow(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss
        )]
        true => (count as f64 / seconds) as u64,
        false => 0,
    };
    Rates {
        sent: each(sent[0].saturating_add(sent[1])),
        received: each(received[0].saturating_add(received[1])),
        memory: each(sent[0].saturating_add(received[0])),
        calls: each(calls),
    }
}

#[cfg(test)]
#[path = "model_tests.rs"]
pub(super) mod tests;
