//! The sender's map of a stream, as the receiver follows it: how far it is published, and which stretches come by
//! TCP.

use arbitrary::{Arbitrary, Unstructured};
use memlane_core::layout::{DmbWords, RUNS};
use memlane_core::ring::{Misbehaved, Next, ParkCheck, Rx};
use memlane_core::sync::Cpu;
use std::sync::atomic::Ordering::Relaxed;

/// One word, from where the receiver stands: near it (most of what goes wrong), far from it, or anything.
#[derive(Arbitrary, Debug, Clone, Copy)]
enum Place {
    Near(i16),
    Far(i32),
    Anywhere(u64),
    ForEver,
}

impl Place {
    fn from(self, here: u64) -> u64 {
        match self {
            Place::Near(n) => here.wrapping_add_signed(n.into()),
            Place::Far(n) => here.wrapping_add_signed(n.into()),
            Place::Anywhere(n) => n,
            Place::ForEver => u64::MAX,
        }
    }
}

/// What the sender has written when the receiver looks next.
#[derive(Arbitrary, Debug)]
struct Image {
    published: Place,
    more_runs: u8,
    runs: Vec<(u8, Place, Place)>,
    writing: bool,
    /// How much the receiver takes of what it finds.
    takes: u16,
}

/// Turns in which the receiver passes everything that one image can say: its runs, what lies between them, the end.
const TURNS: usize = 4 * RUNS;

/// A map that somebody else writes: what it says is in bounds, or is refused; and as long as it stays the same, the
/// receiver comes to its end: it waits for TCP or for a writer, but never for a word that will not change. True if it
/// was refused.
pub fn run_list(bytes: &[u8]) -> bool {
    let mut bytes = Unstructured::new(bytes);
    let Ok(log2) = bytes.int_in_range(4_u32..=16) else {
        return false;
    };
    let size = 1_usize << log2;
    // SAFETY: consists of atomics, of which zero is a value.
    let words: Box<DmbWords<Cpu>> = Box::new(unsafe { std::mem::zeroed() });
    let mut rx = Rx::default();
    rx.prepare(&words);
    rx.unpark(&words);
    while let (false, Ok(image)) = (bytes.is_empty(), bytes.arbitrary::<Image>()) {
        write(&words, &image, rx.offset());
        if follow(&words, &mut rx, size, u64::from(image.takes).max(1)).is_err() {
            return true;
        }
    }
    false
}

fn write(words: &DmbWords<Cpu>, image: &Image, here: u64) {
    for (slot, start, end) in &image.runs {
        let run = &words.runs[usize::from(*slot) % RUNS];
        run.start.store(start.from(here), Relaxed);
        run.end.store(end.from(here), Relaxed);
    }
    let declared = words.sent.0.runs_declared.load(Relaxed);
    let declared = declared.wrapping_add(image.more_runs.into());
    words.sent.0.runs_declared.store(declared, Relaxed);
    words
        .sent
        .0
        .published
        .store(image.published.from(here), Relaxed);
    words.tx.0.writing.store(image.writing.into(), Relaxed);
}

/// Takes what there is, `most` at a time at first.
fn follow(words: &DmbWords<Cpu>, rx: &mut Rx, size: usize, most: u64) -> Result<(), Misbehaved> {
    for turn in 0..TURNS {
        let limit = if turn < 4 { most } else { u64::MAX };
        match rx.next(words, size)? {
            Next::Ring(n) => {
                assert!((1..=size).contains(&n), "{n} bytes in a ring of {size}");
                let n = (n as u64).min(limit);
                let (a, b) = rx.stretches(size, usize::try_from(n).expect("a ring"));
                assert!(a.at + a.len <= size && b.at + b.len <= size, "{a:?}, {b:?}");
                rx.took(words, n);
            }
            Next::Tcp(n) => {
                assert!(n > 0);
                // A stream that is longer than any.
                if n.min(limit) > u64::MAX - rx.offset() - 1 {
                    return Ok(());
                }
                rx.took(words, n.min(limit));
            }
            Next::TcpForever => return Ok(()),
            Next::Empty => {
                let found = rx.check_park(words);
                assert_ne!(found, ParkCheck::Data, "nothing there, and no sleep either");
                return Ok(());
            }
        }
    }
    panic!("still at {} after {TURNS} turns", rx.offset());
}

/// Maps as an honest sender writes them, and noise.
pub(crate) fn maps() -> Vec<(&'static str, Vec<u8>)> {
    let noise = |seed: u64, len: usize| {
        let mut state = seed;
        let byte = |_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            state.to_le_bytes()[6]
        };
        (0..len).map(byte).collect::<Vec<u8>>()
    };
    vec![
        ("still", vec![0; 200]),
        ("few", noise(1, 150)),
        ("many", noise(2, 3000)),
    ]
}
