//! A program, or an agent, dies, stops or is restarted at each step at which two machines that share a region introduce their
//! processes to each other (`memlane-socket`, feature `faults`): the survivor sees what TCP would show.
//!
//! Needs root for the namespaces that stand in for machines, and CAP_BPF and CAP_PERFMON for the agents.

use memlane_system::containers::{Between, Container, Machines};
use memlane_system::faulty::Part;
use memlane_system::kills::{Failing, Where, at_every_step, dies, stops};

/// A refusal goes over a channel as between containers, where its steps are tried; here it often comes when the dialogue is over.
const HANDSHAKE: &[Part] = &[Part::Introduction, Part::Upgrade];

struct Scene {
    client: Container,
    server: Container,
    _machines: Machines,
}

impl Scene {
    fn new(test: &'static str) -> Option<Scene> {
        let machines = Machines::new(test, Between::Cable, 64 << 20)?;
        let [client, server] = machines.containers();
        Some(Scene {
            client,
            server,
            _machines: machines,
        })
    }

    fn failing(&self, who: Failing) -> Where<'_> {
        Where {
            who,
            mode: "nocopy",
            parts: HANDSHAKE,
            between: Some([&self.client, &self.server]),
        }
    }
}

#[test]
fn a_client_that_dies_at_any_step_is_for_the_server_what_tcp_would_show() {
    if let Some(scene) = Scene::new("client-dies-across") {
        at_every_step(scene.failing(Failing::Client), "kill", dies);
    }
}

#[test]
fn a_server_that_dies_at_any_step_is_for_the_client_what_tcp_would_show() {
    if let Some(scene) = Scene::new("server-dies-across") {
        at_every_step(scene.failing(Failing::Server), "kill", dies);
    }
}

#[test]
fn a_client_that_stops_at_any_step_disturbs_nobody_else_and_goes_on() {
    if let Some(scene) = Scene::new("client-stops-across") {
        at_every_step(scene.failing(Failing::Client), "stop", stops);
    }
}

#[test]
fn a_server_that_stops_at_any_step_disturbs_nobody_else_and_goes_on() {
    if let Some(scene) = Scene::new("server-stops-across") {
        at_every_step(scene.failing(Failing::Server), "stop", stops);
    }
}
