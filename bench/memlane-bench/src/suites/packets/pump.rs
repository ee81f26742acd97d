//! One end of a queue that carries as many frames as go: the hidden `memlane-bench peer pump`, of which the bench starts two.
//!
//! A sender writes each frame where it goes, all of it: an Ethernet header, a number, a filling, a last byte. A receiver
//! looks at the number and the last byte of each, and has a copy of each frame in memory of its own when it is done,
//! whatever the mode: its own copy, or the kernel's where the kernel copies (a back in mode `copy`).

use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use memlane_packet::io::{BackTerms, FrontTerms, Listener, connect_until};
use memlane_packet::{Detach, Frame, Meta, Mode, PacketPort, Sent, Sleep};
use memlane_packet_ends::memif::{self, ClientTerms, MemifListener, ServerTerms};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::out;

/// Before the clock of a receiver begins: grants are mapped, caches are warm.
const WARM_UP: Duration = Duration::from_millis(50);
/// Looks for more before a sleep.
const SPIN: Duration = Duration::from_micros(20);
/// Rounds between two looks at the clock.
const ROUNDS: usize = 64;
/// For the other end to come, and for each sleep.
const LIMIT: Duration = Duration::from_secs(15);
const NAP: Duration = Duration::from_millis(100);
/// Ethernet header: to nobody in particular, of a local experiment (IEEE 802).
const HEADER: [u8; 14] = [2, 0x6d, 0x6c, 0, 0, 2, 2, 0x6d, 0x6c, 0, 0, 1, 0x88, 0xb5];
/// Where the number is.
const NUMBER: std::ops::Range<usize> = 14..22;
const IPV4: [u8; 2] = [0x08, 0x00];

/// Which end of what.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    Front,
    Back,
    MemifClient,
    MemifServer,
}

impl End {
    /// On the command line.
    pub(super) fn word(self) -> &'static str {
        match self {
            End::Front => "front",
            End::Back => "back",
            End::MemifClient => "memif-client",
            End::MemifServer => "memif-server",
        }
    }
}

#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Does {
    Send,
    Receive,
}

#[derive(clap::Args, Debug)]
pub(crate) struct Pump {
    end: End,
    does: Does,
    socket: String,
    /// How the back gets at frames.
    #[arg(long, default_value = "persistent", value_parser = mode)]
    mode: Mode,
    #[arg(long, default_value_t = 1)]
    queues: u16,
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(32..=65535))]
    bytes: u32,
    #[arg(long, default_value_t = 32)]
    burst: usize,
    /// Of a receiver.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Frames are testpmd's: they have no numbers.
    #[arg(long)]
    foreign: bool,
}

fn mode(text: &str) -> Result<Mode, String> {
    let found = Mode::ALL.into_iter().find(|mode| mode.name() == text);
    found.ok_or_else(|| "persistent, map or copy".into())
}

/// What an end has counted, all queues together.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Seen {
    pub(super) frames: u64,
    pub(super) per_second: f64,
    /// Of its processor time.
    pub(super) cpu_ns_per_frame: f64,
}

pub(crate) fn run(pump: &Pump) -> anyhow::Result<()> {
    let end = Instant::now() + LIMIT;
    let seen = match pump.end {
        End::Front => {
            let terms = FrontTerms {
                mode: Some(pump.mode),
                queues: pump.queues,
                ..FrontTerms::default()
            };
            let (_link, queues) = connect_until(&pump.socket, &terms, end)?;
            work(queues, pump)?
        }
        End::Back => {
            let terms = BackTerms {
                queues: pump.queues,
                ..BackTerms::default()
            };
            let (_link, queues) = Listener::bind(&pump.socket)?.accept(&terms, LIMIT)?;
            work(queues, pump)?
        }
        End::MemifClient => {
            let terms = ClientTerms {
                queues: pump.queues,
                ..ClientTerms::default()
            };
            let (_link, queues) = memif::connect_until(&pump.socket, &terms, end)?;
            work(queues, pump)?
        }
        End::MemifServer => {
            let terms = ServerTerms {
                queues: pump.queues,
                ..ServerTerms::default()
            };
            let (_link, queues) = MemifListener::bind(&pump.socket)?.accept(&terms, LIMIT)?;
            work(queues, pump)?
        }
    };
    out::print(&out::json(&seen)?)
}

/// A thread for each queue.
fn work<P: PacketPort + Send>(queues: Vec<P>, pump: &Pump) -> anyhow::Result<Seen> {
    let count = queues.len();
    anyhow::ensure!(count == usize::from(pump.queues), "{count} queues");
    let together = Barrier::new(count);
    let seen = std::thread::scope(|scope| {
        let together = &together;
        let threads = queues.into_iter().map(|queue| {
            scope.spawn(move || match pump.does {
                Does::Send => send(queue, pump),
                Does::Receive => receive(queue, pump, together),
            })
        });
        let threads: Vec<_> = threads.collect();
        let joined = threads.into_iter().map(|thread| {
            let result = thread.join();
            result.map_err(|_| anyhow::anyhow!("a queue's thread ended badly"))?
        });
        joined.collect::<anyhow::Result<Vec<Window>>>()
    })?;
    let frames: u64 = seen.iter().map(|window| window.frames).sum();
    let rates = seen.iter().map(|w| w.frames as f64 / w.time.as_secs_f64());
    let cpu: f64 = seen.iter().map(|window| window.cpu.as_secs_f64()).sum();
    Ok(Seen {
        frames,
        per_second: rates.sum(),
        cpu_ns_per_frame: cpu * 1e9 / frames as f64,
    })
}

/// What one queue did in some time.
struct Window {
    frames: u64,
    time: Duration,
    cpu: Duration,
}

/// Wall clock and this thread's processor time.
struct Watch(Instant, Duration);

impl Watch {
    fn start() -> Watch {
        Watch(Instant::now(), cpu())
    }

    fn stop(&self, frames: u64) -> Window {
        Window {
            frames,
            time: self.0.elapsed(),
            cpu: cpu().saturating_sub(self.1),
        }
    }
}

fn cpu() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.try_into().unwrap_or_default()
}

/// Looks again for a while before it sleeps: no bell is rung as long as both ends are busy.
struct Patience(Option<Instant>);

impl Patience {
    fn in_vain<P: PacketPort>(&mut self, queue: &mut P, until: Sleep) -> Result<(), Detach> {
        let now = Instant::now();
        if now.duration_since(*self.0.get_or_insert(now)) > SPIN {
            queue.wait(until, NAP)?;
            self.0 = None;
        }
        Ok(())
    }
}

/// Until the other end is gone.
fn send<P: PacketPort>(mut queue: P, pump: &Pump) -> anyhow::Result<Window> {
    let mut bytes = vec![0x5a; usize::try_from(pump.bytes)?];
    bytes[..HEADER.len()].copy_from_slice(&HEADER);
    let (mut frames, mut patience, watch) = (0, Patience(None), Watch::start());
    let why = loop {
        if let Err(why) = burst(
            &mut queue,
            &mut bytes,
            pump.burst,
            &mut frames,
            &mut patience,
        ) {
            break why;
        }
    };
    match why.downcast_ref() {
        Some(Detach::PeerGone | Detach::PeerDetached(_)) => Ok(watch.stop(frames)),
        _ => Err(why),
    }
}

/// One burst, or what there is room for.
fn burst<P: PacketPort>(
    queue: &mut P,
    bytes: &mut [u8],
    count: usize,
    frames: &mut u64,
    patience: &mut Patience,
) -> anyhow::Result<()> {
    for done in 0..count {
        number(bytes, *frames);
        let sent = queue.send(bytes.len(), Meta::default(), |room| {
            room.copy_in(0, bytes);
        })?;
        match sent {
            Sent::Queued => *frames += 1,
            Sent::Full(slots) => {
                queue.flush()?;
                if done == 0 {
                    patience.in_vain(queue, Sleep::for_room(slots))?;
                }
                return Ok(());
            }
            Sent::Refused => anyhow::bail!("a frame of {} bytes was refused", bytes.len()),
        }
    }
    patience.0 = None;
    Ok(queue.flush()?)
}

/// Makes them frame number `n` of a queue.
fn number(bytes: &mut [u8], n: u64) {
    bytes[NUMBER].copy_from_slice(&n.to_be_bytes());
    if let Some(last) = bytes.last_mut() {
        *last = n.to_be_bytes()[7];
    }
}

/// For the time that was asked for, once all queues have got their first frames.
fn receive<P: PacketPort>(mut queue: P, pump: &Pump, all: &Barrier) -> anyhow::Result<Window> {
    let mut look = Look::new(pump)?;
    let mut patience = Patience(None);
    let begun = Instant::now();
    while look.frames == 0 {
        anyhow::ensure!(begun.elapsed() < LIMIT, "no frame comes");
        rounds(&mut queue, &mut look, pump.burst, &mut patience)?;
    }
    all.wait();
    let warm = Instant::now();
    while warm.elapsed() < WARM_UP {
        rounds(&mut queue, &mut look, pump.burst, &mut patience)?;
    }
    let time = Duration::from_secs_f64(pump.seconds);
    let (watch, before) = (Watch::start(), look.frames);
    // On a machine that others keep busy an end may not run for longer than that: then the measurement is longer.
    while watch.0.elapsed() < time || look.frames == before {
        anyhow::ensure!(watch.0.elapsed() < time + LIMIT, "no more frames come");
        rounds(&mut queue, &mut look, pump.burst, &mut patience)?;
    }
    let window = watch.stop(look.frames - before);
    anyhow::ensure!(
        look.wrong == 0,
        "{} frames were not what was sent",
        look.wrong
    );
    Ok(window)
}

fn rounds<P: PacketPort>(
    queue: &mut P,
    look: &mut Look,
    burst: usize,
    patience: &mut Patience,
) -> anyhow::Result<()> {
    for _ in 0..ROUNDS {
        let came = queue.receive(burst, |frame| look.at(frame))?;
        queue.flush()?;
        if came > 0 {
            patience.0 = None;
        } else {
            patience.in_vain(queue, Sleep::FOR_FRAMES)?;
        }
    }
    Ok(())
}

/// Takes frames, and sees whether they are what was sent.
struct Look {
    own: Vec<u8>,
    /// The kernel has made the copy already.
    is_copied: bool,
    foreign: bool,
    frames: u64,
    wrong: u64,
}

impl Look {
    fn new(pump: &Pump) -> anyhow::Result<Look> {
        let bytes = usize::try_from(pump.bytes).context("the size of a frame")?;
        Ok(Look {
            own: vec![0; bytes],
            is_copied: pump.end == End::Back && pump.mode == Mode::Copy,
            foreign: pump.foreign,
            frames: 0,
            wrong: 0,
        })
    }

    fn at(&mut self, frame: &Frame<'_>) {
        let last = self.own.len() - 1;
        if self.is_copied {
            frame.copy_out(0, &mut self.own[..NUMBER.end]);
            frame.copy_out(last, &mut self.own[last..]);
        } else {
            frame.copy_out(0, &mut self.own);
        }
        let n = self.frames.to_be_bytes();
        let right = frame.len() == self.own.len()
            && match self.foreign {
                true => self.own[12..14] == IPV4,
                false => self.own[NUMBER] == n && self.own[last] == n[7],
            };
        self.wrong += u64::from(!right);
        self.frames += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn pump(end: End, does: Does, mode: Mode, socket: &str) -> Pump {
        Pump {
            end,
            does,
            socket: socket.into(),
            mode,
            queues: 2,
            bytes: 64,
            burst: 32,
            seconds: 0.02,
            foreign: false,
        }
    }

    /// Of a socket that no other test has.
    fn name() -> String {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        format!("@memlane-bench-pump-{}-{n}", std::process::id())
    }

    /// Both halves, as two threads of this process.
    fn pair(mode: Mode, change: impl Fn(&mut Pump)) -> anyhow::Result<Window> {
        let name = name();
        let listener = Listener::bind(&name)?;
        let mut sender = pump(End::Front, Does::Send, mode, &name);
        change(&mut sender);
        let front = std::thread::spawn(move || -> anyhow::Result<Window> {
            let terms = FrontTerms {
                mode: Some(mode),
                ..FrontTerms::default()
            };
            let (_link, mut queues) = connect_until(&name, &terms, Instant::now() + LIMIT)?;
            send(queues.remove(0), &sender)
        });
        let (link, mut queues) = listener.accept(&BackTerms::default(), LIMIT)?;
        let receiver = pump(End::Back, Does::Receive, mode, "");
        let seen = receive(queues.remove(0), &receiver, &Barrier::new(1));
        drop((link, queues));
        let sent = front.join().expect("the front's thread");
        let sent = sent.expect("that the other end goes is no error");
        let seen = seen?;
        assert!(sent.frames >= seen.frames && seen.frames > 0);
        Ok(seen)
    }

    #[test]
    fn every_mode_brings_frames_that_are_what_was_sent() {
        for mode in Mode::ALL {
            pair(mode, |_| ()).unwrap_or_else(|error| panic!("{mode:?}: {error:#}"));
        }
    }

    #[test]
    fn frames_of_another_size_are_noticed() {
        let error = pair(Mode::Persistent, |sender| sender.bytes = 65);
        let error = error.err().expect("one byte too many").to_string();
        assert!(error.contains("not what was sent"), "{error}");
    }

    #[test]
    fn a_frame_out_of_order_or_with_another_end_is_noticed() {
        let pump = pump(End::Front, Does::Receive, Mode::Copy, "");
        let mut bytes = vec![0; 64];
        for (n, last, wrong) in [(2, 2, 0), (3, 3, 1), (1, 1, 1), (2, 9, 1)] {
            let mut look = Look::new(&pump).expect("a look");
            look.frames = 2;
            number(&mut bytes, n);
            *bytes.last_mut().expect("a byte") = last;
            take(&mut look, &bytes);
            assert_eq!(look.wrong, wrong, "{n} {last}");
        }
    }

    /// As a queue lends it.
    fn take(look: &mut Look, bytes: &[u8]) {
        let name = name();
        let listener = Listener::bind(&name).expect("a socket");
        let terms = FrontTerms::default();
        let front =
            std::thread::spawn(move || connect_until(&name, &terms, Instant::now() + LIMIT));
        let (_back_link, mut back) = listener
            .accept(&BackTerms::default(), LIMIT)
            .expect("a front");
        let (_link, mut front) = front.join().expect("a thread").expect("a back");
        let sent = back[0].send(bytes.len(), Meta::default(), |room| {
            room.copy_in(0, bytes);
        });
        assert_eq!(sent, Ok(Sent::Queued));
        back[0].flush().expect("it goes");
        let came = front[0].receive(1, |frame| look.at(frame));
        assert_eq!(came, Ok(1));
    }
}
