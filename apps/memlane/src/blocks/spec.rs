//! What the flags of `serve` and `map` say, checked.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use memlane_core::region::Pages;
use memlane_transport::io::PathAddr;
use serde::{Deserialize, Serialize};

use super::tls::TlsSpec;
use crate::cli::device::Device;
use crate::cli::values::duration;

/// A path to a server, which travels as its text.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct PathSpec(pub(crate) PathAddr);

impl FromStr for PathSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<PathSpec, String> {
        text.parse().map(PathSpec)
    }
}

impl TryFrom<String> for PathSpec {
    type Error = String;

    fn try_from(text: String) -> Result<PathSpec, String> {
        text.parse()
    }
}

impl From<PathSpec> for String {
    fn from(path: PathSpec) -> String {
        path.0.to_string()
    }
}

/// What to do with requests while the server is not there.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum OnDisconnect {
    /// They wait for so long.
    Queue(Duration),
    /// They fail.
    Fail,
}

impl FromStr for OnDisconnect {
    type Err = String;

    fn from_str(text: &str) -> Result<OnDisconnect, String> {
        if text == "fail" {
            return Ok(OnDisconnect::Fail);
        }
        let time = text.strip_prefix("queue:").ok_or("queue:TIME or fail")?;
        Ok(OnDisconnect::Queue(duration(time)?))
    }
}

/// Default of `map --heartbeat`.
pub(crate) const HEARTBEAT: Duration = Duration::from_millis(800);

/// Parses the time after which a silent path is given up: 40 ms leave room for an answer, and more than 10 min would be
/// useless.
pub(crate) fn heartbeat(text: &str) -> Result<Duration, String> {
    let limit = duration(text)?;
    let fits = Duration::from_millis(40) <= limit && limit <= Duration::from_secs(600);
    fits.then_some(limit)
        .ok_or_else(|| format!("{text:?} is not between 40ms and 10m"))
}

/// What a program sees of a volume.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Frontend {
    /// An NBD export on a unix socket.
    NbdUnix(PathBuf),
    /// An NBD export on a TCP port.
    NbdTcp(SocketAddr),
    /// A regular file.
    Fuse(PathBuf),
    /// A loop device over such a file.
    Loop,
    /// A disk of virtual machines.
    VhostUser(PathBuf),
    /// The kernel's `/dev/nbdN`.
    NbdKernel,
    /// The kernel's `/dev/ublkbN`.
    Ublk,
}

const FRONTENDS: &str = "one of nbd:unix:PATH, nbd:tcp:ADDRESS:PORT, fuse:PATH, loop, vhost-user:SOCKET, nbd-kernel, ublk";

impl Frontend {
    pub(crate) fn is_nbd(&self) -> bool {
        matches!(self, Frontend::NbdUnix(_) | Frontend::NbdTcp(_))
    }
}

impl FromStr for Frontend {
    type Err = String;

    fn from_str(text: &str) -> Result<Frontend, String> {
        match text {
            "loop" => return Ok(Frontend::Loop),
            "nbd-kernel" => return Ok(Frontend::NbdKernel),
            "ublk" => return Ok(Frontend::Ublk),
            _ => {}
        }
        let (kind, rest) = text.split_once(':').ok_or(FRONTENDS)?;
        let path = |path: &str| match path.starts_with('/') {
            true => Ok(PathBuf::from(path)),
            false => Err(format!("{path:?} is not an absolute path")),
        };
        match (kind, rest.split_once(':')) {
            ("nbd", Some(("unix", socket))) => path(socket).map(Frontend::NbdUnix),
            ("nbd", Some(("tcp", address))) => {
                let address = address.strip_prefix("//").unwrap_or(address);
                let address = address
                    .parse()
                    .map_err(|_| format!("{address:?}: ADDRESS:PORT"))?;
                Ok(Frontend::NbdTcp(address))
            }
            ("fuse", _) => path(rest).map(Frontend::Fuse),
            ("vhost-user", _) => path(rest).map(Frontend::VhostUser),
            _ => Err(FRONTENDS.into()),
        }
    }
}

impl std::fmt::Display for Frontend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Frontend::NbdUnix(path) => write!(f, "nbd:unix:{}", path.display()),
            Frontend::NbdTcp(address) => write!(f, "nbd:tcp:{address}"),
            Frontend::Fuse(path) => write!(f, "fuse:{}", path.display()),
            Frontend::Loop => f.write_str("loop"),
            Frontend::NbdKernel => f.write_str("nbd-kernel"),
            Frontend::Ublk => f.write_str("ublk"),
            Frontend::VhostUser(path) => write!(f, "vhost-user:{}", path.display()),
        }
    }
}

/// Who may write.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Access {
    /// Nobody here.
    Ro,
    /// One session.
    Rw,
    /// Two sessions, while a virtual machine moves.
    Migration,
}

/// A mapping.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub(crate) struct MapSpec {
    /// The volume's name, as the server knows it.
    pub(crate) volume: String,
    /// Who may write.
    pub(crate) access: Access,
    /// Also from a client that is not there.
    pub(crate) take_over: bool,
    /// As what.
    pub(crate) frontend: Frontend,
    /// An NBD export's certificates: a folder.
    #[serde(default)]
    pub(crate) nbd_tls: Option<PathBuf>,
}

/// How to choose the path for a request.
#[derive(clap::ValueEnum, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Policy {
    /// Each path in turn
    #[value(alias = "round-robin")]
    Rr,
    /// The path with the fewest requests in flight
    MinInflight,
    /// The path with the fastest answers
    MinLatency,
}

impl Policy {
    pub(super) fn word(self) -> &'static str {
        match self {
            Policy::Rr => "rr",
            Policy::MinInflight => "min-inflight",
            Policy::MinLatency => "min-latency",
        }
    }
}

/// What the memory for requests' data is made of.
#[derive(clap::ValueEnum, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug, Default)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Memory {
    /// Ordinary pages
    #[default]
    Plain,
    /// Huge pages, of which enough must be free (sysctl vm.nr_hugepages)
    Hugetlb,
}

impl Memory {
    pub(super) fn words(self) -> &'static str {
        match self {
            Memory::Plain => "plain pages",
            Memory::Hugetlb => "huge pages",
        }
    }

    pub(super) fn pages(self) -> Pages {
        match self {
            Memory::Plain => Pages::Plain,
            Memory::Hugetlb => Pages::Huge,
        }
    }
}

/// The arguments of a session's background process.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(super) struct HostSpec {
    pub(super) session: String,
    pub(super) paths: Vec<PathSpec>,
    pub(super) policy: Policy,
    pub(super) on_disconnect: OnDisconnect,
    pub(super) heartbeat: Duration,
    pub(super) wait: Duration,
    pub(super) connections: u16,
    /// Plain, if nobody has asked for anything.
    #[serde(default)]
    pub(super) memory: Option<Memory>,
    /// Memory that the server's machine has, too.
    #[serde(default)]
    pub(super) device: Option<Device>,
    pub(super) tls: Option<TlsSpec>,
    pub(super) metrics: Option<std::net::SocketAddr>,
}

/// The arguments of a mapped file's background process.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(super) struct FileSpec {
    /// What the process is called.
    pub(super) name: String,
    /// Absolute.
    pub(super) path: PathBuf,
    pub(super) metrics: Option<SocketAddr>,
}

/// The arguments of the process behind a mapping.
#[derive(Serialize, Deserialize, Clone, Debug)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ProcessSpec {
    /// One for each session.
    Session(HostSpec),
    /// One for each file.
    File(FileSpec),
}

impl ProcessSpec {
    /// What the process is called.
    pub(super) fn name(&self) -> &str {
        match self {
            ProcessSpec::Session(spec) => &spec.session,
            ProcessSpec::File(spec) => &spec.name,
        }
    }

    pub(super) fn metrics(&self) -> Option<SocketAddr> {
        match self {
            ProcessSpec::Session(spec) => spec.metrics,
            ProcessSpec::File(spec) => spec.metrics,
        }
    }

    /// The error of a process whose name another one has.
    pub(super) fn is_taken(&self, volume: &str) -> String {
        match self {
            ProcessSpec::Session(spec) => format!(
                "session {:?} is already open: choose another --session",
                spec.session
            ),
            ProcessSpec::File(_) => {
                format!("{volume:?} is mapped already; `memlane vol show` says where")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_travels_as_its_text() {
        let path: PathSpec = "192.0.2.1@192.0.2.2:5".parse().expect("a path");
        let json = serde_json::to_string(&path).expect("text");
        assert_eq!(json, "\"192.0.2.1@tcp://192.0.2.2:5\"");
        assert_eq!(serde_json::from_str::<PathSpec>(&json).ok(), Some(path));
        assert!(serde_json::from_str::<PathSpec>("\"192.0.2.1@local\"").is_err());
    }

    #[test]
    fn a_heartbeat_has_bounds() {
        assert_eq!(heartbeat("800ms"), Ok(HEARTBEAT));
        for wrong in ["0", "39ms", "601s", "x"] {
            assert!(heartbeat(wrong).is_err(), "{wrong}");
        }
        assert_eq!(
            "queue:5s".parse(),
            Ok(OnDisconnect::Queue(Duration::from_secs(5)))
        );
        assert!("queue".parse::<OnDisconnect>().is_err());
    }

    #[test]
    fn a_face_says_what_it_was_read_from() {
        for text in [
            "nbd:unix:/run/x",
            "nbd:tcp:127.0.0.1:10809",
            "fuse:/mnt/x",
            "loop",
            "vhost-user:/run/y",
            "nbd-kernel",
            "ublk",
        ] {
            assert_eq!(text.parse::<Frontend>().expect(text).to_string(), text);
        }
        for wrong in [
            "nbd",
            "nbd:unix:relative",
            "nbd:tcp:x",
            "fuse:",
            "ublk:0",
            "scsi:/x",
        ] {
            assert!(wrong.parse::<Frontend>().is_err(), "{wrong}");
        }
    }
}
