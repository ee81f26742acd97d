//! What the flags of `serve` and `map` say, checked.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use memlane_transport::io::PathAddr;
use serde::{Deserialize, Serialize};

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

/// `30s`, `500ms`, `2m`; a bare number is seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits
        .parse()
        .map_err(|_| format!("{text:?}: a number and ms, s, m or h"))?;
    let millis = match &text[digits.len()..] {
        "ms" => Some(number),
        "" | "s" => number.checked_mul(1000),
        "m" => number.checked_mul(60_000),
        "h" => number.checked_mul(3_600_000),
        unit => return Err(format!("{unit:?} is none of ms, s, m and h")),
    };
    millis
        .map(Duration::from_millis)
        .ok_or_else(|| format!("{text:?} is too long"))
}

/// What `map --heartbeat` is by default.
pub(crate) const HEARTBEAT: Duration = Duration::from_millis(800);

/// When a silent path is dead: long enough for an answer, short enough to be of use.
pub(crate) fn heartbeat(text: &str) -> Result<Duration, String> {
    let limit = duration(text)?;
    let fits = Duration::from_millis(40) <= limit && limit <= Duration::from_secs(600);
    fits.then_some(limit)
        .ok_or_else(|| format!("{text:?} is not between 40ms and 10m"))
}

/// `512`, `64k`, `128KiB`, `10G`: binary units.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits
        .parse()
        .map_err(|_| format!("{text:?}: a number and k, M, G or T"))?;
    let unit = text[digits.len()..].to_ascii_lowercase();
    let shift = match unit.trim_end_matches("ib").trim_end_matches('b') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(format!("{unit:?} is none of k, M, G and T")),
    };
    number
        .checked_shl(shift)
        .filter(|shifted| shifted >> shift == number)
        .ok_or_else(|| format!("{text:?} is too large"))
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
    fn times_and_sizes_have_units_and_never_overflow() {
        assert_eq!(duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(size("128k"), Ok(128 << 10));
        assert_eq!(size("10GiB"), Ok(10 << 30));
        for wrong in [
            "",
            "x",
            "5y",
            "99999999999999999999s",
            "18446744073709551615h",
        ] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
        for wrong in ["", "k", "5x", "18446744073709551615k", "16777216T"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
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
