//! sockperf with its own check of the data.

use std::path::Path;
use std::time::Duration;

use memlane_system::real::lane::Missed;
use memlane_system::real::{
    LaneReport, Proc, SHORT_LIVED, Stage, free_port, story, wait_listening,
};

struct Server {
    proc: Proc,
    port: String,
}

impl Server {
    fn start(stage: &Stage, args: &[&str]) -> Server {
        let port = free_port();
        let mut command = stage.command("sockperf");
        command
            .args([
                "server",
                "--tcp",
                "-i",
                "127.0.0.1",
                "-p",
                &port.to_string(),
            ])
            .args(args);
        let proc = stage.start("sockperf-server", command);
        wait_listening(port, "sockperf");
        Server {
            proc,
            port: port.to_string(),
        }
    }

    fn client(&self, stage: &Stage, verb: &str, args: &[&str]) -> String {
        let mut command = stage.command("sockperf");
        command
            .args([
                verb,
                "--tcp",
                "-i",
                "127.0.0.1",
                "-p",
                &self.port,
                "-t",
                "1",
            ])
            .args(args);
        let done = stage.run("sockperf-client", command, Duration::from_secs(60));
        let text = done.stdout();
        for bad in ["ERROR", "orrupt", "data integrity test failed"] {
            assert!(!text.contains(bad), "{text}");
        }
        done.lane.must_use_ring(&[SHORT_LIVED]);
        text
    }

    /// sockperf ends by SIGTERM in its own way; what it said must hold no complaint.
    fn finish(self) -> LaneReport {
        let lane = self.proc.lane();
        let done = self.proc.stop();
        let text = done.stdout() + &done.stderr();
        assert!(
            !text.contains("ERROR") && !text.contains("orrupt"),
            "{text}"
        );
        lane
    }
}

fn must_lose_nothing(text: &str) {
    // It leaves out what it measured while it began and ended: on a full machine, all.
    if text.contains("No valid observations found") {
        Missed::report(text.to_owned());
    }
    let all = "# dropped messages = 0; # duplicated messages = 0; # out-of-order messages = 0";
    assert!(text.contains(all), "{text}");
}

#[test]
fn sockperf_ping_pong_keeps_every_byte() {
    story("sockperf-pp", &["sockperf"], |stage| {
        let server = Server::start(stage, &[]);
        // Limited: at full speed the memory lane exceeds what sockperf can count.
        let fixed = ["-m", "14", "--mps", "20000", "--data-integrity"];
        must_lose_nothing(&server.client(stage, "ping-pong", &fixed));
        let mixed = [
            "-m",
            "14000",
            "-r",
            "13900",
            "--mps",
            "10000",
            "--data-integrity",
        ];
        must_lose_nothing(&server.client(stage, "ping-pong", &mixed));
        server.finish().must_use_ring(&[SHORT_LIVED]);
    });
}

#[test]
fn sockperf_ping_pong_over_many_connections_in_one_wait() {
    story("sockperf-mux", &["sockperf"], |stage| {
        for mux in ["e", "p", "s"] {
            let list = stage.dir().join(format!("connections-{mux}"));
            let server = serve_list(stage, &list, mux);
            let mut command = stage.command("sockperf");
            command.args([
                "ping-pong",
                "-F",
                mux,
                "-t",
                "1",
                "-m",
                "200",
                "--mps",
                "10000",
            ]);
            command.args(["--data-integrity", "-f"]).arg(&list);
            let done = stage.run("sockperf-client", command, Duration::from_secs(60));
            must_lose_nothing(&done.stdout());
            // At this low rate both ends sleep between messages: TCP wakes them each time.
            done.lane.must_open_lane(&[SHORT_LIVED]);
            server.finish().must_open_lane(&[SHORT_LIVED]);
        }
    });
}

/// A server on eight ports, in one wait of the kind `mux` (epoll, poll, select).
fn serve_list(stage: &Stage, list: &Path, mux: &str) -> Server {
    let ports: Vec<u16> = (0..8).map(|_| free_port()).collect();
    let lines: String = ports
        .iter()
        .map(|port| format!("T:127.0.0.1:{port}\n"))
        .collect();
    std::fs::write(list, lines).expect("list of connections");
    let mut command = stage.command("sockperf");
    command.args(["server", "-F", mux, "-f"]).arg(list);
    let proc = stage.start("sockperf-server", command);
    for port in &ports {
        wait_listening(*port, "sockperf");
    }
    Server {
        proc,
        port: ports[0].to_string(),
    }
}

#[test]
fn sockperf_throughput_arrives_in_whole_messages() {
    story("sockperf-tp", &["sockperf"], |stage| {
        let server = Server::start(stage, &[]);
        for size in ["64000", "100"] {
            let text = server.client(stage, "throughput", &["-m", size]);
            assert!(text.contains("Message Rate"), "{text}");
        }
        server.finish().must_use_ring_for(1 << 20, &[SHORT_LIVED]);
    });
}

#[test]
fn sockperf_under_load_keeps_order() {
    story("sockperf-ul", &["sockperf"], |stage| {
        let server = Server::start(stage, &[]);
        let args = ["-m", "1000", "--mps", "20000", "--reply-every", "3"];
        must_lose_nothing(&server.client(stage, "under-load", &args));
        server.finish().must_use_ring(&[SHORT_LIVED]);
    });
}
