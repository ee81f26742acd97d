//! Links whose processes are killed and frozen repeatedly: traffic afterwards is correct, and the survivor holds no
//! more than before.

use std::time::Duration;

use memlane_system::packets::hostile::LIMIT;
use memlane_system::packets::hostile::victim::{LINK_OVER, Victim, all_good, own_memory};

/// The side that waits and the side that comes, as the command names them.
const LINKS: [[&str; 2]; 2] = [["back", "front"], ["memif?role=server", "memif"]];
const MODES: [&str; 3] = ["persistent", "map", "copy"];

/// Modes to try a link in: memif has none.
fn modes(link: [&str; 2]) -> Vec<Vec<&'static str>> {
    match link[0] {
        "back" => MODES.iter().map(|mode| vec!["--mode", *mode]).collect(),
        _ => vec![vec![]],
    }
}

/// Each link in each mode, side by side: most of the time they wait.
fn each(story: impl Fn([&str; 2], &[&str]) + Sync) {
    std::thread::scope(|s| {
        for link in LINKS {
            for mode in modes(link) {
                let story = &story;
                s.spawn(move || story(link, &mode));
            }
        }
    });
}

/// Terms are the front's to ask for.
fn terms<'a>(place: &str, mode: &'a [&'a str]) -> &'a [&'a str] {
    if place == "front" { mode } else { &[] }
}

/// Kills the other side again and again; the one that lives takes frames, or makes them.
fn killed(here: &str, there: &str, mode: &[&str], [lives, dies]: [&str; 2]) {
    const ROUNDS: usize = 6;
    let label = format!("{here} {mode:?} {lives}");
    let mut victim = Victim::new("kills", lives, here, terms(here, mode));
    let before = victim.idle();
    for round in 1..=ROUNDS {
        let other = victim.honest_running(dies, there, terms(there, mode));
        victim.running.wait_until_said("linked: ", round);
        std::thread::sleep(Duration::from_millis(20));
        other.signal("KILL");
        drop(other);
        victim.running.wait_until_said(LINK_OVER, round);
        victim.holds_again(&before);
    }
    if lives != "sink:" {
        victim.end();
        return;
    }
    victim.takes_from("gen:count=2000", there, terms(there, mode));
    let verdict = &victim.end()["ends"][0]["verdict"];
    assert!(
        verdict["good"].as_u64() > Some(2000),
        "{label}: {verdict:#}"
    );
    // What lay in the rings of the dead is taken, or lost whole: never in part, nor out of order.
    for wrong in ["missing", "late", "twice", "changed", "strange"] {
        assert_eq!(verdict[wrong], 0, "{label}: {verdict:#}");
    }
}

#[test]
fn who_is_killed_again_and_again_under_traffic_leaves_nothing_behind_at_the_other_side() {
    each(|[a, b], mode| {
        for (here, there) in [(a, b), (b, a)] {
            killed(here, there, mode, ["sink:", "gen:size=64-9000"]);
            killed(here, there, mode, ["gen:size=64-9000", "sink:"]);
        }
    });
}

fn frozen(sends: &str, receives: &str, mode: &[&str], sender: bool) {
    const FRAMES: u64 = 15_000;
    let label = format!("{sends} to {receives} {mode:?}, the sender is frozen: {sender}");
    let mut sink = Victim::new("frozen", "sink:", receives, terms(receives, mode));
    let plan = format!("gen:size=64-9000,count={FRAMES}");
    let generator = sink.honest_running(&plan, sends, terms(sends, mode));
    sink.says("linked: ");
    let (stops, lives) = match sender {
        true => (&generator, sink.running.pid()),
        false => (&sink.running, generator.pid()),
    };
    stops.signal("STOP");
    std::thread::sleep(Duration::from_millis(100));
    let before = own_memory(lives);
    std::thread::sleep(Duration::from_millis(500));
    let grown = own_memory(lives).saturating_sub(before);
    assert!(grown < 1 << 20, "{label}: {grown} bytes more");
    stops.signal("CONT");
    let said = generator.finish(LIMIT);
    assert!(said.is_ok(), "{label}: {}", said.report());
    sink.says(LINK_OVER);
    all_good(&sink.end(), FRAMES);
}

#[test]
fn whichever_side_is_frozen_nothing_is_lost_and_nothing_grows() {
    each(|[a, b], mode| {
        for (sends, receives) in [(a, b), (b, a)] {
            frozen(sends, receives, mode, true);
            frozen(sends, receives, mode, false);
        }
    });
}
