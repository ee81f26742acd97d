//! `memlane-bench`: memlane beside what else there is, in one run. It is a program of its own, never installed.
//!
//! | room | what |
//! |---|---|
//! | `suites/` | what is measured, and the drivers: `sockets`, `containers`, `machines`, `counted`, `kernels`, `blocks`, `packets`, `devmem` |
//! | `runner/` | flags, the plan, rounds, processes, CPUs, and the record of what was seen |
//! | `sample` | the one schema of all figures |
//! | `catalogue` (`published`) | what tables and plots show, what should be reached, what others published |
//! | `figures` | ratios, whether an aim was reached, and whether its rounds agree on that |
//! | `render/` | tables, plots, the page, `RESULTS.md` |
//! | `compare` | an older run against a newer one |
//! | `gate` | an older build against this one, by turns |
//! | `hot_paths` | both ends of one hot path in one thread, for tools that count instructions |
//! | `demo` | a few stock programs over TCP and over memlane |
//! | `hist`, `spread` | a histogram; medians, and numbers for people |
//! | `out`, `exit` | what is printed; exit codes |
//!
//! Suites know `runner`, `runner` and `render` know `sample`, `catalogue` and `figures`, and only this file and `demo` know both
//! suites and `render`.

mod catalogue;
mod compare;
mod demo;
mod exit;
mod figures;
#[cfg(test)]
mod fixtures;
mod gate;
mod hist;
mod hot_paths;
mod out;
mod published;
mod render;
mod runner;
mod sample;
mod spread;
mod suites;

use std::process::ExitCode;

use clap::Parser;

use exit::Exit;
use runner::options::Options;
use suites::{blocks, containers, counted, devmem, guest, kernels, machines, packets, sockets};

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
        #[command(flatten)]
        options: Options,
        #[command(flatten)]
        output: render::Output,
        #[command(subcommand)]
        suite: Suite,
    },
    /// Makes tables, plots or a page of recorded runs.
    Render(render::Args),
    /// Says which rows got better or worse, beyond their spread.
    Compare(compare::Args),
    /// Says which rows lost against an older build, measured by turns.
    Gate(gate::Args),
    /// Shows a few stock programs over TCP and over memlane, in about a minute.
    Demo,
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
    /// The socket lane between two network namespaces, by a cable and behind NAT: TCP, sockmap, memlane with its agent.
    Containers,
    /// The socket lane between two emulated machines, and with their host: TCP over virtual network cards, memlane.
    Machines,
    /// The socket lane, TCP and the kernel's SMC-D loopback by instructions, on one CPU of an emulated machine.
    Counted,
    /// Volumes over a network and sockets beside the kernel's own, by instructions, on one CPU of an emulated machine.
    Kernels,
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
    /// The half of `run counted` and `run kernels` that is in the guest.
    Guest(guest::inside::Inside),
    /// Two TAP devices, joined in the simplest way.
    Copier(packets::copier::Copier),
    /// Both ends of one hot path, in one thread.
    Path(hot_paths::Load),
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
        Verb::Run {
            options,
            output,
            suite,
        } => run(&suite, &options, &output),
        Verb::Render(args) => render::run(&args, &suites::catalogues()),
        Verb::Compare(args) => compare::run(&args),
        Verb::Gate(args) => gate(&args),
        Verb::Demo => demo::run(),
        Verb::Peer { peer } => be(&peer),
    };
    done.unwrap_or_else(|error| {
        out::warn(&format!("{error:#}"));
        exit::code_of(&error).into()
    })
}

fn run(suite: &Suite, options: &Options, output: &render::Output) -> anyhow::Result<ExitCode> {
    runner::sys::watch_for_interrupts();
    let run = match suite {
        Suite::Sockets(more) => sockets::run(options, more),
        Suite::Containers => containers::run(options),
        Suite::Machines => machines::run(options),
        Suite::Counted => counted::run(options),
        Suite::Kernels => kernels::run(options),
        Suite::Blocks(more) => blocks::run(options, more),
        Suite::Packets(more) => packets::run(options, more),
        Suite::Devmem(more) => devmem::run(options, more),
    }?;
    render::show(output, &run, &suites::catalogues())
}

fn gate(args: &gate::Args) -> anyhow::Result<ExitCode> {
    runner::sys::watch_for_interrupts();
    gate::run(args, &suites::catalogues())
}

fn be(peer: &Peer) -> anyhow::Result<ExitCode> {
    let done = match peer {
        Peer::Embedded { half } => sockets::peer::run(half),
        Peer::Pump(pump) => packets::pump::run(pump),
        Peer::Hand(hand) => sockets::native::hand::run(hand),
        Peer::Guest(inside) => guest::inside::run(inside),
        Peer::Copier(copier) => packets::copier::run(copier),
        Peer::Hose(hose) => devmem::hose::run(hose),
        Peer::Load(load) => blocks::load::run(load),
        Peer::Path(load) => hot_paths::run(load),
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
