//! What a user writes for a server's addresses.

use memlane_transport::io::{Address, PathAddr};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixStream};
use std::time::Duration;

/// Where mainline's RNBD server listens (`RTRS_PORT`).
const PORT: u16 = 1234;
/// How long one attempt to reach an address may take.
const PROBE: Duration = Duration::from_secs(2);

/// `tcp://HOST[:PORT]`, `HOST[:PORT]`, `local`, `local:NAME` or `local:/PATH`, separated by commas: one path to each. As
/// `memlane map` takes them, and with `tcp:` for `tcp://`.
pub(crate) fn paths(text: &str) -> Result<Vec<PathAddr>, String> {
    let parts = text.split(',').map(str::trim);
    let parts = parts.filter(|part| !part.is_empty());
    let paths: Vec<PathAddr> = parts.map(path).collect::<Result<_, _>>()?;
    match paths.is_empty() {
        true => Err("address= is not set: local:NAME or tcp://HOST:PORT".into()),
        false => Ok(paths),
    }
}

fn path(text: &str) -> Result<PathAddr, String> {
    let told = |why: String| format!("address={text}: {why}");
    let (from, to) = match text.split_once('@') {
        Some((from, to)) => {
            let from: Result<IpAddr, _> = from.trim_matches(['[', ']']).parse();
            let from = from.map_err(|_| told("before the @: an address of this machine".into()))?;
            (Some(from), to)
        }
        None => (None, text),
    };
    let dst = address(to).map_err(told)?;
    Ok(PathAddr { src: from, dst })
}

fn address(text: &str) -> Result<Address, String> {
    match text.strip_prefix("local") {
        Some("" | ":") => return Ok(local("default")),
        Some(rest) if rest.starts_with(":/") => return Ok(Address::Local(rest[1..].into())),
        Some(rest) if rest.starts_with(':') => return Ok(local(&rest[1..])),
        _ => {}
    }
    let host = text.strip_prefix("tcp:").unwrap_or(text);
    let host = host.strip_prefix("//").unwrap_or(host);
    resolve(host).map(Address::Tcp)
}

/// Where `memlane serve --listen local:NAME` listens.
fn local(name: &str) -> Address {
    Address::Local(format!("memlane/blocks/{name}"))
}

/// `HOST`, `HOST:PORT`, `[V6]:PORT`, `V6`.
fn resolve(text: &str) -> Result<SocketAddr, String> {
    if let Ok(ip) = text.trim_matches(['[', ']']).parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, PORT));
    }
    let with_port = match text.contains(':') {
        true => text.to_owned(),
        false => format!("{text}:{PORT}"),
    };
    let mut found = with_port
        .to_socket_addrs()
        .map_err(|error| error.to_string())?;
    found.next().ok_or_else(|| "no such host".into())
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
        Address::Local(path) if path.starts_with('/') => UnixStream::connect(path).map(drop),
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
    fn addresses_are_read_as_the_command_reads_them() {
        for (text, paths) in [
            ("local:a", "local:memlane/blocks/a"),
            ("local", "local:memlane/blocks/default"),
            ("local:/run/x", "local:/run/x"),
            ("tcp://127.0.0.1:7", "tcp:127.0.0.1:7"),
            ("tcp:127.0.0.1:7", "tcp:127.0.0.1:7"),
            ("127.0.0.1", "tcp:127.0.0.1:1234"),
            ("::1", "tcp:[::1]:1234"),
            ("tcp://[::1]:7", "tcp:[::1]:7"),
            ("127.0.0.2@127.0.0.1:7", "127.0.0.2@tcp:127.0.0.1:7"),
        ] {
            assert_eq!(read(text).expect(text), [paths], "{text}");
        }
        assert_eq!(read("local, 127.0.0.1,").expect("two").len(), 2);
    }

    #[test]
    fn what_is_no_address_is_told_with_its_text() {
        for (text, part) in [
            ("", "not set"),
            (",", "not set"),
            ("tcp:127.0.0.1:99999", "tcp:127.0.0.1:99999"),
            ("udp:h:1", "udp:h:1"),
            ("x@127.0.0.1", "before the @"),
        ] {
            let why = read(text).expect_err("no address");
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
