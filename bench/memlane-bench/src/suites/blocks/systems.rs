//! Who is measured, and how each is started.

use super::ours::Reach;
use super::running::{Bench, Running};
use super::{ours, peers};
use crate::catalogue::System;
use crate::runner::proc::find_program;

/// What serves, and who asks. It is fio that asks, but for [`By::Api`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum By {
    /// memlane's API, by fio with memlane's engine.
    Engine,
    /// The same, in memory that the server lends.
    EngineLent,
    /// memlane's API, by `memlane-bench peer load`.
    Api,
    /// The same, by memory that a server shares with other machines.
    ApiAcross,
    /// memlane's NBD export.
    Nbd,
    /// The same, of memory that the server lends.
    NbdLent,
    /// memlane's NBD export of a file, without a server.
    NbdDirect,
    /// The same, by TCP.
    NbdDirectByTcp,
    /// memlane's file.
    Fuse,
    /// The same, of memory that the server lends.
    FuseLent,
    NbdkitMemory,
    NbdkitFile,
    NbdServer,
    /// QEMU's storage daemon.
    Qsd,
    /// Its file.
    QsdFuse,
    /// nbdkit in front of another, which has the volume.
    NbdkitRelay,
    /// QEMU's storage daemon in front of another, which has the volume.
    QsdRelay,
}

/// Something that serves blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Served {
    /// For `--only`.
    pub(super) id: &'static str,
    /// For people.
    about: &'static str,
    by: By,
    tcp: bool,
    /// Also measured with more and more jobs?
    pub(super) in_sweep: bool,
    /// Belongs to a short run? Of some peers the same programs are in it, over a unix socket.
    pub(super) is_quick: bool,
}

const fn served(id: &'static str, about: &'static str, by: By, tcp: bool) -> Served {
    Served {
        id,
        about,
        by,
        tcp,
        in_sweep: false,
        is_quick: true,
    }
}

const fn swept(served: Served) -> Served {
    Served {
        in_sweep: true,
        ..served
    }
}

const fn long(served: Served) -> Served {
    Served {
        is_quick: false,
        ..served
    }
}

/// All of them, ours first. Those that do not use TCP use the loopback device, or a unix socket. Exports of ours are at a unix socket,
/// unless they say otherwise.
#[rustfmt::skip]
pub(super) const ALL: [Served; 24] = {
    use By::*;
    const TCP: bool = true;
    [
        swept(served("fio-local", "memlane, API, loopback device", Engine, !TCP)),
        swept(served("fio-lent", "memlane, API, memory that the server lends", EngineLent, !TCP)),
        swept(served("fio-tcp", "memlane, API, TCP device", Engine, TCP)),
        served("api-local", "memlane, API, loopback device, own generator", Api, !TCP),
        served("api-tcp", "memlane, API, TCP device, own generator", Api, TCP),
        served("api-region", "memlane, API, memory that machines share, own generator", ApiAcross, TCP),
        swept(served("nbd-local", "memlane, NBD export, loopback device", Nbd, !TCP)),
        swept(served("nbd-lent", "memlane, NBD export, memory that the server lends", NbdLent, !TCP)),
        swept(served("nbd-direct", "memlane, NBD export of a file in memory, no server", NbdDirect, !TCP)),
        long(served("nbd-direct-by-tcp", "memlane, NBD export by TCP of a file in memory, no server", NbdDirectByTcp, !TCP)),
        served("nbd-tcp", "memlane, NBD export, TCP device", Nbd, TCP),
        served("fuse", "memlane, FUSE file, loopback device", Fuse, !TCP),
        served("fuse-lent", "memlane, FUSE file, memory that the server lends", FuseLent, !TCP),
        swept(served("nbdkit", "nbdkit memory, unix socket", NbdkitMemory, !TCP)),
        served("nbdkit-tcp", "nbdkit memory, TCP", NbdkitMemory, TCP),
        served("nbdkit-file", "nbdkit file in memory, unix socket", NbdkitFile, !TCP),
        long(served("nbdkit-file-tcp", "nbdkit file in memory, TCP", NbdkitFile, TCP)),
        served("nbd-server", "nbd-server, file in memory, unix socket", NbdServer, !TCP),
        long(served("nbd-server-tcp", "nbd-server, file in memory, TCP", NbdServer, TCP)),
        swept(served("qsd", "qemu-storage-daemon, file in memory, unix socket", Qsd, !TCP)),
        long(served("qsd-tcp", "qemu-storage-daemon, file in memory, TCP", Qsd, TCP)),
        served("qsd-fuse", "qemu-storage-daemon, FUSE file of a file in memory", QsdFuse, !TCP),
        served("nbdkit-relay", "nbdkit nbd, of another's memory by TCP", NbdkitRelay, TCP),
        served("qsd-relay", "qemu-storage-daemon, of another's file by TCP", QsdRelay, TCP),
    ]
};

/// What an id means.
pub(super) fn known(id: &str) -> Option<&'static Served> {
    ALL.iter().find(|served| served.id == id)
}

impl Served {
    /// As a column.
    pub(super) fn system(&self) -> System {
        System {
            id: self.id,
            about: self.about,
            ours: matches!(
                self.by,
                By::Engine
                    | By::EngineLent
                    | By::Api
                    | By::ApiAcross
                    | By::Nbd
                    | By::NbdLent
                    | By::NbdDirect
                    | By::NbdDirectByTcp
                    | By::Fuse
                    | By::FuseLent
            ),
        }
    }

    /// Starts it.
    pub(super) fn start(&self, bench: &Bench) -> anyhow::Result<Running> {
        let tcp = self.tcp;
        let reach = if tcp { Reach::Tcp } else { Reach::Local };
        match self.by {
            By::Engine => ours::engine(bench, reach),
            By::EngineLent => ours::engine(bench, Reach::Lent),
            By::Api => ours::api(bench, reach),
            By::ApiAcross => ours::api_across(bench),
            By::Nbd => ours::nbd(bench, reach),
            By::NbdLent => ours::nbd(bench, Reach::Lent),
            By::NbdDirect => ours::nbd_direct(bench, false),
            By::NbdDirectByTcp => ours::nbd_direct(bench, true),
            By::Fuse => ours::fuse(bench, Reach::Local),
            By::FuseLent => ours::fuse(bench, Reach::Lent),
            By::NbdkitMemory => peers::nbdkit_memory(bench, tcp),
            By::NbdkitFile => peers::nbdkit_file(bench, tcp),
            By::NbdServer => peers::nbd_server(bench, tcp),
            By::Qsd => peers::qsd(bench, tcp),
            By::QsdFuse => peers::qsd_fuse(bench),
            By::NbdkitRelay => peers::nbdkit_relay(bench),
            By::QsdRelay => peers::qsd_relay(bench),
        }
    }

    /// Why it cannot be measured here, if so: what it lacks, and who brings that.
    pub(super) fn lacks(&self, bench: &Bench) -> Option<String> {
        let needed: &[&str] = match self.by {
            By::Api | By::ApiAcross => &[],
            By::Engine | By::EngineLent | By::Nbd | By::NbdLent => &["fio"],
            By::NbdDirect | By::NbdDirectByTcp | By::Fuse | By::FuseLent => &["fio"],
            By::NbdkitMemory | By::NbdkitFile | By::NbdkitRelay => &["nbdkit", "fio"],
            By::NbdServer => &["nbd-server", "fio"],
            By::Qsd | By::QsdFuse | By::QsdRelay => &["qemu-storage-daemon", "fio"],
        };
        absent(needed).or_else(|| match self.by {
            By::Engine | By::EngineLent => ours::no_engine(&ours::library(&bench.programs)),
            _ => None,
        })
    }
}

/// The first of some programs that is not there.
fn absent(needed: &[&str]) -> Option<String> {
    let name = needed.iter().find(|name| find_program(name).is_none())?;
    Some(format!("not installed: {name} ({})", package(name)))
}

fn package(program: &str) -> String {
    let package = match program {
        "qemu-storage-daemon" => "qemu-system-common",
        name => name,
    };
    format!("apt-get install {package}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systems_have_names_of_their_own_and_both_sides_are_there() {
        for (index, system) in ALL.iter().enumerate() {
            let twice = ALL[..index].iter().any(|other| other.id == system.id);
            assert!(!twice, "{}", system.id);
        }
        let ours = ALL.iter().filter(|served| served.system().ours).count();
        assert_eq!((ours, ALL.len() - ours), (13, 11));
        // The sweep compares, too.
        let swept = |ours| {
            let mut all = ALL.iter().filter(|served| served.in_sweep);
            all.any(|served| served.system().ours == ours)
        };
        assert!(swept(true) && swept(false));
    }

    #[test]
    fn what_is_missing_is_named_with_the_package_that_brings_it() {
        let told = absent(&["sh", "no-such-program-as-this"]).expect("it is not there");
        assert!(
            told.contains("apt-get install no-such-program-as-this"),
            "{told}"
        );
        assert_eq!(absent(&["sh"]), None);
        assert!(package("qemu-storage-daemon").ends_with("qemu-system-common"));
    }
}
