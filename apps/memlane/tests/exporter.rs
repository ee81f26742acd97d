//! `memlane exporter`: what Prometheus and node_exporter get to read.

mod common;

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::mem::offset_of;
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Dir, Holder, Page, memlane, stderr, stdout};
use memlane_core::reason::Reason;
use memlane_core::stats::{ConnEntry, ConnState, Counter};

const LIMIT: Duration = Duration::from_secs(30);

/// Ended also when its test fails.
struct Running(Child);

impl Running {
    fn new(command: &mut Command) -> Running {
        Running(command.stdout(Stdio::piped()).spawn().unwrap())
    }

    fn first_line(&mut self) -> String {
        let mut line = String::new();
        let stdout = self.0.stdout.as_mut().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn terminate(mut self) -> Option<i32> {
        let pid = self.0.id().to_string();
        let killed = Command::new("kill").arg(&pid).status().unwrap();
        assert!(killed.success());
        self.0.wait().unwrap().code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An exporter that listens, and where.
fn listening() -> (Running, String) {
    let mut running = Running::new(memlane().args(["exporter", "--listen", "127.0.0.1:0"]));
    let line = running.first_line();
    let at = line.strip_prefix("http://").unwrap();
    let at = at.strip_suffix("/metrics").unwrap().to_owned();
    (running, at)
}

fn scraped(at: &str, accept: &str) -> String {
    let mut stream = TcpStream::connect(at).unwrap();
    write!(
        stream,
        "GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\n\r\n"
    )
    .unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    let (head, body) = said.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    body.to_owned()
}

/// The value of a series, by its name and some of its labels.
fn value(page: &str, name: &str, labels: &[&str]) -> Option<u64> {
    let mut lines = page.lines().filter(|line| {
        line.starts_with(&format!("{name}{{")) && labels.iter().all(|label| line.contains(label))
    });
    let found = lines.next()?.rsplit_once(' ')?.1.parse().ok();
    assert_eq!(lines.next(), None, "{name} {labels:?}");
    found
}

/// Asks until it is so: what was answered a moment ago is answered again.
#[track_caller]
fn until(at: &str, so: impl Fn(&str) -> bool) -> String {
    let begin = Instant::now();
    loop {
        let page = scraped(at, "application/openmetrics-text");
        if so(&page) {
            return page;
        }
        assert!(begin.elapsed() < LIMIT, "{page}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// What `promtool check metrics` says; `None` if it is not installed.
fn promtool(page: &str) -> Option<String> {
    let tool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut tool) = tool else {
        let required = std::env::var_os("MEMLANE_TEST_REQUIRE_ALL").is_some();
        assert!(!required, "promtool is not installed");
        eprintln!("SKIPPED: no promtool");
        return None;
    };
    let mut stdin = tool.stdin.take().unwrap();
    stdin.write_all(page.as_bytes()).unwrap();
    drop(stdin);
    let output = tool.wait_with_output().unwrap();
    Some(stderr(&output) + &stdout(&output))
}

/// A process whose name is no other test's, with something in each family.
fn program(dir: &Dir, name: &str, page: &Page) -> Holder {
    let copy = dir.0.join(name);
    let sleep = ["/usr/bin/sleep", "/bin/sleep"]
        .into_iter()
        .find(|at| fs::exists(at).unwrap());
    std::os::unix::fs::symlink(sleep.unwrap(), &copy).unwrap();
    Holder::by(&mut Command::new(copy), page)
}

fn counted() -> Page {
    let page = Page::new();
    page.counter(Counter::ConnsServer, 9);
    page.counter(Counter::TxRingBytes, 500);
    page.reason(0, Reason::CLOSING.0, 2, 3);
    page.reason(1, 0x0bad_0000, 1, 0);
    page.reason(2, 0x0bad_0001, 1, 0);
    page.entry(
        0,
        &[
            (offset_of!(ConnEntry, state), ConnState::Memlane as u32),
            (offset_of!(ConnEntry, tx_ring_size), 65_536),
        ],
        &[(offset_of!(ConnEntry, tx_ring_bytes), 1_000)],
    );
    page
}

#[test]
fn a_scrape_shows_each_program_and_what_it_did_stays_when_it_has_ended() {
    let dir = Dir::new();
    let page = counted();
    let name = "w-exporter-a";
    let holder = program(&dir, name, &page);
    let (running, at) = listening();
    let me = format!("program=\"{name}\"");
    let sent = |text: &str| {
        let labels = [me.as_str(), "direction=\"sent\"", "lane=\"memory\""];
        value(text, "memlane_socket_bytes_total", &labels)
    };
    let text = until(&at, |text| sent(text).is_some());
    assert_eq!(sent(&text), Some(1_500));
    let one = |family: &str, label: &str| value(&text, family, &[&me, label]);
    assert_eq!(
        one("memlane_socket_connections_total", "role=\"server\""),
        Some(9)
    );
    assert_eq!(
        one("memlane_socket_fallbacks_total", "\"CLOSING\""),
        Some(5)
    );
    assert_eq!(
        one("memlane_socket_fallbacks_total", "\"UNKNOWN\""),
        Some(2)
    );
    assert_eq!(
        one("memlane_socket_open_connections", "lane=\"memory\""),
        Some(1)
    );
    assert_eq!(one("memlane_socket_rings_bytes", "\"sent\""), Some(65_536));
    assert_eq!(one("memlane_socket_processes", ""), Some(1));
    assert!(text.ends_with("# EOF\n"));
    assert!(
        !text.contains(&format!("\"{}\"", holder.pid())),
        "no process ids in labels"
    );

    // A dip is no new beginning.
    page.counter(Counter::TxRingBytes, 100);
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(sent(&scraped(&at, "*/*")), Some(1_500));
    page.counter(Counter::TxRingBytes, 700);
    until(&at, |text| sent(text) == Some(1_700));

    drop(holder);
    let text = until(&at, |text| {
        value(text, "memlane_socket_processes", &[&me]) == Some(0)
    });
    assert_eq!(sent(&text), Some(1_700));
    assert_eq!(
        value(
            &text,
            "memlane_socket_open_connections",
            &[&me, "lane=\"memory\""]
        ),
        Some(0)
    );
    assert_eq!(running.terminate(), Some(0));
}

#[test]
fn the_older_format_is_what_promtool_takes() {
    let dir = Dir::new();
    let _holder = program(&dir, "w-exporter-b", &counted());
    let name = format!("w-exporter-{}", std::process::id());
    let mut frames = memlane();
    frames.args(["net", "gen", "sink:", "--rate", "10", "--name", &name]);
    let _frames = Running::new(&mut frames);
    let (_running, at) = listening();
    until(&at, |text| {
        let ours = [format!("name=\"{name}\""), "kind=\"good\"".to_owned()];
        let ours = ours.each_ref().map(String::as_str);
        value(text, "memlane_net_sink_frames", &ours).is_some()
    });
    let text = scraped(&at, "text/plain;version=0.0.4");
    assert!(
        text.contains("# TYPE memlane_socket_bytes_total counter\n"),
        "{text}"
    );
    assert!(!text.contains("# EOF"));
    assert!(promtool(&text).is_none_or(|said| said.is_empty()));
    // It would say so if it did not.
    let wrong = text.replace("\n# TYPE memlane_socket_bytes_total counter", "");
    assert_ne!(promtool(&(wrong + "x{ 1\n")).as_deref(), Some(""));
}

#[test]
fn a_text_file_is_replaced_as_a_whole_and_says_the_same() {
    let dir = Dir::new();
    let _holder = program(&dir, "w-exporter-c", &counted());
    let file = dir.0.join("memlane.prom");
    let exporter = |flags: &[&str]| {
        let mut command = memlane();
        command.args(["exporter", "--textfile", file.to_str().unwrap()]);
        command.args(flags).stdin(Stdio::null());
        command
    };
    let output = exporter(&[]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stdout(&output), "");
    let text = fs::read_to_string(&file).unwrap();
    let me = ["program=\"w-exporter-c\"", "\"CLOSING\""];
    assert_eq!(value(&text, "memlane_socket_fallbacks_total", &me), Some(5));
    assert!(promtool(&text).is_none_or(|said| said.is_empty()));
    let first = fs::metadata(&file).unwrap();
    assert_eq!(first.permissions().mode() & 0o777, 0o644);

    // Whoever looks sees a whole one, and nothing else that the collector would read.
    let running = Running::new(&mut exporter(&["--interval", "100ms"]));
    let begin = Instant::now();
    let mut versions = std::collections::HashSet::new();
    while versions.len() < 4 {
        assert!(begin.elapsed() < LIMIT);
        let text = fs::read_to_string(&file).unwrap();
        assert!(
            text.contains("memlane_exporter_silent_processes"),
            "not whole"
        );
        versions.insert(fs::metadata(&file).unwrap().ino());
        let names = fs::read_dir(&dir.0)
            .unwrap()
            .map(|entry| entry.unwrap().file_name());
        let read = names.filter(|name| name.to_string_lossy().ends_with(".prom"));
        assert_eq!(read.count(), 1);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(running.terminate(), Some(0));
    let hidden = fs::read_dir(&dir.0)
        .unwrap()
        .map(|entry| entry.unwrap().file_name());
    let hidden = hidden.filter(|name| name.to_string_lossy().starts_with('.'));
    assert_eq!(hidden.count(), 0);
}

#[test]
fn what_cannot_be_written_or_taken_is_said() {
    let at = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = at.local_addr().unwrap().to_string();
    for (flags, code, words) in [
        (&["--textfile", "x.txt"][..], 2, ".prom"),
        (&["--textfile", "/nowhere/x.prom"], 1, "/nowhere/x.prom"),
        (&["--interval", "1s"], 2, "--textfile"),
        (&["--listen", taken.as_str()], 1, taken.as_str()),
    ] {
        let output = memlane().arg("exporter").args(flags).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{flags:?}");
        assert!(stderr(&output).contains(words), "{}", stderr(&output));
        assert_eq!(stdout(&output), "");
    }
    let output = memlane()
        .args(["exporter", "--textfile", "-"])
        .output()
        .unwrap();
    assert!(stdout(&output).contains("memlane_build_info{version="));
}
