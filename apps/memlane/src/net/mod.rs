//! `memlane net`: Ethernet frames between interfaces, files and other processes.
//!
//! | room | what |
//! |---|---|
//! | `args` | what the verbs are told; what does not go together |
//! | `place`, `options` | ends, as their users write them |
//! | `region` | an end that puts payload into device memory |
//! | `attach`, `work` | a link that comes to be; two ends that are joined |
//! | `lend` | a device that another process joins |
//! | `watched`, `documents` | what is shown while they are; in which words |
//! | `stats`, `metrics`, `progress` | to whom: a verb, Prometheus, a terminal |

mod args;
mod attach;
mod documents;
mod lend;
mod metrics;
mod namespace;
mod options;
mod place;
mod progress;
mod region;
mod stats;
mod watched;
mod work;

pub(crate) use documents::Process;
pub(crate) use metrics::page as metrics_of;

use crate::cli::exit::Exit;

/// Ethernet frames between interfaces, files and other processes
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand, Debug)]
enum Verb {
    Link(args::LinkArgs),
    Back(args::BackArgs),
    Front(args::FrontArgs),
    Lend(lend::LendArgs),
    Gen(args::GenArgs),
    Sink(args::SinkArgs),
    Stats(stats::Args),
}

impl Args {
    pub(crate) fn json(&self) -> bool {
        match &self.verb {
            Verb::Link(args) => args.json(),
            Verb::Back(args) => args.json(),
            Verb::Front(args) => args.json(),
            // It counts nothing: who borrows the device does.
            Verb::Lend(_) => false,
            Verb::Gen(args) => args.json(),
            Verb::Sink(args) => args.json(),
            Verb::Stats(args) => args.json,
        }
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<Exit> {
    let job = match &args.verb {
        Verb::Link(args) => args.job(),
        Verb::Back(args) => args.job(),
        Verb::Front(args) => args.job(),
        Verb::Lend(args) => return lend::run(args),
        Verb::Gen(args) => args.job(),
        Verb::Sink(args) => args.job(),
        Verb::Stats(args) => return stats::run(args).map(|()| Exit::Ok),
    };
    work::run(&job?)
}
