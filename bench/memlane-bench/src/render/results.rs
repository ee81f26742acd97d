//! `bench/RESULTS.md`: the recorded runs of all suites, one after the other.

use std::fmt::Write as _;
use std::path::Path;

use super::aims;
use super::markdown::{markdown, measured};
use super::plots::capital;
use crate::catalogue::Catalogue;
use crate::figures::Figures;
use crate::sample::Run;

const HEAD: &str = "# Results

<!-- Made by `memlane-bench render --results bench/published`. Do not edit: change the runs or the renderer. -->

These are the recorded runs in [published/measured](published/measured). `./dev bench SUITE` makes a run of your own; what
each row measures is told in [Measuring](../docs/guides/bench.md). Compare ratios: absolute figures are those of one machine.
What is known of the causes of a missed aim is in [Missed aims](../docs/missed-aims.md).
";

const AIMS: &str = "
## Aims

Each aim that a run below has measured, by the median of its rounds; the runs list those that they missed. *No verdict*:
there was nothing to compare with, or memory carried too few of the bytes. *Behind*: what memlane is compared with was better.

| run | aims | reached | missed | behind | no verdict |
|---|---:|---:|---:|---:|---:|
";

/// What a suite's other runs are named and titled: one of the rows that the first left out, one of the same rows on
/// another machine, one beside somebody who computes.
const OTHERS: [(&str, &str); 3] = [
    ("rest", "other rows"),
    ("another", "another machine"),
    ("stranger", "one of the CPUs taken by a stranger"),
];

/// The whole file: what became of the aims, then a run of each suite, and its other runs, if there are any.
///
/// # Errors
/// A run cannot be read.
pub(crate) fn of(folder: &Path, catalogues: &[Catalogue]) -> anyhow::Result<String> {
    let (mut aims, mut sections) = (AIMS.to_owned(), String::new());
    for catalogue in catalogues {
        let suite = catalogue.suite;
        let name = capital(suite);
        let run = Run::read(&folder.join("measured").join(format!("{suite}.jsonl")))?;
        let figures = Figures::new(&run, catalogue);
        let _ = write!(sections, "\n## {name}\n\n{}", markdown(&figures));
        aims.push_str(&counted(&name, &figures));
        for (file, title) in OTHERS {
            let other = folder
                .join("measured")
                .join(format!("{suite}-{file}.jsonl"));
            if other.is_file() {
                let title = format!("{name}: {title}");
                let run = Run::read(&other)?;
                let figures = Figures::new(&run, catalogue);
                let _ = write!(sections, "\n### {title}\n\n{}", measured(&figures));
                aims.push_str(&counted(&title, &figures));
            }
        }
    }
    Ok(format!("{HEAD}{aims}{sections}"))
}

/// A line of the table of aims, for the run under `title`.
fn counted(title: &str, figures: &Figures<'_>) -> String {
    let aims::Counts {
        reached,
        missed,
        undecided,
        behind,
    } = aims::counts(figures);
    let all = reached + missed + undecided;
    let anchor = anchor(title);
    format!("| [{title}](#{anchor}) | {all} | {reached} | {missed} | {behind} | {undecided} |\n")
}

/// What a heading of a Markdown page is linked by.
fn anchor(title: &str) -> String {
    let kept = title.chars().filter(|c| c.is_alphanumeric() || *c == ' ');
    kept.collect::<String>().to_lowercase().replace(' ', "-")
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
