//! The machine and the programs that figures were taken with.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use super::{proc, sys};
use crate::sample::Machine;

/// A program, and what makes it say its version.
pub(crate) type Asked = (&'static str, &'static [&'static str]);

/// Looks around, for the programs of a suite.
pub(crate) fn this_machine(programs: &[Asked]) -> Machine {
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
        let machine = this_machine(&[]);
        assert!(machine.kernel.contains('.') && machine.cores > 0);
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
