//! How fast is a memif interface? Beside DPDK's testpmd, which can be either end.
//!
//! `memif_rate server|client SOCKET send|receive SECONDS [BYTES]`: sends frames in bursts of 32 and never sleeps, or
//! takes them, copying each out once; then says how many frames there were in which time, and in which CPU time.

use memlane_packet::ends::memif::{
    ClientTerms, MemifListener, MemifQueue, ServerTerms, connect_until,
};
use memlane_packet::{Detach, Meta, PacketPort, Sent};
use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

type Error = Box<dyn std::error::Error + Send + Sync>;

const BURST: usize = 32;

fn cpu() -> Duration {
    clock_gettime(ClockId::ProcessCPUTime)
        .try_into()
        .unwrap_or_default()
}

/// One burst; how many frames.
fn send(queue: &mut MemifQueue, bytes: &[u8]) -> Result<u64, Detach> {
    let mut frames = 0;
    for _ in 0..BURST {
        let sent = queue.send(bytes.len(), Meta::default(), |room| {
            room.copy_in(0, bytes);
        })?;
        if sent != Sent::Queued {
            break;
        }
        frames += 1;
    }
    queue.flush()?;
    Ok(frames)
}

fn receive(queue: &mut MemifQueue, into: &mut [u8]) -> Result<u64, Detach> {
    let frames = queue.receive(BURST, |frame| {
        frame.copy_out(0, into);
    })?;
    queue.flush()?;
    Ok(frames as u64)
}

fn main() -> Result<(), Error> {
    const USAGE: &str = "memif_rate server|client SOCKET send|receive SECONDS [BYTES]";
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [role, socket, way, seconds, more @ ..] = &words[..] else {
        return Err(USAGE.into());
    };
    let time = Duration::from_secs_f64(seconds.parse()?);
    let len: usize = more.first().map_or(Ok(64), |text| text.parse())?;
    let minute = Duration::from_secs(60);
    let (_link, mut queues) = match role.as_str() {
        "server" => MemifListener::bind(socket)?.accept(&ServerTerms::default(), minute)?,
        "client" => connect_until(socket, &ClientTerms::default(), Instant::now() + minute)?,
        _ => return Err(USAGE.into()),
    };
    let queue = queues.first_mut().ok_or("no queue")?;
    let (bytes, mut into) = (vec![0x5a; len], vec![0; 65535]);
    let mut turn = |queue: &mut MemifQueue| match way.as_str() {
        "send" => send(queue, &bytes),
        _ => receive(queue, &mut into),
    };
    // Until the other side moves.
    while turn(queue)? == 0 {}
    let (start, cpu_start, mut frames) = (Instant::now(), cpu(), 0);
    let ended = loop {
        for _ in 0..256 {
            match turn(queue) {
                Ok(n) => frames += n,
                Err(Detach::PeerGone | Detach::PeerDetached(_)) => break,
                Err(why) => return Err(why.into()),
            }
        }
        if start.elapsed() >= time || queue.ended().is_some() {
            break start.elapsed();
        }
    };
    let spent = cpu() - cpu_start;
    let rate = frames as f64 / ended.as_secs_f64() / 1e6;
    let per = spent.as_secs_f64() * 1e9 / frames as f64;
    println!("{way} {frames} frames in {ended:?}, {rate:.3} Mpps, {per:.1} ns of CPU for each");
    Ok(())
}
