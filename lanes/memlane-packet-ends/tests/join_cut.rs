//! Large frames on their way between two ends of which one takes none: cut up, in order, a few at a time.

mod frames;

use frames::Recipe;
use memlane_packet::Meta;
use memlane_packet::Offloads;
use memlane_packet::PacketPort;
use memlane_packet::io::{BackTerms, FrontTerms, Listener, connect};
use memlane_packet_ends::Taker;
use memlane_packet_ends::headers::{find, fold, sum};
use memlane_packet_ends::join::{Join, Over, Side, Terms};
use memlane_packet_ends::port::Port;
use memlane_packet_ends::{End, EndCounts, EndError, Frame, More, Sent, Sleep, lend};
use rustix::event::PollFd;
use std::time::Duration;

/// Gives frames that it has, as an end that cannot be told what others take.
#[derive(Debug)]
struct Giver(std::vec::IntoIter<(Vec<u8>, Meta)>);

impl End for Giver {
    fn name(&self) -> &'static str {
        "giver"
    }
    fn offloads(&self) -> Offloads {
        Offloads::default()
    }
    fn receive(
        &mut self,
        most: usize,
        take: &mut dyn FnMut(&Frame<'_>) -> More,
    ) -> Result<usize, EndError> {
        for n in 0..most {
            let Some((bytes, meta)) = self.0.next() else {
                return if n > 0 {
                    Ok(n)
                } else {
                    Err(EndError::Finished)
                };
            };
            if lend(&bytes, meta, take) == More::No {
                return Ok(n + 1);
            }
        }
        Ok(most)
    }
    fn send(&mut self, _: &Frame<'_>) -> Result<Sent, EndError> {
        Ok(Sent::Refused)
    }
    fn sleeps(&mut self, _: Sleep) -> Result<bool, EndError> {
        Ok(false)
    }
    fn watch<'a>(&'a self, _: Sleep, _: &mut Vec<PollFd<'a>>) {}
    fn counts(&self) -> EndCounts {
        EndCounts::default()
    }
}

type Kept = std::sync::Arc<std::sync::Mutex<Vec<(Vec<u8>, Meta)>>>;

/// Keeps what it is sent, and has no room every third time.
#[derive(Debug)]
struct Keeper {
    kept: Kept,
    takes: Offloads,
    turn: u32,
}

impl End for Keeper {
    fn name(&self) -> &'static str {
        "keeper"
    }
    fn offloads(&self) -> Offloads {
        self.takes
    }
    fn receive(
        &mut self,
        _: usize,
        _: &mut dyn FnMut(&Frame<'_>) -> More,
    ) -> Result<usize, EndError> {
        Ok(0)
    }
    fn send(&mut self, frame: &Frame<'_>) -> Result<Sent, EndError> {
        self.turn += 1;
        if self.turn.is_multiple_of(3) {
            return Ok(Sent::Full(1));
        }
        if !self.takes.allow(frame.meta().gso) {
            return Ok(Sent::Refused);
        }
        let mut bytes = vec![0; frame.len()];
        frame.copy_out(0, &mut bytes);
        self.kept.lock().unwrap().push((bytes, frame.meta()));
        Ok(Sent::Queued)
    }
    fn sleeps(&mut self, _: Sleep) -> Result<bool, EndError> {
        Ok(false)
    }
    fn watch<'a>(&'a self, _: Sleep, _: &mut Vec<PollFd<'a>>) {}
    fn counts(&self) -> EndCounts {
        EndCounts::default()
    }
}

/// 40 streams of one large frame each, with a small one behind it, from an end to another; (what was kept, lost, cut).
fn large_frames_to(takes: Offloads, blank: bool) -> (Vec<(Vec<u8>, Meta)>, u64, u64) {
    let mut frames = Vec::new();
    for stream in 0..40_u16 {
        let recipe = Recipe {
            ipv6: stream % 2 == 1,
            ports: [stream, 5201],
            payload: 1448 * 40 + usize::from(stream),
            flags: 0x18,
            ..Recipe::default()
        };
        let meta = Meta {
            csum_blank: blank,
            ..recipe.gso(1448)
        };
        frames.push((recipe.bytes(), meta));
        let small = Recipe {
            sequence: 1000 + 1448 * 40 + u32::from(stream),
            payload: 10,
            ..recipe
        };
        frames.push((small.bytes(), Meta::default()));
    }
    let kept = Kept::default();
    let keeper = Keeper {
        kept: std::sync::Arc::clone(&kept),
        takes,
        turn: 0,
    };
    let giver = Box::new(Giver(frames.into_iter()));
    let mut join = Join::new(giver, Box::new(keeper), Terms::default()).unwrap();
    assert_eq!(join.run(&[]), Over::Ended(Side::A, EndError::Finished));
    let (lost, cut) = (join.lost()[0], join.segmented()[0]);
    drop(join);
    let kept = std::mem::take(&mut *kept.lock().unwrap());
    (kept, lost, cut)
}

#[test]
fn large_frames_are_cut_up_for_an_end_that_takes_none_and_stay_in_order() {
    let (kept, lost, cut) = large_frames_to(Offloads::default(), true);
    assert_eq!((lost, cut), (0, 40));
    let mut next = [1000_u32; 40];
    for (frame, meta) in &kept {
        assert!(frame.len() <= 14 + 60 + 40 + 1448);
        assert_eq!((meta.gso, meta.csum_blank), (None, false));
        let found = find(&frame[..frame.len().min(256)], frame.len()).unwrap();
        let four = |at: usize| u32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
        let stream = usize::from(frame[found.at]) << 8 | usize::from(frame[found.at + 1]);
        assert_eq!(four(found.at + 4), next[stream], "of stream {stream}");
        next[stream] += u32::try_from(found.end - found.payload).unwrap();
        if meta.data_validated {
            let covered = sum(&frame[found.at..found.end]) + u64::from(found.pseudo(frame));
            assert_eq!(fold(covered), 0xffff);
        }
    }
    for (stream, next) in (0..).zip(next) {
        assert_eq!(next, 1000 + 1448 * 40 + stream + 10);
    }
    // 40 segments each, one more of what is left over (which the first has not), and the small ones.
    assert_eq!(kept.len(), 40 * 40 + 39 + 40);
}

#[test]
fn what_an_end_takes_is_not_cut_and_what_cannot_be_cut_is_lost_and_counted() {
    let both = Offloads {
        gso4: true,
        gso6: true,
    };
    let (kept, lost, cut) = large_frames_to(both, true);
    assert_eq!((kept.len(), lost, cut), (80, 0, 0));
    let four = Offloads {
        gso4: true,
        gso6: false,
    };
    let (kept, lost, cut) = large_frames_to(four, true);
    assert_eq!((kept.len(), lost, cut), (40 + 20 + 20 * 41, 0, 20));
    // Without a blank checksum a new one would hide what is wrong with it.
    let (kept, lost, cut) = large_frames_to(Offloads::default(), false);
    assert_eq!((kept.len(), lost, cut), (40, 40, 0));
}

/// A peer that asks for segments of one byte keeps neither the other way nor a stop waiting.
#[test]
fn a_frame_of_very_many_segments_is_cut_a_few_at_a_time() {
    let recipe = Recipe {
        payload: 1500,
        ..Recipe::default()
    };
    let frames = vec![
        (recipe.bytes(), recipe.gso(1)),
        (recipe.bytes(), recipe.gso(1)),
    ];
    let kept = Kept::default();
    let keeper = Keeper {
        kept: std::sync::Arc::clone(&kept),
        takes: Offloads::default(),
        turn: 0,
    };
    let giver = Box::new(Giver(frames.into_iter()));
    let terms = Terms {
        burst: 8,
        ..Terms::default()
    };
    let mut join = Join::new(giver, Box::new(keeper), terms).unwrap();
    let mut before = 0;
    let over = loop {
        let step = join.step();
        let now = kept.lock().unwrap().len();
        assert!(now - before <= 16, "{} at once", now - before);
        before = now;
        if let Err(over) = step {
            break over;
        }
    };
    assert_eq!(over, Over::Ended(Side::A, EndError::Finished));
    assert_eq!((before, join.lost()), (3000, [0, 0]));
}

/// Puts a frame into room that is lent, if there is any, as a TAP device does with large ones.
#[derive(Debug)]
struct Placer(Giver);

impl End for Placer {
    fn name(&self) -> &'static str {
        "placer"
    }
    fn offloads(&self) -> Offloads {
        Offloads::default()
    }
    fn receive(
        &mut self,
        most: usize,
        take: &mut dyn FnMut(&Frame<'_>) -> More,
    ) -> Result<usize, EndError> {
        self.0.receive(most, take)
    }
    fn receive_for(&mut self, _: usize, taker: &mut dyn Taker) -> Result<usize, EndError> {
        let Some((bytes, meta)) = self.0.0.next() else {
            return Err(EndError::Finished);
        };
        let placed = taker.place(&mut |room| {
            room.copy_in(0, &bytes);
            Some((bytes.len(), meta))
        });
        if placed.is_none() {
            lend(&bytes, meta, &mut |frame| taker.take(frame));
        }
        Ok(1)
    }
    fn send(&mut self, _: &Frame<'_>) -> Result<Sent, EndError> {
        Ok(Sent::Refused)
    }
    fn sleeps(&mut self, _: Sleep) -> Result<bool, EndError> {
        Ok(false)
    }
    fn watch<'a>(&'a self, _: Sleep, _: &mut Vec<PollFd<'a>>) {}
    fn counts(&self) -> EndCounts {
        EndCounts::default()
    }
}

/// A link on which large frames were not agreed on lends room all the same: they must not go there as they are.
#[test]
fn what_is_put_into_lent_room_is_cut_up_too() {
    let name = format!("@memlane-join-cut-{}", std::process::id());
    let listener = Listener::bind(&name).unwrap();
    let terms = FrontTerms {
        offloads: Offloads::default(),
        ..FrontTerms::default()
    };
    let front = std::thread::spawn(move || connect(&name, &terms).unwrap());
    let limit = Duration::from_secs(30);
    let (_back, mut backs) = listener.accept(&BackTerms::default(), limit).unwrap();
    let (link, mut fronts) = front.join().unwrap();
    let recipe = Recipe {
        payload: 14_480,
        ..Recipe::default()
    };
    let frames = vec![(recipe.bytes(), recipe.gso(1448))];
    let placer = Placer(Giver(frames.into_iter()));
    let port = Port::new("front".into(), fronts.remove(0), &link);
    let mut join = Join::new(Box::new(placer), Box::new(port), Terms::default()).unwrap();
    assert_eq!(join.run(&[]), Over::Ended(Side::A, EndError::Finished));
    assert_eq!((join.lost()[0], join.segmented()[0]), (0, 1));
    let (mut came, mut payload) = (0, 0);
    while came < 10 {
        assert_eq!(backs[0].wait(Sleep::FOR_FRAMES, limit), Ok(true));
        let frames = backs[0].receive(32, |frame| {
            assert_eq!(frame.meta().gso, None);
            payload += frame.len() - 66;
        });
        came += frames.unwrap();
    }
    assert_eq!((came, payload), (10, 14_480));
}
