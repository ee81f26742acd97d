//! The front of a queue: its memory carries the packets.

use super::chain::{self, Frame, Room};
use super::{Burst, Lent, QueueMemory, lend_while};
use crate::error::{Detach, Ring};
use crate::layout::{
    EXTRA_INFO, EXTRA_MORE, ExtraGso, GTF_ORDER_SHIFT, GTF_PERMIT_ACCESS, GTF_READONLY, GrantEntry,
    MORE_DATA, ORDER_MAX, PACKET_MAX, PACKET_MIN, PAGE, RSP_NULL, RSP_OKAY, RX_CSUM_BLANK,
    RX_DATA_VALIDATED, RxRequest, RxResponse, SLOTS_MAX, TX_CSUM_BLANK, TX_DATA_VALIDATED,
    TxRequest, TxResponse,
};
use crate::offload::{Gso, Meta, Offloads, extra_of};
use crate::port::{More, Placed, Sent, Sleep};
use crate::ring;
use crate::stats::QueueStats;
use memlane_core::access::SharedBytes;
use memlane_core::region::Region;
use std::sync::Arc;

/// Bytes of a fragment of a packet that is sent, at most: its slot has 16 bits for them.
const FRAGMENT_MAX: usize = PACKET_MAX;

/// Buffers of large packets that did not lie beside each other, after which the free ones are put in order: that costs
/// about a microsecond, and each of these some tens of nanoseconds where a system call has to name them.
const TIDY_AFTER: u32 = 256;

/// A queue's buffers of one direction: as many as the ring has slots, each granted for good.
#[derive(Clone, Debug)]
pub struct Buffers {
    /// The memory, which is the link's.
    pub region: Arc<Region>,
    /// The region's number in grants.
    pub number: u16,
    /// First page of the queue's part.
    pub first_page: u32,
    /// Pages of a buffer: 2^order.
    pub order: u8,
}

impl Buffers {
    /// Bytes of one.
    pub fn size(&self) -> usize {
        PAGE << self.order
    }

    /// The queue's part; `None` if it does not lie inside.
    fn window(&self, count: u32) -> Option<SharedBytes> {
        let at = self.first_page as usize * PAGE;
        self.region.bytes().part(at, count as usize * self.size())
    }

    fn entry(&self, buffer: u32, flags: u16) -> GrantEntry {
        GrantEntry {
            flags: GTF_PERMIT_ACCESS | flags | u16::from(self.order) << GTF_ORDER_SHIFT,
            region: self.number,
            frame: self.first_page + (buffer << self.order),
        }
    }
}

/// The front of one queue.
#[derive(Debug)]
pub struct Front {
    memory: QueueMemory,
    tx: ring::Front,
    rx: ring::Front,
    tx_buffers: Buffers,
    rx_buffers: Buffers,
    tx_window: SharedBytes,
    rx_window: SharedBytes,
    offloads: Offloads,
    /// Buffers that a packet can be sent by, the last used last: it is warm.
    free: Vec<u16>,
    /// Buffers of large packets that did not lie beside the one before, since `free` was put in order.
    untidy: u32,
    /// By buffer: is it with the back?
    away: Vec<bool>,
    /// Extra slots without a response.
    extras_away: u32,
    /// By slot of the rx ring: the buffer that was posted there.
    posted: Vec<u16>,
    /// Buffers of frames that were taken, to be posted anew.
    due: Vec<u16>,
    together: usize,
    /// Of the packet at hand.
    parts: Vec<SharedBytes>,
    buffers: Vec<u16>,
    stats: QueueStats,
    ended: Option<Detach>,
}

#[inline]
fn flags_of(meta: Meta) -> u16 {
    let bit = |set, bit| if set { bit } else { 0 };
    bit(meta.csum_blank, TX_CSUM_BLANK)
        | bit(meta.data_validated, TX_DATA_VALIDATED)
        | bit(meta.gso.is_some(), EXTRA_INFO)
}

#[inline]
fn meta_of(flags: u16, gso: Option<Gso>) -> Meta {
    Meta {
        csum_blank: flags & RX_CSUM_BLANK != 0,
        data_validated: flags & RX_DATA_VALIDATED != 0,
        gso,
    }
}

const NO_PACKET: &str = "a packet of a length that there is not";

impl Front {
    /// Sets a queue up, grants its buffers and posts those for receiving. `None`: the memory is too small for that.
    pub fn new(
        memory: QueueMemory,
        tx_buffers: Buffers,
        rx_buffers: Buffers,
        offloads: Offloads,
    ) -> Option<Front> {
        let slots = memory.layout().slots;
        if tx_buffers.order > ORDER_MAX || rx_buffers.order > ORDER_MAX {
            return None;
        }
        ring::init(memory.tx.words());
        ring::init(memory.rx.words());
        for n in 0..slots {
            memory.set_grant(n, tx_buffers.entry(n, GTF_READONLY).word());
            memory.set_grant(slots + n, rx_buffers.entry(n, 0).word());
        }
        let count = u16::try_from(slots).ok()?;
        let mut front = Front {
            tx: ring::Front::new(slots),
            rx: ring::Front::new(slots),
            tx_window: tx_buffers.window(slots)?,
            rx_window: rx_buffers.window(slots)?,
            tx_buffers,
            rx_buffers,
            offloads,
            free: (0..count).rev().collect(),
            untidy: 0,
            away: vec![false; slots as usize],
            extras_away: 0,
            posted: vec![0; slots as usize],
            due: Vec::with_capacity(slots as usize),
            together: super::together(slots) as usize,
            parts: Vec::with_capacity(SLOTS_MAX),
            buffers: Vec::with_capacity(SLOTS_MAX + 1),
            stats: QueueStats::default(),
            ended: None,
            memory,
        };
        (0..count).for_each(|buffer| front.post(buffer));
        // Nobody sleeps yet: the back looks when it attaches.
        let _ = front.rx.publish(front.memory.rx.words());
        Some(front)
    }

    #[inline]
    fn post(&mut self, buffer: u16) {
        let slots = self.memory.layout().slots;
        let index = self.rx.put();
        let request = RxRequest {
            id: buffer,
            gref: slots + u32::from(buffer),
        };
        self.posted[(index & (slots - 1)) as usize] = buffer;
        self.memory.rx.write(index, request.words());
    }

    /// Has `fill` write a frame of `len` bytes into buffers of ours. It goes with the next [`flush`](Self::flush).
    ///
    /// # Errors
    /// The queue has ended, now or before.
    #[inline]
    pub fn send(
        &mut self,
        len: usize,
        meta: Meta,
        fill: impl FnOnce(&Room<'_>),
    ) -> Result<Sent, Detach> {
        self.alive()?;
        if !(PACKET_MIN..=PACKET_MAX).contains(&len) || !self.offloads.allow(meta.gso) {
            return Ok(Sent::Refused);
        }
        let size = self.tx_buffers.size().min(FRAGMENT_MAX);
        let count = len.div_ceil(size);
        let slots = count + usize::from(meta.gso.is_some());
        if !self.has_room(count, slots) {
            self.reap()?;
            if !self.has_room(count, slots) {
                self.stats.full += 1;
                return Ok(Sent::Full(u32::try_from(slots).unwrap_or(u32::MAX)));
            }
        }
        if slots == 1 {
            self.send_short(len, meta, fill);
        } else {
            self.lay_out(len, size, count);
            self.take_out(count);
            fill(&Room::new(&self.parts, len));
            self.ask(len, meta);
        }
        self.stats.sent += 1;
        self.stats.sent_bytes += len as u64;
        Ok(Sent::Queued)
    }

    /// Lends room for the longest frame to `fill`, which says what it has put there.
    ///
    /// # Errors
    /// The queue has ended, now or before.
    #[inline]
    pub fn place(
        &mut self,
        fill: impl FnOnce(&Room<'_>) -> Option<(usize, Meta)>,
    ) -> Result<Placed, Detach> {
        self.alive()?;
        let size = self.tx_buffers.size().min(FRAGMENT_MAX);
        let count = PACKET_MAX.div_ceil(size);
        if !self.has_room(count, count + 1) {
            self.reap()?;
            if !self.has_room(count, count + 1) {
                self.stats.full += 1;
                return Ok(Placed::Sent(Sent::Full(
                    u32::try_from(count + 1).unwrap_or(u32::MAX),
                )));
            }
        }
        self.lay_out(PACKET_MAX, size, count);
        let Some((len, meta)) = fill(&Room::new(&self.parts, PACKET_MAX)) else {
            return Ok(Placed::Nothing);
        };
        if !(PACKET_MIN..=PACKET_MAX).contains(&len) || !self.offloads.allow(meta.gso) {
            return Ok(Placed::Sent(Sent::Refused));
        }
        chain::trim(&mut self.parts, len);
        self.take_out(self.parts.len());
        self.ask(len, meta);
        self.stats.sent += 1;
        self.stats.sent_bytes += len as u64;
        Ok(Placed::Sent(Sent::Queued))
    }

    /// A packet of one slot: nearly all are. There is room.
    #[inline]
    fn send_short(&mut self, len: usize, meta: Meta, fill: impl FnOnce(&Room<'_>)) {
        let Some(buffer) = self.free.pop() else {
            return;
        };
        let size = self.tx_buffers.size();
        let offset = chain::colour(buffer, size, len);
        let at = usize::from(buffer) * size + usize::from(offset);
        let Some(part) = self.tx_window.part(at, len) else {
            return;
        };
        self.away[usize::from(buffer)] = true;
        fill(&Room::new(&[part], len));
        let request = TxRequest {
            gref: u32::from(buffer),
            offset,
            flags: flags_of(meta),
            id: buffer,
            // At most PACKET_MAX.
            size: u16::try_from(len).unwrap_or(0),
        };
        self.memory.tx.write(self.tx.put(), request.words());
    }

    #[inline]
    fn has_room(&self, buffers: usize, slots: usize) -> bool {
        self.free.len() >= buffers && self.tx.free() as usize >= slots
    }

    /// Where `len` bytes go, in `count` of the free buffers, which stay free.
    #[inline]
    fn lay_out(&mut self, len: usize, size: usize, count: usize) {
        self.parts.clear();
        if self.untidy >= TIDY_AFTER {
            self.free.sort_unstable_by(|a, b| b.cmp(a));
            self.untidy = 0;
        }
        let (mut left, mut next) = (len, None);
        for &buffer in self.free.iter().rev().take(count) {
            self.untidy += u32::from(next.is_some_and(|next| next != buffer));
            next = Some(buffer.wrapping_add(1));
            let n = left.min(size);
            let at = usize::from(chain::colour(buffer, self.tx_buffers.size(), n));
            let at = usize::from(buffer) * self.tx_buffers.size() + at;
            // Inside: the window has all buffers.
            self.parts.extend(self.tx_window.part(at, n));
            left -= n;
        }
    }

    /// Takes the first `count` of those: they are the packet's at hand.
    #[inline]
    fn take_out(&mut self, count: usize) {
        self.buffers.clear();
        let from = self.free.len() - count;
        self.buffers.extend(self.free.drain(from..).rev());
        for buffer in &self.buffers {
            self.away[usize::from(*buffer)] = true;
        }
    }

    /// Writes the requests of the packet at hand.
    #[inline]
    fn ask(&mut self, len: usize, meta: Meta) {
        let (ring, last) = (&self.memory.tx, self.buffers.len() - 1);
        let window = self.tx_window.as_ptr() as usize;
        for (n, (buffer, part)) in self.buffers.iter().zip(&self.parts).enumerate() {
            let mut flags = if n < last { MORE_DATA } else { 0 };
            let mut size = part.len();
            if n == 0 {
                flags |= flags_of(meta);
                size = len;
            }
            let at = (part.as_ptr() as usize - window) % self.tx_buffers.size();
            let request = TxRequest {
                gref: u32::from(*buffer),
                // Less than a buffer has.
                offset: u16::try_from(at).unwrap_or(0),
                flags,
                id: *buffer,
                // At most PACKET_MAX.
                size: u16::try_from(size).unwrap_or(0),
            };
            ring.write(self.tx.put(), request.words());
            if let Some(gso) = meta.gso.filter(|_| n == 0) {
                ring.write(self.tx.put(), extra_of(gso).words());
                self.extras_away += 1;
            }
        }
    }

    /// Shows the back what was sent, and takes its answers. `true`: it asked for a doorbell.
    ///
    /// # Errors
    /// The queue has ended, now or before.
    #[inline]
    pub fn flush(&mut self) -> Result<bool, Detach> {
        self.alive()?;
        let ring = self.tx.publish(self.memory.tx.words());
        self.stats.doorbells += u64::from(ring);
        self.reap()?;
        Ok(ring)
    }

    /// Takes the answers to what was sent: buffers come back.
    #[inline]
    fn reap(&mut self) -> Result<(), Detach> {
        let ready = self.tx.ready(self.memory.tx.words());
        let ready = ready.map_err(|wrong| self.end(Detach::Index(Ring::Tx, wrong)))?;
        let before = self.free.len();
        for _ in 0..ready {
            let response = TxResponse::from_words(self.memory.tx.read(self.tx.take()));
            if let Err(what) = self.took(response) {
                return Err(self.end(Detach::Slot(Ring::Tx, what)));
            }
        }
        // Those of one packet, which lie beside each other, are taken again in their order.
        self.free[before..].reverse();
        Ok(())
    }

    #[inline]
    fn took(&mut self, response: TxResponse) -> Result<(), &'static str> {
        if response.status == RSP_NULL {
            let left = self.extras_away.checked_sub(1);
            self.extras_away = left.ok_or("an answer to extra info that was not sent")?;
            return Ok(());
        }
        let away = self.away.get_mut(usize::from(response.id));
        match away {
            Some(away) if *away => *away = false,
            _ => return Err("an answer to what was not asked"),
        }
        self.free.push(response.id);
        self.stats.failed += u64::from(response.status != RSP_OKAY);
        Ok(())
    }

    /// Lends up to `most` frames that the back has sent to `take`, one after another as long as it wants more, and
    /// posts their buffers anew.
    ///
    /// # Errors
    /// The queue has ended, now or before.
    #[inline]
    pub fn receive_while(
        &mut self,
        most: usize,
        mut take: impl FnMut(&Frame<'_>) -> More,
    ) -> Result<Burst, Detach> {
        self.alive()?;
        let lent = lend_while(most, |more| {
            self.receive_one(&mut |frame| more.set(take(frame)))
        });
        let Lent {
            frames,
            comes_again,
        } = lent.map_err(|error| self.end(error))?;
        let ring = (!comes_again || self.due.len() >= self.together) && self.settle();
        Ok(Burst { frames, ring })
    }

    /// Posts the buffers of what was taken anew: a receiver that takes few frames at a time leaves some of that to its
    /// next call. `true`: the back asked for a doorbell. To be called before a sleep.
    #[inline]
    pub fn settle(&mut self) -> bool {
        let mut due = std::mem::take(&mut self.due);
        due.drain(..).for_each(|buffer| self.post(buffer));
        self.due = due;
        let ring = self.rx.publish(self.memory.rx.words());
        self.stats.doorbells += u64::from(ring);
        ring
    }

    /// Lends up to `most` packets to `take`.
    ///
    /// # Errors
    /// The queue has ended, now or before.
    #[inline]
    pub fn receive(
        &mut self,
        most: usize,
        mut take: impl FnMut(&Frame<'_>),
    ) -> Result<Burst, Detach> {
        self.receive_while(most, |frame| {
            take(frame);
            More::Yes
        })
    }

    #[inline]
    fn receive_one(&mut self, take: &mut impl FnMut(&Frame<'_>)) -> Result<bool, Detach> {
        let ready = self.rx.ready(self.memory.rx.words());
        let ready = ready.map_err(|wrong| Detach::Index(Ring::Rx, wrong))?;
        if ready == 0 {
            return Ok(false);
        }
        self.parts.clear();
        self.buffers.clear();
        let first = self.next_response()?;
        if first.flags & (MORE_DATA | EXTRA_INFO) == 0 && first.status > 0 {
            return self.receive_short(first, take);
        }
        match self.next_packet(first, ready)? {
            Some((len, meta)) => {
                take(&Frame::new(&self.parts, len, meta));
                self.count_received(len);
            }
            None => self.stats.failed += 1,
        }
        self.due.extend_from_slice(&self.buffers);
        Ok(true)
    }

    /// A packet of one slot: nearly all are.
    #[inline]
    fn receive_short(
        &mut self,
        response: RxResponse,
        take: &mut impl FnMut(&Frame<'_>),
    ) -> Result<bool, Detach> {
        let part = self.fragment(response)?;
        let len = part.len();
        if len < PACKET_MIN {
            return Err(Detach::Chain(Ring::Rx, NO_PACKET));
        }
        take(&Frame::new(&[part], len, meta_of(response.flags, None)));
        self.due.push(response.id);
        self.count_received(len);
        Ok(true)
    }

    #[inline]
    fn count_received(&mut self, len: usize) {
        self.stats.received += 1;
        self.stats.received_bytes += len as u64;
    }

    /// Copies the responses of the next packet, of which `ready` slots can be seen. `None`: the back could not use
    /// that buffer.
    #[inline]
    fn next_packet(
        &mut self,
        first: RxResponse,
        ready: u32,
    ) -> Result<Option<(usize, Meta)>, Detach> {
        if first.status < 0 {
            return Ok(None);
        }
        let part = self.fragment(first)?;
        self.parts.push(part);
        let (mut slots, mut len, mut flags) = (1, part.len(), first.flags);
        let mut gso = None;
        if flags & EXTRA_INFO != 0 {
            gso = self.extra_info(ready)?;
            slots += 1;
        }
        while flags & MORE_DATA != 0 {
            if slots >= ready {
                return Err(Detach::Chain(
                    Ring::Rx,
                    "a packet's last slots are not there",
                ));
            }
            if self.parts.len() == SLOTS_MAX {
                return Err(Detach::Chain(Ring::Rx, "a packet has too many fragments"));
            }
            let next = self.next_response()?;
            let part = self.fragment(next)?;
            self.parts.push(part);
            len += part.len();
            (flags, slots) = (next.flags, slots + 1);
        }
        if !(PACKET_MIN..=PACKET_MAX).contains(&len) {
            return Err(Detach::Chain(Ring::Rx, NO_PACKET));
        }
        let meta = meta_of(first.flags, gso);
        Ok(Some((len, meta)))
    }

    /// Takes the next response out; its buffer, which is known by its slot, is among `buffers` then.
    #[inline]
    fn next_slot(&mut self) -> (u16, [u32; 2]) {
        let index = self.rx.take();
        let mask = self.memory.layout().slots - 1;
        let buffer = self.posted[(index & mask) as usize];
        self.buffers.push(buffer);
        (buffer, self.memory.rx.read(index))
    }

    #[inline]
    fn next_response(&mut self) -> Result<RxResponse, Detach> {
        let (buffer, words) = self.next_slot();
        let response = RxResponse::from_words(words);
        if response.id != buffer {
            return Err(Detach::Slot(Ring::Rx, "an answer to another request"));
        }
        Ok(response)
    }

    #[inline]
    fn fragment(&self, response: RxResponse) -> Result<SharedBytes, Detach> {
        let size = self.rx_buffers.size();
        let n = usize::try_from(response.status).unwrap_or(0);
        let at = usize::from(response.offset);
        let beyond = Detach::Slot(Ring::Rx, "a fragment of no bytes, or beyond its buffer");
        if n == 0 || at + n > size {
            return Err(beyond);
        }
        // Inside: the id is a buffer's, and the window has all buffers.
        let part = self.rx_window.part(usize::from(response.id) * size + at, n);
        part.ok_or(beyond)
    }

    #[cold]
    fn extra_info(&mut self, ready: u32) -> Result<Option<Gso>, Detach> {
        if ready < 2 {
            return Err(Detach::Chain(
                Ring::Rx,
                "a packet's extra slot is not there",
            ));
        }
        let (_, words) = self.next_slot();
        let extra = ExtraGso::from_words(words);
        if extra.flags & EXTRA_MORE != 0 {
            return Err(Detach::Slot(
                Ring::Rx,
                "more extra slots than kinds of extra info",
            ));
        }
        let gso = self.offloads.gso_of(extra);
        gso.map_err(|what| Detach::Slot(Ring::Rx, what))
    }

    /// Asks for a doorbell, before a sleep. `false`: there is something already.
    ///
    /// # Errors
    /// The queue has ended, now or before.
    pub fn sleeps(&mut self, until: Sleep) -> Result<bool, Detach> {
        self.alive()?;
        let mut quiet = true;
        if until.frames {
            let slept = self.rx.sleeps(self.memory.rx.words(), 1);
            quiet &= slept.map_err(|wrong| self.end(Detach::Index(Ring::Rx, wrong)))?;
        }
        if until.room > 0 {
            self.reap()?;
            let short = until.room.saturating_sub(self.tx.free());
            let short = short.min(self.tx.under_way());
            if short == 0 {
                return Ok(false);
            }
            let slept = self.tx.sleeps(self.memory.tx.words(), short);
            quiet &= slept.map_err(|wrong| self.end(Detach::Index(Ring::Tx, wrong)))?;
        }
        Ok(quiet)
    }

    /// Slots to wait for before the largest frame finds room; 0: it does.
    ///
    /// # Errors
    /// The queue has ended, now or before.
    pub fn lacks(&mut self) -> Result<u32, Detach> {
        self.alive()?;
        let count = PACKET_MAX.div_ceil(self.tx_buffers.size().min(FRAGMENT_MAX));
        if self.has_room(count, count + 1) {
            return Ok(0);
        }
        self.reap()?;
        if self.has_room(count, count + 1) {
            return Ok(0);
        }
        Ok(u32::try_from(count + 1).unwrap_or(u32::MAX))
    }

    /// Is everything that was sent answered?
    ///
    /// # Errors
    /// The queue has ended, now or before.
    pub fn is_quiet(&mut self) -> Result<bool, Detach> {
        self.alive()?;
        self.reap()?;
        Ok(self.tx.under_way() == 0)
    }

    /// What was counted.
    pub fn stats(&self) -> QueueStats {
        QueueStats {
            quiet: self.tx.quiet() + self.rx.quiet(),
            ..self.stats
        }
    }

    /// Why the queue has ended.
    pub fn ended(&self) -> Option<Detach> {
        self.ended
    }

    /// Ends it, if it has not; what it says from now on.
    pub fn end(&mut self, why: Detach) -> Detach {
        *self.ended.get_or_insert(why)
    }

    #[inline]
    fn alive(&self) -> Result<(), Detach> {
        self.ended.map_or(Ok(()), Err)
    }
}
