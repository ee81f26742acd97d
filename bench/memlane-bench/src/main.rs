//! `memlane-bench`: memlane beside what else there is, in one run. It is a program of its own, never installed.
//!
//! | room | what |
//! |---|---|
//! | `suites/` | what is measured, and the drivers: `sockets`, `blocks`, `packets`, `devmem` |
//! | `runner/` | rounds, processes, CPUs, and the record of what was seen |
//! | `sample` | the one schema of all figures |
//! | `render/` | tables, plots, the page, `RESULTS.md` |
//! | `compare` | an older run against a newer one |
//! | `hist`, `units` | a histogram; sizes |
//! | `out`, `exit` | what is printed; exit codes |

mod compare;
mod exit;
mod hist;
mod out;
mod render;
mod runner;
mod sample;
#[cfg(test)]
mod shape;
mod suites;
mod units;

use std::process::ExitCode;

use clap::Parser;

use exit::Exit;
use suites::{blocks, devmem, packets, sockets};

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
    /// Makes tables, plots or a page of recorded runs.
    Render(render::Args),
    /// Says which rows got better or worse, beyond their spread.
    Compare(compare::Args),
    /// Shows a few stock programs over TCP and over memlane, in about a minute.
    Demo(sockets::demo::Demo),
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

fn main() -> ExitCode {
    // Help and mistakes in the arguments end the program here: with 0 and 2.
    let cli = Cli::parse();
    let done = match cli.verb {
        Verb::Run { suite } => run(&suite),
        Verb::Render(args) => render::run(&args),
        Verb::Compare(args) => compare::run(&args),
        Verb::Demo(args) => sockets::demo::run(&args),
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
}
