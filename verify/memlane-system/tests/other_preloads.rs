//! A program that preloads another library, too. Each of the two calls the next one's functions.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use memlane_system::harness::{Built, Mode, TempDir, command, run};
use memlane_system::real::script;

/// A server and a client in one process, which exchange a hundred messages over each of three connections.
const TALK: &str = r#"
import socket, threading
listener = socket.create_server(("127.0.0.1", 0))
def serve(conn):
    while data := conn.recv(100):
        conn.sendall(data)
    conn.close()
for _ in range(3):
    client = socket.create_connection(listener.getsockname())
    server = threading.Thread(target=serve, args=[listener.accept()[0]])
    server.start()
    for n in range(100):
        client.sendall(b"%099d" % n)
        data = b""
        while len(data) < 99:
            data += client.recv(99 - len(data))
        assert data == b"%099d" % n
    client.close()
    server.join()
print("done")
"#;

/// Builds the library that counts.
fn counting(dir: &Path, how: &[&str]) -> PathBuf {
    let library = dir.join("counting.so");
    let mut compile = Command::new("cc");
    compile
        .args(["-shared", "-fPIC", "-O1"])
        .args(how)
        .arg("-o");
    let status = compile.args([&library, &script("counting.c")]).status();
    assert!(status.is_ok_and(|status| status.success()), "cc");
    library
}

/// What the library counted, beside memlane's in this order, and how many connections got their lane.
fn talk(preloaded: [&Path; 2]) -> ([u32; 3], u32) {
    let mut python = command(Mode::Plain, "python3");
    python.args(["-c", TALK]);
    python.env(
        "LD_PRELOAD",
        preloaded.map(|path| path.display().to_string()).join(":"),
    );
    python
        .env("MEMLANE_UPGRADE", "eager")
        .env("MEMLANE_STATS_ON_EXIT", "1");
    let outcome = run(python, Duration::from_secs(60));
    assert!(
        outcome.is_ok() && outcome.stdout == "done\n",
        "{}",
        outcome.report()
    );
    // python3 may be a script that starts other programs before the real one.
    let number = |before: &str| {
        let (_, behind) = outcome.stderr.rsplit_once(before).expect("a count");
        let digits = behind.split(|c: char| !c.is_ascii_digit()).next();
        digits
            .and_then(|digits| digits.parse().ok())
            .expect("a number")
    };
    let counts = ["counted: connect ", ", send ", ", recv "].map(number);
    (counts, number("connections, "))
}

#[test]
fn calls_that_memlane_passes_on_reach_the_library_behind_it() {
    let built = Built::find();
    for how in [&[][..], &["-Wl,--hash-style=sysv"], &["-DINDIRECT"]] {
        let dir = TempDir::new("preloads");
        let counting = counting(dir.path(), how);
        let ([connects, sends, receives], upgraded) = talk([&built.preload, &counting]);
        assert_eq!((connects, upgraded), (3, 6), "{how:?}");
        // What goes by memory goes past it; the first message of each connection does not.
        assert!((3..200).contains(&sends), "{how:?}: {sends}");
        assert!((3..400).contains(&receives), "{how:?}: {receives}");
    }
}

#[test]
fn calls_that_the_library_before_memlane_passes_on_get_the_lane() {
    let built = Built::find();
    let dir = TempDir::new("preloads");
    let counting = counting(dir.path(), &[]);
    let ([connects, sends, receives], upgraded) = talk([&counting, &built.preload]);
    assert_eq!((connects, upgraded), (3, 6));
    assert_eq!(sends, 600);
    assert!(receives >= 600, "{receives}");
}
