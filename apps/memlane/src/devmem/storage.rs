//! `memlane vol read`: a volume's bytes into device memory.

use std::collections::VecDeque;
use std::io::Write;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use memlane_block::volume::local::{LocalVolume, Options};
use memlane_block::volume::{Detour, Io, Lease, Memory, Op, Queue, Volume};
use memlane_core::access::SharedBytes;
use memlane_devmem::DeviceRegion;
use memlane_devmem::engine::chunks::CHUNK_MIN;
use memlane_devmem::error::RegionError;
use memlane_devmem::io::{Binding, Loan};
use memlane_devmem::region::{Access, Spec};
use memlane_transport::io::{Address, PathAddr};
use serde::Serialize;

use super::pattern::Pattern;
use super::way::refused;
use crate::blocks;
use crate::cli::exit::{Exit, fail};
use crate::cli::out;
use crate::cli::values::size;

/// Read a volume, or a file of this machine, into device memory
///
/// memlane vol read tcp://192.0.2.1 disk --into udmabuf:64M
/// memlane vol read local disk --into chunks            uses the server's own memory as the region
/// memlane vol read file:/srv/weights --into memfd:1G
#[derive(clap::Args, Debug)]
#[command(verbatim_doc_comment)]
pub(crate) struct Args {
    /// Server, as for memlane map (tcp://HOST[:PORT], rdma://HOST[:PORT], local, local:NAME), or file:PATH
    server: String,
    /// Name of the volume on the server
    #[arg(default_value = "", hide_default_value = true)]
    volume: String,
    /// Region, as for memlane nc, or chunks: the memory of a server on this host (chunks:udmabuf: as a dma-buf)
    #[arg(long, value_name = "REGION|chunks")]
    into: Into,
    /// Start at this byte
    #[arg(long, value_parser = size, default_value = "0", value_name = "SIZE")]
    offset: u64,
    /// Read this many bytes [default: to the end]
    #[arg(long, value_parser = size, value_name = "SIZE")]
    bytes: Option<u64>,
    /// Size of the region's chunks, and largest read: a power of two
    #[arg(long, value_parser = size, default_value = "128K", value_name = "SIZE")]
    chunk: u64,
    /// Use only this path; exit code 5 if it is not available
    #[arg(long, value_name = "chunks|direct|staged")]
    require: Option<Way>,
    /// Expect the pattern 1 to N-1 and 0, repeated
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(2..=255))]
    validate: Option<u8>,
    /// Write the bytes to this file, too
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print the counters as one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Debug)]
enum Into {
    Region(Spec),
    Chunks { as_dma_buf: bool },
}

impl FromStr for Into {
    type Err = String;

    fn from_str(text: &str) -> Result<Into, String> {
        match text {
            "chunks" => Ok(Into::Chunks { as_dma_buf: false }),
            "chunks:udmabuf" => Ok(Into::Chunks { as_dma_buf: true }),
            region => {
                let spec = region.parse::<Spec>().map_err(|error| error.to_string());
                spec.map(Into::Region)
            }
        }
    }
}

/// The path of bytes into the region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// The server's own memory is the region.
    Chunks,
    /// The kernel reads into the region, from a file or a socket; within a host, one copy out of the chunks.
    Direct,
    /// Through memory in between.
    Staged,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Chunks => "chunks",
            Way::Direct => "direct",
            Way::Staged => "staged",
        }
    }
}

impl FromStr for Way {
    type Err = String;

    fn from_str(text: &str) -> Result<Way, String> {
        let mut ways = [Way::Chunks, Way::Direct, Way::Staged].into_iter();
        let found = ways.find(|way| way.name() == text);
        found.ok_or_else(|| "a path is chunks, direct or staged".into())
    }
}

/// Most reads in flight.
const DEPTH: usize = 16;
/// A warning is printed after this time without progress.
const PATIENCE: Duration = Duration::from_secs(60);

/// A region as the block lane has it.
#[derive(Debug)]
struct Target(Arc<Binding>);

impl Memory for Target {
    fn bytes(&self) -> SharedBytes {
        self.0.region().bytes()
    }

    fn dma_buf(&self) -> Option<(BorrowedFd<'_>, usize)> {
        let region = self.0.region();
        region.dma_buf().map(|dma_buf| (dma_buf, region.len()))
    }
}

/// Which memory that is: the kernel's numbers.
type File = (u64, u64);

/// Where bytes go, and how.
struct Destination {
    way: Way,
    /// The region. Of `chunks` its own are not used: the server's leases are.
    binding: Arc<Binding>,
    /// The same, of `direct`.
    target: Arc<dyn Memory>,
    /// Which memory the server's chunks are, of `chunks`.
    file: Option<File>,
}

/// A read, from when there is a place for it until its bytes were looked at, in the order of the volume.
struct Part {
    at: u64,
    len: u32,
    /// Its chunk of the region, unless that is the lease's.
    loan: Option<Loan>,
    /// It is done.
    lease: Option<Lease>,
}

impl Args {
    /// Is there a path that has a device?
    fn is_by_rdma(&self) -> bool {
        let paths = self.server.split(',').map(str::parse::<PathAddr>);
        let mut paths = paths.flatten();
        paths.any(|path| matches!(path.dst, Address::Rdma(_)))
    }
}

/// Counters of the run.
#[derive(Default)]
struct Counts {
    reads: u64,
    bytes: u64,
    bounced: u64,
    /// Why bytes did not come straight to the region, which has a device that could have put them there.
    detour: Option<Detour>,
}

struct Reader {
    // Before the place: leases go back to it.
    queue: Box<dyn Queue>,
    parts: VecDeque<Part>,
    place: Destination,
    /// What makes a detour is an error.
    must_be_direct: bool,
    counts: Counts,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let (volume, _session) = open(args)?;
    let info = volume.info();
    let end = match args.bytes {
        Some(bytes) => args.offset.saturating_add(bytes),
        None => info.size,
    };
    let aligned = |at: u64| at.is_multiple_of(info.block.into());
    if end > info.size || args.offset > end || !aligned(args.offset) || !aligned(end) {
        let text = format!(
            "--offset and --bytes: {} bytes in blocks of {} are there",
            info.size, info.block
        );
        return Err(fail(Exit::Usage, text));
    }
    let queue = volume.queue()?;
    let place = Destination::find(args, queue.as_ref())?;
    let most = u64::from(info.max_io);
    // The server's chunks are as long as its longest reads.
    let most = most.min(place.file.map_or(args.chunk, |_| most));
    let most = most - most % u64::from(info.block);
    if most == 0 {
        let text = format!("--chunk: blocks have {} bytes", info.block);
        return Err(fail(Exit::Usage, text));
    }
    let mut look = Look::new(args)?;
    let mut reader = Reader {
        queue,
        parts: VecDeque::new(),
        place,
        must_be_direct: args.require == Some(Way::Direct),
        counts: Counts::default(),
    };
    let began = Instant::now();
    let binding = Arc::clone(&reader.place.binding);
    // The kernel is told before and after, if it is a dma-buf.
    let mut write = || reader.read(args.offset, end, most, &mut look);
    match binding.region().is_mapped() {
        true => binding.region().cpu(Access::Write, |_| write())??,
        false => write()?,
    }
    reader.say(began.elapsed(), args)
}

/// Makes a region and divides it into chunks.
pub(crate) fn bind(region: &Spec, chunk: u64) -> anyhow::Result<Arc<Binding>> {
    let refused = |error: RegionError| refused(region, &error);
    let made = DeviceRegion::create(region).map_err(refused)?;
    // A size that is none at all is refused there.
    let chunk = u32::try_from(chunk).unwrap_or(u32::MAX);
    Binding::new(made, chunk).map_err(refused)
}

/// The volume, and what keeps it.
fn open(args: &Args) -> anyhow::Result<(Arc<dyn Volume>, Option<blocks::One>)> {
    if let Some(path) = args.server.strip_prefix("file:") {
        if !args.volume.is_empty() {
            return Err(fail(
                Exit::Usage,
                "file:PATH names the volume itself: leave the volume's name out",
            ));
        }
        let options = Options {
            read_only: true,
            ..Options::default()
        };
        memlane_block::store::allow_mappings();
        let opened = LocalVolume::open(Path::new(path), options);
        return Ok((Arc::new(opened.with_context(|| path.to_owned())?), None));
    }
    if args.volume.is_empty() {
        return Err(fail(
            Exit::Usage,
            "name the volume on the server, after the server",
        ));
    }
    let servers: Vec<String> = args.server.split(',').map(str::to_owned).collect();
    let one = blocks::open_one(&servers, &args.volume, blocks::Access::Ro, 1)?;
    Ok((one.volume(), Some(one)))
}

impl Destination {
    fn find(args: &Args, queue: &dyn Queue) -> anyhow::Result<Destination> {
        let (binding, file) = match &args.into {
            Into::Chunks { as_dma_buf } => chunks(queue, *as_dma_buf)?,
            Into::Region(spec) => (bind(spec, args.chunk)?, None),
        };
        let target: Arc<dyn Memory> = Arc::new(Target(Arc::clone(&binding)));
        let way = match file {
            Some(_) => Way::Chunks,
            None if args.require == Some(Way::Staged) => Way::Staged,
            // Memory that the CPU cannot reach; an RDMA device may.
            None if target.bytes().is_empty()
                && !(args.is_by_rdma() && target.dma_buf().is_some()) =>
            {
                Way::Staged
            }
            None => Way::Direct,
        };
        if let Some(wanted) = args.require.filter(|wanted| *wanted != way) {
            let (wanted, way) = (wanted.name(), way.name());
            let text = format!("--require {wanted}: into this region, path {way} is the one");
            return Err(fail(Exit::FellBack, text));
        }
        Ok(Destination {
            way,
            binding,
            target,
            file,
        })
    }

    fn region(&self) -> &DeviceRegion {
        self.binding.region()
    }
}

/// Uses the server's own memory as the region.
fn chunks(queue: &dyn Queue, as_dma_buf: bool) -> anyhow::Result<(Arc<Binding>, Option<File>)> {
    let file = queue.chunk_file()?;
    let text = "chunks: the server is not on this host, or the session does not use its local socket: use local:NAME";
    let file = file.ok_or_else(|| fail(Exit::FellBack, text))?;
    let region = DeviceRegion::over(file.fd, file.len, as_dma_buf);
    let refused = |error| fail(Exit::Unsupported, format!("chunks: {error}"));
    let binding = Binding::new(region.map_err(refused)?, CHUNK_MIN).map_err(refused)?;
    Ok((binding, Some(file.file)))
}

impl Reader {
    fn read(&mut self, from: u64, end: u64, most: u64, look: &mut Look) -> anyhow::Result<()> {
        let mut next = from;
        let mut last = Instant::now();
        while next < end || !self.parts.is_empty() {
            while next < end && self.parts.len() < DEPTH {
                let len = u32::try_from(most.min(end - next)).unwrap_or(u32::MAX);
                if !self.begin(next, len)? {
                    break;
                }
                next += u64::from(len);
            }
            self.queue.push();
            self.queue.wait(Some(Duration::from_secs(1)));
            match self.take_in(look)? {
                true => last = Instant::now(),
                false if last.elapsed() > PATIENCE => {
                    anyhow::bail!(
                        "the volume has returned nothing for {PATIENCE:?}: check its server and paths with memlane session show"
                    );
                }
                false => {}
            }
        }
        Ok(())
    }

    /// Begins a read; `false`: there is no room until another one is done.
    fn begin(&mut self, at: u64, len: u32) -> anyhow::Result<bool> {
        let Destination {
            way,
            binding,
            target,
            file,
        } = &self.place;
        let loan = match way {
            Way::Chunks => None,
            _ => match binding.lend() {
                Some(loan) => Some(loan),
                None => return Ok(false),
            },
        };
        let lease = match (way, &loan) {
            (Way::Direct, Some(loan)) => {
                let place = usize::try_from(loan.offset())?;
                self.queue.lease_in(target, (place, len))?
            }
            _ => self.queue.lease(len)?,
        };
        let Some(lease) = lease else {
            return Ok(false);
        };
        if *way == Way::Chunks && lease.in_chunks().map(|place| place.file) != *file {
            // All chunks are taken, or they are another server's by now.
            return match self.parts.is_empty() {
                true => Err(fail(
                    Exit::FellBack,
                    "chunks: the server has no chunk for this session (any more)",
                )),
                false => Ok(false),
            };
        }
        self.queue.submit(Io::data(at, Op::Read, at, len, lease));
        self.parts.push_back(Part {
            at,
            len,
            loan,
            lease: None,
        });
        Ok(true)
    }

    /// Takes what is done, and looks at what is next in order; `false`: nothing was.
    fn take_in(&mut self, look: &mut Look) -> anyhow::Result<bool> {
        let mut done = Vec::new();
        self.queue.reap(&mut done);
        let some = !done.is_empty();
        for done in done {
            let read = done.result;
            read.map_err(|errno| fail(Exit::Failed, format!("byte {}: {errno}", done.tag)))?;
            let part = self.parts.iter_mut().find(|part| part.at == done.tag);
            if let (Some(part), Some(lease)) = (part, done.lease) {
                part.lease = Some(lease);
            }
        }
        while self.parts.front().is_some_and(|part| part.lease.is_some()) {
            if let Some(part) = self.parts.pop_front() {
                self.arrived(part, look)?;
            }
        }
        Ok(some)
    }

    /// A part is there: it is a fragment from now until it is dropped.
    fn arrived(&mut self, part: Part, look: &mut Look) -> anyhow::Result<()> {
        let Some(lease) = part.lease else {
            return Ok(());
        };
        self.counts.bounced += u64::from(lease.copied());
        self.note_detour(&lease)?;
        let region = self.place.region();
        let offset = match (&part.loan, lease.in_chunks()) {
            (Some(loan), _) => loan.offset(),
            (None, Some(place)) => place.offset as u64,
            (None, None) => {
                let text = "chunks: the connection is another one by now, and so is its memory";
                return Err(fail(Exit::FellBack, text));
            }
        };
        let lacks_it = lease.detour().is_some() && !region.is_mapped();
        if self.place.way == Way::Staged || lacks_it {
            let bytes = lease.bytes().part(0, part.len as usize);
            let bytes = bytes.context("a lease that is too short")?;
            region.write_shared(offset, &bytes)?;
            self.counts.bounced += u64::from(part.len);
        }
        look.at(region, offset, part.len)?;
        self.counts.reads += 1;
        self.counts.bytes += u64::from(part.len);
        Ok(())
    }

    fn note_detour(&mut self, lease: &Lease) -> anyhow::Result<()> {
        let Some(detour) = lease.detour() else {
            return Ok(());
        };
        if self.must_be_direct {
            return Err(fail(Exit::FellBack, format!("--require direct: {detour}")));
        }
        self.counts.detour = Some(detour);
        Ok(())
    }

    fn say(&self, took: Duration, args: &Args) -> anyhow::Result<()> {
        let Counts {
            reads,
            bytes,
            bounced,
            detour,
        } = self.counts;
        let document = Document {
            schema: "memlane.vol-read/1",
            region: self.place.region().kind().to_string(),
            path: self.place.way.name(),
            seconds: took.as_secs_f64(),
            bytes,
            reads,
            bounced_per_byte: bounced as f64 / bytes.max(1) as f64,
            detour: detour.map(|detour| detour.to_string()),
            validated: args.validate.is_some(),
        };
        match args.json {
            true => out::print(&out::json(&document)?),
            false => out::print(&document.text()),
        }
    }
}

#[derive(Serialize)]
struct Document {
    schema: &'static str,
    region: String,
    path: &'static str,
    seconds: f64,
    bytes: u64,
    reads: u64,
    /// Bytes that were copied between two places of host memory here, for each byte.
    bounced_per_byte: f64,
    /// Why they were, if an RDMA device might have put them there itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    detour: Option<String>,
    validated: bool,
}

impl Document {
    fn text(&self) -> String {
        let rate = self.bytes as f64 * 8e-9 / self.seconds.max(1e-9);
        let rows = [
            ("path", self.path.to_owned()),
            ("region", self.region.clone()),
            (
                "read",
                format!(
                    "{} bytes by {} reads in {:.2} s: {rate:.1} Gb/s",
                    self.bytes, self.reads, self.seconds
                ),
            ),
            (
                "bounced",
                format!(
                    "{:.2} bytes through host memory for each byte{}",
                    self.bounced_per_byte,
                    self.detour
                        .as_ref()
                        .map_or(String::new(), |why| format!(": {why}"))
                ),
            ),
            (
                "validated",
                if self.validated { "every byte" } else { "no" }.into(),
            ),
        ];
        let line = |(name, value): (&str, String)| format!("{name:<12} {value}\n");
        rows.into_iter().map(line).collect()
    }
}

/// Checks or writes bytes with the CPU.
struct Look {
    pattern: Option<Pattern>,
    output: Option<std::fs::File>,
    seen: Vec<u8>,
    total: u64,
}

impl Look {
    fn new(args: &Args) -> anyhow::Result<Look> {
        let create = |path: &PathBuf| {
            std::fs::File::create(path).with_context(|| path.display().to_string())
        };
        Ok(Look {
            pattern: args.validate.map(Pattern::new),
            output: args.output.as_ref().map(create).transpose()?,
            seen: Vec::new(),
            total: 0,
        })
    }

    fn at(&mut self, region: &DeviceRegion, offset: u64, len: u32) -> anyhow::Result<()> {
        if self.pattern.is_some() || self.output.is_some() {
            self.seen.resize(len as usize, 0);
            region.read(offset, &mut self.seen)?;
        }
        if let Some(pattern) = &mut self.pattern {
            pattern.check(&self.seen).map_err(|wrong| {
                let at = self.total + wrong.after;
                let (found, expected) = (wrong.found, wrong.expected);
                fail(
                    Exit::Failed,
                    format!("byte {at} is {found}, and must be {expected}"),
                )
            })?;
        }
        if let Some(output) = &mut self.output {
            output.write_all(&self.seen).context("--output")?;
        }
        self.total += u64::from(len);
        Ok(())
    }
}
