//! Java: Selector (NIO) and blocking sockets.

use std::path::Path;
use std::process::Command;

use memlane_system::real::lang::{EchoServer, Load, echo, javac};
use memlane_system::real::{SHORT_LIVED, Stage, Story};

fn java(stage: &Stage, classes: &Path, role: &str) -> Command {
    let mut command = stage.command("java");
    command.args([
        "-Xmx256m",
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        "-cp",
    ]);
    command.arg(classes).args(["Echo", role]);
    command
}

fn java_pair(name: &str, server_role: &str, client_role: &str, load: Load) {
    let Some(story) = Story::new(name, &["java", "javac"]) else {
        return;
    };
    let classes = javac(&story, "Echo.java");
    story.in_each_mode(|stage| {
        let server = EchoServer::start(stage, java(stage, &classes, server_role), &[]);
        let client = java(stage, &classes, client_role);
        echo(stage, client, server.port, load, &[])
            .lane
            .must_use_ring(&[SHORT_LIVED]);
        server.finish().must_use_ring(&[SHORT_LIVED]);
    });
}

#[test]
fn a_selector_talks_to_a_selector() {
    let load = Load {
        connections: 50,
        rounds: 60,
        most: 60_000,
    };
    java_pair("java-nio", "nio-server", "nio-client", load);
}

#[test]
fn blocking_sockets_talk_to_blocking_sockets() {
    let load = Load {
        connections: 10,
        rounds: 60,
        most: 400_000,
    };
    java_pair("java-blocking", "server", "client", load);
}
