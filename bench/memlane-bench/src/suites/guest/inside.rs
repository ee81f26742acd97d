//! The half in the guest: it measures what it is told to, line by line.

use std::io::{BufRead as _, Write as _};
use std::path::PathBuf;

use anyhow::Context as _;

use super::{Answer, Request, Told};
use crate::runner::programs::Programs;
use crate::runner::turn::Bench;
use crate::suites::counted::inside::Sockets;
use crate::suites::kernels::inside::Volumes;

/// What each line for the other half begins with; everything else on the console is chatter.
pub(super) const MARK: &str = "measured: ";

/// The half in the guest of `run counted` and `run kernels`: reads requests from standard input, one JSON document a line.
#[derive(clap::Args, Debug)]
pub(crate) struct Inside {
    /// The length of each measurement.
    #[arg(long)]
    seconds: f64,
    /// A library that gives programs SMC sockets.
    #[arg(long)]
    smc: Option<PathBuf>,
}

pub(crate) fn run(args: &Inside) -> anyhow::Result<()> {
    let bench = Bench::new(Programs::find(None)?, args.seconds)?;
    let mut sockets = Sockets::new(&bench, args.smc.clone())?;
    let mut volumes = Volumes::new(&bench);
    tell(&Answer::Ready)?;
    for line in std::io::stdin().lock().lines() {
        let request: Request = serde_json::from_str(&line?).context("a request")?;
        let mut keep = |row: &str, figures: Vec<Told>| tell(&Answer::Row(row.to_owned(), figures));
        let done = match &request {
            Request::Sockets(request) => sockets.measure(request, &mut keep),
            Request::Volumes(request) => volumes.measure(request, &mut keep),
        };
        tell(&Answer::Done(done.err().map(|error| format!("{error:#}"))))?;
    }
    Ok(())
}

fn tell(answer: &Answer) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{MARK}{}", serde_json::to_string(answer)?)?;
    Ok(out.flush()?)
}
