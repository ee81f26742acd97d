//! What is true of the host whatever the lane: for bug reports.

use std::fs;

use serde::Serialize;

use crate::cli::out::human;
use crate::run;

/// Facts, `None` where /proc does not tell.
#[derive(Serialize, Debug)]
pub(super) struct Host {
    kernel: String,
    machine: &'static str,
    /// CPUs that this process may use, and those that are there.
    cpus: usize,
    cpus_online: Option<u32>,
    memory_bytes: Option<u64>,
    memory_available_bytes: Option<u64>,
    huge_pages_free: u64,
    uid: u32,
    /// Effective capabilities, as /proc shows them.
    capabilities: Option<String>,
    /// 0: no seccomp filter, 2: one is in force.
    seccomp: Option<u32>,
    /// Of the Yama module: who may attach as a debugger. Looking at one's own processes is not affected.
    ptrace_scope: Option<u32>,
    open_files_limit: Option<u64>,
    /// `MEMLANE_…` variables that are set here.
    settings: Vec<Setting>,
}

#[derive(Serialize, Debug)]
struct Setting {
    variable: String,
    value: String,
    /// What is wrong with it; the library would use its default in silence.
    complaint: Option<String>,
}

impl Host {
    pub(super) fn look() -> Host {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let bytes = |name| {
            let kib = field(&memory, name)?.trim_end_matches(" kB").parse::<u64>();
            kib.ok()?.checked_mul(1024)
        };
        Host {
            kernel: kernel().unwrap_or_else(|| "?".into()),
            machine: std::env::consts::ARCH,
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            cpus_online: online_cpus(),
            memory_bytes: bytes("MemTotal"),
            memory_available_bytes: bytes("MemAvailable"),
            huge_pages_free: huge_pages(),
            uid: rustix::process::getuid().as_raw(),
            capabilities: field(&status, "CapEff").map(str::to_owned),
            seccomp: field(&status, "Seccomp").and_then(|text| text.parse().ok()),
            ptrace_scope: number("/proc/sys/kernel/yama/ptrace_scope"),
            open_files_limit: rustix::process::getrlimit(rustix::process::Resource::Nofile).current,
            settings: settings(),
        }
    }

    pub(super) fn text(&self, version: &str) -> String {
        let or_unknown = |value: Option<String>| value.unwrap_or_else(|| "?".into());
        let lines = [
            ("memlane", version.to_owned()),
            (
                "kernel",
                format!("Linux {} ({})", self.kernel, self.machine),
            ),
            (
                "CPUs",
                match self.cpus_online {
                    Some(online) => format!("{} of {online}", self.cpus),
                    None => self.cpus.to_string(),
                },
            ),
            (
                "memory",
                format!(
                    "{} of {} available, {} huge pages free",
                    or_unknown(self.memory_available_bytes.map(human)),
                    or_unknown(self.memory_bytes.map(human)),
                    self.huge_pages_free
                ),
            ),
            (
                "this process",
                format!(
                    "user {}, capabilities {}, seccomp {}, {} descriptors at most",
                    self.uid,
                    or_unknown(self.capabilities.clone()),
                    match self.seccomp {
                        Some(0) => "off",
                        Some(_) => "on",
                        None => "?",
                    },
                    self.open_files_limit
                        .map_or_else(|| "any number of".into(), |n| n.to_string())
                ),
            ),
        ];
        let lines = lines.map(|(name, value)| format!("{name:<18}{value}\n"));
        let settings = self.settings.iter().map(|setting| {
            let complaint = setting.complaint.as_ref();
            let complaint = complaint.map_or_else(String::new, |text| format!(" ({text})"));
            format!("{:<18}{}{complaint}\n", setting.variable, setting.value)
        });
        lines.concat() + &settings.collect::<String>()
    }
}

pub(super) fn kernel() -> Option<String> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
    Some(release.trim().to_owned())
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim)
}

fn number(file: &str) -> Option<u32> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// `0-3,8`: five.
fn online_cpus() -> Option<u32> {
    count(
        fs::read_to_string("/sys/devices/system/cpu/online")
            .ok()?
            .trim(),
    )
}

fn count(list: &str) -> Option<u32> {
    let mut sum = 0_u32;
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        sum = sum.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(sum)
}

fn huge_pages() -> u64 {
    let sizes = fs::read_dir("/sys/kernel/mm/hugepages")
        .into_iter()
        .flatten();
    let free = sizes.flatten().filter_map(|size| {
        let text = fs::read_to_string(size.path().join("free_hugepages")).ok()?;
        text.trim().parse::<u64>().ok()
    });
    free.sum()
}

fn settings() -> Vec<Setting> {
    let text = |name: std::ffi::OsString| name.to_string_lossy().into_owned();
    let all = std::env::vars_os().map(|(key, value)| (text(key), text(value)));
    let mut ours: Vec<Setting> = all
        .filter(|(key, _)| key.starts_with("MEMLANE_"))
        .map(|(variable, value)| Setting {
            complaint: run::options::complaint(&variable, &value),
            value: memlane_observe::printable(value.as_bytes()),
            variable,
        })
        .collect();
    ours.sort_by(|one, other| one.variable.cmp(&other.variable));
    ours
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_cpus_is_counted() {
        assert_eq!(count("0-3,8"), Some(5));
        assert_eq!(count("0"), Some(1));
        for broken in ["", "3-1", "x", "0-4294967295"] {
            assert_eq!(count(broken), None, "{broken}");
        }
    }
}
