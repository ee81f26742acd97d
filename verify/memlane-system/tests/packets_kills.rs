//! Links whose processes are killed and frozen repeatedly: traffic afterwards is correct, and the survivor holds no
//! more than before.

use std::time::{Duration, Instant};

use liar::LIMIT;
use liar::victim::{Victim, all_good};
use memlane_system::real::held::Held;

mod liar;

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

fn count(victim: &Victim, what: &str) -> usize {
    victim.running.stderr().matches(what).count()
}

/// Waits until it has said so for the nth time.
fn says(victim: &mut Victim, what: &str, n: usize) {
    let end = Instant::now() + LIMIT;
    while count(victim, what) < n {
        let said = victim.running.stderr();
        assert!(victim.running.is_running(), "it ended: {said}");
        assert!(Instant::now() < end, "not {n} times {what}: {said}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// What it holds once that is no more than `before`, or after some time.
fn settled(victim: &Victim, before: &Held) -> [usize; 3] {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let held = victim.held();
        let enough = held.fds <= before.fds && held.memfds <= before.memfds;
        if enough && held.shared_maps <= before.shared_maps || Instant::now() > end {
            return [held.fds, held.memfds, held.shared_maps];
        }
        std::thread::sleep(Duration::from_millis(5));
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
    let mut before = None;
    for round in 1..=ROUNDS {
        let other = victim.honest_running(dies, there, terms(there, mode));
        says(&mut victim, "linked: ", round);
        std::thread::sleep(Duration::from_millis(20));
        other.signal("KILL");
        drop(other);
        says(&mut victim, "waiting for another", round);
        let Some(held): Option<Held> = before else {
            std::thread::sleep(Duration::from_millis(300));
            before = Some(victim.held());
            continue;
        };
        let now = settled(&victim, &held);
        let then = [held.fds, held.memfds, held.shared_maps];
        assert_eq!(now, then, "{label}, round {round}");
    }
    if lives != "sink:" {
        victim.end();
        return;
    }
    let said = victim.honest("gen:count=2000", there, terms(there, mode));
    assert!(said.is_ok(), "{label}: {}", said.report());
    says(&mut victim, "waiting for another", ROUNDS + 1);
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
    says(&mut sink, "linked: ", 1);
    let (stops, lives) = match sender {
        true => (&generator, sink.running.pid()),
        false => (&sink.running, generator.pid()),
    };
    stops.signal("STOP");
    std::thread::sleep(Duration::from_millis(100));
    let before = resident(lives);
    std::thread::sleep(Duration::from_millis(500));
    let grown = resident(lives).saturating_sub(before);
    assert!(grown < 1 << 20, "{label}: {grown} bytes more");
    stops.signal("CONT");
    let said = generator.finish(LIMIT);
    assert!(said.is_ok(), "{label}: {}", said.report());
    says(&mut sink, "waiting for another", 1);
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

/// Memory of its own that a process uses, bytes.
fn resident(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).expect("it lives");
    let pages: Vec<u64> = text
        .split(' ')
        .filter_map(|n| n.trim().parse().ok())
        .collect();
    (pages[1] - pages[2]) * 4096
}
