//! Cables that break connections or stall for a moment, and how long requests went unanswered.

use std::time::Duration;

use memlane_system::blocks::fio::Verifying;
use memlane_system::blocks::machines::Side;
use memlane_system::blocks::scene::{LIMIT, Scene, pause};

#[test]
fn a_cable_whose_connections_are_reset_is_left_at_once_and_comes_back() {
    let Some(scene) = Scene::new("reset", 2, &[]) else {
        return;
    };
    let machines = &scene.machines;
    let mapped = scene.map(&["--policy", "rr"]);
    let fio = Verifying::start(&mapped.uri(), 5, &[]);
    for cable in [0, 1] {
        pause(500);
        machines.reset(cable, Side::Server);
        mapped.wait_for_paths(1);
        pause(300);
        machines.stop_losing(Side::Server);
        mapped.wait_for_paths(2);
    }
    scene.report(&fio.must_find_nothing(LIMIT));
    assert!(mapped.failed_over() > 0, "{:#}", mapped.session());
    mapped.unmap();
}

#[test]
fn cables_that_stand_still_for_a_moment_cost_that_moment_and_nothing_else() {
    let Some(scene) = Scene::new("stall", 2, &[]) else {
        return;
    };
    let machines = &scene.machines;
    let mapped = scene.map(&[]);
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
    scene.report(&verdict);
    assert!(verdict.longest >= Duration::from_millis(200), "{verdict:?}");
    mapped.wait_for_paths(2);
    mapped.unmap();
}
