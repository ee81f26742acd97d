//! What `memlane ss` shows of a ring while two programs use it.

use memlane_system::harness::plain_only;
use memlane_system::pair::{DEFAULT, Pair, flags};

/// `Ring-Tx` and `Ring-Rx` of the one connection of a process, as `ss -w` shows them.
fn rings(pair: &Pair, pid: u32) -> [String; 2] {
    let mut command = pair.memlane();
    command.args(["ss", "-w", "--pid", &pid.to_string()]);
    let output = command.output().expect("memlane ss");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines: Vec<Vec<&str>> = text
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert!(lines.len() == 2, "one connection:\n{text}");
    ["Ring-Tx", "Ring-Rx"].map(|column| {
        let at = lines[0].iter().position(|name| *name == column);
        lines[1][at.expect("the column")].to_owned()
    })
}

/// How much of its rings is in use, towards the peer and from it.
fn windows(pair: &Pair, pid: u32) -> [u64; 2] {
    let text = told(pair, &["ss", "--json", "--pid", &pid.to_string()]);
    let document: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let conn = &document["connections"][0];
    ["tx", "rx"].map(|way| {
        let window = &conn[way]["ring_window_bytes"];
        window.as_u64().unwrap_or_else(|| panic!("{text}"))
    })
}

/// Sends bytes that nobody reads yet, all of them by the ring. A peer that happened to be
/// parked is woken by TCP: then once more.
fn leave_in_the_ring(pair: &mut Pair, bytes: u64) {
    for _ in 0..20 {
        let ring_bytes = |pair: &Pair| pair.client.conn().expect("a page").bytes[0];
        let before = ring_bytes(pair);
        pair.client.does(&format!("send 7 {bytes}"));
        if ring_bytes(pair) - before == bytes {
            return;
        }
        pair.server.does(&format!("take {bytes}"));
        pair.exchange();
    }
    panic!("never all by the ring:\n{}", pair.describe());
}

#[test]
fn ss_says_on_both_sides_what_waits_in_the_ring_until_it_is_read() {
    if plain_only() {
        return;
    }
    let mut pair = Pair::start(&DEFAULT, &DEFAULT);
    pair.open();
    let (client, server) = (pair.client.pid(), pair.server.pid());
    let waits = |bytes: u64| format!("{bytes}/4194304");
    leave_in_the_ring(&mut pair, 100_000);
    assert_eq!(rings(&pair, client), [waits(100_000), waits(0)]);
    assert_eq!(rings(&pair, server), [waits(0), waits(100_000)]);
    // Small messages stay in the page that a ring begins with.
    let [grown, small] = windows(&pair, client);
    assert!((100_000..=262_144).contains(&grown) && small == 4096);
    assert_eq!(windows(&pair, server), [small, grown]);
    pair.server.does("take 30000");
    assert_eq!(rings(&pair, client), [waits(70_000), waits(0)]);
    assert_eq!(rings(&pair, server), [waits(0), waits(70_000)]);
    pair.server.does("take 70000");
    for pid in [client, server] {
        assert_eq!(rings(&pair, pid), [waits(0), waits(0)]);
    }
}

/// A verb of `memlane` that prints a document about one process.
fn told(pair: &Pair, arguments: &[&str]) -> String {
    let mut command = pair.memlane();
    let output = command.args(arguments).output().expect("memlane");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn stats_the_exporter_and_top_say_the_same_of_what_two_programs_do() {
    if plain_only() {
        return;
    }
    let small = flags(&["--ring", "16K"]);
    let mut pair = Pair::start(&small, &small);
    pair.open();
    let stats = |pair: &Pair, pid: u32, more: &[&str]| -> serde_json::Value {
        let pid = pid.to_string();
        let text = told(pair, &[&["stats", "--json", "--pid", &pid], more].concat());
        let mut document: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        document["processes"][0].take()
    };
    let (client, server) = (pair.client.pid(), pair.server.pid());
    for (pid, roles) in [(client, [1, 0]), (server, [0, 1])] {
        let seen = stats(&pair, pid, &["-a"]);
        let upgraded = ["upgraded_client", "upgraded_server"].map(|role| {
            let count = &seen["connections"][role];
            count.as_u64().expect("a count")
        });
        assert_eq!(upgraded, roles, "{seen:#}");
        let classes = seen["tx"]["rings_by_size"].as_array().expect("classes");
        let rings: u64 = classes.iter().filter_map(serde_json::Value::as_u64).sum();
        assert_eq!(rings, 1, "{seen:#}");
    }
    // Larger than the ring: the server takes it meanwhile.
    pair.server.tell("take 100000");
    pair.client.does("send 7 100000");
    pair.server.answer();
    let before = stats(&pair, client, &["-a"]);
    let beyond = before["tx"]["calls_beyond_ring"].as_u64();
    assert!(beyond >= Some(1), "{before:#}");

    let page = told(&pair, &["exporter", "--textfile", "-"]);
    let sent = |lane: &str| {
        let labels = format!("direction=\"sent\",lane=\"{lane}\"");
        let mut lines = page.lines();
        let name = before["process"].as_str().expect("a name");
        let line = lines.find(|line| {
            line.starts_with("memlane_socket_bytes_total{")
                && line.contains(&format!("program=\"{name}\""))
                && line.contains(&labels)
        });
        let value = line.and_then(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok());
        value.expect("a series")
    };
    let mine = |field: &str| before["tx"][field].as_u64().expect("a count");
    assert!(sent("memory") >= mine("ring_bytes") && sent("tcp") >= mine("tcp_bytes"));
    let once = [
        "top",
        "--once",
        "--delay",
        "100ms",
        "--connections",
        "--filter",
    ];
    let pid = client.to_string();
    let screen = told(&pair, &[&once[..], &[&pid]].concat());
    let last = screen.lines().last().unwrap_or_default();
    assert!(
        last.contains(&format!("/{pid} ")) && last.ends_with("MEMLANE"),
        "{screen}"
    );
}
