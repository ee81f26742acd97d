//! What memlane should reach in a row, against what is beside it.

use super::rows::{OLDER, Part, Row, TESTPMD, VETH};
use crate::beside::Bound;
use crate::published::Aim;

const LEAST: fn(f64) -> Aim = Aim::AtLeast;

/// The aims of a row.
pub(super) fn aims(row: &Row) -> Vec<Bound> {
    let ours = "persistent";
    let mut aims = Vec::new();
    match row.part {
        Part::Table => {
            let single = row.queues == 1;
            if single && row.bytes == 64 && row.burst == 32 {
                aims.push((ours, "copy", LEAST(8.0)));
            }
            if single && row.bytes == 64 {
                aims.push((ours, "map", LEAST(50.0)));
            }
            if single && row.bytes == 1496 {
                aims.push((ours, "copy", LEAST(5.0)));
            }
            aims.push((ours, OLDER, LEAST(1.0)));
        }
        // A flood of datagrams shows how they are lost; that has no aim.
        Part::Bulk if row.flows == 0 => {}
        Part::Bulk => {
            aims.push((ours, VETH, LEAST(0.8)));
            aims.push((ours, OLDER, LEAST(1.0)));
        }
        Part::Memif if row.bytes == 64 => {
            let ours = ["to-testpmd", "from-testpmd", "memlane", "lane"];
            aims.extend(ours.map(|of| (of, TESTPMD, LEAST(1.0))));
        }
        Part::Memif => {}
    }
    aims
}

#[cfg(test)]
mod tests {
    use super::super::rows::rows;
    use super::*;
    use crate::beside::plan::{Part as _, Row as _};

    fn of(id: &str) -> Vec<Bound> {
        let all = rows(false);
        aims(all.iter().find(|row| row.id() == id).expect("a row"))
    }

    #[test]
    fn aims_are_those_of_the_issue() {
        for way in ["tx", "rx"] {
            let small = of(&format!("{way}-64-b32"));
            assert!(small.contains(&("persistent", "copy", LEAST(8.0))));
            assert!(small.contains(&("persistent", "map", LEAST(50.0))));
            assert!(of(&format!("{way}-64-b1")).contains(&("persistent", "map", LEAST(50.0))));
            assert!(of(&format!("{way}-1496-b1")).contains(&("persistent", "copy", LEAST(5.0))));
            assert!(of(&format!("tcp-{way}-1")).contains(&("persistent", VETH, LEAST(0.8))));
            assert_eq!(of(&format!("memif-{way}-64")).len(), 4);
            assert!(of(&format!("memif-{way}-1496")).is_empty());
        }
    }

    #[test]
    fn there_is_no_row_of_frames_or_of_tcp_in_which_persistent_may_be_worse_than_an_older_mode() {
        let all = rows(false);
        let lane = all
            .iter()
            .filter(|row| row.part != Part::Memif && row.flows > 0);
        for row in lane {
            assert!(
                aims(row).contains(&("persistent", OLDER, LEAST(1.0))),
                "{row:?}"
            );
        }
    }

    #[test]
    fn aims_name_systems_of_their_part() {
        for row in rows(false) {
            let known = |id: &str| row.part.systems().iter().any(|system| system.id == id);
            for (of, to, _) in aims(&row) {
                assert!(known(of) && (known(to) || to == OLDER), "{of} {to}");
            }
        }
    }
}
