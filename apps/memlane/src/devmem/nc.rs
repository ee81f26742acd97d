//! `memlane nc`: one TCP connection, into device memory or out of it.

use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use anyhow::Context;
use memlane_devmem::io::Path;
use memlane_devmem::io::kernel::Interface;
use memlane_devmem::io::lane::End;
use memlane_devmem::region::Spec;
use memlane_devmem::wire::steer::Flow;

use super::way::{self, Asked};
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
    /// This path or none (exit code 5), by its name in memlane devmem probe
    #[arg(long, value_name = "PATH")]
    require: Option<Path>,
    /// The interface that is to write to the region, or to read from it
    #[arg(long, value_name = "NAME", value_parser = interface)]
    interface: Option<Interface>,
    /// Bind the region to the interface's last N receive queues; without --flow, nothing else is changed [default: 1]
    #[arg(long, value_name = "N", requires = "interface", conflicts_with = "from", value_parser = clap::value_parser!(u32).range(1..))]
    queues: Option<u32>,
    /// Packets that go there: tcp [src WHERE] [dst WHERE]. What this takes is set, and put back at the end
    #[arg(
        long,
        value_name = "RULE",
        requires = "interface",
        conflicts_with = "from"
    )]
    flow: Option<Flow>,
    /// Say what was counted as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    match (&args.into, &args.from) {
        (Some(region), _) => {
            let ready = way::into(region, args.chunk, &args.asked())?;
            let job = receive::Job {
                validate: args.validate,
                output: args.output.as_deref(),
                json: args.json,
            };
            // Before anybody is connected, who would send to nobody.
            let look = receive::Look::new(&job)?;
            receive::run(args.connection()?, args.end(), &ready, look, &job)
        }
        (None, Some(source)) => {
            let source = send::Source::open(source, args.bytes, args.validate, &args.asked())?;
            send::run(args.connection()?, args.end(), source, args.json)
        }
        // clap asks for one of the two.
        (None, None) => Err(fail(Exit::Usage, "--into or --from")),
    }
}

impl Args {
    fn asked(&self) -> Asked {
        Asked {
            require: self.require,
            interface: self.interface.clone(),
            queues: self.queues,
            flow: self.flow.clone(),
        }
    }

    fn end(&self) -> End {
        match self.listen {
            true => End::Accepted,
            false => End::Connected,
        }
    }

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
        // Port 0 takes any free port, which is printed.
        crate::out::warn(&format!("listening on {}", listener.local_addr()?));
        Ok(listener
            .accept()
            .context("waiting for a connection")?
            .0
            .into())
    }
}

fn interface(name: &str) -> Result<Interface, String> {
    Interface::find(name).map_err(|error| error.to_string())
}
