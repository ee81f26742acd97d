//! `memlane agent`: introduces processes of different network namespaces to each other.

mod device;
mod install;
mod told;

pub(crate) use told::{Told, metrics_of, of_domain};

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use memlane_agent::across::relay::Tally;
use memlane_agent::kernel::Looker;
use memlane_agent::server::{Agent, Counts, News};
use memlane_socket::config::{DEFAULT_DOMAIN, DOMAIN_LEN};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::CapabilitySet;

use crate::cli::device::Device;
use crate::cli::exit::{Exit, fail};
use crate::cli::out;
use crate::daemon::service;

/// Introduce programs of different network namespaces to each other.
///
/// Programs under memlane run find each other by themselves within one network namespace. Between two, such as those of two
/// containers, they ask this agent, which proves from the kernel's own numbers that two sockets are the ends of one TCP
/// connection, whatever NAT lies between. It needs Linux 6.1 with type information (BTF), and CAP_BPF and CAP_PERFMON on the
/// host; it gives up all other capabilities.
///
/// A directory is a trust domain: programs that can reach its socket may be introduced to each other. Mount it into the
/// containers that belong together, read-only.
#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// The directory of each domain; made if it is not there [default: /run/memlane/default]
    #[arg(value_name = "DIR", value_parser = directory)]
    domains: Vec<PathBuf>,
    /// Serve each directory of this folder as a domain, also those that appear later, until they are gone
    #[arg(long = "domains", value_name = "FOLDER", value_parser = directory)]
    folder: Option<PathBuf>,
    /// Introduce the domain's programs to those of other machines, too, which share this memory: the file of the host, or
    /// ivshmem:auto in a guest. Every machine that has it can read and write all of it
    #[arg(long, value_name = "ivshmem:PATH", conflicts_with = "folder")]
    device: Option<Device>,
    /// A file with this boot's name: for tests
    #[arg(long, value_name = "FILE", hide = true)]
    boot_id: Option<PathBuf>,
    /// Print what was done each minute, and at the end
    #[arg(long)]
    verbose: bool,
}

#[derive(clap::Subcommand, Debug)]
enum Verb {
    Install(install::Install),
    Machines(device::Machines),
    Forget(device::Forget),
}

/// How often `--verbose` prints.
const MINUTE: Duration = Duration::from_secs(60);

fn directory(text: &str) -> Result<PathBuf, String> {
    match text.starts_with('/') && text.len() <= DOMAIN_LEN {
        true => Ok(text.into()),
        false => Err(format!(
            "expected an absolute path of at most {DOMAIN_LEN} bytes"
        )),
    }
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    match &args.verb {
        Some(Verb::Install(install)) => install::run(install),
        Some(Verb::Machines(machines)) => device::print(machines),
        Some(Verb::Forget(forget)) => device::forget(forget),
        None => serve(args),
    }
}

fn serve(args: Args) -> anyhow::Result<()> {
    let end = service::bell_of_the_end()?;
    let looker = Looker::open().map_err(|e| fail(Exit::Unsupported, e.to_string()))?;
    let mut agent = Agent::new(looker)?;
    let domains = match args.domains.is_empty() && args.folder.is_none() {
        true => vec![PathBuf::from(DEFAULT_DOMAIN)],
        false => args.domains,
    };
    for domain in &domains {
        agent.serve(domain).with_context(|| match domain.exists() {
            true => format!("cannot serve {} (does another agent?)", domain.display()),
            false => format!("cannot make {}", domain.display()),
        })?;
        out::print(&format!("serves {}\n", domain.display()))?;
    }
    if let Some(folder) = &args.folder {
        agent
            .serve_each(folder)
            .with_context(|| format!("cannot serve what is in {}", folder.display()))?;
        out::print(&format!("serves each domain in {}\n", folder.display()))?;
        print_news(&mut agent)?;
    }
    let region = match (&args.device, domains.as_slice()) {
        (None, _) => None,
        (Some(device), [domain]) => {
            let boot_id = args.boot_id.as_deref();
            Some(device::share(&mut agent, domain, device, boot_id)?)
        }
        (Some(_), _) => {
            anyhow::bail!("the memory of --device belongs to one domain: name one directory")
        }
    };
    let _ = keep_only_what_looking_needs();
    // An agent that cannot be asked serves all the same.
    let teller = told::Teller::start(agent.domains(), args.folder, region)
        .inspect_err(|e| {
            out::warn(&format!(
                "memlane info and the exporter cannot ask this agent: {e}"
            ))
        })
        .ok();
    service::ready();
    let mut told = Instant::now();
    loop {
        let mut polled = [
            PollFd::new(&end, PollFlags::IN),
            PollFd::from_borrowed_fd(agent.descriptor(), PollFlags::IN),
        ];
        let limit = Timespec::try_from(agent.until_next().min(MINUTE))?;
        match poll(&mut polled, Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let over = polled[0].revents().contains(PollFlags::IN);
        if args.verbose && (over || told.elapsed() >= MINUTE) {
            out::print(&line(&agent.counts()))?;
            if let Some(tally) = agent.tally() {
                out::print(&line_across(&tally))?;
            }
            told = Instant::now();
        }
        if over {
            service::stopping();
            return Ok(());
        }
        agent.turn(Duration::ZERO)?;
        let is_changed = print_news(&mut agent)?;
        if let Some(teller) = &teller {
            teller.tell(&agent, is_changed);
        }
    }
}

/// Prints what has happened in the folder of domains. `true`: something has.
fn print_news(agent: &mut Agent) -> anyhow::Result<bool> {
    let news = agent.news();
    for what in &news {
        match what {
            News::Serves(domain) => out::print(&format!("serves {}\n", domain.display()))?,
            News::Closed(domain) => {
                out::print(&format!("no longer serves {}\n", domain.display()))?
            }
            // A name may have any bytes in it.
            News::Ignored(path, why) => out::warn(&format!("ignores {path:?}: {why}")),
        }
    }
    Ok(!news.is_empty())
}

/// Gives up all capabilities but the two that the iterator needs, or `CAP_SYS_ADMIN`, which stands for both where they are
/// missing. A process without them has none to give up.
fn keep_only_what_looking_needs() -> rustix::io::Result<()> {
    let mut now = rustix::thread::capabilities(None)?;
    let mut needed = CapabilitySet::BPF | CapabilitySet::PERFMON;
    if !now.permitted.contains(needed) {
        needed |= CapabilitySet::SYS_ADMIN;
    }
    now.effective &= needed;
    now.permitted &= needed;
    now.inheritable = CapabilitySet::empty();
    rustix::thread::set_capabilities(None, now)
}

fn line(counts: &Counts) -> String {
    let Counts {
        processes,
        remembered: _,
        questions,
        met,
        nobody,
        not_seen,
        untrusted,
        forged,
        busy,
        no_memory,
        sent_away,
    } = counts;
    format!(
        "{processes} processes, {questions} questions, {met} connections introduced; refused: {nobody} without the other \
         end, {not_seen} not seen, {untrusted} untrusted, {forged} forged, {busy} busy, {no_memory} without shared memory; {sent_away} processes sent \
         away\n"
    )
}

fn line_across(tally: &Tally) -> String {
    let Tally {
        machines,
        met,
        bonds,
        extents,
        extents_of_region,
        no_memory: _,
    } = tally;
    format!(
        "{machines} other machines, {met} connections introduced to their programs, {bonds} pairs of programs share memory, \
         {extents} of {extents_of_region} extents\n"
    )
}
