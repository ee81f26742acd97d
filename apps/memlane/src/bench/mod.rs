//! `memlane bench`: memlane beside what else there is, in one run.
//!
//! | room | what |
//! |---|---|
//! | `sockets/` | the socket lane |
//! | `blocks/` | the block lane |
//! | `packets/` | the packet lane |
//! | `devmem/` | the device-memory lane |
//! | `beside/`, `published` | what benches of systems side by side have in common |
//! | `reading` | figures by row, system and round |
//! | `proc`, `sys` | programs that are pinned, bounded and always ended |
//! | `parse`, `hist` | what the tools print; a histogram |
//! | `lane` | which lane the bytes took |
//! | `spread`, `machine`, `plot` | figures, where they were taken, pictures |
//! | `progress`, `cables` | what is left; two machines of one kernel |

mod beside;
mod blocks;
mod cables;
mod devmem;
mod hist;
mod lane;
mod machine;
mod packets;
mod parse;
mod plot;
mod proc;
mod progress;
mod published;
mod reading;
#[cfg(test)]
mod shape;
mod sockets;
mod spread;
mod sys;

use std::process::ExitCode;

use crate::exit::Exit;

/// Measures memlane beside what else there is, on this machine.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand, Debug)]
enum What {
    /// The socket lane in both modes, TCP and UNIX domain sockets: stock programs, sizes, connections; by name, iceoryx2.
    Sockets(sockets::Sockets),
    /// The block lane: volumes, and the network block devices of others.
    Blocks(blocks::Blocks),
    /// The packet lane: three modes, TCP between namespaces, DPDK's testpmd.
    Packets(packets::Packets),
    /// The device-memory lane: paths, copies, tokens, tensors.
    Devmem(devmem::Devmem),
    /// Requests over the API of the block lane.
    #[command(hide = true)]
    Load(blocks::load::Load),
    /// One end of a queue of the packet lane or memif.
    #[command(hide = true)]
    Pump(packets::pump::Pump),
    /// One end of a stream into device memory.
    #[command(hide = true)]
    Hose(devmem::hose::Hose),
    /// One end of memory that is handed over.
    #[command(hide = true)]
    Hand(sockets::native::hand::Hand),
    /// Two TAP devices, joined in the simplest way.
    #[command(hide = true)]
    Copier(packets::copier::Copier),
    /// One half of the embedded pair.
    #[command(hide = true)]
    Peer {
        #[command(subcommand)]
        half: sockets::peer::Peer,
    },
}

/// The length of a measurement.
fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.2..=3600.0).contains(&value) => Ok(value),
        _ => Err("a number of seconds from 0.2 to 3600".to_owned()),
    }
}

/// Runs the bench.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.what {
        What::Peer { half } => sockets::peer::run(&half),
        What::Sockets(options) => sockets::run(&options),
        What::Blocks(options) => blocks::run(&options),
        What::Packets(options) => packets::run(&options),
        What::Devmem(options) => devmem::run(&options),
        What::Pump(pump) => packets::pump::run(&pump).map(|()| Exit::Ok.into()),
        What::Hand(hand) => sockets::native::hand::run(&hand).map(|()| Exit::Ok.into()),
        What::Copier(copier) => packets::copier::run(&copier).map(|()| Exit::Ok.into()),
        What::Hose(hose) => devmem::hose::run(&hose).map(|()| Exit::Ok.into()),
        What::Load(load) => blocks::load::run(&load).map(|()| Exit::Ok.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_have_bounds() {
        assert!(seconds("0.5").is_ok());
        assert!(seconds("0").is_err() && seconds("-1").is_err() && seconds("NaN").is_err());
    }
}
