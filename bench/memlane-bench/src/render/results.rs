//! `bench/RESULTS.md`: the recorded runs of all suites, one after the other.

use std::fmt::Write as _;
use std::path::Path;

use super::figures::Figures;
use super::markdown;
use super::plots::capital;
use crate::sample::Run;
use crate::suites::{ALL, catalogue};

const HEAD: &str = "# Results

<!-- Made by `memlane-bench render --results bench/published`. Do not edit: change the runs or the renderer. -->

These are the recorded runs in [published/measured](published/measured). `./dev bench SUITE` makes a run of your own; what
each row measures is told in [Measuring](../docs/guides/bench.md). Compare ratios: absolute figures are those of one machine.
";

/// The whole file.
///
/// # Errors
/// A run cannot be read.
pub(crate) fn of(folder: &Path) -> anyhow::Result<String> {
    let mut out = HEAD.to_owned();
    for suite in ALL {
        let file = folder.join("measured").join(format!("{suite}.jsonl"));
        let run = Run::read(&file)?;
        let catalogue = catalogue(suite).expect("it is one of them");
        let _ = write!(out, "\n## {}\n\n", capital(suite));
        out.push_str(&markdown(&Figures::new(&run, &catalogue)));
        // Markdown, with links as they are seen from RESULTS.md.
        let remarks = file.with_extension("txt");
        if let Ok(remarks) = std::fs::read_to_string(remarks) {
            let _ = write!(out, "\n{remarks}");
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_file_in_the_tree_is_what_render_makes_of_the_recorded_runs() {
        let bench = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let made = super::of(&bench.join("published")).expect("the recorded runs");
        let there = std::fs::read_to_string(bench.join("RESULTS.md")).expect("RESULTS.md");
        let how = "memlane-bench render --results bench/published > bench/RESULTS.md";
        assert!(made == there, "RESULTS.md is old: {how}");
    }
}
