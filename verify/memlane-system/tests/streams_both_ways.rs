//! Threads that are always inside a call, because they send and receive a stream all the time, or wait for what does not come:
//! the lane opens all the same. And ends that ask select before each call, and send and receive in one thread, or wait for
//! room in one stream and for news by another.

use std::path::Path;
use std::time::Duration;

use memlane_system::real::{LaneReport, story};

const MIB: u64 = 2048;

/// Runs `ends/duplex.c`, and hands what its processes tell of their lanes to `then`, under memlane.
fn streams(name: &str, how: &[&str], then: fn(&LaneReport)) {
    story(name, &[], |stage| {
        let mut both = stage.command(Path::new(env!("OUT_DIR")).join("duplex"));
        both.arg(MIB.to_string()).args(how);
        let done = stage.run("duplex", both, Duration::from_secs(60));
        assert_eq!(done.stdout(), "right\n");
        if stage.under_memlane() {
            assert!(!done.lane.processes.is_empty());
            then(&done.lane);
        }
    });
}

#[test]
fn one_connection_with_a_stream_each_way_goes_by_memory() {
    streams("streams-both-ways", &[], |lane| {
        for process in &lane.processes {
            let [sent, received, sent_by_tcp, received_by_tcp] = process.bytes();
            assert_eq!(sent + sent_by_tcp, received + received_by_tcp);
            assert!(sent > sent_by_tcp, "{lane}");
        }
    });
}

#[test]
fn a_stream_beside_which_a_thread_waits_for_an_answer_goes_by_memory() {
    streams("streams-beside-a-wait", &["wait"], |lane| {
        let sent = lane.processes.iter().map(|process| process.bytes());
        let [by_memory, by_tcp] = sent.fold([0; 2], |[m, t], bytes| [m + bytes[0], t + bytes[2]]);
        assert_eq!(by_memory + by_tcp, MIB << 20);
        assert!(by_memory > by_tcp, "{lane}");
    });
}

/// Both ends send as fast as a wait (`select`, `poll` or `epoll`) lets them, by calls that may block, and receive more slowly, as a
/// relay does for slow programs.
const RELAYS: &str = r#"
import os, select, socket, sys
TOTAL = 64 << 20
how = sys.argv[1]

class Wait:
    def __init__(self, conn):
        self.conn, self.last = conn, None
        if how != "select":
            self.list = getattr(select, how)()
            self.list.register(conn, 0)

    def until(self, reads, writes):
        if how == "select":
            readable, writable, _ = select.select([self.conn] * reads, [self.conn] * writes, [])
            return readable, writable
        wanted = select.POLLIN * reads | select.POLLOUT * writes
        if wanted != self.last:
            self.list.modify(self.conn, wanted)
            self.last = wanted
        (_, events), = self.list.poll()
        return events & select.POLLIN, events & select.POLLOUT

def relay(conn):
    wait, sent, got = Wait(conn), 0, 0
    while sent < TOTAL or got < TOTAL:
        readable, writable = wait.until(got < TOTAL, sent < TOTAL)
        if writable:
            conn.sendall(bytes(8192))
            sent += 8192
        if readable:
            got += len(conn.recv(6000))

listener = socket.create_server(("127.0.0.1", 0))
child = os.fork()
if child == 0:
    relay(socket.create_connection(listener.getsockname()))
    os._exit(0)
relay(listener.accept()[0])
assert os.waitpid(child, 0)[1] == 0
"#;

#[test]
fn a_send_to_what_a_wait_calls_writable_finds_room() {
    for how in ["select", "poll", "epoll"] {
        story(&format!("relays-{how}"), &["python3"], |stage| {
            let mut both = stage.command("python3");
            both.args(["-c", RELAYS, how]);
            let done = stage.run("relays", both, Duration::from_secs(60));
            if stage.under_memlane() {
                done.lane.must_use_ring_for(32 << 20, &[]);
                let found_none = done.lane.processes.iter().map(|it| it.full_rings());
                let found_none: u64 = found_none.sum();
                // The first ones, before the lane is open at both ends, may be among them.
                assert!(found_none < 50, "{found_none} sends waited\n{}", done.lane);
            }
        });
    }
}

/// A thread waits (by `select` or `poll`) for room in one stream, and for messages by another connection. Its peer reads the
/// stream slowly at first, with a message after each read, and then the rest as fast as it can.
const NEWS: &str = r#"
import os, select, socket, sys, time
MESSAGES, PIECE = 300, bytes(65536)
TOTAL = MESSAGES * len(PIECE) + (256 << 20)
how = sys.argv[1]

def wait(stream, news, wants_room):
    if how == "select":
        readable, writable, _ = select.select([news], [stream] * wants_room, [])
        return readable, writable
    both = select.poll()
    if wants_room:
        both.register(stream, select.POLLOUT)
    both.register(news, select.POLLIN)
    events = dict(both.poll())
    return events.get(news.fileno()), events.get(stream.fileno())

def fill(stream, left):
    sent = 0
    try:
        while sent < left:
            sent += stream.send(PIECE[:left - sent])
    except BlockingIOError:
        pass
    return sent

def reads(stream, news):
    left = TOTAL
    for _ in range(MESSAGES):
        left -= len(stream.recv(len(PIECE)))
        news.send(b"x")
        time.sleep(0.001)
    while left > 0:
        left -= len(stream.recv(len(PIECE)))
    news.send(b"x")

def waits_for_both(stream, news):
    stream.setblocking(False)
    left = TOTAL - fill(stream, TOTAL)
    got = in_vain = 0
    while got < MESSAGES + 1:
        has_news, has_room = wait(stream, news, left > 0)
        if has_room:
            sent = fill(stream, left)
            left -= sent
            in_vain += sent == 0
        if has_news:
            got += len(news.recv(1000))
        if got < MESSAGES:
            slow = time.monotonic()
    fast = time.monotonic() - slow
    # A thread that does not nap, but looks twice a second, takes 1.5 s.
    assert fast < 1.2, f"the rest took {fast} s"
    assert in_vain < 20, f"{in_vain} times there was no room"

def opens_lanes(*conns, asks):
    for conn in conns:
        for _ in range(50):
            if asks:
                conn.send(b"?")
            assert conn.recv(1)
            if not asks:
                conn.send(b"!")

listener = socket.create_server(("127.0.0.1", 0))
child = os.fork()
if child == 0:
    stream, news = (socket.create_connection(listener.getsockname()) for _ in range(2))
    opens_lanes(stream, news, asks=True)
    reads(stream, news)
    os._exit(0)
stream, news = (listener.accept()[0] for _ in range(2))
opens_lanes(stream, news, asks=False)
waits_for_both(stream, news)
assert os.waitpid(child, 0)[1] == 0
"#;

#[test]
fn a_wait_for_room_hears_of_another_stream_by_memory() {
    for how in ["select", "poll"] {
        story(&format!("news-{how}"), &["python3"], |stage| {
            let mut both = stage.command("python3");
            both.args(["-c", NEWS, how]);
            let done = stage.run("news", both, Duration::from_secs(60));
            if stage.under_memlane() {
                let sent = done.lane.processes.iter().map(|it| it.bytes());
                let sent = sent.min_by_key(|[by_memory, _, by_tcp, _]| by_memory + by_tcp);
                let [by_memory, _, by_tcp, _] = sent.expect("two processes");
                // A few, before the lane is open.
                assert!(
                    by_tcp < 100 && by_memory > 200,
                    "{by_tcp} by TCP\n{}",
                    done.lane
                );
            }
        });
    }
}
