//! `memlane net`: Ethernet frames between interfaces, files and other processes.

mod link;
mod place;

/// Ethernet frames between interfaces, files and other processes
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand, Debug)]
enum Verb {
    Link(link::Args),
}

impl Args {
    pub(crate) fn json(&self) -> bool {
        match &self.verb {
            Verb::Link(args) => args.json,
        }
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    match &args.verb {
        Verb::Link(args) => link::run(args),
    }
}
