//! A program, or the agent, dies, stops or is restarted at each step at which two network namespaces are introduced to each
//! other (`memlane-socket`, feature `faults`): the survivor sees what TCP would show, and nothing is left behind.
//!
//! Needs root for the namespaces, and CAP_BPF and CAP_PERFMON for the agent.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use memlane_system::containers::{Agent, Between, Container, Networks, scene};
use memlane_system::faulty::{PATIENCE, Part, Survivor};
use memlane_system::kills::{
    Failing, NEVER, Where, at_every_step, begin, dies, ends_well, good_round, stops,
};
use memlane_system::real::proc::send;

/// Two namespaces with NAT between them, and an agent.
struct Scene {
    agent: RefCell<Agent>,
    client: Container,
    server: Container,
    _networks: Networks,
}

impl Scene {
    /// `None`, and a word on standard error, where it cannot be.
    fn new(test: &'static str) -> Option<Scene> {
        let (agent, networks) = scene(test, Between::Nat)?;
        Some(Scene {
            client: networks.at_client(&agent),
            server: networks.at_server(&agent),
            agent: RefCell::new(agent),
            _networks: networks,
        })
    }

    fn failing(&self, who: Failing, parts: &'static [Part]) -> Where<'_> {
        let between = Some([&self.client, &self.server]);
        let mode = "nocopy";
        Where {
            who,
            mode,
            parts,
            between,
        }
    }
}

const HANDSHAKE: &[Part] = &[Part::Introduction, Part::Upgrade, Part::Refusal];

#[test]
fn a_client_that_dies_at_any_step_is_for_the_server_what_tcp_would_show() {
    if let Some(scene) = Scene::new("client-dies") {
        at_every_step(scene.failing(Failing::Client, HANDSHAKE), "kill", dies);
    }
}

#[test]
fn a_server_that_dies_at_any_step_is_for_the_client_what_tcp_would_show() {
    if let Some(scene) = Scene::new("server-dies") {
        at_every_step(scene.failing(Failing::Server, HANDSHAKE), "kill", dies);
    }
}

#[test]
fn a_client_that_stops_at_any_step_disturbs_nobody_else_and_goes_on() {
    if let Some(scene) = Scene::new("client-stops") {
        at_every_step(scene.failing(Failing::Client, HANDSHAKE), "stop", stops);
    }
}

#[test]
fn a_server_that_stops_at_any_step_disturbs_nobody_else_and_goes_on() {
    if let Some(scene) = Scene::new("server-stops") {
        at_every_step(scene.failing(Failing::Server, HANDSHAKE), "stop", stops);
    }
}

/// What becomes of the agent while a program is at a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    /// It is killed, and nobody takes its place.
    Killed,
    /// It is killed, and the next one is there at once.
    Restarted,
    /// It is stopped until the dialogue is over.
    Stopped,
}

impl Fate {
    fn befalls(self, agent: &mut Agent) {
        match self {
            Fate::Killed => agent.kill(),
            Fate::Restarted => {
                agent.kill();
                agent.restart();
            }
            Fate::Stopped => agent.signal("STOP"),
        }
    }

    fn is_mended(self, agent: &mut Agent) {
        match self {
            Fate::Killed => agent.restart(),
            Fate::Restarted => {}
            Fate::Stopped => agent.signal("CONT"),
        }
    }
}

/// The dialogue is whole, though the agent fails while one program is at this step.
fn is_whole(
    survivor: &mut Survivor,
    place: Where<'_>,
    fault: &str,
    agent: &mut Agent,
    fate: Fate,
) -> Result<(), String> {
    let mut peer = begin(survivor, place, None, fault);
    let start = Instant::now();
    while !peer.is_stopped() {
        if peer.is_over() || start.elapsed() > PATIENCE {
            return Err(format!("{}{NEVER}", survivor.report(fault)));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    fate.befalls(agent);
    survivor.is_undisturbed(fault);
    send("CONT", &[peer.pid()]);
    let ended = ends_well(survivor, &mut peer, fault);
    fate.is_mended(agent);
    ended
}

/// An agent that could not be reached is tried again after a second: until then nobody gets to a step behind that.
fn until_it_gets_there(mut act: impl FnMut() -> Result<(), String>) -> Result<(), String> {
    for _ in 0..10 {
        let done = act();
        if !done.as_ref().is_err_and(|why| why.ends_with(NEVER)) {
            return done;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    Err("it never gets there".into())
}

fn the_agent_fails_at_every_step(test: &'static str, who: Failing) {
    let Some(scene) = Scene::new(test) else {
        return;
    };
    let place = scene.failing(who, &[Part::Introduction]);
    let mut survivor = place.survivor();
    let steps: Vec<_> = place.steps().map(|(name, _)| name).collect();
    assert!(steps.len() > 4, "{steps:?}");
    let mut agent = scene.agent.borrow_mut();
    for fate in [Fate::Killed, Fate::Restarted, Fate::Stopped] {
        for name in &steps {
            let fault = format!("{name}:stop");
            let try_it = || is_whole(&mut survivor, place, &fault, &mut agent, fate);
            let ended = until_it_gets_there(try_it);
            assert_eq!(ended, Ok(()), "{fate:?} while the {who:?} is at {name}");
        }
    }
    good_round(&mut survivor, place);
}

#[test]
fn an_agent_that_fails_at_any_step_of_a_client_costs_not_a_byte() {
    the_agent_fails_at_every_step("agent-and-client", Failing::Client);
}

#[test]
fn an_agent_that_fails_at_any_step_of_a_server_costs_not_a_byte() {
    the_agent_fails_at_every_step("agent-and-server", Failing::Server);
}
