//! Many connections at once, each end one thread with epoll.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use super::epoll::{EVENTS, Epoll, NO_EVENT};
use super::figures::{MESSAGE, Outcome, nanoseconds, outcome};
use super::wire::{At, Door, Wire};

use crate::hist::Hist;
use crate::runner::sys;

/// Requests under way at a time, at most: what matters is over how many connections they are spread.
const AT_A_TIME: usize = 64;
/// Answers that each connection has had before it counts: where a lane opens, it opens in these.
const WARM_UP: u64 = 12;
/// The listener's number; connections have their places.
const DOOR: u64 = u64::MAX;

/// Descriptors besides the connections.
const SPARE: u64 = 200;

/// Answers until it is ended.
pub(super) fn serve(door: &Door) -> anyhow::Result<()> {
    serve_by(door, answer)
}

/// Lets clients in until it is ended, and calls `ready` for a connection that has something to read. `Err`: the connection
/// is over.
pub(super) fn serve_by(
    door: &Door,
    mut ready: impl FnMut(&mut Wire) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    sys::raise_descriptor_limit();
    door.set_nonblocking()?;
    let epoll = Epoll::new()?;
    epoll.add(door.as_raw_fd(), DOOR)?;
    let mut wires: Vec<Option<Wire>> = Vec::new();
    let mut free: Vec<usize> = Vec::new();
    let mut events = [NO_EVENT; EVENTS as usize];
    loop {
        let n = epoll.wait(&mut events)?;
        for event in &events[..n] {
            if event.u64 == DOOR {
                let_in(door, &epoll, &mut wires, &mut free)?;
                continue;
            }
            let place = usize::try_from(event.u64)?;
            let wire = wires.get_mut(place).and_then(Option::as_mut);
            if wire.is_some_and(|wire| ready(wire).is_err()) {
                wires[place] = None;
                free.push(place);
            }
        }
    }
}

fn let_in(
    door: &Door,
    epoll: &Epoll,
    wires: &mut Vec<Option<Wire>>,
    free: &mut Vec<usize>,
) -> anyhow::Result<()> {
    loop {
        let wire = match door.accept() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            other => other.context("accept")?,
        };
        wire.set_nonblocking()?;
        let place = free.pop().unwrap_or_else(|| {
            wires.push(None);
            wires.len() - 1
        });
        epoll.add(wire.as_raw_fd(), place as u64)?;
        wires[place] = Some(wire);
    }
}

/// A message is written and read at once here: each is far smaller than any buffer. Reads once, as servers do that wait
/// again instead of reading in vain. `Err`: the connection is over.
fn answer(wire: &mut Wire) -> anyhow::Result<()> {
    let mut message = [0u8; MESSAGE];
    match wire.read(&mut message) {
        Ok(MESSAGE) => ensure!(wire.write(&message)? == MESSAGE, "a short write"),
        Ok(0) => bail!("the end"),
        Ok(n) => bail!("{n} bytes of a message"),
        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
        Err(error) if error.kind() == ErrorKind::Interrupted => {}
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

struct Client {
    epoll: Epoll,
    wires: Vec<Wire>,
    /// When the request was sent that is under way.
    sent: Vec<Option<Instant>>,
    /// Whose turn it is.
    next: usize,
    answered: u64,
}

/// Opens the connections, warms them up and measures.
pub(super) fn measure(at: &At, budget: Duration, connections: usize) -> anyhow::Result<Outcome> {
    ensure!(connections > 0, "no connections");
    let limit = sys::raise_descriptor_limit();
    ensure!(
        connections as u64 + SPARE <= limit,
        "{connections} connections take more descriptors than this process may have ({limit}; see ulimit -Hn)"
    );
    let mut client = Client::open(at, connections)?;
    client.until(|client, _| client.answered >= WARM_UP * connections as u64)?;
    let before = client.answered;
    let begin = Instant::now();
    let mut hist = Hist::new();
    let mut last = begin;
    client.until(|_, (took, now)| {
        hist.record(nanoseconds(took));
        last = now;
        now - begin >= budget
    })?;
    debug_assert_eq!(client.answered - before, hist.len());
    Ok(outcome(&hist, client.answered, last - begin))
}

impl Client {
    fn open(at: &At, connections: usize) -> anyhow::Result<Client> {
        let epoll = Epoll::new()?;
        let mut wires = Vec::with_capacity(connections);
        for number in 0..connections {
            let wire = Wire::connect(at).with_context(|| format!("connection {number}"))?;
            wire.set_nonblocking()?;
            epoll.add(wire.as_raw_fd(), number as u64)?;
            wires.push(wire);
        }
        let mut client = Client {
            epoll,
            sent: vec![None; connections],
            wires,
            next: 0,
            answered: 0,
        };
        for _ in 0..connections.min(AT_A_TIME) {
            client.send()?;
        }
        Ok(client)
    }

    /// The next request, over the next connection that is free: as many are under way as connections, at most.
    fn send(&mut self) -> anyhow::Result<()> {
        while self.sent[self.next].is_some() {
            self.next = (self.next + 1) % self.wires.len();
        }
        let message = [self.answered.to_le_bytes()[0]; MESSAGE];
        self.sent[self.next] = Some(Instant::now());
        let n = self.wires[self.next].write(&message).context("send")?;
        ensure!(n == MESSAGE, "a short write");
        self.next = (self.next + 1) % self.wires.len();
        Ok(())
    }

    /// Goes on until `done` says so, which sees how long each request took, and when it was answered.
    fn until(
        &mut self,
        mut done: impl FnMut(&Client, (Duration, Instant)) -> bool,
    ) -> anyhow::Result<()> {
        let mut events = [NO_EVENT; EVENTS as usize];
        let mut over = false;
        while !over {
            let n = self.epoll.wait(&mut events)?;
            for event in &events[..n] {
                let place = usize::try_from(event.u64)?;
                if let Some(took) = self.receive(place)? {
                    self.answered += 1;
                    over |= done(self, took);
                    self.send()?;
                }
            }
        }
        Ok(())
    }

    fn receive(&mut self, place: usize) -> anyhow::Result<Option<(Duration, Instant)>> {
        let mut message = [0u8; MESSAGE];
        match self.wires[place].read(&mut message) {
            Ok(MESSAGE) => {}
            Ok(0) => bail!("the server has closed connection {place}"),
            Ok(n) => bail!("{n} bytes of a message"),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error).context("receive"),
        }
        let sent = self.sent[place].take().context("nobody had asked")?;
        let now = Instant::now();
        Ok(Some((now - sent, now)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::each_way;
    use super::*;

    #[test]
    fn requests_go_over_all_connections_in_turn() {
        each_way(|at| {
            let door = Door::open(&at).expect("it listens");
            std::thread::spawn(move || serve(&door));
            for connections in [1, 3, 200] {
                let outcome =
                    measure(&at, Duration::from_millis(20), connections).expect("answers");
                assert!(outcome.exchanges > 0);
                assert!(outcome.all >= outcome.exchanges + WARM_UP * connections as u64);
            }
            assert!(measure(&at, Duration::from_millis(1), 100_000_000).is_err());
        });
    }
}
