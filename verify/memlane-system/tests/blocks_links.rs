//! Cables that break connections or stall for a moment, and how long requests went unanswered.

use std::time::Duration;

use memlane_system::blocks::fio::{Verdict, Verifying};
use memlane_system::blocks::machines::{Machines, Side};
use memlane_system::blocks::volumes::{Mapped, Serving};
use memlane_system::blocks::{has, skip};

const LIMIT: Duration = Duration::from_secs(90);
const SIZE: u64 = 64 << 20;

/// Machines with two cables, a server, and what it serves, if there can be such here.
fn scene(test: &str) -> Option<(Machines, Serving)> {
    if !has("fio") {
        skip(test, "no fio: apt-get install fio");
        return None;
    }
    // Not for want of a package: it cannot be demanded.
    let machines = Machines::new(test, 2);
    let machines = machines
        .map_err(|why| eprintln!("SKIPPED {test}: {why}"))
        .ok()?;
    Serving::make_volume(&machines, "disk", SIZE);
    let server = Serving::start(&machines, &[]);
    Some((machines, server))
}

fn pause(millis: u64) {
    std::thread::sleep(Duration::from_millis(millis));
}

fn tell(test: &str, verdict: &Verdict) {
    println!(
        "{test}: {} requests, the longest took {:.0} ms",
        verdict.requests,
        verdict.longest.as_secs_f64() * 1000.0
    );
}

#[test]
fn a_cable_whose_connections_are_reset_is_left_at_once_and_comes_back() {
    let test = "reset";
    let Some((machines, _server)) = scene(test) else {
        return;
    };
    let mapped = Mapped::new(&machines, "disk", &["--policy", "rr"]);
    mapped.wait_for_paths(2);
    let fio = Verifying::start(&mapped.uri(), 5, &[]);
    for cable in [0, 1] {
        pause(500);
        machines.reset(cable, Side::Server);
        mapped.wait_for_paths(1);
        pause(300);
        machines.stop_losing(Side::Server);
        mapped.wait_for_paths(2);
    }
    tell(test, &fio.must_find_nothing(LIMIT));
    assert!(mapped.failed_over() > 0, "{:#}", mapped.session());
    mapped.unmap();
}

#[test]
fn cables_that_stand_still_for_a_moment_cost_that_moment_and_nothing_else() {
    let test = "stall";
    let Some((machines, _server)) = scene(test) else {
        return;
    };
    let mapped = Mapped::new(&machines, "disk", &[]);
    mapped.wait_for_paths(2);
    let fio = Verifying::start(&mapped.uri(), 6, &[]);
    for side in [Side::Server, Side::Client, Side::Server, Side::Client] {
        pause(500);
        for cable in [0, 1] {
            machines.lose(cable, side, 100);
        }
        pause(250);
        machines.stop_losing(side);
    }
    let verdict = fio.must_find_nothing(LIMIT);
    tell(test, &verdict);
    assert!(verdict.longest >= Duration::from_millis(200), "{verdict:?}");
    mapped.wait_for_paths(2);
    mapped.unmap();
}
