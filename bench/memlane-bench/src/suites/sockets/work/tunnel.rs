//! iperf3 through `ssh -L`: what a copy by scp through a tunnel is, without its log-in. The bytes take three connections:
//! to ssh, encrypted from there to sshd, and on to the server. sshd has a port, keys and a configuration of its own. It is
//! root's: another user's cannot look up whether an account is locked, and then lets nobody in.

use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::super::trial::{Address, Place, Reading, Trial, cpu_of_bytes};
use super::super::works::Line;
use crate::runner::parse;
use crate::runner::proc::{Service, confined, find_program, free_port};

/// The folder into which sshd locks what is not yet let in. Its service makes it; so does this, for as long as it runs.
const EMPTY: &str = "/run/sshd";

/// The keys of the server and of its only user, in a folder of their own.
pub(super) struct Keys {
    home: PathBuf,
    /// [`EMPTY`] was made here.
    made: bool,
}

pub(super) fn measure(
    trial: &Trial<'_>,
    kept: &mut Option<Keys>,
    line: &Line,
) -> anyhow::Result<Reading> {
    let keys = match kept {
        Some(keys) => keys,
        None => kept.insert(Keys::new(trial)?),
    };
    let [target, door, entry] = [free_port()?, free_port()?, free_port()?];
    let (number, seconds) = (target.to_string(), trial.whole_seconds());
    let both = Place::SERVER.on_both_cpus();
    let args = ["-s", "-B", trial.network.listens(), "-p", &number];
    let server = trial.command(both, "iperf3", &args)?;
    let server = trial.serve(server, &Address::Port(target))?;
    let sshd = keys.sshd(trial, door)?;
    let ssh = keys.ssh(trial, door, entry, target)?;
    let number = entry.to_string();
    let args = ["-c", "127.0.0.1", "-p", &number, "-t", &seconds, "-J"];
    let client = trial.command(Place::CLIENT.on_both_cpus(), "iperf3", &args)?;
    let ran = trial.run_through(&[&sshd, &ssh, &server], client)?;
    let mut values = vec![("throughput", "Gbit/s", parse::iperf3_gbits(&ran.text)?)];
    values.extend(cpu_of_bytes(ran.cpu, parse::iperf3_bytes(&ran.text)?));
    Ok(ran.reading(line.id, values))
}

impl Keys {
    fn new(trial: &Trial<'_>) -> anyhow::Result<Keys> {
        let home = trial.bench.scratch.name("ssh");
        fs::create_dir(&home)?;
        for name in ["host", "user"] {
            let keygen = find_program("ssh-keygen").context("ssh-keygen is not installed")?;
            let mut command = confined(keygen);
            command.args(["-q", "-t", "ed25519", "-N", "", "-f"]);
            let done = command.arg(home.join(name)).output()?;
            let said = String::from_utf8_lossy(&done.stderr);
            anyhow::ensure!(done.status.success(), "ssh-keygen: {said}");
        }
        let mut folder = fs::DirBuilder::new();
        let made = !Path::new(EMPTY).exists();
        if made {
            let made = folder.mode(0o755).create(EMPTY);
            made.with_context(|| format!("cannot make {EMPTY}"))?;
        }
        Ok(Keys { home, made })
    }

    fn sshd(&self, trial: &Trial<'_>, port: u16) -> anyhow::Result<Service> {
        let file = self.home.join("sshd_config");
        fs::write(&file, config(trial.network.listens(), port, &self.home))?;
        let sshd = find_program("sshd").context("sshd is not installed")?;
        // It starts itself anew for each connection, by its full path.
        let args = ["-D", "-e", "-f", &file.to_string_lossy()];
        let place = Place::SERVER.on_both_cpus();
        let command = trial.command(place, &sshd.to_string_lossy(), &args)?;
        trial.serve(command, &Address::Port(port))
    }

    fn ssh(
        &self,
        trial: &Trial<'_>,
        door: u16,
        entry: u16,
        target: u16,
    ) -> anyhow::Result<Service> {
        let forward = format!("127.0.0.1:{entry}:{}:{target}", trial.network.listens());
        let (number, key) = (door.to_string(), self.home.join("user"));
        let key = key.to_string_lossy();
        let mut args = vec!["-F", "none", "-N", "-L", &forward, "-p", &number];
        args.extend(["-l", "root", "-i", &key]);
        for option in [
            "BatchMode=yes",
            "IdentitiesOnly=yes",
            "StrictHostKeyChecking=no",
            "UserKnownHostsFile=/dev/null",
            "ExitOnForwardFailure=yes",
            "LogLevel=ERROR",
        ] {
            args.extend(["-o", option]);
        }
        args.push(trial.network.reached());
        let place = Place::CLIENT.on_both_cpus();
        let command = trial.command(place, "ssh", &args)?;
        trial.serve(command, &Address::Port(entry))
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        if self.made {
            let _ = fs::remove_dir(EMPTY);
        }
    }
}

fn config(listens: &str, port: u16, home: &Path) -> String {
    let home = home.display();
    format!(
        "ListenAddress {listens}:{port}
HostKey {home}/host
AuthorizedKeysFile {home}/user.pub
PidFile none
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
AllowTcpForwarding yes
"
    )
}
