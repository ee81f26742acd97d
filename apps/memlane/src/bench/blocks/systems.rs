//! Who is measured.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::bench::proc::{Scratch, Service, find_program, free_port};

/// Bytes of each volume.
pub(super) const SIZE: u64 = 256 << 20;

/// What is the same for all of them.
pub(super) struct Bench {
    /// This program.
    pub(super) exe: PathBuf,
    /// For sockets and files.
    pub(super) scratch: Scratch,
}

/// What a load generator is given.
pub(super) enum Target {
    /// fio's NBD engine.
    Nbd(String),
    /// fio on a file, without the page cache.
    File(PathBuf),
    /// Our own generator, over memlane's API: the server's address, as `map` takes it.
    Api(String),
}

/// A system that runs.
pub(super) struct Running {
    /// Where the load goes.
    pub(super) target: Target,
    /// The last one is ended first.
    pub(super) services: Vec<Service>,
    /// Names a process that is no child of ours any more.
    pub(super) pid_file: Option<PathBuf>,
    /// What they keep it in.
    disk: Option<Disk>,
}

/// A file, for as long as it is needed.
struct Disk(PathBuf);

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        while let Some(service) = self.services.pop() {
            drop(service);
        }
        drop(self.disk.take());
    }
}

/// Something that serves blocks.
pub(super) struct System {
    /// For `--only`.
    pub(super) id: &'static str,
    /// For people.
    pub(super) about: &'static str,
    /// Starts it.
    pub(super) start: fn(&Bench) -> anyhow::Result<Running>,
}

/// All of them, ours first.
pub(super) fn all() -> Vec<System> {
    let system = |id, about, start| System { id, about, start };
    vec![
        system("api-local", "memlane, API, loopback device", |b| {
            api(b, true)
        }),
        system("api-tcp", "memlane, API, tcp device", |b| api(b, false)),
        system("nbd-local", "memlane, NBD export, loopback device", |b| {
            nbd(b, true)
        }),
        system("nbd-tcp", "memlane, NBD export, tcp device", |b| {
            nbd(b, false)
        }),
        system("fuse", "memlane, FUSE file, loopback device", fuse),
        system("nbdkit", "nbdkit memory, unix socket", |b| {
            nbdkit(b, "memory", false)
        }),
        system("nbdkit-tcp", "nbdkit memory, TCP", |b| {
            nbdkit(b, "memory", true)
        }),
        system("nbdkit-file", "nbdkit file in memory, unix socket", |b| {
            nbdkit(b, "file", false)
        }),
        system("nbd-server", "nbd-server, file in memory, TCP", nbd_server),
        system(
            "qsd",
            "qemu-storage-daemon, file in memory, unix socket",
            qsd,
        ),
    ]
}

/// What an id means.
pub(super) fn about(id: &str) -> &'static str {
    all()
        .iter()
        .find(|system| system.id == id)
        .map_or("?", |system| system.about)
}

/// Is it one of memlane's own?
pub(super) fn is_ours(id: &str) -> bool {
    matches!(
        id,
        "api-local" | "api-tcp" | "nbd-local" | "nbd-tcp" | "fuse"
    )
}

fn serve(bench: &Bench, local: bool) -> anyhow::Result<(Service, String)> {
    let name = bench.scratch.name("serve");
    let name = name
        .file_name()
        .map(|n| n.to_string_lossy().into_owned())
        .unwrap_or_default();
    let name = format!("{name}-{}", std::process::id());
    let port = free_port()?;
    let at = match local {
        true => format!("local:{name}"),
        false => format!("tcp://127.0.0.1:{port}"),
    };
    let mut command = confined(&bench.exe);
    command.args([
        "serve",
        "--test-volumes",
        "--name",
        &name,
        "--listen",
        &at,
        "--root",
    ]);
    command.arg(bench.scratch.path());
    let needle = format!("memlane/blocks/{name}");
    let ready = || match local {
        true => std::fs::read_to_string("/proc/net/unix").is_ok_and(|text| text.contains(&needle)),
        false => std::net::TcpStream::connect(("127.0.0.1", port)).is_ok(),
    };
    let service = Service::start_until(command, &bench.scratch, ready)?;
    Ok((service, at))
}

/// The name of a volume in the server's memory.
pub(super) fn volume() -> String {
    format!("mem:{SIZE}")
}

fn api(bench: &Bench, local: bool) -> anyhow::Result<Running> {
    let (service, at) = serve(bench, local)?;
    Ok(Running {
        target: Target::Api(at),
        services: vec![service],
        pid_file: None,
        disk: None,
    })
}

fn map(bench: &Bench, at: &str, face: &str, place: &Path) -> anyhow::Result<Service> {
    let mut command = confined(&bench.exe);
    let session = bench.scratch.name("map");
    let session = session
        .file_name()
        .map(|n| n.to_string_lossy().into_owned())
        .unwrap_or_default();
    command.args([
        "map",
        "--foreground",
        "--session",
        &format!("{session}-{}", std::process::id()),
    ]);
    command.args(["--as", &format!("{face}{}", place.display()), at, &volume()]);
    Service::start_until(command, &bench.scratch, || match face {
        "fuse:" => std::fs::metadata(place).is_ok_and(|meta| meta.len() == SIZE),
        _ => place.exists(),
    })
}

fn nbd(bench: &Bench, local: bool) -> anyhow::Result<Running> {
    let (service, at) = serve(bench, local)?;
    let socket = bench.scratch.name("nbd");
    let mapped = map(bench, &at, "nbd:unix:", &socket)?;
    Ok(Running {
        target: Target::Nbd(uri(&socket)),
        services: vec![service, mapped],
        pid_file: None,
        disk: None,
    })
}

fn fuse(bench: &Bench) -> anyhow::Result<Running> {
    let (service, at) = serve(bench, true)?;
    let file = bench.scratch.name("fuse");
    let mapped = map(bench, &at, "fuse:", &file)?;
    Ok(Running {
        target: Target::File(file),
        services: vec![service, mapped],
        pid_file: None,
        disk: None,
    })
}

fn uri(socket: &Path) -> String {
    format!("nbd+unix:///?socket={}", socket.display())
}

/// A peer's program, where it is installed.
fn program(name: &str) -> anyhow::Result<Command> {
    let path = find_program(name).with_context(|| format!("not installed: {name}"))?;
    Ok(confined(path))
}

/// In a process group of its own, so that it can be ended with all that it starts.
pub(super) fn confined(path: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(path);
    crate::bench::sys::confine(&mut command, &[]);
    command
}

/// A file in memory, thin.
fn file(bench: &Bench) -> anyhow::Result<Disk> {
    let dir = Path::new("/dev/shm");
    let name = bench.scratch.name("disk");
    let name = name
        .file_name()
        .map(|n| n.to_string_lossy().into_owned())
        .unwrap_or_default();
    let path = match dir.is_dir() {
        true => dir.join(format!("memlane-bench-{}-{name}", std::process::id())),
        false => bench.scratch.path().join(name),
    };
    let disk = Disk(path);
    std::fs::File::create(&disk.0)?.set_len(SIZE)?;
    Ok(disk)
}

fn nbdkit(bench: &Bench, plugin: &str, tcp: bool) -> anyhow::Result<Running> {
    let socket = bench.scratch.name("nbdkit");
    let port = free_port()?;
    let mut command = program("nbdkit")?;
    command.args(["--foreground", "--exit-with-parent"]);
    match tcp {
        true => command.args(["--ipaddr", "127.0.0.1", "--port", &port.to_string()]),
        false => command.arg("--unix").arg(&socket),
    };
    let disk = match plugin {
        "memory" => {
            command.args(["memory", &SIZE.to_string()]);
            None
        }
        _ => {
            let disk = file(bench)?;
            command.arg("file").arg(&disk.0);
            Some(disk)
        }
    };
    let target = match tcp {
        true => Target::Nbd(format!("nbd://127.0.0.1:{port}")),
        false => Target::Nbd(uri(&socket)),
    };
    Ok(Running {
        target,
        services: vec![start(command, bench, tcp.then_some(port), &socket)?],
        pid_file: None,
        disk,
    })
}

fn start(
    command: Command,
    bench: &Bench,
    port: Option<u16>,
    socket: &Path,
) -> anyhow::Result<Service> {
    match port {
        Some(port) => Service::start(command, port, &bench.scratch),
        None => Service::start_until(command, &bench.scratch, || socket.exists()),
    }
}

fn nbd_server(bench: &Bench) -> anyhow::Result<Running> {
    let (disk, port) = (file(bench)?, free_port()?);
    let config = bench.scratch.name("nbd-server");
    let text = format!(
        "[generic]\nlistenaddr = 127.0.0.1\nport = {port}\n[volume]\nexportname = {}\n",
        disk.0.display()
    );
    std::fs::write(&config, text)?;
    let pid = bench.scratch.name("nbd-server-pid");
    let server = find_program("nbd-server").context("not installed: nbd-server")?;
    // It leaves its parent, or serves one client only: a shell stays with it.
    let script = r#"trap 'kill $(cat "$3"); exit 0' TERM INT; "$1" -C "$2" -p "$3" && while sleep 0.1; do :; done"#;
    let mut command = confined("/bin/sh");
    command
        .args(["-c", script, "sh"])
        .args([&server, &config, &pid]);
    Ok(Running {
        target: Target::Nbd(format!("nbd://127.0.0.1:{port}/volume")),
        services: vec![Service::start(command, port, &bench.scratch)?],
        pid_file: Some(pid),
        disk: Some(disk),
    })
}

fn qsd(bench: &Bench) -> anyhow::Result<Running> {
    let (disk, socket) = (file(bench)?, bench.scratch.name("qsd"));
    let mut command = program("qemu-storage-daemon")?;
    command.arg("--blockdev").arg(format!(
        "driver=file,node-name=disk,filename={}",
        disk.0.display()
    ));
    command
        .arg("--nbd-server")
        .arg(format!("addr.type=unix,addr.path={}", socket.display()));
    command.args([
        "--export",
        "type=nbd,id=disk,node-name=disk,name=,writable=on",
    ]);
    Ok(Running {
        target: Target::Nbd(uri(&socket)),
        services: vec![start(command, bench, None, &socket)?],
        pid_file: None,
        disk: Some(disk),
    })
}
