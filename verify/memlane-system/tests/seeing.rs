//! What `memlane ss` says of a ring, while two programs use it.

use memlane_system::harness::plain_only;
use memlane_system::pair::{DEFAULT, Pair};

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
    let waits = |bytes: u64| format!("{bytes}/262144");
    leave_in_the_ring(&mut pair, 100_000);
    assert_eq!(rings(&pair, client), [waits(100_000), waits(0)]);
    assert_eq!(rings(&pair, server), [waits(0), waits(100_000)]);
    pair.server.does("take 30000");
    assert_eq!(rings(&pair, client), [waits(70_000), waits(0)]);
    assert_eq!(rings(&pair, server), [waits(0), waits(70_000)]);
    pair.server.does("take 70000");
    for pid in [client, server] {
        assert_eq!(rings(&pair, pid), [waits(0), waits(0)]);
    }
}
