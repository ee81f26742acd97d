//! What is measured of whom: volumes over one path and two, what a dead path costs, and the programs of `counted`.

use crate::catalogue::{System, system};
use crate::runner::plan;
use crate::suites::blocks::rows::{LARGE, Pattern, SMALL, SWEEP_DEPTH, Work, work};
use crate::suites::counted::rows as counted;
use crate::suites::sockets::works::{self, Side};

pub(super) const RNBD: System = system("rnbd", "mainline RNBD, rxe", false);
pub(super) const NVME_RDMA: System = system("nvme-rdma", "NVMe/RDMA, rxe", false);
pub(super) const NVME_TCP: System = system("nvme-tcp", "NVMe/TCP", false);
pub(super) const RDMA: System = system("memlane-rdma", "memlane, rxe", true);
pub(super) const UBLK: System = system("memlane-ublk", "memlane, rxe, ublk", true);
pub(super) const TCP: System = system("memlane-tcp", "memlane, TCP", true);

/// Who has volumes, from left to right.
pub(super) const VOLUMES: [System; 6] = [RNBD, NVME_RDMA, NVME_TCP, RDMA, UBLK, TCP];

/// Volumes over one path.
pub(super) const ONE_PATH: [Work; 6] = [
    work("randread-qd1", Pattern::Randread, [SMALL, 1, 1]),
    work("randread-qd32", Pattern::Randread, [SMALL, 32, 1]),
    work("seqread", Pattern::Read, [LARGE, 8, 1]),
    work("randwrite-qd1", Pattern::Randwrite, [SMALL, 1, 1]),
    work("randwrite-qd32", Pattern::Randwrite, [SMALL, 32, 1]),
    work("seqwrite", Pattern::Write, [LARGE, 8, 1]),
];
const JOBS: [u32; 3] = [1, 4, 16];
/// The same over two.
pub(super) const TWO_PATHS: [Work; 4] = [
    work("two-randread-qd32", Pattern::Randread, [SMALL, 32, 1]),
    work("two-seqread", Pattern::Read, [LARGE, 8, 1]),
    work("two-randwrite-qd32", Pattern::Randwrite, [SMALL, 32, 1]),
    work("two-seqwrite", Pattern::Write, [LARGE, 8, 1]),
];
const QUICK: [&str; 3] = ["randread-qd1", "randread-qd32", "randwrite-qd32"];

/// One of two paths loses all that is sent by it, and nobody is told.
pub(super) const GAP: &str = "gap-cut-2";
/// For people.
pub(super) const GAP_ABOUT: &str = "one of 2 paths falls silent";

/// Works of `counted` that are measured here, too: those of the tables that the kernel's SMC-D came with.
pub(super) fn works() -> &'static [works::Work] {
    &counted::WORKS[..counted::NOT_ALL_OUT]
}

/// More and more jobs on one volume.
pub(super) fn sweep() -> impl Iterator<Item = Work> {
    let patterns = [Pattern::Randread, Pattern::Randwrite].into_iter();
    patterns.flat_map(|pattern| JOBS.map(|jobs| work("", pattern, [SMALL, SWEEP_DEPTH, jobs])))
}

/// A part of the run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Part {
    /// Volumes over one path.
    OnePath,
    /// Over two.
    TwoPaths,
    /// One of two falls silent.
    Gap,
    /// One of [`works`], by its place.
    Sockets(usize),
}

impl Part {
    /// Paths between client and server of a volume.
    pub(super) fn paths(self) -> usize {
        match self {
            Part::OnePath | Part::Sockets(_) => 1,
            Part::TwoPaths | Part::Gap => 2,
        }
    }
}

impl plan::Part for Part {
    const ALL: &'static [Self] = &[
        Part::OnePath,
        Part::TwoPaths,
        Part::Gap,
        Part::Sockets(0),
        Part::Sockets(1),
        Part::Sockets(2),
        Part::Sockets(3),
        Part::Sockets(4),
    ];

    fn word(self) -> &'static str {
        match self {
            Part::OnePath => "volumes",
            Part::TwoPaths => "two-paths",
            Part::Gap => "gap",
            Part::Sockets(_) => "sockets",
        }
    }

    fn systems(self) -> Vec<System> {
        match self {
            Part::Sockets(_) => counted::COLUMNS.map(Side::system).to_vec(),
            _ => VOLUMES.to_vec(),
        }
    }

    /// A second of the guest takes about eight of ours, and a program has to start there, too.
    fn cost(self, seconds: f64) -> f64 {
        match self {
            Part::OnePath | Part::TwoPaths => seconds * 4.0 + 1.0,
            Part::Gap => 4.0,
            Part::Sockets(_) => seconds.ceil() * 8.0 + 2.0,
        }
    }

    fn joining(self) -> f64 {
        2.0
    }

    fn at_once(self) -> bool {
        true
    }
}

/// A row.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Row {
    Volume(Part, Work),
    Gap,
    Sockets(counted::Row),
}

impl plan::Row for Row {
    type Part = Part;

    fn all() -> Vec<Row> {
        let one = ONE_PATH.into_iter().chain(sweep());
        let one = one.map(|work| Row::Volume(Part::OnePath, work));
        let two = TWO_PATHS.map(|work| Row::Volume(Part::TwoPaths, work));
        let sockets = <counted::Row as plan::Row>::all().into_iter();
        let sockets = sockets.filter(|row| row.work < works().len());
        let volumes = one.chain(two).chain([Row::Gap]);
        volumes.chain(sockets.map(Row::Sockets)).collect()
    }

    fn is_quick(&self) -> bool {
        match self {
            Row::Volume(_, work) => QUICK.contains(&work.id().as_str()),
            Row::Gap => true,
            Row::Sockets(row) => row.is_quick(),
        }
    }

    fn part(&self) -> Part {
        match self {
            Row::Volume(part, _) => *part,
            Row::Gap => Part::Gap,
            Row::Sockets(row) => Part::Sockets(row.work),
        }
    }

    fn id(&self) -> String {
        match self {
            Row::Volume(_, work) => work.id(),
            Row::Gap => GAP.to_owned(),
            Row::Sockets(row) => row.id(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::plan::tests::{counts, planned};
    use super::plan::{Part as _, Row as _};
    use super::*;

    #[test]
    fn rows_have_names_of_their_own_and_each_part_has_some() {
        let rows = Row::all();
        for (index, row) in rows.iter().enumerate() {
            let twice = rows[..index].iter().any(|other| other.id() == row.id());
            assert!(!twice, "{}", row.id());
        }
        for part in Part::ALL {
            assert!(rows.iter().any(|row| row.part() == *part), "{part:?}");
        }
        assert_eq!(Part::ALL.len(), 3 + works().len());
    }

    #[test]
    fn names_narrow_what_they_name_and_nothing_else() {
        let of = |only: &[&str], quick| {
            let counts = counts(&planned::<Row>(only, quick));
            let some = counts.into_iter().filter(|(rows, _)| *rows > 0);
            some.collect::<Vec<_>>()
        };
        assert_eq!(of(&[], false)[..3], [(12, 6), (4, 6), (1, 6)]);
        assert_eq!(of(&["volumes", "rnbd", "memlane-rdma"], true), [(3, 2)]);
        assert_eq!(of(&["gap"], false), [(1, 6)]);
        let sockets = of(&["sockets"], false);
        assert_eq!(sockets.iter().map(|(rows, _)| rows).sum::<usize>(), 9);
        assert!(sockets.iter().all(|(_, systems)| *systems == 3));
    }

    #[test]
    fn requests_with_fixed_times_and_short_connections_are_left_to_the_suite_counted() {
        let left = |work: &works::Work| ["paced", "short"].contains(&work.group);
        let [here, rest] = [works(), &counted::WORKS[works().len()..]];
        assert!(!here.iter().any(left) && rest.iter().all(left));
    }
}
