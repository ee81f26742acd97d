//! A static program in Go is started, again and again. It ends at once.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use super::super::trial::{Place, Reading, Trial, of_requests};
use super::super::works::Line;
use super::go::{Linked, compiled};
use crate::runner::lane::Usage;

pub(super) fn measure(
    trial: &Trial<'_>,
    kept: &mut Option<PathBuf>,
    line: &Line,
) -> anyhow::Result<Reading> {
    let program = match kept {
        Some(program) => program,
        None => kept.insert(compiled(trial, Linked::Static)?),
    };
    let program = program.to_str().context("a path that is not UTF-8")?;
    let began = Instant::now();
    let mut took = Vec::new();
    while began.elapsed().as_secs_f64() < trial.bench.seconds {
        took.push(start(trial, program)?);
    }
    took.sort_unstable();
    let rate = took.len() as f64 / began.elapsed().as_secs_f64();
    let [p50, p99] = [50, 99].map(|percent| {
        let place = took.len() * percent / 100;
        took[place].as_secs_f64() * 1e6
    });
    Ok(Reading {
        row: line.id,
        values: of_requests("starts/s", [rate, p50, p99]),
        lane: Usage::default(),
        carried: None,
    })
}

fn start(trial: &Trial<'_>, program: &str) -> anyhow::Result<Duration> {
    let mut command = trial.command(Place::CLIENT, program, &["leave"])?;
    let began = Instant::now();
    let status = command.stdout(Stdio::null()).status()?;
    ensure!(status.success(), "the program ended with {status}");
    Ok(began.elapsed())
}
