//! The embedded pair: plain programs with sockets of the standard library that know nothing of memlane. Run as separate
//! processes.

mod crowd;
mod epoll;
pub(in crate::suites) mod figures;
mod many;
mod opening;
mod pace;
mod paced;
mod sizes;
mod wire;

use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::hist::Hist;
use figures::{MESSAGE, Outcome, nanoseconds, outcome};
use sizes::Kind;
pub(crate) use wire::At;
use wire::{Door, Wire};

/// Where a server is.
#[derive(clap::Args, Debug)]
pub(crate) struct Serve {
    /// 127.0.0.1:PORT or unix:PATH.
    #[arg(long)]
    at: At,
}

/// Where to go, and for how long.
#[derive(clap::Args, Debug)]
pub(crate) struct Ask {
    /// 127.0.0.1:PORT or unix:PATH.
    #[arg(long)]
    at: At,
    /// How long to measure; each size, if there are several.
    #[arg(long)]
    seconds: f64,
}

impl Ask {
    fn budget(&self) -> anyhow::Result<Duration> {
        Duration::try_from_secs_f64(self.seconds).context("--seconds")
    }
}

/// Which half of the pair.
#[derive(clap::Subcommand, Debug)]
pub(crate) enum Peer {
    /// Answers every 100-byte message with the same bytes.
    Server {
        #[command(flatten)]
        server: Serve,
        /// Close each connection after this number of answers.
        #[arg(long)]
        answers: Option<u64>,
    },
    /// Sends 100-byte messages and waits for each answer.
    Client {
        #[command(flatten)]
        client: Ask,
        /// Open a new connection after this number of messages.
        #[arg(long)]
        answers: Option<u64>,
    },
    /// Answers messages, or takes bytes, of the sizes that its clients say.
    SizesServer(Serve),
    /// Goes through sizes, each for so long on a connection of its own.
    SizesClient {
        #[command(flatten)]
        client: Ask,
        /// Wait for an answer of the same size, or only send.
        #[arg(long)]
        kind: Kind,
        /// Which.
        #[arg(long, value_delimiter = ',')]
        bytes: Vec<u64>,
    },
    /// Answers 100-byte messages on many connections, with epoll and one thread.
    ManyServer(Serve),
    /// Sends 100-byte messages over many connections in turn, up to 64 at a time, with epoll and one thread.
    ManyClient {
        #[command(flatten)]
        client: Ask,
        /// How many.
        #[arg(long)]
        connections: usize,
    },
    /// Takes the bytes of many connections, with epoll and one thread.
    CrowdServer(Serve),
    /// Sends over many connections at once, with a thread for each.
    CrowdClient {
        #[command(flatten)]
        client: Ask,
        /// How many.
        #[arg(long)]
        streams: usize,
    },
    /// Sends 100-byte messages at fixed times, whatever the answers do, and waits asleep.
    PacedClient {
        #[command(flatten)]
        client: Ask,
        #[command(flatten)]
        pace: paced::Pace,
    },
    /// Makes connections to a many-server, and tells how long each takes from the eighth exchange to its lane.
    OpeningClient(opening::Opening),
}

/// Runs one half. A client prints one line of JSON.
pub(crate) fn run(peer: &Peer) -> anyhow::Result<()> {
    let told = match peer {
        Peer::Server { server, answers } => return serve(&Door::open(&server.at)?, *answers),
        Peer::SizesServer(server) => return sizes::serve(&Door::open(&server.at)?),
        Peer::ManyServer(server) => return many::serve(&Door::open(&server.at)?),
        Peer::CrowdServer(server) => return crowd::serve(&Door::open(&server.at)?),
        Peer::CrowdClient { client, streams } => {
            serde_json::to_string(&crowd::measure(&client.at, client.budget()?, *streams)?)
        }
        Peer::Client { client, answers } => serde_json::to_string(&match answers {
            Some(each) => connect_again_and_again(&client.at, client.budget()?, *each)?,
            None => ping_pong(&client.at, client.budget()?)?,
        }),
        Peer::SizesClient {
            client,
            kind,
            bytes,
        } => serde_json::to_string(&sizes::measure(&client.at, client.budget()?, *kind, bytes)?),
        Peer::PacedClient { client, pace } => {
            serde_json::to_string(&paced::measure(&client.at, client.budget()?, pace)?)
        }
        Peer::OpeningClient(opening) => serde_json::to_string(&opening::measure(opening)?),
        Peer::ManyClient {
            client,
            connections,
        } => serde_json::to_string(&many::measure(&client.at, client.budget()?, *connections)?),
    };
    println!("{}", told?);
    Ok(())
}

fn serve(door: &Door, answers: Option<u64>) -> anyhow::Result<()> {
    loop {
        let stream = door.accept().context("accept")?;
        if let Err(error) = answer(stream, answers) {
            eprintln!("connection ended: {error}");
        }
    }
}

fn answer(mut stream: Wire, answers: Option<u64>) -> std::io::Result<()> {
    let mut message = [0u8; MESSAGE];
    let mut left = answers.unwrap_or(u64::MAX);
    while left > 0 {
        match stream.read_whole(&mut message) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            other => other?,
        }
        stream.write_all(&message)?;
        left -= 1;
    }
    Ok(())
}

fn ping_pong(at: &At, budget: Duration) -> anyhow::Result<Outcome> {
    let mut stream = Wire::connect(at).context("connect")?;
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
    Ok(outcome(&hist, sequence, last - begin))
}

fn connect_again_and_again(at: &At, budget: Duration, each: u64) -> anyhow::Result<Outcome> {
    let mut message = [0u8; MESSAGE];
    let mut hist = Hist::new();
    let begin = Instant::now();
    let mut last = begin;
    let mut sequence = 0u64;
    while last - begin < budget {
        let mut stream = Wire::connect(at).context("connect")?;
        for _ in 0..each {
            sequence += 1;
            exchange(&mut stream, &mut message, sequence)?;
        }
        // The server closes first, so that TIME_WAIT does not eat the client's ports.
        if stream.read(&mut message)? != 0 {
            bail!("the server sent more than {each} answers");
        }
        drop(stream);
        let now = Instant::now();
        hist.record(nanoseconds(now - last));
        last = now;
    }
    Ok(outcome(&hist, sequence, last - begin))
}

fn exchange(stream: &mut Wire, message: &mut [u8; MESSAGE], sequence: u64) -> anyhow::Result<()> {
    message[..8].copy_from_slice(&sequence.to_le_bytes());
    stream.write_all(message).context("send")?;
    stream.read_whole(message).context("receive")?;
    if message[..8] != sequence.to_le_bytes() {
        bail!("message {sequence} came back changed");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::wire::each_way;
    use super::*;

    #[test]
    fn a_client_counts_what_a_server_answered() {
        each_way(|at| {
            let door = Door::open(&at).expect("it listens");
            std::thread::spawn(move || serve(&door, None));
            let outcome = ping_pong(&at, Duration::from_millis(100)).expect("ping-pong");
            assert!(outcome.exchanges > 0 && outcome.seconds >= 0.1);
            assert!(outcome.all > outcome.exchanges);
            assert!(outcome.p50_ns > 0 && outcome.p50_ns <= outcome.p99_ns);
        });
    }

    #[test]
    fn short_connections_get_as_many_answers_each_as_they_ask_for() {
        for each in [1, 3] {
            each_way(|at| {
                let door = Door::open(&at).expect("it listens");
                std::thread::spawn(move || serve(&door, Some(each)));
                let budget = Duration::from_millis(50);
                let outcome = connect_again_and_again(&at, budget, each).expect("short");
                assert_eq!(outcome.all, outcome.exchanges * each);
                assert!(outcome.exchanges > 0);
            });
        }
    }
}
