//! Whoever receives: the lane over one of its paths, or what a program does without it.

use std::io::Read as _;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use memlane_devmem::error::ReceiveError;
use memlane_devmem::io::lane::{self, End};
use memlane_devmem::io::{Binding, Path, Stream, Terms};
use memlane_devmem::region::{RegionKind, Spec};
use memlane_devmem::{DeviceRegion, Fragment};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

use super::sizes::{Counting, Sizes};
use crate::runner::options::size;

/// `recv()` into memory of the program's own, then a copy.
pub(super) const RECV_COPY: &str = "recv-copy";
/// From the socket through a pipe into the region's file.
pub(super) const SPLICE: &str = "splice";

/// What the baseline receives into: the best of 64 KiB to 1 MiB where this was tried (it stays in a core's cache).
const BUFFER: usize = 256 << 10;
/// As large as a pipe may be without privileges.
const PIPE: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(30);

/// The largest that is in a byte and divides no size of ours.
pub(super) const PERIOD: usize = 251;

/// How and where a receiver puts what comes.
#[derive(clap::Args, Debug)]
pub(super) struct Receive {
    pub(super) address: String,
    /// A path of the lane, or recv-copy, or splice.
    pub(super) system: String,
    /// Bytes of the region.
    #[arg(long, default_value = "64M", value_parser = size)]
    pub(super) region: u64,
    /// Bytes of a chunk.
    #[arg(long, default_value = "64K", value_parser = size)]
    pub(super) chunk: u64,
    /// Bytes that are kept before their fragments go back. A system without fragments receives into this many bytes in turn.
    #[arg(long, default_value = "1M", value_parser = size)]
    pub(super) hold: u64,
}

/// Bytes that were copied.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Copied {
    pub(super) by_kernel: u64,
    pub(super) by_program: u64,
}

pub(super) enum Sink {
    Lane(Box<Lane>),
    RecvCopy(RecvCopy),
    Splice(Spliced),
}

pub(super) fn of(receive: &Receive) -> anyhow::Result<Sink> {
    Ok(match receive.system.as_str() {
        RECV_COPY => Sink::RecvCopy(RecvCopy {
            stream: None,
            buffer: vec![0; BUFFER],
            place: Place::new(receive)?,
            copied: Copied::default(),
        }),
        SPLICE => Sink::Splice(Spliced {
            stream: None,
            pipe: {
                let pipe = pipe_with(PipeFlags::CLOEXEC)?;
                fcntl_setpipe_size(&pipe.0, PIPE).context("a large pipe")?;
                pipe
            },
            place: Place::new(receive)?,
            copied: Copied::default(),
        }),
        path => Sink::Lane(Box::new(Lane::new(receive, path)?)),
    })
}

impl Sink {
    pub(super) fn attach(&mut self, stream: TcpStream) -> anyhow::Result<()> {
        match self {
            Sink::Lane(lane) => lane.attach(stream.into())?,
            Sink::RecvCopy(copy) => copy.stream = Some(stream),
            Sink::Splice(spliced) => spliced.stream = Some(stream),
        }
        Ok(())
    }

    /// Waits for the next bytes and puts them into the region; how many, 0 at the end. They begin at `at` of the stream;
    /// all of them are looked at, or a few.
    pub(super) fn some(&mut self, at: u64, all: bool) -> anyhow::Result<u64> {
        match self {
            Sink::Lane(lane) => lane.some(at, all),
            Sink::RecvCopy(copy) => copy.some(at, all),
            Sink::Splice(spliced) => spliced.some(at, all),
        }
    }

    pub(super) fn copied(&self) -> Copied {
        match self {
            Sink::Lane(lane) => lane.copied(),
            Sink::RecvCopy(copy) => copy.copied,
            Sink::Splice(spliced) => spliced.copied,
        }
    }

    pub(super) fn sizes(&self) -> Option<Sizes> {
        match self {
            Sink::Lane(lane) => Some(lane.sizes.seen()),
            Sink::RecvCopy(_) | Sink::Splice(_) => None,
        }
    }
}

/// The device-memory lane.
pub(super) struct Lane {
    binding: Arc<Binding>,
    terms: Terms,
    stream: Option<Stream>,
    /// Out, and not given back yet.
    held: Vec<Fragment>,
    held_bytes: u64,
    hold: u64,
    sizes: Counting,
    seen: Vec<u8>,
}

impl Lane {
    fn new(receive: &Receive, path: &str) -> anyhow::Result<Lane> {
        let path: Path = path.parse().map_err(anyhow::Error::msg)?;
        let region = DeviceRegion::create(&Spec {
            kind: RegionKind::Memfd,
            bytes: usize::try_from(receive.region)?,
        })?;
        Ok(Lane {
            binding: Binding::new(region, u32::try_from(receive.chunk)?)?,
            terms: Terms {
                require: Some(path),
                ..Terms::default()
            },
            stream: None,
            held: Vec::new(),
            held_bytes: 0,
            hold: receive.hold,
            sizes: Counting::default(),
            seen: Vec::new(),
        })
    }

    fn attach(&mut self, socket: OwnedFd) -> anyhow::Result<()> {
        let (binding, terms) = (&self.binding, &self.terms);
        self.stream = Some(match terms.require {
            Some(Path::Lane) => lane::stream(socket, End::Accepted, binding, terms)?,
            _ => Stream::new(socket, binding, terms),
        });
        Ok(())
    }

    fn some(&mut self, at: u64, all: bool) -> anyhow::Result<u64> {
        let stream = self.stream.as_mut().context("no stream")?;
        if self.held_bytes >= self.hold {
            stream.release_all(&self.held);
            self.held.clear();
            self.held_bytes = 0;
        }
        let mut new = self.held.len();
        let bytes = loop {
            match stream.receive_within(PATIENCE, &mut self.held) {
                Ok(bytes) => break bytes,
                Err(ReceiveError::WouldBlock) => {
                    anyhow::bail!("nothing came for {PATIENCE:?}");
                }
                Err(ReceiveError::NoRoom) if !self.held.is_empty() => {
                    stream.release_all(&self.held);
                    self.held.clear();
                    (self.held_bytes, new) = (0, 0);
                }
                Err(error) => return Err(error.into()),
            }
        };
        self.held_bytes += bytes;
        let mut place = at;
        for fragment in &self.held[new..] {
            self.sizes.count(fragment.len);
            place += u64::from(fragment.len);
            // As often as the others look: once for what came together.
            if all || place == at + bytes {
                let begin = place - u64::from(fragment.len);
                look(stream, &mut self.seen, *fragment, begin, all)?;
            }
        }
        Ok(bytes)
    }

    fn copied(&self) -> Copied {
        let counts = self.stream.as_ref().map(Stream::counts).unwrap_or_default();
        Copied {
            // Out of its socket buffers, once, but for what the sender has put into the region itself.
            by_kernel: counts.received - counts.by_lane,
            by_program: counts.bounced,
        }
    }
}

/// At all of a fragment, or at its last byte.
fn look(
    stream: &Stream,
    seen: &mut Vec<u8>,
    fragment: Fragment,
    at: u64,
    all: bool,
) -> anyhow::Result<()> {
    let skipped = if all { 0 } else { fragment.len - 1 };
    seen.resize((fragment.len - skipped) as usize, 0);
    stream.read(fragment.token, skipped, seen)?;
    check(seen, at + u64::from(skipped), all)
}

/// Memory of the kind that the lane's region is, without the lane.
struct Place {
    file: OwnedFd,
    base: NonNull<u8>,
    len: usize,
    /// Goes round.
    at: usize,
    round: usize,
}

impl Place {
    fn new(receive: &Receive) -> anyhow::Result<Place> {
        let len = usize::try_from(receive.region)?;
        let file = memfd_create("memlane-bench", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, receive.region)?;
        // SAFETY: a new mapping of a file of that length, at a place of the kernel's choice.
        let base = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            mmap(
                std::ptr::null_mut(),
                len,
                access,
                MapFlags::SHARED,
                &file,
                0,
            )?
        };
        Ok(Place {
            file,
            base: NonNull::new(base.cast()).context("a mapping at 0")?,
            len,
            at: 0,
            round: usize::try_from(receive.hold)?.clamp(1, len),
        })
    }

    /// Where the next bytes go, at most `most` of them.
    fn next(&mut self, most: usize) -> std::ops::Range<usize> {
        if self.at == self.round {
            self.at = 0;
        }
        let begin = self.at;
        self.at += most.min(self.round - begin);
        begin..self.at
    }

    fn bytes(&mut self, range: std::ops::Range<usize>) -> &mut [u8] {
        // SAFETY: `len` bytes are mapped as long as `self` lives; the file is ours alone, so nobody else writes there
        // while this is borrowed.
        let all = unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) };
        &mut all[range]
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`; nothing of it is borrowed.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

pub(super) struct RecvCopy {
    stream: Option<TcpStream>,
    buffer: Vec<u8>,
    place: Place,
    copied: Copied,
}

impl RecvCopy {
    fn some(&mut self, at: u64, all: bool) -> anyhow::Result<u64> {
        let stream = self.stream.as_mut().context("no stream")?;
        let n = stream.read(&mut self.buffer)?;
        let mut left = &self.buffer[..n];
        let mut place = at;
        while !left.is_empty() {
            let range = self.place.next(left.len());
            let (now, later) = left.split_at(range.len());
            let into = self.place.bytes(range);
            into.copy_from_slice(now);
            check(into, place, all)?;
            place += now.len() as u64;
            left = later;
        }
        self.copied.by_kernel += n as u64;
        self.copied.by_program += n as u64;
        Ok(n as u64)
    }
}

pub(super) struct Spliced {
    stream: Option<TcpStream>,
    pipe: (OwnedFd, OwnedFd),
    place: Place,
    copied: Copied,
}

impl Spliced {
    fn some(&mut self, at: u64, all: bool) -> anyhow::Result<u64> {
        let stream = self.stream.as_ref().context("no stream")?;
        let (out, into) = &self.pipe;
        let flags = SpliceFlags::MOVE | SpliceFlags::MORE;
        let came = splice(stream, None, into, None, PIPE, flags)?;
        let mut left = came;
        let mut place = at;
        while left > 0 {
            let mut range = self.place.next(left);
            while !range.is_empty() {
                let mut offset = range.start as u64;
                let n = splice(
                    out,
                    None,
                    &self.place.file,
                    Some(&mut offset),
                    range.len(),
                    flags,
                )?;
                anyhow::ensure!(n > 0, "a pipe that is empty too soon");
                let here = range.start..range.start + n;
                check(self.place.bytes(here.clone()), place, all)?;
                place += n as u64;
                left -= n;
                range.start = here.end;
            }
        }
        // Into the pipe go references; out of it, into a file in memory, the kernel copies.
        self.copied.by_kernel += came as u64;
        Ok(came as u64)
    }
}

/// Is this what is at that place of the stream? All of it, or its ends.
fn check(bytes: &[u8], at: u64, all: bool) -> anyhow::Result<()> {
    // Less than 251.
    let byte = |n: usize| u8::try_from((at + n as u64) % PERIOD as u64).unwrap_or(0);
    let right = match (all, bytes) {
        (true, _) => bytes.iter().enumerate().all(|(n, seen)| *seen == byte(n)),
        (false, [first, .., last]) => *first == byte(0) && *last == byte(bytes.len() - 1),
        (false, _) => bytes.first().is_none_or(|first| *first == byte(0)),
    };
    anyhow::ensure!(right, "other bytes than were sent, at {at} of the stream");
    Ok(())
}
