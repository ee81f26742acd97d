//! What the tools print, as numbers.

use anyhow::{Context, anyhow};

/// sockperf ping-pong: `(p50, p99)` in µs, one way (half a round trip).
pub(crate) fn sockperf_latency(text: &str) -> anyhow::Result<(f64, f64)> {
    let at = |percent: &str| -> anyhow::Result<f64> {
        let line = text
            .lines()
            .find(|line| line.contains(&format!("percentile {percent} =")))
            .ok_or_else(|| anyhow!("sockperf printed no percentile {percent}"))?;
        number(line.rsplit('=').next().unwrap_or_default())
    };
    Ok((at("50.000")?, at("99.000")?))
}

/// sockperf throughput: MiB/s (sockperf calls them MBps).
pub(crate) fn sockperf_bandwidth(text: &str) -> anyhow::Result<f64> {
    let rest = text
        .split("BandWidth is ")
        .nth(1)
        .ok_or_else(|| anyhow!("sockperf printed no bandwidth"))?;
    number(rest.split(' ').next().unwrap_or_default())
}

/// sockperf: messages sent, those of its warm-up too.
pub(crate) fn sockperf_messages(text: &str) -> anyhow::Result<f64> {
    // The last one is of the whole run; throughput has the second form only.
    let said = text.split("SentMessages=").nth(1);
    let word = match said {
        Some(rest) => rest.split(';').next(),
        None => text
            .split("Total of ")
            .nth(1)
            .and_then(|rest| rest.split(' ').next()),
    };
    number(word.ok_or_else(|| anyhow!("sockperf told no number of messages"))?)
}

/// iperf3 -J: what the receivers counted, in Gbit/s; both ways together, if there were two.
pub(crate) fn iperf3_gbits(text: &str) -> anyhow::Result<f64> {
    Ok(iperf3_received(text, "bits_per_second")? / 1e9)
}

/// iperf3 -J: what the receivers counted, in bytes, likewise.
pub(crate) fn iperf3_bytes(text: &str) -> anyhow::Result<f64> {
    iperf3_received(text, "bytes")
}

fn iperf3_received(text: &str, what: &str) -> anyhow::Result<f64> {
    let value: serde_json::Value = serde_json::from_str(text).context("iperf3's JSON")?;
    if let Some(error) = value["error"].as_str() {
        return Err(anyhow!("iperf3: {error}"));
    }
    let sum = |of: &str| value["end"][of][what].as_f64().filter(|sum| *sum > 0.0);
    let received =
        sum("sum_received").ok_or_else(|| anyhow!("iperf3 reported no received bytes"))?;
    Ok(received + sum("sum_received_bidir_reverse").unwrap_or(0.0))
}

/// pgbench: transactions in a second, and how many there were.
pub(crate) fn pgbench(text: &str) -> anyhow::Result<(f64, f64)> {
    let after = |label: &str| {
        let mut lines = text.lines();
        let found = lines.find_map(|line| line.strip_prefix(label));
        let word = found.and_then(|rest| rest.split(['/', ' ']).find(|word| !word.is_empty()));
        number(word.ok_or_else(|| anyhow!("pgbench told no {label}"))?)
    };
    let failed = after("number of failed transactions:").unwrap_or(0.0);
    if failed > 0.0 {
        return Err(anyhow!("{failed} transactions of pgbench failed"));
    }
    Ok((
        after("tps =")?,
        after("number of transactions actually processed:")?,
    ))
}

/// dd: bytes copied, and in how many seconds.
pub(crate) fn dd(text: &str) -> anyhow::Result<(f64, f64)> {
    let line = text.lines().find(|line| line.contains(" copied, "));
    let line = line.ok_or_else(|| anyhow!("dd did not tell what it has copied: {text:?}"))?;
    let (bytes, _) = line.split_once(' ').unwrap_or_default();
    let (_, rest) = line.split_once(" copied, ").unwrap_or_default();
    let (seconds, _) = rest.split_once(" s").unwrap_or_default();
    Ok((number(bytes)?, number(seconds)?))
}

/// One run of wrk.
#[derive(Debug, PartialEq)]
pub(crate) struct Wrk {
    /// Requests per second.
    pub(crate) rate: f64,
    /// Median latency, µs.
    pub(crate) p50: f64,
    /// 99th percentile, µs.
    pub(crate) p99: f64,
    /// How many.
    pub(crate) requests: f64,
}

/// wrk --latency. Errors that it counted make the run worthless.
pub(crate) fn wrk(text: &str) -> anyhow::Result<Wrk> {
    if let Some(line) = text
        .lines()
        .find(|line| line.contains("Socket errors") || line.contains("Non-2xx"))
    {
        return Err(anyhow!("wrk: {}", line.trim()));
    }
    let word_after = |label: &str| -> anyhow::Result<&str> {
        text.lines()
            .find_map(|line| line.trim().strip_prefix(label))
            .map(str::trim)
            .ok_or_else(|| anyhow!("wrk printed no {label}"))
    };
    Ok(Wrk {
        rate: number(word_after("Requests/sec:")?)?,
        p50: microseconds(word_after("50%")?)?,
        p99: microseconds(word_after("99%")?)?,
        requests: text
            .lines()
            .find_map(|line| line.split_once(" requests in "))
            .map_or_else(|| Err(anyhow!("wrk told no requests")), |(n, _)| number(n))?,
    })
}

/// One line of `redis-benchmark --csv`.
#[derive(Debug, PartialEq)]
pub(crate) struct Redis {
    /// Requests per second.
    pub(crate) rate: f64,
    /// Median latency, µs.
    pub(crate) p50: f64,
    /// 99th percentile, µs.
    pub(crate) p99: f64,
}

/// The line of `test` (GET, SET) in `redis-benchmark --csv`.
pub(crate) fn redis(text: &str, test: &str) -> anyhow::Result<Redis> {
    let mut rows = text
        .lines()
        .map(|line| {
            line.split(',')
                .map(|cell| cell.trim_matches('"'))
                .collect::<Vec<_>>()
        })
        .skip_while(|row| row.first() != Some(&"test"));
    let head = rows
        .next()
        .ok_or_else(|| anyhow!("redis-benchmark printed no CSV: {}", text.trim()))?;
    let row = rows
        .find(|row| {
            row.first()
                .is_some_and(|name| name.eq_ignore_ascii_case(test))
        })
        .ok_or_else(|| anyhow!("redis-benchmark printed no line for {test}"))?;
    let cell = |name: &str| -> anyhow::Result<f64> {
        let at = head.iter().position(|title| *title == name);
        let text = at.and_then(|at| row.get(at));
        number(text.ok_or_else(|| anyhow!("redis-benchmark has no column {name}"))?)
    };
    Ok(Redis {
        rate: cell("rps")?,
        p50: cell("p50_latency_ms")? * 1000.0,
        p99: cell("p99_latency_ms")? * 1000.0,
    })
}

fn number(text: &str) -> anyhow::Result<f64> {
    let text = text.trim();
    text.parse()
        .with_context(|| format!("{text:?} is not a number"))
}

fn microseconds(text: &str) -> anyhow::Result<f64> {
    for (unit, factor) in [("us", 1.0), ("ms", 1e3), ("s", 1e6)] {
        if let Some(value) = text.strip_suffix(unit) {
            return Ok(number(value)? * factor);
        }
    }
    Err(anyhow!("{text:?} is not a time"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOCKPERF_PP: &str = "sockperf: Test ended\n\
        sockperf: [Valid Duration] RunTime=1.550 sec; SentMessages=29547; ReceivedMessages=29547\n\
        sockperf: \u{1b}[2;35m====> avg-latency=26.223 (std-dev=78.036)\u{1b}[0m\n\
        sockperf: \u{1b}[2;35mTotal 29547 observations\u{1b}[0m; each percentile contains 295.47\n\
        sockperf: ---> <MAX> observation = 3630.728\n\
        sockperf: ---> percentile 99.999 = 3630.728\n\
        sockperf: ---> percentile 99.000 =   44.841\n\
        sockperf: ---> percentile 90.000 =   25.307\n\
        sockperf: ---> percentile 50.000 =   21.977\n\
        sockperf: ---> <MIN> observation =   14.977\n";

    const SOCKPERF_TP: &str = "sockperf: Total of 91674 messages sent in 2.000 sec\n\n\
        sockperf: Summary: Message Rate is 45826 [msg/sec], Packet Rate is about 2016344 [pkt/sec]\n\
        sockperf: Summary: BandWidth is 2796.997 MBps (22375.977 Mbps)\n";

    const WRK: &str = "Running 1s test @ http://127.0.0.1:23114/index.html\n\
        \x20 1 threads and 16 connections\n\
        \x20 Thread Stats   Avg      Stdev     Max   +/- Stdev\n\
        \x20   Latency   330.29us  355.57us   4.28ms   96.67%\n\
        \x20   Req/Sec    50.87k     3.00k   55.40k    81.82%\n\
        \x20 Latency Distribution\n\
        \x20    50%  262.00us\n\x20    75%  364.00us\n\x20    90%  443.00us\n\x20    99%    2.34ms\n\
        \x20 55758 requests in 1.10s, 12.76MB read\n\
        Requests/sec:  50549.12\nTransfer/sec:     11.57MB\n";

    const REDIS: &str = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\",\
        \"p95_latency_ms\",\"p99_latency_ms\",\"max_latency_ms\"\n\
        \"SET\",\"16129.03\",\"0.057\",\"0.024\",\"0.055\",\"0.063\",\"0.111\",\"4.703\"\n\
        \"GET\",\"28571.43\",\"0.031\",\"0.016\",\"0.023\",\"0.063\",\"0.071\",\"4.551\"\n";

    #[test]
    fn sockperf_percentiles_are_read_through_its_colours() {
        assert_eq!(
            sockperf_latency(SOCKPERF_PP).expect("latency"),
            (21.977, 44.841)
        );
    }

    #[test]
    fn sockperf_without_statistics_is_an_error_not_a_zero() {
        let text = "sockperf: ERROR: _seqN > m_maxSequenceNo\n";
        assert!(sockperf_latency(text).is_err());
        assert!(sockperf_bandwidth(text).is_err());
    }

    #[test]
    fn sockperf_bandwidth_is_the_first_figure_of_its_summary() {
        assert_eq!(
            sockperf_bandwidth(SOCKPERF_TP).expect("bandwidth"),
            2796.997
        );
        assert_eq!(sockperf_messages(SOCKPERF_TP).expect("sent"), 91674.0);
        assert_eq!(sockperf_messages(SOCKPERF_PP).expect("sent"), 29547.0);
    }

    #[test]
    fn iperf3_counts_what_arrived() {
        let text = r#"{"end":{"sum_sent":{"bits_per_second":3e10},
            "sum_received":{"start":0,"bytes":1874209908,"bits_per_second":14993679267.867636}}}"#;
        let gbits = iperf3_gbits(text).expect("rate");
        assert!((gbits - 14.993_679).abs() < 1e-5, "{gbits}");
        assert_eq!(iperf3_bytes(text).expect("bytes"), 1_874_209_908.0);
    }

    #[test]
    fn iperf3_counts_both_ways_where_there_are_two() {
        let text = r#"{"end":{"sum_received":{"bytes":100,"bits_per_second":2e9},
            "sum_received_bidir_reverse":{"bytes":50,"bits_per_second":1e9}}}"#;
        assert_eq!(iperf3_bytes(text).expect("bytes"), 150.0);
        assert_eq!(iperf3_gbits(text).expect("rate"), 3.0);
    }

    #[test]
    fn transactions_are_counted_and_none_may_have_failed() {
        let text = "number of transactions actually processed: 8213\n\
            number of failed transactions: 0 (0.000%)\nlatency average = 4.871 ms\n\
            tps = 4105.903214 (without initial connection time)\n";
        assert_eq!(pgbench(text).expect("tps"), (4105.903214, 8213.0));
        let failed = text.replace("failed transactions: 0", "failed transactions: 3");
        assert!(pgbench(&failed).is_err() && pgbench("").is_err());
    }

    #[test]
    fn what_dd_has_copied_is_read_from_its_last_line() {
        let text = "57135+0 records in\n57134+0 records out\n\
            3744333824 bytes (3.7 GB, 3.5 GiB) copied, 1.99885 s, 1.9 GB/s\n";
        assert_eq!(dd(text).expect("bytes"), (3_744_333_824.0, 1.99885));
        assert!(dd("dd: no such file").is_err());
    }

    #[test]
    fn iperf3_tells_its_own_error() {
        let text = r#"{"start":{},"error":"error - unable to connect to server"}"#;
        let error = iperf3_gbits(text).expect_err("an error");
        assert!(error.to_string().contains("unable to connect"));
        assert!(iperf3_gbits("iperf3: oops").is_err());
    }

    #[test]
    fn wrk_units_become_microseconds() {
        let run = wrk(WRK).expect("wrk");
        assert_eq!(
            run,
            Wrk {
                rate: 50549.12,
                p50: 262.0,
                p99: 2340.0,
                requests: 55758.0
            }
        );
        assert_eq!(microseconds("1.50s").expect("time"), 1_500_000.0);
        assert!(microseconds("12").is_err());
    }

    #[test]
    fn a_wrk_run_with_errors_is_no_result() {
        let text = format!("{WRK}  Socket errors: connect 0, read 12, write 0, timeout 0\n");
        assert!(
            wrk(&text)
                .expect_err("errors")
                .to_string()
                .contains("read 12")
        );
        let text = format!("{WRK}  Non-2xx or 3xx responses: 7\n");
        assert!(wrk(&text).is_err());
    }

    #[test]
    fn redis_columns_are_found_by_name_and_told_in_microseconds() {
        let get = redis(REDIS, "GET").expect("get");
        assert_eq!(
            (get.rate, get.p50.round(), get.p99.round()),
            (28571.43, 23.0, 71.0)
        );
        assert_eq!(redis(REDIS, "set").expect("set").rate, 16129.03);
        assert!(redis(REDIS, "LPUSH").is_err());
        assert!(redis("Could not connect to Redis", "GET").is_err());
    }
}
