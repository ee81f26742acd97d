//! Go makes its own system calls: it stays on TCP, and so do its peers.

use std::process::Command;

use memlane_system::harness::Built;
use memlane_system::real::http::PEER_OUTSIDE;
use memlane_system::real::lang::{EchoServer, Load, echo, go_build, python_echo};
use memlane_system::real::{Reason, Story};

/// Each connection makes more than the 80 calls after which a peer counts as one without memlane.
const LOAD: Load = Load {
    connections: 10,
    rounds: 100,
    most: 60_000,
};

fn go_talks_to_go_and_to_python(name: &str, cgo: bool) {
    let Some(story) = Story::new(name, &["go", "python3"]) else {
        return;
    };
    // With the library loaded, the Go process may exist for its peer, but not answer.
    let unaware: &[Reason] = if cgo {
        &[Reason::TIMEOUT_CL, Reason::TIMEOUT_AL]
    } else {
        &[]
    };
    let program = go_build(&story, "echo.go", cgo);
    story.in_each_mode(|stage| {
        let go = |role: &str| -> Command {
            let mut command = stage.command(&program);
            command.arg(role);
            command
        };
        let server = EchoServer::start(stage, go("server"), &[]);
        let done = echo(stage, go("client"), server.port, LOAD, &[]);
        done.lane.must_stay_on_tcp(&[]);
        if !cgo && stage.under_memlane() && Built::find().memlane.is_some() {
            let said = done.stderr();
            assert!(
                said.contains("stays on TCP"),
                "the launcher says nothing: {said}"
            );
        }

        let done = python_echo(stage, server.port, LOAD, &[]);
        done.lane.must_stay_on_tcp(&[PEER_OUTSIDE, unaware]);
        if !cgo {
            done.lane.must_say(Reason::PEER_NO_MEMLANE);
        }
        server.finish().must_stay_on_tcp(&[]);

        let server = EchoServer::python(stage, "thread", &[]);
        echo(stage, go("client"), server.port, LOAD, &[])
            .lane
            .must_stay_on_tcp(&[]);
        server.finish().must_stay_on_tcp(&[PEER_OUTSIDE, unaware]);
    });
}

#[test]
fn a_static_go_program_works_and_stays_on_tcp() {
    go_talks_to_go_and_to_python("go-static", false);
}

#[test]
fn a_go_program_that_loads_the_library_but_bypasses_it_stays_on_tcp() {
    go_talks_to_go_and_to_python("go-cgo", true);
}
