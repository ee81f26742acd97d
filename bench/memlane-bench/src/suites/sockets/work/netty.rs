//! A proxy in Java with Netty between wrk and nginx. It is compiled once. Before each measurement wrk runs uncounted for
//! as long as [`WARM_UP`], because the Java machine compiles what runs often.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;

use super::super::trial::{Address, Place, Reading, Trial};
use super::super::works::Line;
use super::nginx;
use crate::runner::proc::{Job, confined, find_program, free_port};

/// Debian's packages of Netty are in a file for each part.
const JARS: &str = "/usr/share/java/netty-buffer.jar:/usr/share/java/netty-codec.jar:\
    /usr/share/java/netty-common.jar:/usr/share/java/netty-handler.jar:\
    /usr/share/java/netty-resolver.jar:/usr/share/java/netty-transport.jar";
const SOURCE: &str = include_str!("Proxy.java");
const PAGE: &str = "index.html";
/// For the compiler.
const LIMIT: Duration = Duration::from_secs(60);
/// Seconds.
const WARM_UP: f64 = 2.0;

pub(super) fn measure(
    trial: &Trial<'_>,
    kept: &mut Option<PathBuf>,
    line: &Line,
) -> anyhow::Result<Reading> {
    let [threads, connections] = line.args else {
        anyhow::bail!("a row without its arguments");
    };
    let classes = match kept {
        Some(classes) => classes,
        None => kept.insert(compiled(trial)?),
    };
    let (nginx, backend) = nginx::serve(trial, Place::SERVER.on_both_cpus())?;
    let port = free_port()?;
    let path = format!("{}:{JARS}", classes.display());
    let numbers = [port, backend].map(|number| number.to_string());
    let (listens, reached) = (trial.network.listens(), trial.network.reached());
    let args = ["-Xmx256m", "-cp", &path, "Proxy"];
    let ends = [listens, &numbers[0], reached, &numbers[1]];
    let args = [args, ends].concat();
    let proxy = trial.command(Place::SERVER.on_both_cpus(), "java", &args)?;
    let proxy = trial.serve(proxy, &Address::Port(port))?;
    let load = [*threads, *connections, PAGE];
    let client = Place::CLIENT.on_both_cpus();
    let warm_up = nginx::wrk_for(trial, client, (port, WARM_UP), load)?;
    trial.start_for(WARM_UP, warm_up)?.finish()?;
    let ran = trial.run_through(&[&proxy, &nginx], nginx::wrk(trial, client, port, load)?)?;
    nginx::reading(line.id, PAGE, ran)
}

fn compiled(trial: &Trial<'_>) -> anyhow::Result<PathBuf> {
    let scratch = &trial.bench.scratch;
    let folder = scratch.name("java");
    fs::create_dir(&folder)?;
    let source = folder.join("Proxy.java");
    fs::write(&source, SOURCE)?;
    let javac = find_program("javac").context("javac is not installed")?;
    let mut command = confined(javac);
    command.args(["-cp", JARS, "-d"]).arg(&folder).arg(&source);
    Job::start(command, LIMIT, scratch)?.finish()?;
    Ok(folder)
}
