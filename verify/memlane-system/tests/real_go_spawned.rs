//! Static Go programs that libc starts (`posix_spawn`, `system`): they get the lane, and who starts them sees what it sees
//! without memlane.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use memlane_system::harness::is_root;
use memlane_system::musl;
use memlane_system::real::lang::{EchoServer, GoBuild, Load, echo};
use memlane_system::real::{SHORT_LIVED, Stage, Story, note, program as which, script};

const LIMIT: Duration = Duration::from_secs(120);

/// A story, and one of this package's Go programs, linked statically.
fn story(name: &str, source: &str, more: &[&str]) -> Option<(Story, PathBuf)> {
    let story = Story::new(name, &[&["go", "python3"], more].concat())?;
    let program = GoBuild::STATIC.build(&story, &[source], "program");
    Some((story, program))
}

/// A part of `spawner.py` says the same in each mode.
fn says_the_same(name: &str, part: &str, source: &str) {
    let Some((story, program)) = story(name, source, &[]) else {
        return;
    };
    let said = OnceCell::new();
    story.in_each_mode(|stage| {
        let text = say(stage, part, &program);
        assert_eq!(&text, said.get_or_init(|| text.clone()));
    });
}

fn say(stage: &Stage, part: &str, program: &Path) -> String {
    let mut command = stage.python("spawner.py");
    let here = stage.dir().join("here");
    std::fs::create_dir_all(&here).expect("a directory");
    command.arg(part).arg(program).current_dir(here);
    let text = stage.run(part, command, LIMIT).stdout();
    assert!(!text.is_empty());
    text
}

#[test]
fn a_static_program_gets_the_lane_however_libc_starts_it() {
    let Some((story, program)) = story("go-spawned", "echo.go", &[]) else {
        return;
    };
    let load = Load {
        connections: 2,
        rounds: 300,
        most: 20_000,
    };
    story.in_each_mode(|stage| {
        let mut command = stage.command(&program);
        command.arg("server");
        let server = EchoServer::start(stage, command, &[]);
        let mut talk = stage.python("spawner.py");
        talk.args(["talk".as_ref(), program.as_os_str()]);
        talk.args(["client", &server.port.to_string()])
            .args(load.args());
        let done = stage.run("talk", talk, LIMIT);
        let ways = ["path", "relative", "search", "subprocess", "system"];
        let told = ways.map(|way| format!("rounds=600\n{way} 0\n")).concat();
        assert_eq!(done.stdout(), told);
        done.lane.must_use_ring(&[SHORT_LIVED]);
        // Five programs move 12.3 MB each, there and back: two connections of 300 messages of 10 KB on average. Without one of
        // them, 49 MB are left. The server counts them all; a program that ends at once may not be seen.
        server
            .finish()
            .must_use_ring_for(50_000_000, &[SHORT_LIVED]);
    });
}

/// musl's `posix_spawn` makes its child in its own way.
#[test]
fn a_static_program_gets_the_lane_when_a_program_with_musl_starts_it() {
    if !musl::is_here() {
        return;
    }
    let Some((story, program)) = story("go-spawned-musl", "echo.go", &[]) else {
        return;
    };
    let starter = story.dir().join("starter");
    let mut cc = Command::new("musl-gcc");
    cc.arg("-o").args([&starter, &script("chosen_tracer.c")]);
    assert!(cc.status().is_ok_and(|status| status.success()), "musl-gcc");
    let load = Load {
        connections: 2,
        rounds: 300,
        most: 20_000,
    };
    story.in_each_mode(|stage| {
        let started = |role: &str| {
            let mut command = stage.command(&starter);
            command.arg(&program).arg(role);
            command
        };
        let server = EchoServer::start(stage, started("server"), &[]);
        let done = echo(stage, started("client"), server.port, load, &[]);
        done.lane.must_use_ring(&[SHORT_LIVED]);
        let lane = server.proc.lane();
        server.proc.kill();
        lane.must_use_ring(&[SHORT_LIVED]);
    });
}

#[test]
fn attributes_and_file_actions_are_honoured() {
    says_the_same("go-spawned-facts", "facts", "facts.go");
}

#[test]
fn a_call_that_fails_gives_the_same_error() {
    says_the_same("go-spawned-errors", "errors", "facts.go");
}

#[test]
fn a_connection_is_passed_on_with_what_has_not_been_read() {
    says_the_same("go-spawned-unread", "unread", "facts.go");
}

#[test]
fn other_children_signals_and_threads_are_not_disturbed() {
    says_the_same("go-spawned-others", "others", "start.go");
}

#[test]
fn a_user_who_may_have_no_more_processes_can_start_one() {
    if is_root() {
        says_the_same("go-spawned-limit", "limit", "start.go");
    } else {
        note("SKIPPED go-spawned-limit: not root");
    }
}

#[test]
fn nothing_is_left_of_a_process_that_is_killed_while_it_starts_programs() {
    says_the_same("go-spawned-killed", "killed", "start.go");
}

#[test]
fn a_program_that_is_stopped_while_it_begins_stops_and_goes_on() {
    says_the_same("go-spawned-stopped", "stopped", "start.go");
}

/// Nobody else can trace the process then, so the program stays on TCP.
#[test]
fn a_process_that_is_traced_starts_programs_as_without_memlane() {
    let Some((story, program)) = story("go-spawned-traced", "facts.go", &["strace"]) else {
        return;
    };
    let said = OnceCell::new();
    story.in_each_mode(|stage| {
        let mut command = stage.command("strace");
        command.args(["-f", "-qq", "-o", "/dev/null"]);
        command.arg(which("python3")).arg(script("spawner.py"));
        command.arg("errors").arg(&program);
        let text = stage.run("traced", command, LIMIT).stdout();
        assert_eq!(&text, said.get_or_init(|| text.clone()));
    });
}
