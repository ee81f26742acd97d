//! A program that outlives a peer which dies, or stops, at one step of the lane after the other: it sees what TCP would show,
//! and nothing is left behind.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::containers::Container;
use crate::faulty::{End, PATIENCE, Part, STEPS, Side, Survivor};
use crate::harness::plain_only;
use crate::real::held::Held;

/// How the complaint ends about a step that was not reached.
pub const NEVER: &str = ": it never got there";

/// Dialogues in which a step has to be reached.
const TRIES: u32 = 40;

const EOF: i64 = 0;
const EPIPE: i64 = 32;
const ECONNRESET: i64 = 104;

/// The side that fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failing {
    /// Who connects.
    Client,
    /// Who accepts.
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
pub struct Where<'a> {
    /// The side that fails.
    pub who: Failing,
    /// What both sides are asked for.
    pub mode: &'static str,
    /// Only these parts.
    pub parts: &'static [Part],
    /// The network namespaces of client and server; `None`: both are here.
    pub between: Option<[&'a Container; 2]>,
}

impl Where<'_> {
    /// Names of the steps to which the failing side gets.
    pub fn steps(&self) -> impl Iterator<Item = (&'static str, Part)> {
        let Where {
            who,
            parts,
            between,
            ..
        } = *self;
        // The agent's channel takes the place of a name, and of a proof.
        let by_name = ["name-bound", "peer-proven"];
        let is_there = move |name: &str| between.is_none() || !by_name.contains(&name);
        STEPS
            .iter()
            .filter(move |(name, part, side)| {
                who.gets_to(*side) && parts.contains(part) && is_there(name)
            })
            .map(|(name, part, _)| (*name, *part))
    }

    /// The program that outlives all the others.
    pub fn survivor(&self) -> Survivor {
        let [client, server] = self.between.map_or([None; 2], |both| both.map(Some));
        let places = match self.who {
            Failing::Client => [server, client],
            Failing::Server => [client, server],
        };
        Survivor::between(places, &[("MEMLANE_MODE", self.mode)])
    }
}

/// A dialogue with a peer that has these faults.
pub fn begin(survivor: &mut Survivor, place: Where<'_>, part: Option<Part>, fault: &str) -> End {
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
///
/// # Errors
/// What it has seen instead.
pub fn dies(
    survivor: &mut Survivor,
    place: Where<'_>,
    part: Part,
    fault: &str,
) -> Result<(), String> {
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
///
/// # Errors
/// What is wrong.
///
/// # Panics
/// If it cannot be woken.
pub fn stops(
    survivor: &mut Survivor,
    place: Where<'_>,
    part: Part,
    fault: &str,
) -> Result<(), String> {
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

/// Both have said all that they had to say.
///
/// # Errors
/// What they say instead.
pub fn ends_well(survivor: &Survivor, peer: &mut End, fault: &str) -> Result<(), String> {
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
///
/// # Panics
/// If anything is wrong, or left behind.
pub fn at_every_step(
    place: Where<'_>,
    action: &str,
    act: impl Fn(&mut Survivor, Where<'_>, Part, &str) -> Result<(), String>,
) {
    if plain_only() {
        return;
    }
    let mut survivor = place.survivor();
    // One round without a fault: what it holds after that, it may hold in the end.
    good_round(&mut survivor, place);
    let before = Held::by(survivor.pid()).expect("it is there");
    let mut wrong = Vec::new();
    let mut done = 0;
    for (name, part) in place.steps() {
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
                acted = act(&mut survivor, place, part, &fault);
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
    assert!(done > 12, "{done}");
    // What belonged to the dead goes when somebody new comes, a second later.
    std::thread::sleep(Duration::from_millis(1100));
    good_round(&mut survivor, place);
    let after = Held::by(survivor.pid()).expect("it is there");
    if !after.is_back_to(&before) {
        wrong.push(format!("{before:?} has become {after:?}"));
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// A dialogue without a fault.
///
/// # Panics
/// If it does not end well.
pub fn good_round(survivor: &mut Survivor, place: Where<'_>) {
    let mut peer = begin(survivor, place, None, "");
    let ended = ends_well(survivor, &mut peer, "no fault");
    assert_eq!(ended, Ok(()));
}
