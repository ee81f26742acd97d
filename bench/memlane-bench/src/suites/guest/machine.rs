//! The guest in QEMU: what is in it, and its clock, which counts instructions.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use memlane_guest::{Guest, Heard, Kernel, Running};

use super::inside::MARK;
use super::{Answer, Request, Told};
use crate::runner::proc::{Scratch, find_program};
use crate::runner::programs::Programs;
use crate::runner::sys;

/// QEMU's most capable model, without fast `rep movsb`, which the clock counts by bytes.
const CPU: &str = "max,-erms,-fsrm";

/// What a run in such a machine says of it.
pub(in crate::suites) fn settings(kernel: &str) -> Vec<(&'static str, String)> {
    vec![
        ("guest's kernel", kernel.to_owned()),
        ("guest's CPU", CPU.to_owned()),
        ("guest's clock", "1 ns an instruction".to_owned()),
    ]
}
/// An instruction takes 2^0 ns, and an idle machine does not wait.
const CLOCK: [&str; 2] = ["-icount", "shift=0,sleep=off"];
/// Its memory, in MiB: the programs are in it twice.
const MEMORY: u32 = 1536;
/// What memlane asks who is at the other end of a connection; a kernel with modprobe loads them by itself.
const MODULES: [&str; 2] = ["tcp_diag", "unix_diag"];
/// A machine boots in a few seconds, on a busy one in a minute.
const BOOT_LIMIT: Duration = Duration::from_secs(300);
/// For each row and each second of it: a second of the machine takes five to ten, on a busy one several times that.
const ROW_LIMIT: Duration = Duration::from_secs(240);
/// How often Ctrl-C is looked for.
const GLANCE: Duration = Duration::from_millis(200);
/// A run is never longer.
const LIMIT: Duration = Duration::from_secs(6 * 3600);

/// Where things are in the guest.
const LIBRARY: &str = "/bin/libmemlane_preload.so";
const SMC_LIBRARY: &str = "/bin/smc-sockets.so";

/// What the guest does first. nginx's workers run as nobody.
const PREPARE: &str = "
mkdir -p /etc /run /dev/shm /var/log /var/run
echo 'root:x:0:0:root:/:/bin/sh' >/etc/passwd
echo 'nobody:x:65534:65534:nobody:/:/bin/sh' >>/etc/passwd
printf 'root:x:0:\\nnogroup:x:65534:\\n' >/etc/group
echo '127.0.0.1 localhost' >/etc/hosts
for folder in /dev/shm /run /tmp; do mount -t tmpfs -o mode=1777 none $folder; done
ip link set lo up
[ ! -e /proc/sys/net/smc ] || for one in wmem rmem; do echo 1048576 >/proc/sys/net/smc/$one; done
export HOME=/
";

/// SMC with its loopback device, as `bench/peers/smc/build.sh` makes it for one kernel.
#[derive(Clone, Debug)]
pub(in crate::suites) struct SmcPeer {
    module: PathBuf,
    library: PathBuf,
}

impl SmcPeer {
    /// The one for `kernel`, in the target folder that this program is in. `Err`: what to do.
    pub(in crate::suites) fn find(programs: &Programs, kernel: &Kernel) -> Result<SmcPeer, String> {
        let target = programs.bench.parent().and_then(Path::parent);
        let folder = target.unwrap_or(Path::new("")).join("peers/smc");
        let folder = folder.join(kernel.release());
        let peer = SmcPeer {
            module: folder.join("smc.ko"),
            library: folder.join("smc-sockets.so"),
        };
        match peer.module.is_file() && peer.library.is_file() {
            true => Ok(peer),
            false => Err(format!(
                "SMC's loopback device is not built for {} (./dev bench counted builds it)",
                kernel.release()
            )),
        }
    }
}

/// What is in a machine beside memlane.
pub(in crate::suites) struct Outfit<'a> {
    pub(in crate::suites) smc: Option<&'a SmcPeer>,
    /// Programs of this machine.
    pub(in crate::suites) others: &'a [&'a str],
    /// The length of each measurement.
    pub(in crate::suites) seconds: f64,
    /// Whatever else a suite puts there.
    pub(in crate::suites) more: &'a dyn Fn(Guest) -> Result<Guest, String>,
}

/// A machine that waits for requests.
pub(in crate::suites) struct Machine {
    running: Running,
    seconds: f64,
}

impl Machine {
    /// Boots one with the programs of a build and others of this machine.
    ///
    /// # Errors
    /// A program is missing, or it does not come up.
    pub(in crate::suites) fn boot(
        (programs, scratch): (&Programs, &Scratch),
        kernel: &Kernel,
        outfit: &Outfit<'_>,
    ) -> anyhow::Result<Machine> {
        let guest = guest(programs, scratch, kernel, outfit).and_then(outfit.more);
        let seconds = outfit.seconds;
        let mut script = format!("{PREPARE}export MEMLANE_PRELOAD={LIBRARY}\n");
        script += &format!("exec memlane-bench peer guest --seconds {seconds}");
        if outfit.smc.is_some() {
            script += &format!(" --smc {SMC_LIBRARY}");
        }
        let running = guest.and_then(|guest| guest.try_start(&script));
        let running = running.map_err(|why| anyhow!(why))?;
        let mut machine = Machine { running, seconds };
        match machine.answer(Instant::now() + BOOT_LIMIT)? {
            Answer::Ready => Ok(machine),
            other => bail!("the guest began with {other:?}"),
        }
    }

    /// Has rows measured; `keep` is given each one's figures.
    ///
    /// # Errors
    /// What went wrong with the first row that was not kept.
    pub(in crate::suites) fn measure(
        &mut self,
        request: &Request,
        mut keep: impl FnMut(&str, &[Told]),
    ) -> anyhow::Result<()> {
        self.running.types(&serde_json::to_string(request)?);
        let rows = f64::from(u16::try_from(request.rows())?);
        let until = Instant::now() + ROW_LIMIT.mul_f64(self.seconds.ceil() * rows);
        loop {
            match self.answer(until)? {
                Answer::Row(row, figures) => keep(&row, &figures),
                Answer::Done(None) => return Ok(()),
                Answer::Done(Some(why)) => bail!(why),
                Answer::Ready => bail!("the guest began again"),
            }
        }
    }

    fn answer(&mut self, until: Instant) -> anyhow::Result<Answer> {
        loop {
            match self.running.line(GLANCE) {
                Heard::Line(line) => {
                    if let Some((_, answer)) = line.split_once(MARK) {
                        return serde_json::from_str(answer)
                            .with_context(|| format!("the guest said {line:?}"));
                    }
                }
                Heard::Nothing if sys::interrupted() => bail!("interrupted"),
                Heard::Nothing if Instant::now() < until => {}
                Heard::Nothing => bail!("the guest took too long: {}", self.said()),
                Heard::End => bail!("the guest has ended: {}", self.said()),
            }
        }
    }

    /// The end of its console.
    fn said(&self) -> String {
        let lines: Vec<&str> = self.running.console().lines().map(str::trim).collect();
        lines[lines.len().saturating_sub(6)..].join(" | ")
    }
}

fn guest(
    programs: &Programs,
    scratch: &Scratch,
    kernel: &Kernel,
    outfit: &Outfit<'_>,
) -> Result<Guest, String> {
    let (kernel, modules) = match outfit.smc {
        Some(smc) => (kernel.clone().with_module(&smc.module), &["smc"][..]),
        None => (kernel.clone(), &[][..]),
    };
    let mut guest = Guest::new(&kernel)
        .modules(&MODULES)
        .modules(modules)
        .memory(MEMORY)
        .cpu(CPU)
        .arguments(&CLOCK)
        .tells_the_kernel("mitigations=off")
        .prepared(|command| sys::confine(command, &[]))
        .limit(LIMIT)
        .file(&stripped(&preload(programs), scratch), LIBRARY)
        .program(&stripped(&programs.memlane, scratch), "/bin/memlane")?
        .program(&stripped(&programs.bench, scratch), "/bin/memlane-bench")?;
    if let Some(smc) = outfit.smc {
        guest = guest.file(&smc.library, SMC_LIBRARY);
    }
    for name in outfit.others {
        let program = find_program(name).ok_or_else(|| format!("not installed: {name}"))?;
        guest = guest.program(&program, &format!("/bin/{name}"))?;
    }
    Ok(guest)
}

/// The library that `memlane run` would take.
pub(in crate::suites) fn preload(programs: &Programs) -> PathBuf {
    let named = std::env::var_os("MEMLANE_PRELOAD").map(PathBuf::from);
    named.unwrap_or_else(|| programs.memlane.with_file_name("libmemlane_preload.so"))
}

/// A program without what only a debugger needs, as all of it is in the guest's memory; as it is, if that cannot be done.
pub(in crate::suites) fn stripped(file: &Path, scratch: &Scratch) -> PathBuf {
    let small = scratch.name("stripped");
    let mut strip = Command::new("strip");
    strip.arg("-o").arg(&small).arg(file);
    match strip.status() {
        Ok(status) if status.success() => small,
        _ => file.to_owned(),
    }
}
