//! What the library writes to standard error (`--stats-on-exit`), and where it does not: descriptor 2 may have become something
//! else.

use std::path::PathBuf;
use std::process::Output;

use memlane_system::harness::{Mode, command};

/// Runs a program under memlane that has `arguments`, with the lines at its end.
fn run(program: &str, arguments: &[&str]) -> Output {
    let mut python = command(Mode::Auto, "python3");
    python.args(["-c", program]).args(arguments);
    python.env("MEMLANE_STATS_ON_EXIT", "1");
    let ran = python.output().expect("python3");
    assert!(ran.status.success(), "{ran:?}");
    ran
}

/// A file that does not exist yet.
fn new_file(name: &str) -> PathBuf {
    let id = std::process::id();
    let path = std::env::temp_dir().join(format!("memlane-stderr-{name}-{id}"));
    let _ = std::fs::remove_file(&path);
    path
}

fn taken(path: &PathBuf) -> String {
    let text = std::fs::read_to_string(path).expect("the file");
    std::fs::remove_file(path).expect("it is removed");
    text
}

/// A child for each connection, with the connection as its standard error, as vsftpd and inetd's programs have it; and one that
/// executes another program so.
const SERVER: &str = r#"
import os, socket, sys
listener = socket.create_server(("127.0.0.1", 0))
for way in ["fork", "exec"]:
    near = socket.create_connection(listener.getsockname())
    far = listener.accept()[0]
    child = os.fork()
    if child == 0:
        near.close()
        os.dup2(far.fileno(), 2)
        far.sendall(b"hello")
        if way == "exec":
            os.execvp("python3", ["python3", "-c", "import socket; socket.socket()"])
        sys.exit()
    far.close()
    said = b""
    while more := near.recv(1000):
        said += more
    assert os.waitpid(child, 0)[1] == 0
    print(way, said.decode())
"#;

#[test]
fn a_connection_that_became_standard_error_carries_only_what_the_program_says() {
    let ran = run(SERVER, &[]);
    let said = String::from_utf8_lossy(&ran.stdout);
    assert_eq!(said, "fork hello\nexec hello\n");
    let told = String::from_utf8_lossy(&ran.stderr);
    assert!(told.contains("memlane: sent "), "{told}");
}

const REPLACES: &str = r#"
import os, socket, sys
socket.socket().bind(("127.0.0.1", 0))
os.close(2)
assert os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | getattr(os, sys.argv[2]), 0o600) == 2
os.write(2, b"data")
"#;

#[test]
fn a_file_that_got_the_number_of_standard_error_keeps_its_bytes() {
    let file = new_file("data");
    run(REPLACES, &[file.to_str().expect("UTF-8"), "O_CREAT"]);
    assert_eq!(taken(&file), "data");
}

#[test]
fn a_log_that_replaced_standard_error_gets_the_lines() {
    let file = new_file("log");
    run(REPLACES, &[file.to_str().expect("UTF-8"), "O_APPEND"]);
    let log = taken(&file);
    assert!(log.starts_with("datamemlane: pid "), "{log}");
}
