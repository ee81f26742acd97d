//! What a suite tells of its figures: which tables and plots they make, and what should be reached. The suites fill it in;
//! how a table or a plot looks is the business of `render`, the same for all.

use serde::Serialize;

use crate::published::Published;

/// Who is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct System {
    /// For `--only`.
    pub(crate) id: &'static str,
    /// For people.
    pub(crate) about: &'static str,
    /// It is memlane's.
    pub(crate) ours: bool,
}

/// A system.
pub(crate) const fn system(id: &'static str, about: &'static str, ours: bool) -> System {
    System { id, about, ours }
}

/// What a ratio, or a value, should be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) enum Aim {
    AtLeast(f64),
    AtMost(f64),
}

impl Aim {
    /// Whether `value` reaches it.
    pub(crate) fn met(self, value: f64) -> bool {
        match self {
            Aim::AtLeast(bound) => value >= bound,
            Aim::AtMost(bound) => value <= bound,
        }
    }

    /// The number.
    pub(crate) fn bound(self) -> f64 {
        match self {
            Aim::AtLeast(bound) | Aim::AtMost(bound) => bound,
        }
    }

    /// In a table, without a verdict: `≥3`.
    pub(crate) fn bound_shown(self) -> String {
        let sign = match self {
            Aim::AtLeast(_) => '≥',
            Aim::AtMost(_) => '≤',
        };
        format!("{sign}{}", self.bound())
    }

    /// In a table, with the verdict: `≥3 +`.
    pub(crate) fn shown(self, met: Option<bool>) -> String {
        let verdict = match met {
            Some(true) => '+',
            Some(false) => '-',
            None => '?',
        };
        format!("{} {verdict}", self.bound_shown())
    }
}

/// What a figure is compared with, in the same round.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum To {
    /// Another system in the same row.
    System(&'static str),
    /// The best of some systems in the same row, under a name of its own.
    Best(&'static str, &'static [&'static str]),
    /// The one of some systems in the same row whose median is best, under a name of its own. The best of many in each
    /// round would mostly be the luckiest.
    BestMedian(&'static str, &'static [&'static str]),
    /// The same system in another row.
    Row(String),
    /// Nothing: it is the value itself that counts.
    Itself,
}

impl To {
    /// For people.
    pub(crate) fn name(&self) -> &str {
        match self {
            To::System(name) | To::Best(name, _) | To::BestMedian(name, _) => name,
            To::Row(row) => row,
            To::Itself => "",
        }
    }
}

/// What should be reached.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Goal {
    pub(crate) row: String,
    pub(crate) metric: &'static str,
    /// A system.
    pub(crate) of: &'static str,
    pub(crate) to: To,
    pub(crate) aim: Aim,
}

/// What `of` should reach in a row.
pub(crate) fn goal(
    row: impl Into<String>,
    metric: &'static str,
    of: &'static str,
    to: To,
    aim: Aim,
) -> Goal {
    Goal {
        row: row.into(),
        metric,
        of,
        to,
        aim,
    }
}

/// A row of a table.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    /// As it stands in the samples.
    pub(crate) id: String,
    /// For people.
    pub(crate) about: String,
    /// Where it lies on the axis of which plot, if it is a step of a sweep.
    pub(crate) sweep: Option<(String, f64)>,
}

/// A row that is no step of a sweep.
pub(crate) fn row(id: impl Into<String>, about: impl Into<String>) -> Row {
    Row {
        id: id.into(),
        about: about.into(),
        sweep: None,
    }
}

/// What stands beside what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Layout {
    /// Systems are columns; each metric of a row has a line.
    Systems,
    /// Metrics are columns; each system of a row has a line.
    Metrics,
}

/// A picture of some figures.
#[derive(Clone, Debug)]
pub(crate) enum Plot {
    /// A panel of bars for each row.
    Bars { metric: &'static str, to: To },
    /// A line for each system over the steps of each sweep. With `To::Row` it shows multiples of that row, and beside
    /// them what others published.
    Lines {
        metric: &'static str,
        across: &'static str,
        powers: bool,
        /// Values, or multiples of the first step of a sweep.
        scaling: bool,
    },
}

impl Plot {
    /// Bars of the values themselves.
    pub(crate) fn bars(metric: &'static str) -> Plot {
        let to = To::Itself;
        Plot::Bars { metric, to }
    }
}

/// A table, with the plots of its figures.
#[derive(Clone, Debug)]
pub(crate) struct View {
    /// Of links and files.
    pub(crate) id: &'static str,
    pub(crate) title: &'static str,
    pub(crate) layout: Layout,
    pub(crate) systems: Vec<System>,
    pub(crate) rows: Vec<Row>,
    pub(crate) metrics: &'static [&'static str],
    /// Ratios that have a column: of which system, to what, of which metric (any if it is empty).
    pub(crate) ratios: Vec<(&'static str, To, &'static str)>,
    pub(crate) plots: Vec<Plot>,
}

/// A goal counts only if the bytes went through memory, by the metrics `ring_bytes` and `tcp_bytes`.
#[derive(Clone, Debug)]
pub(crate) struct MemoryRule {
    /// Per cent of the bytes.
    pub(crate) least: f64,
    /// Whose bytes.
    pub(crate) systems: &'static [&'static str],
    /// Rows that are too short for it, or whose peer has no memory lane.
    pub(crate) not_asked: &'static [&'static str],
}

/// What a suite measures.
#[derive(Clone, Debug)]
pub(crate) struct Catalogue {
    pub(crate) suite: &'static str,
    /// In the order in which they are shown. A figure may be in several.
    pub(crate) views: Vec<View>,
    pub(crate) goals: Vec<Goal>,
    pub(crate) memory: Option<MemoryRule>,
    pub(crate) method: &'static [&'static str],
    pub(crate) published: Published,
}

impl Catalogue {
    /// Whether a figure that is not there is one of memlane's own.
    pub(crate) fn is_ours(&self, system: &str) -> bool {
        let mut systems = self.views.iter().flat_map(|view| &view.systems);
        systems.any(|known| known.id == system && known.ours)
    }
}
