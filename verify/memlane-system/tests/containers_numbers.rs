//! A program takes the very descriptor numbers that the library has its own files at, by dup2, while it is introduced to a
//! program in another network namespace. Nobody but the program reads from them or closes them from then on, and the lane
//! opens all the same.
//!
//! Needs root for the namespaces, and CAP_BPF and CAP_PERFMON for the agent.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::time::Duration;

use memlane_system::blocks::skip;
use memlane_system::containers::{Agent, Between, Networks, scene};
use memlane_system::crowd::serve_in;
use memlane_system::harness::{Mode, command, plain_only};
use memlane_system::pair::{DEFAULT, Pair};
use memlane_system::real::held::channels_of;
use memlane_system::real::lane::LaneWatch;
use memlane_system::real::{program, wait_until};

/// One call of either program: a send, or the receive that belongs to it. Four of them are an exchange.
fn call(pair: &mut Pair, number: u32) {
    let (client, server) = (&mut pair.client, &mut pair.server);
    let _ = match number % 4 {
        0 => client.does(&format!("send {} 100", 900 + number)),
        1 => server.does("take 100"),
        2 => server.does(&format!("send {} 100", 900 + number)),
        _ => client.does("take 100"),
    };
}

/// Both take all the library's numbers after this many calls, and the lane opens.
fn takes_numbers_after(mut pair: Pair, calls: u32) {
    for number in 0..calls {
        call(&mut pair, number);
    }
    for end in [&mut pair.client, &mut pair.server] {
        end.does("spoil numbers");
    }
    for number in calls..calls.next_multiple_of(4) {
        call(&mut pair, number);
    }
    pair.open();
    pair.flood(1 << 20);
    for end in [&mut pair.client, &mut pair.server] {
        end.does("spoil looked");
    }
    pair.exchange();
    // The handshake is over: what it needed is closed, wherever it had been moved to.
    let channels = [&pair.client, &pair.server].map(|end| channels_of(end.pid()));
    assert!(
        channels.iter().all(|&n| n <= AT_REST),
        "after {calls} calls: {channels:?} are left"
    );
}

/// The connection to the agent, and the life line.
const AT_REST: usize = 2;

#[test]
fn numbers_that_a_program_takes_during_an_introduction_are_its_own() {
    let Some((agent, networks)) = scene("numbers", Between::Cable) else {
        return;
    };
    for calls in 1..=16 {
        takes_numbers_after(Pair::in_domain(&networks, &agent.directory()), calls);
    }
}

#[test]
fn numbers_that_a_program_takes_while_the_agent_thinks_are_its_own() {
    let Some((agent, networks)) = scene("numbers-asking", Between::Cable) else {
        return;
    };
    agent.signal("STOP");
    let mut pair = Pair::in_domain(&networks, &agent.directory());
    for _ in 0..12 {
        pair.exchange();
    }
    pair.client.does("spoil numbers");
    pair.exchange();
    agent.signal("CONT");
    std::thread::sleep(Duration::from_millis(20));
    pair.server.does("spoil numbers");
    pair.open();
    for end in [&mut pair.client, &mut pair.server] {
        end.does("spoil looked");
    }
}

#[test]
fn numbers_that_a_program_takes_within_one_namespace_are_its_own() {
    if plain_only() {
        return;
    }
    for calls in 1..=16 {
        takes_numbers_after(Pair::start(&DEFAULT, &DEFAULT), calls);
    }
}

/// Closes a connection after some exchanges and makes another, which gets its number. `crowd serve` answers each byte with
/// its complement.
const REUSES: &str = "
import socket, sys
def talk(conn, times):
    for n in range(times):
        said = bytes((n + i) % 256 for i in range(100))
        conn.sendall(said)
        heard = b''
        while len(heard) < 100: heard += conn.recv(100)
        assert heard == bytes(255 - byte for byte in said), 'other bytes'
at, times = (sys.argv[1], int(sys.argv[2])), int(sys.argv[3])
first = socket.create_connection(at)
talk(first, times)
number = first.fileno()
first.close()
second = socket.create_connection(at)
assert second.fileno() == number, 'another number'
talk(second, times)
print('reused', flush=True)
while sys.stdin.readline():
    talk(second, 300)
    print('done', flush=True)
";

/// A program that reuses a number after this many exchanges. Between its two halves the test does `between`.
fn reuses(agent: &Agent, networks: &Networks, port: &str, times: u32, between: impl Fn()) {
    let mut inner = command(Mode::Eager, program("python3"));
    let at = networks.reached_at();
    inner.args(["-c", REUSES, at, port, &times.to_string()]);
    let mut command = networks.at_client(agent).around(&inner, None);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("python starts");
    let watch = LaneWatch::start(child.id());
    let mut orders = child.stdin.take().expect("piped");
    let mut lines = BufReader::new(child.stdout.take().expect("piped"));
    let mut says = |what: &str| {
        let mut line = String::new();
        lines.read_line(&mut line).expect("it speaks");
        assert_eq!(line.trim(), what, "after {times} exchanges");
    };
    says("reused");
    between();
    // On a busy machine, the answer may take longer than the exchanges.
    wait_until("the lane", Duration::from_secs(20), || {
        writeln!(orders).expect("it listens");
        says("done");
        watch.look();
        watch.report("reuses", Mode::Eager).ring_bytes() > 0
    });
    let channels = channels_of(child.id());
    assert!(channels <= AT_REST, "{times}: {channels} are left");
    drop(orders);
    assert!(child.wait().expect("a child").success());
}

#[test]
fn an_answer_about_a_number_that_has_changed_hands_is_for_nobody() {
    let Some((agent, networks)) = scene("reused", Between::Cable) else {
        return;
    };
    let (server, port) = serve_in(&networks.at_server(&agent), Mode::Eager);
    for times in [1, 2, 3, 4, 6, 9] {
        reuses(&agent, &networks, &port, times, || ());
    }
    // The question about the first connection is not heard before the second one has its number.
    agent.signal("STOP");
    reuses(&agent, &networks, &port, 12, || {
        agent.signal("CONT");
        std::thread::sleep(Duration::from_millis(50));
    });
    server.end();
}

/// One thread talks, and so takes the library's steps; the other takes the library's numbers, again and again, and looks at
/// what waits at each.
const TAKES: &str = "
import os, socket, sys, threading, time
conn = socket.create_connection((sys.argv[1], int(sys.argv[2])))
over = False
def talk():
    while not over:
        conn.sendall(b'a' * 100)
        heard = 0
        while heard < 100: heard += len(conn.recv(100))
thread = threading.Thread(target=talk)
thread.start()
taken = {}
for turn in range(15):
    time.sleep(0.037)
    for number in map(int, os.listdir('/proc/self/fd')):
        if number < 1000 or number in taken: continue
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs.send(b'mine')
        try: os.dup2(ours.fileno(), number)
        except OSError: continue
        taken[number] = socket.socket(fileno=number)
time.sleep(0.1)
over = True
thread.join()
for number, one in taken.items():
    one.setblocking(False)
    assert one.recv(10) == b'mine', number
print('taken', len(taken), flush=True)
";

/// strace makes it certain that a step is in the middle of a receive when its number is taken.
#[test]
fn a_number_that_is_taken_in_the_middle_of_a_step_is_not_read_from() {
    let Some((agent, networks)) = scene("taken", Between::Cable) else {
        return;
    };
    let slow = ["-f", "-o", "/dev/null", "-e", "trace=recvmsg"];
    let slow = [&slow[..], &["-e", "inject=recvmsg:delay_enter=20000"]].concat();
    let may_trace = Command::new("strace").args(&slow).arg("true").output();
    if !may_trace.is_ok_and(|out| out.status.success()) {
        return skip("taken", "strace is not there, or may not trace");
    }
    let (server, port) = serve_in(&networks.at_server(&agent), Mode::Eager);
    // Whoever asks waits, and looks for an answer after each of his calls.
    agent.signal("STOP");
    let mut inner = command(Mode::Eager, program("strace"));
    inner.args(&slow).arg(program("python3"));
    inner.args(["-c", TAKES, networks.reached_at(), &port]);
    let said = networks.at_client(&agent).around(&inner, None).output();
    let said = said.expect("strace starts");
    let [out, err] = [&said.stdout, &said.stderr].map(|text| String::from_utf8_lossy(text));
    let count = out
        .trim()
        .strip_prefix("taken ")
        .and_then(|n| n.parse().ok());
    assert!(count.is_some_and(|n: u32| n > 10), "{out}{err}");
    agent.signal("CONT");
    server.end();
}
