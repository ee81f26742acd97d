//! `memlane agent`, as an administrator runs it.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::harness::{Built, TempDir};

/// An agent with one domain. Killed when dropped.
#[derive(Debug)]
pub struct Agent {
    child: Child,
    dir: TempDir,
    /// A region that its machine shares with others.
    region: Option<PathBuf>,
}

impl Agent {
    /// Starts one. `Err` says why there can be none here.
    ///
    /// # Errors
    /// What the agent says if this kernel or this process lacks what it needs (exit code 3).
    ///
    /// # Panics
    /// If it fails for another reason.
    pub fn start(label: &str) -> Result<Agent, String> {
        let dir = TempDir::new(label);
        let child = Agent::run(dir.path(), None)?;
        Ok(Agent {
            child,
            dir,
            region: None,
        })
    }

    /// Starts one whose machine shares this file with others. `Err` says why there can be none here.
    ///
    /// # Errors
    /// As of `start`.
    ///
    /// # Panics
    /// As `start` does.
    pub fn start_sharing(label: &str, region: &Path) -> Result<Agent, String> {
        let dir = TempDir::new(label);
        let child = Agent::run(dir.path(), Some(region))?;
        let region = Some(region.to_owned());
        Ok(Agent { child, dir, region })
    }

    /// Starts one that may have this many descriptors. `Err` says why there can be none here.
    ///
    /// # Errors
    /// As of `start`.
    ///
    /// # Panics
    /// As `start` does.
    pub fn start_with_descriptors(label: &str, most: u32) -> Result<Agent, String> {
        let dir = TempDir::new(label);
        let under = ["prlimit", &format!("--nofile={most}")];
        let child = Agent::run_under(&under, dir.path(), None)?;
        Ok(Agent {
            child,
            dir,
            region: None,
        })
    }

    /// Starts one where something is already: `prepare` has been given the directory of the domain.
    ///
    /// # Errors
    /// As of `start`.
    ///
    /// # Panics
    /// As `start` does.
    pub fn start_after(label: &str, prepare: impl FnOnce(&Path)) -> Result<Agent, String> {
        let dir = TempDir::new(label);
        let domain = Agent::directory_in(dir.path());
        std::fs::create_dir(&domain).expect("a new directory");
        prepare(&domain);
        let child = Agent::run(dir.path(), None)?;
        Ok(Agent {
            child,
            dir,
            region: None,
        })
    }

    fn run(dir: &Path, region: Option<&Path>) -> Result<Child, String> {
        Agent::run_under(&[], dir, region)
    }

    /// Runs it by way of other programs, such as `prlimit`.
    fn run_under(under: &[&str], dir: &Path, region: Option<&Path>) -> Result<Child, String> {
        let memlane = Built::find()
            .memlane
            .expect("`cargo build --release` first");
        let mut command = match under {
            [] => Command::new(memlane),
            [program, args @ ..] => {
                let mut command = Command::new(program);
                command.args(args).arg(memlane);
                command
            }
        };
        command.arg("agent").arg(Agent::directory_in(dir));
        if let Some(region) = region {
            let device = format!("ivshmem:{}", region.display());
            command.args(["--device", &device]);
        }
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("memlane starts");
        let mut line = String::new();
        let out = child.stdout.take().expect("piped");
        let _ = BufReader::new(out).read_line(&mut line);
        if line.starts_with("serves ") {
            return Ok(child);
        }
        let said = child.wait_with_output().expect("it ends");
        let why = String::from_utf8_lossy(&said.stderr).into_owned();
        assert_eq!(said.status.code(), Some(3), "{why}");
        Err(why)
    }

    fn directory_in(dir: &Path) -> PathBuf {
        dir.join("domain")
    }

    /// The directory of its domain.
    pub fn directory(&self) -> String {
        Agent::directory_in(self.dir.path()).display().to_string()
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal: `KILL`, `STOP` …
    ///
    /// # Panics
    /// If that fails.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill")
            .args([&format!("-{name}"), &self.pid().to_string()])
            .status();
        assert!(sent.is_ok_and(|status| status.success()), "kill -{name}");
    }

    /// Kills it, as `kill -9` does.
    ///
    /// # Panics
    /// If that fails.
    pub fn kill(&mut self) {
        self.child.kill().expect("it is ours");
        self.child.wait().expect("a child");
    }

    /// Starts it anew, in the same directory.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart(&mut self) {
        self.child = Agent::run(self.dir.path(), self.region.as_deref()).expect("it ran before");
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
