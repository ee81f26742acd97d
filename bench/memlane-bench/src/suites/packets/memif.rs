//! Beside DPDK's testpmd, over memif: who sends and who receives is one or the other.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use super::pump::{Does, End, Seen};
use super::rows::{Outcome, Row, Way};
use super::table::{self, cpu};
use crate::runner::proc::{Job, appears, find_program};
use crate::runner::sys;
use crate::runner::turn::Bench;

const LIMIT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(20);
/// From the first frame to the measurement.
const WARM_UP: Duration = Duration::from_millis(300);

/// Why testpmd cannot be measured here, if so.
pub(super) fn lacks() -> Option<String> {
    let needed = [
        (TESTPMD_PROGRAM, "dpdk-dev librte-net-memif23"),
        ("stdbuf", "coreutils"),
    ];
    let absent = needed.iter().find(|(name, _)| find_program(name).is_none());
    absent.map(|(name, package)| format!("not installed: {name} (apt-get install {package})"))
}

const TESTPMD_PROGRAM: &str = "dpdk-testpmd";

/// One way, by one pair.
pub(super) fn measure(bench: &Bench, row: &Row, system: &str) -> anyhow::Result<Outcome> {
    // The client is the one that brings the memory, as the front is.
    let [sender, receiver] = match row.way {
        Way::Tx => [End::MemifClient, End::MemifServer],
        Way::Rx => [End::MemifServer, End::MemifClient],
    };
    match system {
        "lane" => table::measure(bench, row, "persistent").map(without_cpu),
        "memlane" => table::between(bench, row, [sender, receiver], &[]).map(without_cpu),
        "to-testpmd" => with_testpmd(bench, row, [Some(sender), None]),
        "from-testpmd" => with_testpmd(bench, row, [None, Some(receiver)]),
        _ => with_testpmd(bench, row, [None, None]),
    }
}

/// testpmd never sleeps, so that what it takes of the processor says nothing.
fn without_cpu(outcome: Outcome) -> Outcome {
    Outcome {
        cpu: None,
        ..outcome
    }
}

enum Half {
    Ours(Job),
    Theirs(Testpmd),
}

/// Which of both ends, who sends and who receives, are ours.
fn with_testpmd(bench: &Bench, row: &Row, ours: [Option<End>; 2]) -> anyhow::Result<Outcome> {
    let socket = bench.scratch.name("memif");
    let text = socket.to_str().context("the name of a temporary folder")?;
    let limit = LIMIT + Duration::from_secs_f64(bench.seconds);
    let start = |does: Does| -> anyhow::Result<Half> {
        let number = usize::from(does == Does::Receive);
        match ours[number] {
            Some(end) => {
                let mut command = table::command(bench, end, does, row, text);
                command.args((does == Does::Receive).then_some("--foreign"));
                Job::start(command, limit, &bench.scratch).map(Half::Ours)
            }
            None => {
                // The client of the pair sends in TX.
                let server = (row.way == Way::Tx) == (does == Does::Receive);
                Testpmd::start(bench, row, does, server, &socket).map(Half::Theirs)
            }
        }
    };
    // A client of DPDK's connects when it starts, and then only.
    let order = match row.way {
        Way::Tx => [Does::Receive, Does::Send],
        Way::Rx => [Does::Send, Does::Receive],
    };
    let first = start(order[0])?;
    ensure!(appears(&socket, LIMIT), "nobody listens at a memif socket");
    let second = start(order[1])?;
    let (mut send, receive) = match order[0] {
        Does::Send => (first, second),
        Does::Receive => (second, first),
    };
    if let Half::Theirs(testpmd) = &mut send {
        testpmd.say("start")?;
    }
    let per_second = match receive {
        Half::Ours(job) => job.told::<Seen>()?.per_second,
        Half::Theirs(mut testpmd) => testpmd.rate(bench.seconds)?,
    };
    Ok(Outcome {
        value: per_second,
        cpu: None,
    })
}

/// testpmd, told by lines what to do; killed when dropped.
struct Testpmd {
    child: Child,
    log: PathBuf,
}

impl Testpmd {
    fn start(
        bench: &Bench,
        row: &Row,
        does: Does,
        server: bool,
        socket: &Path,
    ) -> anyhow::Result<Testpmd> {
        let cpu = cpu(bench, does);
        let log = bench.scratch.name("testpmd");
        let out = std::fs::File::create(&log)?;
        let program = find_program(TESTPMD_PROGRAM).context("not installed: dpdk-testpmd")?;
        // Its lines go to a file, one by one.
        let mut command = Command::new(find_program("stdbuf").context("not installed: stdbuf")?);
        command.arg("-oL").arg(program);
        command.args(["--no-huge", "--no-pci", "--no-telemetry", "--no-shconf"]);
        // Two threads on one CPU: one waits for lines, the other one forwards.
        command.args(["-m", "128", "--lcores", &format!("(0,1)@({cpu})")]);
        let role = if server { "server" } else { "client" };
        command.arg(format!(
            "--vdev=net_memif0,role={role},socket={},socket-abstract=no",
            socket.display()
        ));
        let forward = match does {
            Does::Send => "txonly",
            Does::Receive => "rxonly",
        };
        command.args(["--", "--interactive", "--no-lsc-interrupt"]);
        command.arg(format!("--forward-mode={forward}"));
        command.arg(format!("--txpkts={}", row.bytes));
        command.arg(format!("--burst={}", row.burst));
        command.args(["--total-num-mbufs=8192", "--no-flush-rx"]);
        command.stdin(Stdio::piped());
        command.stdout(out.try_clone()?).stderr(out);
        sys::confine(&mut command, &[cpu]);
        command.process_group(0);
        let child = command.spawn().context("starting dpdk-testpmd")?;
        let mut testpmd = Testpmd { child, log };
        if does == Does::Receive {
            testpmd.say("start")?;
        }
        Ok(testpmd)
    }

    fn say(&mut self, line: &str) -> anyhow::Result<()> {
        let stdin = self.child.stdin.as_mut().context("testpmd's input")?;
        writeln!(stdin, "{line}").context("testpmd has gone")
    }

    /// Frames that come in a second, by its own count and clock.
    fn rate(&mut self, seconds: f64) -> anyhow::Result<f64> {
        let begin = Instant::now();
        while self.shown()?.packets == 0.0 {
            let log = std::fs::read_to_string(&self.log).unwrap_or_default();
            ensure!(begin.elapsed() < LIMIT, "no frame comes to testpmd: {log}");
            sleep(POLL);
        }
        sleep(WARM_UP);
        self.shown()?;
        // On a busy machine, its thread may not run for as long as that.
        let begin = Instant::now();
        loop {
            sleep(Duration::from_secs_f64(seconds));
            let per_second = self.shown()?.per_second;
            if per_second > 0.0 {
                return Ok(per_second);
            }
            ensure!(begin.elapsed() < LIMIT, "testpmd has counted nothing");
        }
    }

    /// Asks for its counts.
    fn shown(&mut self) -> anyhow::Result<Shown> {
        let before = blocks(&self.log).len();
        self.say("show port stats 0")?;
        let begin = Instant::now();
        loop {
            let all = blocks(&self.log);
            if let Some(last) = all.last().filter(|_| all.len() > before) {
                return Ok(*last);
            }
            ensure!(!sys::interrupted(), "interrupted");
            if let Some(status) = self.child.try_wait()? {
                anyhow::bail!("testpmd ended ({status})");
            }
            ensure!(begin.elapsed() < LIMIT, "testpmd does not answer");
            sleep(POLL / 10);
        }
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        // It keeps nothing that is worth an orderly end, and that would take a second.
        sys::signal_group(self.child.id(), libc::SIGKILL);
        let _ = self.child.wait();
    }
}

/// What `show port stats` says of a port.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Shown {
    packets: f64,
    /// Since it was asked before.
    per_second: f64,
}

fn blocks(log: &Path) -> Vec<Shown> {
    parse(&std::fs::read_to_string(log).unwrap_or_default())
}

fn parse(text: &str) -> Vec<Shown> {
    let number = |part: &str, name: &str| -> Option<f64> {
        let (_, rest) = part.split_once(name)?;
        rest.split_whitespace().next()?.parse().ok()
    };
    let parts = text.split("NIC statistics for port").skip(1);
    let shown = parts.filter_map(|part| {
        // The line of stars at the end: it is all there.
        let (part, _) = part.split_once("\n  #####")?;
        Some(Shown {
            packets: number(part, "RX-packets:")?,
            per_second: number(part, "Rx-pps:")?,
        })
    });
    shown.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHOWN: &str = "testpmd> show port stats 0\n\n\
        \x20 ######################## NIC statistics for port 0  ########################\n\
        \x20 RX-packets: 1234567    RX-missed: 0          RX-bytes:  79012288\n\
        \x20 RX-errors: 0\n\
        \x20 RX-nombuf:  0         \n\
        \x20 TX-packets: 0          TX-errors: 0          TX-bytes:  0\n\n\
        \x20 Throughput (since last show)\n\
        \x20 Rx-pps:      4321098          Rx-bps:   2212402176\n\
        \x20 Tx-pps:            0          Tx-bps:            0\n\
        \x20 ############################################################################\n\
        testpmd> ";

    #[test]
    fn what_testpmd_shows_is_read_when_all_of_it_is_there() {
        let all = parse(&format!("Configuring Port 0\n{SHOWN}{SHOWN}"));
        let expected = Shown {
            packets: 1_234_567.0,
            per_second: 4_321_098.0,
        };
        assert_eq!(all, [expected, expected]);
        // Half a number must not be taken for one.
        let half = SHOWN.split_once("4321").expect("the rate").0;
        assert_eq!(parse(&format!("{SHOWN}{half}43")), [expected]);
        assert_eq!(parse("testpmd> Bad arguments\n"), []);
    }
}
