//! The process behind a mapping: how it is started, listens to the verbs, and ends. What it holds is a [`Host`].

use std::cell::Cell;
use std::io::{Read as _, Write as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use memlane_observe::control::{self, Role};

use super::documents;
use super::host::{FileHost, Host, SessionHost};
use super::metrics;
use super::requests::Request;
use super::spec::{MapSpec, ProcessSpec};
use crate::daemon::service;

/// A process without volumes ends after so long.
const IDLE: Duration = Duration::from_secs(10);

/// The hidden verb: becomes the process behind a mapping.
pub(crate) fn in_background() -> anyhow::Result<()> {
    let mut text = Vec::new();
    std::io::stdin().read_to_end(&mut text)?;
    let spec: ProcessSpec = serde_json::from_slice(&text).context("what to do")?;
    let _ = rustix::process::setsid();
    let Ok(listener) = control::Listener::bind(Role::Session, spec.name()) else {
        println!("taken");
        return Ok(());
    };
    let metrics = spec.metrics();
    match spec {
        ProcessSpec::Session(spec) => serve(&listener, SessionHost::open(&spec)?, metrics),
        ProcessSpec::File(spec) => serve(&listener, FileHost::new(spec)?, metrics),
    }
}

fn serve<H: Host>(
    listener: &control::Listener,
    host: H,
    metrics: Option<std::net::SocketAddr>,
) -> anyhow::Result<()> {
    let host = Arc::new(Mutex::new(host));
    watch(&host, true)?;
    serve_metrics(&host, metrics)?;
    println!("ready");
    leave_the_terminal()?;
    let (mut had_volumes, gives_way) = (false, Cell::new(false));
    listener.serve_until(
        |request| {
            let mut host = locked(&host);
            let said = match request {
                Request::GiveWay => {
                    // One that was just started waits for its first volume.
                    gives_way.set(had_volumes && host.idle_since().is_some());
                    Ok(gives_way.get().into())
                }
                request => host.obey(request),
            };
            had_volumes |= host.idle_since().is_none();
            crate::cli::exit::reply(said)
        },
        || gives_way.get() || locked(&host).ends_at_once(),
    );
    locked(&host).close()
}

/// Ends the process of this name, if it has no volume any more and only waits for another one. Returns whether it has
/// ended.
pub(super) fn end_if_emptied(name: &str) -> bool {
    let said = control::ask(Role::Session, name, &Request::GiveWay);
    matches!(said, Ok(Some(serde_json::Value::Bool(true)))) && wait_for(name, false)
}

/// Waits until such a process answers, or has gone. Returns whether that happened in time.
pub(super) fn wait_for(name: &str, there: bool) -> bool {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(5) {
        let said = control::ask(Role::Session, name, &Request::Describe);
        if said.is_ok_and(|said| said.is_some() == there) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}

/// The verb stays: maps one volume, and ends the mapping when it is interrupted.
pub(super) fn in_foreground(spec: ProcessSpec, mapping: MapSpec, json: bool) -> anyhow::Result<()> {
    let bind = || control::Listener::bind(Role::Session, spec.name());
    let bound = match bind() {
        Err(_) if end_if_emptied(spec.name()) => bind(),
        bound => bound,
    };
    let listener = bound.with_context(|| spec.is_taken(&mapping.volume))?;
    let (name, metrics) = (spec.name().to_owned(), spec.metrics());
    let show = |place: &str, volume: &str| documents::tell_place(&name, volume, place, json);
    match spec {
        ProcessSpec::Session(spec) => {
            stay(listener, SessionHost::open(&spec)?, mapping, metrics, show)
        }
        ProcessSpec::File(spec) => stay(listener, FileHost::new(spec)?, mapping, metrics, show),
    }
}

fn stay<H: Host>(
    listener: control::Listener,
    mut host: H,
    mapping: MapSpec,
    metrics: Option<std::net::SocketAddr>,
    show: impl FnOnce(&str, &str) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let volume = mapping.volume.clone();
    // Until the volume is there, a signal ends the process at once: the server may take long to answer.
    let place = host.map(mapping)?;
    let end = service::bell_of_the_end()?;
    let host = Arc::new(Mutex::new(host));
    watch(&host, false)?;
    serve_metrics(&host, metrics)?;
    show(&place, &volume)?;
    service::ready();
    let obeyed = Arc::clone(&host);
    std::thread::Builder::new()
        .name("control".into())
        .spawn(move || {
            listener.serve(move |request| crate::cli::exit::reply(locked(&obeyed).obey(request)))
        })?;
    service::wait_for_the_end(&end)?;
    locked(&host).close()
}

fn locked<H>(host: &Mutex<H>) -> std::sync::MutexGuard<'_, H> {
    host.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whoever started us may close the terminal.
fn leave_the_terminal() -> anyhow::Result<()> {
    std::io::stdout().flush()?;
    let null = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

fn serve_metrics<H: Host>(
    host: &Arc<Mutex<H>>,
    at: Option<std::net::SocketAddr>,
) -> anyhow::Result<()> {
    let Some(at) = at else { return Ok(()) };
    let host = Arc::clone(host);
    metrics::serve(at, move || {
        metrics::of_sessions(&[locked(&host).describe()])
    })
    .map(drop)
    .with_context(|| format!("metrics at {at}"))
}

/// A thread that notices what changes; if `ends`, it ends the process when nothing is mapped any more.
fn watch<H: Host>(host: &Arc<Mutex<H>>, ends: bool) -> anyhow::Result<()> {
    let host = Arc::clone(host);
    let changes = locked(&host).changes();
    std::thread::Builder::new()
        .name("watch".into())
        .spawn(move || {
            loop {
                let left = {
                    let mut host = locked(&host);
                    host.look();
                    let idle = idle_left(&*host).filter(|_| ends);
                    idle.into_iter().chain(host.looks_every()).min()
                };
                changes.wait(left);
                let mut host = locked(&host);
                if ends && idle_left(&*host).is_some_and(|left| left.is_zero()) {
                    let _ = host.close();
                    std::process::exit(0);
                }
            }
        })?;
    Ok(())
}

/// How long it goes on without a volume, if it has none.
fn idle_left<H: Host>(host: &H) -> Option<Duration> {
    let since = host.idle_since()?;
    Some(IDLE.saturating_sub(since.elapsed()))
}
