//! Programs in Go, linked with libc as Go does where it finds a C compiler: an echo, net/http with wrk, and net/http's
//! proxy between wrk and nginx. They are compiled once.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;

use super::super::trial::{Address, Place, Reading, Trial};
use super::super::works::Line;
use super::{embedded, nginx};
use crate::runner::proc::{Job, Service, confined, find_program, free_port};

const SOURCE: &str = include_str!("ends.go");
const PAGE: &str = "index.html";
/// For the compiler, which compiles net/http for the first time.
const LIMIT: Duration = Duration::from_secs(180);

pub(super) fn measure(
    trial: &Trial<'_>,
    kept: &mut Option<PathBuf>,
    line: &Line,
) -> anyhow::Result<Reading> {
    let program = with_libc(trial, kept)?;
    match line.args {
        ["echo"] => echo(trial, program, line),
        ["http", threads, connections] => http(trial, program, line, [*threads, *connections]),
        ["proxy", threads, connections] => proxy(trial, program, line, [*threads, *connections]),
        _ => anyhow::bail!("a row without its arguments"),
    }
}

fn echo(trial: &Trial<'_>, program: &str, line: &Line) -> anyhow::Result<Reading> {
    let (server, port) = serve(trial, program, Place::SERVER, &["echo"], &[])?;
    let at = format!("{}:{port}", trial.network.reached());
    let seconds = trial.bench.seconds.to_string();
    let client = trial.command(Place::CLIENT, program, &["ask", &at, &seconds])?;
    embedded::reading(line.id, "msg/s", trial.run(&server, client)?)
}

fn http(
    trial: &Trial<'_>,
    program: &str,
    line: &Line,
    [threads, connections]: [&str; 2],
) -> anyhow::Result<Reading> {
    let (server, port) = serve(trial, program, Place::SERVER, &["http"], &[])?;
    let wrk = nginx::wrk(trial, Place::CLIENT, port, [threads, connections, PAGE])?;
    let ran = trial.run(&server, wrk)?;
    nginx::reading(line.id, PAGE, ran)
}

fn proxy(
    trial: &Trial<'_>,
    program: &str,
    line: &Line,
    [threads, connections]: [&str; 2],
) -> anyhow::Result<Reading> {
    let place = Place::SERVER.on_both_cpus();
    let (nginx, backend) = nginx::serve(trial, place)?;
    let backend = format!("{}:{backend}", trial.network.reached());
    let (proxy, port) = serve(trial, program, place, &["proxy"], &[&backend])?;
    let client = Place::CLIENT.on_both_cpus();
    let wrk = nginx::wrk(trial, client, port, [threads, connections, PAGE])?;
    let ran = trial.run_through(&[&proxy, &nginx], wrk)?;
    nginx::reading(line.id, PAGE, ran)
}

fn serve(
    trial: &Trial<'_>,
    program: &str,
    place: Place,
    what: &[&str],
    more: &[&str],
) -> anyhow::Result<(Service, u16)> {
    let port = free_port()?;
    let at = format!("{}:{port}", trial.network.listens());
    let args = [what, &[&at], more].concat();
    let command = trial.command(place, program, &args)?;
    Ok((trial.serve(command, &Address::Port(port))?, port))
}

/// How the program is linked: the value of `CGO_ENABLED`.
#[derive(Clone, Copy)]
pub(super) enum Linked {
    WithLibc,
    Static,
}

/// The program that is linked with libc.
pub(super) fn with_libc<'a>(
    trial: &Trial<'_>,
    kept: &'a mut Option<PathBuf>,
) -> anyhow::Result<&'a str> {
    let program = match kept {
        Some(program) => program,
        None => kept.insert(compiled(trial, Linked::WithLibc)?),
    };
    program.to_str().context("a path that is not UTF-8")
}

pub(super) fn compiled(trial: &Trial<'_>, linked: Linked) -> anyhow::Result<PathBuf> {
    let scratch = &trial.bench.scratch;
    let folder = scratch.name("go");
    fs::create_dir(&folder)?;
    let source = folder.join("ends.go");
    fs::write(&source, SOURCE)?;
    let program = folder.join("ends");
    let go = find_program("go").context("go is not installed")?;
    let mut command = confined(go);
    command
        .env(
            "CGO_ENABLED",
            match linked {
                Linked::WithLibc => "1",
                Linked::Static => "0",
            },
        )
        .env("GO111MODULE", "off")
        .args(["build", "-o"])
        .arg(&program)
        .arg(&source);
    Job::start(command, LIMIT, scratch)?.finish()?;
    Ok(program)
}
