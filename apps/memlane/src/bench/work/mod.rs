//! The workloads.

mod embedded;
mod iperf3;
mod nginx;
mod redis;
mod sockperf;

use super::trial::Workload;

/// All of them, in the order of the table.
pub(crate) fn all() -> Vec<Box<dyn Workload>> {
    vec![
        Box::new(sockperf::Sockperf),
        Box::new(iperf3::Iperf3),
        Box::new(embedded::PingPong),
        Box::new(nginx::Nginx),
        Box::new(redis::Redis::default()),
        Box::new(embedded::Short),
        Box::new(embedded::OneSided),
        Box::new(embedded::Oversubscribed),
    ]
}

/// Where a row stands in the table.
pub(crate) fn position(row: &str) -> usize {
    let rows = all().into_iter().flat_map(|workload| workload.rows());
    rows.take_while(|known| *known != row).count()
}

/// Whether a row's bytes should take the ring: not where connections are too
/// short for an upgrade or the peer is not under memlane.
pub(crate) fn expects_lane(row: &str) -> bool {
    !matches!(row, "short" | "one-sided")
}

/// What a row is, for people.
pub(crate) fn about(row: &str) -> &'static str {
    match row {
        "sockperf-pp" => "sockperf ping-pong, 14 B (one way)",
        "sockperf-tp" => "sockperf throughput, 64,000 B",
        "iperf3" => "iperf3, one stream",
        "msg100" => "100 B request/response (embedded)",
        "nginx-1" => "nginx/wrk, 1 connection",
        "nginx-16" => "nginx/wrk, 16 connections",
        "nginx-64" => "nginx/wrk, 64 connections",
        "nginx-128" => "nginx/wrk, 128 connections",
        "nginx-memory-1" => "nginx/wrk, 1 connection, no file",
        "nginx-memory-16" => "nginx/wrk, 16 connections, no file",
        "nginx-memory-128" => "nginx/wrk, 128 connections, no file",
        "redis-set-c1" => "redis SET -c 1",
        "redis-get-c1" => "redis GET -c 1",
        "redis-set-c50" => "redis SET -c 50",
        "redis-get-c50" => "redis GET -c 50",
        "short" => "short connections (embedded)",
        "one-sided" => "client under run, server not (100 B)",
        "oversubscribed" => "4 ping-pong pairs on 2 CPUs (100 B)",
        _ => "?",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_name_of_its_own_and_a_description() {
        let rows: Vec<_> = all().iter().flat_map(|workload| workload.rows()).collect();
        for (index, row) in rows.iter().enumerate() {
            assert_ne!(about(row), "?", "{row}");
            assert!(!rows[..index].contains(row), "{row} twice");
            assert_eq!(position(row), index);
        }
        assert_eq!(rows.len(), 18);
    }
}
