//! A queue's memory, read and written by docs/formats/netif.md alone, without the lane's engines; and a back that follows
//! a script, as an oracle.
#![allow(clippy::cast_possible_truncation)]
// random numbers, cut to size
// The document defines what these names mean, and a wrong call panics.
#![allow(missing_docs, clippy::missing_panics_doc, clippy::missing_errors_doc)]

use crate::random::Random;
use crate::world::World;
use memlane_packet::layout::{PAGE, RING_HEADER};
use memlane_packet::{Gso, GsoKind, Meta};
use memlane_sys::fd::{read_at, write_at};

pub const LOG2: u8 = 5;
pub const SLOTS: u32 = 32;
pub const GRANTS: u32 = 80;
pub const PAGES: u32 = 32;

pub const BLANK: [u16; 2] = [1, 2];
pub const VALID: [u16; 2] = [2, 1];
pub const MORE: u16 = 4;
pub const EXTRA: u16 = 8;

/// The control memory by its file, and the data by its windows: nothing of the engines is used here.
pub struct Image<'a>(pub &'a World);

/// What the other side wrote breaks the document.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wrong;

/// 0 tx, 1 rx.
pub type Which = usize;

impl Image<'_> {
    pub fn fd(&self) -> i32 {
        self.0.memory.control().fd().expect("ours")
    }

    pub fn get(&self, at: usize) -> u32 {
        let mut word = [0; 4];
        assert_eq!(read_at(self.fd(), &mut word, at as u64), Ok(4));
        u32::from_le_bytes(word)
    }

    pub fn set(&self, at: usize, word: u32) {
        assert_eq!(write_at(self.fd(), &word.to_le_bytes(), at as u64), Ok(4));
    }

    pub fn ring(&self, ring: Which) -> usize {
        let layout = self.0.memory.layout();
        [layout.tx_at, layout.rx_at][ring]
    }

    pub fn slot(&self, ring: Which, index: u32) -> usize {
        self.ring(ring) + RING_HEADER + (index % SLOTS) as usize * [12, 8][ring]
    }

    pub fn put(&self, ring: Which, index: u32, words: &[u32]) {
        for (n, word) in words.iter().enumerate() {
            self.set(self.slot(ring, index) + n * 4, *word);
        }
    }

    pub fn words<const N: usize>(&self, ring: Which, index: u32) -> [u32; N] {
        std::array::from_fn(|n| self.get(self.slot(ring, index) + n * 4))
    }

    pub fn requests(&self, ring: Which) -> u32 {
        self.get(self.ring(ring))
    }

    pub fn responses(&self, ring: Which) -> u32 {
        self.get(self.ring(ring) + 8)
    }

    pub fn set_requests(&self, ring: Which, to: u32) {
        self.set(self.ring(ring), to);
    }

    pub fn set_responses(&self, ring: Which, to: u32) {
        self.set(self.ring(ring) + 8, to);
    }

    pub fn grant(&self, gref: u32, flags: u16, region: u16, frame: u32) {
        self.set(
            gref as usize * 8,
            u32::from(flags) | u32::from(region) << 16,
        );
        self.set(gref as usize * 8 + 4, frame);
    }

    pub fn region(&self, region: usize) -> memlane_core::access::SharedBytes {
        [&self.0.tx, &self.0.rx][region].bytes()
    }

    pub fn data(&self, region: usize, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let window = self.region(region).part(at, len).expect("inside");
        // SAFETY: `bytes` has as many, and the region lives.
        unsafe { window.copy_out(0, bytes.as_mut_ptr(), len) };
        bytes
    }

    pub fn set_data(&self, region: usize, at: usize, bytes: &[u8]) {
        let window = self.region(region).part(at, bytes.len()).expect("inside");
        // SAFETY: as above.
        unsafe { window.copy_in(0, bytes.as_ptr(), bytes.len()) };
    }

    /// What a grant names, by the document: (region, first byte, bytes).
    pub fn granted(&self, gref: u32, write: bool) -> Option<(usize, usize, usize)> {
        if gref >= GRANTS {
            return None;
        }
        let head = self.get(gref as usize * 8);
        let (flags, region) = (head & 0xffff, head >> 16);
        let (order, frame) = (flags >> 12, self.get(gref as usize * 8 + 4));
        let permitted = flags & 3 == 1 && !(write && flags & 4 != 0);
        // Region 0 is sealed against writing.
        let there = region < 2 && !(write && region == 0) && order <= 4;
        let inside = u64::from(frame) + (1 << order.min(4)) <= u64::from(PAGES);
        (permitted && there && inside).then_some((
            region as usize,
            frame as usize * PAGE,
            PAGE << order,
        ))
    }
}

pub fn gso_of(words: [u32; 2]) -> Result<Option<Gso>, Wrong> {
    let (kind, more, size, gso) = (
        words[0] & 0xff,
        words[0] >> 8 & 1,
        words[0] >> 16,
        words[1] & 0xff,
    );
    if kind != 1 || more != 0 {
        return Err(Wrong);
    }
    let kind = match gso {
        0 => return Ok(None),
        1 => GsoKind::Tcp4,
        2 => GsoKind::Tcp6,
        _ => return Err(Wrong),
    };
    match size as u16 {
        0 => Err(Wrong),
        size => Ok(Some(Gso { kind, size })),
    }
}

pub fn meta_of(ring: Which, flags: u16, gso: Option<Gso>) -> Meta {
    Meta {
        csum_blank: flags & BLANK[ring] != 0,
        data_validated: flags & VALID[ring] != 0,
        gso,
    }
}

pub type Packet = (Vec<u8>, Meta);

/// What a back must see in the tx ring: one packet after another, with the answers to their slots; `Err` where it ends.
pub struct TxOracle {
    pub taken: u32,
    pub seen: u32,
    /// Answers that the front was shown, ever.
    pub shown: u32,
    /// Answers: slots and their first words.
    pub answers: Vec<(u32, u32)>,
}

impl TxOracle {
    /// Before a burst: whatever is found in the index of responses afterwards was not there before.
    pub fn begins(&mut self, image: &Image<'_>) {
        self.answers.clear();
        image.set_responses(0, self.taken.wrapping_sub(1000));
    }

    /// After a burst of `most` at most, in which `got` came: who got fewer has answered all of them; who may come again
    /// can leave that for later, but never a part of it.
    pub fn ended(&mut self, image: &Image<'_>, got: usize, most: usize) {
        let settled = image.responses(0) == self.taken;
        if got < most {
            // What was answered before is not told again.
            assert!(settled || self.shown == self.taken, "answers are kept back");
        }
        if settled {
            self.shown = self.taken;
            for (index, word) in self.answers.drain(..) {
                assert_eq!(image.words::<1>(0, index), [word], "slot {index}");
            }
        } else {
            image.set_responses(0, self.shown);
        }
    }

    pub fn next(&mut self, image: &Image<'_>) -> Result<Option<Packet>, Wrong> {
        if self.seen == self.taken {
            let index = image.requests(0);
            // As many as there are slots without an answer that was shown.
            let end = self.shown.wrapping_add(SLOTS);
            (index.wrapping_sub(self.seen) <= end.wrapping_sub(self.seen))
                .then_some(())
                .ok_or(Wrong)?;
            self.seen = index;
        }
        let ready = self.seen.wrapping_sub(self.taken);
        if ready == 0 {
            return Ok(None);
        }
        let [_, pair, last] = image.words::<3>(0, self.taken);
        let (flags, total) = ((pair >> 16) as u16, last >> 16);
        let (mut at, mut gso, mut slots) = (1, None, vec![0]);
        if flags & EXTRA != 0 {
            (ready > 1).then_some(()).ok_or(Wrong)?;
            gso = gso_of(image.words::<2>(0, self.taken.wrapping_add(1)))?;
            at = 2;
        }
        let mut goes_on = flags & MORE != 0;
        while goes_on {
            (at < ready && slots.len() < 18)
                .then_some(())
                .ok_or(Wrong)?;
            let [_, pair, _] = image.words::<3>(0, self.taken.wrapping_add(at));
            goes_on = (pair >> 16) as u16 & MORE != 0;
            slots.push(at);
            at += 1;
        }
        let mut sizes: Vec<u32> = slots[1..]
            .iter()
            .map(|slot| image.words::<3>(0, self.taken.wrapping_add(*slot))[2] >> 16)
            .collect();
        let rest: u32 = sizes.iter().sum();
        (total >= 14 && rest < total && !sizes.contains(&0))
            .then_some(())
            .ok_or(Wrong)?;
        sizes.insert(0, total - rest);
        let mut bytes = Vec::new();
        for (slot, size) in slots.iter().zip(sizes) {
            let [gref, pair, _] = image.words::<3>(0, self.taken.wrapping_add(*slot));
            let (region, from, len) = image.granted(gref, false).ok_or(Wrong)?;
            let (offset, size) = ((pair & 0xffff) as usize, size as usize);
            (offset + size <= len).then_some(()).ok_or(Wrong)?;
            bytes.extend(image.data(region, from + offset, size));
        }
        for n in 0..at {
            let index = self.taken.wrapping_add(n);
            let extra = flags & EXTRA != 0 && n == 1;
            let id = image.words::<3>(0, index)[2] & 0xffff;
            self.answers.push((index, if extra { 1 << 16 } else { id }));
        }
        self.taken = self.taken.wrapping_add(at);
        Ok(Some((bytes, meta_of(0, flags, gso))))
    }
}

/// One of these, most often the first ones.
pub fn pick<T: Copy>(random: &mut Random, of: &[T]) -> T {
    let (a, b) = (random.below(of.len() as u64), random.below(of.len() as u64));
    of[a.min(b) as usize]
}

pub fn wrong(random: &mut Random, odds: u64) -> bool {
    random.below(odds) == 0
}

/// Puts a packet into the tx ring from `at` on; how many slots.
pub fn write_packet(image: &Image<'_>, random: &mut Random, at: u32, odds: u64) -> u32 {
    let count = pick(random, &[1, 1, 1, 2, 3, 7, 17]);
    let sizes: Vec<u32> = (0..count)
        .map(|_| pick(random, &[64, 14, 1500, 4096, 1, 2048]))
        .collect();
    let total: u32 = sizes.iter().sum::<u32>().clamp(14, 65535);
    let extra = wrong(random, 4);
    let mut slot = at;
    for (n, size) in sizes.iter().enumerate() {
        let mut flags = if n + 1 < count { MORE } else { 0 };
        let mut size = *size;
        if n == 0 {
            flags |= if extra { EXTRA } else { 0 } | random.below(4) as u16;
            size = total;
        }
        let mut gref = random.below(32) as u32;
        let mut offset = if size + 64 <= 4096 || n == 0 {
            pick(random, &[0, 0, 64])
        } else {
            0
        };
        if wrong(random, odds) {
            match random.below(4) {
                0 => gref = random.below(u64::from(GRANTS) + 3) as u32,
                1 => offset = pick(random, &[4000, 4096, 0xffff]),
                2 => size = pick(random, &[13, 0, 4097, 0xffff]),
                _ => flags ^= pick(random, &[MORE, EXTRA, 0x40]),
            }
        }
        let id = random.word() & 0xffff;
        image.put(
            0,
            slot,
            &[gref, offset | u32::from(flags) << 16, id | size << 16],
        );
        slot = slot.wrapping_add(1);
        if n == 0 && extra {
            let [mut kind, mut gso, mut size] = [1, 1 + random.below(2) as u32, 1448];
            if wrong(random, odds) {
                (kind, gso, size) = (
                    pick(random, &[1, 2, 0x101]),
                    pick(random, &[0, 3, 1]),
                    pick(random, &[0, 1, 0xffff]),
                );
            }
            image.put(0, slot, &[kind | size << 16, gso]);
            slot = slot.wrapping_add(1);
        }
    }
    slot.wrapping_sub(at)
}
