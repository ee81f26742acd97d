//! The rows of each program, in the order of the tables.

use super::works::{
    By, Line, OF_TCP, Pinning, Side, Work, by_ring, crowded, line, several, step, swept, together,
    work,
};

/// How many works there are.
pub(super) const WORKS_COUNT: usize = 37;

/// All of them, in the order of the table.
#[rustfmt::skip]
pub(super) static WORKS: [Work; WORKS_COUNT] = [
    work("embedded", By::Pair, &[line("msg100", "100 B request/response (embedded)", &[])]),
    Work {
        programs: &["sockperf"],
        sides: OF_TCP,
        ..work("sockperf", By::Sockperf, &SOCKPERF)
    },
    Work {
        programs: &["iperf3"],
        sides: OF_TCP,
        ..work("iperf3", By::Iperf3, &IPERF3)
    },
    Work {
        programs: &["nginx", "wrk"],
        sides: OF_TCP,
        ..work("nginx", By::Nginx, &NGINX)
    },
    Work {
        programs: &["redis-server", "redis-benchmark"],
        ..work("redis", By::Redis, &REDIS)
    },
    several("pgbench", By::Pgbench, &["postgres", "initdb", "pgbench"], &[
        line("pgbench", "pgbench TPC-B, 20 clients, 4 threads", &["-c", "20", "-j", "4"]),
        line("pgbench-rows", "pgbench, queries of 100 rows, 4 clients, 4 threads", &["-n", "-f", "rows.sql", "-c", "4", "-j", "4"]),
        line("pgbench-connect", "pgbench SELECT, 4 clients, each transaction connects", &["-S", "-C", "-c", "4", "-j", "2"]),
    ]),
    several("haproxy", By::Haproxy, &["haproxy", "nginx", "wrk"], &[
        line("haproxy", "wrk, haproxy, nginx: 64 connections", &["1", "64", "http"]),
        line("haproxy-tcp", "wrk, haproxy in TCP mode, nginx: 1 connection, closed after 1,000 requests", &["1", "1", "tcp"]),
    ]),
    several("netty", By::Netty, &["java", "javac", NETTY, "nginx", "wrk"], &[
        line("netty", "wrk, a Netty proxy, nginx: 64 connections", &["1", "64"]).long(),
    ]),
    Work {
        programs: &["go", "cc"],
        sides: OF_TCP,
        ..work("go", By::Go, &[line("go-echo", "Go echo, 100 B, 1 connection", &["echo"]).long()])
    },
    Work {
        programs: &["go", "cc", "wrk"],
        sides: OF_TCP,
        ..work("go", By::Go, &[
            line("go-http", "wrk, Go's net/http, 16 connections", &["http", "1", "16"]).long(),
        ])
    },
    several("go", By::Go, &["go", "cc", "nginx", "wrk"], &[
        line("go-proxy", "wrk, Go's proxy, nginx: 64 connections", &["proxy", "1", "64"]).long(),
    ]),
    Work {
        programs: &["go"],
        sides: OF_TCP,
        ..work("go", By::GoStart, &[line("go-start", "start and end of a static Go program", &[]).long()])
    },
    Work {
        programs: &[GRPC],
        sides: OF_TCP,
        ..work("go", By::Grpc, &[
            line("grpc-unary", "gRPC in Go, calls of 100 B, 1 connection", &[]).long(),
        ])
    },
    several("go", By::Caddy, &[CADDY, "nginx", "wrk"], &[
        line("caddy", "wrk, Caddy, nginx: 64 connections", &["1", "64"]).long(),
    ]),
    Work {
        programs: &[MUSL_NGINX, "wrk"],
        sides: OF_TCP,
        ..work("musl", By::MuslNginx, &[
            line("musl-nginx-1", "nginx with musl/wrk, 1 connection", &["1", "1", "index.html"]).long(),
            line("musl-nginx-128", "nginx with musl/wrk, 128 connections", &["1", "128", "index.html"]).long(),
        ])
    },
    several("script", By::Script, &["sh", "date", "curl", "nginx"], &[
        line("script-curl", "a script of curl, each asks nginx once", &["curl"]),
        line("script-true", "a script of true, no connections", &["true"]).long(),
    ]),
    several("script", By::Script, &["sh", "date", "go", "cc", "nginx"], &[
        line("script-go", "a script of a client in Go, each asks nginx once", &["go"]),
    ]),
    Work {
        pinning: &[Pinning::Apart],
        ..several("nc", By::Netcat, &["nc.openbsd", "dd", "timeout"], &[
            line("nc", "dd | nc, one way", &[]).long(),
        ])
    },
    several("nc", By::Netcat, &["socat", "dd", "timeout"], &[
        line("socat", "dd | socat, to socat EXEC:cat and back", &[]),
    ]),
    several("ssh", By::Tunnel, &["sshd", "ssh", "ssh-keygen", "iperf3"], &[
        line("ssh", "iperf3 through ssh -L", &[]).long(),
    ]),
    work("embedded", By::Pair, &SHORT),
    Work {
        sides: &[Side::Tcp, Side::Nocopy],
        ..work("embedded", By::OneSided, &[line("one-sided", "client under run, server not (100 B)", &[])])
    },
    crowded(&[line("oversubscribed", "4 ping-pong pairs on 2 CPUs (100 B)", &["4", "0"])]),
    crowded(&[line("oversubscribed-32", "32 ping-pong pairs on 2 CPUs (100 B)", &["32", "0"])]),
    crowded(&[line("strangers", "4 ping-pong pairs beside 2 that compute, on 2 CPUs (100 B)", &["4", "2"])]),
    together(By::Pair, &[line("one-cpu-msg100", "one CPU: 100 B request/response (embedded)", &[])]),
    Work {
        programs: &["iperf3"],
        sides: OF_TCP,
        ..together(By::Iperf3, &[line("one-cpu-iperf3", "one CPU: iperf3, one stream", &[])])
    },
    Work {
        programs: &["nginx", "wrk"],
        sides: OF_TCP,
        ..together(By::Nginx, &[
            line("one-cpu-nginx-128", "one CPU: nginx/wrk, 128 connections", &["1", "128", "index.html"]),
        ])
    },
    Work {
        pinning: &[Pinning::Free],
        ..work("embedded", By::Crowd, &[
            step("crowd-100", 100).called("100 threads send to one (embedded)"),
            step("crowd-400", 400).called("400 threads send to one (embedded)"),
        ])
    },
    swept("connections", By::Connections, &CONNECTIONS),
    swept("rr", By::Echo, &RR),
    swept("stream", By::Stream, &STREAM_SIZES),
    swept("paced", By::Paced, &PACED),
    by_ring(By::Iperf3, &["iperf3"], &[
        line("rings-iperf3", "iperf3, one stream, by ring", &[]).long(),
        line("rings-iperf3-4", "iperf3, 4 streams, by ring", &["-P", "4"]).long(),
        line("rings-iperf3-8", "iperf3, 8 streams, by ring", &["-P", "8"]).long(),
    ]),
    by_ring(By::Sockperf, &["sockperf"], &[
        line("rings-sockperf-tp", "sockperf throughput, 64,000 B, by ring", &["throughput", "64000"]).long(),
    ]),
    by_ring(By::Stream, &[], &[
        step("rings-stream-64k", 1 << 16).called("stream, writes of 64 KiB, by ring").long(),
        step("rings-stream-1m", 1 << 20).called("stream, writes of 1 MiB, by ring").long(),
    ]),
    by_ring(By::Redis, &["redis-server", "redis-benchmark"], &[
        line("rings-redis-set-1m", "redis SET -c 4 -d 1048576, by ring", &["SET", "4", "1048576"]).long(),
        line("rings-redis-get-1m", "redis GET -c 4 -d 1048576, by ring", &["GET", "4", "1048576"]).long(),
    ]),
];

/// What `./dev bench sockets` builds, in the target folder.
pub(super) const GRPC: &str = "go/libc/grpc";
/// The same.
pub(super) const CADDY: &str = "go/libc/caddy";
/// The same.
pub(super) const MUSL_NGINX: &str = "musl/nginx";
/// An argument of a row of nginx and wrk: each request has a connection of its own.
pub(super) const CLOSE: &str = "close";
/// A part of Netty that stands for all of it.
const NETTY: &str = "/usr/share/java/netty-transport.jar";

#[rustfmt::skip]
const SOCKPERF: [Line; 2] = [
    line("sockperf-pp", "sockperf ping-pong, 14 B (one way)", &["ping-pong", "14"]),
    line("sockperf-tp", "sockperf throughput, 64,000 B", &["throughput", "64000"]),
];
/// One thread at each end serves all streams.
#[rustfmt::skip]
const IPERF3: [Line; 7] = [
    line("iperf3", "iperf3, one stream", &[]),
    line("iperf3-4", "iperf3, 4 streams", &["-P", "4"]),
    line("iperf3-8", "iperf3, 8 streams", &["-P", "8"]),
    line("iperf3-100", "iperf3, 100 streams", &["-P", "100"]),
    line("iperf3-back", "iperf3, one stream back", &["-R"]).long(),
    line("iperf3-zero", "iperf3, one stream by sendfile", &["-Z"]).long(),
    line("iperf3-bidir", "iperf3, one stream each way", &["--bidir"]),
];
/// Storms: a handshake is due after 8 answers, and its lane pays after some dozens.
#[rustfmt::skip]
const SHORT: [Line; 3] = [
    line("short", "short connections (embedded)", &["--answers", "1"]),
    line("short-10", "connections of 10 requests (embedded)", &["--answers", "10"]),
    line("short-30", "connections of 30 requests (embedded)", &["--answers", "30"]).long(),
];
/// 500 and 1000 connections are those of the published tables.
#[rustfmt::skip]
const NGINX: [Line; 11] = [
    line("nginx-1", "nginx/wrk, 1 connection", &["1", "1", "index.html"]),
    line("nginx-16", "nginx/wrk, 16 connections", &["1", "16", "index.html"]).long(),
    line("nginx-64", "nginx/wrk, 64 connections", &["1", "64", "index.html"]).long(),
    line("nginx-128", "nginx/wrk, 128 connections", &["1", "128", "index.html"]),
    line("nginx-500", "nginx/wrk -t 8, 500 connections", &["8", "500", "index.html"]),
    line("nginx-1000", "nginx/wrk -t 8, 1000 connections", &["8", "1000", "index.html"]).long(),
    line("nginx-memory-1", "nginx/wrk, 1 connection, no file", &["1", "1", "memory"]),
    line("nginx-memory-16", "nginx/wrk, 16 connections, no file", &["1", "16", "memory"]).long(),
    line("nginx-memory-128", "nginx/wrk, 128 connections, no file", &["1", "128", "memory"]).long(),
    line("nginx-close", "nginx/wrk, 16 clients, each request connects", &["1", "16", "index.html", CLOSE]),
    line("nginx-16m", "nginx/wrk, 4 connections, 16 MiB", &["1", "4", "large.bin"]).long(),
];
/// SET comes first, so that GET finds the key. Those of 200 clients are in the published table.
#[rustfmt::skip]
const REDIS: [Line; 8] = [
    line("redis-set-c1", "redis SET -c 1", &["SET", "1", "3"]).long(),
    line("redis-get-c1", "redis GET -c 1", &["GET", "1", "3"]),
    line("redis-set-c50", "redis SET -c 50", &["SET", "50", "3"]),
    line("redis-get-c50", "redis GET -c 50", &["GET", "50", "3"]),
    line("redis-set-c200", "redis SET -c 200 -d 1024", &["SET", "200", "1024"]).long(),
    line("redis-get-c200", "redis GET -c 200 -d 1024", &["GET", "200", "1024"]).long(),
    line("redis-set-1m", "redis SET -c 4 -d 1048576", &["SET", "4", "1048576"]),
    line("redis-get-1m", "redis GET -c 4 -d 1048576", &["GET", "4", "1048576"]),
];
const CONNECTIONS: [Line; 5] = [
    step("connections-1", 1),
    step("connections-10", 10),
    step("connections-100", 100),
    step("connections-1000", 1_000),
    step("connections-10000", 10_000),
];
/// 1 byte to 4 MiB in steps of four; a short run has every second step, and the largest.
macro_rules! sizes {
    ($group:literal) => {
        [
            step(concat!($group, "-1"), 1),
            step(concat!($group, "-4"), 4).long(),
            step(concat!($group, "-16"), 16),
            step(concat!($group, "-64"), 64).long(),
            step(concat!($group, "-256"), 256),
            step(concat!($group, "-1k"), 1 << 10).long(),
            step(concat!($group, "-4k"), 1 << 12),
            step(concat!($group, "-16k"), 1 << 14).long(),
            step(concat!($group, "-64k"), 1 << 16),
            step(concat!($group, "-256k"), 1 << 18).long(),
            step(concat!($group, "-1m"), 1 << 20),
            step(concat!($group, "-4m"), 1 << 22),
        ]
    };
}
const RR: [Line; 12] = sizes!("rr");
const STREAM_SIZES: [Line; 12] = sizes!("stream");
#[rustfmt::skip]
const PACED: [Line; 6] = [
    line("paced-100-c1", "100 requests a second, 1 connection", &["100", "1"]),
    line("paced-1k-c1", "1,000 requests a second, 1 connection", &["1000", "1"]),
    line("paced-10k-c1", "10,000 requests a second, 1 connection", &["10000", "1"]),
    line("paced-100-c50", "100 requests a second, 50 connections", &["100", "50"]),
    line("paced-1k-c50", "1,000 requests a second, 50 connections", &["1000", "50"]),
    line("paced-10k-c50", "10,000 requests a second, 50 connections", &["10000", "50"]),
];
