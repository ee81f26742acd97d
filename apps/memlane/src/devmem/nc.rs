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
use crate::cli::exit::{Exit, fail};
use crate::cli::values::size;

/// Receive one TCP connection into device memory, or send from device memory
///
/// memlane nc -l 127.0.0.1:5201 --into udmabuf:64M      receives into a region
/// memlane nc 127.0.0.1:5201 --from FILE                sends a file
///
/// A region is memfd:SIZE, hugetlb:SIZE, udmabuf:SIZE, dmaheap:NAME:SIZE or cuda:N:SIZE. Received bytes stay in the region
/// until they have been checked or written to --output; then their memory is used again.
#[derive(clap::Args, Debug)]
#[command(verbatim_doc_comment)]
pub(crate) struct Args {
    /// Address to connect to; with -l, address to listen at
    #[arg(value_name = "HOST:PORT")]
    address: String,
    /// Listen for one connection
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
    /// Send this file, or --bytes of this region
    #[arg(long, value_name = "FILE|REGION")]
    from: Option<String>,
    /// Size of the region's chunks, a power of two
    #[arg(long, value_parser = size, default_value = "64K", value_name = "SIZE")]
    chunk: u64,
    /// With --from REGION: send this many bytes, repeating the region [default: the size of the region]
    #[arg(long, value_parser = size, value_name = "SIZE")]
    bytes: Option<u64>,
    /// Send, or expect, the pattern 1 to N-1 and 0, repeated
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(2..=255))]
    validate: Option<u8>,
    /// Write the received bytes to this file
    #[arg(long, value_name = "FILE", requires = "into")]
    output: Option<PathBuf>,
    /// Use only this path, by its name in memlane devmem probe; exit code 5 if it is not available
    #[arg(long, value_name = "PATH")]
    require: Option<Path>,
    /// Network interface that writes to the region, or reads from it
    #[arg(long, value_name = "NAME", value_parser = interface)]
    interface: Option<Interface>,
    /// Bind the region to the last N receive queues of the interface [default: 1]
    #[arg(long, value_name = "N", requires = "interface", conflicts_with = "from", value_parser = clap::value_parser!(u32).range(1..))]
    queues: Option<u32>,
    /// Steer these packets to the region: tcp [src WHERE] [dst WHERE]; the interface's settings are restored at the end
    #[arg(
        long,
        value_name = "RULE",
        requires = "interface",
        conflicts_with = "from"
    )]
    flow: Option<Flow>,
    /// Print the counters as one JSON document
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
        (None, None) => Err(fail(
            Exit::Usage,
            "choose --into (receive) or --from (send)",
        )),
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

    /// The connection, outgoing or accepted.
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
        crate::cli::out::warn(&format!("listening on {}", listener.local_addr()?));
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
