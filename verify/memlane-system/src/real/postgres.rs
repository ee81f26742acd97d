//! A PostgreSQL cluster for one test.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::lane::LaneReport;
use super::net::{free_port, wait_until};
use super::proc::{Done, Proc};
use super::stage::{Stage, Story};
use crate::harness::{Built, Mode, is_root};

const LIMIT: Duration = Duration::from_secs(120);

/// The data directory, made once for all modes, and who owns it: PostgreSQL
/// refuses to run as root.
#[derive(Debug)]
pub struct Cluster {
    dir: PathBuf,
    owner: Option<(u32, u32)>,
    launcher: Option<Built>,
}

/// Asked of clients of a [`Cluster::with_password`].
const PASSWORD: &str = "correct horse battery staple";

impl Cluster {
    /// `initdb`, without memlane.
    ///
    /// # Panics
    /// If it fails.
    pub fn new(story: &Story) -> Cluster {
        Cluster::initdb(story, "trust")
    }

    /// The same; clients are from any network, and each is asked for a password (SCRAM).
    ///
    /// # Panics
    /// If it fails.
    pub fn with_password(story: &Story) -> Cluster {
        let cluster = Cluster::initdb(story, "scram-sha-256");
        let rules = "host all all all scram-sha-256\n";
        std::fs::write(cluster.dir.join("pg_hba.conf"), rules).expect("pg_hba.conf");
        cluster
    }

    fn initdb(story: &Story, authentication: &str) -> Cluster {
        let home = story.dir().join("postgres");
        std::fs::create_dir_all(&home).expect("directory for the cluster");
        let owner = is_root().then(|| user("nobody"));
        if let Some((uid, gid)) = owner {
            std::os::unix::fs::chown(&home, Some(uid), Some(gid)).expect("chown");
        }
        let launcher = (owner.is_some() && !crate::harness::plain_only()).then(|| copies(&home));
        let cluster = Cluster {
            dir: home.join("data"),
            owner,
            launcher,
        };
        let password = home.join("password");
        std::fs::write(&password, PASSWORD).expect("a file");
        let mut command = Command::new(super::stage::program("initdb"));
        command.arg("--pwfile").arg(&password);
        command.args([
            "-A",
            authentication,
            "-U",
            "test",
            "-E",
            "UTF8",
            "--locale=C",
            "-N",
            "-D",
        ]);
        command.arg(&cluster.dir).current_dir(&home);
        cluster.own(&mut command);
        let out = command.output().expect("initdb starts");
        let text = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "initdb: {text}");
        cluster
    }

    fn own(&self, command: &mut Command) {
        if let Some((uid, gid)) = self.owner {
            command.uid(uid).gid(gid);
        }
    }

    /// The server's command. Its owner may not be able to see the build tree:
    /// they get copies of the launcher and the library.
    fn server(&self, stage: &Stage) -> Command {
        let mut command = crate::harness::command(stage.mode, super::program("postgres"));
        if let (true, Some(built)) = (stage.under_memlane(), &self.launcher) {
            command = copied_command(built, stage.mode);
        }
        stage.placed(command, self.owner)
    }
}

fn copied_command(built: &Built, mode: Mode) -> Command {
    let postgres = super::program("postgres");
    let mut command = match &built.memlane {
        Some(memlane) => {
            let mut command = Command::new(memlane);
            command
                .args(["run", "--upgrade", mode.name(), "--"])
                .arg(postgres);
            command.env("MEMLANE_PRELOAD", &built.preload);
            command
        }
        None => {
            let mut command = Command::new(postgres);
            command
                .env("LD_PRELOAD", &built.preload)
                .env("MEMLANE_UPGRADE", mode.name());
            command
        }
    };
    command.stdin(Stdio::null()).current_dir("/");
    command
}

fn copies(home: &Path) -> Built {
    let built = Built::find();
    let copy = |from: &Path| {
        let to = home.join(from.file_name().expect("a file"));
        std::fs::copy(from, &to).expect("copy of a built file");
        to
    };
    Built {
        memlane: built.memlane.as_deref().map(copy),
        preload: copy(&built.preload),
    }
}

fn user(name: &str) -> (u32, u32) {
    let users = std::fs::read_to_string("/etc/passwd").expect("/etc/passwd");
    let line = users
        .lines()
        .find(|line| line.starts_with(&format!("{name}:")));
    let fields: Vec<&str> = line.expect("the user exists").split(':').collect();
    let id = |n: usize| fields[n].parse().expect("a number");
    (id(2), id(3))
}

/// A running server.
#[derive(Debug)]
pub struct Postgres {
    proc: Option<Proc>,
    /// Where it listens.
    pub port: u16,
}

impl Postgres {
    /// Starts it in the stage's mode.
    pub fn start(stage: &Stage, cluster: &Cluster) -> Postgres {
        let port = free_port();
        let mut command = cluster.server(stage);
        command.args(["-p", &port.to_string(), "-h", stage.address()]);
        command.args(["-k", "", "-D"]);
        command
            .arg(&cluster.dir)
            .args(["-c", "fsync=off", "-c", "shared_buffers=32MB"]);
        command.args(["-c", "max_wal_size=2GB", "-c", "log_min_messages=warning"]);
        let proc = stage.start("postgres", command);
        let pid_file = cluster.dir.join("postmaster.pid");
        let postgres = Postgres {
            proc: Some(proc),
            port,
        };
        wait_until("postgres to be ready", Duration::from_secs(60), || {
            let text = std::fs::read_to_string(&pid_file).unwrap_or_default();
            text.lines()
                .nth(7)
                .is_some_and(|line| line.trim() == "ready")
        });
        postgres
    }

    /// psql or pgbench with these arguments, in the stage's mode.
    pub fn client(&self, stage: &Stage, name: &str, args: &[&str]) -> Command {
        let mut command = stage.command(name);
        command
            .env("PGSSLMODE", "disable")
            .env("PGGSSENCMODE", "disable")
            .env("PGPASSWORD", PASSWORD);
        command
            .args([
                "-h",
                stage.address(),
                "-p",
                &self.port.to_string(),
                "-U",
                "test",
            ])
            .args(args);
        command
    }

    /// Runs SQL by psql; its output lines have no decoration.
    pub fn psql(&self, stage: &Stage, args: &[&str]) -> Done {
        let base = [
            "-X",
            "-q",
            "-A",
            "-t",
            "-v",
            "ON_ERROR_STOP=1",
            "-d",
            "postgres",
        ];
        let mut command = self.client(stage, "psql", &base);
        command.args(args);
        stage.run("psql", command, LIMIT)
    }

    /// One value.
    pub fn ask(&self, stage: &Stage, sql: &str) -> String {
        self.psql(stage, &["-c", sql]).stdout().trim().to_owned()
    }

    /// pgbench on the database `postgres`.
    pub fn pgbench(&self, stage: &Stage, args: &[&str]) -> Done {
        let mut command = self.client(stage, "pgbench", args);
        command.arg("postgres");
        stage.run("pgbench", command, LIMIT)
    }

    /// Ends it in good order and returns what its pages said.
    pub fn finish(mut self) -> LaneReport {
        let proc = self.proc.take().expect("running");
        let lane = proc.lane();
        proc.stop_by("INT").success();
        lane
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // Killed outright it would leave a segment of System V memory behind.
        if let Some(proc) = &mut self.proc {
            proc.signal("INT");
            let end = std::time::Instant::now() + Duration::from_secs(5);
            while proc.running() && std::time::Instant::now() < end {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}
