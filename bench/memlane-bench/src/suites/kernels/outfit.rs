//! What is in the machine for volumes: mainline's RNBD, the kernel's NVMe, rxe, and what memlane needs to use it.

use std::path::{Path, PathBuf};

use memlane_guest::{Guest, Kernel};

use super::inside::{ENGINE, TOOLS};
use crate::runner::proc::{Scratch, find_program};
use crate::runner::programs::Programs;
use crate::suites::blocks::ours;
use crate::suites::guest::machine::stripped;

/// In the order of their loading. The kernel has no modprobe here: rxe's check sums come first.
const MODULES: [&str; 15] = [
    "crc32_generic",
    "veth",
    "sch_netem",
    "brd",
    "rdma_rxe",
    "rdma_ucm",
    "ib_uverbs",
    "ublk_drv",
    "nvmet-tcp",
    "nvmet-rdma",
    "nvme-tcp",
    "nvme-rdma",
    "rnbd-server",
    "rnbd-client",
    "crc32c_generic",
];
/// What `bench/peers/rnbd/build.sh` makes.
const RNBD: [&str; 5] = [
    "rtrs-core",
    "rtrs-client",
    "rtrs-server",
    "rnbd-client",
    "rnbd-server",
];
/// The memory of the guest, in MiB: an RTRS session has 64 MiB of chunks a path, and each program is in it twice.
const MEMORY: u32 = 2560;
const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";
/// rdma-core, as far as it is loaded at run time.
const RDMA_CORE: [&str; 4] = [
    "libibverbs.so.1",
    "librdmacm.so.1",
    "libibverbs/librxe-rdmav34.so",
    "libgcc_s.so.1",
];
/// It names rxe's provider.
const DRIVER: &str = "/etc/libibverbs.d/rxe.driver";

/// The kernel with mainline's modules, in the target folder that this program is in. `Err`: what to do.
pub(super) fn with_rnbd(programs: &Programs, mut kernel: Kernel) -> Result<Kernel, String> {
    let target = programs.bench.parent().and_then(Path::parent);
    let folder = target.unwrap_or(Path::new("")).join("peers/rnbd");
    let folder = folder.join(kernel.release());
    for name in RNBD {
        let module = folder.join(format!("{name}.ko"));
        if !module.is_file() {
            return Err(format!(
                "mainline's RNBD is not built for {} (./dev bench kernels builds it)",
                kernel.release()
            ));
        }
        kernel = kernel.with_module(&module);
    }
    Ok(kernel)
}

/// What is not installed, if something is not. `None`: all is there.
pub(super) fn lacks() -> Option<String> {
    let names = TOOLS.iter().chain(&["fio"]);
    let program = names.copied().find(|name| find_program(name).is_none());
    let library = || {
        let files = RDMA_CORE.map(|name| Path::new(LIBRARIES).join(name));
        let mut files = files.into_iter().chain([PathBuf::from(DRIVER)]);
        files.find(|file| !file.exists())
    };
    let missing = program.map(str::to_owned);
    let missing = missing.or_else(|| library().map(|file| file.display().to_string()));
    missing.map(|what| format!("not installed: {what} (./dev bench kernels installs it)"))
}

/// Why fio has no engine for memlane's volumes, if so.
pub(super) fn no_engine(programs: &Programs) -> Option<String> {
    ours::no_engine(&ours::library(programs))
}

/// Adds all that volumes take.
pub(super) fn of_volumes(
    programs: &Programs,
    scratch: &Scratch,
    guest: Guest,
) -> Result<Guest, String> {
    let mut guest = guest.modules(&MODULES).memory(MEMORY);
    // busybox has an `ip` of its own, without what rules need.
    for name in TOOLS {
        let program = find_program(name).ok_or_else(|| format!("not installed: {name}"))?;
        guest = guest.program(&program, &format!("/opt/{name}"))?;
    }
    let fio = find_program("fio").ok_or("not installed: fio")?;
    guest = guest.program(&fio, "/bin/fio")?;
    let engine = ours::library(programs);
    if engine.exists() {
        guest = guest.program(&stripped(&engine, scratch), ENGINE)?;
    }
    for name in RDMA_CORE {
        let place = format!("{LIBRARIES}/{name}");
        guest = guest.program(Path::new(&place), &place)?;
    }
    Ok(guest.file(Path::new(DRIVER), DRIVER))
}
