//! What goes in at one end comes out at the other: bytes, order, what frames say of themselves; in all three modes.

use memlane_fixtures::frames::{copied, frame};
use memlane_fixtures::random::Random;
use memlane_fixtures::world::World;
use memlane_packet::engine::back::Back;
use memlane_packet::engine::front::Front;
use memlane_packet::io::Regions;
use memlane_packet::{Detach, Gso, GsoKind, Meta, Mode, Placed, Room, Sent, Sleep};
use proptest::prelude::*;
use std::collections::VecDeque;

/// Both directions, with what is under way in each.
struct Traffic {
    front: Front,
    back: Back<Regions>,
    there: VecDeque<(Vec<u8>, Meta)>,
    here: VecDeque<(Vec<u8>, Meta)>,
    sent: u64,
    full: u64,
}

impl Traffic {
    fn new(mode: Mode, log2: u8, order: u8, cap: u32) -> Traffic {
        let world = World::new(log2, 2 << log2, order);
        Traffic {
            front: world.front(),
            back: world.back(mode, cap),
            there: VecDeque::new(),
            here: VecDeque::new(),
            sent: 0,
            full: 0,
        }
    }

    fn step(&mut self, what: u8, len: usize, count: usize) -> Result<(), Detach> {
        match what {
            0 | 1 => {
                let (bytes, meta) = frame(self.sent, len);
                self.sent += 1;
                let fill = |room: &Room<'_>| {
                    assert_eq!(room.copy_in(0, &bytes), bytes.len());
                };
                let sent = if what == 0 {
                    self.front.send(len, meta, fill)?
                } else {
                    self.back.send(len, meta, fill)?
                };
                match (sent, what) {
                    (Sent::Queued, 0) => self.there.push_back((bytes, meta)),
                    (Sent::Queued, _) => self.here.push_back((bytes, meta)),
                    (Sent::Full(_), _) => self.full += 1,
                    (Sent::Refused, _) => panic!("{len} bytes refused"),
                }
            }
            6 | 7 => self.place(what, len, count)?,
            2 => drop(self.front.flush()?),
            3 => drop(self.back.flush()?),
            4 => {
                let there = &mut self.there;
                let burst = self.back.receive(count, |f| {
                    assert_eq!(Some(copied(f)), there.pop_front());
                })?;
                assert!(burst.frames <= count);
            }
            _ => {
                let here = &mut self.here;
                self.front.receive(count, |f| {
                    assert_eq!(Some(copied(f)), here.pop_front());
                })?;
            }
        }
        Ok(())
    }

    /// A frame that is read into room; now and then there is none.
    fn place(&mut self, what: u8, len: usize, count: usize) -> Result<(), Detach> {
        let (bytes, meta) = frame(self.sent, len);
        let comes = !count.is_multiple_of(7);
        let fill = |room: &Room<'_>| {
            assert_eq!(room.len(), 65535);
            // What is read lies there even if it is no frame.
            assert_eq!(room.copy_in(0, &bytes), bytes.len());
            let mut again = vec![0; len];
            assert_eq!(room.copy_out(0, &mut again), len);
            assert_eq!(again, bytes);
            comes.then_some((len, meta))
        };
        let placed = if what == 6 {
            self.front.place(fill)?
        } else {
            self.back.place(fill)?
        };
        let under_way = if what == 6 {
            &mut self.there
        } else {
            &mut self.here
        };
        match placed {
            Placed::Sent(Sent::Queued) => {
                assert!(comes);
                self.sent += 1;
                under_way.push_back((bytes, meta));
            }
            Placed::Nothing => assert!(!comes),
            Placed::Sent(Sent::Refused) => panic!("{len} bytes refused"),
            Placed::Sent(Sent::Full(_)) => {}
            Placed::NotHere => assert_eq!(what, 7, "a front always has room of its own"),
        }
        Ok(())
    }

    /// Takes all that is under way.
    fn settle(&mut self) -> Result<(), Detach> {
        for what in [2, 4, 2, 3, 5, 3] {
            self.step(what, 0, usize::MAX)?;
        }
        assert!(self.there.is_empty() && self.here.is_empty());
        assert!(self.front.is_quiet()?);
        Ok(())
    }
}

fn lengths() -> impl Strategy<Value = usize> {
    prop_oneof![
        14..200_usize,
        1400..1600_usize,
        4000..4200_usize,
        9000..9100_usize,
        65000..=65535_usize
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn frames_arrive_whole_and_in_order(
        mode in 0..3_usize, log2 in 5..=7_u8, order in 0..=4_u8, cap in 1..80_u32,
        steps in prop::collection::vec((0..8_u8, lengths(), 1..40_usize), 1..150),
    ) {
        let mut traffic = Traffic::new(Mode::ALL[mode], log2, order, cap);
        for (what, len, count) in steps {
            traffic.step(what, len, count).unwrap();
        }
        traffic.settle().unwrap();
        let [tx, rx] = traffic.back.grants();
        prop_assert_eq!(tx.in_use + rx.in_use, 0);
        prop_assert!(tx.mapped <= u64::from(cap) && rx.mapped <= u64::from(cap));
    }
}

#[test]
fn a_thousand_turns_of_the_rings_lose_nothing() {
    for mode in Mode::ALL {
        let mut traffic = Traffic::new(mode, 5, 0, 32);
        let mut random = Random(7);
        for _ in 0..3000 {
            for what in [0, 0, 2, 4, 1, 1, 3, 5] {
                let len = 14 + usize::try_from(random.below(9000)).unwrap();
                traffic.step(what, len, 64).unwrap();
            }
        }
        traffic.settle().unwrap();
        // 24,000 steps, of which some found the small ring full.
        assert!(traffic.sent - traffic.full > 9000, "{}", traffic.full);
        assert_eq!(
            traffic.back.stats().received + traffic.front.stats().received,
            traffic.sent - traffic.full
        );
    }
}

#[test]
fn in_persistent_mode_each_buffer_is_mapped_once_and_nothing_is_copied_by_the_kernel() {
    let mut traffic = Traffic::new(Mode::Persistent, 5, 0, 32);
    for _ in 0..500 {
        for what in [0, 2, 4, 1, 3, 5] {
            traffic.step(what, 3000, 64).unwrap();
        }
    }
    let [tx, rx] = traffic.back.grants();
    assert_eq!(traffic.back.stats().copied, 0);
    assert!(tx.misses <= 32 && rx.misses <= 32, "{tx:?} {rx:?}");
    assert!(tx.hits + tx.misses >= 500 && rx.hits + rx.misses >= 500);
    assert_eq!(tx.evicted + rx.evicted + tx.busy + rx.busy, 0);
}

#[test]
fn a_back_lends_room_in_persistent_mode_only_and_no_more_than_it_has_mapped() {
    for (mode, cap) in [
        (Mode::Persistent, 32),
        (Mode::Persistent, 5),
        (Mode::Map, 32),
        (Mode::Copy, 32),
    ] {
        let mut traffic = Traffic::new(mode, 5, 0, cap);
        let placed = traffic.back.place(|_| None).unwrap();
        let lends = mode == Mode::Persistent && cap == 32;
        let expected = match lends {
            true => Placed::Nothing,
            false => Placed::NotHere,
        };
        assert_eq!(placed, expected, "{mode:?} {cap}");
    }
}

/// The second slot is a fragment's or the extra info's, which is known only when the frame is there.
#[test]
fn frames_with_and_without_segments_follow_each_other_in_lent_room() {
    let mut traffic = Traffic::new(Mode::Persistent, 6, 0, 64);
    let gso = |kind| Meta {
        gso: Some(Gso { kind, size: 1448 }),
        ..Meta::default()
    };
    let metas = [
        Meta::default(),
        gso(GsoKind::Tcp4),
        gso(GsoKind::Tcp6),
        Meta::default(),
        gso(GsoKind::Tcp4),
        Meta::default(),
    ];
    for len in [14, 4095, 4096, 4097, 8192, 40000, 65535] {
        for meta in metas {
            let (bytes, _) = frame(len as u64, len);
            let fill = |room: &Room<'_>| {
                room.copy_in(0, &bytes);
                Some((len, meta))
            };
            assert_eq!(
                traffic.back.place(fill),
                Ok(Placed::Sent(Sent::Queued)),
                "{len}"
            );
            traffic.back.flush().unwrap();
            let mut came = 0;
            let taken = traffic.front.receive(9, |frame| {
                came += 1;
                assert_eq!(copied(frame), (bytes.clone(), meta), "{len}");
            });
            assert!(taken.is_ok() && came == 1, "{taken:?}");
            traffic.settle().unwrap();
        }
    }
}

#[test]
fn what_is_no_frame_does_not_go_by_lent_room_and_costs_none() {
    let mut traffic = Traffic::new(Mode::Persistent, 5, 0, 32);
    let bad = Meta {
        gso: Some(Gso {
            kind: GsoKind::Tcp4,
            size: 0,
        }),
        ..Meta::default()
    };
    for (len, meta) in [(13, Meta::default()), (65536, Meta::default()), (9000, bad)] {
        for _ in 0..100 {
            let refused = Ok(Placed::Sent(Sent::Refused));
            assert_eq!(traffic.front.place(|_| Some((len, meta))), refused);
            assert_eq!(traffic.back.place(|_| Some((len, meta))), refused);
        }
    }
    for what in [6, 7] {
        traffic.step(what, 65535, 1).unwrap();
    }
    assert_eq!((traffic.there.len(), traffic.here.len()), (1, 1));
    traffic.settle().unwrap();
}

#[test]
fn large_frames_find_buffers_that_lie_beside_each_other_again() {
    let mut traffic = Traffic::new(Mode::Persistent, 8, 0, 256);
    let mut random = Random(11);
    // Small and large ones by turns leave the buffers in disorder.
    for _ in 0..300 {
        let len = 60 + usize::try_from(random.below(30000)).unwrap();
        for what in [0, 6, 2, 4, 2] {
            traffic.step(what, len, 1 + (len & 1)).unwrap();
        }
    }
    traffic.settle().unwrap();
    for _ in 0..300 {
        for what in [6, 2, 4, 2] {
            traffic.step(what, 65535, 1).unwrap();
        }
    }
    let mut stretches = 0;
    let counted = traffic.front.place(|room| {
        let mut end = std::ptr::null_mut();
        for part in room.parts() {
            stretches += usize::from(part.as_ptr() != end);
            end = part.as_ptr().wrapping_add(part.len());
        }
        None
    });
    assert_eq!(counted, Ok(Placed::Nothing));
    assert!(stretches <= 4, "{stretches} of 16");
}

#[test]
fn a_table_that_is_too_small_copies_what_does_not_fit() {
    let mut traffic = Traffic::new(Mode::Persistent, 5, 0, 3);
    for _ in 0..500 {
        for what in [1, 3, 5] {
            traffic.step(what, 3000, 64).unwrap();
        }
    }
    // All 32 buffers take turns, so each look-up finds three of them: no mapping is made that is not used again.
    let [_, rx] = traffic.back.grants();
    assert_eq!((rx.mapped, rx.max), (3, 3));
    assert!(traffic.back.stats().copied >= 300);
    assert_eq!(rx.misses, 3, "{rx:?}");
}

#[test]
fn what_cannot_be_sent_is_refused_before_anything_happens() {
    let mut traffic = Traffic::new(Mode::Persistent, 5, 0, 32);
    for len in [0, 13, 65536] {
        let never = |_: &memlane_packet::Room<'_>| panic!("nothing is to be filled");
        assert_eq!(
            traffic.front.send(len, Meta::default(), never),
            Ok(Sent::Refused)
        );
        assert_eq!(
            traffic.back.send(len, Meta::default(), never),
            Ok(Sent::Refused)
        );
    }
    let no_size = Meta {
        gso: Some(memlane_packet::Gso {
            kind: memlane_packet::GsoKind::Tcp4,
            size: 0,
        }),
        ..Meta::default()
    };
    assert_eq!(traffic.front.send(64, no_size, |_| ()), Ok(Sent::Refused));
    traffic.settle().unwrap();
}

#[test]
fn a_bell_is_asked_for_once_and_only_by_who_sleeps() {
    let mut traffic = Traffic::new(Mode::Persistent, 5, 0, 32);
    let (front, back) = (&mut traffic.front, &mut traffic.back);
    // A new ring has its events at 1 (io/ring.h): the first message is rung for.
    front.send(64, Meta::default(), |_| ()).unwrap();
    assert_eq!(front.flush(), Ok(true));
    for _ in 0..5 {
        front.send(64, Meta::default(), |_| ()).unwrap();
        assert_eq!(front.flush(), Ok(false), "nobody sleeps");
    }
    assert_eq!(
        back.sleeps(Sleep::FOR_FRAMES),
        Ok(false),
        "there is something"
    );
    back.receive(64, |_| ()).unwrap();
    assert_eq!(back.sleeps(Sleep::FOR_FRAMES), Ok(true));
    front.send(64, Meta::default(), |_| ()).unwrap();
    assert_eq!(front.flush(), Ok(true));
    front.send(64, Meta::default(), |_| ()).unwrap();
    assert_eq!(front.flush(), Ok(false), "it was rung for");
}

#[test]
fn a_front_that_is_about_to_sleep_sees_what_came_since_it_looked() {
    let mut traffic = Traffic::new(Mode::Persistent, 5, 0, 32);
    let (front, back) = (&mut traffic.front, &mut traffic.back);
    front.receive(64, |_| panic!("nothing yet")).unwrap();
    back.send(64, Meta::default(), |_| ()).unwrap();
    back.flush().unwrap();
    assert_eq!(
        front.sleeps(Sleep::FOR_FRAMES),
        Ok(false),
        "who came before the wish was published does not ring"
    );
    front.receive(64, |_| ()).unwrap();
    assert_eq!(front.sleeps(Sleep::FOR_FRAMES), Ok(true));
    back.send(64, Meta::default(), |_| ()).unwrap();
    assert_eq!(back.flush(), Ok(true));
    back.send(64, Meta::default(), |_| ()).unwrap();
    assert_eq!(back.flush(), Ok(false), "it was rung for");
    assert_eq!(front.sleeps(Sleep::FOR_FRAMES), Ok(false));
}

#[test]
fn who_waits_for_room_is_woken_by_it() {
    let mut traffic = Traffic::new(Mode::Persistent, 5, 0, 32);
    let (front, back) = (&mut traffic.front, &mut traffic.back);
    while front.send(64, Meta::default(), |_| ()).unwrap() == Sent::Queued {}
    front.flush().unwrap();
    assert_eq!(front.sleeps(Sleep::for_room(1)), Ok(true));
    assert_eq!(back.receive(1, |_| ()).unwrap().frames, 1);
    assert!(back.settle());
    assert_eq!(front.sleeps(Sleep::for_room(1)), Ok(false));
    assert_eq!(front.send(64, Meta::default(), |_| ()), Ok(Sent::Queued));
    // The other way: a back without buffers is woken when they are posted again.
    while back.send(64, Meta::default(), |_| ()).unwrap() == Sent::Queued {}
    back.flush().unwrap();
    assert_eq!(back.sleeps(Sleep::for_room(1)), Ok(true));
    assert_eq!(front.receive(1, |_| ()).unwrap().frames, 1);
    assert!(front.settle());
    assert_eq!(back.sleeps(Sleep::for_room(1)), Ok(false));
}

#[test]
fn who_takes_frames_one_by_one_gives_slots_back_in_batches_and_all_of_them_in_the_end() {
    for len in [64, 6000] {
        let mut traffic = Traffic::new(Mode::Persistent, 6, 0, 64);
        let (front, back) = (&mut traffic.front, &mut traffic.back);
        for _ in 0..24 {
            assert_eq!(front.send(len, Meta::default(), |_| ()), Ok(Sent::Queued));
            assert_eq!(back.send(len, Meta::default(), |_| ()), Ok(Sent::Queued));
        }
        front.flush().unwrap();
        back.flush().unwrap();
        let slots = len.div_ceil(4096);
        // 16 at most are kept back.
        for n in 1..=24 {
            assert_eq!(back.receive(1, |_| ()).unwrap().frames, 1);
            assert_eq!(front.receive(1, |_| ()).unwrap().frames, 1);
            let given = n * slots - (n * slots) % 16;
            let room = u32::try_from(64 - 24 * slots + given).unwrap();
            let told = |room: u32| Sleep::for_room(room);
            assert_eq!(front.sleeps(told(room)), Ok(false), "{n} of {len}");
            assert_eq!(back.sleeps(told(room)), Ok(false), "{n} of {len}");
            if room < 64 {
                assert_eq!(front.sleeps(told(room + 1)), Ok(true), "{n} of {len}");
                assert_eq!(back.sleeps(told(room + 1)), Ok(true), "{n} of {len}");
            }
        }
        // Nothing more comes.
        assert_eq!(back.receive(1, |_| ()).unwrap().frames, 0);
        assert_eq!(front.receive(1, |_| ()).unwrap().frames, 0);
        assert_eq!(front.is_quiet(), Ok(true));
        assert_eq!(back.sleeps(Sleep::for_room(64)), Ok(false));
    }
}

#[test]
fn idle_mappings_go_and_come_back() {
    let mut traffic = Traffic::new(Mode::Persistent, 5, 0, 32);
    traffic.step(0, 64, 1).unwrap();
    traffic.settle().unwrap();
    let mapped = |traffic: &Traffic| traffic.back.grants()[0].mapped;
    assert_eq!(mapped(&traffic), 1);
    traffic.back.tick(1000);
    assert_eq!(mapped(&traffic), 1, "used since the last sweep");
    traffic.back.tick(1500);
    assert_eq!(mapped(&traffic), 1, "a sweep once an idle time");
    traffic.back.tick(2000);
    assert_eq!(mapped(&traffic), 0);
    assert_eq!(traffic.back.grants()[0].idle, 1);
    traffic.step(0, 64, 1).unwrap();
    traffic.settle().unwrap();
    assert_eq!(mapped(&traffic), 1);
}

#[test]
fn who_is_told_how_many_slots_are_missing_sleeps_until_there_are_so_many() {
    let mut traffic = Traffic::new(Mode::Persistent, 5, 0, 32);
    let (front, back) = (&mut traffic.front, &mut traffic.back);
    // 32 slots: twelve packets of two fragments, and six more slots are taken.
    for len in [[8000; 12].as_slice(), &[64; 6]].concat() {
        assert_eq!(front.send(len, Meta::default(), |_| ()), Ok(Sent::Queued));
    }
    assert_eq!(
        front.send(20_000, Meta::default(), |_| ()),
        Ok(Sent::Full(5))
    );
    front.flush().unwrap();
    assert_eq!(front.sleeps(Sleep::for_room(5)), Ok(true));
    assert_eq!(back.receive(1, |_| ()).unwrap().frames, 1);
    assert!(!back.settle(), "three slots are missing, two came");
    assert_eq!(front.sleeps(Sleep::for_room(5)), Ok(true));
    assert_eq!(back.receive(1, |_| ()).unwrap().frames, 1);
    assert!(back.settle());
    assert_eq!(front.sleeps(Sleep::for_room(5)), Ok(false));
    assert_eq!(
        front.send(20_000, Meta::default(), |_| ()),
        Ok(Sent::Queued)
    );
    // A back does not know how large the next buffers are: it asks for one more than it has.
    for _ in 0..30 {
        assert_eq!(back.send(64, Meta::default(), |_| ()), Ok(Sent::Queued));
    }
    assert_eq!(
        back.send(20_000, Meta::default(), |_| ()),
        Ok(Sent::Full(3))
    );
    back.flush().unwrap();
    assert_eq!(back.sleeps(Sleep::for_room(3)), Ok(true));
    assert_eq!(front.receive(1, |_| ()).unwrap().frames, 1);
    assert!(front.settle());
    assert_eq!(back.sleeps(Sleep::for_room(3)), Ok(false));
}
