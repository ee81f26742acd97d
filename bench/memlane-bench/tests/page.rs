//! The page of `memlane-bench run sockets`, in a real browser: a run, very short, and what Chromium makes of its page.

mod common;

use common::{Dir, memlane_bench, stderr};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Sees to it that everything is where it can be read, and says so as text that the browser then prints.
const PROBE: &str = include_str!("page/probe.js");
const LIMIT: Duration = Duration::from_secs(90);

fn browser() -> Option<&'static str> {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let found = |name: &&str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
    };
    names.into_iter().find(found)
}

/// What a browser prints of a page, and what it complains of.
fn shown(browser: &str, page: &Path, scheme: &str, [width, height]: [u32; 2]) -> (String, String) {
    let profile = Dir::new();
    let mut command = Command::new(browser);
    command
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
        ])
        .args([
            "--disable-dev-shm-usage",
            "--enable-logging=stderr",
            "--hide-scrollbars",
        ])
        .args([
            "--disable-background-networking",
            "--disable-component-update",
        ])
        .arg(format!("--user-data-dir={}", profile.0.display()))
        .arg(format!("--window-size={width},{height}"))
        .arg(format!("--blink-settings=preferredColorScheme={scheme}"))
        .args(["--virtual-time-budget=5000", "--dump-dom"])
        .arg(format!("file://{}", page.display()));
    let [out, err] = ["out", "err"].map(|name| profile.0.join(name));
    let mut child = command
        .stdin(Stdio::null())
        .stdout(std::fs::File::create(&out).expect("a file"))
        .stderr(std::fs::File::create(&err).expect("a file"))
        .spawn()
        .expect("it starts");
    let begin = Instant::now();
    while child.try_wait().expect("wait").is_none() {
        if begin.elapsed() > LIMIT {
            let _ = child.kill();
            let _ = child.wait();
            panic!("the browser did not end");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let text = |path| String::from_utf8_lossy(&std::fs::read(path).expect("a file")).into_owned();
    (text(&out), text(&err))
}

/// What the probe says of a page.
fn probed(browser: &str, page: &Path, scheme: &str, size: [u32; 2]) -> serde_json::Value {
    let (dom, said) = shown(browser, page, scheme, size);
    let complaints: Vec<&str> = said
        .lines()
        .filter(|line| line.contains("CONSOLE"))
        .collect();
    assert!(complaints.is_empty(), "{complaints:?}");
    let (_, rest) = dom
        .split_once("<pre id=\"probe\">")
        .unwrap_or_else(|| panic!("no probe in {} bytes: {said}", dom.len()));
    let (json, _) = rest.split_once("</pre>").expect("its end");
    let json = json
        .replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&amp;", "&");
    serde_json::from_str(&json).unwrap_or_else(|error| panic!("{error}: {json}"))
}

/// The page, with the probe in it.
fn with_probe(page: &str, file: &Path) {
    let (before, after) = page.rsplit_once("</body>").expect("a page");
    let all = format!("{before}<script>\n{PROBE}\n</script></body>{after}");
    std::fs::write(file, all).expect("a file");
}

#[test]
fn a_browser_shows_every_point_and_no_text_where_it_cannot_be_read() {
    let Some(browser) = browser() else {
        eprintln!("SKIPPED a_browser_shows_every_point…: no chromium (apt-get install chromium)");
        return;
    };
    let dir = Dir::new();
    let page = dir.0.join("bench.html");
    // Neither column, nor what is called by name, takes a preload library.
    let rows = [
        "rr-1",
        "rr-4k",
        "rr-4m",
        "stream-1",
        "stream-4m",
        "connections-1",
        "connections-10",
    ];
    let only = [
        "tcp,unix,msg100",
        &rows.join(","),
        "native-lane,ring,unix-stream",
    ]
    .join(",");
    let output = memlane_bench()
        .args([
            "run",
            "sockets",
            "--rounds",
            "2",
            "--seconds",
            "0.2",
            "--json",
            "--quick",
        ])
        .args(["--only", &only, "--html"])
        .arg(&page)
        .output()
        .expect("it starts");
    let said = stderr(&output);
    assert!(output.status.success(), "{said}");
    let text = String::from_utf8(output.stdout).expect("text");
    let lines = text.lines().skip(1);
    let samples: Vec<serde_json::Value> = lines
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let seen = |metric: &str, prefix: &str| {
        let of = samples
            .iter()
            .filter(|one| one["metric"] == metric && one["round"] == 0);
        of.filter(|one| {
            one["row"]
                .as_str()
                .is_some_and(|row| row.starts_with(prefix))
        })
        .count()
    };
    let swept = [
        (seen("rate", "connections-"), 4),
        (seen("p50", "rr-"), 6),
        (seen("p99", "rr-"), 6),
        (seen("throughput", "stream-"), 4),
        (seen("p50", "handover-"), 7 * 2),
        (seen("throughput", "carried-"), 7 * 3),
    ];
    assert!(
        swept.iter().all(|(seen, expected)| seen == expected),
        "{swept:?}: {said}"
    );
    let swept: usize = swept.iter().map(|(seen, _)| seen).sum();
    // Of UNIX sockets against TCP: a rate and two latencies.
    let bars = 3;
    let figures = swept + bars;

    let text = std::fs::read_to_string(&page).expect("the page");
    with_probe(&text, &page);
    for (scheme, size) in [(1, [1280, 900]), (0, [500, 900])] {
        let seen = probed(browser, &page, &scheme.to_string(), size);
        assert_eq!(seen["trouble"], serde_json::json!([]), "{size:?}");
        // What it costs is told only where there was enough of it.
        assert!(
            seen["points"].as_u64() >= Some(figures as u64),
            "{size:?}: {seen}"
        );
        assert!(seen["plots"].as_u64() >= Some(7), "{seen}");
        assert_eq!(seen["dark"], scheme == 0, "{seen}");
        assert_eq!(seen["width"], size[0], "{seen}");
        assert_eq!(seen["schema"], "memlane.bench/1", "{seen}");
    }
}

#[test]
fn the_probe_notices_what_it_is_there_for() {
    let Some(browser) = browser() else {
        eprintln!("SKIPPED the_probe_notices…: no chromium (apt-get install chromium)");
        return;
    };
    let dir = Dir::new();
    let page = dir.0.join("bad.html");
    let bad = "<!doctype html><meta charset=\"utf-8\"><body style=\"margin:0\">\
        <div style=\"width:3000px\">wide</div>\
        <svg viewBox=\"0 0 100 40\" width=\"100\" height=\"40\"><text x=\"60\" y=\"20\">a long text outside</text>\
        <text x=\"1\" y=\"35\">one</text><text x=\"3\" y=\"35\">two</text>\
        <circle cx=\"500\" cy=\"5\" r=\"3\"><title>lost</title></circle></svg>\
        <p style=\"color:#fff;background:#fff\">white on white</p>\
        <script type=\"application/json\" id=\"data\">{\"schema\":\"x\"}</script></body>";
    with_probe(bad, &page);
    let seen = probed(browser, &page, "1", [800, 600]);
    let trouble = seen["trouble"].to_string();
    for told in [
        "wider than",
        "outside its plot: a long",
        "over each other: one",
        "point outside",
        "contrast",
    ] {
        assert!(trouble.contains(told), "{told}: {trouble}");
    }
}
