//! Ends as their users write them: `tap:NAME`, `front:SOCKET`, `memif:SOCKET?role=server`, …

use std::path::PathBuf;
use std::str::FromStr;

use memlane_packet_ends::generate::{Generator, HEADER, Plan, Sink};
use memlane_packet_ends::kernel::Interface;
use memlane_packet_ends::memif::wire::SECRET;
use memlane_packet_ends::pcap::{Capture, Replay};
use memlane_packet_ends::vhost::Role;
use memlane_packet_ends::{End, EndError, afpacket, tap};

use super::namespace;
use super::options::Options;
use super::region::Target;
use crate::cli::exit::{Exit, fail};

/// What is at one end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum EndSpec {
    /// A TAP device.
    Tap(Device),
    /// An interface, by a packet socket.
    Afpacket(Device),
    /// A capture file that is written.
    Pcap {
        file: PathBuf,
        /// Bytes of each frame.
        snap: u32,
    },
    /// One that is read.
    Replay {
        file: PathBuf,
        /// With its frames' distances?
        paced: bool,
        /// Again and again?
        again: bool,
    },
    /// Header split into device memory.
    Into(Target),
    Gen(Plan),
    /// Frames after which it is over; 0: never.
    Sink(u64),
    /// The lane: whose memory it is, and where its back listens.
    Front(String),
    Back(String),
    /// A TAP device that another process lends, and where.
    Lent(String),
    Memif(Memif),
    /// A virtual machine.
    Vhost(Machine),
}

/// A device of the kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Device {
    pub(super) name: String,
    /// Its network namespace, a name or a path; `None`: ours.
    pub(super) namespace: Option<String>,
}

/// Where a machine monitor is found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Machine {
    pub(super) socket: String,
    pub(super) role: Role,
    /// Also memory that could be taken away under us.
    pub(super) any_memory: bool,
}

/// memif 2.0.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Memif {
    pub(super) socket: String,
    /// Do we listen there?
    pub(super) server: bool,
    pub(super) id: u32,
    pub(super) secret: String,
    /// Slots are 2^this.
    pub(super) ring: Option<u8>,
    /// Bytes of a buffer, which are the client's.
    pub(super) buffer: Option<u32>,
}

const KINDS: &str = "tap:NAME[?netns=NAMESPACE], afpacket:INTERFACE[?netns=NAMESPACE], pcap:FILE[?snap=N], replay:FILE[?paced&loop], \
     gen:[size=BYTES[-BYTES],count=N,rate=N], sink:[count=N], \
     memif:SOCKET[?role=server|client&id=N&secret=TEXT&ring=SLOTS&buffer=BYTES], \
     vhost-user:SOCKET[?role=server|client&memory=sealed|any], into:REGION?flow=RULE[;RULE], \
     lent:SOCKET, front:SOCKET or back:SOCKET";

impl FromStr for EndSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<EndSpec, String> {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        if !text.contains(':') {
            return Err(format!("an end is {KINDS}"));
        }
        // The last one: a name with a ? in it is written with another behind it.
        let (name, options) = rest.rsplit_once('?').unwrap_or((rest, ""));
        let read = |known: &[&str]| Options::read(kind, options, known);
        let named = |what: &str| {
            let name = (!name.is_empty()).then(|| name.to_owned());
            name.ok_or_else(|| format!("{kind}: wants a {what} behind the colon"))
        };
        match kind {
            "tap" => device(named("device")?, &read(&["netns"])?).map(EndSpec::Tap),
            "afpacket" => device(named("interface")?, &read(&["netns"])?).map(EndSpec::Afpacket),
            "pcap" => pcap(named("file")?, &read(&["snap"])?),
            "replay" => replay(named("file")?, &read(&["paced", "loop"])?),
            // These have no name: the ? can be left out.
            "into" => Target::read(
                name,
                &read(&["flow", "chunk", "unchecked", "validate", "output"])?,
            )
            .map(EndSpec::Into),
            "gen" => plan(rest.trim_start_matches('?')).map(EndSpec::Gen),
            "sink" => sink(rest.trim_start_matches('?')),
            "front" => read(&[]).and_then(|_| named("socket").map(EndSpec::Front)),
            "back" => read(&[]).and_then(|_| named("socket").map(EndSpec::Back)),
            "lent" => read(&[]).and_then(|_| named("socket").map(EndSpec::Lent)),
            "memif" => memif(
                named("socket")?,
                &read(&["role", "id", "secret", "ring", "buffer"])?,
            ),
            "vhost-user" => machine(named("socket")?, &read(&["role", "memory"])?),
            _ => Err(format!("an end is {KINDS}")),
        }
    }
}

fn device(name: String, options: &Options<'_>) -> Result<Device, String> {
    let namespace = options.text("netns")?.map(str::to_owned);
    Ok(Device { name, namespace })
}

fn pcap(file: String, options: &Options<'_>) -> Result<EndSpec, String> {
    let snap = options.number("snap", 1..=65535)?;
    Ok(EndSpec::Pcap {
        file: file.into(),
        snap: snap.and_then(|n| u32::try_from(n).ok()).unwrap_or(65535),
    })
}

fn replay(file: String, options: &Options<'_>) -> Result<EndSpec, String> {
    Ok(EndSpec::Replay {
        file: file.into(),
        paced: options.flag("paced")?,
        again: options.flag("loop")?,
    })
}

fn sink(text: &str) -> Result<EndSpec, String> {
    let options = Options::read("sink", text, &["count"])?;
    Ok(EndSpec::Sink(
        options.number("count", 0..=u64::MAX)?.unwrap_or(0),
    ))
}

/// A client, as DPDK's are unless it is said otherwise.
fn memif(socket: String, options: &Options<'_>) -> Result<EndSpec, String> {
    let server = match options.text("role")? {
        Some("server") => true,
        Some("client") | None => false,
        Some(role) => {
            return Err(format!(
                "role={role}: memif has role=server and role=client"
            ));
        }
    };
    let secret = options.text("secret")?.unwrap_or_default();
    if secret.len() > SECRET {
        return Err(format!("a secret has at most {SECRET} bytes"));
    }
    let buffer = options.number("buffer", 64..=65536)?;
    if server && buffer.is_some() {
        return Err("buffer is the client's to say: its memory".into());
    }
    let id = options.number("id", 0..=u32::MAX.into())?.unwrap_or(0);
    Ok(EndSpec::Memif(Memif {
        socket,
        server,
        id: u32::try_from(id).unwrap_or(0),
        secret: secret.to_owned(),
        ring: options.slots("ring", 2..=16384)?,
        buffer: buffer.and_then(|n| u32::try_from(n).ok()),
    }))
}

/// A server with sealed memory, unless it is said otherwise.
fn machine(socket: String, options: &Options<'_>) -> Result<EndSpec, String> {
    let role = match options.text("role")? {
        Some("server") | None => Role::Server,
        Some("client") => Role::Client,
        Some(role) => {
            return Err(format!(
                "role={role}: vhost-user has role=server and role=client"
            ));
        }
    };
    let any_memory = match options.text("memory")? {
        Some("sealed") | None => false,
        Some("any") => true,
        Some(memory) => {
            return Err(format!(
                "memory={memory}: vhost-user has memory=sealed and memory=any"
            ));
        }
    };
    Ok(EndSpec::Vhost(Machine {
        socket,
        role,
        any_memory,
    }))
}

fn plan(text: &str) -> Result<Plan, String> {
    let options = Options::read("gen", text, &["size", "count", "rate"])?;
    let number = |key| {
        options
            .number(key, 0..=u64::MAX)
            .map(|number| number.unwrap_or(0))
    };
    let sizes = options.text("size")?.map(sizes).transpose()?;
    Ok(Plan {
        stream: std::process::id(),
        sizes: sizes.unwrap_or((64, 64)),
        count: number("count")?,
        rate: number("rate")?,
    })
}

/// `64`, `60-1514`: bytes of the shortest frame and of the longest.
pub(super) fn sizes(text: &str) -> Result<(usize, usize), String> {
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    let size = |text: &str| text.parse::<usize>().ok();
    let plan = |sizes| Plan {
        stream: 0,
        sizes,
        count: 0,
        rate: 0,
    };
    let checked = size(low)
        .zip(size(high))
        .and_then(|sizes| plan(sizes).checked());
    checked.map(|plan| plan.sizes).ok_or_else(|| {
        format!("{text}: sizes are from {HEADER} to 65535 bytes, the smaller one first")
    })
}

impl Device {
    /// Opens it where it is.
    fn open<T: Send>(&self, open: impl FnOnce(&str) -> T + Send) -> anyhow::Result<T> {
        namespace::inside(self.namespace.as_deref(), || open(&self.name))
    }
}

impl EndSpec {
    /// Is it the lane or what is like it, whose other end can go and come back?
    pub(super) fn is_link(&self) -> bool {
        self.socket().is_some()
    }

    /// The socket by which a link comes about.
    pub(super) fn socket(&self) -> Option<&str> {
        match self {
            EndSpec::Front(at) | EndSpec::Back(at) | EndSpec::Lent(at) => Some(at),
            EndSpec::Memif(memif) => Some(&memif.socket),
            EndSpec::Vhost(machine) => Some(&machine.socket),
            _ => None,
        }
    }

    /// What its other end is, and where: who waits for it says so.
    pub(super) fn awaited(&self) -> String {
        match self {
            EndSpec::Front(at) => format!("a back at {at}"),
            EndSpec::Back(at) => format!("a front at {at}"),
            EndSpec::Lent(at) => format!("the device lent at {at}"),
            EndSpec::Memif(memif) if memif.server => format!("a memif client at {}", memif.socket),
            EndSpec::Memif(memif) => format!("a memif server at {}", memif.socket),
            EndSpec::Vhost(machine) => format!("a virtual machine at {}", machine.socket),
            _ => "nobody".into(),
        }
    }

    /// What may be shown of an end as it was written: not a secret.
    pub(super) fn label(&self, text: &str) -> String {
        match self {
            EndSpec::Memif(memif) if !memif.secret.is_empty() => {
                text.replace(&format!("secret={}", memif.secret), "secret=***")
            }
            _ => text.to_owned(),
        }
    }

    /// Opens the queues of a TAP device, to lend them.
    pub(super) fn open_to_lend(&self, text: &str, queues: u16) -> anyhow::Result<Vec<Interface>> {
        let EndSpec::Tap(at) = self else {
            let text = format!("{text}: only tap: can be lent");
            return Err(fail(Exit::Usage, text));
        };
        let opened = at.open(|name| tap::open_queues(name, queues))?;
        opened.map_err(|errno| self.explain(text, EndError::Device(errno)))
    }

    /// Opens what lasts as long as we do: each of its queues.
    pub(super) fn open(&self, text: &str, queues: u16) -> anyhow::Result<Vec<Box<dyn End>>> {
        if queues > 1 && !matches!(self, EndSpec::Tap(_) | EndSpec::Afpacket(_)) && !self.is_link()
        {
            let text = format!(
                "{text} has one queue: only tap:, afpacket:, lent:, front:, back: and memif: have several"
            );
            return Err(fail(Exit::Usage, text));
        }
        let all = |ends: Vec<Interface>| ends.into_iter().map(boxed).collect();
        let opened = match self {
            EndSpec::Tap(at) => {
                let opened = at.open(|name| tap::open_queues(name, queues))?;
                opened.map(all).map_err(EndError::Device)
            }
            EndSpec::Afpacket(at) => {
                let opened = at.open(|name| afpacket::open_queues(name, queues))?;
                opened.map(all).map_err(EndError::Device)
            }
            EndSpec::Pcap { file, snap } => Capture::create_short(file, *snap).map(one),
            EndSpec::Replay { file, paced, again } => {
                Replay::open(file, *paced).map(|replay| match again {
                    true => one(replay.looped()),
                    false => one(replay),
                })
            }
            EndSpec::Into(target) => return target.open(text).map(one),
            EndSpec::Gen(plan) => Ok(one(Generator::new(*plan))),
            EndSpec::Sink(count) => Ok(one(Sink::until(*count))),
            // A link's queues come with each attach.
            EndSpec::Front(_)
            | EndSpec::Back(_)
            | EndSpec::Lent(_)
            | EndSpec::Memif(_)
            | EndSpec::Vhost(_) => Ok(Vec::new()),
        };
        opened.map_err(|error| self.explain(text, error))
    }

    fn explain(&self, text: &str, error: EndError) -> anyhow::Error {
        let EndError::Device(errno) = error else {
            return fail(Exit::Failed, format!("{text}: {error}"));
        };
        // EPERM, EACCES; ENOENT; EBUSY; EINVAL.
        let (exit, advice) = match (self, errno.0) {
            (EndSpec::Tap(_), 1 | 13) => (
                Exit::Unsupported,
                ": this needs CAP_NET_ADMIN, or a device of your own (ip tuntap add NAME mode tap user YOU)",
            ),
            (EndSpec::Tap(_), 2) => (
                Exit::Unsupported,
                ": /dev/net/tun does not exist: load it with modprobe tun",
            ),
            (EndSpec::Tap(_), 16) => (Exit::Failed, ": another process uses the device"),
            (EndSpec::Tap(_), 22) => (
                Exit::Failed,
                ": the name is not valid, or the device exists with another number of queues (ip tuntap add NAME mode tap multi_queue)",
            ),
            (EndSpec::Afpacket(_), 1) => (Exit::Unsupported, ": this needs CAP_NET_RAW"),
            (EndSpec::Afpacket(_), 19 | 22) => (
                Exit::Failed,
                ": the interface does not exist; `ip link` lists them",
            ),
            (EndSpec::Replay { .. }, 2) => (Exit::Failed, ": the file does not exist"),
            (EndSpec::Pcap { .. }, 2) => (Exit::Failed, ": the directory does not exist"),
            (EndSpec::Replay { .. } | EndSpec::Pcap { .. }, 13) => {
                (Exit::Failed, ": permission denied")
            }
            _ => (Exit::Failed, ""),
        };
        fail(exit, format!("{text}: {errno}{advice}"))
    }
}

fn boxed(end: impl End + 'static) -> Box<dyn End> {
    Box::new(end)
}

fn one(end: impl End + 'static) -> Vec<Box<dyn End>> {
    vec![boxed(end)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<EndSpec, String> {
        text.parse()
    }

    #[test]
    fn ends_are_read_as_written() {
        let device = |name: &str, namespace: Option<&str>| Device {
            name: name.into(),
            namespace: namespace.map(str::to_owned),
        };
        assert_eq!(read("tap:a"), Ok(EndSpec::Tap(device("a", None))));
        let there = read("tap:a?netns=red");
        assert_eq!(there, Ok(EndSpec::Tap(device("a", Some("red")))));
        let there = read("afpacket:b?netns=/proc/7/ns/net");
        let of_process = device("b", Some("/proc/7/ns/net"));
        assert_eq!(there, Ok(EndSpec::Afpacket(of_process)));
        assert_eq!(read("front:@x:y"), Ok(EndSpec::Front("@x:y".into())));
        assert_eq!(read("lent:/a"), Ok(EndSpec::Lent("/a".into())));
        let replay = |file: &str, paced, again| {
            Ok(EndSpec::Replay {
                file: file.into(),
                paced,
                again,
            })
        };
        assert_eq!(read("replay:/a"), replay("/a", false, false));
        assert_eq!(read("replay:/a?paced"), replay("/a", true, false));
        assert_eq!(read("replay:/a?loop&paced"), replay("/a", true, true));
        assert_eq!(read("replay:/a?b?"), replay("/a?b", false, false));
        let pcap = |snap| {
            Ok(EndSpec::Pcap {
                file: "/a".into(),
                snap,
            })
        };
        assert_eq!(read("pcap:/a"), pcap(65535));
        assert_eq!(read("pcap:/a?snap=96"), pcap(96));
        assert_eq!(read("sink:"), Ok(EndSpec::Sink(0)));
        assert_eq!(read("sink:?count=3"), Ok(EndSpec::Sink(3)));
        for text in [
            "gen:size=60-1514,count=9,rate=1000",
            "gen:?rate=1000&size=60-1514&count=9",
        ] {
            let Ok(EndSpec::Gen(plan)) = read(text) else {
                panic!("no plan");
            };
            assert_eq!((plan.sizes, plan.count, plan.rate), ((60, 1514), 9, 1000));
        }
    }

    #[test]
    fn a_virtual_machine_is_served_or_called() {
        let machine = |role, any_memory| {
            Ok(EndSpec::Vhost(Machine {
                socket: "/a".into(),
                role,
                any_memory,
            }))
        };
        assert_eq!(read("vhost-user:/a"), machine(Role::Server, false));
        let all = read("vhost-user:/a?role=client&memory=any");
        assert_eq!(all, machine(Role::Client, true));
    }

    #[test]
    fn a_memif_end_has_what_others_have() {
        let plain = Memif {
            socket: "/a".into(),
            server: false,
            id: 0,
            secret: String::new(),
            ring: None,
            buffer: None,
        };
        assert_eq!(read("memif:/a"), Ok(EndSpec::Memif(plain.clone())));
        let server = Memif {
            server: true,
            socket: "@a".into(),
            ..plain.clone()
        };
        assert_eq!(read("memif:@a?role=server"), Ok(EndSpec::Memif(server)));
        let all = Memif {
            id: 7,
            secret: "x=y".into(),
            ring: Some(9),
            buffer: Some(4096),
            ..plain
        };
        let text = "memif:/a?id=7&secret=x=y&ring=512&buffer=4096";
        assert_eq!(read(text), Ok(EndSpec::Memif(all)));
    }

    #[test]
    fn a_secret_is_shown_to_nobody() {
        let text = "memif:/a?secret=hush&id=1";
        let label = read(text).expect("an end").label(text);
        assert_eq!(label, "memif:/a?secret=***&id=1");
    }

    #[test]
    fn what_is_no_end_is_answered_with_what_is_wrong() {
        for wrong in [
            "tap",
            "tap:",
            "tap:a?mtu=9000",
            "tap:a?netns",
            "tap:?netns=red",
            "front:",
            "front:/a?mode=copy",
            "lent:",
            "lent:/a?netns=red",
            "sink:x",
            "sink",
            "pcap:/a?snap=0",
            "replay:/a?paced=1",
            "memif:",
            "memif:/a?role=master",
            "memif:/a?ring=3",
            "memif:/a?role=server&buffer=2048",
            "memif:/a?secret=1234567890123456789012345",
            "vhost-user:",
            "vhost-user:/a?memory=shared",
            "vhost-user:/a?role=master",
            "veth:a",
            "gen:size=10",
            "gen:size=70-60",
            "gen:size=x",
            "gen:x=1",
            "into:memfd:1M",
            "into:memfd?flow=udp",
            "into:memfd:1M?flow=sctp",
            "into:memfd:1M?flow=udp&validate=1",
            "into:memfd:1M?flow=udp&chunk=x",
            "",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        let error = read("memif:/a?rolle=server").expect_err("no such option");
        assert!(error.contains("role, id, secret, ring, buffer"), "{error}");
    }
}
