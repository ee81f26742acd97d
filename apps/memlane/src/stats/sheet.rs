//! The text of `memlane stats`, in the manner of `smcd stats`: a heading, then lines of a label and a value.

use std::fmt::Write as _;

use memlane_core::stats::{Counter, SIZE_CLASSES};
use memlane_observe::counters::Counters;
use memlane_observe::counters::table::row;

use super::document::{Counts, Direction};
use crate::cli::out::human;

/// Names of the size classes, as `smcd stats` prints them.
const CLASSES: [&str; SIZE_CLASSES] = [
    "8KB", "16KB", "32KB", "64KB", "128KB", "256KB", "512KB", ">512KB",
];

/// What to show.
pub(super) struct Shown<'a> {
    /// The counters of all processes together.
    pub(super) sums: &'a Counters,
    /// The same, with what is open now.
    pub(super) counts: &'a Counts,
    pub(super) processes: usize,
    /// Of these, how many were reset.
    pub(super) since: usize,
    /// Also what only `--details` shows.
    pub(super) details: bool,
}

/// The whole text.
pub(super) fn text(shown: &Shown<'_>) -> String {
    let mut sheet = Sheet {
        text: String::new(),
        sums: shown.sums,
    };
    sheet.connections(shown);
    sheet.received(&shown.counts.rx);
    sheet.sent(&shown.counts.tx);
    sheet.waits();
    sheet.extras(shown.details);
    sheet.text
}

struct Sheet<'a> {
    text: String,
    sums: &'a Counters,
}

impl Sheet<'_> {
    fn heading(&mut self, text: &str) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        self.text.push_str(text);
        self.text.push('\n');
    }

    fn line(&mut self, label: &str, value: impl std::fmt::Display) {
        let _ = writeln!(self.text, "  {label:<34}{value:>14}");
    }

    /// A line of the table of counters.
    fn counter(&mut self, counter: Counter) {
        self.line(row(counter).label, self.sums.get(counter));
    }

    /// A line of the table of counters, indented as a part of the line above.
    fn part(&mut self, counter: Counter) {
        let label = format!("  {}", row(counter).label);
        self.line(&label, self.sums.get(counter));
    }

    /// A line of the table of counters, with its share of a whole.
    fn counter_and_share(&mut self, counter: Counter, whole: u64) {
        let value = self.sums.get(counter);
        let with_share = format!("{value} ({})", share(value, whole));
        self.line(row(counter).label, with_share);
    }

    /// A line of the table of counters, exact and rounded.
    fn bytes(&mut self, counter: Counter) {
        let value = self.sums.get(counter);
        self.line(row(counter).label, format!("{value} ({})", human(value)));
    }

    fn connections(&mut self, shown: &Shown<'_>) {
        let open = &shown.counts.connections.open;
        self.heading("Connections");
        self.line("Processes", shown.processes);
        if shown.since > 0 {
            self.line("  counted since a reset", shown.since);
        }
        self.counter(Counter::Conns);
        if shown.details {
            self.part(Counter::ConnsClient);
            self.part(Counter::ConnsServer);
        }
        self.counter(Counter::Upgraded);
        if shown.details {
            self.part(Counter::UpgradedClient);
            self.part(Counter::UpgradedServer);
        }
        self.part(Counter::Downgrades);
        self.line("Open on the memory lane", open.memlane);
        if shown.details {
            self.line("  sending in mode copy", open.memlane_copy);
        }
        self.line("Open on TCP", open.tcp.saturating_add(open.downgraded));
        self.line("Handshakes in progress", open.handshake);
        self.counter(Counter::HandshakeErrors);
        self.counter(Counter::LinkGroups);
        let calls = [Counter::TxCalls, Counter::RxCalls].map(|counter| self.sums.get(counter));
        let calls = calls[0].saturating_add(calls[1]);
        let each = calls.checked_div(self.sums.get(Counter::Conns));
        self.line("Calls per connection", each.unwrap_or(0));
        self.counter(Counter::Fallbacks);
        if shown.details {
            self.reasons(shown.counts);
        }
    }

    fn reasons(&mut self, counts: &Counts) {
        for reason in counts.fallbacks.ranked() {
            let label = format!("  0x{:08x} {}", reason.code, reason.name);
            let times = format!("{} client, {} server", reason.client, reason.server);
            let _ = writeln!(self.text, "  {label:<34}{times:>26}  {}", reason.text);
        }
    }

    fn received(&mut self, rx: &Direction) {
        self.heading("RX");
        self.bytes(Counter::RxRingBytes);
        self.bytes(Counter::RxTcpBytes);
        self.counter(Counter::RxCalls);
        self.rings(rx);
        self.counter(Counter::Parks);
        self.sizes(rx);
    }

    fn sent(&mut self, tx: &Direction) {
        let calls = self.sums.get(Counter::TxCalls);
        self.heading("TX");
        self.bytes(Counter::TxRingBytes);
        self.bytes(Counter::TxTcpBytes);
        self.counter(Counter::TxCalls);
        self.rings(tx);
        self.counter_and_share(Counter::RingFull, calls);
        if self.sums.get(Counter::Scarce) > 0 {
            self.counter(Counter::Scarce);
        }
        self.counter(Counter::WakeupsSent);
        self.counter(Counter::BellsRung);
        self.counter_and_share(Counter::TxBeyondRing, calls);
        self.sizes(tx);
    }

    fn rings(&mut self, of: &Direction) {
        let used = of.ring_used_bytes.0.map(human);
        let used = used.unwrap_or_else(|| "-".to_owned());
        let ring = format!("{used}/{}", human(of.ring_size_bytes));
        self.line("Rings in use", ring);
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
            self.text.push_str(&line);
            self.text.push('\n');
        }
    }

    fn waits(&mut self) {
        self.heading("Waiting");
        self.counter(Counter::WaitsAvoided);
        self.counter(Counter::KernelWaits);
        let spins = [Counter::SpinHits, Counter::SpinMisses].map(|counter| self.sums.get(counter));
        self.counter_and_share(Counter::SpinHits, spins[0].saturating_add(spins[1]));
        self.counter(Counter::SpinMisses);
        self.counter(Counter::CtlAvoided);
    }

    fn extras(&mut self, details: bool) {
        let special = [
            Counter::Cork,
            Counter::NoDelay,
            Counter::Sendfile,
            Counter::Splice,
            Counter::Urgent,
        ];
        self.heading("Extras");
        let values = special.iter().map(|counter| self.sums.get(*counter));
        let sum = values.fold(0, u64::saturating_add);
        self.line("Special socket calls", sum);
        if details {
            for counter in special {
                self.part(counter);
            }
        }
        self.counter(Counter::PeerMisbehaved);
    }
}

/// `part` of `whole`, in percent with two decimals.
fn share(part: u64, whole: u64) -> String {
    let per_myriad = (u128::from(part) * 10_000)
        .checked_div(u128::from(whole))
        .unwrap_or(0);
    format!("{}.{:02}%", per_myriad / 100, per_myriad % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_any_two_numbers_can_be_shown() {
        assert_eq!(share(1, 3), "33.33%");
        assert_eq!(share(5, 0), "0.00%");
        assert_eq!(share(u64::MAX, 1), format!("{}00.00%", u64::MAX));
        assert_eq!(share(1, u64::MAX), "0.00%");
    }
}
