//! A peer dies, stops or stalls at each step of the socket lane (`memlane-socket`, feature `faults`). The survivor
//! sees what TCP would show, and nothing is left behind.

use memlane_system::faulty::Part;
use memlane_system::kills::{Failing, Where, at_every_step, dies, stops};

/// All that a program under memlane gets to in mode `nocopy`.
const EVERYWHERE: &[Part] = &[
    Part::Upgrade,
    Part::Refusal,
    Part::Transfer,
    Part::Downgrade,
    Part::Close,
];

const fn everywhere(who: Failing) -> Where<'static> {
    Where {
        who,
        mode: "nocopy",
        parts: EVERYWHERE,
        between: None,
    }
}

/// Bytes go another way there, and nothing else is different.
const fn by_copies(who: Failing) -> Where<'static> {
    Where {
        who,
        mode: "copy",
        parts: &[Part::Transfer, Part::Copying],
        between: None,
    }
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
