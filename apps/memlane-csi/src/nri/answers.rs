//! What is answered to the runtime's calls. Nothing here waits.
//!
//! The runtime holds the start of a container up until it has an answer, and an answer that says *error* keeps the container
//! from being made. So `CreateContainer` is answered with nothing to do wherever something is not as it should be.

use memlane_inject::Edits;
use memlane_inject::edits::{IN_CONTAINER, PRELOAD, WANTED};
use memlane_inject::preload::{Joined, join};
use prost::Message as _;

use super::messages::{
    Adjustment, CREATE_CONTAINER, ConfigureResponse, Container, CreateContainer,
    CreateContainerResponse, PLUGIN, REMOVED, Request, Response, Status, Synchronize,
    SynchronizeResponse, Variable,
};

/// gRPC's code for a call that is not known.
const UNIMPLEMENTED: i32 = 12;

/// An answer, and what it means.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Answer {
    pub(super) response: Response,
    pub(super) event: Event,
}

/// What a call was about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Event {
    /// A container is made.
    Container(Outcome),
    /// The runtime has told all containers that there are. From now on it asks about each new one.
    Synchronized,
    /// Something that changes nothing.
    Other,
}

/// What becomes of a container.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    /// The library is preloaded in it.
    Preloaded,
    /// Nobody asks for it.
    NothingToDo,
    /// It preloads memlane already, in its own way.
    LeftAlone,
    /// What the runtime says of it cannot be read.
    Unreadable,
}

impl Outcome {
    /// The word for it in metrics.
    pub(super) fn word(self) -> &'static str {
        match self {
            Outcome::Preloaded => "preloaded",
            Outcome::NothingToDo => "nothing_to_do",
            Outcome::LeftAlone => "left_alone",
            Outcome::Unreadable => "unreadable",
        }
    }
}

/// Answers a call.
pub(super) fn answer(request: &Request) -> Answer {
    if request.service != PLUGIN {
        return unknown(request);
    }
    match request.method.as_str() {
        "Configure" => {
            let events = CREATE_CONTAINER;
            said(&ConfigureResponse { events }, Event::Other)
        }
        "Synchronize" => synchronize(&request.payload),
        "CreateContainer" => create_container(&request.payload),
        "Shutdown" => said(&(), Event::Other),
        _ => unknown(request),
    }
}

fn said(message: &impl prost::Message, event: Event) -> Answer {
    let response = Response {
        status: None,
        payload: message.encode_to_vec(),
    };
    Answer { response, event }
}

/// A call of a later version.
fn unknown(request: &Request) -> Answer {
    let Request {
        service, method, ..
    } = request;
    let status = Status {
        code: UNIMPLEMENTED,
        message: format!("no call {service}/{method}"),
    };
    let response = Response {
        status: Some(status),
        payload: Vec::new(),
    };
    Answer {
        response,
        event: Event::Other,
    }
}

fn synchronize(payload: &[u8]) -> Answer {
    let more = Synchronize::decode(payload).is_ok_and(|told| told.more);
    let event = if more {
        Event::Other
    } else {
        Event::Synchronized
    };
    said(&SynchronizeResponse { more }, event)
}

fn create_container(payload: &[u8]) -> Answer {
    let container = CreateContainer::decode(payload);
    let container = container.ok().and_then(|told| told.container);
    let (outcome, adjust) = match container {
        Some(container) => preload(&container),
        None => (Outcome::Unreadable, None),
    };
    let message = CreateContainerResponse { adjust };
    said(&message, Event::Container(outcome))
}

/// Adds the library to what a container preloads, if the webhook has asked for that.
fn preload(container: &Container) -> (Outcome, Option<Adjustment>) {
    let edits = Edits::of_a_lane_volume();
    let library = edits.library();
    let has_volume = container
        .mounts
        .iter()
        .any(|mount| mount.destination == IN_CONTAINER);
    // Only the library of the volume: an image that sets this variable itself names nothing else to the loader.
    if !has_volume || variable(container, WANTED) != Some(library) {
        return (Outcome::NothingToDo, None);
    }
    let theirs = variable(container, PRELOAD).unwrap_or_default();
    match join(theirs, library) {
        Joined::Changed(list) => (Outcome::Preloaded, Some(set(PRELOAD, list))),
        Joined::Same | Joined::Other => (Outcome::LeftAlone, None),
    }
}

/// The value of a variable. Of two with one name, the last one counts.
fn variable<'a>(container: &'a Container, name: &str) -> Option<&'a str> {
    let of = |text: &'a String| text.strip_prefix(name)?.strip_prefix('=');
    container.env.iter().rev().find_map(of)
}

/// Sets a variable that may be there. Where another plugin has set it before, the runtime would refuse the container; it does
/// not if the variable is removed first.
fn set(name: &str, value: String) -> Adjustment {
    let removed = Variable {
        name: format!("{REMOVED}{name}"),
        value: String::new(),
    };
    let set = Variable {
        name: name.to_owned(),
        value,
    };
    Adjustment {
        env: vec![removed, set],
    }
}

#[cfg(test)]
mod tests {
    use super::super::messages::Mount;
    use super::*;
    use proptest::prelude::*;

    const LIBRARY: &str = "/opt/memlane/$LIB/libmemlane_preload.so";
    const ASKED: &str = "MEMLANE_PRELOAD=/opt/memlane/$LIB/libmemlane_preload.so";

    fn call(method: &str, message: &impl prost::Message) -> Answer {
        answer(&Request {
            service: PLUGIN.to_owned(),
            method: method.to_owned(),
            payload: message.encode_to_vec(),
        })
    }

    /// What becomes of a container with these variables; `LD_PRELOAD`, if it is set.
    fn created(mounts: &[&str], env: &[&str]) -> (Event, Option<String>) {
        let mount = |place: &&str| Mount {
            destination: (*place).to_owned(),
        };
        let container = Container {
            env: env.iter().map(|text| (*text).to_owned()).collect(),
            mounts: mounts.iter().map(mount).collect(),
        };
        let container = Some(container);
        let answer = call("CreateContainer", &CreateContainer { container });
        assert_eq!(answer.response.status, None);
        let said = CreateContainerResponse::decode(answer.response.payload.as_slice());
        let set = said.expect("a response").adjust.map(|adjust| {
            let names: Vec<&str> = adjust.env.iter().map(|v| v.name.as_str()).collect();
            assert_eq!(names, ["-LD_PRELOAD", "LD_PRELOAD"]);
            adjust.env[1].value.clone()
        });
        (answer.event, set)
    }

    #[test]
    fn what_the_image_preloads_stays_and_comes_first() {
        let volume = ["/etc/hosts", "/opt/memlane"];
        let preloaded = Event::Container(Outcome::Preloaded);
        assert_eq!(
            created(&volume, &["PATH=/bin", ASKED]),
            (preloaded, Some(LIBRARY.to_owned()))
        );
        assert_eq!(
            created(&volume, &["LD_PRELOAD=/a.so:/b.so", ASKED]),
            (preloaded, Some(format!("/a.so:/b.so:{LIBRARY}")))
        );
    }

    #[test]
    fn nothing_is_done_where_nobody_asks_or_memlane_is_there() {
        let volume = ["/opt/memlane"];
        let nothing = (Event::Container(Outcome::NothingToDo), None);
        for (mounts, env) in [
            (&volume[..], &["LD_PRELOAD=/a.so"][..]),
            (&[], &[ASKED]),
            (&["/opt/memlane2"], &[ASKED]),
            (&volume, &["MEMLANE_PRELOAD=/tmp/evil.so"]),
            (&volume, &["MEMLANE_PRELOAD"]),
            (&volume, &[ASKED, "MEMLANE_PRELOAD="]),
            (
                &volume,
                &["XMEMLANE_PRELOAD=/opt/memlane/$LIB/libmemlane_preload.so"],
            ),
        ] {
            assert_eq!(created(mounts, env), nothing, "{mounts:?} {env:?}");
        }
        for there in [
            format!("LD_PRELOAD={LIBRARY}"),
            "LD_PRELOAD=/x/libmemlane_preload.so".into(),
        ] {
            let left = (Event::Container(Outcome::LeftAlone), None);
            assert_eq!(created(&volume, &[ASKED, &there]), left, "{there}");
        }
    }

    /// An answer that says *error* would keep the container from being made.
    #[test]
    fn a_container_that_cannot_be_read_is_made_as_it_is() {
        for payload in [b"\xff\xff\xff".to_vec(), Vec::new()] {
            let answer = answer(&Request {
                service: PLUGIN.to_owned(),
                method: "CreateContainer".to_owned(),
                payload,
            });
            assert_eq!(answer.event, Event::Container(Outcome::Unreadable));
            assert_eq!(answer.response, Response::default());
        }
    }

    #[test]
    fn a_list_of_containers_that_goes_on_is_waited_for() {
        let told = |more| call("Synchronize", &Synchronize { more });
        let more = told(true);
        assert_eq!(more.event, Event::Other);
        let said = SynchronizeResponse::decode(more.response.payload.as_slice());
        assert!(said.expect("a response").more);
        assert_eq!(told(false).event, Event::Synchronized);
    }

    #[test]
    fn only_new_containers_are_asked_for_and_other_calls_are_not_known() {
        let said = call("Configure", &()).response.payload;
        let said = ConfigureResponse::decode(said.as_slice()).expect("a response");
        // Bit 3 is the fourth event; none at all would be all of them.
        assert_eq!(said.events, 0b1000);
        assert_eq!(call("Shutdown", &()).response, Response::default());
        let status = call("StopContainer", &()).response.status;
        assert_eq!(status.expect("a status").code, UNIMPLEMENTED);
    }

    proptest! {
        #[test]
        fn whatever_is_called_there_is_an_answer(
            method in prop_oneof!["CreateContainer", "Synchronize", "Configure", ".*"],
            payload in proptest::collection::vec(any::<u8>(), 0..512),
        ) {
            let request = Request { service: PLUGIN.to_owned(), method, payload };
            let answer = answer(&request);
            if matches!(answer.event, Event::Container(_)) {
                prop_assert_eq!(answer.response.status, None);
            }
        }
    }
}
