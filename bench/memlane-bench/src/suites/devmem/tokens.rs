//! What it costs to hand tokens back, by how many at a time.

use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use memlane_devmem::error::ReceiveError;
use memlane_devmem::io::{Binding, Stream, Terms, Wait};
use memlane_devmem::{DeviceRegion, Fragment, Range};
use serde::{Deserialize, Serialize};

/// One way to hand tokens back.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq)]
pub(super) struct Cost {
    /// Ranges of one call.
    pub(super) ranges: u32,
    /// Tokens of one range.
    pub(super) tokens: u32,
    pub(super) ns_per_token: f64,
}

/// Ranges of a call, tokens of a range: one by one; more and more single ones, as many as a call takes; long ranges, as
/// many tokens as a call looks at.
pub(super) const WAYS: [(u32, u32); 6] = [(1, 1), (8, 1), (128, 1), (1, 8), (128, 8), (1, 1024)];
const CHUNK: u32 = 4096;
/// Fragments that are out at a time: chunks of the region.
const OUT: u32 = 4096;
const TIMES: usize = 12;

pub(super) fn measure() -> anyhow::Result<Vec<Cost>> {
    let binding = Binding::new(DeviceRegion::create(&"memfd:16M".parse()?)?, CHUNK)?;
    let mut all: Vec<Vec<f64>> = vec![Vec::new(); WAYS.len()];
    // By turns; the first round warms up.
    for round in 0..=TIMES {
        for (way, seen) in WAYS.into_iter().zip(&mut all) {
            let cost = once(&binding, way)?;
            if round > 0 {
                seen.push(cost);
            }
        }
    }
    let costs = WAYS
        .into_iter()
        .zip(all)
        .map(|((ranges, tokens), mut seen)| {
            seen.sort_by(f64::total_cmp);
            Cost {
                ranges,
                tokens,
                ns_per_token: seen[seen.len() / 2],
            }
        });
    Ok(costs.collect())
}

/// Nanoseconds for a token.
fn once(binding: &Arc<Binding>, (ranges, tokens): (u32, u32)) -> anyhow::Result<f64> {
    let (mut there, here) = UnixStream::pair()?;
    let bytes = vec![7; (OUT * CHUNK) as usize];
    let sender = std::thread::spawn(move || there.write_all(&bytes));
    let mut stream = Stream::new(here.into(), binding, &Terms::default());
    let fragments = filled(&mut stream)?;
    let sent = sender.join();
    sent.map_err(|_| anyhow::anyhow!("the sender ended badly"))??;
    let of = fragments.chunks(tokens as usize);
    let all: Vec<Range> = of
        .filter_map(|of| {
            let count = u32::try_from(of.len()).ok()?;
            Some(Range {
                start: of.first()?.token,
                count,
            })
        })
        .collect();
    let begin = Instant::now();
    let mut released = 0;
    for call in all.chunks(ranges as usize) {
        released += stream.release(call)?;
    }
    let took = begin.elapsed();
    anyhow::ensure!(released as usize == fragments.len(), "tokens were lost");
    Ok(took.as_nanos() as f64 / f64::from(released))
}

/// All of the region's chunks are out.
fn filled(stream: &mut Stream) -> anyhow::Result<Vec<Fragment>> {
    let mut fragments = Vec::new();
    loop {
        match stream.receive(&mut fragments) {
            Ok(0) => anyhow::bail!("too few bytes to fill the region"),
            Ok(_) => {}
            Err(ReceiveError::NoRoom) => return Ok(fragments),
            Err(ReceiveError::WouldBlock) => {
                stream.wait(Wait::Payload, Duration::from_secs(10))?;
            }
            Err(error) => return Err(error.into()),
        }
    }
}
