//! What decides about a queue's two rings, at either end: which slots are whose, what may be believed of the other's
//! index and descriptors. No descriptors of files, no clock.
//!
//! Head is the client's and tail the server's, in both rings: from client to server (S2M), slots from tail to head are
//! full; from server to client (M2S), they are empty buffers that wait.

use super::layout::{Desc, MASK_INT, Memory, NEXT, RingMemory};
use memlane_core::access::SharedBytes;
use memlane_core::sync::{Cpu, Words};
use memlane_packet::Meta;
use memlane_packet::engine::chain::{Frame, Room};
use memlane_packet::error::Detach;
use memlane_packet::layout::PACKET_MAX;
use memlane_packet::port::{More, Sent};
use memlane_packet::ring::Misbehaved;

/// Shorter than an Ethernet header: no frame.
pub const FRAME_MIN: usize = 14;

/// The client's buffers of a ring: one for each slot, for good.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Buffers {
    /// The region.
    pub region: u16,
    /// The first byte of the first.
    pub offset: u32,
    /// From one to the next.
    pub stride: u32,
    /// Bytes of each.
    pub len: u32,
}

impl Buffers {
    #[inline]
    fn desc(&self, slot: u16, length: u32, flags: u16) -> Desc {
        Desc {
            flags,
            region: self.region,
            length,
            offset: self.offset + u32::from(slot) * self.stride,
            metadata: 0,
        }
    }

    /// Does the last of this many buffers lie in the memory?
    fn fit(&self, memory: &Memory, slots: u16) -> bool {
        let end = u64::from(self.offset)
            + u64::from(self.stride) * u64::from(slots - 1)
            + u64::from(self.len);
        self.len > 0
            && self.stride >= self.len
            && u32::try_from(end).is_ok()
            && memory
                .window(self.region, self.desc(slots - 1, 0, 0).offset, self.len)
                .is_some()
    }
}

/// Plain numbers of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Frames that came, and their bytes.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Frames that went.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Frames that found no room.
    pub full: u64,
    /// Frames that came and were none: shorter than an Ethernet header.
    pub failed: u64,
    /// Frames that were to go and never can.
    pub refused: u64,
    /// Times that the other side was rung for.
    pub doorbells: u64,
    /// Times that something was shown and no doorbell was needed: the other side was awake.
    pub quiet: u64,
}

/// How far the other side's index is from `from`: at most `most`.
#[inline]
fn distance(ring: &RingMemory, index: u16, from: u16, most: u16) -> Result<u16, Detach> {
    let far = index.wrapping_sub(from);
    if far <= most {
        return Ok(far);
    }
    let wrong = Misbehaved {
        index: index.into(),
        from: from.into(),
        to: from.wrapping_add(most).into(),
    };
    Err(Detach::Index(ring.direction(), wrong))
}

fn slot(ring: &RingMemory, what: &'static str) -> Detach {
    Detach::Slot(ring.direction(), what)
}

/// A ring that frames are taken from.
#[derive(Debug)]
pub struct Rx {
    ring: RingMemory,
    /// The client's own buffers; at a server, `None`: the descriptors say where frames lie.
    own: Option<Buffers>,
    /// The next slot to look at. At a server it is the tail, once it is shown; at a client what lies a ring's size
    /// further is the head.
    next: u16,
    /// Slots from `next` on that begin a frame whose end is not there yet: no news until there are more.
    half: u16,
    /// We asked for a doorbell.
    asked: bool,
    parts: Vec<SharedBytes>,
}

const INCOMPLETE: &str = "a frame that fills the ring and is not whole";

impl Rx {
    /// `None`: the buffers do not lie in the memory. At a client, `start` comes after the server has connected.
    pub fn new(ring: RingMemory, own: Option<Buffers>) -> Option<Rx> {
        if let Some(own) = own
            && !own.fit(ring.memory(), ring.size())
        {
            return None;
        }
        Some(Rx {
            ring,
            own,
            next: 0,
            half: 0,
            asked: false,
            parts: Vec::new(),
        })
    }

    /// Begins, without doorbells: a client posts all its buffers.
    pub fn start(&mut self) {
        self.ring.set_flags(MASK_INT);
        let Some(own) = self.own else {
            self.ring.set_tail(0);
            return;
        };
        for slot in 0..self.ring.size() {
            self.ring.store(slot, own.desc(slot, own.len, 0));
        }
        self.ring.set_head(self.ring.size());
    }

    /// Slots that have something.
    #[inline]
    fn filled(&self) -> Result<u16, Detach> {
        let theirs = match self.own {
            Some(_) => self.ring.tail(),
            None => self.ring.head(),
        };
        distance(&self.ring, theirs, self.next, self.ring.size())
    }

    /// Lends up to `most` frames to `take`, until that wants no more; how many.
    ///
    /// # Errors
    /// What the other side did that it must not. Frames before that have been lent.
    #[inline]
    pub fn receive(
        &mut self,
        most: usize,
        counts: &mut Counts,
        mut take: impl FnMut(&Frame<'_>) -> More,
    ) -> Result<usize, Detach> {
        let mut left = self.filled()?;
        let (mut frames, mut looked) = (0, 0);
        self.half = 0;
        while left > 0 && looked < most {
            let Some((slots, len)) = self.gather(left)? else {
                self.half = left;
                break;
            };
            left -= slots;
            looked += 1;
            let mut more = More::Yes;
            if len < FRAME_MIN {
                counts.failed += 1;
            } else {
                frames += 1;
                counts.received += 1;
                counts.received_bytes += len as u64;
                more = take(&Frame::new(&self.parts, len, Meta::default()));
            }
            self.give_back(slots);
            if more == More::No {
                break;
            }
        }
        if looked > 0 {
            self.publish();
        }
        Ok(frames)
    }

    /// The parts of the next frame; of how many slots and bytes. `None`: its end is not there yet.
    #[inline]
    fn gather(&mut self, left: u16) -> Result<Option<(u16, usize)>, Detach> {
        self.parts.clear();
        let (mut slots, mut len) = (0, 0);
        loop {
            let index = self.next.wrapping_add(slots);
            let desc = self.ring.load(index);
            let part = self.part(index, desc)?;
            self.parts.push(part);
            slots += 1;
            len += part.len();
            if len > PACKET_MAX {
                return Err(slot(&self.ring, "a frame of more than 65535 bytes"));
            }
            if desc.flags & NEXT == 0 {
                return Ok(Some((slots, len)));
            }
            if slots == left {
                // Nobody shows half a frame, but nobody forbids it: wait, unless there will never be more.
                return match slots == self.ring.size() {
                    true => Err(slot(&self.ring, INCOMPLETE)),
                    false => Ok(None),
                };
            }
        }
    }

    /// What a descriptor names, which must be a private copy.
    #[inline]
    fn part(&self, index: u16, desc: Desc) -> Result<SharedBytes, Detach> {
        let place = match self.own {
            // Where our buffers lie is ours to know.
            Some(own) if desc.length <= own.len => {
                let slot = index & (self.ring.size() - 1);
                own.desc(slot, desc.length, 0)
            }
            Some(_) => return Err(slot(&self.ring, "more bytes than the buffer has")),
            None => desc,
        };
        if place.length == 0 {
            return Err(slot(&self.ring, "a buffer of no bytes"));
        }
        let window = self
            .ring
            .memory()
            .window(place.region, place.offset, place.length);
        window.ok_or_else(|| slot(&self.ring, "a buffer that does not lie in a region"))
    }

    /// Releases this many slots.
    #[inline]
    fn give_back(&mut self, slots: u16) {
        for n in 0..slots {
            let index = self.next.wrapping_add(n);
            match self.own {
                Some(own) => {
                    let slot = index & (self.ring.size() - 1);
                    self.ring.store(index, own.desc(slot, own.len, 0));
                }
                // DPDK's client sets NEXT and never takes it back: a short frame that comes to lie there later would
                // swallow the one behind it (drivers/net/memif/rte_eth_memif.c, eth_memif_tx).
                None if slots > 1 => {
                    let desc = self.ring.load(index);
                    let flags = desc.flags & !NEXT;
                    self.ring.store_first(index, Desc { flags, ..desc });
                }
                None => {}
            }
        }
        self.next = self.next.wrapping_add(slots);
    }

    #[inline]
    fn publish(&mut self) {
        match self.own {
            Some(_) => self.ring.set_head(self.next.wrapping_add(self.ring.size())),
            None => self.ring.set_tail(self.next),
        }
        if self.asked {
            self.asked = false;
            self.ring.set_flags(MASK_INT);
        }
    }

    /// Is there something that was not looked at?
    ///
    /// # Errors
    /// The other side's index cannot be.
    pub fn is_ready(&self) -> Result<bool, Detach> {
        Ok(self.filled()? > self.half)
    }

    /// Asks for a doorbell, and looks again: is there nothing? The second value: it was asked for only now.
    ///
    /// # Errors
    /// The other side's index cannot be.
    pub fn sleeps(&mut self) -> Result<(bool, bool), Detach> {
        let now = !self.asked;
        if now {
            self.asked = true;
            self.ring.set_flags(0);
            // Our wish before their index: they write that before they look for the wish.
            Cpu::full_fence();
        }
        Ok((!self.is_ready()?, now))
    }
}

/// A ring that frames are put into.
#[derive(Debug)]
pub struct Tx {
    ring: RingMemory,
    /// As in [`Rx`].
    own: Option<Buffers>,
    /// The next slot to fill; head of a client, tail of a server, once it is shown.
    next: u16,
    shown: u16,
    /// Slots from `next` on that are known to be free.
    free: u16,
    /// The other side's index, as last seen.
    seen: u16,
    parts: Vec<SharedBytes>,
    /// What the slots of the frame at hand said.
    descs: Vec<Desc>,
}

impl Tx {
    /// `None`: the buffers do not lie in the memory.
    pub fn new(ring: RingMemory, own: Option<Buffers>) -> Option<Tx> {
        if let Some(own) = own
            && !own.fit(ring.memory(), ring.size())
        {
            return None;
        }
        Some(Tx {
            free: if own.is_some() { ring.size() } else { 0 },
            ring,
            own,
            next: 0,
            shown: 0,
            seen: 0,
            parts: Vec::new(),
            descs: Vec::new(),
        })
    }

    /// Begins.
    pub fn start(&mut self) {
        match self.own {
            Some(own) => {
                for slot in 0..self.ring.size() {
                    self.ring.store(slot, own.desc(slot, own.len, 0));
                }
                self.ring.set_head(0);
            }
            None => self.ring.set_tail(0),
        }
    }

    /// Looks at the other side's index.
    #[inline]
    fn look(&mut self) -> Result<(), Detach> {
        let size = self.ring.size();
        let (theirs, far) = if self.own.is_some() {
            // The tail moves from where it was to the head at most.
            let tail = self.ring.tail();
            let under_way = self.shown.wrapping_sub(self.seen);
            (tail, distance(&self.ring, tail, self.seen, under_way)?)
        } else {
            // The head is not behind what it was, and at most a ring's size ahead of our tail.
            let head = self.ring.head();
            let most = self.shown.wrapping_add(size).wrapping_sub(self.seen);
            (head, distance(&self.ring, head, self.seen, most)?)
        };
        self.seen = theirs;
        self.free += far;
        Ok(())
    }

    /// Has `fill` write a frame in its place.
    ///
    /// # Errors
    /// What the other side did that it must not.
    #[inline]
    pub fn send(
        &mut self,
        len: usize,
        counts: &mut Counts,
        fill: impl FnOnce(&Room<'_>),
    ) -> Result<Sent, Detach> {
        if !(FRAME_MIN..=PACKET_MAX).contains(&len) {
            return Ok(Sent::Refused);
        }
        let mut room = self.room(len)?;
        if room.is_none() {
            self.look()?;
            room = self.room(len)?;
        }
        let Some(slots) = room else {
            counts.full += 1;
            return Ok(self.full(len));
        };
        fill(&Room::new(&self.parts, len));
        for n in 0..slots {
            let at = usize::from(n);
            let desc = Desc {
                flags: if n + 1 < slots { NEXT } else { 0 },
                // A part is no longer than a frame.
                length: u32::try_from(self.parts[at].len()).unwrap_or(0),
                ..self.descs[at]
            };
            let index = self.next.wrapping_add(n);
            match self.own {
                Some(_) => self.ring.store(index, desc),
                // Where the client's buffer lies is the client's to say.
                None => self.ring.store_first(index, desc),
            }
        }
        self.next = self.next.wrapping_add(slots);
        self.free -= slots;
        counts.sent += 1;
        counts.sent_bytes += len as u64;
        Ok(Sent::Queued)
    }

    /// Finds the parts that `len` bytes take, of what is free; how many slots.
    #[inline]
    fn room(&mut self, len: usize) -> Result<Option<u16>, Detach> {
        self.parts.clear();
        self.descs.clear();
        let mut left = len;
        for n in 0..self.free {
            let index = self.next.wrapping_add(n);
            let desc = match self.own {
                Some(own) => {
                    let slot = index & (self.ring.size() - 1);
                    own.desc(slot, own.len, 0)
                }
                None => self.ring.load(index),
            };
            if desc.length == 0 {
                return Err(slot(&self.ring, "a buffer of no bytes"));
            }
            let take = left.min(desc.length as usize);
            // All of it must lie inside, not only what we need: else a client finds out about its mistake late.
            let window = self
                .ring
                .memory()
                .window(desc.region, desc.offset, desc.length)
                .and_then(|window| window.part(0, take));
            let Some(part) = window else {
                return Err(slot(&self.ring, "a buffer that does not lie in a region"));
            };
            self.parts.push(part);
            self.descs.push(desc);
            left -= take;
            if left == 0 {
                return Ok(Some(n + 1));
            }
        }
        Ok(None)
    }

    /// How many slots a frame will take that found no room: at a server by what the buffers had that were there.
    fn full(&self, len: usize) -> Sent {
        let each = match (self.own, self.descs.iter().map(|desc| desc.length).min()) {
            (Some(own), _) => own.len,
            (None, Some(least)) => least,
            (None, None) => 2048,
        };
        let slots = len.div_ceil(each as usize);
        if slots > usize::from(self.ring.size()) {
            return Sent::Refused;
        }
        // At least one more than there are.
        let slots = u32::try_from(slots).unwrap_or(u32::MAX);
        Sent::Full(
            slots
                .max(u32::from(self.free) + 1)
                .min(self.ring.size().into()),
        )
    }

    /// Was something sent that was not shown yet?
    #[inline]
    pub fn is_behind(&self) -> bool {
        self.shown != self.next
    }

    /// Shows what was sent; is the other side to be rung for?
    #[inline]
    pub fn flush(&mut self) -> bool {
        if self.shown == self.next {
            return false;
        }
        self.shown = self.next;
        match self.own {
            Some(_) => self.ring.set_head(self.next),
            None => self.ring.set_tail(self.next),
        }
        // Our index before their wish: they say that before they look at the index.
        Cpu::full_fence();
        self.ring.wants_bell()
    }

    /// Are this many slots free?
    ///
    /// # Errors
    /// The other side's index cannot be.
    pub fn has_room(&mut self, slots: u32) -> Result<bool, Detach> {
        if u32::from(self.free) < slots {
            self.look()?;
        }
        Ok(u32::from(self.free) >= slots)
    }

    /// Has the other side taken everything? (At a server nobody says.)
    ///
    /// # Errors
    /// The other side's index cannot be.
    pub fn is_quiet(&mut self) -> Result<bool, Detach> {
        self.look()?;
        Ok(self.own.is_none() || self.free == self.ring.size())
    }
}
