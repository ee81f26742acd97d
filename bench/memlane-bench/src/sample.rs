//! The one schema of all suites: a head, then one figure of one round in each line, as JSON.
//!
//! ```text
//! {"schema":"memlane.bench/1","suite":"blocks","rounds":2, … ,"machine":{ … }}
//! {"suite":"blocks","row":"seqread","system":"nbdkit","metric":"rate","unit":"req/s","round":0,"value":5120.0}
//! {"row":"seqread","system":"qsd","round":null,"why":"not installed: …"}
//! ```

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context as _, bail, ensure};
use serde::{Deserialize, Serialize};

/// `schema` of a head. Fields may be added under that name; any other change takes another name.
pub(crate) const SCHEMA: &str = "memlane.bench/1";
/// A file that is larger is none of ours: a full run of any suite is below 2 MB.
const LARGEST: usize = 64 << 20;

/// The first line.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Head {
    pub(crate) schema: String,
    pub(crate) suite: String,
    /// Seconds since 1970; 0 if it is not known.
    pub(crate) created_unix: u64,
    pub(crate) command: Vec<String>,
    pub(crate) quick: bool,
    /// Of a run of the rows that a short run leaves out.
    #[serde(default)]
    pub(crate) rest: bool,
    /// Of a run beside a thread that computed on one of the CPUs.
    #[serde(default)]
    pub(crate) stranger: bool,
    pub(crate) rounds: usize,
    /// Rounds that rows had besides, if the first ones lay on both sides of an aim.
    #[serde(default)]
    pub(crate) more_rounds: usize,
    /// The length of each measurement.
    pub(crate) seconds: f64,
    /// What else the suite was told: the size of a volume, the congestion control.
    #[serde(default)]
    pub(crate) settings: BTreeMap<String, String>,
    pub(crate) machine: Machine,
    /// What a reader must know of this run.
    #[serde(default)]
    pub(crate) note: String,
}

/// Where a run was made. Printed above every table.
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

impl Head {
    /// How many rounds there were, for people.
    pub(crate) fn rounds_shown(&self) -> String {
        let (first, all) = (self.rounds, self.rounds + self.more_rounds);
        match self.more_rounds {
            0 => format!("{first} rounds"),
            _ => format!("{first} rounds ({all} where these lie on both sides of an aim)"),
        }
    }

    /// What `--only` named, if it was given.
    pub(crate) fn only(&self) -> Option<&str> {
        let mut words = self.command.iter();
        words
            .find_map(|word| word.strip_prefix("--only="))
            .or_else(|| {
                let at = self.command.iter().position(|word| word == "--only")?;
                self.command.get(at + 1).map(String::as_str)
            })
    }
}

impl Machine {
    /// Whether others use the machine so much that figures will suffer.
    pub(crate) fn is_busy(&self) -> bool {
        let first = self.load.split(' ').next().unwrap_or_default();
        first.parse().is_ok_and(|load: f64| load > 0.5)
    }
}

/// One figure of one system in one row and one round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sample {
    pub(crate) suite: String,
    pub(crate) row: String,
    pub(crate) system: String,
    pub(crate) metric: String,
    pub(crate) unit: String,
    /// From 0.
    pub(crate) round: usize,
    pub(crate) value: f64,
}

/// A figure that is not there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Absence {
    /// A row, or a part of a suite.
    pub(crate) row: String,
    pub(crate) system: String,
    /// From 0. Null: it cannot be measured here at all.
    pub(crate) round: Option<usize>,
    pub(crate) why: String,
}

/// All of one run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Run {
    #[serde(flatten)]
    pub(crate) head: Head,
    pub(crate) samples: Vec<Sample>,
    pub(crate) absent: Vec<Absence>,
}

/// Which way is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Better {
    Higher,
    Lower,
    /// It says how a figure came about and is not judged.
    Neither,
}

/// The metrics of all suites: id, for people, which way is good.
const METRICS: [(&str, &str, Better); 21] = [
    ("rate", "rate", Better::Higher),
    ("throughput", "throughput", Better::Higher),
    ("p50", "p50", Better::Lower),
    ("p99", "p99", Better::Lower),
    ("cpu", "CPU", Better::Lower),
    ("receiver_cpu", "receiver's CPU", Better::Lower),
    ("agent_cpu", "agent's CPU", Better::Lower),
    ("token", "time of a token", Better::Lower),
    ("gap", "slowest request", Better::Lower),
    ("silence", "no answer at all", Better::Lower),
    ("kernel_copies", "copies by the kernel", Better::Lower),
    ("program_copies", "copies by the programs", Better::Lower),
    ("ring_bytes", "bytes by memory", Better::Neither),
    ("tcp_bytes", "bytes by TCP", Better::Neither),
    ("wire_bytes", "bytes by the cable", Better::Neither),
    ("fallback", "connections on TCP", Better::Neither),
    ("fragments", "fragments", Better::Neither),
    ("fragment_tenth", "fragments: a tenth", Better::Neither),
    ("fragment_half", "fragments: half", Better::Neither),
    ("fragment_smallest", "fragments: smallest", Better::Neither),
    ("fragment_largest", "fragments: largest", Better::Neither),
];

/// What a metric is called, and which way is good. A part after a point names a kind: `fallback.PEER_NO_SMC`.
pub(crate) fn metric(id: &str) -> Option<(&'static str, Better)> {
    let plain = id.split('.').next().unwrap_or(id);
    let found = METRICS.iter().find(|(known, ..)| *known == plain);
    found.map(|(_, about, better)| (*about, *better))
}

impl Run {
    /// As lines.
    pub(crate) fn text(&self) -> anyhow::Result<String> {
        let mut out = serde_json::to_string(&self.head)? + "\n";
        for sample in &self.samples {
            let _ = writeln!(out, "{}", serde_json::to_string(sample)?);
        }
        for absence in &self.absent {
            let _ = writeln!(out, "{}", serde_json::to_string(absence)?);
        }
        Ok(out)
    }

    /// Reads lines.
    ///
    /// # Errors
    /// The text is not a run; the error names the line.
    pub(crate) fn parse(text: &str) -> anyhow::Result<Run> {
        ensure!(text.len() <= LARGEST, "larger than {LARGEST} bytes");
        let mut lines = text.lines().enumerate();
        let (_, first) = lines.next().context("the file is empty")?;
        let mut run = Run {
            head: head(first).context("line 1")?,
            samples: Vec::new(),
            absent: Vec::new(),
        };
        for (at, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
            run.take(line).with_context(|| format!("line {}", at + 1))?;
        }
        Ok(run)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// The file cannot be read, or is not a run.
    pub(crate) fn read(file: &std::path::Path) -> anyhow::Result<Run> {
        let told = || file.display().to_string();
        let bytes = std::fs::read(file).with_context(told)?;
        let text = String::from_utf8(bytes)
            .context("not a text")
            .with_context(told)?;
        Run::parse(&text).with_context(told)
    }

    fn take(&mut self, line: &str) -> anyhow::Result<()> {
        let value: serde_json::Value = serde_json::from_str(line).context("not JSON")?;
        if value.get("why").is_some() {
            self.absent.push(serde_json::from_value(value)?);
            return Ok(());
        }
        let sample: Sample = serde_json::from_value(value)?;
        let suite = &self.head.suite;
        ensure!(
            sample.suite == *suite,
            "a figure of {:?} in a run of {suite:?}",
            sample.suite
        );
        ensure!(
            metric(&sample.metric).is_some(),
            "unknown metric {:?}",
            sample.metric
        );
        ensure!(
            sample.value.is_finite() && sample.value >= 0.0,
            "not a figure: {}",
            sample.value
        );
        ensure!(sample.round < 1_000_000, "round {}", sample.round);
        self.samples.push(sample);
        Ok(())
    }
}

fn head(line: &str) -> anyhow::Result<Head> {
    let value: serde_json::Value = serde_json::from_str(line).context("not JSON")?;
    match value.get("schema").and_then(|schema| schema.as_str()) {
        Some(SCHEMA) => Ok(serde_json::from_value(value)?),
        Some(other) => bail!("its schema is {other:?}, not {SCHEMA:?}"),
        None => bail!("no head: it has no \"schema\""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{machine, run};

    #[test]
    fn a_run_is_read_as_it_was_written() {
        let mut run = run(
            "blocks",
            &[("seqread", "fuse", "rate", "req/s", &[1.5, 2.5])],
        );
        run.absent.push(Absence {
            row: "seqread".into(),
            system: "qsd".into(),
            round: None,
            why: "on \"purpose\"".into(),
        });
        let text = run.text().expect("text");
        let again = Run::parse(&text).expect("a run");
        assert_eq!((&again.samples, &again.absent), (&run.samples, &run.absent));
        assert_eq!(again.text().expect("text"), text);
    }

    #[test]
    fn what_is_no_run_is_refused_with_its_line() {
        let good = run("blocks", &[("r", "s", "rate", "req/s", &[1.0])]);
        let good = good.text().expect("text");
        let with = |line: &str| format!("{good}{line}\n");
        let line = |change: (&str, &str)| good.lines().nth(1).unwrap().replace(change.0, change.1);
        for (text, told) in [
            (String::new(), "empty"),
            ("{}".into(), "no head"),
            ("\u{0}".into(), "line 1: not JSON"),
            (good.replace(SCHEMA, "memlane.bench/9"), "memlane.bench/9"),
            (with("{"), "line 3: not JSON"),
            (with("[]"), "line 3"),
            (
                with(&line(("\"blocks\"", "\"sockets\""))),
                "a figure of \"sockets\"",
            ),
            (with(&line(("\"rate\"", "\"beauty\""))), "unknown metric"),
            (with(&line(("1.0", "-1.0"))), "not a figure"),
            (with(&line(("1.0", "1e999"))), "line 3"),
            (with(&line(("\"round\":0", "\"round\":-1"))), "line 3"),
            (with(&line(("\"row\"", "\"rows\""))), "line 3"),
        ] {
            let error = Run::parse(&text).expect_err(told);
            assert!(format!("{error:#}").contains(told), "{told}: {error:#}");
        }
    }

    #[test]
    fn a_load_above_a_half_is_busy() {
        let mut machine = machine();
        machine.load = "0.20 1.00 1.00 1/90 7".to_owned();
        assert!(!machine.is_busy());
        machine.load = "1.84 0.10 0.10 1/96 29279".to_owned();
        assert!(machine.is_busy());
    }
}
