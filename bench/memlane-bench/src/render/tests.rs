//! What is made of a run that has a little of everything.

use super::markdown::markdown;
use super::{page, plots, tables};
use crate::catalogue::Catalogue;
use crate::figures::Figures;
use crate::fixtures::run;
use crate::fixtures::{even_tables, marks};
use crate::sample::{Absence, Run};
use crate::suites::catalogue;

fn sockets() -> (Run, Catalogue) {
    let mut run = run(
        "sockets",
        &[
            ("msg100", "tcp", "rate", "msg/s", &[10e3, 20e3]),
            ("msg100", "unix", "rate", "msg/s", &[20e3, 40e3]),
            ("msg100", "nocopy", "rate", "msg/s", &[1e6, 2e6]),
            ("msg100", "nocopy", "ring_bytes", "B", &[99_990.0]),
            ("msg100", "nocopy", "tcp_bytes", "B", &[10.0]),
            ("nginx-1", "tcp", "rate", "req/s", &[10e3]),
            ("nginx-1", "nocopy", "rate", "req/s", &[40e3]),
            ("nginx-1", "nocopy", "ring_bytes", "B", &[9.0]),
            ("nginx-1", "nocopy", "tcp_bytes", "B", &[1.0]),
            ("nginx-500", "tcp", "rate", "req/s", &[10e3]),
            ("nginx-500", "nocopy", "rate", "req/s", &[50e3]),
            ("nginx-500", "nocopy", "ring_bytes", "B", &[1.0]),
            ("nginx-500", "nocopy", "tcp_bytes", "B", &[9.0]),
            ("rr-1", "tcp", "p50", "µs", &[20.0]),
            ("rr-4m", "tcp", "p50", "µs", &[2000.0]),
            ("handover-1", "native-lane", "p50", "µs", &[0.1]),
            ("handover-1", "iceoryx2", "p50", "µs", &[0.2]),
            ("handover-4194304", "native-lane", "p50", "µs", &[0.1]),
        ],
    );
    let absence = |row: &str, round, why: &str| Absence {
        row: row.into(),
        system: "nocopy".into(),
        round,
        why: why.into(),
    };
    run.absent = vec![
        absence("redis-get-c1", None, "on <purpose> & so on"),
        absence("nginx", Some(1), "it fell over"),
    ];
    (run, catalogue("sockets"))
}

#[test]
fn figures_ratios_aims_and_what_is_missing_are_told() {
    let (run, all) = sockets();
    let text = markdown(&Figures::new(&run, &all));
    assert_eq!(even_tables(&text), 5, "{text}");
    for told in [
        "| 15.0k (10.0k–20.0k) |",
        "100× (100–100)",
        "tcp ≥50 +",
        "tcp ≥20 -",
        "| nginx/wrk, 1 connection | programs | memlane nocopy | rate | tcp ≥20 | 4.00× (4.00–4.00) |  |",
        "tcp ≥4 ?",
        ">99.9 %",
        "! 10.0 %",
        "iceoryx2 ≤1 +",
        "handover-1 ≤1.2 +",
        "1.46× TCP-lo | rfc-v4 |",
        "NOT BY MEMORY: nginx-500, nocopy: 10.0 % of the bytes",
        "NOT MEASURED: redis-get-c1, nocopy: on <purpose>",
        "FAILED: nginx, nocopy, round 2: it fell over",
        "Published, rfc-v2:",
    ] {
        assert!(text.contains(told), "{told}\n{text}");
    }
    assert!(
        !text.contains("SMC-lo-nocpy | 1.2"),
        "figures for rows that were not measured are left out"
    );
}

#[test]
fn metrics_are_columns_where_a_view_says_so_and_the_best_peer_is_found_in_each_round() {
    let run = run(
        "blocks",
        &[
            ("seqread", "fio-tcp", "rate", "req/s", &[40.0, 40.0]),
            ("seqread", "nbdkit", "rate", "req/s", &[10.0, 20.0]),
            ("seqread", "qsd-tcp", "rate", "req/s", &[20.0, 10.0]),
            ("seqread", "fio-tcp", "p50", "µs", &[5.0, 5.0]),
            ("gap-cut-1", "proxy", "gap", "ms", &[1200.0, 90.0]),
            ("randread-x1", "fio-tcp", "rate", "req/s", &[10.0, 20.0]),
            ("randread-x64", "fio-tcp", "rate", "req/s", &[20.0, 60.0]),
            ("randread-x1", "fio-tcp", "cpu", "s/M requests", &[1.0, 1.0]),
            (
                "randread-x64",
                "fio-tcp",
                "cpu",
                "s/M requests",
                &[1.1, 1.1],
            ),
        ],
    );
    let all = catalogue("blocks");
    let figures = Figures::new(&run, &all);
    let text = markdown(&figures);
    for told in [
        "2.00× (2.00–2.00)",
        "best peer ≥2 +",
        "| 645 (90.0–1200) | ≤1000 + |",
        "2.50× (2.00–3.00)",
        "randread-x1 ≤1.2 +",
    ] {
        assert!(text.contains(told), "{told}\n{text}");
    }
    let pictures = plots::of(&figures);
    let names: Vec<&str> = pictures.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "blocks-volumes-rate.svg",
            "blocks-gap-gap.svg",
            "blocks-jobs-read-randread-rate.svg",
            "blocks-jobs-read-randread-rate-scaling.svg",
            "blocks-jobs-read-randread-cpu.svg",
        ]
    );
    assert_eq!(marks(&pictures[0].1, "rect"), 3);
    assert_eq!(marks(&pictures[2].1, "circle"), 2);
    let published = all
        .published
        .figures
        .iter()
        .filter(|f| f.row.starts_with("randread-"));
    assert_eq!(marks(&pictures[3].1, "circle"), 2 + published.count());
}

#[test]
fn every_figure_of_a_plotted_view_is_in_its_plot() {
    let (run, all) = sockets();
    let pictures = plots::of(&Figures::new(&run, &all));
    let told: Vec<(&str, usize, usize)> = pictures
        .iter()
        .map(|(name, text)| (name.as_str(), marks(text, "rect"), marks(text, "circle")))
        .collect();
    assert_eq!(
        told,
        [
            ("sockets-programs-rate-times.svg", 4, 0),
            ("sockets-rr-rr-p50.svg", 0, 2),
            ("sockets-handover-handover-p50.svg", 0, 3),
        ]
    );
}

#[test]
fn the_figures_are_in_the_page_as_they_are_and_nothing_is_fetched_or_runs() {
    let (run, all) = sockets();
    let figures = Figures::new(&run, &all);
    let page = page::of(&figures).expect("a page");
    let (_, data) = page.split_once("id=\"data\">").expect("the data");
    let (data, rest) = data.split_once("</script>").expect("its end");
    assert!(!data.contains('<') && !rest.contains("<script"));
    let there: serde_json::Value = serde_json::from_str(data).expect("JSON");
    assert_eq!(there["schema"], crate::sample::SCHEMA);
    assert_eq!(there["absent"][0]["why"], "on <purpose> & so on");
    assert_eq!(
        there["samples"].as_array().map(Vec::len),
        Some(run.samples.len())
    );
    assert_eq!(page.matches("<figure ").count(), plots::of(&figures).len());
    // One more lists the aims that were missed.
    assert_eq!(
        page.matches("<table>").count(),
        1 + tables::of(&figures).len()
    );
    assert!(
        page.contains("3 of 6 reached</span>, 1 missed, 2 without a verdict"),
        "{page}"
    );
    assert_eq!(page.matches("<script").count(), 1);
    for foreign in ["src=", "url(", "@import", "onload", "javascript:"] {
        assert!(!page.contains(foreign), "{foreign}");
    }
    for address in page.split("http").skip(1) {
        assert!(
            address.starts_with("://www.w3.org/2000/svg"),
            "{address:.40}"
        );
    }
    assert!(page.contains("on &lt;purpose&gt; &amp; so on"));
    assert!(page.contains("class=\"missed\">tcp ≥20 -"), "{page}");
}
