//! memlane's streams by name: memory of the other end is reserved and committed, one's own looked at and consumed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::ensure;
use memlane_socket::Listener;
use memlane_socket::Stream;
use memlane_socket::native::Standing;

use super::turns::End;
use crate::runner::proc::appears;

/// For the other end to come, and for the handshake.
const PATIENCE: Duration = Duration::from_secs(10);

/// A listener, or where one is: its address is in a file.
pub(super) enum Door {
    Listener(Listener),
    Of(PathBuf),
}

impl Door {
    pub(super) fn new(serves: bool, folder: &Path) -> anyhow::Result<Door> {
        let file = folder.join("address");
        if !serves {
            return Ok(Door::Of(file));
        }
        let listener = Listener::bind(&([127, 0, 0, 1], 0).into())?;
        // Whoever reads it reads all of it.
        let new = folder.join("address.new");
        std::fs::write(&new, listener.local_addr()?.to_string())?;
        std::fs::rename(&new, &file)?;
        Ok(Door::Listener(listener))
    }

    pub(super) fn end(&mut self) -> anyhow::Result<Lane> {
        let mut stream = match self {
            Door::Listener(listener) => listener.accept()?,
            Door::Of(file) => Stream::connect(&address(file)?)?,
        };
        let standing = stream.negotiate(PATIENCE);
        ensure!(standing == Standing::Memory, "no memory lane: {standing:?}");
        Ok(Lane(stream))
    }
}

fn address(file: &Path) -> anyhow::Result<std::net::SocketAddr> {
    ensure!(appears(file, PATIENCE), "nobody serves");
    let text = std::fs::read_to_string(file)?;
    Ok(text.parse()?)
}

/// One connection.
pub(super) struct Lane(Stream);

impl End for Lane {
    fn give(&mut self, bytes: usize) -> anyhow::Result<()> {
        let mut left = bytes;
        while left > 0 {
            let slot = self.0.reserve(left)?;
            let n = slot.len().min(left);
            slot.commit(n)?;
            left -= n;
        }
        Ok(())
    }

    fn take(&mut self, bytes: usize) -> anyhow::Result<bool> {
        let mut left = bytes;
        while left > 0 {
            let here = self.0.peek()?;
            let n = here.len().min(left);
            if n == 0 {
                return Ok(false);
            }
            here.consume(n);
            left -= n;
        }
        Ok(true)
    }

    fn send(&mut self, from: &[u8]) -> anyhow::Result<()> {
        let mut done = 0;
        while done < from.len() {
            // As the bare ring: both ends are to be busy.
            let wanted = (from.len() - done).min(super::ring::PIECE);
            let slot = self.0.reserve(wanted)?;
            let n = slot.len().min(wanted);
            ensure!(slot.fill(0, &from[done..done + n]), "no room");
            slot.commit(n)?;
            done += n;
        }
        Ok(())
    }

    fn receive(&mut self, into: &mut [u8]) -> anyhow::Result<bool> {
        let mut done = 0;
        while done < into.len() {
            let here = self.0.peek()?;
            let n = here.len().min(into.len() - done);
            if n == 0 {
                return Ok(false);
            }
            ensure!(here.copy_to(0, &mut into[done..done + n]), "no bytes");
            here.consume(n);
            done += n;
        }
        Ok(true)
    }

    fn finish(&mut self) -> anyhow::Result<()> {
        Ok(self.0.finish()?)
    }
}
