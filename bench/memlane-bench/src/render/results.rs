//! `bench/RESULTS.md`: the recorded runs of all suites, one after the other.

use std::fmt::Write as _;
use std::path::Path;

use super::figures::Figures;
use super::markdown::{markdown, measured};
use super::plots::capital;
use crate::catalogue::Catalogue;
use crate::sample::Run;

const HEAD: &str = "# Results

<!-- Made by `memlane-bench render --results bench/published`. Do not edit: change the runs or the renderer. -->

These are the recorded runs in [published/measured](published/measured). `./dev bench SUITE` makes a run of your own; what
each row measures is told in [Measuring](../docs/guides/bench.md). Compare ratios: absolute figures are those of one machine.
What is known of the causes of a missed aim is in [Missed aims](../docs/missed-aims.md).
";

/// What a suite's other runs are named and titled: one of the rows that the first left out, one beside somebody who computes.
const OTHERS: [(&str, &str); 2] = [
    ("rest", "other rows"),
    ("stranger", "one of the CPUs taken by a stranger"),
];

/// The whole file: a run of each suite, and its other runs, if there are any.
///
/// # Errors
/// A run cannot be read.
pub(crate) fn of(folder: &Path, catalogues: &[Catalogue]) -> anyhow::Result<String> {
    let mut out = HEAD.to_owned();
    for catalogue in catalogues {
        let suite = catalogue.suite;
        let run = Run::read(&folder.join("measured").join(format!("{suite}.jsonl")))?;
        let _ = write!(out, "\n## {}\n\n", capital(suite));
        out.push_str(&markdown(&Figures::new(&run, catalogue)));
        for (name, title) in OTHERS {
            let other = folder
                .join("measured")
                .join(format!("{suite}-{name}.jsonl"));
            if other.is_file() {
                let run = Run::read(&other)?;
                let _ = write!(out, "\n### {}: {title}\n\n", capital(suite));
                out.push_str(&measured(&Figures::new(&run, catalogue)));
            }
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use crate::suites::catalogues;

    #[test]
    fn the_file_in_the_tree_is_what_render_makes_of_the_recorded_runs() {
        let bench = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let made = super::of(&bench.join("published"), &catalogues()).expect("the recorded runs");
        let there = std::fs::read_to_string(bench.join("RESULTS.md")).expect("RESULTS.md");
        let how = "memlane-bench render --results bench/published > bench/RESULTS.md";
        assert!(made == there, "RESULTS.md is old: {how}");
    }
}
