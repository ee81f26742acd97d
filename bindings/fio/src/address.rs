//! What a user writes for a server's addresses.

use memlane_transport::io::{Address, PathAddr};
use std::io;
use std::net::TcpStream;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixStream};
use std::time::Duration;

/// How long one attempt to reach an address may take.
const PROBE: Duration = Duration::from_secs(2);

/// Paths as `memlane map` takes them, separated by commas.
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
    text.parse()
        .map_err(|why: String| format!("address={text}: {why}"))
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
        Address::Ivshmem(_) => Err(io::Error::other(
            "the engine shares no memory with other machines: map the volume, and use its device",
        )),
        // There is no such question over RDMA: the session says why it does not come up.
        Address::Rdma(_) => Ok(()),
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
            ("local:a", "local:a"),
            ("local", "local:default"),
            ("local:/run/x", "local:/run/x"),
            ("tcp://127.0.0.1:7", "tcp://127.0.0.1:7"),
            ("tcp:127.0.0.1:7", "tcp://127.0.0.1:7"),
            ("127.0.0.1", "tcp://127.0.0.1:1234"),
            ("::1", "tcp://[::1]:1234"),
            ("tcp://[::1]:7", "tcp://[::1]:7"),
            ("127.0.0.2@127.0.0.1:7", "127.0.0.2@tcp://127.0.0.1:7"),
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
