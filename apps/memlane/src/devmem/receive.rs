//! The receiving side of `memlane nc`.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::Context;
use memlane_devmem::Fragment;
use memlane_devmem::error::ReceiveError;
use memlane_devmem::io::Stream;
use memlane_devmem::io::lane::End;

use super::pattern::Pattern;
use super::report::{Received, say};
use super::way::Ready;
use crate::cli::exit::{Exit, fail};

/// What is done with what comes.
pub(super) struct Job<'a> {
    pub(super) validate: Option<u8>,
    pub(super) output: Option<&'a std::path::Path>,
    pub(super) json: bool,
}

/// Whoever looks at bytes by the CPU.
pub(super) struct Look {
    pattern: Option<Pattern>,
    output: Option<File>,
    seen: Vec<u8>,
    total: u64,
}

/// How long the socket may be silent before we look whether we are still wanted: for ever, as nc.
const AT_A_TIME: Duration = Duration::from_secs(3600);

pub(super) fn run(
    socket: OwnedFd,
    end: End,
    ready: &Ready,
    mut look: Look,
    job: &Job<'_>,
) -> anyhow::Result<()> {
    let mut stream = ready.stream(socket, end)?;
    let mut fragments = Vec::new();
    let began = Instant::now();
    let mut sizes = Sizes::default();
    loop {
        match stream.receive_within(AT_A_TIME, &mut fragments) {
            Ok(0) => break,
            Ok(_) => {}
            Err(ReceiveError::WouldBlock) => continue,
            Err(error) => return Err(fail(Exit::Failed, error.to_string())),
        }
        for fragment in &fragments {
            sizes.count(fragment.len);
            look.at(&stream, *fragment)?;
        }
        stream.release_all(&fragments);
        fragments.clear();
    }
    let (counts, choice) = (stream.counts(), ready.taken(&stream));
    drop(stream);
    let binding = &ready.binding;
    say(
        &Received {
            region: binding.region().kind().to_string(),
            choice: &choice,
            changed: ready.changed(),
            counts,
            pool: binding.counts(),
            smallest: sizes.smallest,
            largest: sizes.largest,
            took: began.elapsed(),
            validated: job.validate.is_some(),
        },
        job.json,
    )
}

#[derive(Default)]
struct Sizes {
    smallest: u32,
    largest: u32,
}

impl Sizes {
    fn count(&mut self, len: u32) {
        self.smallest = match self.smallest {
            0 => len,
            smallest => smallest.min(len),
        };
        self.largest = self.largest.max(len);
    }
}

impl Look {
    pub(super) fn new(job: &Job<'_>) -> anyhow::Result<Look> {
        let create =
            |path: &std::path::Path| File::create(path).with_context(|| path.display().to_string());
        Ok(Look {
            pattern: job.validate.map(Pattern::new),
            output: job.output.map(create).transpose()?,
            seen: Vec::new(),
            total: 0,
        })
    }

    fn at(&mut self, stream: &Stream, fragment: Fragment) -> anyhow::Result<()> {
        if self.pattern.is_some() || self.output.is_some() {
            self.seen.resize(fragment.len as usize, 0);
            stream.read(fragment.token, 0, &mut self.seen)?;
        }
        if let Some(pattern) = &mut self.pattern {
            pattern.check(&self.seen).map_err(|wrong| {
                let text = format!(
                    "byte {} is {}, and must be {}",
                    self.total + wrong.after,
                    wrong.found,
                    wrong.expected
                );
                fail(Exit::Failed, text)
            })?;
        }
        if let Some(output) = &mut self.output {
            output.write_all(&self.seen).context("--output")?;
        }
        self.total += u64::from(fragment.len);
        Ok(())
    }
}
