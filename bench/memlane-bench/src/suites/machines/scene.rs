//! The machines: two guests with one region and a network between them, and the host with a network to the first of them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, ensure};
use memlane_guest::{Guest, Kernel};

use super::computer::{Computer, Local, Machine};
use super::rows::Client;
use crate::runner::proc::{Scratch, find_program};
use crate::runner::programs::Programs;
use crate::runner::sys;
use crate::suites::guest::machine::{preload, stripped};

/// Bytes of the region.
const REGION: u64 = 256 << 20;
/// MiB of a guest: its programs are in it twice while it boots.
const MEMORY: u32 = 768;
/// A run is never longer.
const LIMIT: Duration = Duration::from_secs(3 * 3600);
/// Agents see each other in a second or two.
const MEETING: Duration = Duration::from_secs(120);

/// The server's address in the network of the guests, and in that with the host; then the client's, and the host's.
const SERVER: &str = "198.18.0.2";
const SERVER_FOR_HOST: &str = "198.18.1.2";
const CLIENT: &str = "198.18.0.3";
const HOST: &str = "198.18.1.1";

/// A file in memory. Gone when dropped.
struct Region(PathBuf);

impl Region {
    fn new() -> anyhow::Result<Region> {
        let path = format!("/dev/shm/memlane-bench-{}", std::process::id());
        let file = File::create_new(&path).with_context(|| path.clone())?;
        let region = Region(path.into());
        file.set_len(REGION)?;
        Ok(region)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// A network device of the host's. Gone when dropped.
struct Tap(String);

impl Tap {
    fn new() -> anyhow::Result<Tap> {
        let tap = Tap(format!("mlb{}", std::process::id()));
        ip(&["tuntap", "add", "dev", &tap.0, "mode", "tap"])?;
        ip(&["addr", "add", &format!("{HOST}/24"), "dev", &tap.0])?;
        ip(&["link", "set", &tap.0, "up"])?;
        Ok(tap)
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        let _ = ip(&["link", "del", &self.0]);
    }
}

fn ip(words: &[&str]) -> anyhow::Result<()> {
    let said = Command::new("ip").args(words).output().context("ip")?;
    let why = String::from_utf8_lossy(&said.stderr);
    ensure!(
        said.status.success(),
        "ip {}: {}",
        words.join(" "),
        why.trim()
    );
    Ok(())
}

/// All of it. The machines are gone before what they use.
pub(super) struct Scene<'a> {
    pub(super) server: Machine,
    client: Machine,
    host: Local<'a>,
    _tap: Tap,
    _region: Region,
}

impl<'a> Scene<'a> {
    /// # Errors
    /// Something that it takes is not here.
    pub(super) fn new(
        (programs, scratch): (&'a Programs, &'a Scratch),
        kernel: &Kernel,
        others: &[&str],
    ) -> anyhow::Result<Scene<'a>> {
        let (region, tap) = (Region::new()?, Tap::new()?);
        let host = Local::new(programs, scratch, &region.0.display().to_string())?;
        let base = guest(programs, scratch, kernel, others).map_err(|why| anyhow!(why))?;
        let base = with_region(base, &region.0);
        let cable = |ends: [&str; 2]| {
            let [own, other] = ends.map(|end| scratch.path().join(end).display().to_string());
            format!(
                "dgram,id=cable,local.type=unix,local.path={own},remote.type=unix,remote.path={other}"
            )
        };
        let to_host = format!("tap,id=host,ifname={},script=no,downscript=no", tap.0);
        let first = with_card(base.clone(), 2, "cable", &cable(["server", "client"]));
        let first = with_card(first, 3, "host", &to_host);
        let second = with_card(base, 4, "cable", &cable(["client", "server"]));
        let uuid = |guest: Guest, number: u8| {
            guest.arguments(&["-uuid", &format!("6d656d6c-616e-4000-8000-{number:012}")])
        };
        let server = Machine::boot(&uuid(first, 1), &[SERVER, SERVER_FOR_HOST])?;
        let mut client = Machine::boot(&uuid(second, 2), &[CLIENT])?;
        let begin = Instant::now();
        loop {
            let said = client.shell("memlane agent machines --device ivshmem:auto", 0.0)?;
            if said.matches(" alive ").count() == 3 {
                break;
            }
            ensure!(begin.elapsed() < MEETING, "the agents do not meet: {said}");
        }
        Ok(Scene {
            server,
            client,
            host,
            _tap: tap,
            _region: region,
        })
    }

    /// Where a client is, and the server's address for it.
    pub(super) fn client(&mut self, client: Client) -> (&mut dyn Computer, &'static str) {
        match client {
            Client::Guest => (&mut self.client, SERVER),
            Client::Host => (&mut self.host, SERVER_FOR_HOST),
        }
    }
}

/// A guest with the programs of a build and others of this machine.
fn guest(
    programs: &Programs,
    scratch: &Scratch,
    kernel: &Kernel,
    others: &[&str],
) -> Result<Guest, String> {
    let mut guest = Guest::new(kernel)
        .modules(&["virtio_pci", "virtio_net", "tcp_diag", "unix_diag"])
        .memory(MEMORY)
        .prepared(|command| sys::confine(command, &[]))
        .limit(LIMIT)
        .file(
            &stripped(&preload(programs), scratch),
            "/bin/libmemlane_preload.so",
        )
        .program(&stripped(&programs.memlane, scratch), "/bin/memlane")?
        .program(&stripped(&programs.bench, scratch), "/bin/memlane-bench")?;
    for name in others {
        let program = find_program(name).ok_or_else(|| format!("not installed: {name}"))?;
        guest = guest.program(&program, &format!("/bin/{name}"))?;
    }
    Ok(guest)
}

fn with_region(guest: Guest, region: &Path) -> Guest {
    let memory = format!(
        "memory-backend-file,id=m,share=on,mem-path={},size={REGION}",
        region.display()
    );
    guest.arguments(&["-object", &memory, "-device", "ivshmem-plain,memdev=m"])
}

fn with_card(guest: Guest, number: u8, name: &str, network: &str) -> Guest {
    let card = format!("virtio-net-pci,netdev={name},mac=52:54:00:00:00:{number:02},romfile=");
    guest.arguments(&["-netdev", network, "-device", &card])
}
