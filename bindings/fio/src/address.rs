//! What a user writes for a server's addresses.

use memlane_transport::io::{Address, PathAddr};
use std::io;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixStream};
use std::time::Duration;

/// How long one attempt to reach an address may take.
const PROBE: Duration = Duration::from_secs(2);

/// `local:NAME,tcp:HOST:PORT,…`, also with `//` after the colon: one path to each.
pub(crate) fn paths(text: &str) -> Result<Vec<PathAddr>, String> {
    let parts = text
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty());
    let paths: Vec<PathAddr> = parts.map(path).collect::<Result<_, _>>()?;
    match paths.is_empty() {
        true => Err("address= is not set: local:NAME or tcp:HOST:PORT".into()),
        false => Ok(paths),
    }
}

fn path(text: &str) -> Result<PathAddr, String> {
    let (kind, rest) = text.split_once(':').unwrap_or(("", text));
    match kind {
        "local" => match rest {
            "" => Err(format!("address={text}: it has no name")),
            name => Ok(PathAddr::to(Address::Local(local_name(name).into()))),
        },
        "tcp" => {
            let host = rest.strip_prefix("//").unwrap_or(rest);
            let told = |error: io::Error| format!("address={text}: {error}");
            let mut found = host.to_socket_addrs().map_err(told)?;
            let first = found.next();
            let addr = first.ok_or_else(|| format!("address={text}: no such host"))?;
            Ok(PathAddr::to(Address::Tcp(addr)))
        }
        _ => Err(format!(
            "address={text}: neither local:NAME nor tcp:HOST:PORT"
        )),
    }
}

/// `//NAME` is a name; `///PATH` and `/PATH` are paths.
fn local_name(text: &str) -> &str {
    text.strip_prefix("//").unwrap_or(text)
}

/// Does anybody listen there? A session would try for ever and not say why it does not come up.
pub(crate) fn somebody_listens(paths: &[PathAddr]) -> Result<(), String> {
    let mut why = Vec::new();
    for path in paths {
        match reach(&path.dst) {
            Ok(()) => return Ok(()),
            Err(error) => why.push(format!("{}: {error}", path.dst)),
        }
    }
    Err(format!("no server at {}", why.join("; ")))
}

fn reach(address: &Address) -> io::Result<()> {
    match address {
        Address::Tcp(addr) => TcpStream::connect_timeout(addr, PROBE).map(drop),
        Address::Local(path) if path.contains('/') => UnixStream::connect(path).map(drop),
        Address::Local(name) => {
            let addr = UnixAddr::from_abstract_name(name)?;
            UnixStream::connect_addr(&addr).map(drop)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<String>, String> {
        let shown = |paths: Vec<PathAddr>| paths.iter().map(ToString::to_string).collect();
        paths(text).map(shown)
    }

    #[test]
    fn addresses_are_read_in_both_spellings() {
        let both = read("local:a, tcp:127.0.0.1:7").expect("addresses");
        assert_eq!(both, ["local:a", "tcp:127.0.0.1:7"]);
        let both = read("local://a,tcp://[::1]:7").expect("addresses");
        assert_eq!(both, ["local:a", "tcp:[::1]:7"]);
        assert_eq!(read("local:/run/x").expect("a path"), ["local:/run/x"]);
        assert_eq!(read("local:///run/x").expect("a path"), ["local:/run/x"]);
    }

    #[test]
    fn what_is_no_address_is_told_with_its_text() {
        for (text, part) in [
            ("", "not set"),
            (",", "not set"),
            ("local:", "no name"),
            ("tcp:nowhere", "tcp:nowhere"),
            ("udp:h:1", "neither"),
            ("h:1", "neither"),
        ] {
            let why = read(text).expect_err("no address");
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
