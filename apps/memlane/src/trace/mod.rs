//! `memlane trace`: what connections under memlane carry, as a capture file.

mod capture;
mod flow;
mod packet;
mod work;

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use memlane_core::trace::{RING_MAX, RING_MIN, SEGMENT, ring_size_ok};

use crate::blocks::spec::size;
use crate::run::options::Options;
use packet::End;

/// Write what connections under memlane carry to a capture file, as the TCP
/// streams they stand for: for Wireshark, tshark, tcpdump -r.
///
/// Either a command is started and traced, with all its children, from the
/// first byte on; or processes that run are traced, for as long as this runs.
/// Bytes of both lanes are in the capture, one interface for each:
/// `frame.interface_name == "memlane"`. What a process sends faster than it can
/// be written down is left out, counted, and marked by Wireshark as not captured.
#[derive(clap::Args, Debug)]
#[command(group(clap::ArgGroup::new("whom").required(true).multiple(true)))]
pub(crate) struct Args {
    /// The capture (pcapng), readable by its owner only; `-` is standard output
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Trace this process, which runs under memlane, and the children that it has from now on
    #[arg(long, value_name = "PID", group = "whom")]
    pid: Vec<u32>,
    /// Trace connections with this port at either end, of every process that we may look at (or of --pid)
    #[arg(long, value_name = "PORT", group = "whom", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Trace one connection: 127.0.0.1:80-127.0.0.1:40000, either end first
    #[arg(long, value_name = "A-B", group = "whom", value_parser = connection, conflicts_with = "port")]
    conn: Option<(SocketAddr, SocketAddr)>,
    /// Most bytes of a packet's payload that are written down
    #[arg(long, value_name = "BYTES", default_value_t = SEGMENT as u64, value_parser = size, hide_default_value = true)]
    snaplen: u64,
    /// Stop tracing when the capture would become longer (64k, 10M, 1G)
    #[arg(long, value_name = "SIZE", value_parser = size)]
    max_bytes: Option<u64>,
    /// Begin a new file when the capture would become longer than SIZE, and keep COUNT of them: FILE is the newest, then
    /// come FILE with .1, .2, … before its ending
    #[arg(long, value_name = "SIZE:COUNT", value_parser = rotation, conflicts_with = "max_bytes")]
    rotate: Option<Rotation>,
    /// How much may wait in each process to be written down: a power of two from 256K to 1G
    #[arg(long, value_name = "SIZE", default_value = "16M", value_parser = ring)]
    buffer: u64,
    #[command(flatten)]
    options: Options,
    /// A command to start under memlane and trace, and its arguments
    #[arg(
        last = true,
        value_name = "CMD",
        group = "whom",
        conflicts_with = "pid"
    )]
    command: Vec<OsString>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    work::run(args)
}

impl Args {
    /// The one connection that is wanted, if it is one.
    fn only(&self) -> Option<(End, End)> {
        let plain = |a: SocketAddr| -> End { (a.ip().to_canonical(), a.port()) };
        let (a, b) = self.conn?;
        let (a, b) = (plain(a), plain(b));
        Some((a.min(b), a.max(b)))
    }

    fn tracing(&self) -> memlane_observe::trace::Options {
        memlane_observe::trace::Options {
            ring: self.buffer,
            snaplen: u32::try_from(self.snaplen.min(SEGMENT as u64)).unwrap_or(0),
            port: match (self.port, self.conn) {
                (Some(port), _) => port,
                // One of both: the rest is left out here.
                (None, Some((a, b))) => a.port().min(b.port()),
                (None, None) => 0,
            },
        }
    }
}

fn connection(text: &str) -> Result<(SocketAddr, SocketAddr), String> {
    let both = text
        .split_once('-')
        .and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    both.filter(|(a, b): &(SocketAddr, SocketAddr)| family(a.ip()) == family(b.ip()))
        .ok_or_else(|| {
            "both ends are wanted, such as 127.0.0.1:80-127.0.0.1:40000 or [::1]:80-[::1]:40000"
                .to_owned()
        })
}

fn family(ip: IpAddr) -> bool {
    ip.to_canonical().is_ipv4()
}

/// Files in turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Rotation {
    size: u64,
    count: u32,
}

/// The longest packet fits, with what stands at a file's beginning.
const ROTATE_LEAST: u64 = 128 << 10;
/// More are hardly meant; each turn renames all of them.
const ROTATE_MOST: u32 = 1000;

fn rotation(text: &str) -> Result<Rotation, String> {
    let (bytes, count) = text
        .split_once(':')
        .ok_or("a size and a number of files are wanted, such as 100M:5")?;
    let (size, count) = (size(bytes)?, count.parse().unwrap_or(0));
    if size < ROTATE_LEAST || !(1..=ROTATE_MOST).contains(&count) {
        return Err(format!(
            "files of {}K at least, and 1 to {ROTATE_MOST} of them",
            ROTATE_LEAST >> 10
        ));
    }
    Ok(Rotation { size, count })
}

fn ring(text: &str) -> Result<u64, String> {
    let bytes = size(text)?;
    match ring_size_ok(bytes) {
        true => Ok(bytes),
        false => Err(format!(
            "a power of two from {}K to {}G is wanted",
            RING_MIN >> 10,
            RING_MAX >> 30
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_two_ends_of_one_family() {
        assert!(connection("127.0.0.1:80-127.0.0.1:40000").is_ok());
        assert!(connection("[::1]:80-[::1]:40000").is_ok());
        for wrong in ["", "127.0.0.1:80", "a-b", "127.0.0.1:80-[::1]:5", "1-2"] {
            assert!(connection(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn files_in_turn_are_large_enough_for_a_packet_and_not_too_many() {
        let of = |size, count| Ok(Rotation { size, count });
        assert_eq!(rotation("128k:1"), of(128 << 10, 1));
        assert_eq!(rotation("1G:1000"), of(1 << 30, 1000));
        for wrong in ["", "1M", ":3", "1M:0", "1M:1001", "127k:3", "1M:-1", "x:3"] {
            assert!(rotation(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rings_are_powers_of_two_within_bounds() {
        assert_eq!((ring("256k"), ring("1G")), (Ok(256 << 10), Ok(1 << 30)));
        for wrong in ["128k", "3M", "2G", "x"] {
            assert!(ring(wrong).is_err(), "{wrong}");
        }
    }
}
