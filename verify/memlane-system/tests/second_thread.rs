//! A program begins a second thread before its first socket. By then, the kernel's table of its descriptors has room for the
//! library's own: later, the kernel would take 10 to 20 ms for that.

use std::time::Duration;

use memlane_system::harness::{Mode, command, plain_only, run};
use memlane_system::real::Story;
use memlane_system::real::lang::GoBuild;

const LIMIT: Duration = Duration::from_secs(60);

/// The length of the table, and a second thread. (Python's `socket` makes an epoll set when it is imported, and that one makes
/// the library's descriptors.)
const SIZES: &str = r#"
import os, threading, time, _socket
def size():
    lines = open("/proc/self/status").read().splitlines()
    print(next(line.split()[1] for line in lines if line.startswith("FDSize:")), flush=True)
def begin():
    threading.Thread(target=threading.Event().wait, daemon=True).start()
"#;

/// The numbers that these lines of Python print under memlane, where at most `limit` descriptors may be open.
fn numbers(lines: &str, limit: u32) -> Vec<u64> {
    let mut shell = command(Mode::Auto, "sh");
    shell.args(["-c", r#"ulimit -n "$1"; exec python3 -c "$2""#, "sh"]);
    shell.args([limit.to_string(), format!("{SIZES}{lines}")]);
    let outcome = run(shell, LIMIT);
    assert!(outcome.is_ok(), "{}", outcome.report());
    let words = outcome.stdout.split_whitespace();
    words.map(|word| word.parse().expect("a number")).collect()
}

#[test]
fn the_table_has_room_once_a_second_thread_has_begun_and_not_before() {
    if plain_only() {
        return;
    }
    for (limit, room) in [(20_000, 2048), (1024, 1024)] {
        let sizes = numbers("size(); begin(); size()", limit);
        assert!(sizes[0] <= 256 && sizes[1] == room, "{limit}: {sizes:?}");
    }
}

#[test]
fn a_forked_child_makes_room_for_itself() {
    if plain_only() {
        return;
    }
    let lines = "
begin()
if os.fork() == 0:
    size(); begin(); size()
    os._exit(0)
os.wait()
";
    let sizes = numbers(lines, 20_000);
    assert!(sizes[0] <= 256 && sizes[1] == 2048, "{sizes:?}");
}

#[test]
fn the_first_socket_of_a_program_with_threads_does_not_wait_for_the_kernel() {
    if plain_only() {
        return;
    }
    let lines = "
begin()
start = time.perf_counter()
_socket.socket()
print(round((time.perf_counter() - start) * 1e6))
";
    // On a busy machine, any call may take long, but not ten times in a row.
    let took = (0..10).map(|_| numbers(lines, 20_000)[0]).min();
    assert!(took.is_some_and(|us| us < 3000), "{took:?} us");
}

#[test]
fn go_programs_have_room_before_their_first_thread() {
    let Some(story) = Story::new("go-room", &["go"]) else {
        return;
    };
    for (name, build) in [("libc", GoBuild::USUAL), ("static", GoBuild::STATIC)] {
        let program = build.build(&story, &["room.go"], name);
        story.in_each_mode(|stage| {
            let done = stage.run(name, stage.command(&program), LIMIT);
            let size: u32 = done.stdout().trim().parse().expect("a number");
            assert_eq!(size >= 1024, stage.under_memlane(), "{name}: {size}");
        });
    }
}
