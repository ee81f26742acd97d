//! All of a run as Markdown: what was run, the aims that it missed, the tables, the notes.

use std::fmt::Write as _;

use super::aims;
use super::tables;
use crate::figures::Figures;
use crate::sample::Run;

/// What stands above the tables: what was run, where.
pub(crate) fn facts(run: &Run) -> Vec<String> {
    let (head, machine) = (&run.head, &run.head.machine);
    let part = match (head.quick, head.rest) {
        (true, _) => " --quick",
        (false, true) => " --rest",
        (false, false) => "",
    };
    let settings = head.settings.iter();
    let settings: String = settings.map(|(key, is)| format!(", {key} {is}")).collect();
    let stranger = if head.stranger { " --stranger" } else { "" };
    let only = head.only().map(|names| format!(" --only {names}"));
    let only = only.unwrap_or_default();
    let versions = machine.versions.iter();
    let versions: Vec<String> = versions.map(|(name, is)| format!("{name} {is}")).collect();
    let rounds = head.rounds_shown();
    let mut facts = vec![
        format!(
            "memlane-bench run {}{part}{stranger}{only}: {rounds} × {} s{settings}",
            head.suite, head.seconds
        ),
        format!(
            "machine: {}, {} CPUs, {} MiB, Linux {}, TCP congestion control {}, load {}",
            machine.cpu,
            machine.cores,
            machine.memory_mib,
            machine.kernel,
            machine.congestion_control,
            machine.load
        ),
        format!("programs: {}", versions.join(", ")),
    ];
    facts.extend((!head.note.is_empty()).then(|| head.note.clone()));
    facts
}

/// What a run has measured, as Markdown, without what others have published and without notes on the method.
pub(crate) fn measured(figures: &Figures<'_>) -> String {
    let mut out = head(figures);
    for table in tables::measured(figures) {
        table.markdown(&mut out);
    }
    out
}

/// All of a run, as Markdown.
pub(crate) fn markdown(figures: &Figures<'_>) -> String {
    let mut out = head(figures);
    for table in tables::of(figures) {
        table.markdown(&mut out);
    }
    out.push('\n');
    for note in tables::notes(figures) {
        let _ = writeln!(out, "- {note}");
    }
    out
}

fn head(figures: &Figures<'_>) -> String {
    let facts = facts(figures.run);
    let mut out: String = facts.iter().map(|fact| format!("{fact}  \n")).collect();
    aims::missed(figures).markdown(&mut out);
    out
}
