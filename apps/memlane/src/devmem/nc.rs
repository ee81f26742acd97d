//! `memlane nc`: one TCP connection, into device memory or out of it.

use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use memlane_devmem::DeviceRegion;
use memlane_devmem::error::RegionError;
use memlane_devmem::io::{Binding, Path};
use memlane_devmem::region::Spec;

use super::{receive, send};
use crate::blocks::size;
use crate::exit::{Exit, fail};

/// One TCP connection, into device memory or out of it
///
/// memlane nc -l 127.0.0.1:5201 --into udmabuf:64M      receives into a region
/// memlane nc 127.0.0.1:5201 --from FILE                sends a file
///
/// A region is memfd:SIZE, hugetlb:SIZE, udmabuf:SIZE, dmaheap:NAME:SIZE or cuda:N:SIZE. What is received stays there as
/// fragments, until it has been checked or written to --output; then its tokens are handed back.
#[derive(clap::Args, Debug)]
#[command(verbatim_doc_comment)]
pub(crate) struct Args {
    /// Where to connect to, or with -l where to listen: HOST:PORT
    #[arg(value_name = "HOST:PORT")]
    address: String,
    /// Wait for one connection
    #[arg(short, long)]
    listen: bool,
    /// Receive into this region
    #[arg(
        long,
        value_name = "REGION",
        required_unless_present = "from",
        conflicts_with = "from"
    )]
    into: Option<Spec>,
    /// Send a file, or --bytes of a region
    #[arg(long, value_name = "FILE|REGION")]
    from: Option<String>,
    /// Bytes of a chunk of the region: a power of two
    #[arg(long, value_parser = size, default_value = "64K", value_name = "SIZE")]
    chunk: u64,
    /// Of --from REGION: send so many bytes of it, again and again [default: its size]
    #[arg(long, value_parser = size, value_name = "SIZE")]
    bytes: Option<u64>,
    /// Send, or look for, the bytes 1 to N-1 and 0, again and again
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(2..=255))]
    validate: Option<u8>,
    /// What was received goes to this file, too
    #[arg(long, value_name = "FILE", requires = "into")]
    output: Option<PathBuf>,
    /// This path or none
    #[arg(long, value_name = "mapped|staged")]
    require: Option<Path>,
    /// Say what was counted as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    match (&args.into, &args.from) {
        (Some(region), _) => {
            let binding = bind(region, args.chunk)?;
            let job = receive::Job {
                validate: args.validate,
                output: args.output.as_deref(),
                require: args.require,
                json: args.json,
            };
            receive::run(args.connection()?, &binding, &job)
        }
        (None, Some(source)) => {
            let source = send::Source::open(source, args.bytes, args.validate)?;
            send::run(args.connection()?, source, args.json)
        }
        // clap asks for one of the two.
        (None, None) => Err(fail(Exit::Usage, "--into or --from")),
    }
}

impl Args {
    /// One connection, made or taken.
    fn connection(&self) -> anyhow::Result<OwnedFd> {
        let address = || self.address.clone();
        if !self.listen {
            let connected = TcpStream::connect(&self.address).with_context(address)?;
            return Ok(connected.into());
        }
        let mut addresses = self.address.to_socket_addrs().with_context(address)?;
        let at = addresses.next().with_context(address)?;
        let listener = TcpListener::bind(at).with_context(address)?;
        // Port 0 is any: it is said which.
        crate::out::warn(&format!("listening on {}", listener.local_addr()?));
        Ok(listener
            .accept()
            .context("waiting for a connection")?
            .0
            .into())
    }
}

/// Makes a region and cuts it into chunks.
pub(crate) fn bind(region: &Spec, chunk: u64) -> anyhow::Result<Arc<Binding>> {
    let refused = |error: RegionError| {
        let exit = match error {
            RegionError::Missing(_) => Exit::Unsupported,
            RegionError::Chunk(_) | RegionError::Name(_) => Exit::Usage,
            RegionError::Kernel(..) | RegionError::Device(_) => Exit::Failed,
        };
        fail(exit, format!("{region}: {error}"))
    };
    let made = DeviceRegion::create(region).map_err(refused)?;
    // A size that is none at all is refused there.
    let chunk = u32::try_from(chunk).unwrap_or(u32::MAX);
    Binding::new(made, chunk).map_err(refused)
}
