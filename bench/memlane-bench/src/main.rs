//! `memlane-bench`: memlane beside what else there is, in one run. It is a program of its own, never installed.
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
//! | `programs`, `out`, `exit`, `units` | where the programs are; what is printed; exit codes; sizes |

mod beside;
mod blocks;
mod cables;
mod devmem;
mod exit;
mod hist;
mod lane;
mod machine;
mod out;
mod packets;
mod parse;
mod plot;
mod proc;
mod programs;
mod progress;
mod published;
mod reading;
#[cfg(test)]
mod shape;
mod sockets;
mod spread;
mod sys;
mod units;

use std::process::ExitCode;

use clap::Parser;

use exit::Exit;

/// Measures memlane beside what else there is, on this machine.
#[derive(Parser, Debug)]
#[command(name = "memlane-bench", version)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand, Debug)]
enum Verb {
    /// Measures one lane beside its peers.
    Run {
        #[command(subcommand)]
        suite: Suite,
    },
    /// The other end of a measurement.
    #[command(hide = true)]
    Peer {
        #[command(subcommand)]
        peer: Peer,
    },
}

#[derive(clap::Subcommand, Debug)]
enum Suite {
    /// The socket lane in both modes, TCP and UNIX domain sockets: stock programs, sizes, connections; by name, iceoryx2.
    Sockets(sockets::Sockets),
    /// The block lane: volumes, and the network block devices of others.
    Blocks(blocks::Blocks),
    /// The packet lane: three modes, TCP between namespaces, DPDK's testpmd.
    Packets(packets::Packets),
    /// The device-memory lane: paths, copies, tokens, tensors.
    Devmem(devmem::Devmem),
}

/// The programs that a suite starts at both ends of what it measures.
#[derive(clap::Subcommand, Debug)]
enum Peer {
    /// Requests over the API of the block lane.
    Load(blocks::load::Load),
    /// One end of a queue of the packet lane or memif.
    Pump(packets::pump::Pump),
    /// One end of a stream into device memory.
    Hose(devmem::hose::Hose),
    /// One end of memory that is handed over.
    Hand(sockets::native::hand::Hand),
    /// Two TAP devices, joined in the simplest way.
    Copier(packets::copier::Copier),
    /// One half of the embedded pair.
    Embedded {
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

fn main() -> ExitCode {
    // Help and mistakes in the arguments end the program here: with 0 and 2.
    let cli = Cli::parse();
    let done = match cli.verb {
        Verb::Run { suite } => run(&suite),
        Verb::Peer { peer } => be(&peer),
    };
    done.unwrap_or_else(|error| {
        out::warn(&format!("{error:#}"));
        exit::code_of(&error).into()
    })
}

fn run(suite: &Suite) -> anyhow::Result<ExitCode> {
    match suite {
        Suite::Sockets(options) => sockets::run(options),
        Suite::Blocks(options) => blocks::run(options),
        Suite::Packets(options) => packets::run(options),
        Suite::Devmem(options) => devmem::run(options),
    }
}

fn be(peer: &Peer) -> anyhow::Result<ExitCode> {
    let done = match peer {
        Peer::Embedded { half } => return sockets::peer::run(half),
        Peer::Pump(pump) => packets::pump::run(pump),
        Peer::Hand(hand) => sockets::native::hand::run(hand),
        Peer::Copier(copier) => packets::copier::run(copier),
        Peer::Hose(hose) => devmem::hose::run(hose),
        Peer::Load(load) => blocks::load::run(load),
    };
    done.map(|()| Exit::Ok.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_flags_are_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn seconds_have_bounds() {
        assert!(seconds("0.5").is_ok());
        assert!(seconds("0").is_err() && seconds("-1").is_err() && seconds("NaN").is_err());
    }
}
