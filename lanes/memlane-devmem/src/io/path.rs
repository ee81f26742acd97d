//! The ways for payload into a region, by name, and which of them is taken.

use core::fmt;
use std::str::FromStr;

/// How payload gets into the region.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Path {
    /// The interface writes to the device: no copy by the CPU.
    Kernel,
    /// A process of this host writes into the region: one copy, the sender's.
    Lane,
    /// The interface writes to memory that io_uring hands out: no copy by the CPU.
    Zcrx,
    /// The kernel writes into the mapped region: one copy.
    Mapped,
    /// By memory in between: two copies.
    Staged,
}

/// Every path, the best first: its name, as `--require` has it, and what it is.
const TABLE: &[(Path, &str, &str)] = &[
    (
        Path::Kernel,
        "kernel",
        "device-memory TCP: the interface writes to the device",
    ),
    (
        Path::Lane,
        "lane",
        "a process of this host writes into the region: one copy, the sender's",
    ),
    (
        Path::Zcrx,
        "zcrx",
        "io_uring's zero-copy receive: the interface writes to the region",
    ),
    (
        Path::Mapped,
        "mapped",
        "recv into the mapped region: one copy, the kernel's",
    ),
    (
        Path::Staged,
        "staged",
        "recv into host memory, then a copy to the device",
    ),
];

impl Path {
    /// All that there are, the best first.
    pub const ALL: [Path; TABLE.len()] = {
        let mut all = [Path::Staged; TABLE.len()];
        let mut n = 0;
        while n < all.len() {
            all[n] = TABLE[n].0;
            n += 1;
        }
        all
    };

    fn row(self) -> (&'static str, &'static str) {
        let found = TABLE.iter().find(|row| row.0 == self);
        found.map_or(("?", "?"), |row| (row.1, row.2))
    }

    /// As `--require` has it.
    pub fn name(self) -> &'static str {
        self.row().0
    }

    /// What it is, in a few words.
    pub fn what(self) -> &'static str {
        self.row().1
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Path {
    type Err = String;

    fn from_str(text: &str) -> Result<Path, String> {
        let found = Path::ALL.into_iter().find(|path| path.name() == text);
        found.ok_or_else(|| {
            let names = Path::ALL.map(Path::name).join(", ");
            format!("a path is one of {names}")
        })
    }
}

/// A path that was passed over, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Passed {
    /// Which.
    pub path: Path,
    /// What speaks against it; whole sentences.
    pub lacks: Vec<String>,
}

/// Which path is taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Choice {
    /// This one.
    pub path: Path,
    /// Better ones that cannot be had.
    pub passed: Vec<Passed>,
}

/// The one that was required is not there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NoPath(pub Passed);

impl fmt::Display for NoPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "path {}: {}", self.0.path, self.0.lacks.join("; "))
    }
}

impl core::error::Error for NoPath {}

/// The best path that lacks nothing, or the one that is required.
///
/// # Errors
/// [`NoPath`]: what speaks against the one that is required, or against the last of all.
pub fn choose(
    require: Option<Path>,
    mut lacks: impl FnMut(Path) -> Vec<String>,
) -> Result<Choice, NoPath> {
    let mut passed = Vec::new();
    for path in Path::ALL {
        if require.is_some_and(|required| required != path) {
            continue;
        }
        let lacks = lacks(path);
        if lacks.is_empty() {
            return Ok(Choice { path, passed });
        }
        passed.push(Passed { path, lacks });
    }
    // There is one path at least, and each that was looked at was passed over.
    Err(NoPath(passed.pop().unwrap_or(Passed {
        path: Path::Staged,
        lacks: Vec::new(),
    })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_has_one_row_and_is_read_as_it_is_written() {
        for path in Path::ALL {
            assert_eq!(TABLE.iter().filter(|row| row.0 == path).count(), 1);
            assert_eq!(path.name().parse(), Ok(path));
            assert!(path.what().len() > 10);
        }
        let no = "warp".parse::<Path>().unwrap_err();
        assert!(no.contains("kernel") && no.contains("staged"), "{no}");
    }

    #[test]
    fn the_best_that_lacks_nothing_is_taken_and_the_better_ones_have_reasons() {
        let lacks = |path| match path {
            Path::Kernel => vec!["no such interface".to_owned()],
            _ => Vec::new(),
        };
        let kernel = Passed {
            path: Path::Kernel,
            lacks: vec!["no such interface".to_owned()],
        };
        let choice = choose(None, lacks).unwrap();
        assert!(choice.passed.contains(&kernel), "{choice:?}");
        assert_ne!(choice.path, Path::Kernel);
        let choice = choose(Some(Path::Staged), lacks).unwrap();
        assert_eq!((choice.path, choice.passed), (Path::Staged, Vec::new()));
        let refused = choose(Some(Path::Kernel), lacks);
        assert_eq!(refused, Err(NoPath(kernel)));
        let text = refused.unwrap_err().to_string();
        assert_eq!(text, "path kernel: no such interface");
        let none = choose(None, |_| vec!["no".to_owned()]).unwrap_err();
        assert_eq!(none.0.path, *Path::ALL.last().unwrap());
    }
}
