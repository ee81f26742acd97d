//! memlane, as a system to be measured.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::door::Door;
use super::running::{Bench, Running, Target, file, volume};
use super::volume::{Access, OpenVolume, Way};
use crate::runner::proc::{Service, confined, free_port, listens, listens_at};
use crate::runner::programs::Programs;

/// Bytes of a region with room for the session that loads, and for that which keeps the volume: 64 MiB each by default.
const REGION: u64 = 256 << 20;

/// memlane's engine for fio, where a build leaves it: beside this program, or (a build of tests) in `deps`.
pub(in crate::suites) fn library(programs: &Programs) -> PathBuf {
    let beside = programs.memlane.with_file_name("libmemlane_fio.so");
    let deps = programs.memlane.with_file_name("deps/libmemlane_fio.so");
    match !beside.exists() && deps.exists() {
        true => deps,
        false => beside,
    }
}

/// Why fio could not use it, if so.
pub(in crate::suites) fn no_engine(library: &Path) -> Option<String> {
    let shown = library.display();
    let Ok(bytes) = std::fs::read(library) else {
        return Some(format!("not built: {shown} (`./dev build` makes it)"));
    };
    // The name of the function that fio looks for.
    let name = b"get_ioengine";
    let engine = bytes.windows(name.len()).any(|window| window == name);
    (!engine).then(|| {
        format!(
            "built without fio's headers: {shown} (`./dev build` fetches them; docs/guides/fio.md)"
        )
    })
}

/// What a test or a person who looks at the processes sees; no two are the same at a time.
fn fresh(bench: &Bench, hint: &str) -> String {
    let name = bench.scratch.name(hint);
    let name = name.file_name().unwrap_or_default().to_string_lossy();
    format!("{name}-{}", std::process::id())
}

/// A server for test volumes, with these `flags`, which listens at `at`; `command` may begin with what puts it elsewhere.
pub(super) fn serve(
    bench: &Bench,
    mut command: Command,
    at: &[String],
    flags: &[&str],
    ready: impl Fn(u32) -> bool,
) -> anyhow::Result<Service> {
    command.args(["serve", "--test-volumes", "--name", &fresh(bench, "serve")]);
    command.args(flags);
    for at in at {
        command.args(["--listen", at]);
    }
    let ours = |at: &String| at.starts_with("local:") || at.starts_with("tcp://127.");
    if !at.iter().all(ours) {
        // Namespaces that nobody else is in.
        command.arg("--insecure");
    }
    command.arg("--root").arg(bench.scratch.path());
    Service::start_until(command, &bench.scratch, ready)
}

/// How a server's volume is reached.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// By the loopback device, and by the server alone.
    Local,
    /// In memory that the server lends, as it does without a flag.
    Lent,
    Tcp,
}

fn server(bench: &Bench, reach: Reach) -> anyhow::Result<(Service, String)> {
    let (name, port) = (fresh(bench, "at"), free_port()?);
    let by_tcp = reach == Reach::Tcp;
    let at = match by_tcp {
        true => format!("tcp://127.0.0.1:{port}"),
        false => format!("local:{name}"),
    };
    let socket = format!("@memlane/blocks/{name}");
    let ready = |pid| match by_tcp {
        true => listens(pid, port),
        false => listens_at(&socket),
    };
    let flags: &[&str] = match reach {
        Reach::Lent => &[],
        Reach::Local | Reach::Tcp => &["--lend", "never"],
    };
    let command = confined(&bench.programs.memlane);
    let service = serve(bench, command, std::slice::from_ref(&at), flags, ready)?;
    Ok((service, at))
}

/// Its API, by our own generator.
pub(super) fn api(bench: &Bench, reach: Reach) -> anyhow::Result<Running> {
    let (service, at) = server(bench, reach)?;
    let held = hold(bench, &at, None)?;
    let mut running = Running::new(Target::Api { at, device: None }, vec![service]);
    running.held = Some(held);
    Ok(running)
}

/// Its API by memory that a server shares with other machines, by our own generator.
pub(super) fn api_across(bench: &Bench) -> anyhow::Result<Running> {
    let region = file(bench)?;
    File::options()
        .write(true)
        .open(&region.0)?
        .set_len(REGION)?;
    let port = free_port()?;
    let mut command = confined(&bench.programs.memlane);
    command.args(["serve", "--test-volumes", "--name", &fresh(bench, "serve")]);
    command.args(["--lend", "never"]);
    command.args(["--listen", &format!("tcp://127.0.0.1:{port}")]);
    command
        .arg("--device")
        .arg(format!("ivshmem:{}", region.0.display()));
    command.arg("--root").arg(bench.scratch.path());
    let service = Service::start_until(command, &bench.scratch, |pid| listens(pid, port))?;
    let (at, device) = (format!("ivshmem://127.0.0.1:{port}"), region.0.clone());
    let held = hold(bench, &at, Some(&device))?;
    let target = Target::Api {
        at,
        device: Some(device),
    };
    let mut running = Running::new(target, vec![service]);
    (running.held, running.disk) = (Some(held), Some(region));
    Ok(running)
}

/// Its API, by fio.
pub(super) fn engine(bench: &Bench, reach: Reach) -> anyhow::Result<Running> {
    let (service, at) = server(bench, reach)?;
    let (library, held) = (library(&bench.programs), hold(bench, &at, None)?);
    let volume = volume(bench.size);
    let target = Target::Engine {
        library,
        at,
        volume,
    };
    let mut running = Running::new(target, vec![service]);
    running.held = Some(held);
    Ok(running)
}

/// A volume in memory is there as long as somebody has it open. Each load opens it anew: without this it would read
/// holes, and pay for their pages.
fn hold(bench: &Bench, at: &str, device: Option<&Path>) -> anyhow::Result<OpenVolume> {
    let way = Way {
        servers: &[at.to_owned()],
        device,
        connections: 1,
    };
    OpenVolume::open(way, &volume(bench.size), Access::ReadOnly)
}

fn map(bench: &Bench, at: &str, face: &str) -> Command {
    let mut command = confined(&bench.programs.memlane);
    command.args(["map", "--foreground", "--session", &fresh(bench, "map")]);
    command.args(["--as", face, at]);
    command.arg(volume(bench.size));
    command
}

/// What `map --as` is told of an export there.
fn nbd_at(door: &Door) -> String {
    match door {
        Door::Tcp(port) => format!("nbd:tcp:127.0.0.1:{port}"),
        Door::Unix(socket) => format!("nbd:unix:{}", socket.display()),
    }
}

/// The NBD export of a mapped volume.
pub(super) fn nbd(bench: &Bench, reach: Reach) -> anyhow::Result<Running> {
    let (service, at) = server(bench, reach)?;
    let door = Door::new(bench, false)?;
    let mapped = door.start(map(bench, &at, &nbd_at(&door)), bench)?;
    Ok(Running::new(door.target(""), vec![service, mapped]))
}

/// The NBD export of a file in memory, as the peers have one.
pub(super) fn nbd_direct(bench: &Bench, by_tcp: bool) -> anyhow::Result<Running> {
    let (disk, door) = (file(bench)?, Door::new(bench, by_tcp)?);
    let mut command = confined(&bench.programs.memlane);
    command.args(["map", "--foreground", "--as", &nbd_at(&door)]);
    command.arg(format!("file:{}", disk.0.display()));
    let mapped = door.start(command, bench)?;
    let mut running = Running::new(door.target(""), vec![mapped]);
    running.disk = Some(disk);
    Ok(running)
}

/// The file of a mapped volume.
pub(super) fn fuse(bench: &Bench, reach: Reach) -> anyhow::Result<Running> {
    let (service, at) = server(bench, reach)?;
    let file = bench.scratch.name("fuse");
    let face = format!("fuse:{}", file.display());
    let mapped = Service::start_until(map(bench, &at, &face), &bench.scratch, |_| {
        std::fs::metadata(&file).is_ok_and(|meta| meta.len() == bench.size)
    })?;
    Ok(Running::new(Target::File(file), vec![service, mapped]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::proc::Scratch;

    #[test]
    fn a_library_that_is_absent_or_no_engine_is_told_from_one_that_is() {
        let scratch = Scratch::new().expect("a folder");
        let library = scratch.name("library");
        assert!(no_engine(&library).is_some_and(|why| why.starts_with("not built")));
        std::fs::write(&library, b"\x7fELF").expect("a file");
        assert!(no_engine(&library).is_some_and(|why| why.contains("headers")));
        std::fs::write(&library, b"\x7fELF\0get_ioengine\0").expect("a file");
        assert_eq!(no_engine(&library), None);
        let nowhere = no_engine(&super::library(&Programs::nowhere()));
        assert!(nowhere.is_some_and(|why| why.contains("libmemlane_fio.so")));
    }
}
