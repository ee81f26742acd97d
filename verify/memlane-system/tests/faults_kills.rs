//! A peer dies, stops or stalls at each step of the socket lane (`memlane-socket`, feature `faults`). The survivor
//! sees what TCP would show, and nothing is left behind.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use memlane_system::faulty::{End, PATIENCE, Part, STEPS, Side, Survivor};
use memlane_system::harness::plain_only;
use memlane_system::real::held::Held;

/// How the complaint ends about a step that was not reached.
const NEVER: &str = ": it never got there";

/// Dialogues in which a step has to be reached.
const TRIES: u32 = 10;

const EOF: i64 = 0;
const EPIPE: i64 = 32;
const ECONNRESET: i64 = 104;

/// The side that fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Failing {
    Client,
    Server,
}

impl Failing {
    fn gets_to(self, side: Side) -> bool {
        match side {
            Side::Both => true,
            Side::Client => self == Failing::Client,
            Side::Server => self == Failing::Server,
        }
    }
}

/// Where a test goes.
#[derive(Clone, Copy, Debug)]
struct Where {
    who: Failing,
    /// What both sides are asked for.
    mode: &'static str,
    /// Only these parts.
    parts: &'static [Part],
}

/// All that a program under memlane gets to in mode `nocopy`.
const EVERYWHERE: &[Part] = &[
    Part::Upgrade,
    Part::Refusal,
    Part::Transfer,
    Part::Downgrade,
    Part::Close,
];

const fn everywhere(who: Failing) -> Where {
    Where {
        who,
        mode: "nocopy",
        parts: EVERYWHERE,
    }
}

/// Bytes go another way there, and nothing else is different.
const fn by_copies(who: Failing) -> Where {
    Where {
        who,
        mode: "copy",
        parts: &[Part::Transfer, Part::Copying],
    }
}

/// A dialogue with a peer that has these faults.
fn begin(survivor: &mut Survivor, place: Where, part: Option<Part>, fault: &str) -> End {
    let mut env = vec![("MEMLANE_FAULT", fault), ("MEMLANE_MODE", place.mode)];
    if part == Some(Part::Refusal) {
        // Whom the server declines, and tells so.
        env.push(("MEMLANE_EID", "BLUE"));
    }
    match place.who {
        Failing::Client => survivor.joined(&env),
        Failing::Server => survivor.joins(&env),
    }
}

/// `conn 0 sent 5 taken 7 doing take end 0 after 32`.
fn words(report: &str) -> BTreeMap<&str, &str> {
    let words: Vec<&str> = report.split(' ').collect();
    words
        .chunks(2)
        .map(|pair| (pair[0], pair[pair.len() - 1]))
        .collect()
}

/// It died there, and the survivor has seen what TCP would have shown.
fn dies(survivor: &mut Survivor, place: Where, part: Part, fault: &str) -> Result<(), String> {
    let mut peer = begin(survivor, place, Some(part), fault);
    let status = peer.ended();
    let said = survivor.report(fault);
    if status.and_then(|status| status.signal()) != Some(9) {
        return Err(format!("{status:?}, {said}{NEVER}"));
    }
    let last = peer.progress.reached();
    let report = words(&said);
    let number = |name: &str| report.get(name).and_then(|word| word.parse::<i64>().ok());
    let (Some(conn), Some(taken), Some(sent), Some(end), Some(after)) = (
        number("conn"),
        number("taken"),
        number("sent"),
        number("end"),
        number("after"),
    ) else {
        // It died when all was said: the third connection's end.
        let over = said == "whole" && last.conn == 2;
        return if over { Ok(()) } else { Err(said) };
    };
    let told = |what: &str| Err(format!("{what}: {said}, when the peer died at {last:?}"));
    if said.contains("WRONG") {
        return told("other bytes");
    }
    if u64::try_from(conn).ok() != Some(last.conn) {
        // Between two connections: nothing was under way.
        return if end > 0 { Ok(()) } else { told("not refused") };
    }
    if report["doing"] == "connect" {
        return Ok(()); // nobody was there any more
    }
    let reset = end == ECONNRESET || end == EPIPE;
    if end != EOF && !reset {
        return told("neither an end nor a reset");
    }
    if !reset && taken.cast_unsigned() < last.sent {
        return told("bytes are missing");
    }
    if report["doing"] != "give" && reset && last.taken == sent.cast_unsigned() && !last.receiving {
        return told("a reset, though everything had been read");
    }
    if after != EPIPE && after != ECONNRESET {
        return told("nothing ended what was sent after it");
    }
    Ok(())
}

/// It stops there; what goes on beside does not wait for it; it goes on, and not a byte is missing.
fn stops(survivor: &mut Survivor, place: Where, part: Part, fault: &str) -> Result<(), String> {
    let mut peer = begin(survivor, place, Some(part), fault);
    let start = Instant::now();
    while !peer.is_stopped() {
        if peer.is_over() || start.elapsed() > PATIENCE {
            let said = survivor.report(fault);
            return Err(format!("{:?}, {said}{NEVER}", peer.ended()));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    survivor.is_undisturbed(fault);
    let mut kill = Command::new("kill");
    let woken = kill.args(["-s", "CONT", &peer.pid().to_string()]).status();
    assert!(woken.is_ok_and(|status| status.success()));
    ends_well(survivor, &mut peer, fault)
}

fn ends_well(survivor: &Survivor, peer: &mut End, fault: &str) -> Result<(), String> {
    let said = survivor.report(fault);
    let theirs = peer.line();
    let status = peer.ended();
    let well = said == "whole" && theirs.as_deref() == Some("whole");
    if well && status.is_some_and(|status| status.success()) {
        return Ok(());
    }
    Err(format!("{said}; the peer: {theirs:?}, {status:?}"))
}

/// Does `act` at every step that `who` gets to; the survivor is the same all the time.
fn at_every_step(
    place: Where,
    action: &str,
    act: impl Fn(&mut Survivor, Where, Part, &str) -> Result<(), String>,
) {
    if plain_only() {
        return;
    }
    let mut survivor = Survivor::start(&[("MEMLANE_MODE", place.mode)]);
    // One round without a fault: what it holds after that, it may hold in the end.
    good_round(&mut survivor, place);
    let before = Held::by(survivor.pid()).expect("it is there");
    let mut wrong = Vec::new();
    let mut done = 0;
    let here = |part: Part, side| place.who.gets_to(side) && place.parts.contains(&part);
    for (name, part, _) in STEPS.iter().filter(|(_, part, side)| here(*part, *side)) {
        // In the middle of it, too: the first bytes are not like all others.
        let times: &[u32] = match part {
            Part::Transfer | Part::Copying => &[1, 12],
            _ => &[1],
        };
        for nth in times {
            let fault = format!("{name}:{action}:{nth}");
            // How often a program wakes, parks and finds the ring full is a matter of time.
            let tries = if *nth > 1 { 1 } else { TRIES };
            let mut acted = Ok(());
            for _ in 0..tries {
                acted = act(&mut survivor, place, *part, &fault);
                if !acted.as_ref().is_err_and(|why| why.ends_with(NEVER)) {
                    break;
                }
            }
            match acted {
                Err(why) if *nth == 1 || !why.ends_with(NEVER) => {
                    wrong.push(format!("{fault} of the {place:?}: {why}"));
                }
                _ => {}
            }
            survivor.is_undisturbed(&fault);
            done += 1;
        }
    }
    assert!(done > 20, "{done}");
    // What belonged to the dead goes when somebody new comes, a second later.
    std::thread::sleep(Duration::from_millis(1100));
    good_round(&mut survivor, place);
    let after = Held::by(survivor.pid()).expect("it is there");
    if !after.is_back_to(&before) {
        wrong.push(format!("{before:?} has become {after:?}"));
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

fn good_round(survivor: &mut Survivor, place: Where) {
    let mut peer = begin(survivor, place, None, "");
    let ended = ends_well(survivor, &mut peer, "no fault");
    assert_eq!(ended, Ok(()));
}

#[test]
fn a_client_that_dies_at_any_step_is_for_the_server_what_tcp_would_show() {
    at_every_step(everywhere(Failing::Client), "kill", dies);
}

#[test]
fn a_server_that_dies_at_any_step_is_for_the_client_what_tcp_would_show() {
    at_every_step(everywhere(Failing::Server), "kill", dies);
}

#[test]
fn a_client_that_stops_at_any_step_disturbs_nobody_else_and_goes_on() {
    at_every_step(everywhere(Failing::Client), "stop", stops);
}

#[test]
fn a_server_that_stops_at_any_step_disturbs_nobody_else_and_goes_on() {
    at_every_step(everywhere(Failing::Server), "stop", stops);
}

#[test]
fn a_client_that_copies_and_dies_at_any_step_is_for_the_server_what_tcp_would_show() {
    at_every_step(by_copies(Failing::Client), "kill", dies);
}

#[test]
fn a_server_that_copies_and_dies_at_any_step_is_for_the_client_what_tcp_would_show() {
    at_every_step(by_copies(Failing::Server), "kill", dies);
}
