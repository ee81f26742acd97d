//! PostgreSQL and pgbench's TPC-B, more clients than CPUs: programs that hold locks while others wait for them.
//!
//! The cluster is made and filled once; each column starts a server of its own on it. `fsync` is off: disks are not what is
//! measured. In each run pgbench first vacuums its small tables. A connection has its lane from its eighth exchange on,
//! which is in its second transaction. Caches of the server are warm after the first column of the first round: compare
//! medians of several rounds.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;

use super::super::owner::Owner;
use super::super::trial::{Place, Reading, Trial, cpu_of_requests};
use super::super::works::{Line, Side};
use crate::runner::parse;
use crate::runner::proc::{Job, Service, confined, find_program, free_port};

/// The database's size: so many branches, for whose rows the clients wait in line.
const SCALE: &str = "5";
/// For a cluster, and for what fills it.
const LIMIT: Duration = Duration::from_secs(90);
const SUPERUSER: &str = "bench";

/// The script that a row may name: answers of 10 KB.
const ROWS: (&str, &str) = (
    "rows.sql",
    "\\set first random(1, 100000 * :scale - 99)\n\
     SELECT * FROM pgbench_accounts WHERE aid BETWEEN :first AND :first + 99;\n",
);

/// A database that is filled.
pub(super) struct Cluster {
    owner: Owner,
    data: PathBuf,
}

pub(super) fn measure(
    trial: &Trial<'_>,
    kept: &mut Option<Cluster>,
    lines: &[&Line],
    readings: &mut Vec<Reading>,
) -> anyhow::Result<()> {
    let cluster = match kept {
        Some(cluster) => cluster,
        None => kept.insert(Cluster::new(trial)?),
    };
    let (server, port) = cluster.serve(trial)?;
    for line in lines {
        let client = cluster.pgbench(trial, port, line.args)?;
        let ran = trial.run_and_look(&server, client)?;
        let (rate, transactions) = parse::pgbench(&ran.text)?;
        let mut values = vec![("rate", "tx/s", rate)];
        values.extend(cpu_of_requests(ran.cpu, transactions));
        readings.push(ran.reading(line.id, values));
    }
    Ok(())
}

impl Cluster {
    /// Makes it and fills it, without memlane.
    fn new(trial: &Trial<'_>) -> anyhow::Result<Cluster> {
        let bench = trial.bench;
        let owner = Owner::new(&bench.programs, &bench.scratch, "postgres")?;
        let data = owner.home.join("data");
        fs::write(owner.home.join(ROWS.0), ROWS.1)?;
        let mut initdb = confined(find_program("initdb").context("initdb is not installed")?);
        initdb.args(["-A", "trust", "-U", SUPERUSER, "-E", "UTF8"]);
        initdb.args(["--locale=C", "-N", "-D"]).arg(&data);
        owner.runs(&mut initdb);
        Job::start(initdb, LIMIT, &bench.scratch)?.finish()?;
        let cluster = Cluster { owner, data };
        let plain = Trial {
            side: Side::Tcp,
            ..*trial
        };
        let (_server, port) = cluster.serve(&plain)?;
        let fill = cluster.client(&plain, port, &["-i", "-q", "-s", SCALE])?;
        Job::start(fill, LIMIT, &bench.scratch)?.finish()?;
        Ok(cluster)
    }

    fn serve(&self, trial: &Trial<'_>) -> anyhow::Result<(Service, u16)> {
        let port = free_port()?;
        let (number, data) = (port.to_string(), self.data.to_string_lossy());
        let mut args = vec!["-D", &data, "-h", trial.network.listens(), "-p", &number];
        args.extend(["-k", "", "-c", "fsync=off", "-c", "max_wal_size=4GB"]);
        args.extend(["-c", "log_min_messages=warning"]);
        let place = Place::SERVER.on_both_cpus();
        let command = trial.command_of(&self.owner, place, "postgres", &args)?;
        // It listens before it lets anybody in; the eighth line of this file says when it does.
        let pid_file = self.data.join("postmaster.pid");
        let ready = |pid: u32| {
            let text = fs::read_to_string(&pid_file).unwrap_or_default();
            let mut lines = text.lines();
            lines.next() == Some(&pid.to_string())
                && lines.nth(6).is_some_and(|line| line.trim() == "ready")
        };
        let server = Service::start_until(command, &trial.bench.scratch, ready)?;
        Ok((server, port))
    }

    fn pgbench(&self, trial: &Trial<'_>, port: u16, args: &[&str]) -> anyhow::Result<Command> {
        let seconds = trial.whole_seconds();
        self.client(trial, port, &[args, &["-T", &seconds]].concat())
    }

    fn client(&self, trial: &Trial<'_>, port: u16, args: &[&str]) -> anyhow::Result<Command> {
        let number = port.to_string();
        let mut all = vec!["-h", trial.network.reached(), "-p", &number];
        all.extend(["-U", SUPERUSER]);
        all.extend(args);
        all.push("postgres");
        let place = Place::CLIENT.on_both_cpus();
        let mut command = trial.command_of(&self.owner, place, "pgbench", &all)?;
        command
            .current_dir(&self.owner.home)
            .env("PGSSLMODE", "disable")
            .env("PGGSSENCMODE", "disable");
        Ok(command)
    }
}
