//! A queue of the packet lane, mode `persistent`.

use std::time::{Duration, Instant};

use anyhow::ensure;
use memlane_packet::io::{BackTerms, FrontTerms, Listener, connect_until};
use memlane_packet::{Meta, Mode, PacketPort, Sent};

use super::WARM_UP;
use super::counted::counted;

const BURST: usize = 32;
const LIMIT: Duration = Duration::from_secs(15);

pub(super) fn front_to_back(bytes: usize, times: u64) -> anyhow::Result<()> {
    with_a_queue(|front, back| carry(front, back, bytes, times))
}

pub(super) fn back_to_front(bytes: usize, times: u64) -> anyhow::Result<()> {
    with_a_queue(|front, back| carry(back, front, bytes, times))
}

fn with_a_queue(
    work: impl FnOnce(
        &mut memlane_packet::io::FrontQueue,
        &mut memlane_packet::io::BackQueue,
    ) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let name = format!("@memlane-bench-path-{}-{:p}", std::process::id(), &work);
    let listener = Listener::bind(&name)?;
    let front = std::thread::spawn(move || {
        let terms = FrontTerms {
            mode: Some(Mode::Persistent),
            ..FrontTerms::default()
        };
        connect_until(&name, &terms, Instant::now() + LIMIT)
    });
    let (_back_link, mut back) = listener.accept(&BackTerms::default(), LIMIT)?;
    let front = front.join();
    let (_link, mut front) =
        front.map_err(|_| anyhow::anyhow!("the front's thread ended badly"))??;
    work(&mut front[0], &mut back[0])
}

fn carry(
    from: &mut impl PacketPort,
    to: &mut impl PacketPort,
    bytes: usize,
    times: u64,
) -> anyhow::Result<()> {
    let (sent, mut came) = (vec![7; bytes], vec![0; bytes]);
    let mut bursts = |count: u64| {
        for _ in 0..count {
            for _ in 0..BURST {
                let queued = from.send(bytes, Meta::default(), |room| {
                    room.copy_in(0, &sent);
                })?;
                ensure!(queued == Sent::Queued, "{queued:?}");
            }
            from.flush()?;
            let frames = to.receive(BURST, |frame| {
                frame.copy_out(0, &mut came);
            })?;
            to.flush()?;
            ensure!(frames == BURST, "{frames} frames of a burst");
        }
        Ok(())
    };
    // Once around the ring: every buffer is mapped.
    bursts(WARM_UP)?;
    counted(&mut || bursts(times.div_ceil(BURST as u64)))?;
    ensure!(came == sent, "a frame is not what was sent");
    Ok(())
}
