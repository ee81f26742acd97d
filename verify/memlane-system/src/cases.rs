//! The hard-case programs (`cases/*.c`), run in every mode and compared.
//!
//! A program is a family of cases, each playing both ends of a connection and
//! writing down what it saw. Plain TCP is the oracle: under memlane the
//! transcript must be the same, line by line.
//!
//! `MEMLANE_CASE=text` runs only the cases whose name contains the text.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use crate::harness::{self, Mode, Outcome};
use crate::musl;

/// Exceptions of a family's cases, each with its reason.
#[derive(Clone, Copy, Debug)]
pub enum Exception {
    /// The memory lane need not have carried a byte.
    NoLane {
        /// The case's name.
        case: &'static str,
        /// Why not.
        because: &'static str,
    },
    /// A known gap, which does not run under memlane. docs/limits.md must list it.
    Gap {
        /// The case's name.
        case: &'static str,
        /// What happens instead.
        because: &'static str,
    },
    /// One line may differ. docs/limits.md lists it, too.
    Limit {
        /// The case's name.
        case: &'static str,
        /// The line, as it is on plain TCP.
        plain: &'static str,
        /// The same line under memlane.
        memlane: &'static str,
        /// Why.
        because: &'static str,
    },
}

/// One way to run a case.
#[derive(Debug)]
struct Variant {
    name: &'static str,
    args: &'static [&'static str],
    fortified: bool,
    /// The connection is upgraded by the time the case proper begins.
    warm: bool,
}

const fn variant(name: &'static str, args: &'static [&'static str], warm: bool) -> Variant {
    Variant {
        name,
        args,
        fortified: false,
        warm,
    }
}

const THREAD: &str = "thread";
const BULK: &str = "bulk";
const VARIANTS: &[Variant] = &[
    variant("cold", &["--warm", "0"], false),
    variant("warm1", &["--warm", "1"], false),
    variant("warm20", &["--warm", "20"], true),
    variant("swapped", &["--warm", "20", "--swap"], true),
    variant(BULK, &["--warm", "bulk"], true),
    variant(THREAD, &["--warm", "20", "--thread"], true),
    Variant {
        name: "fortified",
        args: &["--warm", "20"],
        fortified: true,
        warm: true,
    },
];
const ONCE: &[Variant] = &[
    variant("once", &[], true),
    Variant {
        name: "fortified",
        args: &[],
        fortified: true,
        warm: true,
    },
];

/// The variants of cases in which time must pass.
const LONG: &[&str] = &["cold", "warm20", "once"];

/// A case as its program lists it.
#[derive(Debug)]
struct Case {
    name: String,
    root: bool,
    no_thread: bool,
    no_bulk: bool,
    once: bool,
    /// Time must pass in it, so it is played only in the variants of [`LONG`].
    long: bool,
    /// Warm variants must have used the lane.
    lane: bool,
}

impl Case {
    fn parse(line: &str) -> Case {
        let mut words = line.split(' ');
        let name = words.next().unwrap_or_default().to_owned();
        let flags: Vec<&str> = words.collect();
        let once = flags.contains(&"once");
        Case {
            name,
            root: flags.contains(&"root"),
            no_thread: flags.contains(&"no-thread"),
            no_bulk: flags.contains(&"no-bulk"),
            once,
            long: flags.contains(&"long"),
            lane: !once || flags.contains(&"lane"),
        }
    }

    fn variants(&self) -> impl Iterator<Item = &'static Variant> {
        let all = if self.once { ONCE } else { VARIANTS };
        let is_left_out = |variant: &&Variant| match variant.name {
            THREAD => self.no_thread,
            BULK => self.no_bulk,
            _ => false,
        };
        all.iter().filter(move |variant| {
            !is_left_out(variant) && (!self.long || LONG.contains(&variant.name))
        })
    }
}

/// The libc that each end of a case's connections is linked with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Libcs {
    /// The system's at both ends.
    System,
    /// musl's at both ends.
    Musl,
    /// musl's, and the system's in peers that are processes.
    MuslWithSystem,
    /// The system's, and musl's in peers that are processes.
    SystemWithMusl,
}

impl Libcs {
    /// The program of `family` that plays the case.
    fn program(self, family: &str, fortified: bool) -> PathBuf {
        match self {
            Libcs::System | Libcs::SystemWithMusl => program(family, fortified),
            Libcs::Musl | Libcs::MuslWithSystem => musl::case(family),
        }
    }

    /// The program that its peers run, if it is another.
    fn peer(self, family: &str) -> Option<PathBuf> {
        match self {
            Libcs::System | Libcs::Musl => None,
            Libcs::MuslWithSystem => Some(program(family, false)),
            Libcs::SystemWithMusl => Some(musl::case(family)),
        }
    }
}

/// Runs every case of `family` in every variant and mode.
///
/// # Panics
/// If one was not as on plain TCP, hung, or did not use the lane though it should have.
pub fn compare(family: &'static str, exceptions: &[Exception]) {
    compare_in(FamilyRun::of(family, exceptions));
}

/// Runs every case of `family` in mode `copy`, in these ways (variants) only.
///
/// # Panics
/// As [`compare`].
pub fn compare_copied(
    family: &'static str,
    ways: &'static [&'static str],
    exceptions: &[Exception],
) {
    let mut run = FamilyRun::of(family, exceptions);
    run.modes = &[Mode::Copy];
    run.ways = Some(ways);
    compare_in(run);
}

/// Runs every case of `family` with these libcs, with `--upgrade eager` and in these ways (variants) only. Cases that cannot
/// be played with a peer of another libc are left out. Does nothing where no program can be linked with musl.
///
/// # Panics
/// As [`compare`].
pub fn compare_libcs(
    family: &'static str,
    libcs: Libcs,
    ways: &'static [&'static str],
    exceptions: &[Exception],
) {
    if !musl::is_here() {
        return;
    }
    let mut run = FamilyRun::of(family, exceptions);
    run.libcs = libcs;
    run.modes = &[Mode::Eager];
    run.ways = Some(ways);
    compare_in(run);
}

fn compare_in(mut run: FamilyRun<'_>) {
    let (family, exceptions) = (run.family, run.exceptions);
    let filter = std::env::var("MEMLANE_CASE").unwrap_or_default();
    let cases = list(family);
    check_names(&cases, exceptions);
    for case in cases.iter().filter(|case| case.name.contains(&filter)) {
        run.case(case);
    }
    run.print_table();
    assert!(
        run.failures.is_empty(),
        "{} of family `{family}` failed:\n\n{}",
        run.failures.len(),
        run.failures.join("\n")
    );
}

/// Runs one case of `family` in one of its ways, both chosen by `pick`, plain
/// and in `mode`, and returns their names. For families without exceptions.
///
/// # Panics
/// If it was not as on plain TCP, hung, or did not use the lane though it should have.
pub fn compare_one(family: &'static str, pick: u64, mode: Mode) -> String {
    let mut run = FamilyRun::of(family, &[]);
    let mut cases = list(family);
    cases.retain(|case| !case.root || harness::is_root());
    let case = chosen(&cases, pick);
    let variants: Vec<_> = case.variants().collect();
    let variant = chosen(&variants, pick >> 32);
    let plain = run.play(case, variant, Mode::Plain);
    if !plain.is_ok() {
        run.fail(case, variant, Mode::Plain, &plain.report());
    } else if mode != Mode::Plain {
        let outcome = run.play(case, variant, mode);
        run.judge(case, variant, mode, &plain, &outcome);
    }
    assert!(run.failures.is_empty(), "{}", run.failures.join("\n"));
    format!("{family}/{}/{}", case.name, variant.name)
}

fn chosen<T>(list: &[T], pick: u64) -> &T {
    let len = u64::try_from(list.len()).expect("a short list");
    &list[usize::try_from(pick % len).expect("within the list")]
}

fn program(family: &str, fortified: bool) -> PathBuf {
    let suffix = if fortified { "-fortified" } else { "" };
    PathBuf::from(env!("OUT_DIR")).join(format!("{family}{suffix}"))
}

fn list(family: &str) -> Vec<Case> {
    let mut command = harness::command(Mode::Plain, program(family, false));
    command.arg("--list");
    let listed = harness::run(command, Duration::from_secs(10));
    assert!(listed.is_ok(), "{family} --list: {}", listed.report());
    listed.stdout.lines().map(Case::parse).collect()
}

/// An exception for a case that does not exist excuses nothing: it is a mistake.
fn check_names(cases: &[Case], exceptions: &[Exception]) {
    for exception in exceptions {
        let (Exception::NoLane { case, .. }
        | Exception::Limit { case, .. }
        | Exception::Gap { case, .. }) = exception;
        assert!(
            cases.iter().any(|known| known.name == *case),
            "exception for unknown case {case}"
        );
        let limits = include_str!("../../../docs/limits.md");
        assert!(
            !matches!(exception, Exception::Gap { .. }) || limits.contains(&format!("`{case}`")),
            "docs/limits.md does not list the gap {case}"
        );
    }
}

/// The exit code of a case that cannot be played with a peer of another build (common.h).
const NEEDS_OWN_PEER: i32 = 77;

/// Milliseconds by mode, and ring bytes, over all variants of a case.
struct Row {
    case: String,
    plain_ms: u128,
    under: Vec<(u128, u64)>,
    verdict: &'static str,
}

struct FamilyRun<'a> {
    family: &'static str,
    libcs: Libcs,
    modes: &'static [Mode],
    /// Only these variants.
    ways: Option<&'static [&'static str]>,
    exceptions: &'a [Exception],
    rows: Vec<Row>,
    failures: Vec<String>,
    hangs: u32,
}

impl<'a> FamilyRun<'a> {
    fn of(family: &'static str, exceptions: &'a [Exception]) -> FamilyRun<'a> {
        FamilyRun {
            family,
            libcs: Libcs::System,
            modes: &Mode::UNDER_MEMLANE,
            ways: None,
            exceptions,
            rows: Vec::new(),
            failures: Vec::new(),
            hangs: 0,
        }
    }

    fn case(&mut self, case: &Case) {
        let mut row = Row {
            case: case.name.clone(),
            plain_ms: 0,
            under: vec![(0, 0); self.modes.len()],
            verdict: "ok",
        };
        let failures_before = self.failures.len();
        if case.root && !harness::is_root() {
            row.verdict = "SKIPPED: needs root";
        } else {
            let hangs_before = self.hangs;
            let ways = self.ways;
            let wanted = |variant: &&Variant| ways.is_none_or(|ways| ways.contains(&variant.name));
            for variant in case.variants().filter(wanted) {
                self.variant(case, variant, &mut row);
                if self.hangs > hangs_before {
                    break; // the other variants would only take longer to say the same
                }
            }
        }
        if self.failures.len() > failures_before {
            row.verdict = "FAILED";
        }
        self.rows.push(row);
    }

    fn variant(&mut self, case: &Case, variant: &Variant, row: &mut Row) {
        const MOST_HANGS: u32 = 8;
        if self.hangs >= MOST_HANGS {
            self.failures
                .push(format!("{}: not run after {MOST_HANGS} hangs\n", case.name));
            return;
        }
        let plain = self.play(case, variant, Mode::Plain);
        row.plain_ms += plain.took.as_millis();
        if plain.status.code() == Some(NEEDS_OWN_PEER) && self.libcs.peer(self.family).is_some() {
            row.verdict = "left out: its peer must be the same program";
            return;
        }
        if !plain.is_ok() {
            self.fail(case, variant, Mode::Plain, &plain.report());
            return;
        }
        if harness::plain_only() {
            return;
        }
        let is_gap =
            |e: &Exception| matches!(e, Exception::Gap { case: name, .. } if *name == case.name);
        if self.exceptions.iter().any(is_gap) {
            row.verdict = "KNOWN GAP: see docs/limits.md";
            return;
        }
        for (mode, (ms, bytes)) in self.modes.iter().zip(&mut row.under) {
            let outcome = self.play(case, variant, *mode);
            *ms += outcome.took.as_millis();
            *bytes += ring_bytes(&outcome);
            self.judge(case, variant, *mode, &plain, &outcome);
        }
    }

    fn command_line(&self, case: &Case, variant: &Variant) -> String {
        let program = self.libcs.program(self.family, variant.fortified);
        let peer = self.libcs.peer(self.family);
        let peer = peer.map_or(String::new(), |peer| {
            format!("CASE_PEER={} ", peer.display())
        });
        format!(
            "{peer}{} {} {}",
            program.display(),
            case.name,
            variant.args.join(" ")
        )
    }

    fn play(&mut self, case: &Case, variant: &Variant, mode: Mode) -> Outcome {
        const CASE_SECONDS: u64 = 10;
        let program = self.libcs.program(self.family, variant.fortified);
        let mut command = harness::command(mode, program);
        command.arg(&case.name).args(variant.args);
        command.env("CASE_SECONDS", CASE_SECONDS.to_string());
        if let Some(peer) = self.libcs.peer(self.family) {
            command.env("CASE_PEER", peer);
        }
        // The program has its own time limit and then still prints its transcript.
        let outcome = harness::run(command, Duration::from_secs(CASE_SECONDS + 10));
        if outcome.hung || outcome.stdout.contains("HANG:") {
            self.hangs += 1;
        }
        outcome
    }

    fn judge(
        &mut self,
        case: &Case,
        variant: &Variant,
        mode: Mode,
        plain: &Outcome,
        got: &Outcome,
    ) {
        let forgiven = self.forgive(&case.name, &plain.stdout, &got.stdout);
        if !got.is_ok() || forgiven != plain.stdout {
            let text = format!(
                "{}\n{}--- stderr\n{}",
                got.ending(),
                difference(&plain.stdout, &forgiven),
                got.stderr
            );
            self.fail(case, variant, mode, &text);
        } else if variant.warm && case.lane && ring_bytes(got) == 0 && !self.may_lack_lane(case) {
            self.fail(
                case,
                variant,
                mode,
                "same transcript, but not a byte went by the memory lane\n",
            );
        }
    }

    fn may_lack_lane(&self, case: &Case) -> bool {
        let name = &case.name;
        self.exceptions
            .iter()
            .any(|e| matches!(e, Exception::NoLane { case, .. } if case == name))
    }

    /// `got`, with the lines that may differ replaced by those of plain TCP.
    fn forgive(&self, name: &str, plain: &str, got: &str) -> String {
        let mut text = String::with_capacity(got.len());
        let mut expected = plain.lines();
        for line in got.lines() {
            let original = expected.next().unwrap_or_default();
            let is_allowed = |exception: &Exception| {
                matches!(exception, Exception::Limit { case, plain, memlane, .. }
                    if *case == name && *plain == original && *memlane == line)
            };
            let allowed = self.exceptions.iter().any(is_allowed);
            text.push_str(if allowed { original } else { line });
            text.push('\n');
        }
        text
    }

    fn fail(&mut self, case: &Case, variant: &Variant, mode: Mode, text: &str) {
        let command = self.command_line(case, variant);
        let name = &case.name;
        self.failures.push(format!(
            "### {name} / {} / {}\n{command}\n{text}",
            variant.name,
            mode.name()
        ));
    }

    /// To the real standard error: also shown when the test passes.
    fn print_table(&self) {
        let mut text = String::new();
        let width = self
            .rows
            .iter()
            .map(|row| row.case.len())
            .max()
            .unwrap_or(0);
        let _ = write!(text, "{:width$} plain ms", self.family);
        for mode in self.modes.iter().map(|mode| mode.name()) {
            let _ = write!(
                text,
                " {:>9} {:>12}",
                format!("{mode} ms"),
                format!("{mode} ring")
            );
        }
        text.push('\n');
        for row in &self.rows {
            let _ = write!(text, "{:width$} {:8}", row.case, row.plain_ms);
            for (ms, bytes) in &row.under {
                let _ = write!(text, " {ms:9} {bytes:12}");
            }
            let _ = writeln!(text, "  {}", row.verdict);
        }
        if harness::plain_only() {
            let _ = writeln!(text, "NOT COMPARED with memlane: {}=1", harness::PLAIN_ONLY);
        }
        let _ = std::io::stderr().write_all(text.as_bytes());
    }
}

/// Sum of the last `lane tx_ring=… rx_ring=…` line of a case program.
fn ring_bytes(outcome: &Outcome) -> u64 {
    let lane = outcome
        .stderr
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix("lane "));
    let numbers = lane
        .unwrap_or_default()
        .split(' ')
        .filter_map(|word| word.split_once('='));
    numbers
        .filter_map(|(_, number)| number.parse::<u64>().ok())
        .sum()
}

/// Where two transcripts differ: `-` plain, `+` memlane.
fn difference(plain: &str, got: &str) -> String {
    let (plain, got): (Vec<_>, Vec<_>) = (plain.lines().collect(), got.lines().collect());
    let same = plain.iter().zip(&got).take_while(|(a, b)| a == b).count();
    let tail = plain[same..].iter().rev().zip(got[same..].iter().rev());
    let same_tail = tail.take_while(|(a, b)| a == b).count();
    let mut text = String::new();
    let parts = [
        (' ', &plain[..same]),
        ('-', &plain[same..plain.len() - same_tail]),
        ('+', &got[same..got.len() - same_tail]),
        (' ', &plain[plain.len() - same_tail..]),
    ];
    for (mark, lines) in parts {
        for line in lines {
            let _ = writeln!(text, "{mark} {line}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_shows_only_the_lines_that_part() {
        assert_eq!(difference("a\nb\nc\n", "a\nx\nc\n"), "  a\n- b\n+ x\n  c\n");
        assert_eq!(difference("a\n", "a\n"), "  a\n");
        assert_eq!(difference("a\nb\n", "a\n"), "  a\n- b\n");
    }

    #[test]
    fn a_limit_excuses_its_own_line_and_no_other() {
        let limit = Exception::Limit {
            case: "kill",
            plain: "[A] end=ECONNRESET",
            memlane: "[A] end=EOF",
            because: "",
        };
        let limits = [limit];
        let run = FamilyRun::of("closing", &limits);
        let plain = "[A] x\n[A] end=ECONNRESET\n";
        assert_eq!(run.forgive("kill", plain, "[A] x\n[A] end=EOF\n"), plain);
        assert_ne!(run.forgive("kill", plain, "[A] y\n[A] end=EOF\n"), plain);
        assert_ne!(run.forgive("other", plain, "[A] x\n[A] end=EOF\n"), plain);
        assert_ne!(run.forgive("kill", plain, "[A] x\n"), plain);
    }
}
