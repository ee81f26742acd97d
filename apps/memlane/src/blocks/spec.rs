//! What the flags of `serve` and `map` say, checked.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The port where mainline's RNBD server listens, by default (`RTRS_PORT`).
pub(crate) const PORT: u16 = 1234;
/// The name of the local socket, by default.
pub(crate) const LOCAL: &str = "default";

/// Where a server is: `tcp://HOST[:PORT]`, `HOST[:PORT]`, `local` or `local:NAME`.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Place {
    /// Another machine, perhaps.
    Tcp(SocketAddr),
    /// This machine, through shared memory.
    Local(String),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Place, String> {
        if text == "local" {
            return Ok(Place::Local(LOCAL.into()));
        }
        if let Some(name) = text.strip_prefix("local:") {
            let fits = !name.is_empty() && name.len() <= 64 && name.chars().all(plain);
            return fits
                .then(|| Place::Local(name.into()))
                .ok_or_else(|| format!("{name:?}: up to 64 letters, digits, '-' and '_'"));
        }
        let address = text.strip_prefix("tcp://").unwrap_or(text);
        resolve(address).map(Place::Tcp)
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Tcp(address) => write!(f, "tcp://{address}"),
            Place::Local(name) => write!(f, "local:{name}"),
        }
    }
}

fn plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-' || c == '_'
}

/// `HOST`, `HOST:PORT`, `[V6]:PORT`, `V6`.
fn resolve(text: &str) -> Result<SocketAddr, String> {
    if let Ok(ip) = text.trim_matches(['[', ']']).parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, PORT));
    }
    let with_port = match text.rsplit_once(':') {
        Some((_, port)) if port.parse::<u16>().is_ok() => text.to_owned(),
        Some((_, port)) => return Err(format!("{port:?} is not a port")),
        None => format!("{text}:{PORT}"),
    };
    let mut found = with_port
        .to_socket_addrs()
        .map_err(|error| format!("{text:?}: {error}"))?;
    found
        .next()
        .ok_or_else(|| format!("{text:?} has no address"))
}

/// One path: `[SRC@]DST`, as RTRS writes it.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub(crate) struct PathSpec {
    /// The address to come from, if not the kernel's choice.
    pub(crate) from: Option<IpAddr>,
    /// Where to.
    pub(crate) to: Place,
}

impl FromStr for PathSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<PathSpec, String> {
        let (from, to) = match text.split_once('@') {
            Some((from, to)) => {
                let from = from.trim_matches(['[', ']']).parse::<IpAddr>();
                (
                    Some(from.map_err(|_| "before the @: an address of this machine")?),
                    to,
                )
            }
            None => (None, text),
        };
        let to: Place = to.parse()?;
        match (&from, &to) {
            (Some(_), Place::Local(_)) => Err("a local path has no address".into()),
            (Some(from), Place::Tcp(to)) if from.is_ipv4() != to.is_ipv4() => {
                Err(format!("{from} and {to} are not of one family"))
            }
            _ => Ok(PathSpec { from, to }),
        }
    }
}

impl std::fmt::Display for PathSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.from {
            Some(from) => write!(f, "{from}@{}", self.to),
            None => write!(f, "{}", self.to),
        }
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
pub(crate) enum Face {
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

impl Face {
    pub(crate) fn is_nbd(&self) -> bool {
        matches!(self, Face::NbdUnix(_) | Face::NbdTcp(_))
    }
}

impl FromStr for Face {
    type Err = String;

    fn from_str(text: &str) -> Result<Face, String> {
        match text {
            "loop" => return Ok(Face::Loop),
            "nbd-kernel" => return Ok(Face::NbdKernel),
            "ublk" => return Ok(Face::Ublk),
            _ => {}
        }
        let (kind, rest) = text
            .split_once(':')
            .ok_or("nbd:unix:PATH, nbd:tcp:ADDRESS, fuse:PATH, loop, vhost-user:SOCKET, nbd-kernel or ublk")?;
        let path = |path: &str| match path.starts_with('/') {
            true => Ok(PathBuf::from(path)),
            false => Err(format!("{path:?} is not an absolute path")),
        };
        match (kind, rest.split_once(':')) {
            ("nbd", Some(("unix", socket))) => path(socket).map(Face::NbdUnix),
            ("nbd", Some(("tcp", address))) => {
                let address = address.strip_prefix("//").unwrap_or(address);
                let address = address
                    .parse()
                    .map_err(|_| format!("{address:?}: ADDRESS:PORT"))?;
                Ok(Face::NbdTcp(address))
            }
            ("fuse", _) => path(rest).map(Face::Fuse),
            ("vhost-user", _) => path(rest).map(Face::VhostUser),
            _ => Err(format!("{text:?} is not a face that memlane has")),
        }
    }
}

impl std::fmt::Display for Face {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Face::NbdUnix(path) => write!(f, "nbd:unix:{}", path.display()),
            Face::NbdTcp(address) => write!(f, "nbd:tcp:{address}"),
            Face::Fuse(path) => write!(f, "fuse:{}", path.display()),
            Face::Loop => f.write_str("loop"),
            Face::NbdKernel => f.write_str("nbd-kernel"),
            Face::Ublk => f.write_str("ublk"),
            Face::VhostUser(path) => write!(f, "vhost-user:{}", path.display()),
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
    /// As what.
    pub(crate) face: Face,
    /// An NBD export's certificates: a folder.
    #[serde(default)]
    pub(crate) nbd_tls: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_people_write_them() {
        let place = |text: &str| text.parse::<Place>();
        let tcp = |text: &str| Ok(Place::Tcp(text.parse().expect("an address")));
        assert_eq!(place("127.0.0.1"), tcp("127.0.0.1:1234"));
        assert_eq!(place("tcp://127.0.0.1:99"), tcp("127.0.0.1:99"));
        assert_eq!(place("::1"), tcp("[::1]:1234"));
        assert_eq!(place("[::1]:7"), tcp("[::1]:7"));
        assert_eq!(place("local"), Ok(Place::Local("default".into())));
        assert_eq!(place("local:x-1"), Ok(Place::Local("x-1".into())));
        for wrong in ["local:", "local:a/b", "127.0.0.1:99999", "", "tcp://"] {
            assert!(place(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_path_may_say_where_it_comes_from() {
        let path: PathSpec = "192.0.2.1@192.0.2.2:5".parse().expect("a path");
        assert_eq!(path.from, "192.0.2.1".parse().ok());
        assert_eq!(path.to_string(), "192.0.2.1@tcp://192.0.2.2:5");
        for wrong in ["::1@192.0.2.2", "x@192.0.2.2", "192.0.2.1@local"] {
            assert!(wrong.parse::<PathSpec>().is_err(), "{wrong}");
        }
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
            assert_eq!(text.parse::<Face>().expect(text).to_string(), text);
        }
        for wrong in [
            "nbd",
            "nbd:unix:relative",
            "nbd:tcp:x",
            "fuse:",
            "ublk:0",
            "scsi:/x",
        ] {
            assert!(wrong.parse::<Face>().is_err(), "{wrong}");
        }
    }
}
