//! The machine and the programs that figures were taken with.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use serde::{Deserialize, Serialize};

use super::{proc, sys};

/// Printed above every table.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Machine {
    /// `uname -r`.
    pub(crate) kernel: String,
    /// As /proc/cpuinfo says.
    pub(crate) cpu: String,
    /// CPUs that the bench may use.
    pub(crate) cores: usize,
    /// Memory in MiB.
    pub(crate) memory_mib: u64,
    /// TCP's congestion control: it shapes the TCP column, also on loopback.
    pub(crate) congestion_control: String,
    /// Load average when the bench began.
    pub(crate) load: String,
    /// Clock that Instant reads.
    pub(crate) clocksource: String,
    /// Programs measured, by name.
    pub(crate) versions: BTreeMap<String, String>,
}

impl Machine {
    /// Looks around, for the programs of a suite.
    pub(crate) fn of(suite: &str) -> Self {
        Machine::with(match suite {
            "sockets" => &SOCKETS,
            "blocks" => &BLOCKS,
            "packets" => &PACKETS,
            _ => &DEVMEM,
        })
    }

    fn with(programs: &[Asked]) -> Self {
        let line = |path: &str| {
            let text = fs::read_to_string(path).unwrap_or_default();
            text.lines().next().unwrap_or("?").trim().to_owned()
        };
        let field = |path: &str, name: &str| {
            let text = fs::read_to_string(path).unwrap_or_default();
            let found = text.lines().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                (key.trim() == name).then(|| value.trim().to_owned())
            });
            found.unwrap_or_else(|| "?".to_owned())
        };
        let memory = field("/proc/meminfo", "MemTotal");
        let kib: u64 = memory.trim_end_matches(" kB").parse().unwrap_or(0);
        Machine {
            kernel: line("/proc/sys/kernel/osrelease"),
            cpu: field("/proc/cpuinfo", "model name"),
            cores: sys::allowed_cpus().len(),
            memory_mib: kib / 1024,
            congestion_control: line("/proc/sys/net/ipv4/tcp_congestion_control"),
            load: line("/proc/loadavg"),
            clocksource: line("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            versions: versions(programs),
        }
    }

    /// For tests.
    #[cfg(test)]
    pub(crate) fn unknown() -> Self {
        Machine {
            kernel: "6.1".into(),
            cpu: "a <CPU>".into(),
            cores: 2,
            memory_mib: 1024,
            congestion_control: "cubic".into(),
            load: "0.00".into(),
            clocksource: "tsc".into(),
            versions: BTreeMap::new(),
        }
    }

    /// Whether others use the machine so much that figures will suffer.
    pub(crate) fn is_busy(&self) -> bool {
        let first = self.load.split(' ').next().unwrap_or_default();
        first.parse().is_ok_and(|load: f64| load > 0.5)
    }
}

/// A program, and what makes it say its version.
type Asked = (&'static str, &'static [&'static str]);

const SOCKETS: [Asked; 5] = [
    ("nginx", &["-v"]),
    ("wrk", &["-v"]),
    ("redis-server", &["--version"]),
    ("iperf3", &["--version"]),
    ("sockperf", &["--version"]),
];
const BLOCKS: [Asked; 4] = [
    ("fio", &["--version"]),
    ("nbdkit", &["--version"]),
    ("nbd-server", &["-V"]),
    ("qemu-storage-daemon", &["--version"]),
];
const PACKETS: [Asked; 2] = [
    ("iperf3", &["--version"]),
    // It begins nothing, as there is no such program to run.
    (
        "dpdk-testpmd",
        &[
            "-v",
            "--no-huge",
            "--no-pci",
            "--no-telemetry",
            "--no-shconf",
            "-m",
            "16",
            "--",
            "--help",
        ],
    ),
];
const DEVMEM: [Asked; 1] = [("python3", &["--version"])];

fn versions(asked: &[Asked]) -> BTreeMap<String, String> {
    let mut found = BTreeMap::from([("memlane".to_owned(), env!("CARGO_PKG_VERSION").to_owned())]);
    for &(name, args) in asked {
        let Some(path) = proc::find_program(name) else {
            continue;
        };
        // wrk exits 1 after printing its version; what counts is the text.
        if let Ok(output) = Command::new(path).args(args).output() {
            let text = [output.stdout, output.stderr].concat();
            let text = String::from_utf8_lossy(&text);
            let version = line_with_version(&text).and_then(version_in);
            found.insert(name.to_owned(), version.unwrap_or_else(|| "?".into()));
        }
    }
    found
}

/// The first one; DPDK has others before it.
fn line_with_version(text: &str) -> Option<&str> {
    let dpdk = text.lines().find(|line| line.contains("RTE Version"));
    dpdk.or_else(|| text.lines().next())
}

/// The first word that holds a number with a point in it.
fn version_in(line: &str) -> Option<String> {
    line.split([' ', ',', '/', '=', '\''])
        .map(|word| word.trim_start_matches("fio-").trim_start_matches('v'))
        .find(|word| word.starts_with(|first: char| first.is_ascii_digit()) && word.contains('.'))
        .map(str::to_owned)
}

/// TCP's congestion control, the same for all. Unless one is asked for, it is the kernel's own default where this kernel
/// has it (others pace, and what is compared would be measured by their pacing), else the machine's. `Err` is for the user.
pub(crate) fn congestion_control(asked: Option<&str>) -> Result<String, String> {
    let read = |name: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}"));
        text.unwrap_or_default().trim().to_owned()
    };
    let there = read("tcp_available_congestion_control");
    let has = |name: &str| there.split_whitespace().any(|known| known == name);
    match asked {
        Some(name) if has(name) => Ok(name.into()),
        Some(name) => Err(format!("--congestion {name}: this kernel has {there}")),
        None if has("cubic") => Ok("cubic".into()),
        None => Ok(read("tcp_congestion_control")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_the_tools_print() {
        let told = |line| version_in(line).expect("a version");
        assert_eq!(told("nginx version: nginx/1.22.1"), "1.22.1");
        assert_eq!(
            told("wrk debian/4.1.0-3+b2 [epoll] Copyright"),
            "4.1.0-3+b2"
        );
        assert_eq!(told("Redis server v=7.0.15 sha=00000000:0"), "7.0.15");
        assert_eq!(told("iperf 3.12 (cJSON 1.7.15)"), "3.12");
        assert_eq!(told("sockperf, version 3.7-no.git"), "3.7-no.git");
        assert_eq!(told("fio-3.33"), "3.33");
        assert_eq!(told("nbdkit 1.32.5"), "1.32.5");
        assert_eq!(told("This is nbd-server version 3.24"), "3.24");
        assert_eq!(
            told("qemu-storage-daemon version 7.2.22 (Debian 1:7.2)"),
            "7.2.22"
        );
        assert_eq!(version_in("no such thing"), None);
        let dpdk = "EAL: Detected NUMA nodes: 1\nEAL: RTE Version: 'DPDK 22.11.11'\n";
        let line = line_with_version(dpdk).expect("a line");
        assert_eq!(told(line), "22.11.11");
        assert_eq!(line_with_version("fio-3.33\nversion"), Some("fio-3.33"));
    }

    #[test]
    fn this_machine_has_a_kernel_and_a_core() {
        let machine = Machine::of("sockets");
        assert!(machine.kernel.contains('.') && machine.cores > 0);
    }

    #[test]
    fn a_load_above_a_half_is_busy() {
        let mut machine = Machine::of("sockets");
        machine.load = "0.20 1.00 1.00 1/90 7".to_owned();
        assert!(!machine.is_busy());
        machine.load = "1.84 0.10 0.10 1/96 29279".to_owned();
        assert!(machine.is_busy());
    }

    #[test]
    fn a_congestion_control_that_the_kernel_has_not_is_told_with_those_that_it_has() {
        let usual = congestion_control(None).expect("one of them");
        assert_eq!(congestion_control(Some(&usual)), Ok(usual.clone()));
        let error = congestion_control(Some("carrier-pigeon")).expect_err("none such");
        assert!(
            error.contains("carrier-pigeon") && error.contains(&usual),
            "{error}"
        );
    }
}
