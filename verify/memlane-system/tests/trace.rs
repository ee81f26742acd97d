//! `memlane trace`: its captures, as tshark and tcpdump read them, against what the programs sent. Tracers that die,
//! lie, belong to another user, or come in pairs.

use std::fs::OpenOptions;
use std::io::{Read as _, Seek as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use memlane_system::harness::{Built, Running, TempDir, free_port, is_root, plain_only};
use memlane_system::pair::{DEFAULT, Pair};

#[path = "trace/dissect.rs"]
mod dissect;
use dissect::{assert_flawless, fields, follow, has, http_objects, tcpdump};

const LIMIT: Duration = Duration::from_secs(40);
const SEEN: Duration = Duration::from_secs(20);

/// `memlane trace -o FILE …`.
fn trace(file: &Path, arguments: &[&str]) -> Command {
    let built = Built::find();
    let mut command = Command::new(built.memlane.expect("memlane is built"));
    command.env("MEMLANE_PRELOAD", &built.preload);
    command.args(["trace", "-o"]).arg(file).args(arguments);
    command
}

/// A tracer of both ends of `pair`, which has begun.
fn attached(pair: &Pair, file: &Path, more: &[&str]) -> Running {
    let pids = [pair.client.pid(), pair.server.pid()].map(|pid| pid.to_string());
    let mut command = trace(file, more);
    command.args(["--pid", &pids[0], "--pid", &pids[1]]);
    let mut tracer = Running::start(command);
    begun(&mut tracer);
    tracer
}

fn begun(tracer: &mut Running) {
    let deadline = Instant::now() + SEEN;
    while !tracer.stderr().contains("tracing ") {
        let late = Instant::now() > deadline || !tracer.is_running();
        assert!(!late, "never began: {}", tracer.stderr());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// ^C, and what it says at the end.
fn ended(tracer: Running) -> String {
    tracer.signal("INT");
    let done = tracer.finish(LIMIT);
    assert!(done.is_ok(), "{}", done.report());
    done.stderr
}

/// What an end sends for `send SEED BYTES`.
fn sent(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed * 2 + 1;
    (0..bytes)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 24).to_le_bytes()[0]
        })
        .collect()
}

/// Both send; returns what was sent by client and server.
fn both_send(pair: &mut Pair, seed: u64, bytes: usize) -> [Vec<u8>; 2] {
    pair.client.tell(&format!("both {seed} {bytes} {bytes}"));
    pair.server
        .tell(&format!("both {} {bytes} {bytes}", seed + 1));
    let (client, server) = (pair.client.answer(), pair.server.answer());
    assert_eq!((client.sent, server.sent), (server.taken, client.taken));
    [sent(seed, bytes), sent(seed + 1, bytes)]
}

/// There and back again, so that both are awake: their bytes go by the ring.
fn many_turns(pair: &mut Pair, seed: u64, turns: u64) -> [Vec<u8>; 2] {
    let mut streams = [Vec::new(), Vec::new()];
    for turn in 0..turns {
        let n = 1 + usize::try_from(turn).expect("small") * 997 % 9000;
        for (from, stream) in streams.iter_mut().enumerate() {
            let seed = seed + 2 * turn + from as u64;
            let (sender, taker) = match from {
                0 => (&mut pair.client, &mut pair.server),
                _ => (&mut pair.server, &mut pair.client),
            };
            taker.tell(&format!("take {n}"));
            sender.does(&format!("send {seed} {n}"));
            taker.answer();
            stream.extend(sent(seed, n));
        }
    }
    streams
}

/// The capture has these two streams, whichever is seen first.
#[track_caller]
fn has_streams(file: &Path, streams: &[Vec<u8>; 2]) {
    let [a, b] = follow(file, 0);
    let same = |x: &[Vec<u8>; 2]| (&x[0], &x[1]) == (&a, &b) || (&x[1], &x[0]) == (&a, &b);
    let lengths = [a.len(), b.len(), streams[0].len(), streams[1].len()];
    assert!(same(streams), "other bytes: {lengths:?}");
}

/// The word `on` of a process that may be traced, and its memfd.
fn page_of(pid: u32) -> PathBuf {
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("descriptors");
    let mut paths = fds.flatten().map(|e| e.path());
    let ours = |p: &PathBuf| {
        std::fs::read_link(p).is_ok_and(|to| to.to_string_lossy().contains("memlane-trace"))
    };
    paths.find(ours).expect("a page")
}

fn is_on(pid: u32) -> bool {
    let mut word = [0u8; 4];
    let page = std::fs::File::open(page_of(pid)).expect("its page");
    page.read_exact_at(&mut word, 0).expect("four bytes");
    u32::from_ne_bytes(word) != 0
}

#[test]
fn nginx_and_curl_from_the_first_byte_are_http_for_tshark() {
    if plain_only() || !has(&["tshark", "tcpdump", "nginx", "curl"]) {
        return;
    }
    let dir = TempDir::new("trace-nginx");
    let at = |name: &str| dir.path().join(name);
    let port = free_port();
    let body = sent(5, 3_000_000);
    std::fs::write(at("big.bin"), &body).expect("written");
    std::fs::write(at("nginx.conf"), nginx_conf(dir.path(), port)).expect("written");
    std::fs::write(at("run.sh"), run_sh(dir.path(), port)).expect("written");
    let file = at("http.pcapng");
    for upgrade in ["eager", "auto"] {
        // Which lane carries a byte depends on who is awake: told again if all went by TCP.
        let took_ring = (0..6).any(|_| {
            let mut command = trace(&file, &["--upgrade", upgrade, "--", "sh"]);
            command.arg(at("run.sh"));
            let done = Running::start(command).finish(LIMIT);
            assert!(done.is_ok(), "{}", done.report());
            assert!(!done.stderr.contains("were dropped"), "{}", done.stderr);
            is_http(&file, &at(upgrade), &body)
        });
        assert!(took_ring, "nothing went by the ring");
    }
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(&file).expect("the capture").permissions(),
    );
    assert_eq!(mode & 0o777, 0o600);
}

/// Is the capture of one connection on which `body` was fetched three times? Did the ring carry some of it?
fn is_http(file: &Path, objects_to: &Path, body: &[u8]) -> bool {
    assert_flawless(file);
    let _ = std::fs::remove_dir_all(objects_to);
    let objects = http_objects(file, objects_to);
    assert_eq!(objects.len(), 3, "{:?}", objects.keys());
    assert!(objects.values().all(|o| *o == body), "other bytes");
    let frames = |filter| fields(file, filter, &["frame.number"]).len();
    assert_eq!(tcpdump(file), frames("tcp"));
    let begun = frames("tcp.flags.syn == 1");
    assert_eq!(begun, 2, "one connection, seen from its start");
    frames("frame.interface_name == \"memlane\"") > 0
}

fn nginx_conf(dir: &Path, port: u16) -> String {
    let dir = dir.display();
    let user = if is_root() { "user root;" } else { "" };
    format!(
        "{user} worker_processes 1; daemon on; pid {dir}/pid; error_log {dir}/error.log;
         events {{}}
         http {{ sendfile on; access_log off; client_body_temp_path {dir}/b; proxy_temp_path {dir}/p;
           fastcgi_temp_path {dir}/f; uwsgi_temp_path {dir}/u; scgi_temp_path {dir}/s;
           server {{ listen 127.0.0.1:{port}; root {dir}; }} }}"
    )
}

/// A server that goes into the background, a client that fetches three times over one connection.
fn run_sh(dir: &Path, port: u16) -> String {
    let dir = dir.display();
    format!(
        "nginx -e stderr -p {dir} -c {dir}/nginx.conf || exit 1
         u=http://127.0.0.1:{port}/big.bin
         curl -sS --retry 20 --retry-connrefused --retry-delay 1 -o {dir}/1 $u -o {dir}/2 $u -o {dir}/3 $u; r=$?
         kill $(cat {dir}/pid)
         cmp {dir}/1 {dir}/big.bin && cmp {dir}/2 {dir}/big.bin && cmp {dir}/3 {dir}/big.bin && exit $r"
    )
}

#[test]
fn redis_is_attached_to_in_the_middle_and_its_protocol_is_read() {
    if plain_only() || !has(&["tshark", "redis-server", "redis-benchmark"]) {
        return;
    }
    let dir = TempDir::new("trace-redis");
    let file = dir.path().join("redis.pcapng");
    let port = free_port();
    let under = |program: &str| {
        let built = Built::find();
        let mut command = Command::new(built.memlane.expect("memlane is built"));
        command.env("MEMLANE_PRELOAD", &built.preload);
        command.args(["run", "--upgrade", "eager", "--", program]);
        command
    };
    let mut server = under("redis-server");
    server
        .args(["--port", &port.to_string(), "--save", "", "--dir"])
        .arg(dir.path());
    let mut server = Running::start(server);
    server.wait_for_port(port, SEEN);
    let mut command = trace(&file, &["--port", &port.to_string()]);
    command.args(["--pid", &server.pid().to_string()]);
    let mut tracer = Running::start(command);
    begun(&mut tracer);
    let mut client = under("redis-benchmark");
    client.args([
        "-p",
        &port.to_string(),
        "-c",
        "3",
        "-n",
        "600",
        "-r",
        "9",
        "-d",
        "900",
        "-q",
    ]);
    client.args(["-t", "set,get"]);
    let done = memlane_system::harness::run(client, LIMIT);
    assert!(done.is_ok(), "{}", done.report());
    let said = ended(tracer);
    assert!(!said.contains("were dropped"), "{said}");
    assert_flawless(&file);
    // 600 of each, and what redis-benchmark asks for its configuration.
    let decode = format!("tcp.port=={port},resp");
    let mut command = Command::new("tshark");
    command.args(["-n", "-r"]).arg(&file).args([
        "-d",
        &decode,
        "-T",
        "fields",
        "-e",
        "resp.bulk_string.value",
    ]);
    let text = memlane_system::harness::run(command, LIMIT).stdout;
    let words = |word: &str| text.matches(word).count();
    let count = |hex: &str, plain: &str| words(hex).max(words(plain));
    if text.trim().is_empty() {
        // This tshark does not know the protocol: the streams as they are.
        let [a, b] = follow(&file, 0);
        assert!(a.starts_with(b"*") || b.starts_with(b"*"));
    } else {
        assert!(count("534554", "SET") >= 600, "SET");
        assert!(count("474554", "GET") >= 600, "GET");
    }
}

#[test]
fn both_ends_are_attached_to_and_let_go_without_a_byte_twice_or_lost() {
    if plain_only() || !has(&["tshark"]) {
        return;
    }
    let dir = TempDir::new("trace-attach");
    let mut pair = Pair::start(&DEFAULT, &DEFAULT);
    pair.open();
    for (round, turns) in [(0u64, 30), (1, 12)] {
        let file = dir.path().join(format!("{round}.pcapng"));
        let tracer = attached(&pair, &file, &[]);
        let mut streams = many_turns(&mut pair, 1000 * (round + 1), turns);
        let bulk = both_send(&mut pair, 7 + round, 2_000_000);
        let said = ended(tracer);
        assert!(!said.contains("were dropped"), "{said}");
        for (all, more) in streams.iter_mut().zip(bulk) {
            all.extend(more);
        }
        assert_flawless(&file);
        has_streams(&file, &streams);
        let ring = fields(
            &file,
            "frame.interface_name == \"memlane\"",
            &["frame.number"],
        );
        assert!(!ring.is_empty(), "nothing went by the ring");
        assert!(!is_on(pair.client.pid()) && !is_on(pair.server.pid()));
        pair.exchange();
    }
}

/// What waits in two rings is read in turns; neither end's half may overtake the other's.
#[test]
fn a_tracer_that_was_away_catches_up_without_a_gap() {
    if plain_only() || !has(&["tshark"]) {
        return;
    }
    let dir = TempDir::new("trace-late");
    let file = dir.path().join("a.pcapng");
    let mut pair = Pair::start(&DEFAULT, &DEFAULT);
    pair.open();
    let tracer = attached(&pair, &file, &[]);
    tracer.signal("STOP");
    let streams = many_turns(&mut pair, 100, 1500);
    tracer.signal("CONT");
    let said = ended(tracer);
    assert!(!said.contains("were dropped"), "{said}");
    assert_flawless(&file);
    has_streams(&file, &streams);
}

#[test]
fn one_end_alone_tells_both_directions_and_a_downgrade_leaves_no_gap() {
    if plain_only() || !has(&["tshark"]) {
        return;
    }
    let dir = TempDir::new("trace-down");
    let file = dir.path().join("a.pcapng");
    let mut pair = Pair::start(&DEFAULT, &DEFAULT);
    pair.open();
    let mut command = trace(&file, &[]);
    command.args(["--pid", &pair.client.pid().to_string()]);
    let mut tracer = Running::start(command);
    begun(&mut tracer);
    let mut streams = many_turns(&mut pair, 10, 12);
    pair.client.does("spoil option");
    let after = many_turns(&mut pair, 900, 12);
    pair.client.does("spoil end");
    ended(tracer);
    for (all, more) in streams.iter_mut().zip(after) {
        all.extend(more);
    }
    assert_flawless(&file);
    has_streams(&file, &streams);
    for (lane, least) in [("memlane", 1), ("tcp", 12)] {
        let filter = format!("frame.interface_name == \"{lane}\" && tcp.len > 0");
        let n = fields(&file, &filter, &["frame.number"]).len();
        assert!(n >= least, "{lane}: {n}");
    }
    let fin = fields(&file, "tcp.flags.fin == 1", &["frame.number"]);
    assert_eq!(fin.len(), 1);
}

#[test]
fn what_finds_no_room_is_counted_and_marked_and_the_program_does_not_notice() {
    if plain_only() || !has(&["tshark"]) {
        return;
    }
    let dir = TempDir::new("trace-drops");
    let file = dir.path().join("a.pcapng");
    let mut pair = Pair::start(&DEFAULT, &DEFAULT);
    pair.open();
    let tracer = attached(&pair, &file, &["--buffer", "256K"]);
    pair.exchange();
    // A tracer that does nothing for a while.
    tracer.signal("STOP");
    pair.flood(3 << 20);
    tracer.signal("CONT");
    let deadline = Instant::now() + SEEN;
    // It has caught up when there is room again: then the stream goes on behind the gap.
    while Instant::now() < deadline && !caught_up(pair.client.pid()) {
        std::thread::sleep(Duration::from_millis(10));
    }
    pair.exchange();
    let said = ended(tracer);
    assert!(said.contains("were dropped"), "{said}");
    let lost = fields(&file, "tcp.analysis.lost_segment", &["frame.number"]);
    assert!(!lost.is_empty(), "no gap is marked");
    assert!(fields(&file, "_ws.malformed", &["frame.number"]).is_empty());
    let drops = Command::new("capinfos").arg(&file).output();
    assert!(drops.is_ok_and(|o| o.status.success()), "capinfos");
}

fn caught_up(pid: u32) -> bool {
    let page = std::fs::File::open(page_of(pid)).expect("its page");
    let word = |at: u64| {
        let mut w = [0u8; 8];
        page.read_exact_at(&mut w, at).expect("eight bytes");
        u64::from_ne_bytes(w)
    };
    word(256) == word(384)
}

#[test]
fn a_tracer_that_is_killed_leaves_nothing_and_another_may_come() {
    if plain_only() || !has(&["tshark"]) {
        return;
    }
    let dir = TempDir::new("trace-killed");
    let mut pair = Pair::start(&DEFAULT, &DEFAULT);
    pair.open();
    let tracer = attached(&pair, &dir.path().join("a.pcapng"), &["--buffer", "1M"]);
    pair.exchange();
    assert!(is_on(pair.client.pid()));
    tracer.signal("KILL");
    tracer.finish(LIMIT);
    // The programs go on, and notice.
    let deadline = Instant::now() + SEEN;
    while is_on(pair.client.pid()) || is_on(pair.server.pid()) {
        assert!(Instant::now() < deadline, "not noticed");
        pair.flood(200_000);
        std::thread::sleep(Duration::from_millis(50));
    }
    let blocks = |pid| {
        let meta = std::fs::metadata(page_of(pid)).expect("its page");
        std::os::unix::fs::MetadataExt::blocks(&meta)
    };
    let left = blocks(pair.client.pid()) + blocks(pair.server.pid());
    assert!(left < 2 * 64, "{left} blocks are still there");
    // One that is killed a moment before the next one comes is no hindrance either.
    let second = attached(&pair, &dir.path().join("b.pcapng"), &[]);
    second.signal("KILL");
    second.finish(LIMIT);
    let file = dir.path().join("c.pcapng");
    let third = attached(&pair, &file, &[]);
    let streams = many_turns(&mut pair, 44, 5);
    ended(third);
    assert_flawless(&file);
    has_streams(&file, &streams);
}

#[test]
fn a_second_tracer_and_another_user_are_told_why_not() {
    if plain_only() {
        return;
    }
    let dir = TempDir::new("trace-second");
    let mut pair = Pair::start(&DEFAULT, &DEFAULT);
    pair.open();
    let pid = pair.server.pid().to_string();
    let first = attached(&pair, &dir.path().join("a.pcapng"), &[]);
    let mut command = trace(&dir.path().join("b.pcapng"), &["--pid", &pid]);
    let second = command.output().expect("started");
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert_eq!(second.status.code(), Some(4), "{said}");
    assert!(
        said.contains(&format!("already, by process {}", first.pid())),
        "{said}"
    );
    ended(first);
    if !is_root() || !has(&["setpriv"]) {
        eprintln!("SKIPPED: trace: another user: not root");
        return;
    }
    let built = Built::find();
    let memlane = dir.path().join("memlane");
    std::fs::copy(built.memlane.expect("memlane is built"), &memlane).expect("copied");
    let mut foreign = Command::new("setpriv");
    foreign.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    foreign
        .arg(&memlane)
        .args(["trace", "-o", "-", "--pid", &pid]);
    let foreign = foreign.output().expect("started");
    let said = String::from_utf8_lossy(&foreign.stderr).into_owned();
    assert_eq!(foreign.status.code(), Some(1), "{said}");
    assert!(said.contains("belongs to another user"), "{said}");
    pair.exchange();
}

#[test]
fn a_capture_that_is_full_lets_the_programs_go() {
    if plain_only() || !has(&["tshark"]) {
        return;
    }
    let dir = TempDir::new("trace-full");
    let file = dir.path().join("a.pcapng");
    let mut pair = Pair::start(&DEFAULT, &DEFAULT);
    pair.open();
    let tracer = attached(&pair, &file, &["--max-bytes", "100k", "--snaplen", "64"]);
    while std::fs::metadata(&file).expect("the capture").len() < 80_000 {
        many_turns(&mut pair, 3, 20);
    }
    many_turns(&mut pair, 3, 100);
    let done = tracer.finish(LIMIT);
    assert!(done.is_ok(), "{}", done.report());
    assert!(done.stderr.contains("--max-bytes"), "{}", done.stderr);
    assert!(!is_on(pair.client.pid()) && !is_on(pair.server.pid()));
    let long = fields(&file, "frame.cap_len > 118", &["frame.number"]);
    assert!(long.is_empty(), "longer than 64 and headers");
    assert!(fields(&file, "_ws.malformed", &["frame.number"]).is_empty());
    pair.exchange();
}

/// Whoever may open the page may write anything there; the program must not care.
#[test]
fn files_in_turn_are_captures_of_their_own_and_the_oldest_goes() {
    if plain_only() || !has(&["tshark"]) {
        return;
    }
    let dir = TempDir::new("trace-turns");
    let files = ["a.pcapng", "a.1.pcapng", "a.2.pcapng"].map(|name| dir.path().join(name));
    let mut pair = Pair::start(&DEFAULT, &DEFAULT);
    pair.open();
    let tracer = attached(&pair, &files[0], &["--rotate", "128k:3"]);
    let id = |file: &Path| std::fs::metadata(file).ok().map(|meta| meta.ino());
    while id(&files[2]).is_none() {
        many_turns(&mut pair, 3, 20);
    }
    let oldest = id(&files[2]);
    while id(&files[2]) == oldest {
        many_turns(&mut pair, 3, 20);
    }
    ended(tracer);
    let mut times = Vec::new();
    for file in &files {
        let long = std::fs::metadata(file).expect("a file").len();
        assert!(long <= 129 << 10, "{long}");
        assert!(fields(file, "_ws.malformed", &["frame.number"]).is_empty());
        let packets = fields(file, "frame", &["frame.time_epoch"]);
        times.push(packets.into_iter().next().expect("a packet"));
    }
    assert!(
        times.is_sorted_by(|newer, older| newer > older),
        "{times:?}"
    );
    assert_eq!(std::fs::read_dir(dir.path()).expect("files").count(), 3);
}

/// It has a socket; each line that it reads makes a child that says something to PORT.
const HAS_CHILDREN: &str = "
import os, socket, sys, time
listener = socket.create_server(('127.0.0.1', 0))
print('ready', flush=True)
for line in sys.stdin:
    if os.fork() == 0:
        talk = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
        time.sleep(1.5)
        talk.sendall(line.encode() * 100)
        talk.recv(1)
        os._exit(0)
";

#[test]
fn children_that_come_later_are_traced_with_their_parent() {
    if plain_only() || !has(&["tshark", "python3"]) {
        return;
    }
    let dir = TempDir::new("trace-children");
    let file = dir.path().join("a.pcapng");
    let plain = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = plain.local_addr().expect("a port").port().to_string();
    let built = Built::find();
    let mut parent = Command::new(built.memlane.expect("memlane is built"))
        .env("MEMLANE_PRELOAD", &built.preload)
        .args(["run", "--", "python3", "-c", HAS_CHILDREN, &port])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 starts");
    let mut ready = [0; 6];
    let mut says = parent.stdout.take().expect("piped");
    says.read_exact(&mut ready).expect("it is ready");
    let mut tracer = Running::start(trace(&file, &["--pid", &parent.id().to_string()]));
    begun(&mut tracer);
    let mut orders = parent.stdin.take().expect("piped");
    writeln!(orders, "by a child").expect("it reads");
    let (mut talk, _) = plain.accept().expect("a child");
    let mut text = [0; 1100];
    talk.read_exact(&mut text).expect("its words");
    assert_eq!(text[..11], *b"by a child\n");
    talk.write_all(b"!").expect("an answer");
    drop((talk, orders)); // the child ends, the parent ends, and so does the tracer
    parent.wait().expect("it ends");
    let done = tracer.finish(LIMIT);
    assert!(done.is_ok(), "{}", done.report());
    assert!(done.stderr.contains("of 2 processes"), "{}", done.stderr);
    let [a, b] = follow(&file, 0);
    assert!(a == text || b == text, "{a:?} {b:?}");
}

/// It has a socket, and a child that says something to PORT at once, over its own connection.
const HAS_A_CHILD: &str = "
import os, socket, sys
listener = socket.create_server(('127.0.0.1', 0))
child = os.fork()
if child == 0:
    talk = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
    talk.sendall(b'first words')
    talk.recv(1)
    os._exit(0)
os.waitpid(child, 0)
";

/// It has a connection to PORT, over which its child says something at once.
const LEAVES_A_CONNECTION: &str = "
import os, socket, sys
talk = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
child = os.fork()
if child == 0:
    talk.sendall(b'first words')
    talk.recv(1)
    os._exit(0)
os.waitpid(child, 0)
";

/// Starts `script` under a tracer, and expects the words of its child in the trace.
fn its_childs_first_words_are_traced(script: &str) {
    let dir = TempDir::new("trace-child");
    let file = dir.path().join("a.pcapng");
    let plain = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = plain.local_addr().expect("a port").port().to_string();
    let program = ["--", "python3", "-c", script, &port];
    let tracer = Running::start(trace(&file, &program));
    let (mut talk, _) = plain.accept().expect("a child");
    let mut text = [0; 11];
    talk.read_exact(&mut text).expect("its words");
    talk.write_all(b"!").expect("an answer");
    let done = tracer.finish(LIMIT);
    assert!(done.is_ok(), "{}", done.report());
    let [a, b] = follow(&file, 0);
    assert!(a == text || b == text, "{a:?} {b:?}");
}

#[test]
fn a_child_of_a_program_that_starts_under_a_tracer_is_traced_from_its_first_byte() {
    if plain_only() || !has(&["tshark", "python3"]) {
        return;
    }
    its_childs_first_words_are_traced(HAS_A_CHILD);
}

#[test]
fn what_a_child_says_over_its_parents_connection_is_traced_from_its_first_byte() {
    if plain_only() || !has(&["tshark", "python3"]) {
        return;
    }
    its_childs_first_words_are_traced(LEAVES_A_CONNECTION);
}

#[test]
fn a_tracer_that_writes_anything_anywhere_harms_nobody() {
    if plain_only() {
        return;
    }
    let mut pair = Pair::start(&DEFAULT, &DEFAULT);
    pair.open();
    let open = |pid| {
        let options = OpenOptions::new().read(true).write(true).clone();
        options.open(page_of(pid)).expect("its page, for writing")
    };
    let mut pages = [open(pair.client.pid()), open(pair.server.pid())];
    for page in &mut pages {
        // It cannot be cut short under the program.
        assert!(page.set_len(0).is_err(), "shrunk");
        page.set_len(65_536 + (1 << 20)).expect("longer");
    }
    let sizes = [
        1u64 << 20,
        1 << 18,
        0,
        1,
        3 << 18,
        1 << 30,
        1 << 62,
        u64::MAX,
    ];
    let mut noise = sent(99, 512 * sizes.len());
    for (round, size) in sizes.into_iter().enumerate() {
        for page in &mut pages {
            let words = &mut noise[512 * round..512 * (round + 1)];
            words[..4].copy_from_slice(&1u32.to_ne_bytes());
            words[128..136].copy_from_slice(&size.to_ne_bytes());
            words[136..140].copy_from_slice(&u32::MAX.to_ne_bytes());
            words[140..144].copy_from_slice(&0u32.to_ne_bytes());
            if round % 2 == 0 {
                words[256..264].copy_from_slice(&0u64.to_ne_bytes());
            }
            page.rewind().expect("at its start");
            page.write_all(words).expect("scribbled");
        }
        pair.flood(300_000);
        pair.exchange();
    }
}
