//! The other side writes whatever it likes, step by step (which can be replayed) and from a second thread while the
//! honest side works: frames stay within what was granted, work per call stays bounded, the answer is a reason to
//! detach; never a panic, never a loop.

#![allow(clippy::cast_possible_truncation)] // random numbers, cut to size

use memlane_core::sync::Words as _;
use memlane_fixtures::random::Random;
use memlane_fixtures::world::World;
use memlane_packet::engine::back::Back;
use memlane_packet::engine::front::Front;
use memlane_packet::engine::grant::GrantError;
use memlane_packet::error::Ring;
use memlane_packet::io::Regions;
use memlane_packet::layout::{
    EXTRA_INFO, ExtraGso, GrantEntry, MORE_DATA, PACKET_MAX, PAGE, RING_HEADER, RxRequest,
    RxResponse, TxRequest, TxResponse,
};
use memlane_packet::{Detach, Meta, Mode, Sleep};
use proptest::prelude::*;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const LOG2: u8 = 5;
const SLOTS: u32 = 32;
const GRANTS: u32 = 96;

/// The hostile side's hand: it writes words of the control memory.
struct Hand<'a>(&'a World);

impl Hand<'_> {
    fn word(&self, at: usize) -> &AtomicU32 {
        let region = self.0.memory.control();
        // SAFETY: an atomic inside the region, which `World` keeps.
        unsafe { region.words::<AtomicU32>(at).expect("inside").as_ref() }
    }

    fn set(&self, at: usize, word: u32) {
        self.word(at).store(word, Ordering::Release);
    }

    fn slot(&self, ring: Ring, index: u32) -> usize {
        let layout = self.0.memory.layout();
        let at = (index % SLOTS) as usize;
        match ring {
            Ring::Tx => layout.tx_at + RING_HEADER + at * 12,
            Ring::Rx => layout.rx_at + RING_HEADER + at * 8,
        }
    }

    fn slot_words(&self, ring: Ring, index: u32, words: &[u32]) {
        let at = self.slot(ring, index);
        for (n, word) in words.iter().enumerate() {
            self.set(at + n * 4, *word);
        }
    }

    /// `req_prod`, `req_event`, `rsp_prod`, `rsp_event` are 0 to 3.
    fn header(&self, ring: Ring, which: usize) -> &AtomicU32 {
        let layout = self.0.memory.layout();
        let at = match ring {
            Ring::Tx => layout.tx_at,
            Ring::Rx => layout.rx_at,
        };
        self.word(at + which * 4)
    }

    fn grant(&self, gref: u32, word: u64) {
        self.0.memory.set_grant(gref, word);
    }

    /// Something that is nearly right: a word of a kind, with a value near those that are good.
    fn scribble(&self, random: &mut Random) {
        let ring = if random.below(2) == 0 {
            Ring::Tx
        } else {
            Ring::Rx
        };
        let index = random.word();
        match random.below(10) {
            0 => {
                let which = random.below(4) as usize;
                let header = self.header(ring, which);
                let near = header
                    .load(Ordering::Relaxed)
                    .wrapping_add(random.word() % 8);
                let far = random.below(8) == 0;
                header.store(if far { index } else { near }, Ordering::Release);
            }
            1..=4 => self.slot_words(Ring::Tx, index, &request(random).words()),
            5 => self.slot_words(Ring::Tx, index, &extra(random).words()),
            6 => self.slot_words(Ring::Rx, index, &response(random).words()),
            7 => {
                let (id, gref) = (random.word() as u16, random.word() % (GRANTS + 2));
                self.slot_words(Ring::Rx, index, &RxRequest { id: id % 40, gref }.words());
            }
            8 => self.grant(random.word() % GRANTS, entry(random)),
            _ => {
                let len = self.0.memory.control().len() as u64;
                self.set((random.below(len / 4) * 4) as usize, random.word());
            }
        }
    }
}

fn flags(random: &mut Random) -> u16 {
    [
        0,
        0,
        0,
        MORE_DATA,
        EXTRA_INFO,
        MORE_DATA | EXTRA_INFO,
        3,
        0xffff,
    ][random.below(8) as usize]
}

fn request(random: &mut Random) -> TxRequest {
    TxRequest {
        gref: random.word() % (GRANTS + 2),
        offset: [0, 0, 64, 4000, 0xffff][random.below(5) as usize],
        flags: flags(random),
        id: random.word() as u16 % 40,
        size: [0, 13, 64, 64, 1500, 4096, 9000, 0xffff][random.below(8) as usize],
    }
}

fn response(random: &mut Random) -> RxResponse {
    RxResponse {
        id: random.word() as u16 % 40,
        offset: [0, 0, 64, 4000, 0xffff][random.below(5) as usize],
        flags: flags(random),
        status: [-2, -1, 0, 14, 64, 64, 4096, i16::MAX][random.below(8) as usize],
    }
}

fn extra(random: &mut Random) -> ExtraGso {
    ExtraGso {
        kind: random.below(6) as u8,
        flags: random.below(3) as u8,
        size: random.word() as u16 % 3 * 700,
        gso: random.below(5) as u8,
        features: 0,
    }
}

fn entry(random: &mut Random) -> u64 {
    let flags = [
        1,
        1,
        1,
        5,
        0,
        2,
        1 | 1 << 12,
        1 | 4 << 12,
        1 | 5 << 12,
        0xffff,
    ];
    GrantEntry {
        flags: flags[random.below(10) as usize],
        region: random.below(3) as u16,
        frame: random.word() % 40,
    }
    .word()
}

/// The honest back, and how it fares.
struct BackVictim<'a> {
    world: &'a World,
    mode: Mode,
    back: Back<Regions>,
    frames: u64,
    refused: u64,
}

impl<'a> BackVictim<'a> {
    fn new(world: &'a World, mode: Mode) -> Self {
        BackVictim {
            world,
            mode,
            back: world.back(mode, 8),
            frames: 0,
            refused: 0,
        }
    }

    fn work(&mut self, random: &mut Random) {
        let (most, mut buffer) = (1 + random.below(40) as usize, [0; 256]);
        let mut frames = 0;
        let mut outcome = self.back.receive(most, |frame| {
            frames += 1;
            assert!(frame.len() <= PACKET_MAX && frame.parts().len() <= 18);
            frame.copy_out(frame.len() - 14, &mut buffer);
        });
        assert!(frames <= most);
        let len = 14 + random.below(9000) as usize;
        if outcome.is_ok() {
            let sent = self.back.send(len, Meta::default(), |room| {
                room.copy_in(len - 14, &buffer);
            });
            let flushed = sent.and_then(|_| self.back.flush());
            let slept = flushed.and_then(|_| {
                self.back.sleeps(Sleep {
                    frames: true,
                    room: 1,
                })
            });
            outcome = slept.and(outcome);
        }
        self.frames += frames as u64;
        if let Err(why) = outcome {
            assert!(why.is_hostile(), "{why:?}");
            assert_eq!(self.back.receive(1, |_| ()), Err(why), "it ended");
            let lent: u64 = self.back.grants().iter().map(|counts| counts.in_use).sum();
            assert_eq!(lent, 0);
            self.refused += 1;
            // Another link: a new pair of private states over memory that is as it was left.
            self.back = self.world.back(self.mode, 8);
            for ring in [Ring::Tx, Ring::Rx] {
                (0..4).for_each(|n| Hand(self.world).header(ring, n).store(0, Ordering::Relaxed));
            }
        }
    }
}

struct FrontVictim<'a> {
    world: &'a World,
    front: Front,
    frames: u64,
    refused: u64,
}

impl<'a> FrontVictim<'a> {
    fn new(world: &'a World) -> Self {
        FrontVictim {
            world,
            front: world.front(),
            frames: 0,
            refused: 0,
        }
    }

    fn work(&mut self, random: &mut Random) {
        let (most, mut buffer) = (1 + random.below(40) as usize, [0; 256]);
        let len = 14 + random.below(9000) as usize;
        let mut frames = 0;
        let sent = self.front.send(len, Meta::default(), |room| {
            room.copy_in(len - 14, &buffer);
        });
        let flushed = sent.and_then(|_| self.front.flush());
        let received = flushed.and_then(|_| {
            self.front.receive(most, |frame| {
                frames += 1;
                assert!(frame.len() <= PACKET_MAX && frame.parts().len() <= 18);
                frame.copy_out(frame.len() - 14, &mut buffer);
            })
        });
        let outcome = received.and_then(|_| {
            self.front.sleeps(Sleep {
                frames: true,
                room: 1,
            })
        });
        assert!(frames <= most);
        self.frames += frames as u64;
        if let Err(why) = outcome {
            assert!(why.is_hostile(), "{why:?}");
            self.refused += 1;
            self.front = self.world.front();
        }
    }

    /// What an honest back might answer, so that there are frames at all.
    fn answer(&self, hand: &Hand<'_>, random: &mut Random) {
        let header = |ring, which| hand.header(ring, which);
        let next = header(Ring::Rx, 2).load(Ordering::Relaxed);
        if header(Ring::Rx, 0).load(Ordering::Relaxed) != next {
            let id = hand.word(hand.slot(Ring::Rx, next)).load(Ordering::Relaxed) as u16;
            let done = RxResponse {
                id,
                ..response(random)
            };
            let done = if random.below(4) > 0 {
                RxResponse {
                    offset: 0,
                    flags: 0,
                    status: 64,
                    ..done
                }
            } else {
                done
            };
            hand.slot_words(Ring::Rx, next, &done.words());
            header(Ring::Rx, 2).store(next.wrapping_add(1), Ordering::Release);
        }
    }
}

/// Requests that an honest front might make, so that there are frames at all.
fn ask(hand: &Hand<'_>, random: &mut Random) {
    let next = hand.header(Ring::Tx, 0).load(Ordering::Relaxed);
    let done = hand.header(Ring::Tx, 2).load(Ordering::Relaxed);
    if next.wrapping_sub(done) < SLOTS {
        let size = 14 + random.below(1500) as u16;
        let good = TxRequest {
            gref: random.word() % SLOTS,
            offset: 0,
            flags: 0,
            id: 1,
            size,
        };
        let asked = if random.below(6) > 0 {
            good
        } else {
            request(random)
        };
        hand.slot_words(Ring::Tx, next, &asked.words());
        hand.header(Ring::Tx, 0)
            .store(next.wrapping_add(1), Ordering::Release);
    }
}

const ROUNDS: u64 = 30_000;
/// No single call may take longer, on however loaded a machine.
const STUCK: Duration = Duration::from_secs(20);

/// Runs `step` at least `ROUNDS` times while another thread scribbles.
fn under_fire(seed: u64, world: &World, mut step: impl FnMut(&mut Random)) {
    let (done, progress, scribbled) =
        (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|s| {
        s.spawn(|| {
            let (hand, mut random) = (Hand(world), Random(seed));
            while !done.load(Ordering::Relaxed) {
                hand.scribble(&mut random);
                scribbled.fetch_add(1, Ordering::Relaxed);
                memlane_core::sync::Cpu::pause();
            }
        });
        s.spawn(|| abort_if_stuck(&done, &progress));
        let _ends = Ends(&done);
        let (mut random, mut round) = (Random(seed ^ 0xdead_beef), 0);
        while round < ROUNDS || scribbled.load(Ordering::Relaxed) < ROUNDS {
            step(&mut random);
            round += 1;
            progress.store(round, Ordering::Relaxed);
        }
    });
}

struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn abort_if_stuck(done: &AtomicBool, progress: &AtomicU64) {
    let (mut last, mut since) = (u64::MAX, Instant::now());
    while !done.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(20));
        let now = progress.load(Ordering::Relaxed);
        if now != last {
            (last, since) = (now, Instant::now());
        } else if since.elapsed() > STUCK {
            eprintln!("a call has not returned for {STUCK:?}: round {now}");
            std::process::abort();
        }
    }
}

fn world() -> World {
    let world = World::new(LOG2, GRANTS, 0);
    drop(world.front());
    world
}

#[test]
fn a_back_under_fire_stays_in_bounds() {
    for mode in Mode::ALL {
        let world = world();
        let (hand, mut victim) = (Hand(&world), BackVictim::new(&world, mode));
        under_fire(1, &world, |random| {
            ask(&hand, random);
            victim.work(random);
        });
        println!(
            "{mode:?}: {} frames, {} refused",
            victim.frames, victim.refused
        );
        assert!(victim.frames > 100 && victim.refused > 0);
    }
}

#[test]
fn a_front_under_fire_stays_in_bounds() {
    let world = world();
    let (hand, mut victim) = (Hand(&world), FrontVictim::new(&world));
    under_fire(2, &world, |random| {
        victim.answer(&hand, random);
        victim.work(random);
    });
    println!(
        "front: {} frames, {} refused",
        victim.frames, victim.refused
    );
    assert!(victim.frames > 100 && victim.refused > 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_order_of_hostile_writes_gets_a_step_out_of_bounds(
        seed in 1..u64::MAX, mode in 0..3_usize, steps in prop::collection::vec(0..8_u8, 1..200),
    ) {
        let (there, here) = (world(), world());
        let mut random = Random(seed);
        let mut back = BackVictim::new(&there, Mode::ALL[mode]);
        let mut front = FrontVictim::new(&here);
        for step in steps {
            match step {
                0 => back.work(&mut random),
                1 => front.work(&mut random),
                2 => ask(&Hand(&there), &mut random),
                3 => front.answer(&Hand(&here), &mut random),
                4 | 5 => Hand(&there).scribble(&mut random),
                _ => Hand(&here).scribble(&mut random),
            }
        }
    }
}

/// What a back says to these requests of a new ring.
fn back_says(requests: &[[u32; 3]], published: u32) -> Detach {
    let world = world();
    let (hand, mut back) = (Hand(&world), world.back(Mode::Persistent, 8));
    for (index, words) in (0..).zip(requests) {
        hand.slot_words(Ring::Tx, index, words);
    }
    hand.header(Ring::Tx, 0).store(published, Ordering::Release);
    back.receive(usize::MAX, |_| ())
        .expect_err("it is to be refused")
}

#[test]
fn each_impossible_request_is_refused_by_its_name() {
    let good = TxRequest {
        gref: 0,
        offset: 0,
        flags: 0,
        id: 0,
        size: 64,
    };
    let more = TxRequest {
        flags: MORE_DATA,
        size: 1000,
        ..good
    };
    let gso = ExtraGso {
        kind: 1,
        flags: 0,
        size: 1448,
        gso: 1,
        features: 0,
    };
    let with_extra = TxRequest {
        flags: EXTRA_INFO,
        ..good
    }
    .words();
    let padded = |extra: ExtraGso| [extra.words()[0], extra.words()[1], 0];
    let slot = |why: &Detach| matches!(why, Detach::Slot(Ring::Tx, _));
    let chain = |why: &Detach| matches!(why, Detach::Chain(Ring::Tx, _));
    let one = |request: TxRequest| back_says(&[request.words()], 1);

    assert!(matches!(
        back_says(&[good.words()], SLOTS + 1),
        Detach::Index(Ring::Tx, _)
    ));
    assert!(slot(&one(TxRequest { size: 13, ..good })));
    assert!(slot(&one(TxRequest {
        offset: 4090,
        ..good
    })));
    assert!(slot(&one(TxRequest { size: 4097, ..good })));
    assert_eq!(
        one(TxRequest { gref: 90, ..good }),
        Detach::Grant(90, GrantError::NotGranted)
    );
    assert_eq!(
        one(TxRequest {
            gref: GRANTS,
            ..good
        }),
        Detach::Grant(GRANTS, GrantError::NoEntry)
    );
    assert!(chain(&one(more)), "cut off");
    assert!(chain(&back_says(
        &[more.words(), TxRequest { size: 1001, ..good }.words()],
        2
    )));
    assert!(
        slot(&back_says(
            &[more.words(), TxRequest { size: 1000, ..good }.words()],
            2
        )),
        "nothing in the first"
    );
    assert!(chain(&back_says(
        &[more.words(), TxRequest { size: 0, ..good }.words()],
        2
    )));
    let long = TxRequest {
        size: 1,
        flags: MORE_DATA,
        ..good
    };
    assert!(chain(&back_says(
        &[[more.words()].as_slice(), &[long.words(); 18]].concat(),
        19
    )));
    assert!(
        chain(&back_says(&[with_extra], 1)),
        "the extra slot is not there"
    );
    assert!(slot(&back_says(
        &[with_extra, padded(ExtraGso { kind: 2, ..gso })],
        2
    )));
    assert!(slot(&back_says(
        &[with_extra, padded(ExtraGso { gso: 3, ..gso })],
        2
    )));
    assert!(slot(&back_says(
        &[with_extra, padded(ExtraGso { size: 0, ..gso })],
        2
    )));
    assert!(slot(&back_says(
        &[with_extra, padded(ExtraGso { flags: 1, ..gso })],
        2
    )));
}

/// What a front says to these responses; it has sent one packet, and waits for others.
fn front_says(ring: Ring, responses: &[[u32; 2]], published: u32) -> Detach {
    let world = world();
    let (mut front, hand) = (world.front(), Hand(&world));
    front.send(64, Meta::default(), |_| ()).expect("it is new");
    front.flush().expect("nothing is answered yet");
    for (index, words) in (0..).zip(responses) {
        hand.slot_words(ring, index, words);
    }
    hand.header(ring, 2).store(published, Ordering::Release);
    let said = front.receive(usize::MAX, |_| ()).and(front.flush());
    said.expect_err("it is to be refused")
}

#[test]
fn each_impossible_response_is_refused_by_its_name() {
    let good = RxResponse {
        id: 0,
        offset: 0,
        flags: 0,
        status: 64,
    };
    let slot = |why: &Detach| matches!(why, Detach::Slot(..));
    let chain = |why: &Detach| matches!(why, Detach::Chain(Ring::Rx, _));
    let one = |response: RxResponse| front_says(Ring::Rx, &[response.words()], 1);

    assert!(matches!(
        front_says(Ring::Rx, &[], SLOTS + 1),
        Detach::Index(Ring::Rx, _)
    ));
    assert!(
        matches!(front_says(Ring::Tx, &[], 2), Detach::Index(Ring::Tx, _)),
        "one was sent"
    );
    assert!(slot(&one(RxResponse { id: 1, ..good })));
    assert!(slot(&one(RxResponse {
        offset: 4090,
        ..good
    })));
    assert!(slot(&one(RxResponse {
        status: 4097,
        ..good
    })));
    assert!(slot(&one(RxResponse { status: 0, ..good })));
    assert!(chain(&one(RxResponse { status: 13, ..good })));
    assert!(chain(&one(RxResponse {
        flags: MORE_DATA,
        ..good
    })));
    assert!(chain(&one(RxResponse {
        flags: EXTRA_INFO,
        ..good
    })));
    let tx = |response: TxResponse| front_says(Ring::Tx, &[[response.words()[0], 0]], 1);
    assert!(slot(&tx(TxResponse { id: 31, status: 0 })), "not sent");
    assert!(
        slot(&tx(TxResponse { id: 40, status: 0 })),
        "no such buffer"
    );
    assert!(
        slot(&tx(TxResponse { id: 0, status: 1 })),
        "no extra info was sent"
    );
}

#[test]
fn requests_in_slots_whose_answers_were_not_shown_yet_are_one_too_many() {
    let world = world();
    let (hand, mut back) = (Hand(&world), world.back(Mode::Persistent, 8));
    let request = TxRequest {
        gref: 0,
        offset: 0,
        flags: 0,
        id: 0,
        size: 64,
    };
    (0..SLOTS).for_each(|n| hand.slot_words(Ring::Tx, n, &request.words()));
    hand.header(Ring::Tx, 0).store(1, Ordering::Release);
    let mut frames = 0;
    let said = back.receive(8, |_| {
        // The first one is taken, but the front cannot know that.
        hand.header(Ring::Tx, 0).store(SLOTS + 1, Ordering::Release);
        frames += 1;
    });
    assert!(matches!(said, Err(Detach::Index(Ring::Tx, _))), "{said:?}");
    assert_eq!(frames, 1);
}

#[test]
fn a_packet_has_eighteen_fragments_at_most() {
    for (count, right) in [(18, true), (19, false)] {
        for mode in Mode::ALL {
            let world = world();
            let (hand, mut back) = (Hand(&world), world.back(mode, 8));
            for n in 0..count {
                let request = TxRequest {
                    gref: n,
                    offset: 0,
                    flags: if n + 1 < count { MORE_DATA } else { 0 },
                    id: n as u16,
                    size: if n == 0 { 100 } else { 1 },
                };
                hand.slot_words(Ring::Tx, n, &request.words());
            }
            hand.header(Ring::Tx, 0).store(count, Ordering::Release);
            let mut lens = Vec::new();
            let said = back.receive(8, |frame| lens.push(frame.len()));
            assert_eq!(said.is_ok(), right, "{count}, {mode:?}: {said:?}");
            assert_eq!(lens, if right { vec![100] } else { vec![] });
        }
    }
}

#[test]
fn a_frame_that_the_other_side_could_not_use_is_counted_and_its_buffer_comes_back() {
    let world = world();
    let (mut front, hand) = (world.front(), Hand(&world));
    front.send(64, Meta::default(), |_| ()).expect("it is new");
    front.flush().expect("nothing is answered yet");
    let failed = RxResponse {
        id: 0,
        offset: 0,
        flags: 0,
        status: -1,
    };
    hand.slot_words(Ring::Rx, 0, &failed.words());
    hand.header(Ring::Rx, 2).store(1, Ordering::Release);
    hand.slot_words(Ring::Tx, 0, &TxResponse { id: 0, status: -2 }.words());
    hand.header(Ring::Tx, 2).store(1, Ordering::Release);
    front
        .receive(8, |_| panic!("no frame"))
        .expect("that may be");
    assert_eq!(front.is_quiet(), Ok(true));
    assert_eq!(front.stats().failed, 2);
    assert_eq!(
        hand.header(Ring::Rx, 0).load(Ordering::Relaxed),
        SLOTS + 1,
        "posted anew"
    );
}

#[test]
fn memory_of_the_front_is_out_of_a_backs_writes() {
    let world = World::new(LOG2, GRANTS, 0);
    drop(world.front());
    // A receive buffer that is told to lie in the region which the front alone writes.
    let entry = GrantEntry {
        flags: 1,
        region: 0,
        frame: 0,
    };
    world.memory.set_grant(SLOTS, entry.word());
    for mode in Mode::ALL {
        let mut back = world.back(mode, 8);
        let sent = back.send(PAGE, Meta::default(), |_| ());
        let refused = Detach::Grant(SLOTS, GrantError::ReadOnly);
        assert_eq!(sent, Err(refused), "{mode:?}");
    }
}
