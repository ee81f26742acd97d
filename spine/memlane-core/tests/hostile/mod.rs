//! A DMB whose words somebody writes at will, and the honest side that works on
//! it: the harness of `hostile_writer.rs`, and of the fuzz target `hostile_ring`.

use memlane_core::access::SharedBytes;
use memlane_core::layout::{DMB_WORDS_LEN, DmbWords, PARKED, RUNS, TCP_ONLY};
use memlane_core::region::Region;
use memlane_core::ring::{Misbehaved, Next, Room, Rx, Stretch, Tx};
use memlane_core::sync::Cpu;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Bytes of the ring.
pub(crate) const SIZE: usize = 64;

// ---- the shared memory and its hostile view ----

pub(crate) struct Dmb(Region);

impl Dmb {
    pub(crate) fn new() -> Dmb {
        Dmb(Region::create(c"hostile", DMB_WORDS_LEN + SIZE, false).unwrap())
    }

    pub(crate) fn words(&self) -> &DmbWords<Cpu> {
        // SAFETY: atomics only; bound to the region's life by the signature.
        unsafe { self.0.words::<DmbWords<Cpu>>(0).unwrap().as_ref() }
    }

    fn ring(&self) -> SharedBytes {
        self.0.bytes().part(DMB_WORDS_LEN, SIZE).unwrap()
    }

    fn u64s(&self) -> Vec<&AtomicU64> {
        let w = self.words();
        let runs = w.runs.iter().flat_map(|r| [&r.start, &r.end]);
        [&w.consumed.0, &w.sent.0.published, &w.rx.0.token]
            .into_iter()
            .chain(runs)
            .collect()
    }

    fn u32s(&self) -> Vec<&AtomicU32> {
        let (rx, tx) = (&self.words().rx.0, &self.words().tx.0);
        let sent = &self.words().sent.0;
        [
            &rx.flags,
            &rx.rx_cpu,
            &tx.writing,
            &sent.tx_cpu,
            &tx.active,
            &sent.runs_declared,
        ]
        .into_iter()
        .chain(
            self.words()
                .windows
                .0
                .iter()
                .flat_map(|p| [&p.len, &p.shift]),
        )
        .collect()
    }

    /// Writes one word, or one byte of the ring: which and what is told by three random numbers.
    pub(crate) fn scribble(&self, which: u64, how: u64, random: u64) {
        let (u64s, u32s) = (self.u64s(), self.u32s());
        #[allow(clippy::cast_possible_truncation)] // reduced right away
        let at = which as usize % (u64s.len() + u32s.len() + 4);
        if let Some(word) = u64s.get(at) {
            word.store(self.u64_value(word.load(Relaxed), how, random), Relaxed);
        } else if let Some(word) = u32s.get(at - u64s.len()) {
            word.store(u32_value(word.load(Relaxed), how, random), Relaxed);
        } else {
            let byte = random.to_ne_bytes();
            #[allow(clippy::cast_possible_truncation)] // reduced right away
            let to = random as usize % SIZE;
            // SAFETY: one byte is readable.
            assert!(unsafe { self.ring().copy_in(to, byte.as_ptr(), 1) });
        }
    }

    /// Wild values, and plausible ones near what stands there or in the other words.
    fn u64_value(&self, now: u64, how: u64, random: u64) -> u64 {
        let near = |n: u64| {
            n.wrapping_add(random % (2 * SIZE as u64 + 3))
                .wrapping_sub(SIZE as u64 + 1)
        };
        match how % 12 {
            0 => random,
            1 => u64::MAX,
            2 => u64::MAX - random % 70,
            3 => random % 200,
            4 | 5 => near(now),
            6 => near(self.words().sent.0.published.load(Relaxed)),
            7 => near(self.words().consumed.0.load(Relaxed)),
            8 => self.words().sent.0.published.load(Relaxed),
            9 => self.words().consumed.0.load(Relaxed),
            10 => 1 << (random % 64),
            _ => now.wrapping_add(1),
        }
    }
}

#[allow(clippy::cast_possible_truncation)] // any bits will do
fn u32_value(now: u32, how: u64, random: u64) -> u32 {
    match how % 7 {
        6 => 1 << (random % 8),
        0 => random as u32,
        1 => u32::MAX - (random % 3) as u32,
        2 => now.wrapping_add(random as u32 % (2 * RUNS as u32)),
        3 => now.wrapping_add(1),
        _ => random as u32 % 4,
    }
}

// ---- the honest side, receiving ----

pub(crate) struct Victim<'a> {
    dmb: &'a Dmb,
    tx: Tx,
    rx: Rx,
    pub(crate) bounded: u64,
    pub(crate) refused: u64,
}

impl<'a> Victim<'a> {
    pub(crate) fn new(dmb: &'a Dmb) -> Victim<'a> {
        let mut v = Victim {
            dmb,
            tx: Tx::default(),
            rx: Rx::default(),
            bounded: 0,
            refused: 0,
        };
        v.open_rx(0);
        v.open_tx(0);
        v
    }

    fn open_rx(&mut self, at: u64) {
        self.rx.prepare(self.dmb.words());
        self.rx.skip(at);
        self.rx.unpark(self.dmb.words());
    }

    /// With a window of the ring, or with all of it.
    fn open_tx(&mut self, at: u64) {
        let least = [0, 4, 64][(at % 3) as usize];
        self.tx.activate_window(self.dmb.words(), at, least);
    }

    /// Stretches of a promised length lie in the ring and add up to it.
    fn check_stretches(&self, (a, b): (Stretch, Stretch), n: usize) {
        assert!(n <= SIZE, "{n} bytes of a ring of {SIZE}");
        assert_eq!(a.len + b.len, n);
        assert!(
            self.dmb.ring().part(a.at, a.len).is_some()
                && self.dmb.ring().part(b.at, b.len).is_some()
        );
    }

    /// One receive, then `begin_park`/`check_park`/`unpark`; `want` limits it as the caller's buffer does.
    pub(crate) fn receive(&mut self, want: u64, start: u64) {
        let (w, most) = (self.dmb.words(), want % 100);
        if want.is_multiple_of(61) {
            self.open_rx(start);
        }
        match self.rx.next(w, SIZE) {
            Ok(Next::Ring(n)) => {
                assert!(n > 0);
                self.check_stretches(self.rx.stretches(SIZE, n), n);
                self.rx.took(w, most.min(n as u64));
            }
            Ok(Next::Tcp(n)) => {
                assert!(n > 0);
                self.rx.took(w, most.min(n));
            }
            Ok(Next::TcpForever) => self.rx.took(w, most),
            Ok(Next::Empty) => {}
            Err(Misbehaved::Consumed) => panic!("a receiver does not read `consumed`"),
            Err(Misbehaved::Published | Misbehaved::Run) => {
                self.refused += 1;
                return self.open_rx(start);
            }
        }
        self.bounded += 1;
        let _ = self.rx.anything(w);
        self.rx.begin_park(
            w,
            if want.is_multiple_of(50) {
                PARKED | TCP_ONLY
            } else {
                PARKED
            },
        );
        let _ = self.rx.check_park(w);
        if self.rx.owns_ring(w) {
            self.rx.set_trimmed(w);
        }
        self.rx.unpark(w);
        let _ = (Rx::sender_active(w), Rx::sender_detached(w));
    }

    /// One send by whichever lane it must take; `how` picks the side steps.
    pub(crate) fn send(&mut self, want: u64, how: u64, start: u64) {
        let w = self.dmb.words();
        #[allow(clippy::cast_possible_truncation)] // at most 199
        let (want, kernel) = ((want % 200) as usize, (how % 97) as usize);
        match self.tx.reserve(w, SIZE, want) {
            Ok(Room::Ring(n)) => {
                assert!(n <= want);
                self.check_stretches(self.tx.stretches(SIZE, n), n);
                self.tx.commit(w, n.min(kernel));
            }
            Ok(Room::Full | Room::Tcp(_)) => {
                self.tx.promise_tcp(w, want);
                self.tx.paid(kernel.min(want));
            }
            Err(bad) => return self.refuse_tx(bad, start),
        }
        self.bounded += 1;
        if how.is_multiple_of(31) {
            self.tx.go_tcp_only(w);
        }
        let _ = (self.tx.in_flight(), self.tx.offset());
        match self.tx.drained(w) {
            Err(bad) => self.refuse_tx(bad, start),
            Ok(_) if how.is_multiple_of(61) => self.open_tx(start),
            Ok(_) => {}
        }
    }

    fn refuse_tx(&mut self, bad: Misbehaved, start: u64) {
        assert_eq!(bad, Misbehaved::Consumed, "a sender reads nothing else");
        self.refused += 1;
        self.tx.go_tcp_only(self.dmb.words()); // what the socket lane does then
        let _ = (self.tx.in_flight(), self.tx.offset());
        self.open_tx(start);
    }
}

/// Where a lane is opened anew: low, or as far on as a stream can be.
pub(crate) fn start(random: u64) -> u64 {
    if random.is_multiple_of(3) {
        random >> 1
    } else {
        random % 1000
    }
}
