//! What is measured of whom: a few of the socket suite's rows, by TCP and by memlane, between two guests and with the host.

use crate::catalogue::{System, system};
use crate::runner::plan;

/// Where the client of the server in a guest is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Client {
    /// In another guest.
    Guest,
    /// On the host.
    Host,
}

/// A column of the tables.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Column {
    pub(super) system: System,
    pub(super) client: Client,
}

pub(super) const TCP_GUESTS: &str = "tcp-guests";
pub(super) const MEMLANE_GUESTS: &str = "memlane-guests";
pub(super) const TCP_HOST: &str = "tcp-host";
pub(super) const MEMLANE_HOST: &str = "memlane-host";

/// All of them.
#[rustfmt::skip]
pub(super) const COLUMNS: [Column; 4] = [
    Column { system: system(TCP_GUESTS, "TCP, two guests", false), client: Client::Guest },
    Column { system: system(MEMLANE_GUESTS, "memlane, two guests", true), client: Client::Guest },
    Column { system: system(TCP_HOST, "TCP, guest and host", false), client: Client::Host },
    Column { system: system(MEMLANE_HOST, "memlane, guest and host", true), client: Client::Host },
];

impl Column {
    /// The column of that name.
    pub(super) fn of(system: &System) -> Option<Column> {
        let mut all = COLUMNS.into_iter();
        all.find(|column| column.system.id == system.id)
    }
}

/// A row, which is a part of the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Row {
    /// Requests of 100 bytes, one at a time.
    Requests,
    /// Writes of 64 KiB, one way.
    Stream,
    /// `redis-benchmark`.
    Redis,
    /// `wrk`.
    Nginx,
}

impl Row {
    /// As it stands in the record: the name of the socket suite's row.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Row::Requests => "msg100",
            Row::Stream => "stream-64k",
            Row::Redis => "redis-get-c50",
            Row::Nginx => "nginx-16",
        }
    }

    /// For people.
    pub(super) fn about(self) -> &'static str {
        match self {
            Row::Requests => "100 B request/response (embedded)",
            Row::Stream => "stream, writes of 65,536 B",
            Row::Redis => "redis GET -c 50",
            Row::Nginx => "nginx/wrk, 16 connections",
        }
    }

    /// What it is judged by.
    pub(super) fn metric(self) -> &'static str {
        match self {
            Row::Stream => "throughput",
            _ => "rate",
        }
    }

    /// Programs that it needs.
    pub(super) fn programs(self) -> &'static [&'static str] {
        match self {
            Row::Requests | Row::Stream => &[],
            Row::Redis => &["redis-server", "redis-benchmark"],
            Row::Nginx => &["nginx", "wrk"],
        }
    }
}

impl plan::Part for Row {
    const ALL: &'static [Self] = &[Row::Requests, Row::Stream, Row::Redis, Row::Nginx];

    fn word(self) -> &'static str {
        match self {
            Row::Requests => "embedded",
            Row::Stream => "stream",
            Row::Redis => "redis",
            Row::Nginx => "nginx",
        }
    }

    fn systems(self) -> Vec<System> {
        COLUMNS.map(|column| column.system).to_vec()
    }

    fn cost(self, seconds: f64) -> f64 {
        seconds + 4.0
    }
}

impl plan::Row for Row {
    type Part = Row;

    fn all() -> Vec<Row> {
        <Row as plan::Part>::ALL.to_vec()
    }

    fn is_quick(&self) -> bool {
        true
    }

    fn part(&self) -> Row {
        *self
    }

    fn id(&self) -> String {
        Row::name(*self).to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::plan::tests::{counts, planned};
    use super::*;
    use crate::suites::sockets;

    #[test]
    fn names_narrow_what_they_name_and_nothing_else() {
        let of = |only: &[&str]| {
            let counts = counts(&planned::<Row>(only, true));
            counts
                .into_iter()
                .filter(|(rows, _)| *rows > 0)
                .collect::<Vec<_>>()
        };
        assert_eq!(of(&[]), [(1, 4); 4]);
        assert_eq!(of(&["redis", MEMLANE_HOST]), [(1, 1)]);
        assert_eq!(of(&["stream-64k", "msg100"]), [(1, 4); 2]);
    }

    #[test]
    fn rows_have_the_names_of_the_socket_suite() {
        let there = sockets::all_lines();
        for row in <Row as plan::Row>::all() {
            assert!(there.iter().any(|line| line.id == row.name()), "{row:?}");
        }
    }
}
