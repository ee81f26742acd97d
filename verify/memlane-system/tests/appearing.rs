//! When a process shows itself: it makes its stats page once it has something to show. Programs that end before need none.

use memlane_system::harness::{Mode, command, plain_only};
use memlane_system::pair::{Pair, flags};
use memlane_system::real::Reason;

/// What a client writes of itself: how many stats pages it has mapped.
const TOLD: &str = r#"
def told():
    print(sum("memlane-stats" in line for line in open("/proc/self/maps")), flush=True)
"#;

/// A client of a server that runs elsewhere (`PORT`): it tells of itself after each of five connections.
const CONNECTIONS: &str = r#"
for _ in range(5):
    socket.create_connection(server)
    told()
"#;

/// After each of four calls on one connection.
const CALLS: &str = r#"
near = socket.create_connection(server)
for _ in range(2):
    near.sendall(b"ask")
    told()
    near.recv(3)
    told()
"#;

/// Prints how many sockets it has. A handshake needs one of its own.
const SOCKETS: &str = r#"
import os
def sockets():
    numbers = [n for n in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{n}")]
    print(sum(os.readlink(f"/proc/self/fd/{n}").startswith("socket:") for n in numbers))
near = socket.create_connection(server)
"#;

/// The sockets after two small exchanges.
const AFTER_SMALL: &str = r#"
for _ in range(2):
    near.sendall(b"ask")
    near.recv(3)
sockets()
told()
"#;

/// The sockets after one large message.
const AFTER_LARGE: &str = r#"
near.sendall(bytes(100000))
sockets()
told()
"#;

/// Before and after it listens.
const LISTENS: &str = r#"
mine = socket.socket()
mine.bind(("127.0.0.1", 0))
told()
mine.listen()
told()
"#;

/// What these lines of Python print under memlane, beside a server without it that answers each byte with itself.
fn young(lines: &str, settings: &[(&str, &str)]) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut back = stream.try_clone().expect("a copy");
                std::io::copy(&mut &stream, &mut back)
            });
        }
    });
    let program = format!("import socket\nserver = ('127.0.0.1', {port})\n{TOLD}\n{lines}");
    printed(&program, settings)
}

fn printed(program: &str, settings: &[(&str, &str)]) -> String {
    let mut command = command(Mode::Auto, "python3");
    let ran = command.args(["-c", program]).envs(settings.iter().copied());
    let ran = ran.output().expect("python3 runs");
    assert!(ran.status.success(), "{ran:?}");
    String::from_utf8_lossy(&ran.stdout).replace('\n', " ")
}

#[test]
fn a_client_has_a_stats_page_from_its_fifth_connection_on() {
    assert_eq!(young(CONNECTIONS, &[]), "0 0 0 0 1 ");
}

#[test]
fn a_client_has_a_stats_page_from_its_fourth_call_on_one_connection() {
    assert_eq!(young(CALLS, &[]), "0 0 0 1 ");
}

#[test]
fn the_call_that_shows_a_client_begins_no_handshake() {
    assert_eq!(young(&format!("{SOCKETS}{AFTER_SMALL}"), &[]), "1 1 ");
}

#[test]
fn a_server_has_a_stats_page_when_it_listens() {
    assert_eq!(young(LISTENS, &[]), "0 1 ");
}

#[test]
fn a_client_whose_connections_all_get_a_lane_has_a_stats_page_at_once() {
    assert_eq!(
        young(CONNECTIONS, &[("MEMLANE_UPGRADE", "eager")]),
        "1 1 1 1 1 "
    );
}

#[test]
fn a_stats_page_has_what_came_before_it() {
    if plain_only() {
        return;
    }
    let auto = flags(&["--upgrade", "auto"]);
    let mut pair = Pair::start(&auto, &auto);
    pair.exchange();
    pair.client.look();
    assert!(pair.client.conn().is_none(), "{}", pair.describe());
    pair.exchange();
    pair.client.look();
    let conn = pair.client.conn().expect("a page");
    assert_eq!(conn.reason, Reason::TOO_YOUNG, "{}", pair.describe());
    assert_eq!(conn.bytes, [0, 0, 200, 200], "{}", pair.describe());
}

#[test]
fn a_large_message_begins_a_handshake_at_once_and_so_makes_a_stats_page() {
    assert_eq!(young(&format!("{SOCKETS}{AFTER_LARGE}"), &[]), "2 1 ");
}

/// A connection gets its lane, has bytes in the ring, and goes to the next program of this process, which tells of itself and
/// prints them.
const NEXT_PROGRAM: &str = r#"
import os, socket, sys
listener = socket.create_server(("127.0.0.1", 0))
near = socket.create_connection(listener.getsockname())
far, _ = listener.accept()
for _ in range(100):
    near.sendall(b"ask")
    far.recv(3)
    far.sendall(b"answer")
    near.recv(6)
far.sendall(b"left")
near.set_inheritable(True)
then = sys.argv[1] + f"\ntold()\nimport os\nprint(os.read({near.fileno()}, 9).decode())"
os.execv(sys.executable, [sys.executable, "-c", then])
"#;

#[test]
fn a_program_that_takes_over_a_lane_has_a_stats_page_at_once() {
    let mut command = command(Mode::Auto, "python3");
    let ran = command.args(["-c", NEXT_PROGRAM, TOLD]);
    let ran = ran.output().expect("python3 runs");
    assert!(ran.status.success(), "{ran:?}");
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "1\nleft\n");
}

/// Prints how many stats pages are mapped: in a parent; in its child that ends at once, in one that makes a connection, in one that
/// uses an inherited connection long enough for a lane, and in one that sends urgent data over it, which keeps it on TCP. Each child
/// has its parent's page, and perhaps its own.
const CHILDREN: &str = r#"
import os, socket
listener = socket.create_server(("127.0.0.1", 0))
near = socket.create_connection(listener.getsockname())
far, _ = listener.accept()

def use():
    for _ in range(100):
        near.sendall(b"ask")
        far.recv(3)
        far.sendall(b"answer")
        near.recv(6)

def connect():
    socket.create_connection(listener.getsockname())

def send_urgently():
    near.send(b"!", socket.MSG_OOB)

told()
for work in (lambda: None, connect, use, send_urgently):
    child = os.fork()
    if child == 0:
        work()
        told()
        os._exit(0)
    os.waitpid(child, 0)
"#;

fn pages(settings: &[(&str, &str)]) -> String {
    printed(&format!("{TOLD}\n{CHILDREN}"), settings)
}

#[test]
fn a_forked_child_has_a_stats_page_once_it_has_something_to_show() {
    assert_eq!(pages(&[]), "1 1 2 2 2 ");
}

#[test]
fn a_forked_child_that_prints_a_summary_at_its_end_has_a_stats_page_at_once() {
    assert_eq!(pages(&[("MEMLANE_STATS_ON_EXIT", "1")]), "1 2 2 2 2 ");
}

#[test]
fn a_forked_child_that_inherits_a_connection_which_stays_on_tcp_has_a_stats_page_at_once() {
    assert_eq!(pages(&[("MEMLANE_UPGRADE", "off")]), "1 2 2 2 2 ");
}

/// Five exchanges by two ends, and how the child of a fork ends: with its connection open, or closed.
const EXCHANGES: &str = r#"
import os, socket, sys
listener = socket.create_server(("127.0.0.1", 0))

def ask(near):
    for _ in range(5):
        near.sendall(b"ask")
        near.recv(3)

def answer(far):
    for _ in range(5):
        far.sendall(far.recv(3))

def end(conn):
    if sys.argv[1] == "open":
        conn.detach()
    sys.exit()

def serve_in_child():
    near = socket.create_connection(listener.getsockname())
    far, _ = listener.accept()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        near.close()
        answer(far)
        told()
        end(far)
    far.close()
    ask(near)
    os.waitpid(child, 0)
    near.close()
"#;

/// What a program with these lines, too, tells of its children's stats pages, for both ways to end.
fn in_children(lines: &str, expected: &str) {
    for end in ["open", "closed"] {
        let mut command = command(Mode::Auto, "python3");
        let ran = command.args(["-c", &format!("{TOLD}\n{EXCHANGES}\n{lines}"), end]);
        let ran = ran.output().expect("python3 runs");
        assert!(ran.status.success(), "{ran:?}");
        let told = String::from_utf8_lossy(&ran.stdout).replace('\n', " ");
        assert_eq!(told, expected, "{end}");
    }
}

#[test]
fn a_server_that_forks_for_each_short_connection_soon_begins_no_handshakes() {
    let lines = "for _ in range(12):\n    serve_in_child()\n";
    in_children(lines, "2 2 2 2 2 2 2 2 1 1 1 1 ");
}

/// The parent goes on using a connection of which twelve children drop their copies.
const COPIES: &str = r#"
import threading
near = socket.create_connection(listener.getsockname())
far, _ = listener.accept()
answers = threading.Thread(target=answer, args=(far,))
answers.start()
ask(near)
answers.join()
for _ in range(12):
    child = os.fork()
    if child == 0:
        end(far)
    os.waitpid(child, 0)
serve_in_child()
"#;

#[test]
fn children_that_drop_their_copies_of_a_connection_put_no_handshakes_off() {
    in_children(COPIES, "2 ");
}
