//! The sending side of `memlane nc`.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::Context;
use memlane_devmem::error::AccessError;
use memlane_devmem::io::lane::{self, End};
use memlane_devmem::io::{Path, Stream, Wait};
use memlane_devmem::region::{RegionKind, Spec};
use memlane_socket::Stream as Native;

use super::pattern::Pattern;
use super::report::{Sent, say};
use super::way::{self, Asked, Ready, not_there};
use crate::cli::exit::{Exit, fail};

/// Bytes of the region that a file goes through.
const THROUGH: usize = 4 << 20;
/// Of one send.
const AT_A_TIME: usize = 1 << 20;
const AN_HOUR: Duration = Duration::from_secs(3600);
/// EAGAIN.
const FULL: i32 = 11;

/// Where bytes come from.
pub(super) struct Source {
    ready: Ready,
    from: From,
}

enum From {
    File(File),
    /// The region, again and again, until this number of bytes is sent; with a pattern or as it is.
    Region(u64, Option<Pattern>),
}

impl Source {
    /// A region, if it reads as one and no file is called so.
    pub(super) fn open(
        text: &str,
        bytes: Option<u64>,
        validate: Option<u8>,
        asked: &Asked,
    ) -> anyhow::Result<Source> {
        let region = text.parse::<Spec>();
        let path = std::path::Path::new(text);
        if let Some(region) = region.ok().filter(|_| !path.exists()) {
            let bytes = bytes.unwrap_or(region.bytes as u64);
            return Ok(Source {
                ready: way::from(&region, asked)?,
                from: From::Region(bytes, validate.map(Pattern::new)),
            });
        }
        if bytes.is_some() || validate.is_some() {
            let text = "--bytes and --validate are for a region to send from, not for a file";
            return Err(fail(Exit::Usage, text));
        }
        let opened = || path.display().to_string();
        let file = File::open(path).with_context(opened)?;
        if file.metadata().with_context(opened)?.is_dir() {
            let text = format!(
                "{}: this is a directory; name a file to send",
                path.display()
            );
            return Err(fail(Exit::Failed, text));
        }
        let through = Spec {
            kind: RegionKind::Memfd,
            bytes: THROUGH,
        };
        Ok(Source {
            from: From::File(file),
            ready: way::from(&through, asked)?,
        })
    }

    /// Has the region's first bytes be the next ones of the stream; how many, 0 at the end.
    fn next(&mut self, sent: u64, buffer: &mut Vec<u8>) -> anyhow::Result<u64> {
        let region = self.ready.binding.region();
        match &mut self.from {
            From::File(file) => {
                buffer.resize(AT_A_TIME, 0);
                let n = file.read(buffer)?;
                region.write(0, &buffer[..n])?;
                Ok(n as u64)
            }
            From::Region(bytes, pattern) => {
                let most = AT_A_TIME.min(region.len());
                let n = usize::try_from(*bytes - sent).map_or(most, |left| left.min(most));
                if let Some(pattern) = pattern {
                    buffer.resize(n, 0);
                    pattern.fill(buffer);
                    region.write(0, buffer)?;
                }
                Ok(n as u64)
            }
        }
    }
}

pub(super) fn run(socket: OwnedFd, end: End, mut source: Source, json: bool) -> anyhow::Result<()> {
    if let (From::File(file), Path::Lane) = (&source.from, source.ready.choice.path) {
        return file_in_place(socket, end, file, &source.ready, json);
    }
    let mut stream = source.ready.stream(socket, end)?;
    let began = Instant::now();
    let (mut sent, mut buffer) = (0, Vec::new());
    loop {
        let len = source.next(sent, &mut buffer)?;
        if len == 0 {
            break;
        }
        let mut at = 0;
        while at < len {
            at += u64::from(some(&mut stream, at, len - at)?);
        }
        sent += len;
        // The region's bytes may change then.
        while !stream.wait(Wait::Sent, AN_HOUR)? {}
    }
    let region = source.ready.binding.region().kind().to_string();
    let took = began.elapsed();
    let choice = &source.ready.taken(&stream);
    let sent = Sent {
        choice,
        region,
        sent,
        took,
    };
    say(&sent, json)
}

/// Has the kernel read a file straight into the peer's memory: its one copy. While TCP carries the bytes, through a buffer.
fn file_in_place(
    socket: OwnedFd,
    end: End,
    file: &File,
    ready: &Ready,
    json: bool,
) -> anyhow::Result<()> {
    let failed = |error: memlane_sys::Errno| {
        let words = std::io::Error::from_raw_os_error(error.0);
        fail(Exit::Failed, format!("sending: {words}"))
    };
    // SAFETY: its owner gives it up here.
    let socket = unsafe { memlane_sys::fd::Fd::from_raw(socket.into_raw_fd()) };
    let mut stream = Native::of(socket, end).map_err(failed)?;
    let agreed = lane::agreed(ready.require, |limit| stream.negotiate(limit));
    agreed.map_err(not_there)?;
    let began = Instant::now();
    let mut sent = 0;
    loop {
        let slot = stream.reserve(AT_A_TIME).map_err(failed)?;
        let n = slot.read_file(0, file.as_raw_fd(), None).map_err(failed)?;
        if n == 0 {
            break;
        }
        slot.commit(n).map_err(failed)?;
        sent += n as u64;
    }
    let mut choice = ready.choice.clone();
    if let Some(passed) = lane::passed(stream.standing(), stream.counts().sent_in_memory) {
        choice.path = Path::Mapped;
        choice.passed.push(passed);
    }
    stream.finish().map_err(failed)?;
    let took = began.elapsed();
    let region = "file".to_owned();
    let sent = Sent {
        choice: &choice,
        region,
        sent,
        took,
    };
    say(&sent, json)
}

/// Sends some of it; waits if there is no room.
fn some(stream: &mut Stream, at: u64, len: u64) -> anyhow::Result<u32> {
    // At most AT_A_TIME.
    let len = u32::try_from(len).unwrap_or(u32::MAX);
    loop {
        match stream.send(at, len) {
            Ok(n) => return Ok(n),
            Err(AccessError::Device(errno)) if errno.0 == FULL => {
                stream.wait(Wait::Socket, AN_HOUR)?;
            }
            Err(error) => return Err(fail(Exit::Failed, format!("sending: {error}"))),
        }
    }
}
