//! How each system's volume is attached, and detached.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::network::Cable;
use super::{ENGINE, STORE};
use crate::catalogue::System;
use crate::runner::proc::{Job, Service, appears, confined};
use crate::runner::turn::Bench;
use crate::suites::blocks::running::Target;
use crate::suites::kernels::rows::{NVME_RDMA, NVME_TCP, RDMA, RNBD, TCP, UBLK};

/// For a device, or a server, to be there.
const LIMIT: Duration = Duration::from_secs(20);
const MAP: &str = "/sys/devices/virtual/rnbd-client/ctl/map_device";
const UNMAP: &str = "/sys/block/rnbd0/rnbd/unmap_device";
const CONFIG: &str = "/sys/kernel/config";
const SUBSYSTEM: &str = "memlane-bench";
const HOST: &str = "11111111-1111-1111-1111-111111111111";
/// memlane's port, and its volume's name.
const PORT: u16 = 7700;
const VOLUME: &str = "ram0";
const UBLK_DEVICE: &str = "/dev/ublkb0";

/// A volume that is there to be loaded.
pub(super) struct Attached {
    pub(super) target: Target,
    how: How,
}

enum How {
    Rnbd,
    Nvme,
    /// The server, and the process that maps, if there is one.
    Memlane(Vec<Service>),
}

impl Attached {
    /// Attaches the store by a system, over all these paths.
    pub(super) fn new(bench: &Bench, system: &System, paths: &[Cable]) -> anyhow::Result<Attached> {
        let (target, how) = match *system {
            RNBD => (Target::File(rnbd(paths)?), How::Rnbd),
            NVME_RDMA => (Target::File(nvme(bench, "rdma", paths)?), How::Nvme),
            NVME_TCP => (Target::File(nvme(bench, "tcp", paths)?), How::Nvme),
            RDMA => engine(bench, "rdma", paths)?,
            TCP => engine(bench, "tcp", paths)?,
            UBLK => ublk(bench, paths)?,
            _ => anyhow::bail!("an unknown system"),
        };
        Ok(Attached { target, how })
    }

    /// Until nothing of it is there.
    pub(super) fn detach(self) -> anyhow::Result<()> {
        match self.how {
            // A path that was cut may be away for a while: then only this ends it.
            How::Rnbd => {
                let done = std::fs::write(UNMAP, "normal");
                done.or_else(|_| std::fs::write(UNMAP, "force"))?;
                until(|| !Path::new(UNMAP).exists(), "RNBD's device to go")
            }
            How::Nvme => disconnect(),
            How::Memlane(mut services) => {
                // The last one first.
                while let Some(service) = services.pop() {
                    drop(service);
                }
                until(|| !Path::new(UBLK_DEVICE).exists(), "ublk's device to go")
            }
        }
    }
}

fn until(is: impl Fn() -> bool, what: &str) -> anyhow::Result<()> {
    let begin = Instant::now();
    while !is() {
        anyhow::ensure!(begin.elapsed() < LIMIT, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

// ---- mainline RNBD ----

fn rnbd(paths: &[Cable]) -> anyhow::Result<PathBuf> {
    let path = |cable: &Cable| format!("path=ip:{}@ip:{} ", cable.client, cable.server);
    let paths: String = paths.iter().map(path).collect();
    let wish = format!("sessname=bench {paths}device_path={STORE} access_mode=rw");
    // Over rxe, its introduction is lost now and then; it gives up after half a minute.
    let asked = || std::fs::write(MAP, &wish);
    asked().or_else(|_| asked()).context("rnbd-client")?;
    let device = PathBuf::from("/dev/rnbd0");
    anyhow::ensure!(appears(&device, LIMIT), "no {}", device.display());
    Ok(device)
}

// ---- NVMe over fabrics ----

/// The port of a transport at the server.
fn service(transport: &str) -> u16 {
    match transport {
        "tcp" => 4420,
        _ => 4421,
    }
}

fn nvme(bench: &Bench, transport: &str, paths: &[Cable]) -> anyhow::Result<PathBuf> {
    offer(bench)?;
    for cable in paths {
        open(transport, cable)?;
        let port = service(transport);
        let wish = format!(
            "transport={transport},traddr={},trsvcid={port},host_traddr={},nqn={SUBSYSTEM},nr_io_queues=1,\
             hostnqn=nqn.2014-08.org.nvmexpress:uuid:{HOST},hostid={HOST}",
            cable.server, cable.client
        );
        std::fs::write("/dev/nvme-fabrics", wish).context("nvme-fabrics")?;
    }
    until(|| namespace().is_some(), "a device of NVMe")?;
    let name = namespace().context("a device of NVMe")?;
    // All paths of a subsystem that is reached by several.
    for policy in policies() {
        std::fs::write(policy, "round-robin")?;
    }
    let device = Path::new("/dev").join(name);
    anyhow::ensure!(appears(&device, LIMIT), "no {}", device.display());
    Ok(device)
}

/// The target's subsystem, once.
fn offer(bench: &Bench) -> anyhow::Result<()> {
    let subsystem = subsystem();
    if subsystem.exists() {
        return Ok(());
    }
    if !Path::new(CONFIG).join("nvmet").exists() {
        let mut mount = confined("/bin/mount");
        mount.args(["-t", "configfs", "configfs", CONFIG]);
        Job::start(mount, LIMIT, &bench.scratch)?.finish()?;
    }
    std::fs::create_dir(&subsystem).context("nvmet")?;
    std::fs::write(subsystem.join("attr_allow_any_host"), "1")?;
    let namespace = subsystem.join("namespaces/1");
    std::fs::create_dir(&namespace)?;
    std::fs::write(namespace.join("device_path"), STORE)?;
    Ok(std::fs::write(namespace.join("enable"), "1")?)
}

fn subsystem() -> PathBuf {
    Path::new(CONFIG).join("nvmet/subsystems").join(SUBSYSTEM)
}

/// Where a client may come in, once.
fn open(transport: &str, cable: &Cable) -> anyhow::Result<()> {
    let service = service(transport);
    // The kernel wants numbers: no two of these are the same.
    let number = service * 10 + cable.number;
    let port = Path::new(CONFIG)
        .join("nvmet/ports")
        .join(number.to_string());
    if port.exists() {
        return Ok(());
    }
    std::fs::create_dir(&port)?;
    let settings = [
        ("addr_traddr", cable.server.clone()),
        ("addr_trtype", transport.to_owned()),
        ("addr_trsvcid", service.to_string()),
        ("addr_adrfam", "ipv4".to_owned()),
    ];
    for (file, value) in settings {
        std::fs::write(port.join(file), value)?;
    }
    let link = port.join("subsystems").join(SUBSYSTEM);
    Ok(std::os::unix::fs::symlink(subsystem(), link)?)
}

/// The name of the client's device.
fn namespace() -> Option<String> {
    let mut blocks = std::fs::read_dir("/sys/block").ok()?.flatten();
    blocks.find_map(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        // Paths of a subsystem that may have several are hidden: nvme0c0n1.
        let shown = name.starts_with("nvme") && !name.contains('c');
        shown.then_some(name)
    })
}

fn policies() -> Vec<PathBuf> {
    in_each("/sys/class/nvme-subsystem", "iopolicy")
}

fn in_each(folder: &str, file: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let files = entries.map(|entry| entry.path().join(file));
    files.filter(|file| file.exists()).collect()
}

fn disconnect() -> anyhow::Result<()> {
    for controller in in_each("/sys/class/nvme", "delete_controller") {
        std::fs::write(controller, "1")?;
    }
    until(|| namespace().is_none(), "NVMe's device to go")
}

// ---- memlane ----

fn serve(bench: &Bench, scheme: &str, paths: &[Cable]) -> anyhow::Result<Service> {
    let mut command = confined(&bench.programs.memlane);
    command.args(["serve", "--root", "/dev", "--devices", "--insecure"]);
    for cable in paths {
        command.args(["--listen", &format!("{scheme}://{}:{PORT}", cable.server)]);
    }
    Service::start_saying(command, &bench.scratch, "serving")
}

/// A path, as memlane names it.
fn named(scheme: &str, cable: &Cable) -> String {
    format!("{}@{scheme}://{}:{PORT}", cable.client, cable.server)
}

/// By fio's engine.
fn engine(bench: &Bench, scheme: &str, paths: &[Cable]) -> anyhow::Result<(Target, How)> {
    let server = serve(bench, scheme, paths)?;
    let at: Vec<String> = paths.iter().map(|cable| named(scheme, cable)).collect();
    let target = Target::Engine {
        library: ENGINE.into(),
        at: at.join(","),
        volume: VOLUME.to_owned(),
    };
    Ok((target, How::Memlane(vec![server])))
}

/// As a block device of the kernel's.
fn ublk(bench: &Bench, paths: &[Cable]) -> anyhow::Result<(Target, How)> {
    let scheme = "rdma";
    let server = serve(bench, scheme, paths)?;
    let mut command = confined(&bench.programs.memlane);
    command.env("XDG_RUNTIME_DIR", "/run");
    command.args(["map", "--foreground", "--as", "ublk"]);
    for cable in paths {
        command.args(["--path", &named(scheme, cable)]);
    }
    let first = paths.first().context("no path")?;
    command.args([&format!("{scheme}://{}:{PORT}", first.server), VOLUME]);
    let device = PathBuf::from(UBLK_DEVICE);
    let mapped = Service::start_until(command, &bench.scratch, |_| device.exists())?;
    Ok((Target::File(device), How::Memlane(vec![server, mapped])))
}
