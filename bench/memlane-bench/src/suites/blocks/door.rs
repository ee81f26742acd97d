//! Where an NBD export listens, and how fio finds it there.

use std::process::Command;

use super::running::{Bench, Target, uri};
use crate::runner::proc::{Service, free_port};

/// Where an export listens.
pub(super) enum Door {
    Tcp(u16),
    Unix(std::path::PathBuf),
}

impl Door {
    pub(super) fn new(bench: &Bench, tcp: bool) -> anyhow::Result<Door> {
        match tcp {
            true => Ok(Door::Tcp(free_port()?)),
            false => Ok(Door::Unix(bench.scratch.name("door"))),
        }
    }

    pub(super) fn target(&self, export: &str) -> Target {
        Target::Nbd(match self {
            Door::Tcp(port) => format!("nbd://127.0.0.1:{port}/{export}"),
            Door::Unix(socket) if export.is_empty() => uri(socket),
            Door::Unix(socket) => format!("nbd+unix:///{export}?socket={}", socket.display()),
        })
    }

    /// For qemu-storage-daemon: where it listens.
    pub(super) fn of_qemu(&self) -> String {
        match self {
            Door::Tcp(port) => format!("addr.type=inet,addr.host=127.0.0.1,addr.port={port}"),
            Door::Unix(socket) => format!("addr.type=unix,addr.path={}", socket.display()),
        }
    }

    pub(super) fn start(&self, command: Command, bench: &Bench) -> anyhow::Result<Service> {
        match self {
            Door::Tcp(port) => Service::start(command, *port, &bench.scratch),
            Door::Unix(socket) => {
                Service::start_until(command, &bench.scratch, |_| socket.exists())
            }
        }
    }
}
