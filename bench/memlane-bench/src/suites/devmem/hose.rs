//! One end of a stream that carries as many bytes as go: the hidden `memlane-bench peer hose`, of which the bench starts two.
//!
//! A sender sends the same bytes whoever receives: the byte at a place of the stream is that place modulo 251, so that no
//! chunk's size hides a mistake. A receiver puts them into a region, looks at all of them while it warms up and at the
//! ends of what it got afterwards, and counts.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::IntoRawFd as _;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use memlane_devmem::io::Path;
use memlane_devmem::io::lane::{End, agreed};
use rustix::net::sockopt::set_tcp_congestion;
use rustix::time::{ClockId, clock_gettime};

use super::outcome::Seen;
use super::sinks::{self, PERIOD, Receive, Sink};
use crate::out;
use crate::runner::options::size;

/// Before the clocks begin: memory is touched once, windows are open.
const WARM_UP: Duration = Duration::from_millis(100);
/// For the other end to come.
const LIMIT: Duration = Duration::from_secs(15);
/// Between two looks at the clock.
const LOOK: u64 = 4 << 20;

#[derive(clap::Args, Debug)]
pub(crate) struct Hose {
    #[command(subcommand)]
    half: Half,
}

#[derive(clap::Subcommand, Debug)]
enum Half {
    /// Connects, and sends.
    Send(Send),
    /// Waits for one sender.
    Receive(Receive),
    /// What it costs to hand tokens back; nobody else is needed.
    Tokens,
}

#[derive(clap::Args, Debug)]
struct Send {
    address: String,
    /// Bytes of one write.
    #[arg(long, default_value = "1M", value_parser = size)]
    write: u64,
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// By the socket lane.
    #[arg(long)]
    lane: bool,
    /// TCP's congestion control.
    #[arg(long)]
    congestion: Option<String>,
}

pub(crate) fn run(hose: &Hose) -> anyhow::Result<()> {
    let json = match &hose.half {
        Half::Send(send) => out::json(&sends(send)?)?,
        Half::Receive(receive) => out::json(&receives(receive)?)?,
        Half::Tokens => out::json(&super::tokens::measure()?)?,
    };
    out::print(&json)
}

/// Wall clock, processor time, and how far the stream was.
struct Watch {
    at: Instant,
    cpu: Duration,
    bytes: u64,
}

impl Watch {
    fn start(bytes: u64) -> Watch {
        Watch {
            at: Instant::now(),
            cpu: cpu(),
            bytes,
        }
    }

    fn stop(&self, bytes: u64) -> Seen {
        let carried = (bytes - self.bytes) as f64;
        let took = self.at.elapsed().as_secs_f64();
        let cpu = cpu().saturating_sub(self.cpu).as_secs_f64();
        Seen {
            bytes,
            per_second: carried / took,
            cpu_s_per_gb: cpu / (carried / 1e9),
            ..Seen::default()
        }
    }
}

fn cpu() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.try_into().unwrap_or_default()
}

/// Until the receiver listens.
fn connected(address: &str) -> anyhow::Result<TcpStream> {
    let end = Instant::now() + LIMIT;
    loop {
        match TcpStream::connect(address) {
            Ok(stream) => return Ok(stream),
            Err(error) if Instant::now() > end => return Err(error).context(address.to_owned()),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

fn sends(send: &Send) -> anyhow::Result<Seen> {
    let write = usize::try_from(send.write)?;
    // A write begins at each place of the period.
    let source: Vec<u8> = (0..=250).cycle().take(write + PERIOD).collect();
    let mut spout = Spout::new(send)?;
    let mut sent = 0_u64;
    let mut some = |sent: &mut u64| -> anyhow::Result<()> {
        let until = *sent + LOOK;
        while *sent < until {
            let at = usize::try_from(*sent % PERIOD as u64)?;
            spout.write(&source[at..at + write])?;
            *sent += write as u64;
        }
        Ok(())
    };
    let begin = Instant::now();
    while begin.elapsed() < WARM_UP {
        some(&mut sent)?;
    }
    let watch = Watch::start(sent);
    let end = watch.at + Duration::from_secs_f64(send.seconds);
    while Instant::now() < end {
        some(&mut sent)?;
    }
    let seen = watch.stop(sent);
    let in_memory = spout.finish()?;
    Ok(Seen {
        // What a write has taken, the kernel has copied; or we have, into memory that is the receiver's.
        copied_by_kernel: (sent - in_memory) as f64 / sent as f64,
        copied_by_program: in_memory as f64 / sent as f64,
        ..seen
    })
}

/// How a sender sends.
enum Spout {
    Tcp(TcpStream),
    /// The socket lane: into the receiver's region, where that is to be had.
    Lane(Box<memlane_socket::Stream>),
}

impl Spout {
    fn new(send: &Send) -> anyhow::Result<Spout> {
        let stream = connected(&send.address)?;
        if let Some(name) = &send.congestion {
            set_tcp_congestion(&stream, name).with_context(|| format!("--congestion {name}"))?;
        }
        if !send.lane {
            return Ok(Spout::Tcp(stream));
        }
        // SAFETY: a socket that its owner gives up here.
        let socket = unsafe { memlane_sys::fd::Fd::from_raw(stream.into_raw_fd()) };
        let failed = |errno| anyhow::anyhow!("the lane: {errno}");
        let mut lane = memlane_socket::Stream::of(socket, End::Connected).map_err(failed)?;
        agreed(Some(Path::Lane), |limit| lane.negotiate(limit))?;
        Ok(Spout::Lane(Box::new(lane)))
    }

    fn write(&mut self, mut bytes: &[u8]) -> anyhow::Result<()> {
        let lane = match self {
            Spout::Tcp(stream) => return Ok(stream.write_all(bytes)?),
            Spout::Lane(lane) => lane,
        };
        while !bytes.is_empty() {
            let n = lane.write(bytes);
            let n = n.map_err(|errno| anyhow::anyhow!("sending by the lane: {errno}"))?;
            bytes = &bytes[n..];
        }
        Ok(())
    }

    /// How much went past the kernel.
    fn finish(self) -> anyhow::Result<u64> {
        let Spout::Lane(mut lane) = self else {
            return Ok(0);
        };
        let in_memory = lane.counts().sent_in_memory;
        let finished = lane.finish();
        finished.map_err(|errno| anyhow::anyhow!("the lane's end: {errno}"))?;
        Ok(in_memory)
    }
}

fn receives(receive: &Receive) -> anyhow::Result<Seen> {
    let listener = TcpListener::bind(&receive.address).context("listening")?;
    // Everything is there before the sender is let in.
    let mut sink = sinks::of(receive)?;
    sink.attach(listener.accept().context("a sender")?.0)?;
    let (begin, mut came) = (Instant::now(), 0);
    let mut watch = None;
    loop {
        let look = came + LOOK;
        while came < look {
            match sink.some(came, watch.is_none())? {
                0 => return ended(&sink, watch, came),
                bytes => came += bytes,
            }
        }
        if watch.is_none() && begin.elapsed() > WARM_UP {
            watch = Some(Watch::start(came));
        }
    }
}

fn ended(sink: &Sink, watch: Option<Watch>, came: u64) -> anyhow::Result<Seen> {
    let watch = watch.context("the sender ended before anything was measured")?;
    let copied = sink.copied();
    Ok(Seen {
        copied_by_kernel: copied.by_kernel as f64 / came as f64,
        copied_by_program: copied.by_program as f64 / came as f64,
        fragments: sink.sizes(),
        ..watch.stop(came)
    })
}
