//! The workloads.

mod connections;
mod embedded;
mod iperf3;
mod nginx;
mod redis;
mod sizes;
mod sockperf;

use super::trial::Workload;
use embedded::Pair;

/// All of them, in the order of the table.
pub(super) fn all() -> Vec<Box<dyn Workload>> {
    vec![
        Box::new(Pair::plain("msg100", "msg/s")),
        Box::new(sockperf::Sockperf),
        Box::new(iperf3::Iperf3),
        Box::new(nginx::Nginx),
        Box::new(redis::Redis::default()),
        Box::new(Pair {
            once: true,
            ..Pair::plain("short", "conn/s")
        }),
        Box::new(Pair {
            one_sided: true,
            ..Pair::plain("one-sided", "msg/s")
        }),
        oversubscribed("oversubscribed", 4, 0),
        oversubscribed("oversubscribed-32", 32, 0),
        oversubscribed("strangers", 4, 2),
        Box::new(connections::Connections),
        Box::new(sizes::echo()),
        Box::new(sizes::stream()),
    ]
}

/// Rows that a short run leaves out, unless they are named.
pub(super) fn takes_long(row: &str) -> bool {
    let rare = [
        "nginx-16",
        "nginx-64",
        "nginx-1000",
        "nginx-memory-16",
        "nginx-memory-128",
        "redis-set-c1",
        "redis-get-c200",
        "redis-set-c200",
    ];
    let steps = ["-4", "-64", "-1k", "-16k", "-256k"];
    let swept = row.starts_with("rr-") || row.starts_with("stream-");
    rare.contains(&row) || swept && steps.iter().any(|step| row.ends_with(step))
}

/// A row whose programs run wherever the kernel likes.
pub(super) fn free(row: &str) -> String {
    format!("{row}/free")
}

/// What a row is over: bytes, or connections.
pub(super) fn across(row: &str) -> Option<f64> {
    let sizes = sizes::SIZES.iter();
    let sizes = sizes.flat_map(|(echo, stream, bytes)| [(*echo, *bytes), (*stream, *bytes)]);
    let counts = connections::COUNTS.iter();
    let counts = counts.map(|(row, count)| (*row, u64::from(*count)));
    let mut all = sizes.chain(counts);
    all.find(|(known, _)| *known == row).map(|(_, n)| n as f64)
}

/// What a row is, for people.
pub(super) fn about(row: &str) -> String {
    let told = match row {
        "sockperf-pp" => "sockperf ping-pong, 14 B (one way)",
        "sockperf-tp" => "sockperf throughput, 64,000 B",
        "iperf3" => "iperf3, one stream",
        "msg100" => "100 B request/response (embedded)",
        "nginx-1" => "nginx/wrk, 1 connection",
        "nginx-16" => "nginx/wrk, 16 connections",
        "nginx-64" => "nginx/wrk, 64 connections",
        "nginx-128" => "nginx/wrk, 128 connections",
        "nginx-500" => "nginx/wrk -t 8, 500 connections",
        "nginx-1000" => "nginx/wrk -t 8, 1000 connections",
        "nginx-memory-1" => "nginx/wrk, 1 connection, no file",
        "nginx-memory-16" => "nginx/wrk, 16 connections, no file",
        "nginx-memory-128" => "nginx/wrk, 128 connections, no file",
        "redis-set-c1" => "redis SET -c 1",
        "redis-get-c1" => "redis GET -c 1",
        "redis-set-c50" => "redis SET -c 50",
        "redis-get-c50" => "redis GET -c 50",
        "redis-set-c200" => "redis SET -c 200 -d 1024",
        "redis-get-c200" => "redis GET -c 200 -d 1024",
        "short" => "short connections (embedded)",
        "one-sided" => "client under run, server not (100 B)",
        "oversubscribed" => "4 ping-pong pairs on 2 CPUs (100 B)",
        "oversubscribed-32" => "32 ping-pong pairs on 2 CPUs (100 B)",
        "strangers" => "4 ping-pong pairs beside 2 that compute, on 2 CPUs (100 B)",
        row => return swept(row),
    };
    told.to_owned()
}

fn oversubscribed(row: &'static str, pairs: usize, strangers: usize) -> Box<dyn Workload> {
    Box::new(embedded::Oversubscribed {
        row,
        pairs,
        strangers,
    })
}

/// Rows over a number.
fn swept(row: &str) -> String {
    let number = across(row).map_or("?".to_owned(), grouped);
    match row.split('-').next() {
        Some("rr") => format!("{number} B there and back (one way)"),
        Some("stream") => format!("stream, writes of {number} B"),
        Some("connections") => format!("100 B over {number} connections in turn"),
        _ => "?".to_owned(),
    }
}

/// `1,048,576`.
pub(super) fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut told = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            told.push(',');
        }
        told.push(digit);
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_name_of_its_own_and_a_description() {
        let rows: Vec<_> = all().iter().flat_map(|workload| workload.rows()).collect();
        let mut told = Vec::new();
        for (index, row) in rows.iter().enumerate() {
            assert!(!about(row).contains('?'), "{row}");
            assert!(!told.contains(&about(row)), "{row}");
            told.push(about(row));
            assert!(!rows[..index].contains(row), "{row} twice");
        }
        assert_eq!(rows.len(), 53);
        assert_eq!(about("rr-1m"), "1,048,576 B there and back (one way)");
        assert_eq!(grouped(100.0), "100");
    }

    #[test]
    fn a_short_run_keeps_every_step_of_sixteen_and_both_ends() {
        let rows = all().into_iter().flat_map(|workload| workload.rows());
        let kept: Vec<_> = rows.filter(|row| !takes_long(row)).collect();
        for row in [
            "rr-1",
            "rr-16",
            "rr-4m",
            "stream-64k",
            "nginx-1",
            "nginx-500",
        ] {
            assert!(kept.contains(&row), "{row}");
        }
        for row in ["rr-4", "stream-16k", "nginx-1000"] {
            assert!(!kept.contains(&row), "{row}");
        }
    }
}
