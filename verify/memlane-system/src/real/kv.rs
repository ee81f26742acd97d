//! Starts redis and memcached.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use super::lane::LaneReport;
use super::net::{free_port, wait_listening};
use super::proc::{Done, Proc};
use super::stage::Stage;
use crate::harness::is_root;

/// redis-server.
#[derive(Debug)]
pub struct Redis {
    /// The process (and its child, during BGSAVE).
    pub proc: Proc,
    /// Where it listens.
    pub port: u16,
    /// Where it saves.
    pub dir: PathBuf,
}

impl Redis {
    /// Starts it in the stage's mode, empty, in a directory of its own.
    pub fn start(stage: &Stage) -> Redis {
        Redis::start_in(stage, stage.new_dir("redis"))
    }

    /// Starts it on what it finds in `dir`.
    pub fn start_in(stage: &Stage, dir: PathBuf) -> Redis {
        Redis::launch(stage, dir, free_port())
    }

    /// Starts it, empty, where another one has listened.
    pub fn start_at(stage: &Stage, port: u16) -> Redis {
        Redis::launch(stage, stage.new_dir("redis"), port)
    }

    fn launch(stage: &Stage, dir: PathBuf, port: u16) -> Redis {
        let mut command = stage.command("redis-server");
        command.args([
            "--port",
            &port.to_string(),
            "--bind",
            stage.address(),
            "--save",
            "",
        ]);
        command.args([
            "--appendonly",
            "no",
            "--protected-mode",
            "no",
            "--daemonize",
            "no",
        ]);
        command
            .args(["--enable-debug-command", "local", "--dir"])
            .arg(&dir);
        let mut proc = stage.start("redis-server", command);
        let said = proc.stdout_file().to_owned();
        // It listens before it has loaded its dump.
        proc.wait_until("redis-server to be ready", Duration::from_secs(30), || {
            std::fs::read_to_string(&said).is_ok_and(|text| text.contains("Ready to accept"))
        });
        Redis { proc, port, dir }
    }

    /// redis-cli with these arguments, in the stage's mode.
    pub fn cli(&self, stage: &Stage, args: &[&str]) -> Command {
        let mut command = stage.command("redis-cli");
        command
            .args(["-h", stage.address(), "-p", &self.port.to_string()])
            .args(args);
        command
    }

    /// What redis-cli prints for one command.
    pub fn ask(&self, stage: &Stage, args: &[&str]) -> String {
        let mut command = self.cli(stage, &["-e"]);
        command.args(args);
        let done = stage.run("redis-cli", command, Duration::from_secs(60));
        done.stdout().trim_end_matches('\n').to_owned()
    }

    /// redis-benchmark with these arguments; its result lines.
    pub fn benchmark(&self, stage: &Stage, args: &[&str]) -> Done {
        let mut command = stage.command("redis-benchmark");
        command
            .args(["-h", stage.address(), "-p", &self.port.to_string(), "-q"])
            .args(args);
        stage.run("redis-benchmark", command, Duration::from_secs(120))
    }

    /// Ends it in good order and returns what its page said.
    pub fn finish(self) -> LaneReport {
        let lane = self.proc.lane();
        self.proc.stop().success();
        lane
    }
}

/// memcached with four worker threads.
#[derive(Debug)]
pub struct Memcached {
    /// The process.
    pub proc: Proc,
    /// Where it listens.
    pub port: u16,
}

impl Memcached {
    /// Starts it in the stage's mode.
    pub fn start(stage: &Stage) -> Memcached {
        let port = free_port();
        let mut command = stage.command("memcached");
        command.args([
            "-l",
            "127.0.0.1",
            "-p",
            &port.to_string(),
            "-t",
            "4",
            "-m",
            "256",
        ]);
        command.args(["-I", "2m"]);
        if is_root() {
            command.args(["-u", "nobody"]);
        }
        let proc = stage.start("memcached", command);
        wait_listening(port, "memcached");
        Memcached { proc, port }
    }

    /// Ends it and returns what its page said.
    pub fn finish(self) -> LaneReport {
        let lane = self.proc.lane();
        self.proc.stop().success();
        lane
    }
}
