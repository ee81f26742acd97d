//! `memlane trace`: writes what connections under memlane carry to a capture file.

mod capture;
mod flow;
mod packet;
mod work;

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use memlane_core::trace::{RING_MAX, RING_MIN, SEGMENT, ring_size_ok};

use crate::cli::values::size;
use crate::run::options::Options;
use packet::End;

/// Capture the traffic of connections under memlane, for Wireshark, tshark or tcpdump.
///
/// With CMD, this starts the command under memlane and traces it and its children from the first byte on. Otherwise it
/// traces processes that already run, until you interrupt it.
///
/// The capture has the bytes of both lanes as TCP streams, with one interface for each lane: filter with
/// `frame.interface_name == "memlane"`. If a process sends faster than the trace can write, records are dropped and
/// counted, and Wireshark marks the bytes as not captured.
#[derive(clap::Args, Debug)]
#[command(group(clap::ArgGroup::new("whom").required(true).multiple(true)))]
pub(crate) struct Args {
    /// File to write (pcapng), readable by its owner only; - for stdout
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Trace this process, and children that it starts from now on; can be repeated
    #[arg(long, value_name = "PID", group = "whom")]
    pid: Vec<u32>,
    /// Trace connections with this port at either end, of all processes that you may trace (or of --pid)
    #[arg(long, value_name = "PORT", group = "whom", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Trace one connection, such as 127.0.0.1:80-127.0.0.1:40000; either end may come first
    #[arg(long, value_name = "A-B", group = "whom", value_parser = connection, conflicts_with = "port")]
    conn: Option<(SocketAddr, SocketAddr)>,
    /// Write at most this many bytes of each packet's payload
    #[arg(long, value_name = "BYTES", default_value_t = SEGMENT as u64, value_parser = size, hide_default_value = true)]
    snaplen: u64,
    /// Stop when the capture reaches this size (64K, 10M, 1G)
    #[arg(long, value_name = "SIZE", value_parser = size)]
    max_bytes: Option<u64>,
    /// Start a new file when the capture reaches SIZE, and keep COUNT files: FILE is the newest, older ones have .1, .2, …
    /// before the extension
    #[arg(long, value_name = "SIZE:COUNT", value_parser = rotation, conflicts_with = "max_bytes")]
    rotate: Option<Rotation>,
    /// Size of the buffer in each process: a power of two from 256K to 1G
    #[arg(long, value_name = "SIZE", default_value = "16M", value_parser = ring)]
    buffer: u64,
    #[command(flatten)]
    options: Options,
    /// Command to run under memlane and trace, and its arguments
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
    /// The connection of `--conn`, lower end first.
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
            "expected both ends, such as 127.0.0.1:80-127.0.0.1:40000 or [::1]:80-[::1]:40000"
                .to_owned()
        })
}

fn family(ip: IpAddr) -> bool {
    ip.to_canonical().is_ipv4()
}

/// The value of `--rotate`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Rotation {
    size: u64,
    count: u32,
}

/// Smallest file, in bytes: it holds the head of a capture and the longest packet.
const ROTATE_LEAST: u64 = 128 << 10;
/// Most files to keep. Each change of files renames all of them.
const ROTATE_MOST: u32 = 1000;

fn rotation(text: &str) -> Result<Rotation, String> {
    let (bytes, count) = text
        .split_once(':')
        .ok_or("expected a size and a number of files, such as 100M:5")?;
    let (size, count) = (size(bytes)?, count.parse().unwrap_or(0));
    if size < ROTATE_LEAST || !(1..=ROTATE_MOST).contains(&count) {
        return Err(format!(
            "expected a size of {}K or more, and 1 to {ROTATE_MOST} files",
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
            "expected a power of two from {}K to {}G",
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
