//! Many worlds that must hold, and two that must fail.
//!
//! `MEMLANE_SEED=n cargo test -p memlane-sim --test worlds` runs only the world of that seed and prints what happens.
//! `MEMLANE_WORLDS=n` sets how many worlds to run.

use memlane_sim::oracle::Violation;
use memlane_sim::report::Report;
use memlane_sim::world::{Options, run};
use memlane_transport::engine::server::Safety;

const WORLDS: u64 = 3000;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn seed() -> Option<u64> {
    number("MEMLANE_SEED")
}

#[test]
fn in_thousands_of_worlds_each_block_is_a_register_and_nothing_is_executed_twice() {
    let mut sum = Report::default();
    let worlds = number("MEMLANE_WORLDS").unwrap_or(WORLDS);
    let seeds = seed().map_or(0..worlds, |seed| seed..seed + 1);
    for seed in seeds {
        let trace = self::seed().is_some();
        let options = Options {
            trace,
            ..Options::default()
        };
        match run(seed, options) {
            Ok(report) => sum.add(&report),
            Err(violation) => panic!(
                "seed {seed}: {violation:?}\nagain: MEMLANE_SEED={seed} cargo test -p memlane-sim --test worlds"
            ),
        }
    }
    if seed().is_none() {
        println!("{worlds} worlds: {sum:?}");
        // Worlds in which nothing happens show nothing.
        let rare = [
            sum.failed,
            sum.failed_over,
            sum.silent,
            sum.restarts,
            sum.kills,
            sum.joined,
            sum.answered,
            sum.settled,
            sum.fenced,
            sum.reserved,
        ];
        assert!(rare.iter().all(|count| *count > worlds / 100), "{sum:?}");
        assert!(sum.done > worlds * 50, "{sum:?}");
    }
}

#[test]
fn a_client_that_was_stopped_does_not_take_its_own_silence_for_the_servers() {
    let mut sum = Report::default();
    for seed in seed().map_or(0..300, |seed| seed..seed + 1) {
        let options = Options {
            stops: true,
            trace: self::seed().is_some(),
            ..Options::default()
        };
        match run(seed, options) {
            Ok(report) => {
                assert_eq!(report.silent, 0, "seed {seed}: {report:?}");
                sum.add(&report);
            }
            Err(violation) => panic!("seed {seed}: {violation:?}"),
        }
    }
    println!("{sum:?}");
    assert!(seed().is_some() || sum.done > 300 * 10, "{sum:?}");
}

/// The first seed whose world goes wrong in this way.
fn caught(safety: Safety, how: fn(&Violation) -> bool) -> Option<u64> {
    let options = Options {
        safety,
        ..Options::default()
    };
    (0..WORLDS).find(|seed| run(*seed, options).is_err_and(|violation| how(&violation)))
}

#[test]
fn canary_without_fences_a_late_first_copy_overwrites_newer_data_and_the_oracle_sees_it() {
    let safety = Safety {
        fencing: false,
        ..Safety::default()
    };
    let seed = caught(safety, |v| matches!(v, Violation::NotARegister(_)));
    println!("seed {seed:?}");
    assert!(seed.is_some(), "the oracle noticed nothing");
}

#[test]
fn canary_without_memory_a_replay_is_executed_twice_and_the_oracle_sees_it() {
    let safety = Safety {
        memory: false,
        ..Safety::default()
    };
    let seed = caught(safety, |v| matches!(v, Violation::ExecutedTwice(_)));
    println!("seed {seed:?}");
    assert!(seed.is_some(), "the oracle noticed nothing");
}
