//! The settings of `run`: flags, and the environment variables that the library reads.

use std::ffi::OsString;

use clap::Args;

use memlane_socket::config::DOMAIN_LEN;

use crate::cli::values::size;

const RING_MIN: u64 = 16 * 1024;
const RING_MAX: u64 = 64 * 1024 * 1024;
const EIDS_MAX: usize = 8;
const EID_LEN: usize = 32;
const SPIN_MAX_US: u32 = 1_000_000;

/// Settings of the library. A setting without a flag keeps the value that the environment gives it.
#[derive(Args, Debug, Default, Clone)]
pub(crate) struct Options {
    /// Size of each ring, a power of two from 16K to 64M [default: 4M; 256K beyond 64 connections with a process]
    #[arg(long, value_name = "SIZE", value_parser = ring)]
    pub(crate) ring: Option<u64>,
    /// Longest time to spin before a sleep, in microseconds [default: auto]
    #[arg(long, value_name = "auto|USEC|off", value_parser = spin)]
    pub(crate) spin: Option<String>,
    /// When to move a connection to shared memory: after 8 exchanges or 64 KiB (auto), at once (eager), or never (off)
    #[arg(long, value_name = "auto|eager|off", value_parser = ["auto", "eager", "off"], hide_possible_values = true)]
    pub(crate) upgrade: Option<String>,
    /// How to send: write into the receiver's memory (nocopy), or copy there from a buffer of the sender (copy)
    #[arg(long, value_name = "copy|nocopy", value_parser = ["copy", "nocopy"], hide_possible_values = true)]
    pub(crate) mode: Option<String>,
    /// Which programs may share memory with this one: all, or only those of the same user
    #[arg(long, value_name = "any|same-uid", value_parser = ["any", "same-uid"], hide_possible_values = true)]
    pub(crate) peer: Option<String>,
    /// Share memory only with programs that have one of these ids too; repeat for up to 8 ids
    #[arg(long, value_name = "NAME", value_parser = eid)]
    pub(crate) eid: Vec<String>,
    /// Directory of the agent that introduces this program to those of other network namespaces [default:
    /// /run/memlane/default, if an agent is there]
    #[arg(long, value_name = "DIR|off", value_parser = domain)]
    pub(crate) domain: Option<String>,
    /// Where people look for it: that is a flag of the agent
    #[arg(long, value_name = "ivshmem:PATH", hide = true)]
    pub(crate) device: Option<String>,
    /// Print a summary to stderr when the program ends
    #[arg(long)]
    pub(crate) stats_on_exit: bool,
}

impl Options {
    /// The environment variables for the flags that were given.
    pub(crate) fn variables(&self) -> Result<Vec<(&'static str, String)>, String> {
        if self.eid.len() > EIDS_MAX {
            return Err(format!("--eid may be repeated {EIDS_MAX} times at most"));
        }
        if let Some(device) = &self.device {
            return Err(format!(
                "the agent of this machine shares memory with others, and programs need no flag for it: memlane agent --device {device}"
            ));
        }
        let eids = (!self.eid.is_empty()).then(|| self.eid.join(","));
        let all = [
            ("MEMLANE_RING", self.ring.map(|bytes| bytes.to_string())),
            ("MEMLANE_SPIN", self.spin.clone()),
            ("MEMLANE_UPGRADE", self.upgrade.clone()),
            ("MEMLANE_MODE", self.mode.clone()),
            ("MEMLANE_PEER", self.peer.clone()),
            ("MEMLANE_EID", eids),
            ("MEMLANE_DOMAIN", self.domain.clone()),
            (
                "MEMLANE_STATS_ON_EXIT",
                self.stats_on_exit.then(|| "1".to_owned()),
            ),
        ];
        let given = all
            .into_iter()
            .filter_map(|(key, value)| Some((key, value?)));
        Ok(given.collect())
    }
}

/// What is wrong with the value of a `MEMLANE_*` variable. The library itself says nothing and uses the default.
pub(crate) fn complaint(key: &str, value: &str) -> Option<String> {
    let one_of = |allowed: &[&str]| match allowed.contains(&value) {
        true => Ok(()),
        false => Err(format!("expected one of {}", allowed.join(", "))),
    };
    let verdict = match key {
        "MEMLANE_RING" => value
            .parse()
            .map_err(|_| "expected a number of bytes".to_owned())
            .and_then(ring_fits)
            .map(drop),
        "MEMLANE_SPIN" => spin(value).map(drop),
        "MEMLANE_UPGRADE" => one_of(&["auto", "eager", "off"]),
        "MEMLANE_MODE" => one_of(&["copy", "nocopy"]),
        "MEMLANE_PEER" => one_of(&["any", "same-uid"]),
        "MEMLANE_EID" => eids(value),
        "MEMLANE_DOMAIN" => domain(value).map(drop),
        _ => Ok(()),
    };
    let why = verdict.err()?;
    Some(format!("{key}={value} is ignored: {why}"))
}

/// Sets a variable in the environment of the command.
pub(crate) fn apply(environment: &mut Vec<(OsString, OsString)>, key: &str, value: OsString) {
    environment.retain(|(k, _)| k != key);
    environment.push((key.into(), value));
}

fn ring(text: &str) -> Result<u64, String> {
    ring_fits(size(text)?)
}

fn ring_fits(bytes: u64) -> Result<u64, String> {
    match bytes.is_power_of_two() && (RING_MIN..=RING_MAX).contains(&bytes) {
        true => Ok(bytes),
        false => Err("expected a power of two from 16K to 64M".to_owned()),
    }
}

fn spin(text: &str) -> Result<String, String> {
    let number = text.parse::<u32>().is_ok_and(|us| us <= SPIN_MAX_US);
    match text == "auto" || text == "off" || (number && text.as_bytes()[0].is_ascii_digit()) {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "auto, off or microseconds up to {SPIN_MAX_US} are wanted"
        )),
    }
}

fn eid(text: &str) -> Result<String, String> {
    let name = text.to_ascii_uppercase();
    let fits = (1..=EID_LEN).contains(&name.len());
    match fits
        && name
            .bytes()
            .all(|b| matches!(b, b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-'))
    {
        true => Ok(name),
        false => Err(format!(
            "up to {EID_LEN} letters, digits, dots and hyphens are wanted"
        )),
    }
}

fn domain(text: &str) -> Result<String, String> {
    match text == "off" || (text.starts_with('/') && text.len() <= DOMAIN_LEN) {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "off or an absolute path of at most {DOMAIN_LEN} bytes is wanted"
        )),
    }
}

fn eids(list: &str) -> Result<(), String> {
    let names = || list.split(',').filter(|name| !name.is_empty());
    if names().count() > EIDS_MAX {
        return Err(format!("at most {EIDS_MAX} names are wanted"));
    }
    names().try_for_each(|name| eid(name).map(drop))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ring_sizes_are_powers_of_two_within_bounds() {
        for (text, bytes) in [
            ("16384", 16384),
            ("64k", 65536),
            ("256KiB", 262_144),
            ("64M", 67_108_864),
        ] {
            assert_eq!(ring(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "k",
            "8K",
            "100000",
            "128M",
            "1G",
            "-1",
            "0",
            "18446744073709551616",
            "99999999999999999M",
        ] {
            assert!(ring(text).is_err(), "{text}");
        }
    }

    #[test]
    fn spin_is_a_word_or_a_number() {
        for text in ["auto", "off", "0", "50", "1000000"] {
            assert_eq!(spin(text).as_deref(), Ok(text));
        }
        for text in ["", "on", "-1", "+5", "1.5", "1000001"] {
            assert!(spin(text).is_err(), "{text}");
        }
    }

    #[test]
    fn only_what_was_given_becomes_a_variable() {
        assert_eq!(Options::default().variables(), Ok(vec![]));
        let options = Options {
            ring: Some(65536),
            eid: vec!["A".into(), "B.C".into()],
            stats_on_exit: true,
            ..Options::default()
        };
        let expected = [
            ("MEMLANE_RING", "65536"),
            ("MEMLANE_EID", "A,B.C"),
            ("MEMLANE_STATS_ON_EXIT", "1"),
        ];
        assert_eq!(
            options.variables(),
            Ok(expected.map(|(k, v)| (k, v.to_owned())).to_vec())
        );
        let many = Options {
            eid: vec!["A".into(); 9],
            ..Options::default()
        };
        assert!(many.variables().is_err());
    }

    #[test]
    fn who_looks_for_memory_of_other_machines_here_is_told_of_the_agent() {
        let options = Options {
            device: Some("ivshmem:auto".into()),
            ..Options::default()
        };
        let told = options.variables().unwrap_err();
        assert!(
            told.ends_with("memlane agent --device ivshmem:auto"),
            "{told}"
        );
    }

    #[test]
    fn a_variable_that_the_library_would_ignore_is_told() {
        for (key, value) in [
            ("MEMLANE_RING", "64K"),
            ("MEMLANE_RING", "100000"),
            ("MEMLANE_SPIN", "maybe"),
            ("MEMLANE_UPGRADE", "yes"),
            ("MEMLANE_MODE", "zerocopy"),
            ("MEMLANE_PEER", "root"),
            ("MEMLANE_EID", "a b"),
            ("MEMLANE_EID", "A,B,C,D,E,F,G,H,I"),
        ] {
            assert!(complaint(key, value).is_some(), "{key}={value}");
        }
        for (key, value) in [
            ("MEMLANE_RING", "65536"),
            ("MEMLANE_SPIN", "20"),
            ("MEMLANE_UPGRADE", "eager"),
            ("MEMLANE_MODE", "nocopy"),
            ("MEMLANE_PEER", "any"),
            ("MEMLANE_EID", "A,,b-1.C"),
            ("OTHER", "x"),
        ] {
            assert_eq!(complaint(key, value), None, "{key}={value}");
        }
    }
}
