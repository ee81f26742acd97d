//! A queue whose one side follows a script, right for the most part and wrong here and there, against an oracle that
//! was written from docs/formats/netif.md alone: the other side lends exactly the frames that the document says lie
//! there, answers each of their slots, puts its own where the buffers are, or ends at exactly the word that is wrong.
//!
//! Scripts come out of seeds: `MEMLANE_SEED=n` runs one.

#![allow(clippy::cast_possible_truncation)] // random numbers, cut to size

use memlane_fixtures::frames::copied;
use memlane_fixtures::frames::frame;
use memlane_fixtures::random::Random;
use memlane_fixtures::script::{
    EXTRA, GRANTS, Image, LOG2, MORE, PAGES, Packet, SLOTS, TxOracle, Wrong, gso_of, meta_of, pick,
    write_packet, wrong,
};
use memlane_fixtures::world::World;
use memlane_packet::layout::PAGE;
use memlane_packet::{Meta, Mode, Sent};

fn new_world() -> World {
    let world = World::new(LOG2, GRANTS, 0);
    drop(world.front());
    world
}

fn regrant(image: &Image<'_>, random: &mut Random, odds: u64) {
    let gref = random.below(64) as u32;
    let write = gref >= 32;
    let flags = if write { 1 } else { 5 };
    // Buffers to be filled do not lie over each other, unless something is wrong.
    let frame = if write {
        gref - 32
    } else {
        random.below(32) as u32
    };
    let (mut flags, mut region, mut frame) = (flags, u16::from(write), frame);
    if wrong(random, odds) {
        match random.below(3) {
            0 => {
                flags = pick(
                    random,
                    &[0, 2, 3, 5, 1 | 1 << 12, 1 | 4 << 12, 1 | 5 << 12, 0xf001],
                )
            }
            1 => region = pick(random, &[0, 1, 2, 0xffff]),
            _ => frame = pick(random, &[31, 32, u32::MAX]),
        }
    }
    image.grant(gref, flags, region, frame);
}

/// One script, to its end or its first wrong word; (frames, did it end early?).
fn back_receives(seed: u64, mode: Mode) -> (usize, bool) {
    let world = new_world();
    let (image, mut back) = (Image(&world), world.back(mode, 8));
    let mut random = Random(seed * 2 + 1);
    let odds = pick(&mut random, &[400, 40, 8]);
    let mut oracle = TxOracle {
        taken: 0,
        seen: 0,
        shown: 0,
        answers: Vec::new(),
    };
    let (mut written, mut frames) = (0_u32, 0);
    for _ in 0..60 {
        match random.below(6) {
            0 => regrant(&image, &mut random, odds),
            1 => {
                let (at, word) = (random.below(32 * 4096 - 8), random.next());
                image.set_data(0, at as usize, &word.to_le_bytes());
            }
            2 | 3 if written.wrapping_sub(oracle.taken) < 12 => {
                written = written.wrapping_add(write_packet(&image, &mut random, written, odds));
                let mut shown = written;
                if wrong(&mut random, odds) {
                    {
                        let any = random.word();
                        shown = pick(
                            &mut random,
                            &[
                                written.wrapping_sub(1),
                                written.wrapping_add(1),
                                oracle.taken.wrapping_add(33),
                                any,
                            ],
                        );
                    }
                }
                image.set_requests(0, shown);
            }
            _ => {
                let most = 1 + random.below(5) as usize;
                oracle.begins(&image);
                let (mut expected, mut ends) = (Vec::new(), false);
                while expected.len() < most {
                    match oracle.next(&image) {
                        Ok(Some(packet)) => expected.push(packet),
                        Ok(None) => break,
                        Err(Wrong) => {
                            ends = true;
                            break;
                        }
                    }
                }
                let mut got = Vec::new();
                let burst = back.receive(most, |frame| got.push(copied(frame)));
                assert_eq!(
                    got.len(),
                    expected.len(),
                    "seed {seed}, {mode:?}: {burst:?}, ends: {ends}"
                );
                for (got, expected) in got.iter().zip(&expected) {
                    assert_eq!(got.1, expected.1, "seed {seed}, {mode:?}");
                    assert!(got.0 == expected.0, "seed {seed}, {mode:?}: other bytes");
                }
                frames += got.len();
                if ends {
                    let why = burst.expect_err("the oracle found something wrong");
                    assert!(why.is_hostile(), "seed {seed}, {mode:?}: {why}");
                    assert_eq!(back.receive(1, |_| panic!("it ended")), Err(why));
                    let lent: u64 = back.grants().iter().map(|counts| counts.in_use).sum();
                    assert_eq!(lent, 0, "seed {seed}, {mode:?}");
                    return (frames, true);
                }
                assert!(burst.is_ok(), "seed {seed}, {mode:?}: {burst:?}");
                oracle.ended(&image, got.len(), most);
            }
        }
    }
    (frames, false)
}

/// What became of a frame in the rx ring up to slot `to`, read as a front reads it; its bytes, unless the buffers lie
/// over each other.
fn delivered(image: &Image<'_>, asked: &[(u32, [u32; 2])], to: u32) -> (Option<Vec<u8>>, Meta) {
    let mut places: Vec<(usize, usize, usize)> = Vec::new();
    let (mut bytes, mut first, mut n) = (Vec::new(), None, 0);
    let (mut flags, mut gso) = (MORE, None);
    while flags & MORE != 0 {
        let (index, request) = asked[n];
        assert_ne!(index, to, "a packet of more slots than were answered");
        let [head, tail] = image.words::<2>(1, index);
        assert_eq!(
            head & 0xffff,
            request[0] & 0xffff,
            "the answer to another request"
        );
        flags = (tail & 0xffff) as u16;
        let (region, from, len) = image.granted(request[1], true).expect("a good grant");
        let (offset, size) = ((head >> 16) as usize, (tail >> 16) as usize);
        assert!(size > 0 && size <= 32767 && offset + size <= len);
        places.push((region, from, from + len));
        bytes.extend(image.data(region, from + offset, size));
        n += 1;
        if first.is_none() {
            first = Some(flags);
            if flags & EXTRA != 0 {
                gso = gso_of(image.words::<2>(1, asked[n].0)).expect("extra info");
                n += 1;
            }
        }
    }
    assert_eq!(
        asked[n - 1].0.wrapping_add(1),
        to,
        "slots that nobody asked for"
    );
    places.sort_unstable();
    let apart = places
        .windows(2)
        .all(|two| two[0].0 != two[1].0 || two[0].2 <= two[1].1);
    (apart.then_some(bytes), meta_of(1, first.unwrap_or(0), gso))
}

fn back_sends(seed: u64, mode: Mode) -> (usize, bool) {
    let world = new_world();
    let (image, mut back) = (Image(&world), world.back(mode, 8));
    let mut random = Random(seed * 2 + 1);
    let odds = pick(&mut random, &[400, 40, 8]);
    // Requests that were posted and not answered, and how many of them the back has seen.
    let mut posted: Vec<(u32, [u32; 2])> = Vec::new();
    let (mut next, mut shown, mut seen, mut done) = (0_u32, 0_u32, 0_u32, 0_u32);
    image.set_requests(1, 0);
    let mut frames = 0;
    for step in 0..60_u64 {
        match random.below(4) {
            0 => regrant(&image, &mut random, odds),
            1 | 2 => {
                // Each buffer is under way once: which are, the front knows.
                let free: Vec<u32> = (32..64)
                    .filter(|gref| posted.iter().all(|(_, p)| p[1] != *gref))
                    .collect();
                let room = SLOTS as usize - posted.len();
                for gref in free.into_iter().take(room.min(random.below(20) as usize)) {
                    let request = [
                        random.word() & 0xffff,
                        if wrong(&mut random, odds * 8) {
                            random.word()
                        } else {
                            gref
                        },
                    ];
                    image.put(1, next, &request);
                    posted.push((next, request));
                    next = next.wrapping_add(1);
                }
                shown = next;
                if wrong(&mut random, odds) {
                    {
                        let any = random.word();
                        shown = pick(
                            &mut random,
                            &[done.wrapping_add(33), next.wrapping_sub(40), any],
                        );
                    }
                }
                image.set_requests(1, shown);
            }
            _ => {
                let len = pick(&mut random, &[64, 14, 1500, 4097, 9000, 20000, 65535]);
                let (bytes, mut meta) = frame(step, len);
                if len < 15 {
                    meta.gso = None;
                }
                let sent = back.send(len, meta, |room| {
                    assert_eq!(room.copy_in(0, &bytes), len);
                });
                let extra = usize::from(meta.gso.is_some());
                // The oracle: as many buffers as it takes, in order; a wrong one ends it, too few are waited for.
                let fits = |seen: u32| -> Result<Option<usize>, Wrong> {
                    let known = seen.wrapping_sub(done) as usize;
                    let (mut left, mut n) = (len, 0);
                    while left > 0 {
                        if n >= known {
                            return Ok(None);
                        }
                        let gref = posted.get(n).map_or(0, |(_, p)| p[1]);
                        let (_, _, room) = image.granted(gref, true).ok_or(Wrong)?;
                        left -= left.min(room).min(32767);
                        n += if n == 0 { 1 + extra } else { 1 };
                    }
                    Ok((n <= known).then_some(n))
                };
                let mut expected = fits(seen);
                if expected == Ok(None) {
                    if shown.wrapping_sub(seen) > done.wrapping_add(SLOTS).wrapping_sub(seen) {
                        expected = Err(Wrong);
                    } else {
                        seen = shown;
                        // What was published and never written is somebody's older slot: not for this oracle.
                        if seen != next {
                            return (frames, false);
                        }
                        expected = fits(seen);
                    }
                }
                let label = format!("seed {seed}, {mode:?}, step {step}, {len} bytes");
                match expected {
                    Err(Wrong) => {
                        assert!(sent.expect_err(&label).is_hostile(), "{label}");
                        return (frames, true);
                    }
                    Ok(None) => assert!(matches!(sent, Ok(Sent::Full(_))), "{label}: {sent:?}"),
                    Ok(Some(slots)) => {
                        assert_eq!(sent, Ok(Sent::Queued), "{label}");
                        back.flush().expect("it lives");
                        done = done.wrapping_add(slots as u32);
                        assert_eq!(image.responses(1), done, "{label}");
                        let (there, said) = delivered(&image, &posted, done);
                        assert!(
                            there.is_none_or(|there| there == bytes),
                            "{label}: other bytes"
                        );
                        assert_eq!(said, meta, "{label}");
                        posted.drain(..slots);
                        frames += 1;
                    }
                }
            }
        }
    }
    (frames, false)
}

/// A front against a back that follows a script: both rings.
fn front_works(seed: u64) -> (usize, bool) {
    let world = World::new(LOG2, GRANTS, 0);
    let (mut front, image) = (world.front(), Image(&world));
    let mut random = Random(seed * 2 + 1);
    let odds = pick(&mut random, &[400, 40, 8]);
    let (mut frames, mut taken, mut put, mut shown) = (0, 0_u32, 0_u32, 0_u32);
    // Of the tx ring: ids that are away, extra slots, answers.
    let (mut away, mut extras, mut answered, mut asked) = (Vec::<u32>::new(), 0_u32, 0_u32, 0_u32);
    let mut tx_wrong = false;
    for step in 0..80_u64 {
        match random.below(6) {
            0 => {
                let len = pick(&mut random, &[64, 1500, 5000, 9000]);
                let (bytes, meta) = frame(step, len);
                let sent = front.send(len, meta, |room| {
                    room.copy_in(0, &bytes);
                });
                if sent != Ok(Sent::Queued) || tx_wrong {
                    continue;
                }
                let flushed = front.flush();
                assert!(flushed.is_ok(), "seed {seed}: {flushed:?}");
                // As a back would read it.
                let now = image.requests(0);
                let mut oracle = TxOracle {
                    taken: asked,
                    seen: now,
                    shown: asked,
                    answers: Vec::new(),
                };
                let packet = oracle
                    .next(&image)
                    .expect("an honest front")
                    .expect("a packet");
                assert!(
                    packet == (bytes, meta),
                    "seed {seed}: what was sent is not what is there"
                );
                assert_eq!(oracle.taken, now, "seed {seed}");
                for (_, word) in oracle.answers {
                    if word == 1 << 16 {
                        extras += 1
                    } else {
                        away.push(word)
                    }
                }
                asked = now;
            }
            1 if answered != asked && !tx_wrong => {
                // Answers in any order, but one for each.
                let mut word = match away.pop() {
                    Some(id) => {
                        id | u32::from(pick(&mut random, &[0_u16, 0, 0xffff, 0xfffe])) << 16
                    }
                    None => {
                        extras -= 1;
                        1 << 16
                    }
                };
                if wrong(&mut random, odds) {
                    let any = random.word();
                    word = pick(&mut random, &[40, 1 << 16 | 3, any]);
                    tx_wrong = true;
                }
                image.put(0, answered, &[word]);
                answered = answered.wrapping_add(1);
                image.set_responses(0, answered);
                if tx_wrong {
                    // Which of them it is depends on what is away; that it is refused if it is none, here.
                    let id = word & 0xffff;
                    let good = match word >> 16 {
                        1 => extras > 0,
                        _ => away.contains(&id),
                    };
                    let flushed = front.flush();
                    if !good {
                        assert!(flushed.is_err(), "seed {seed}: {word:#x} was not asked");
                    }
                    return (frames, !good);
                }
            }
            2 | 3 if put.wrapping_sub(taken) < 10 => put = answer(&image, &mut random, put, odds),
            _ => {
                if put != shown {
                    shown = put;
                    if wrong(&mut random, odds) {
                        {
                            let any = random.word();
                            shown = pick(
                                &mut random,
                                &[taken.wrapping_add(33), put.wrapping_sub(1), any],
                            );
                        }
                    }
                    image.set_responses(1, shown);
                    if shown != put {
                        // All of what is seen is honest up to here, or it is out of range: the ring's own tests have that.
                        let outside = shown.wrapping_sub(taken) > SLOTS;
                        let received = front.receive(64, |_| ());
                        if outside {
                            assert!(received.is_err(), "seed {seed}: index {shown}");
                        }
                        return (frames, outside);
                    }
                }
                let (mut expected, mut ends) = (Vec::new(), false);
                let from = taken;
                while taken != shown {
                    match next_response(&image, &mut taken, shown) {
                        Ok(packet) => expected.extend(packet),
                        Err(Wrong) => {
                            ends = true;
                            break;
                        }
                    }
                }
                let mut got = Vec::new();
                let received = front.receive(64, |frame| got.push(copied(frame)));
                assert_eq!(
                    got.len(),
                    expected.len(),
                    "seed {seed}: {received:?}, ends: {ends}"
                );
                assert!(got == expected, "seed {seed}: other frames");
                frames += got.len();
                assert_eq!(received.is_err(), ends, "seed {seed}: {received:?}");
                if let Err(why) = received {
                    assert!(why.is_hostile(), "seed {seed}: {why}");
                    return (frames, true);
                }
                // Each buffer is posted again, by its own reference.
                assert_eq!(image.requests(1), taken.wrapping_add(SLOTS), "seed {seed}");
                let mut ids: Vec<u32> = (0..SLOTS)
                    .map(|n| {
                        let [id, gref] = image.words::<2>(1, taken.wrapping_add(n));
                        assert_eq!(gref, SLOTS + id, "seed {seed}, from {from}");
                        id
                    })
                    .collect();
                ids.sort_unstable();
                assert!(
                    ids.into_iter().eq(0..SLOTS),
                    "seed {seed}: a buffer is posted twice, or lost"
                );
            }
        }
    }
    (frames, false)
}

/// A back's answers to the next requests of the rx ring; where the next ones go.
fn answer(image: &Image<'_>, random: &mut Random, at: u32, odds: u64) -> u32 {
    let count = pick(random, &[1, 1, 1, 2, 3]);
    let extra = wrong(random, 4);
    let mut slot = at;
    for n in 0..count {
        let [mut id, _] = image.words::<2>(1, slot);
        image.set_data(
            1,
            (id % PAGES) as usize * PAGE,
            &random.next().to_le_bytes(),
        );
        let mut flags = if n + 1 < count { MORE } else { 0 };
        if n == 0 {
            flags |= if extra { EXTRA } else { 0 } | random.below(4) as u16;
        }
        let (mut offset, mut status) = (
            pick(random, &[0, 0, 64]),
            pick(random, &[64, 1500, 4000, 14]),
        );
        if wrong(random, odds) {
            match random.below(4) {
                0 => id = pick(random, &[0, 31, 32, 0xffff]),
                1 => offset = pick(random, &[4090, 0xffff]),
                2 => status = pick(random, &[0, 4097, 1, 0x7fff, 0xffff, 0xfffe]),
                _ => flags ^= pick(random, &[MORE, EXTRA]),
            }
        }
        image.put(
            1,
            slot,
            &[id & 0xffff | offset << 16, u32::from(flags) | status << 16],
        );
        slot = slot.wrapping_add(1);
        if n == 0 && extra {
            let kind = if wrong(random, odds) { 3 } else { 1 };
            image.put(1, slot, &[kind | 1448 << 16, 1 + random.below(2) as u32]);
            slot = slot.wrapping_add(1);
        }
    }
    slot
}

/// What a front must see; `None`: the back could not use that buffer.
fn next_response(image: &Image<'_>, taken: &mut u32, shown: u32) -> Result<Option<Packet>, Wrong> {
    let (mut bytes, mut first, mut gso, mut parts) = (Vec::new(), None, None, 0);
    loop {
        (*taken != shown && parts < 18).then_some(()).ok_or(Wrong)?;
        let (index, [head, tail]) = (*taken, image.words::<2>(1, *taken));
        *taken = taken.wrapping_add(1);
        // A buffer keeps its slot as long as each frame takes whole ones: they come round in order.
        let (id, offset) = (head & 0xffff, (head >> 16) as usize);
        (id == posted_at(index)).then_some(()).ok_or(Wrong)?;
        let (flags, status) = ((tail & 0xffff) as u16, ((tail >> 16) as u16).cast_signed());
        if status < 0 && first.is_none() {
            return Ok(None);
        }
        let size = usize::try_from(status).map_err(|_| Wrong)?;
        (size > 0 && offset + size <= PAGE)
            .then_some(())
            .ok_or(Wrong)?;
        bytes.extend(image.data(1, id as usize * PAGE + offset, size));
        parts += 1;
        if first.is_none() {
            first = Some(flags);
            if flags & EXTRA != 0 {
                (*taken != shown).then_some(()).ok_or(Wrong)?;
                gso = gso_of(image.words::<2>(1, *taken))?;
                *taken = taken.wrapping_add(1);
            }
        }
        if flags & MORE == 0 {
            (bytes.len() >= 14).then_some(()).ok_or(Wrong)?;
            return Ok(Some((bytes, meta_of(1, first.unwrap_or(0), gso))));
        }
    }
}

/// The buffer of a slot: they are posted in order and come back in order.
fn posted_at(index: u32) -> u32 {
    index % SLOTS
}

fn seeds(count: u64) -> std::ops::Range<u64> {
    let one = std::env::var("MEMLANE_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    one.map_or(0..count, |seed| seed..seed + 1)
}

/// Both kinds of scripts are among them: such as end early, and such as do not.
fn both(label: &str, outcomes: &[(usize, bool)]) {
    let frames: usize = outcomes.iter().map(|(frames, _)| frames).sum();
    let ended = outcomes.iter().filter(|(_, ended)| *ended).count();
    println!(
        "{label}: {} scripts, {frames} frames, {ended} ended",
        outcomes.len()
    );
    if outcomes.len() > 100 {
        assert!(
            frames > outcomes.len()
                && ended > outcomes.len() / 10
                && ended < outcomes.len() * 9 / 10
        );
    }
}

#[test]
fn a_back_lends_what_lies_in_the_ring_and_nothing_else() {
    for mode in Mode::ALL {
        let outcomes: Vec<_> = seeds(200).map(|seed| back_receives(seed, mode)).collect();
        both(&format!("{mode:?}"), &outcomes);
    }
}

#[test]
fn a_back_puts_frames_where_the_buffers_are_and_nowhere_else() {
    for mode in Mode::ALL {
        let outcomes: Vec<_> = seeds(200).map(|seed| back_sends(seed, mode)).collect();
        both(&format!("{mode:?}"), &outcomes);
    }
}

#[test]
fn a_front_lends_what_lies_in_its_buffers_and_posts_each_again() {
    let outcomes: Vec<_> = seeds(400).map(front_works).collect();
    both("front", &outcomes);
}
