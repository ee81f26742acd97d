//! The embedded pair: two plain programs with blocking std sockets, one
//! connection at a time, that know nothing of memlane. Run as separate processes.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use super::hist::Hist;

/// Bytes of a request and of its reply.
pub(crate) const MESSAGE: usize = 100;

/// Which half of the pair.
#[derive(clap::Subcommand, Debug)]
pub(crate) enum Peer {
    /// Answers every 100-byte message with the same bytes.
    Server {
        /// Port on 127.0.0.1.
        #[arg(long)]
        port: u16,
        /// Close after the first answer of each connection.
        #[arg(long)]
        once: bool,
    },
    /// Sends 100-byte messages and waits for each answer.
    Client {
        /// Port on 127.0.0.1.
        #[arg(long)]
        port: u16,
        /// How long to measure.
        #[arg(long)]
        seconds: f64,
        /// A new connection for each message.
        #[arg(long)]
        once: bool,
    },
}

/// What the client prints, as one line of JSON.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Messages answered.
    pub(crate) exchanges: u64,
    /// Time that they took.
    pub(crate) seconds: f64,
    /// Median round trip.
    pub(crate) p50_ns: u64,
    /// 99th percentile of the round trip.
    pub(crate) p99_ns: u64,
}

/// Runs one half.
pub(crate) fn run(peer: &Peer) -> anyhow::Result<ExitCode> {
    match *peer {
        Peer::Server { port, once } => serve(port, once)?,
        Peer::Client {
            port,
            seconds,
            once,
        } => {
            let budget = Duration::try_from_secs_f64(seconds).context("--seconds")?;
            let outcome = if once {
                connect_again_and_again(port, budget)?
            } else {
                ping_pong(port, budget)?
            };
            println!("{}", serde_json::to_string(&outcome)?);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn serve(port: u16, once: bool) -> anyhow::Result<()> {
    let listener = TcpListener::bind(local(port)).context("bind")?;
    loop {
        let (stream, _) = listener.accept().context("accept")?;
        if let Err(error) = answer(stream, once) {
            eprintln!("connection ended: {error}");
        }
    }
}

fn answer(mut stream: TcpStream, once: bool) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut message = [0u8; MESSAGE];
    loop {
        match stream.read_exact(&mut message) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            other => other?,
        }
        stream.write_all(&message)?;
        if once {
            return Ok(());
        }
    }
}

fn ping_pong(port: u16, budget: Duration) -> anyhow::Result<Outcome> {
    let mut stream = TcpStream::connect(local(port)).context("connect")?;
    stream.set_nodelay(true)?;
    let mut message = [0u8; MESSAGE];
    // Not counted: connection set-up, page faults, and where a lane opens it opens here.
    let warm_up = Instant::now();
    let mut sequence = 0u64;
    while warm_up.elapsed() < Duration::from_millis(100) {
        sequence += 1;
        exchange(&mut stream, &mut message, sequence)?;
    }
    let mut hist = Hist::new();
    let begin = Instant::now();
    let mut last = begin;
    while last - begin < budget {
        sequence += 1;
        exchange(&mut stream, &mut message, sequence)?;
        let now = Instant::now();
        hist.record(nanoseconds(now - last));
        last = now;
    }
    Ok(outcome(&hist, last - begin))
}

fn connect_again_and_again(port: u16, budget: Duration) -> anyhow::Result<Outcome> {
    let mut message = [0u8; MESSAGE];
    let mut hist = Hist::new();
    let begin = Instant::now();
    let mut last = begin;
    let mut sequence = 0u64;
    while last - begin < budget {
        let mut stream = TcpStream::connect(local(port)).context("connect")?;
        stream.set_nodelay(true)?;
        sequence += 1;
        exchange(&mut stream, &mut message, sequence)?;
        // The server closes first, so that TIME_WAIT does not eat the client's ports.
        if stream.read(&mut message)? != 0 {
            bail!("the server sent more than one answer");
        }
        drop(stream);
        let now = Instant::now();
        hist.record(nanoseconds(now - last));
        last = now;
    }
    Ok(outcome(&hist, last - begin))
}

fn exchange(
    stream: &mut TcpStream,
    message: &mut [u8; MESSAGE],
    sequence: u64,
) -> anyhow::Result<()> {
    message[..8].copy_from_slice(&sequence.to_le_bytes());
    stream.write_all(message).context("send")?;
    stream.read_exact(message).context("receive")?;
    if message[..8] != sequence.to_le_bytes() {
        bail!("message {sequence} came back changed");
    }
    Ok(())
}

fn outcome(hist: &Hist, elapsed: Duration) -> Outcome {
    Outcome {
        exchanges: hist.len(),
        seconds: elapsed.as_secs_f64(),
        p50_ns: hist.percentile(50),
        p99_ns: hist.percentile(99),
    }
}

fn local(port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn free_port() -> u16 {
        let listener = TcpListener::bind(local(0)).expect("bind");
        listener.local_addr().expect("address").port()
    }

    #[test]
    fn a_client_counts_what_a_server_answered() {
        let port = free_port();
        std::thread::spawn(move || serve(port, false));
        std::thread::sleep(Duration::from_millis(100));
        let outcome = ping_pong(port, Duration::from_millis(100)).expect("ping-pong");
        assert!(outcome.exchanges > 0 && outcome.seconds >= 0.1);
        assert!(outcome.p50_ns > 0 && outcome.p50_ns <= outcome.p99_ns);
    }

    #[test]
    fn short_connections_get_one_answer_each() {
        let port = free_port();
        std::thread::spawn(move || serve(port, true));
        std::thread::sleep(Duration::from_millis(100));
        let outcome = connect_again_and_again(port, Duration::from_millis(50)).expect("short");
        assert!(outcome.exchanges > 0);
    }
}
