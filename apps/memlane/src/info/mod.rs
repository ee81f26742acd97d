//! `memlane info`: what this host offers, lane by lane, and for each no the reason and what to do. Probes that a lane has
//! of its own (`memlane_devmem::probe`, `memlane_block_frontends::…::probe`) are asked there; the others are here and nowhere else.

mod finding;
mod host;
mod lanes;
mod sockets;

use std::fmt::Write as _;

use serde::Serialize;

use crate::cli::color::{Color, Painter, Tone};
use crate::cli::exit::Exit;
use crate::cli::out;
use finding::Finding;
use host::Host;

/// Show what this host offers to each lane, and what to do about what is missing.
///
/// This changes nothing; where only trying can tell, it makes something small and removes it at once. With a LANE, exit
/// code 3 means that the lane cannot work here.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Show only these lanes
    #[arg(value_name = "LANE")]
    lanes: Vec<Lane>,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
    /// When to use colours
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    color: Color,
}

/// A lane, by its name on the command line.
#[derive(clap::ValueEnum, Serialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "kebab-case")]
enum Lane {
    /// TCP between processes of this host, through shared memory
    Sockets,
    /// Ethernet frames between processes, interfaces and virtual machines
    Packets,
    /// Payload of TCP streams in memory of devices
    Devmem,
    /// Volumes of one machine, used on another machine
    Blocks,
}

impl Lane {
    const ALL: [Lane; 4] = [Lane::Sockets, Lane::Packets, Lane::Devmem, Lane::Blocks];

    fn what(self) -> &'static str {
        match self {
            Lane::Sockets => "TCP between processes of this host, through memory: memlane run",
            Lane::Packets => "Ethernet frames between processes, interfaces, guests: memlane net",
            Lane::Devmem => "payload of TCP streams into device memory: memlane nc",
            Lane::Blocks => "volumes of one machine, used on another: memlane serve, memlane map",
        }
    }

    fn look(self) -> Report {
        let findings = match self {
            Lane::Sockets => sockets::look(),
            Lane::Packets => lanes::packets(),
            Lane::Devmem => lanes::devmem(),
            Lane::Blocks => lanes::blocks(),
        };
        Report {
            lane: self,
            what: self.what(),
            here: findings.iter().all(|one| one.here || one.optional),
            findings,
        }
    }
}

/// A lane, and what it uses.
#[derive(Serialize, Debug)]
struct Report {
    lane: Lane,
    what: &'static str,
    /// True if nothing that the lane needs is missing.
    here: bool,
    findings: Vec<Finding>,
}

#[derive(Serialize)]
struct Document {
    schema: &'static str,
    version: &'static str,
    host: Host,
    lanes: Vec<Report>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<Exit> {
    let all = Lane::ALL.into_iter();
    let asked = all.filter(|lane| args.lanes.is_empty() || args.lanes.contains(lane));
    let document = Document {
        schema: "memlane.info/1",
        version: env!("CARGO_PKG_VERSION"),
        host: Host::look(),
        lanes: asked.map(Lane::look).collect(),
    };
    let text = match args.json {
        true => out::json(&document)?,
        false => document.text(args.color.on_stdout()),
    };
    out::print(&text)?;
    let missing = document.lanes.iter().any(|lane| !lane.here);
    Ok(match missing && !args.lanes.is_empty() {
        true => Exit::Unsupported,
        false => Exit::Ok,
    })
}

impl Document {
    fn text(&self, painter: Painter) -> String {
        let mut text = self.host.text(self.version);
        for report in &self.lanes {
            text.push('\n');
            report.text(&mut text, painter);
        }
        text
    }
}

/// Width of the columns of names and of yes or no.
const NAME: usize = 16;
const HERE: usize = 5;

impl Report {
    fn text(&self, text: &mut String, painter: Painter) {
        let name = serde_json::to_value(self.lane).unwrap_or_default();
        let name = painter.paint(
            &pad(name.as_str().unwrap_or_default(), NAME + 2),
            Tone::Head,
        );
        let _ = writeln!(text, "{name}{}{}", verdict(self.here, painter), self.what);
        for finding in &self.findings {
            finding.text(text, painter);
        }
    }
}

impl Finding {
    fn text(&self, text: &mut String, painter: Painter) {
        let detail = self.detail.as_ref();
        let detail = detail.map_or_else(String::new, |detail| format!(" ({detail})"));
        let (name, here) = (pad(&self.name, NAME), verdict(self.here, painter));
        let _ = writeln!(text, "  {name}{here}{}{detail}", self.what);
        let margin = " ".repeat(2 + NAME + HERE);
        for lack in &self.lacks {
            let _ = writeln!(text, "{margin}- {}", lack.why);
            if let Some(to_do) = &lack.to_do {
                let _ = writeln!(text, "{margin}  {to_do}");
            }
        }
    }
}

fn verdict(here: bool, painter: Painter) -> String {
    let (word, tone) = match here {
        true => ("yes", Tone::Good),
        false => ("no", Tone::Bad),
    };
    painter.paint(word, tone) + &" ".repeat(HERE - word.len())
}

fn pad(text: &str, width: usize) -> String {
    format!("{text:<width$}") + if text.len() >= width { " " } else { "" }
}

#[cfg(test)]
mod tests {
    use super::finding::lack;
    use super::*;

    #[test]
    fn every_no_has_a_reason_and_what_must_be_here_decides() {
        for lane in Lane::ALL {
            let report = lane.look();
            assert!(!report.findings.is_empty(), "{lane:?}");
            for finding in &report.findings {
                assert_eq!(finding.here, finding.lacks.is_empty(), "{finding:?}");
                for lack in &finding.lacks {
                    assert!(lack.why.len() > 10, "{finding:?}");
                }
                assert!(finding.here || finding.optional || !report.here);
            }
        }
    }

    #[test]
    fn a_no_is_shown_with_its_reason_and_what_to_do() {
        let lacking = Finding::new("x", "something", Err(lack("it is not", "make it")));
        let mut text = String::new();
        lacking.text(&mut text, Color::Never.on_stdout());
        let margin = " ".repeat(23);
        let name = format!("  {:<16}no   something", "x");
        assert_eq!(
            text,
            format!("{name}\n{margin}- it is not\n{margin}  make it\n")
        );
        let mut painted = String::new();
        lacking.text(&mut painted, Color::Always.on_stdout());
        assert!(
            painted.contains("\x1b[31mno\x1b[0m   something"),
            "{painted}"
        );
    }
}
