//! Instructions that a program executes inside one function, by valgrind's callgrind.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::harness::{self, Outcome, TempDir};

/// Longest that one count may take.
const LIMIT: Duration = Duration::from_secs(200);

/// Where an instruction was executed.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    object: String,
    /// The function that has it in the object file.
    function: String,
    /// The source file that it was made from, which may be that of an inlined function.
    file: String,
}

/// Instructions, by where they were executed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Counts(BTreeMap<Place, u64>);

/// Runs `command`, whose program is valgrind without any argument, with `program` and its arguments, and counts what
/// functions that match `function` execute, callees included.
///
/// # Panics
/// If the program fails.
pub fn count(
    mut command: Command,
    function: &str,
    program: &Path,
    args: &[&str],
) -> (Counts, Outcome) {
    let dir = TempDir::new("callgrind");
    let file = dir.path().join("out");
    command
        .args(["--tool=callgrind", "--dump-instr=no", "--dump-line=yes"])
        .args(["--compress-strings=no", "--compress-pos=no"])
        .arg(format!("--toggle-collect={function}"))
        .arg(format!("--callgrind-out-file={}", file.display()))
        .arg(program)
        .args(args);
    let done = harness::run(command, LIMIT);
    assert!(done.is_ok(), "{args:?}: {}", done.report());
    let text = std::fs::read_to_string(&file).expect("what was counted");
    (Counts::parse(&text), done)
}

impl Counts {
    /// Reads callgrind's format, version 1, without compression of names and positions.
    fn parse(text: &str) -> Counts {
        let mut counts = Counts::default();
        let mut place = Place::default();
        let mut is_inclusive = false;
        for line in text.lines() {
            match line.split_once('=') {
                Some(("ob", name)) => place.object = name.into(),
                Some(("fn", name)) => place.function = name.into(),
                Some(("fl" | "fi" | "fe", name)) => place.file = name.into(),
                // The next line is what the callee executed, which is told where the callee is.
                Some(("calls", _)) => is_inclusive = true,
                _ => {
                    let own = line.split_once(' ').and_then(own_cost);
                    if let (Some(own), false) = (own, is_inclusive) {
                        *counts.0.entry(place.clone()).or_default() += own;
                    }
                    is_inclusive &= own.is_none();
                }
            }
        }
        counts
    }

    /// Instructions in object files and source files that `is_wanted` takes.
    pub fn of(&self, is_wanted: impl Fn(&str, &str) -> bool) -> u64 {
        let all = self.0.iter();
        let wanted = all.filter(|(place, _)| is_wanted(&place.object, &place.file));
        wanted.map(|(_, count)| count).sum()
    }

    /// The functions that execute most themselves, with instructions for each of `times` messages.
    pub fn most(&self, times: u64) -> String {
        let mut functions: BTreeMap<&str, u64> = BTreeMap::new();
        for (place, count) in &self.0 {
            *functions.entry(&place.function).or_default() += count;
        }
        let mut functions: Vec<_> = functions.into_iter().collect();
        functions.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let lines = functions.iter().take(12);
        let lines =
            lines.map(|(name, count)| format!("{:>10.1}  {name}\n", *count as f64 / times as f64));
        lines.collect()
    }
}

/// A line `POSITION COST`.
fn own_cost((position, cost): (&str, &str)) -> Option<u64> {
    position.parse::<u64>().ok()?;
    cost.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUT: &str = "version: 1\npositions: line\nevents: Ir\n\nob=/a/lib.so\nfl=/src/one.rs\nfn=one\n10 5\n\
        fi=/src/two.rs\n7 3\nfe=/src/one.rs\n12 1\ncob=/a/libc.so\ncfi=???\ncfn=memcpy\ncalls=2 0\n13 900\n14 2\n\n\
        ob=/a/libc.so\nfl=???\nfn=memcpy\n0 900\n\ntotals: 911\n";

    #[test]
    fn what_a_callee_executes_is_counted_once_where_the_callee_is() {
        let counts = Counts::parse(OUT);
        assert_eq!(counts.of(|_, _| true), 911);
        assert_eq!(counts.of(|object, _| object == "/a/lib.so"), 11);
        assert_eq!(counts.of(|_, file| file == "/src/two.rs"), 3);
        assert_eq!(counts.most(100), "       9.0  memcpy\n       0.1  one\n");
    }
}
