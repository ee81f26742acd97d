//! How fast is a queue? Millions of frames a second, in the three modes, each way, alternating in one run.
//!
//! `pump [milliseconds of a measurement] [rounds] [apart]`. Both ends in one thread, whose CPU time is what is measured: the
//! figure is what a frame costs both of them together, whatever else the machine does. Each frame is written by its sender and copied out once by
//! its receiver; where the kernel copies (`copy`), its copy is the back's, and the back makes no other.
//!
//! `apart`: each end in a thread of its own, as in two processes, and neither ever sleeps. Then what counts is which
//! cache lines go back and forth. On a machine that does other things, the best rounds are those that tell something.

use memlane_packet::engine::chain::Frame;
use memlane_packet::io::{BackQueue, BackTerms, FrontQueue, FrontTerms, Listener, connect};
use memlane_packet::{AttachError, Detach, Meta, Mode, PacketPort, Sent};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const SIZES: [usize; 3] = [64, 1496, 65535];
const BURSTS: [usize; 2] = [1, 32];

type Error = Box<dyn std::error::Error + Send + Sync>;

/// CPU time of this thread, in the kernel too.
struct Watch(Duration);

impl Watch {
    fn now() -> Duration {
        clock_gettime(ClockId::ThreadCPUTime)
            .try_into()
            .unwrap_or_default()
    }

    fn start() -> Watch {
        Watch(Watch::now())
    }

    fn elapsed(&self) -> Duration {
        Watch::now().saturating_sub(self.0)
    }
}

struct Pair {
    mode: Mode,
    front: FrontQueue,
    back: BackQueue,
    /// Their links, and all that belongs to them.
    _links: [memlane_packet::io::Link; 2],
}

fn pair(mode: Mode, order: u8) -> Result<Pair, Error> {
    let name = format!("@memlane-pump-{}-{mode:?}-{order}", std::process::id());
    let listener = Listener::bind(&name)?;
    let terms = FrontTerms {
        mode: Some(mode),
        order,
        ..FrontTerms::default()
    };
    let front = std::thread::spawn(move || connect(&name, &terms));
    let (back_link, mut back) = listener.accept(&BackTerms::default(), Duration::from_secs(5))?;
    let (front_link, mut front) = front.join().map_err(|_| "the front's thread")??;
    let (front, back) = (front.pop(), back.pop());
    Ok(Pair {
        mode,
        front: front.ok_or(AttachError::Timeout)?,
        back: back.ok_or(AttachError::Timeout)?,
        _links: [front_link, back_link],
    })
}

/// Sends a burst at one end and takes it at the other; how many frames arrived.
fn turn<A: PacketPort, B: PacketPort>(
    (from, fill): (&mut A, bool),
    (to, take): (&mut B, bool),
    burst: &[u8],
    count: usize,
    into: &mut [u8],
) -> Result<usize, Detach> {
    for _ in 0..count {
        let sent = from.send(burst.len(), Meta::default(), |room| {
            if fill {
                room.copy_in(0, burst);
            }
        })?;
        if sent != Sent::Queued {
            break;
        }
    }
    from.flush()?;
    let arrived = to.receive(count, |frame: &Frame<'_>| {
        if take {
            frame.copy_out(0, into);
        }
    })?;
    to.flush()?;
    Ok(arrived)
}

/// Millions of frames a second.
fn measure(
    pair: &mut Pair,
    tx: bool,
    size: usize,
    burst: usize,
    time: Duration,
) -> Result<f64, Detach> {
    let (bytes, mut into) = (vec![0x5a; size], vec![0; size]);
    let ours = pair.mode != Mode::Copy;
    let mut frames = 0;
    let start = Watch::start();
    while start.elapsed() < time {
        for _ in 0..16 {
            let Pair { front, back, .. } = pair;
            frames += if tx {
                turn((front, true), (back, ours), &bytes, burst, &mut into)?
            } else {
                turn((back, ours), (front, true), &bytes, burst, &mut into)?
            };
        }
    }
    Ok(frames as f64 / start.elapsed().as_secs_f64() / 1e6)
}

/// This thread runs on the first or the second processor, if there are two: on one, neither end would ever meet the
/// other.
fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    let _ = sched_setaffinity(None, &set);
}

/// One end sends, the other takes, until the time is over; millions of frames a second.
fn measure_apart(
    pair: &mut Pair,
    tx: bool,
    size: usize,
    burst: usize,
    time: Duration,
) -> Result<f64, Detach> {
    let ours = pair.mode != Mode::Copy;
    let Pair { front, back, .. } = pair;
    if tx {
        apart((front, true), (back, ours), size, burst, time)
    } else {
        apart((back, ours), (front, true), size, burst, time)
    }
}

fn apart<A: PacketPort + Send, B: PacketPort>(
    (from, fill): (&mut A, bool),
    (to, take): (&mut B, bool),
    size: usize,
    burst: usize,
    time: Duration,
) -> Result<f64, Detach> {
    let over = AtomicBool::new(false);
    let bytes = vec![0x5a; size];
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| -> Result<(), Detach> {
            pin(1);
            while !over.load(Ordering::Relaxed) {
                for _ in 0..burst {
                    let sent = from.send(size, Meta::default(), |room| {
                        if fill {
                            room.copy_in(0, &bytes);
                        }
                    })?;
                    if sent != Sent::Queued {
                        break;
                    }
                }
                from.flush()?;
            }
            Ok(())
        });
        let mut into = vec![0; size];
        let mut taken = |to: &mut B| {
            to.receive(burst, |frame| {
                if take {
                    frame.copy_out(0, &mut into);
                }
            })
        };
        // Until the other thread runs.
        while taken(to)? == 0 {}
        let (start, mut frames) = (Instant::now(), 0);
        while start.elapsed() < time {
            for _ in 0..64 {
                frames += taken(to)?;
            }
        }
        let rate = frames as f64 / start.elapsed().as_secs_f64() / 1e6;
        over.store(true, Ordering::Relaxed);
        sending.join().unwrap_or(Ok(()))?;
        while taken(to)? > 0 {}
        to.flush()?;
        Ok(rate)
    })
}

/// What two bare copies of such frames cost, between 256 pages and memory of our own.
fn bare(size: usize, time: Duration) -> f64 {
    let mut pages = vec![0_u8; 256 * 4096 + 65536];
    let (bytes, mut into) = (vec![0x5a_u8; size], vec![0_u8; size]);
    let (mut frames, start) = (0_usize, Watch::start());
    while start.elapsed() < time {
        for _ in 0..512 {
            let at = (frames % 32) * (4096 + 64);
            let page = &mut pages[at..at + size];
            // SAFETY: both have `size` bytes, and are not the same memory.
            unsafe {
                memlane_core::access::copy(page.as_mut_ptr(), bytes.as_ptr(), size);
                memlane_core::access::copy(into.as_mut_ptr(), page.as_ptr(), size);
            }
            frames += 1;
        }
    }
    frames as f64 / start.elapsed().as_secs_f64() / 1e6
}

fn main() -> Result<(), Error> {
    let apart = std::env::args().any(|word| word == "apart");
    if apart {
        pin(0);
    }
    let mut arguments = std::env::args().skip(1).filter(|word| word != "apart");
    let mut number = |default| {
        arguments
            .next()
            .map_or(Ok(default), |text| text.parse::<u32>())
    };
    let time = Duration::from_millis(number(100)?.into());
    let rounds = usize::try_from(number(5)?.max(1))?;
    let of = if apart {
        "second, each end in a thread"
    } else {
        "CPU second of both ends"
    };
    println!("Million frames per {of}: median (lowest–highest) of {rounds} rounds of {time:?}");
    println!(
        "size   burst way   persistent           map                  copy                 p/copy  p/map  two bare copies"
    );
    for size in SIZES {
        let order = if size > 4096 { 4 } else { 0 };
        let mut pairs = Vec::new();
        for mode in Mode::ALL {
            pairs.push(pair(mode, order)?);
        }
        for burst in BURSTS {
            // As many as the ring takes: frames of several fragments need several slots.
            for tx in [true, false] {
                let measure = if apart { measure_apart } else { measure };
                row(&mut pairs, (size, burst, tx), time, rounds, measure)?;
            }
        }
    }
    Ok(())
}

/// Of a pair: from the front? bytes, burst, time.
type Measure = fn(&mut Pair, bool, usize, usize, Duration) -> Result<f64, Detach>;

fn row(
    pairs: &mut [Pair],
    (size, burst, tx): (usize, usize, bool),
    time: Duration,
    rounds: usize,
    measure: Measure,
) -> Result<(), Error> {
    let mut figures = vec![Vec::new(); pairs.len() + 1];
    for _ in 0..rounds {
        for (pair, figures) in pairs.iter_mut().zip(&mut figures) {
            figures.push(measure(pair, tx, size, burst, time)?);
        }
        figures[pairs.len()].push(bare(size, time));
    }
    let mut cells = String::new();
    for figures in &mut figures {
        figures.sort_by(f64::total_cmp);
    }
    let median = |n: usize| figures[n][rounds / 2];
    for figures in &figures[..pairs.len()] {
        let (low, high) = (figures[0], figures[rounds - 1]);
        let cell = format!("{:.3} ({low:.3}–{high:.3})", figures[rounds / 2]);
        cells += &format!("{cell:<21}");
    }
    println!(
        "{size:<6} {burst:<5} {}    {cells}{:<7.1} {:<6.1} {:.1}",
        if tx { "TX" } else { "RX" },
        median(0) / median(2),
        median(0) / median(1),
        median(3),
    );
    Ok(())
}
