//! iperf3 through `ssh -L`: what a copy by scp through a tunnel is, without its log-in. The bytes take three connections:
//! to ssh, encrypted from there to sshd, and on to the server. sshd has a key and a configuration of its own, and is not
//! root.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::super::owner::Owner;
use super::super::trial::{Address, Place, Reading, Trial, cpu_of_bytes};
use super::super::works::Line;
use crate::runner::parse;
use crate::runner::proc::{Service, confined, find_program, free_port};

/// Two keys, and who has them.
pub(super) struct Keys {
    owner: Owner,
    /// Of the server, and of its only user.
    host: PathBuf,
    user: PathBuf,
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
        let bench = trial.bench;
        let owner = Owner::new(&bench.programs, &bench.scratch, "ssh")?;
        let make = |name: &str| {
            let file = owner.home.join(name);
            let keygen = find_program("ssh-keygen").context("ssh-keygen is not installed")?;
            let mut command = confined(keygen);
            command
                .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(&file);
            owner.runs(&mut command);
            let done = command.output()?;
            let said = String::from_utf8_lossy(&done.stderr);
            anyhow::ensure!(done.status.success(), "ssh-keygen: {said}");
            Ok(file)
        };
        let (host, user) = (make("host")?, make("user")?);
        Ok(Keys { owner, host, user })
    }

    fn sshd(&self, trial: &Trial<'_>, port: u16) -> anyhow::Result<Service> {
        let file = self.owner.home.join("sshd_config");
        let listens = trial.network.listens();
        fs::write(&file, config(listens, port, &self.host, &self.user))?;
        let sshd = find_program("sshd").context("sshd is not installed")?;
        // It starts itself anew for each connection, by its full path.
        let args = ["-D", "-e", "-f", &file.to_string_lossy()];
        let place = Place::SERVER.on_both_cpus();
        let command = trial.command_of(&self.owner, place, &sshd.to_string_lossy(), &args)?;
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
        let (name, number) = (self.owner.name()?, door.to_string());
        let key = self.user.to_string_lossy();
        let mut args = vec!["-F", "none", "-N", "-L", &forward, "-p", &number];
        args.extend(["-l", &name, "-i", &key]);
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
        let command = trial.command_of(&self.owner, place, "ssh", &args)?;
        trial.serve(command, &Address::Port(entry))
    }
}

fn config(listens: &str, port: u16, host: &Path, user: &Path) -> String {
    format!(
        "ListenAddress {listens}:{port}
HostKey {}
AuthorizedKeysFile {}.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
AllowTcpForwarding yes
",
        host.display(),
        user.display()
    )
}
