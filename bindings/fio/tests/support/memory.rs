//! A server with volumes in memory, `mem:SIZE`, that counts what it is asked.

use memlane_block::volume::{Flags, Info, Op};
use memlane_block::wire::{Access, CAPS, IoMsg, Message, OpenRsp, SECTOR, SessInfoRsp, VERSION};
use memlane_core::access::SharedBytes;
use memlane_transport::engine::server::{Config, Job, SessionId};
use memlane_transport::io::{Address, Server, ServerConfig, serve};
use memlane_transport::port::{Finished, Identity, Service};
use memlane_transport::wire::Geometry;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What was asked.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    pub(crate) sessions: AtomicU64,
    pub(crate) opens: AtomicU64,
    pub(crate) reads: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) durable_writes: AtomicU64,
    pub(crate) flushes: AtomicU64,
    pub(crate) trims: AtomicU64,
    pub(crate) zeroes: AtomicU64,
}

impl Asked {
    fn of(&self, op: Op) -> &AtomicU64 {
        match op {
            Op::Read | Op::Extents => &self.reads,
            Op::Write => &self.writes,
            Op::Flush => &self.flushes,
            Op::Trim => &self.trims,
            Op::WriteZeroes => &self.zeroes,
        }
    }
}

struct Disk {
    bytes: Vec<u8>,
    read_only: bool,
}

struct Memory {
    disks: Vec<Disk>,
    names: BTreeMap<String, usize>,
    asked: Arc<Asked>,
    max_io: u32,
    finished: Vec<Finished>,
}

/// Every so-many-th write of a volume `bad:SIZE` fails.
const BAD_EVERY: u64 = 64;

/// `mem:SIZE`, with k, m or g; `ro:SIZE` can only be read, `bad:SIZE` fails at times, and `odd:` has no trim.
fn size_of(name: &str) -> Option<usize> {
    let (kind, size) = name.split_once(':')?;
    let digits = size.trim_end_matches(['k', 'm', 'g']);
    let shift = match &size[digits.len()..] {
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "" => 0,
        _ => return None,
    };
    let known = ["mem", "ro", "bad", "odd"].contains(&kind);
    let bytes: usize = digits.parse().ok().filter(|_| known)?;
    bytes.checked_shl(shift).filter(|size| *size <= 8 << 30)
}

fn info(name: &str, disk: &Disk, max_io: u32) -> Info {
    let trims = !name.starts_with("odd:");
    Info {
        size: disk.bytes.len() as u64,
        block: 512,
        preferred: 4096,
        max_io,
        max_trim: if trims { 1 << 20 } else { 0 },
        read_only: disk.read_only,
        cached: true,
        trim: trims,
        zeroes: trims,
        extents: false,
    }
}

impl Memory {
    fn execute(&mut self, job: &Job, chunk: SharedBytes) -> Result<(), i32> {
        match Message::decode(&job.usr).map_err(|_| libc::EPROTO)? {
            Message::SessInfo(hello) => {
                let caps = hello.caps & CAPS;
                let rsp = SessInfoRsp {
                    version: VERSION,
                    caps,
                    boot: [1; 16],
                };
                answer(chunk, &rsp.encode())
            }
            Message::Open(open) => {
                let at = self.disk(&open.name).ok_or(libc::ENOENT)?;
                self.asked.opens.fetch_add(1, Ordering::Relaxed);
                let disk = &self.disks[at];
                if disk.read_only && open.access != Access::ReadOnly {
                    return Err(libc::EROFS);
                }
                let info = info(&open.name, disk, self.max_io);
                let rsp = OpenRsp::of(u32::try_from(at).expect("few"), &info, CAPS);
                answer(chunk, &rsp.encode())
            }
            Message::Close(_) => Ok(()),
            Message::Io(io) => self.io(&io, chunk),
        }
    }

    fn disk(&mut self, name: &str) -> Option<usize> {
        if let Some(at) = self.names.get(name) {
            return Some(*at);
        }
        self.disks.push(Disk {
            bytes: vec![0; size_of(name)?],
            read_only: name.starts_with("ro:"),
        });
        self.names.insert(name.into(), self.disks.len() - 1);
        Some(self.disks.len() - 1)
    }

    fn io(&mut self, io: &IoMsg, chunk: SharedBytes) -> Result<(), i32> {
        let name = self
            .names
            .iter()
            .find(|(_, at)| **at as u64 == u64::from(io.device_id));
        let bad = name.is_some_and(|(name, _)| name.starts_with("bad:"));
        let disk = self.disks.get_mut(io.device_id as usize);
        let disk = disk.ok_or(libc::ENODEV)?;
        let count = self.asked.of(io.op).fetch_add(1, Ordering::Relaxed) + 1;
        let at = usize::try_from(io.sector * u64::from(SECTOR)).map_err(|_| libc::EINVAL)?;
        let len = if io.op == Op::Flush {
            0
        } else {
            io.len as usize
        };
        let span = at..at.checked_add(len).ok_or(libc::EINVAL)?;
        let span = disk.bytes.get_mut(span).ok_or(libc::EINVAL)?;
        match io.op {
            // SAFETY: `span` has `len` bytes; the window checks its own bounds.
            Op::Read => match unsafe { chunk.copy_in(0, span.as_ptr(), len) } {
                true => Ok(()),
                false => Err(libc::EINVAL),
            },
            Op::Write => {
                if bad && count.is_multiple_of(BAD_EVERY) {
                    return Err(libc::EIO);
                }
                if io.flags.has(Flags::FUA) {
                    self.asked.durable_writes.fetch_add(1, Ordering::Relaxed);
                }
                // SAFETY: as above, and it can be written.
                match unsafe { chunk.copy_out(0, span.as_mut_ptr(), len) } {
                    true => Ok(()),
                    false => Err(libc::EINVAL),
                }
            }
            Op::Trim | Op::WriteZeroes => {
                span.fill(0);
                Ok(())
            }
            Op::Flush => Ok(()),
            Op::Extents => Err(libc::EOPNOTSUPP),
        }
    }
}

fn answer(chunk: SharedBytes, bytes: &[u8]) -> Result<(), i32> {
    // SAFETY: `bytes` is readable for its length.
    match unsafe { chunk.copy_in(0, bytes.as_ptr(), bytes.len()) } {
        true => Ok(()),
        false => Err(libc::EINVAL),
    }
}

impl Service for Memory {
    fn opened(&mut self, _: SessionId, _: &str, _: &Identity) -> bool {
        self.asked.sessions.fetch_add(1, Ordering::Relaxed);
        true
    }

    fn execute(&mut self, job: Job, chunk: SharedBytes) {
        let result = Memory::execute(self, &job, chunk);
        let errno = result.err().unwrap_or(0);
        self.finished.push(Finished {
            session: job.session,
            permit: job.permit,
            generation: job.generation,
            errno: u16::try_from(errno).expect("an error number"),
        });
    }

    fn finished(&mut self, into: &mut Vec<Finished>) {
        into.append(&mut self.finished);
    }

    fn notices(&mut self, _: &mut Vec<(SessionId, u32)>) {}

    fn gone(&mut self, _: SessionId) {}

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Starts one with `depth` chunks for requests of `max_io` bytes.
pub(crate) fn start(listen: Address, depth: u16, max_io: u32) -> io::Result<(Server, Arc<Asked>)> {
    let geometry = Geometry::new(depth, max_io + 4096, 4096).map_err(io::Error::other)?;
    let config = ServerConfig::new(vec![listen], Config::new(geometry, 1));
    let asked: Arc<Asked> = Arc::default();
    let told = Arc::clone(&asked);
    let server = serve(config, move |_| {
        Ok(Memory {
            disks: Vec::new(),
            names: BTreeMap::new(),
            asked: Arc::clone(&told),
            max_io,
            finished: Vec::new(),
        })
    })?;
    Ok((server, asked))
}
