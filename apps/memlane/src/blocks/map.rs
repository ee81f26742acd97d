//! `memlane map`: makes a volume of a server, or a file of this machine, usable here.
//!
//! The verb itself only asks. A process behind it, one for each session and one for each mapped file, shows the volumes; it
//! is started by the first `map` of a session and goes on when the verb has ended, until the last volume is unmapped.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use memlane_observe::control::{self, AskError, Role};
use memlane_transport::io::{Address, PathAddr};

use super::host::file;
use super::requests::Request;
use super::spec::{
    Access, FileSpec, Frontend, HEARTBEAT, HostSpec, MapSpec, Memory, OnDisconnect, PathSpec,
    Policy, ProcessSpec,
};
use super::tls::TlsSpec;
use super::{documents, process, vol};
use crate::cli::device::Device;
use crate::cli::exit::{Exit, fail};

/// Default of `--on-disconnect`: how long requests are queued.
const PATIENCE: Duration = Duration::from_secs(30);
/// Default of `--wait`.
const WAIT: Duration = Duration::from_secs(10);

/// Map a volume of a server to a device, a file or an export of this machine
///
/// The mapping stays when this command exits; memlane vol unmap ends it. All volumes of one session share its memory and
/// its paths. A file or block device of this machine needs no server: file:PATH.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Name of the session, which the server may use to choose a folder [default: this host's name and the server's]
    #[arg(long, value_parser = session_name)]
    session: Option<String>,
    /// Path to the server, [SRC@]DST[:PORT]; can be repeated
    #[arg(long = "path", value_name = "SRC@DST")]
    paths: Vec<PathSpec>,
    /// How to choose the path for a request [default: min-inflight]
    #[arg(long, value_enum)]
    policy: Option<Policy>,
    /// Who may write to the volume
    #[arg(long, value_enum, default_value_t = Access::Rw)]
    access: Access,
    /// Take the volume from a client that writes to it, if the server has lost that client; the server refuses its later
    /// requests
    #[arg(long)]
    take_over: bool,
    /// What to do with requests while no path is up: queue them for this time, or fail them [default: queue:30s]
    #[arg(long, value_name = "queue:TIME|fail")]
    on_disconnect: Option<OnDisconnect>,
    /// Give up a path after this time without a sign of life, from 40ms to 10m; its requests move to another path
    /// [default: 800ms]
    #[arg(long, value_parser = super::spec::heartbeat, value_name = "TIME")]
    heartbeat: Option<Duration>,
    /// What the volume becomes: nbd:unix:PATH, nbd:tcp:ADDRESS:PORT, fuse:PATH, loop, vhost-user:SOCKET, nbd-kernel or ublk
    #[arg(long = "as", value_name = "FRONTEND")]
    frontend: Frontend,
    /// Give up if the server does not answer within this time [default: 10s]
    #[arg(long, value_parser = crate::cli::values::duration, value_name = "TIME")]
    wait: Option<Duration>,
    /// Connections on each path [default: one per CPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    connections: Option<u16>,
    /// What to make the session's memory of [default: plain]
    #[arg(long, value_enum)]
    memory: Option<Memory>,
    /// Memory that this machine and the server's have, for paths ivshmem://HOST: ivshmem:auto in a guest, or the file on the host
    #[arg(long, value_name = "ivshmem:PATH")]
    device: Option<Device>,
    /// Use TLS with a client certificate on TCP paths; DIR has client-cert.pem, client-key.pem, ca-cert.pem and optionally
    /// ca-crl.pem
    #[arg(long, value_name = "DIR", value_parser = super::tls::folder)]
    tls: Option<PathBuf>,
    /// Name that the server's certificate must have [default: the first host name in SERVER, or the address of each path]
    #[arg(long, value_name = "NAME", requires = "tls")]
    tls_name: Option<String>,
    /// Require TLS and a client certificate on the NBD export; DIR has server-cert.pem, server-key.pem, ca-cert.pem and
    /// optionally ca-crl.pem
    #[arg(long, value_name = "DIR", value_parser = super::tls::folder)]
    nbd_tls: Option<PathBuf>,
    /// Serve metrics for Prometheus here
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<std::net::SocketAddr>,
    /// Stay in the foreground, and end the mapping on SIGINT or SIGTERM
    #[arg(long)]
    foreground: bool,
    /// Print one JSON document with the place of the volume
    #[arg(long)]
    json: bool,
    /// Server: tcp://HOST[:PORT], HOST[:PORT], rdma://HOST[:PORT], ivshmem://HOST[:PORT], local or local:NAME; several, separated by commas, are several paths. Or
    /// file:PATH: a file or block device of this machine, without a server
    #[arg(value_name = "SERVER|file:PATH")]
    servers: String,
    /// Name of the volume on the server; file:PATH has none
    volume: Option<String>,
}

impl Args {
    pub(crate) fn json(&self) -> bool {
        self.json
    }
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let (process, volume) = match file::path_of(&args.servers) {
        Some(path) => file_process(&args, path?)?,
        None => session_process(&args)?,
    };
    let spec = MapSpec {
        volume,
        access: args.access,
        take_over: args.take_over,
        frontend: args.frontend,
        nbd_tls: args.nbd_tls,
    };
    if args.foreground {
        return process::in_foreground(process, spec, args.json);
    }
    map(&process, spec, args.json)
}

/// Asks the process behind the mapping, which is started if it is not there.
fn map(process: &ProcessSpec, spec: MapSpec, json: bool) -> anyhow::Result<()> {
    let (name, volume) = (process.name(), spec.volume.clone());
    let request = map_request(process, spec);
    let asked = match control::ask(Role::Session, name, &request) {
        // It was for another server, or has other memory or certificates: a new one takes its place, if it has no volume.
        Err(AskError::Refused { exit_code, .. })
            if exit_code == Exit::Usage.code() && process::end_if_emptied(name) =>
        {
            None
        }
        asked => asked?,
    };
    let said = match asked {
        Some(said) => Some(said),
        None => {
            start(process)?;
            let said = control::ask(Role::Session, name, &request);
            // One that could not do the first thing it was started for ends: the next try begins anew.
            said.inspect_err(|_| _ = process::wait_for(name, false))?
        }
    };
    match said {
        Some(serde_json::Value::String(place)) if json => {
            documents::tell_place(name, &volume, &place, true)
        }
        said => vol::print_reply(said, "the process behind the mapping has ended at once"),
    }
}

fn map_request(process: &ProcessSpec, spec: MapSpec) -> Request {
    match process {
        ProcessSpec::Session(host) => Request::Map {
            spec,
            paths: host.paths.clone(),
            tls: host.tls.clone(),
            memory: host.memory,
            device: host.device.clone(),
            wait: host.wait,
        },
        ProcessSpec::File(_) => Request::Map {
            spec,
            paths: Vec::new(),
            tls: None,
            memory: None,
            device: None,
            wait: Duration::ZERO,
        },
    }
}

/// The process behind a file, and what its volume is called.
fn file_process(args: &Args, path: PathBuf) -> anyhow::Result<(ProcessSpec, String)> {
    let usage = |text: String| fail(Exit::Usage, text);
    if let Some(volume) = &args.volume {
        let text = format!("file:PATH names the volume itself: leave {volume:?} out");
        return Err(usage(text));
    }
    if let Some(flag) = server_flag(args) {
        let text = format!("file:PATH is mapped without a server: {flag} means nothing to it");
        return Err(usage(text));
    }
    let volume = file::volume_name(&path);
    let spec = FileSpec {
        name: file::process_name(&path),
        path,
        metrics: args.metrics,
    };
    Ok((ProcessSpec::File(spec), volume))
}

/// The first flag that was given and says something about a server, or about the way to it.
fn server_flag(args: &Args) -> Option<&'static str> {
    let given = [
        ("--session", args.session.is_some()),
        ("--path", !args.paths.is_empty()),
        ("--policy", args.policy.is_some()),
        ("--access migration", args.access == Access::Migration),
        ("--take-over", args.take_over),
        ("--on-disconnect", args.on_disconnect.is_some()),
        ("--heartbeat", args.heartbeat.is_some()),
        ("--wait", args.wait.is_some()),
        ("--connections", args.connections.is_some()),
        ("--memory", args.memory.is_some()),
        ("--device", args.device.is_some()),
        ("--tls", args.tls.is_some()),
    ];
    let mut given = given.into_iter().filter(|(_, given)| *given);
    given.next().map(|(flag, _)| flag)
}

/// The process behind a session, and the volume's name on the server.
fn session_process(args: &Args) -> anyhow::Result<(ProcessSpec, String)> {
    let Some(volume) = args.volume.clone() else {
        let text = "name the volume on the server, after the server";
        return Err(fail(Exit::Usage, text));
    };
    Ok((ProcessSpec::Session(host_spec(args)?), volume))
}

fn host_spec(args: &Args) -> anyhow::Result<HostSpec> {
    let usage = |text: String| fail(Exit::Usage, text);
    let mut paths = Vec::new();
    for server in args.servers.split(',') {
        let path = server.parse::<Address>();
        let path = path.map_err(|why| usage(format!("{server}: {why}")))?;
        paths.push(PathSpec(PathAddr::to(path)));
    }
    if !args.paths.is_empty() {
        // Where paths are named, the servers only say who is meant.
        paths.clone_from(&args.paths);
    }
    let by_memory = |path: &&PathSpec| matches!(path.0.dst, Address::Ivshmem(_));
    if let Some(path) = paths.iter().find(by_memory)
        && args.device.is_none()
    {
        let text = format!(
            "{} goes by memory that this machine shares: say which by --device, such as ivshmem:auto",
            path.0
        );
        return Err(usage(text));
    }
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Ok(HostSpec {
        session: match &args.session {
            Some(name) => name.clone(),
            None => default_session(&paths[0]),
        },
        paths,
        tls: args.tls.as_ref().map(|folder| TlsSpec {
            folder: folder.clone(),
            name: args.tls_name.clone().or_else(|| host_name(&args.servers)),
        }),
        policy: args.policy.unwrap_or(Policy::MinInflight),
        on_disconnect: args.on_disconnect.unwrap_or(OnDisconnect::Queue(PATIENCE)),
        heartbeat: args.heartbeat.unwrap_or(HEARTBEAT),
        wait: args.wait.unwrap_or(WAIT),
        connections: args
            .connections
            .unwrap_or(u16::try_from(cpus).unwrap_or(64).min(64)),
        memory: args.memory,
        device: args.device.clone(),
        metrics: args.metrics,
    })
}

/// The first host that is given by name, not by address.
fn host_name(servers: &str) -> Option<String> {
    let host = |server: &str| {
        let address = server.strip_prefix("tcp://").unwrap_or(server);
        let is_local = server == "local" || server.starts_with("local:");
        let is_address = address.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
            || address.parse::<SocketAddr>().is_ok();
        let name = address.rsplit_once(':').map_or(address, |(name, _)| name);
        (!is_local && !is_address).then(|| name.to_owned())
    };
    servers.split(',').find_map(host)
}

/// Checks the name of a session: RTRS allows neither `/` nor `.` in it.
fn session_name(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_:@".contains(c);
    let fits = !text.is_empty() && text.len() < 64 && text.chars().all(plain);
    fits.then(|| text.to_owned())
        .ok_or_else(|| "up to 63 letters, digits and '-', '_', ':', '@'".into())
}

fn default_session(path: &PathSpec) -> String {
    let host = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    let to = match &path.0.dst {
        Address::Tcp(address) | Address::Rdma(address) | Address::Ivshmem(address) => {
            address.to_string()
        }
        local @ Address::Local(_) => local.to_string(),
    };
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let name: String = format!("{host}@").chars().chain(to.chars()).collect();
    let name: String = name
        .chars()
        .map(|c| if c == '@' { c } else { plain(c) })
        .collect();
    name.chars().take(63).collect()
}

/// Starts the process behind a mapping, and waits until it listens.
fn start(spec: &ProcessSpec) -> anyhow::Result<()> {
    let mut child = Command::new("/proc/self/exe")
        .arg("__volumes")
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(&serde_json::to_vec(spec)?)?;
    }
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line)?;
    }
    match line.trim_end() {
        "ready" => Ok(()),
        // Somebody else has started it at the same moment.
        "taken" if process::wait_for(spec.name(), true) => Ok(()),
        "taken" => Err(anyhow::anyhow!(
            "the process behind {:?} does not answer",
            spec.name()
        )),
        _ => Err(failed(&mut child)),
    }
}

/// The error of a background process that has failed; its own message is on stderr already.
fn failed(child: &mut Child) -> anyhow::Error {
    let code = child.wait().ok().and_then(|status| status.code());
    let exit = code
        .and_then(|code| u8::try_from(code).ok())
        .map_or(Exit::Failed, Exit::from_code);
    fail(
        exit,
        "the process behind the mapping could not start: its own message is above",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_asked_for_the_name_that_was_typed() {
        for (servers, name) in [
            ("192.0.2.1,storage.example:99", Some("storage.example")),
            ("tcp://storage", Some("storage")),
            ("storage.example,other.example", Some("storage.example")),
            ("192.0.2.1:1234,[::1]:7,::1,tcp://127.0.0.1", None),
            ("local,local:x", None),
        ] {
            assert_eq!(host_name(servers).as_deref(), name, "{servers}");
        }
    }

    #[test]
    fn a_session_is_named_after_both_hosts_and_never_has_a_dot() {
        let path: PathSpec = "127.0.0.1:99".parse().expect("a path");
        let name = default_session(&path);
        assert!(name.ends_with("@127-0-0-1-99"), "{name}");
        assert_eq!(session_name(&name), Ok(name));
        for wrong in ["", "a.b", "a/b", "a b", &"x".repeat(64)] {
            assert!(session_name(wrong).is_err(), "{wrong}");
        }
    }
}
