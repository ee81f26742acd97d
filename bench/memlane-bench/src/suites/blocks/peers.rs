//! The network block devices of others.

use std::process::Command;

use anyhow::Context as _;

use super::door::Door;
use super::running::{Bench, Disk, Running, Target, file};
use crate::runner::proc::{Service, confined, find_program, free_port};

/// Where it is installed.
fn program(name: &str) -> anyhow::Result<Command> {
    let path = find_program(name).with_context(|| format!("not installed: {name}"))?;
    Ok(confined(path))
}

/// nbdkit's volume in memory.
pub(super) fn nbdkit_memory(bench: &Bench, tcp: bool) -> anyhow::Result<Running> {
    let mut plugin = Command::new("memory");
    plugin.arg(bench.size.to_string());
    nbdkit(bench, Door::new(bench, tcp)?, &plugin)
}

/// nbdkit's file.
pub(super) fn nbdkit_file(bench: &Bench, tcp: bool) -> anyhow::Result<Running> {
    let disk = file(bench)?;
    let mut plugin = Command::new("file");
    plugin.arg(&disk.0);
    let mut running = nbdkit(bench, Door::new(bench, tcp)?, &plugin)?;
    running.disk = Some(disk);
    Ok(running)
}

/// What one nbdkit has in memory and exports by TCP, exported by another.
pub(super) fn nbdkit_relay(bench: &Bench) -> anyhow::Result<Running> {
    let port = free_port()?;
    let mut memory = Command::new("memory");
    memory.arg(bench.size.to_string());
    let far = nbdkit(bench, Door::Tcp(port), &memory)?;
    let mut plugin = Command::new("nbd");
    plugin.args(["hostname=127.0.0.1", &format!("port={port}")]);
    let near = nbdkit(bench, Door::new(bench, false)?, &plugin)?;
    Ok(near.in_front_of(far))
}

fn nbdkit(bench: &Bench, door: Door, plugin: &Command) -> anyhow::Result<Running> {
    let mut command = program("nbdkit")?;
    command.args(["--foreground", "--exit-with-parent"]);
    match &door {
        Door::Tcp(port) => command.args(["--ipaddr", "127.0.0.1", "--port", &port.to_string()]),
        Door::Unix(socket) => command.arg("--unix").arg(socket),
    };
    command.arg(plugin.get_program()).args(plugin.get_args());
    Ok(Running::new(
        door.target(""),
        vec![door.start(command, bench)?],
    ))
}

/// nbd-server's file.
pub(super) fn nbd_server(bench: &Bench, tcp: bool) -> anyhow::Result<Running> {
    let (disk, door) = (file(bench)?, Door::new(bench, tcp)?);
    let config = bench.scratch.name("nbd-server");
    // Its unix socket comes beside a port, always.
    let (port, more) = match &door {
        Door::Tcp(port) => (*port, String::new()),
        Door::Unix(socket) => (free_port()?, format!("unixsock = {}\n", socket.display())),
    };
    let text = format!(
        "[generic]\nlistenaddr = 127.0.0.1\nport = {port}\n{more}[volume]\nexportname = {}\n",
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
    let mut running = Running::new(door.target("volume"), vec![door.start(command, bench)?]);
    running.pid_file = Some(pid);
    running.disk = Some(disk);
    Ok(running)
}

/// The file by FUSE of QEMU's storage daemon.
pub(super) fn qsd_fuse(bench: &Bench) -> anyhow::Result<Running> {
    let (disk, mount) = (file(bench)?, bench.scratch.name("qsd-fuse"));
    std::fs::File::create(&mount)?;
    let mut command = program("qemu-storage-daemon")?;
    command.args(qsd_file(&disk)).arg("--export").arg(format!(
        "type=fuse,id=disk,node-name=disk,mountpoint={},writable=on",
        mount.display()
    ));
    let mounted = |_| std::fs::metadata(&mount).is_ok_and(|file| file.len() == bench.size);
    let service = Service::start_until(command, &bench.scratch, mounted)?;
    let mut running = Running::new(Target::File(mount.clone()), vec![service]);
    running.disk = Some(disk);
    Ok(running)
}

/// Its half that is not seen: a file.
fn qsd_file(disk: &Disk) -> [String; 2] {
    let file = disk.0.display();
    let node = format!("driver=file,node-name=disk,filename={file}");
    ["--blockdev".to_owned(), node]
}

/// The export of QEMU's storage daemon.
pub(super) fn qsd(bench: &Bench, tcp: bool) -> anyhow::Result<Running> {
    let disk = file(bench)?;
    let mut running = qsd_export(bench, Door::new(bench, tcp)?, &qsd_file(&disk))?;
    running.disk = Some(disk);
    Ok(running)
}

/// What one storage daemon exports by TCP, exported by another.
pub(super) fn qsd_relay(bench: &Bench) -> anyhow::Result<Running> {
    let (disk, port) = (file(bench)?, free_port()?);
    let mut far = qsd_export(bench, Door::Tcp(port), &qsd_file(&disk))?;
    far.disk = Some(disk);
    let server = format!("server.type=inet,server.host=127.0.0.1,server.port={port}");
    let node = format!("driver=nbd,node-name=disk,{server}");
    let near = qsd_export(
        bench,
        Door::new(bench, false)?,
        &["--blockdev".to_owned(), node],
    )?;
    Ok(near.in_front_of(far))
}

fn qsd_export(bench: &Bench, door: Door, disk: &[String; 2]) -> anyhow::Result<Running> {
    let mut command = program("qemu-storage-daemon")?;
    command.args(disk).args(["--nbd-server", &door.of_qemu()]);
    command.args([
        "--export",
        "type=nbd,id=disk,node-name=disk,name=,writable=on",
    ]);
    Ok(Running::new(
        door.target(""),
        vec![door.start(command, bench)?],
    ))
}
