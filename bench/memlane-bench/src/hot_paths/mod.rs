//! One hot path at a time, with both its ends in one process: the hidden `memlane-bench peer path`. What it executes does
//! not depend on time, so tools that count instructions repeat (`docs/inside/profiling.md`).
//!
//! | room | paths |
//! |---|---|
//! | `sockets` | calls of the standard library on TCP connections, for the preload library |
//! | `sleeps` | waits that sleep until another thread sends |
//! | `left` | TCP connections that stay with TCP |
//! | `by_name` | a stream of the socket lane by name; a stream into device memory |
//! | `packets` | a queue of the packet lane |
//! | `blocks` | a volume over the loopback device |
//! | `counted` | the function that tools count, and what the CPU says of itself |

mod blocks;
mod by_name;
mod counted;
mod left;
mod packets;
mod sleeps;
mod sockets;

use memlane_block::volume::Op;

use crate::out;

/// Messages before anything is counted: connections get their lane, memory is mapped, buffers have grown.
const WARM_UP: u64 = 200;

/// Which path.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
enum Path {
    /// 100 bytes there and back by send and recv: four calls.
    SocketMessage,
    /// 64 KiB by one send, and the recv that takes them.
    SocketStream,
    /// One epoll_wait, with 16 connections in the set and bytes on one.
    SocketEpoll,
    /// One epoll_wait that sleeps until another thread rings.
    SocketSleep,
    /// One poll that sleeps until another thread rings.
    SocketPoll,
    /// 100 bytes there and back over a connection that is left to TCP: a send and a recv.
    SocketLeft,
    /// One epoll_wait, with a connection in the set that is left to TCP.
    SocketWait,
    /// A connection that carries 100 bytes there and back by TCP, from connect to close.
    SocketShort,
    /// 64 bytes by write and read of a stream by name.
    NameMessage,
    /// A frame of 64 bytes from the front to the back, in bursts of 32.
    #[value(name = "packet-tx-64")]
    PacketTx64,
    /// A frame of 1,496 bytes from the front to the back, in bursts of 32.
    #[value(name = "packet-tx-1496")]
    PacketTx1496,
    /// A frame of 64 bytes from the back to the front, in bursts of 32.
    #[value(name = "packet-rx-64")]
    PacketRx64,
    /// A frame of 1,496 bytes from the back to the front, in bursts of 32.
    #[value(name = "packet-rx-1496")]
    PacketRx1496,
    /// A read of 4 KiB, one at a time.
    #[value(name = "block-read-1")]
    BlockRead1,
    /// A read of 4 KiB, 32 at a time.
    #[value(name = "block-read-32")]
    BlockRead32,
    /// A write of 4 KiB, one at a time.
    #[value(name = "block-write-1")]
    BlockWrite1,
    /// A write of 4 KiB, 32 at a time.
    #[value(name = "block-write-32")]
    BlockWrite32,
    /// A fragment of 4 KiB in device memory, and its token back.
    DeviceFragment,
}

/// Sends messages over one hot path, from and to this process.
#[derive(clap::Args, Debug)]
pub(crate) struct Load {
    path: Path,
    /// How many messages; rounded up to whole bursts.
    #[arg(long, default_value_t = 10_000)]
    times: u64,
}

/// Carries the messages, and prints what the CPU says of itself, on which the choice of copies depends.
pub(crate) fn run(load: &Load) -> anyhow::Result<()> {
    let times = load.times;
    match load.path {
        Path::SocketMessage => sockets::messages(times),
        Path::SocketStream => sockets::stream(times),
        Path::SocketEpoll => sockets::epoll(times),
        Path::SocketSleep => sleeps::epoll(times),
        Path::SocketPoll => sleeps::poll(times),
        Path::SocketLeft => left::messages(times),
        Path::SocketWait => left::waits(times),
        Path::SocketShort => left::short(times),
        Path::NameMessage => by_name::messages(times),
        Path::PacketTx64 => packets::front_to_back(64, times),
        Path::PacketTx1496 => packets::front_to_back(1496, times),
        Path::PacketRx64 => packets::back_to_front(64, times),
        Path::PacketRx1496 => packets::back_to_front(1496, times),
        Path::BlockRead1 => blocks::requests(Op::Read, 1, times),
        Path::BlockRead32 => blocks::requests(Op::Read, 32, times),
        Path::BlockWrite1 => blocks::requests(Op::Write, 1, times),
        Path::BlockWrite32 => blocks::requests(Op::Write, 32, times),
        Path::DeviceFragment => by_name::fragments(times),
    }?;
    out::print(&format!("cpu: {}\n", counted::cpu()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum as _;

    #[test]
    fn every_path_that_needs_no_preload_library_carries_its_messages() {
        for path in Path::value_variants() {
            let done = run(&Load {
                path: *path,
                times: 40,
            });
            match path {
                Path::SocketMessage
                | Path::SocketStream
                | Path::SocketEpoll
                | Path::SocketSleep
                | Path::SocketPoll
                | Path::SocketLeft
                | Path::SocketWait
                | Path::SocketShort => {
                    let error = done.expect_err("by TCP").to_string();
                    assert!(error.contains("memory lane"), "{path:?}: {error}");
                }
                _ => done.unwrap_or_else(|error| panic!("{path:?}: {error:#}")),
            }
        }
    }
}
