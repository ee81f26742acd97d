//! `memlane exporter`: shows the counters of all lanes of this machine to Prometheus.

mod lanes;
mod ledger;
mod sockets;
mod textfile;

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use memlane_observe::processes::Survey;
use prometheus_client::registry::Registry;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::cli::out;
use crate::cli::values::duration;
use crate::daemon::metrics::{self, Format, gauges, labels};
use crate::daemon::service;
use ledger::Ledger;

/// Export the counters of all lanes to Prometheus, over HTTP or in a file.
///
/// The socket lane's counters cover all processes under memlane that you may examine: your own, or everybody's as root or
/// with CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH. They are summed by the name of the program, and with --by-container by its
/// container, too. Packet and block counters are those of your own memlane net processes, sessions and servers.
///
/// Counters start when a process starts; memlane stats reset does not change them. Counters of processes that have ended
/// stay in the sums as long as the exporter runs.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Listen here and serve /metrics [default without --textfile: 127.0.0.1:9469]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Write this file for node_exporter's textfile collector; the name must end in .prom; - for stdout
    #[arg(long, value_name = "PATH", value_parser = textfile::path)]
    textfile: Option<PathBuf>,
    /// Write the file again after this time [default: write once, or every 15s with --listen]
    #[arg(long, value_name = "TIME", value_parser = duration, requires = "textfile")]
    interval: Option<Duration>,
    /// Sum programs in containers by container, too: with the labels container, and namespace and pod in Kubernetes. The
    /// series of a container stay for 10 minutes after its end
    #[arg(long)]
    by_container: bool,
}

const PORT: u16 = 9469;

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let end = service::bell_of_the_end()?;
    let page = Page(Arc::new(Mutex::new(Ledger::new(args.by_container))));
    let listens = args.listen.is_some() || args.textfile.is_none();
    if listens {
        let at = args.listen.unwrap_or(([127, 0, 0, 1], PORT).into());
        let shown = page.clone();
        let at = metrics::serve_text(at, move |format| shown.text(format))
            .with_context(|| format!("cannot listen at {at}"))?;
        out::print(&format!("http://{at}/metrics\n"))?;
    }
    let Some(file) = &args.textfile else {
        service::ready();
        return service::wait_for_the_end(&end);
    };
    textfile::write(file, &page.text(Format::Classic))?;
    let pause = match (args.interval, listens) {
        (Some(pause), _) => pause.max(Duration::from_millis(100)),
        (None, true) => Duration::from_secs(15),
        (None, false) => return Ok(()),
    };
    service::ready();
    again_and_again(file, &page, pause, &end)
}

fn again_and_again(
    file: &std::path::Path,
    page: &Page,
    pause: Duration,
    end: &OwnedFd,
) -> anyhow::Result<()> {
    let pause = Timespec::try_from(pause)?;
    loop {
        let mut polled = [PollFd::new(end, PollFlags::IN)];
        match poll(&mut polled, Some(&pause)) {
            Ok(0) => {
                // The error may pass (a full disk): the old file stays until then.
                if let Err(error) = textfile::write(file, &page.text(Format::Classic)) {
                    out::warn(&format!("{error:#}"));
                }
            }
            Ok(_) => {
                service::stopping();
                return Ok(());
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// What the exporter shows, with the counters of processes that have ended.
#[derive(Clone)]
struct Page(Arc<Mutex<Ledger>>);

impl Page {
    fn text(&self, format: Format) -> String {
        let mut ledger = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut own = Registry::with_prefix("memlane");
        let mut registries = Vec::new();
        let survey = Survey::all().unwrap_or_default();
        let programs = ledger.update(&survey);
        registries.push(sockets::page(&programs));
        let told = lanes::ask();
        registries.extend(told.registries);
        about(&mut own, &survey, told.silent);
        registries.push(own);
        metrics::text(&registries, format)
    }
}

/// Metrics of the exporter itself: its version, and what it could not read.
fn about(registry: &mut Registry, survey: &Survey, silent: u64) {
    let one = |value| std::iter::once((labels(&[], &[]), value));
    let version = labels(&[("version", env!("CARGO_PKG_VERSION"))], &[]);
    gauges(
        registry,
        "build_info",
        "Always 1; the label has the version",
        std::iter::once((version, 1)),
    );
    gauges(
        registry,
        "exporter_processes_unreadable",
        "Processes of other users that could not be read",
        one(survey.unreadable),
    );
    gauges(
        registry,
        "exporter_pages_skipped",
        "Processes whose stats page was rejected",
        one(survey.bad_pages.len() as u64),
    );
    gauges(
        registry,
        "exporter_silent_processes",
        "Servers, sessions and memlane net processes that did not answer",
        one(silent),
    );
}
