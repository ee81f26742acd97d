//! A dockerd of the test's own, in a network namespace of its own, with everything that it writes in one folder.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::Engine;
use crate::blocks::has;
use crate::harness::TempDir;

/// How long dockerd may take to start, and to end.
const PATIENCE: Duration = Duration::from_secs(30);

/// dockerd, with an image of what podman's containers have as their root. Ended when dropped, with its containers.
#[derive(Debug)]
pub struct Docker {
    child: Child,
    dir: TempDir,
    image: String,
}

impl Docker {
    /// Starts one, whose image is the root of `engine`. `Err` says why there can be none here.
    ///
    /// # Errors
    /// If docker is not installed, or dockerd does not start.
    pub fn start(label: &str, engine: &Engine) -> Result<Docker, String> {
        if let Some(missing) = ["dockerd", "docker"].into_iter().find(|name| !has(name)) {
            return Err(format!("no {missing}"));
        }
        let dir = TempDir::new(label);
        let at = |name: &str| dir.path().join(name);
        // Not by ip-netns(8), which hides the control groups.
        let child = Command::new("unshare")
            .args([
                "--net",
                "sh",
                "-c",
                "ip link set lo up && exec \"$@\"",
                "sh",
            ])
            .args(["dockerd", "--data-root"])
            .arg(at("data"))
            .arg("--exec-root")
            .arg(at("exec"))
            .arg("--pidfile")
            .arg(at("pid"))
            .args(["--host", &format!("unix://{}", at("socket").display())])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| e.to_string())?;
        let docker = Docker {
            child,
            dir,
            image: format!("memlane-{label}"),
        };
        docker.is_up()?;
        docker.import(engine)?;
        Ok(docker)
    }

    fn is_up(&self) -> Result<(), String> {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.run(&["info"]) {
                Ok(_) => return Ok(()),
                Err(why) if Instant::now() > end => return Err(format!("dockerd: {why}")),
                Err(_) => std::thread::sleep(Duration::from_millis(200)),
            }
        }
    }

    fn import(&self, engine: &Engine) -> Result<(), String> {
        let tar = self.dir.path().join("root.tar").display().to_string();
        let packed = Command::new("tar")
            .args(["-C", &engine.root(), "-cf", &tar, "."])
            .status();
        packed.map_err(|e| e.to_string())?;
        self.run(&["import", &tar, &self.image]).map(drop)
    }

    /// Its image.
    pub fn image(&self) -> &str {
        &self.image
    }

    /// Runs docker; what it says on either channel.
    ///
    /// # Errors
    /// What docker says, if it fails.
    pub fn run(&self, args: &[&str]) -> Result<String, String> {
        let socket = self.dir.path().join("socket");
        let done = Command::new("docker")
            .args(["--host", &format!("unix://{}", socket.display())])
            .args(args)
            .output()
            .map_err(|e| e.to_string())?;
        let both = [done.stdout, done.stderr].concat();
        let said = String::from_utf8_lossy(&both).into_owned();
        match done.status.success() {
            true => Ok(said),
            false => Err(said),
        }
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        let running = self.run(&["ps", "--quiet"]).unwrap_or_default();
        for container in running.split_whitespace() {
            let _ = self.run(&["rm", "--force", container]);
        }
        // It ends its own containerd and unmounts what it has mounted.
        let pid = self.child.id().to_string();
        let _ = Command::new("kill").args(["-TERM", &pid]).status();
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
