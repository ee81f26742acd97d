//! Ends as their users write them: `tap:NAME`, `front:SOCKET`, …

use std::path::PathBuf;
use std::str::FromStr;

use memlane_packet::ends::generate::{Generator, HEADER, Plan, Sink};
use memlane_packet::ends::pcap::{Capture, Replay};
use memlane_packet::ends::vhost::Role;
use memlane_packet::ends::{End, EndError, afpacket, tap};

use crate::exit::{Exit, fail};

/// What is at one end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// A TAP device.
    Tap(String),
    /// An interface, by a packet socket.
    Afpacket(String),
    /// A capture file that is written.
    Pcap(PathBuf),
    /// One that is read; with its frames' distances?
    Replay(PathBuf, bool),
    Gen(Plan),
    Sink,
    /// The lane: whose memory it is, and where its back listens.
    Front(String),
    Back(String),
    /// memif 2.0: its socket; do we listen there?
    Memif(String, bool),
    /// A virtual machine.
    Vhost(Machine),
}

/// Where a machine monitor is found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Machine {
    pub(super) socket: String,
    pub(super) role: Role,
    /// Also memory that could be taken away under us.
    pub(super) any_memory: bool,
}

const KINDS: &str = "tap:NAME, afpacket:INTERFACE, pcap:FILE, replay:FILE[?paced], gen:[size=BYTES[-BYTES],][count=N,][rate=N], sink:, \
     memif:SOCKET[?role=server|client], vhost-user:SOCKET[?role=server|client,memory=sealed|any], front:SOCKET or back:SOCKET";

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Place, String> {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        let named = |what: &str| {
            let name = (!rest.is_empty()).then(|| rest.to_owned());
            name.ok_or_else(|| format!("{kind}: wants a {what} behind the colon"))
        };
        match kind {
            "tap" => named("device").map(Place::Tap),
            "afpacket" => named("interface").map(Place::Afpacket),
            "pcap" => named("file").map(|file| Place::Pcap(file.into())),
            "replay" => named("file").map(|file| match file.strip_suffix("?paced") {
                Some(file) => Place::Replay(file.into(), true),
                None => Place::Replay(file.into(), false),
            }),
            "gen" => plan(rest).map(Place::Gen),
            "sink" if rest.is_empty() => Ok(Place::Sink),
            "front" => named("socket").map(Place::Front),
            "back" => named("socket").map(Place::Back),
            "memif" => named("socket").and_then(|socket| memif(&socket)),
            "vhost-user" => named("socket").and_then(|socket| machine(&socket)),
            _ => Err(format!("an end is {KINDS}")),
        }
    }
}

/// A client, as DPDK's are unless it is said otherwise.
fn memif(text: &str) -> Result<Place, String> {
    let (socket, option) = text.split_once('?').unwrap_or((text, "role=client"));
    match option {
        "role=server" => Ok(Place::Memif(socket.into(), true)),
        "role=client" => Ok(Place::Memif(socket.into(), false)),
        _ => Err(format!("{option}: memif has role=server and role=client")),
    }
}

/// A server with sealed memory, unless it is said otherwise.
fn machine(text: &str) -> Result<Place, String> {
    let (socket, options) = text.split_once('?').unwrap_or((text, ""));
    let mut machine = Machine {
        socket: socket.into(),
        role: Role::Server,
        any_memory: false,
    };
    for option in options.split(',').filter(|option| !option.is_empty()) {
        match option {
            "role=server" => machine.role = Role::Server,
            "role=client" => machine.role = Role::Client,
            "memory=sealed" => machine.any_memory = false,
            "memory=any" => machine.any_memory = true,
            _ => {
                let known = "role=server, role=client, memory=sealed and memory=any";
                return Err(format!("{option}: vhost-user has {known}"));
            }
        }
    }
    Ok(Place::Vhost(machine))
}

fn plan(text: &str) -> Result<Plan, String> {
    let mut plan = Plan {
        stream: std::process::id(),
        sizes: (64, 64),
        count: 0,
        rate: 0,
    };
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        let number = |text: &str| text.parse().map_err(|_| format!("{part}: no number"));
        match key {
            "size" => {
                let (low, high) = value.split_once('-').unwrap_or((value, value));
                let size = |text| number(text).map(|n: u64| usize::try_from(n).unwrap_or(0));
                plan.sizes = (size(low)?, size(high)?);
            }
            "count" => plan.count = number(value)?,
            "rate" => plan.rate = number(value)?,
            _ => return Err(format!("{key}: gen has size, count and rate")),
        }
    }
    plan.checked().ok_or_else(|| {
        format!("gen: sizes are from {HEADER} to 65535 bytes, the smaller one first")
    })
}

impl Place {
    /// Is it the lane or what is like it, whose other end can go and come back?
    pub(super) fn is_link(&self) -> bool {
        matches!(
            self,
            Place::Front(_) | Place::Back(_) | Place::Memif(..) | Place::Vhost(_)
        )
    }

    /// Opens what lasts as long as we do: each of its queues.
    pub(super) fn open(&self, text: &str, queues: u16) -> anyhow::Result<Vec<Box<dyn End>>> {
        if queues > 1 && !matches!(self, Place::Tap(_)) && !self.is_link() {
            let text = format!("{text} has one queue: only tap:, front: and back: have several");
            return Err(fail(Exit::Usage, text));
        }
        let one = |end: Box<dyn End>| vec![end];
        let device = |errno| EndError::Device(errno);
        let opened = match self {
            Place::Tap(name) => tap::open_queues(name, queues)
                .map(|all| {
                    all.into_iter()
                        .map(|end| Box::new(end) as Box<dyn End>)
                        .collect()
                })
                .map_err(device),
            Place::Afpacket(name) => afpacket::open(name)
                .map(|end| one(Box::new(end)))
                .map_err(device),
            Place::Pcap(path) => Capture::create(path).map(|end| one(Box::new(end))),
            Place::Replay(path, paced) => Replay::open(path, *paced).map(|end| one(Box::new(end))),
            Place::Gen(plan) => Ok(one(Box::new(Generator::new(*plan)))),
            Place::Sink => Ok(one(Box::new(Sink::new()))),
            Place::Front(_) | Place::Back(_) | Place::Memif(..) | Place::Vhost(_) => Ok(Vec::new()),
        };
        opened.map_err(|error| self.explain(text, error))
    }

    fn explain(&self, text: &str, error: EndError) -> anyhow::Error {
        let EndError::Device(errno) = error else {
            return fail(Exit::Failed, format!("{text}: {error}"));
        };
        // EPERM, EACCES; ENOENT; EBUSY; EINVAL.
        let (exit, advice) = match (self, errno.0) {
            (Place::Tap(_), 1 | 13) => (
                Exit::Unsupported,
                ": that needs CAP_NET_ADMIN, or a device that is yours (ip tuntap add NAME mode tap user YOU)",
            ),
            (Place::Tap(_), 2) => (
                Exit::Unsupported,
                ": there is no /dev/net/tun: modprobe tun",
            ),
            (Place::Tap(_), 16) => (Exit::Failed, ": another process has it"),
            (Place::Tap(_), 22) => (
                Exit::Failed,
                ": no name for a device, or it is there with another number of queues (ip tuntap add NAME mode tap multi_queue)",
            ),
            (Place::Afpacket(_), 1) => (Exit::Unsupported, ": that needs CAP_NET_RAW"),
            (Place::Afpacket(_), 19 | 22) => (Exit::Failed, ": there is no such interface"),
            _ => (Exit::Failed, ""),
        };
        fail(exit, format!("{text}: {errno}{advice}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_read_as_written() {
        let read = |text: &str| text.parse::<Place>();
        assert_eq!(read("tap:a"), Ok(Place::Tap("a".into())));
        assert_eq!(read("front:@x:y"), Ok(Place::Front("@x:y".into())));
        assert_eq!(
            read("replay:/a?paced"),
            Ok(Place::Replay("/a".into(), true))
        );
        assert_eq!(read("sink:"), Ok(Place::Sink));
        assert_eq!(read("memif:/a"), Ok(Place::Memif("/a".into(), false)));
        assert_eq!(
            read("memif:@a?role=server"),
            Ok(Place::Memif("@a".into(), true))
        );
        let machine = |role, any_memory| {
            let socket = "/a".to_owned();
            Ok(Place::Vhost(Machine {
                socket,
                role,
                any_memory,
            }))
        };
        assert_eq!(read("vhost-user:/a"), machine(Role::Server, false));
        let all = read("vhost-user:/a?role=client,memory=any");
        assert_eq!(all, machine(Role::Client, true));
        let Ok(Place::Gen(plan)) = read("gen:size=60-1514,count=9,rate=1000") else {
            panic!("no plan");
        };
        assert_eq!((plan.sizes, plan.count, plan.rate), ((60, 1514), 9, 1000));
        for wrong in [
            "tap",
            "tap:",
            "front:",
            "sink:x",
            "memif:",
            "memif:/a?role=master",
            "vhost-user:",
            "vhost-user:/a?memory=shared",
            "veth:a",
            "gen:size=10",
            "gen:size=70-60",
            "gen:size=x",
            "gen:x=1",
            "",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
