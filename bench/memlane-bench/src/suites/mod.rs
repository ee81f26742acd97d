//! The eight suites: what each measures, and its drivers.

pub(crate) mod blocks;
pub(crate) mod containers;
pub(crate) mod counted;
pub(crate) mod devmem;
pub(crate) mod guest;
pub(crate) mod kernels;
pub(crate) mod machines;
pub(crate) mod packets;
pub(crate) mod sockets;

use crate::catalogue::Catalogue;

/// What each suite shows, in the order of `bench/RESULTS.md`.
pub(crate) fn catalogues() -> [Catalogue; 8] {
    [
        sockets::catalogue::catalogue(),
        containers::catalogue::catalogue(),
        machines::catalogue::catalogue(),
        counted::catalogue::catalogue(),
        kernels::catalogue::catalogue(),
        blocks::catalogue::catalogue(),
        packets::catalogue::catalogue(),
        devmem::catalogue::catalogue(),
    ]
}

/// For tests: the suite of that name.
#[cfg(test)]
pub(crate) fn catalogue(suite: &str) -> Catalogue {
    let mut all = catalogues().into_iter();
    all.find(|one| one.suite == suite).expect("a suite")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::To;
    use std::collections::BTreeSet;

    #[test]
    fn goals_ratios_and_plots_name_rows_systems_and_metrics_that_exist() {
        for all in catalogues() {
            let rows: BTreeSet<&str> = all
                .views
                .iter()
                .flat_map(|v| &v.rows)
                .map(|r| r.id.as_str())
                .collect();
            let systems: BTreeSet<&str> = all
                .views
                .iter()
                .flat_map(|v| &v.systems)
                .map(|s| s.id)
                .collect();
            let known = |to: &To| match to {
                To::System(id) => systems.contains(id),
                To::Best(_, ids) | To::BestMedian(_, ids) => {
                    ids.iter().all(|id| systems.contains(id))
                }
                To::Row(row) => rows.contains(row.as_str()),
                To::Itself => true,
            };
            for goal in &all.goals {
                assert!(rows.contains(goal.row.as_str()), "{goal:?}");
                assert!(systems.contains(goal.of) && known(&goal.to), "{goal:?}");
                assert!(all.is_ours(goal.of), "{goal:?}");
                assert!(crate::sample::metric(goal.metric).is_some(), "{goal:?}");
            }
            for view in &all.views {
                assert!(
                    !view.rows.is_empty() && !view.systems.is_empty(),
                    "{}",
                    view.id
                );
                for metric in view.metrics {
                    assert!(crate::sample::metric(metric).is_some(), "{metric}");
                }
                for (of, to, _) in &view.ratios {
                    assert!(systems.contains(of) && known(to), "{of} {to:?}");
                }
            }
            assert!(!all.published.is_loose(), "{}", all.suite);
        }
    }
}
