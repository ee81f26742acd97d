//! The back of a queue: takes what the front transmits, and gives it what it is to receive.

use super::cache::{Cache, Found, GrantCounts, MappingLease};
use super::chain::{self, Frame, Room, Staging};
use super::grant::{Access, Grant, GrantError, Mode, Reach};
use super::{Burst, Lent, QueueMemory, lend_while};
use crate::error::{Detach, Ring};
use crate::layout::{
    EXTRA_INFO, EXTRA_MORE, ExtraGso, MORE_DATA, PACKET_MAX, PACKET_MIN, PAGE, RSP_NULL, RSP_OKAY,
    RX_CSUM_BLANK, RX_DATA_VALIDATED, RxRequest, RxResponse, SLOTS_MAX, TX_CSUM_BLANK,
    TX_DATA_VALIDATED, TxRequest, TxResponse,
};
use crate::offload::{Gso, Meta, Offloads, extra_of};
use crate::port::{More, Placed, Sent, Sleep};
use crate::ring;
use crate::stats::QueueStats;
use memlane_core::access::SharedBytes;

/// Bytes of a fragment to a front, at most: its response has 15 bits for them.
const FRAGMENT_MAX: usize = i16::MAX as usize;

/// How a back works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BackConfig {
    /// How it gets at packets.
    pub mode: Mode,
    /// Mappings that are kept for each direction of a queue, at most.
    pub max_grants: u32,
    /// A mapping that was not used for so long is given up, milliseconds; 0: never.
    pub idle_ms: u64,
    /// What was agreed on.
    pub offloads: Offloads,
}

/// What is to be let go of once a packet is done.
#[derive(Debug)]
enum Spot {
    Held(MappingLease),
    Mapped(SharedBytes),
}

const NO_PACKET: &str = "less than an Ethernet header, an empty fragment, or one beyond its grant";

#[inline]
fn meta_of(flags: u16, gso: Option<Gso>) -> Meta {
    Meta {
        csum_blank: flags & TX_CSUM_BLANK != 0,
        data_validated: flags & TX_DATA_VALIDATED != 0,
        gso,
    }
}

#[inline]
fn flags_of(meta: Meta) -> u16 {
    let bit = |set, bit| if set { bit } else { 0 };
    bit(meta.csum_blank, RX_CSUM_BLANK)
        | bit(meta.data_validated, RX_DATA_VALIDATED)
        | bit(meta.gso.is_some(), EXTRA_INFO)
}

/// Where a grant's bytes can be got at.
enum GrantAccess {
    Mapped(SharedBytes),
    ByCopy(Grant),
}

/// The back of one queue. Dropping it gives all mappings up.
#[derive(Debug)]
pub struct Back<R: Reach> {
    memory: QueueMemory,
    tx: ring::Back,
    rx: ring::Back,
    tx_grants: Cache,
    rx_grants: Cache,
    config: BackConfig,
    reach: R,
    staging: Staging,
    /// Frames of up to this many bytes may fit into one of the front's buffers. Larger ones did not, when tried.
    short: usize,
    /// The last frame that came to lie in room was of several segments: the next one may be, and its extra slot is kept
    /// free.
    extra_due: bool,
    /// Of the packet at hand.
    requests: Vec<TxRequest>,
    parts: Vec<SharedBytes>,
    spots: Vec<Spot>,
    /// To be written by the kernel: where to, from which window of the staging memory.
    writes: Vec<(Grant, usize, SharedBytes)>,
    /// Requests of single slots that were taken and are not answered yet.
    due: Vec<u16>,
    together: u32,
    /// Of the responses at hand: id and offset.
    answers: Vec<(u16, u16)>,
    stats: QueueStats,
    ended: Option<Detach>,
}

impl<R: Reach> Back<R> {
    /// Of a queue whose front has set it up.
    pub fn new(memory: QueueMemory, config: BackConfig, reach: R) -> Back<R> {
        let layout = memory.layout();
        let cache = |access| Cache::new(access, config.max_grants, layout.grants);
        Back {
            tx: ring::Back::new(layout.slots),
            rx: ring::Back::new(layout.slots),
            tx_grants: cache(Access::Read),
            rx_grants: cache(Access::Write),
            memory,
            config,
            reach,
            staging: Staging::new(),
            short: FRAGMENT_MAX,
            extra_due: false,
            requests: Vec::with_capacity(SLOTS_MAX),
            parts: Vec::with_capacity(SLOTS_MAX),
            spots: Vec::with_capacity(SLOTS_MAX),
            writes: Vec::with_capacity(SLOTS_MAX),
            due: Vec::with_capacity(layout.slots as usize),
            together: super::together(layout.slots),
            answers: Vec::with_capacity(SLOTS_MAX),
            stats: QueueStats::default(),
            ended: None,
        }
    }

    /// Lends up to `most` frames that the front has transmitted to `take`, one after another, as long as it
    /// wants more.
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
        let ring = (!comes_again || self.tx.unanswered() >= self.together) && self.settle();
        Ok(Burst { frames, ring })
    }

    /// Answers what was taken: a receiver that takes few frames at a time leaves some of that to its next call. `true`:
    /// the front asked for a doorbell. To be called before a sleep.
    #[inline]
    pub fn settle(&mut self) -> bool {
        self.answer_due();
        let ring = self.tx.publish(self.memory.tx.words());
        self.stats.doorbells += u64::from(ring);
        ring
    }

    #[inline]
    fn answer_due(&mut self) {
        for id in self.due.drain(..) {
            let done = TxResponse {
                id,
                status: RSP_OKAY,
            };
            self.memory.tx.write(self.tx.put(), done.words());
        }
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
        let ready = self.tx.ready(self.memory.tx.words());
        let ready = ready.map_err(|wrong| Detach::Index(Ring::Tx, wrong))?;
        if ready == 0 {
            return Ok(false);
        }
        let first = TxRequest::from_words(self.memory.tx.read(self.tx.peek(0)));
        if self.config.mode == Mode::Persistent && first.flags & (MORE_DATA | EXTRA_INFO) == 0 {
            return self.receive_short(first, take);
        }
        let (meta, len, extras) = self.next_packet(first, ready)?;
        let gathered = self.gather();
        if gathered.is_ok() {
            take(&Frame::new(&self.parts, len, meta));
        }
        self.let_go(Ring::Tx);
        gathered?;
        self.answer(extras);
        self.count_received(len);
        Ok(true)
    }

    /// As below, for a packet of one slot: nearly all are.
    #[inline]
    fn receive_short(
        &mut self,
        request: TxRequest,
        take: &mut impl FnMut(&Frame<'_>),
    ) -> Result<bool, Detach> {
        let (at, len) = (usize::from(request.offset), usize::from(request.size));
        let word = self.memory.grant(request.gref);
        let word = word.ok_or(Detach::Grant(request.gref, GrantError::NoEntry))?;
        let found = self
            .tx_grants
            .look_up(request.gref, word, &mut self.reach)?;
        let part = match &found {
            Found::Mapped(_, window) => window.part(at, len),
            Found::Busy(grant) if at + len <= grant.len => Some(self.fetch(*grant, at, 0, len)?),
            Found::Busy(_) => None,
        };
        let part = part.filter(|_| len >= PACKET_MIN);
        if let Some(part) = part {
            take(&Frame::new(&[part], len, meta_of(request.flags, None)));
        }
        if let Found::Mapped(held, _) = &found {
            self.tx_grants.release(held);
        }
        if part.is_none() {
            return Err(Detach::Slot(Ring::Tx, NO_PACKET));
        }
        self.tx.take(1);
        self.due.push(request.id);
        self.count_received(len);
        Ok(true)
    }

    #[inline]
    fn count_received(&mut self, len: usize) {
        self.stats.received += 1;
        self.stats.received_bytes += len as u64;
    }

    /// Copies the requests of the next packet, of which `ready` slots can be seen; (what it says, bytes, extra slots).
    #[inline]
    fn next_packet(&mut self, first: TxRequest, ready: u32) -> Result<(Meta, usize, u32), Detach> {
        self.requests.clear();
        let (mut gso, mut extras) = (None, 0);
        if first.flags & EXTRA_INFO != 0 {
            (gso, extras) = self.extra_info(ready)?;
        }
        let mut left = usize::from(first.size);
        self.requests.push(first);
        let (mut flags, mut slot) = (first.flags, 1 + extras);
        while flags & MORE_DATA != 0 {
            if slot >= ready {
                return Err(Detach::Chain(
                    Ring::Tx,
                    "a packet's last slots are not there",
                ));
            }
            if self.requests.len() == SLOTS_MAX {
                return Err(Detach::Chain(Ring::Tx, "a packet has too many fragments"));
            }
            let next = TxRequest::from_words(self.memory.tx.read(self.tx.peek(slot)));
            left = match left.checked_sub(usize::from(next.size)) {
                Some(left) if next.size > 0 => left,
                _ => {
                    return Err(Detach::Chain(
                        Ring::Tx,
                        "fragments are longer than the packet",
                    ));
                }
            };
            self.requests.push(next);
            (flags, slot) = (next.flags, slot + 1);
        }
        let len = usize::from(first.size);
        if len < PACKET_MIN || left == 0 {
            return Err(Detach::Slot(Ring::Tx, NO_PACKET));
        }
        // The first slot has the packet's length; what it holds itself is what the others leave.
        self.requests[0].size = u16::try_from(left).unwrap_or(0);
        Ok((meta_of(first.flags, gso), len, extras))
    }

    /// The extra slots behind the first one: one of each kind at most, and there is one kind.
    #[cold]
    fn extra_info(&self, ready: u32) -> Result<(Option<Gso>, u32), Detach> {
        if ready < 2 {
            return Err(Detach::Chain(
                Ring::Tx,
                "a packet's extra slot is not there",
            ));
        }
        let extra = ExtraGso::from_words(self.memory.tx.read(self.tx.peek(1)));
        if extra.flags & EXTRA_MORE != 0 {
            return Err(Detach::Slot(
                Ring::Tx,
                "more extra slots than kinds of extra info",
            ));
        }
        let gso = self.config.offloads.gso_of(extra);
        Ok((gso.map_err(|what| Detach::Slot(Ring::Tx, what))?, 1))
    }

    /// Finds the bytes of the packet at hand, or has them copied.
    #[inline]
    fn gather(&mut self) -> Result<(), Detach> {
        self.parts.clear();
        let mut staged = 0;
        for n in 0..self.requests.len() {
            let request = self.requests[n];
            let (at, size) = (usize::from(request.offset), usize::from(request.size));
            let part = match self.locate(Ring::Tx, request.gref)? {
                GrantAccess::Mapped(window) => window.part(at, size),
                GrantAccess::ByCopy(grant) if at + size <= grant.len => {
                    Some(self.fetch(grant, at, staged, size)?)
                }
                GrantAccess::ByCopy(_) => None,
            };
            self.parts
                .push(part.ok_or(Detach::Slot(Ring::Tx, NO_PACKET))?);
            staged += size;
        }
        Ok(())
    }

    /// Where a grant's bytes are. What is lent for it is in `spots`, whatever happens afterwards.
    #[inline]
    fn locate(&mut self, ring: Ring, gref: u32) -> Result<GrantAccess, Detach> {
        let word = self.memory.grant(gref);
        let word = word.ok_or(Detach::Grant(gref, GrantError::NoEntry))?;
        if self.config.mode == Mode::Persistent {
            let cache = match ring {
                Ring::Tx => &mut self.tx_grants,
                Ring::Rx => &mut self.rx_grants,
            };
            return Ok(match cache.look_up(gref, word, &mut self.reach)? {
                Found::Mapped(held, window) => {
                    self.spots.push(Spot::Held(held));
                    GrantAccess::Mapped(window)
                }
                Found::Busy(grant) => GrantAccess::ByCopy(grant),
            });
        }
        let access = match ring {
            Ring::Tx => Access::Read,
            Ring::Rx => Access::Write,
        };
        let grant =
            Grant::check(word, self.reach.regions(), access).map_err(Detach::of_grant(gref))?;
        if self.config.mode == Mode::Copy {
            return Ok(GrantAccess::ByCopy(grant));
        }
        let window = self.reach.map(grant, access).map_err(Detach::Memory)?;
        self.spots.push(Spot::Mapped(window));
        Ok(GrantAccess::Mapped(window))
    }

    /// Has bytes of a grant copied to `to` of our own memory.
    fn fetch(
        &mut self,
        grant: Grant,
        at: usize,
        to: usize,
        size: usize,
    ) -> Result<SharedBytes, Detach> {
        let window = self.staging.window(to, size);
        // The sum of all sizes is at most a packet's, which the staging memory has.
        let window = window.ok_or(Detach::Slot(Ring::Tx, "fragments are longer than a packet"))?;
        // SAFETY: a window of this staging memory; frames that were lent before are over.
        let bytes = unsafe { self.staging.bytes(window) };
        let copied = self.reach.read(grant, at, bytes);
        copied.map_err(Detach::Memory)?;
        self.stats.copied += 1;
        Ok(window)
    }

    /// Gives back what was lent for the packet at hand.
    #[inline]
    fn let_go(&mut self, ring: Ring) {
        let cache = match ring {
            Ring::Tx => &mut self.tx_grants,
            Ring::Rx => &mut self.rx_grants,
        };
        for spot in self.spots.drain(..) {
            match spot {
                Spot::Held(held) => cache.release(&held),
                Spot::Mapped(window) => self.reach.unmap(window),
            }
        }
    }

    /// Answers the packet at hand, slot by slot.
    #[inline]
    fn answer(&mut self, extras: u32) {
        self.answer_due();
        let ring = &self.memory.tx;
        for (n, request) in self.requests.iter().enumerate() {
            self.tx.take(1);
            let done = TxResponse {
                id: request.id,
                status: RSP_OKAY,
            };
            ring.write(self.tx.put(), done.words());
            if n == 0 {
                for _ in 0..extras {
                    self.tx.take(1);
                    let null = TxResponse {
                        id: 0,
                        status: RSP_NULL,
                    };
                    ring.write(self.tx.put(), null.words());
                }
            }
        }
    }

    /// Has `fill` write a frame of `len` bytes into what the front has granted. It goes with the next [`flush`](Self::flush).
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
        if !(PACKET_MIN..=PACKET_MAX).contains(&len) || !self.config.offloads.allow(meta.gso) {
            return Ok(Sent::Refused);
        }
        let short = self.config.mode == Mode::Persistent && meta.gso.is_none();
        if short && len <= self.short && self.rx.known() > 0 {
            match self.short_room(len) {
                Ok(None) => {}
                Ok(Some((request, found))) => {
                    let sent = self.send_short(request, &found, meta, (len, fill));
                    return sent.map_err(|error| self.end(error));
                }
                Err(error) => return Err(self.end(error)),
            }
        }
        let sent = self.send_one(len, meta, fill);
        self.let_go(Ring::Rx);
        sent.map_err(|error| self.end(error))
    }

    /// Room in the next buffer alone, for a frame of one slot: nearly all are.
    #[inline]
    fn short_room(&mut self, len: usize) -> Result<Option<(RxRequest, Found)>, Detach> {
        let request = RxRequest::from_words(self.memory.rx.read(self.rx.peek(0)));
        let word = self.memory.grant(request.gref);
        let word = word.ok_or(Detach::Grant(request.gref, GrantError::NoEntry))?;
        let cache = &mut self.rx_grants;
        let found = cache.look_up(request.gref, word, &mut self.reach)?;
        let room = match &found {
            Found::Mapped(_, window) => window.len(),
            Found::Busy(grant) => grant.len,
        };
        if len > room {
            // From now on such frames go the other way at once.
            self.short = room;
            if let Found::Mapped(held, _) = &found {
                self.rx_grants.release(held);
            }
            return Ok(None);
        }
        Ok(Some((request, found)))
    }

    #[inline]
    fn send_short(
        &mut self,
        request: RxRequest,
        found: &Found,
        meta: Meta,
        (len, fill): (usize, impl FnOnce(&Room<'_>)),
    ) -> Result<Sent, Detach> {
        let (window, room) = match found {
            Found::Mapped(_, window) => (*window, window.len()),
            Found::Busy(grant) => (self.staging.whole(), grant.len),
        };
        let offset = chain::colour(request.id, room, len);
        let part = window.part(offset.into(), len);
        let part = part.ok_or(Detach::Slot(Ring::Rx, "a buffer of no bytes"))?;
        fill(&Room::new(&[part], len));
        match found {
            Found::Mapped(held, _) => self.rx_grants.release(held),
            Found::Busy(grant) => self.deliver(*grant, offset.into(), part)?,
        }
        let done = RxResponse {
            id: request.id,
            offset,
            flags: flags_of(meta),
            // At most FRAGMENT_MAX.
            status: i16::try_from(len).unwrap_or(0),
        };
        self.rx.take(1);
        self.memory.rx.write(self.rx.put(), done.words());
        self.count_sent(len);
        Ok(Sent::Queued)
    }

    /// Has a window of our own memory copied into a grant.
    fn deliver(&mut self, grant: Grant, at: usize, window: SharedBytes) -> Result<(), Detach> {
        // SAFETY: a window of this staging memory; who was to fill it is done.
        let bytes = unsafe { self.staging.bytes(window) };
        let written = self.reach.write(grant, at, bytes);
        self.stats.copied += 1;
        written.map_err(Detach::Memory)
    }

    #[inline]
    fn count_sent(&mut self, len: usize) {
        self.stats.sent += 1;
        self.stats.sent_bytes += len as u64;
    }

    #[inline]
    fn send_one(
        &mut self,
        len: usize,
        meta: Meta,
        fill: impl FnOnce(&Room<'_>),
    ) -> Result<Sent, Detach> {
        if !self.make_room(len, u32::from(meta.gso.is_some()))? {
            return Ok(self.full());
        }
        fill(&Room::new(&self.parts, len));
        while let Some((grant, at, window)) = self.writes.pop() {
            self.deliver(grant, at, window)?;
        }
        self.respond(meta);
        self.count_sent(len);
        Ok(Sent::Queued)
    }

    /// Finds where `len` bytes can go. `false`: there are too few requests.
    #[inline]
    fn make_room(&mut self, len: usize, extras: u32) -> Result<bool, Detach> {
        if self.find_room(len, extras)? {
            return Ok(true);
        }
        // There may be more than was seen last: that costs the other side's line, so only now.
        let looked = self.rx.look(self.memory.rx.words());
        looked.map_err(|wrong| Detach::Index(Ring::Rx, wrong))?;
        self.let_go(Ring::Rx);
        self.find_room(len, extras)
    }

    /// Buffers have their own sizes: all that is known is that these are too few.
    fn full(&mut self) -> Sent {
        self.stats.full += 1;
        Sent::Full(self.rx.known() + 1)
    }

    /// Lends room for the longest frame to `fill`, which says what it has put there. Only where all of it is mapped:
    /// the kernel's copies need to know what they are to copy.
    ///
    /// # Errors
    /// The queue has ended, now or before.
    #[inline]
    pub fn place(
        &mut self,
        fill: impl FnOnce(&Room<'_>) -> Option<(usize, Meta)>,
    ) -> Result<Placed, Detach> {
        self.alive()?;
        if self.config.mode != Mode::Persistent {
            return Ok(Placed::NotHere);
        }
        let placed = self.place_one(fill);
        self.let_go(Ring::Rx);
        placed.map_err(|error| self.end(error))
    }

    #[inline]
    fn place_one(
        &mut self,
        fill: impl FnOnce(&Room<'_>) -> Option<(usize, Meta)>,
    ) -> Result<Placed, Detach> {
        let found = self.make_room(PACKET_MAX, self.extra_due.into())?;
        // One more than it takes, should the next frame have an extra slot after all.
        if !found || self.rx.known() as usize <= self.answers.len() {
            return Ok(Placed::Sent(self.full()));
        }
        if !self.writes.is_empty() {
            return Ok(Placed::NotHere);
        }
        let Some((len, meta)) = fill(&Room::new(&self.parts, PACKET_MAX)) else {
            return Ok(Placed::Nothing);
        };
        if !(PACKET_MIN..=PACKET_MAX).contains(&len) || !self.config.offloads.allow(meta.gso) {
            return Ok(Placed::Sent(Sent::Refused));
        }
        chain::trim(&mut self.parts, len);
        let extra = meta.gso.is_some();
        if extra == self.extra_due || self.parts.len() == 1 {
            self.respond(meta);
            self.count_sent(len);
            return Ok(Placed::Sent(Sent::Queued));
        }
        self.extra_due = extra;
        // Of buffers that are of one size there are enough. It cannot be taken back, so it must not be tried again.
        let sent = match self.send_again(len, meta)? {
            Sent::Full(_) => Sent::Refused,
            sent => sent,
        };
        Ok(Placed::Sent(sent))
    }

    /// Of the frame in the room at hand, the second slot is another than was thought: it moves there.
    #[cold]
    fn send_again(&mut self, len: usize, meta: Meta) -> Result<Sent, Detach> {
        let mut bytes = vec![0; len];
        Room::new(&self.parts, len).copy_out(0, &mut bytes);
        self.let_go(Ring::Rx);
        self.send_one(len, meta, |room| {
            room.copy_in(0, &bytes);
        })
    }

    /// Finds where `len` bytes can go, among the requests that were seen. `false`: those are too few.
    #[inline]
    fn find_room(&mut self, len: usize, extras: u32) -> Result<bool, Detach> {
        self.parts.clear();
        self.writes.clear();
        self.answers.clear();
        let (known, mut done, mut slot) = (self.rx.known(), 0, 0);
        while done < len {
            if slot >= known || self.parts.len() == SLOTS_MAX {
                return Ok(false);
            }
            let request = RxRequest::from_words(self.memory.rx.read(self.rx.peek(slot)));
            // The extra slot overlies the second request, whose buffer stays unused.
            slot += if slot == 0 { 1 + extras } else { 1 };
            let left = len - done;
            let (part, at) = match self.locate(Ring::Rx, request.gref)? {
                GrantAccess::Mapped(window) => {
                    let n = left.min(window.len()).min(FRAGMENT_MAX);
                    let at = chain::colour(request.id, window.len(), n);
                    (window.part(at.into(), n), at)
                }
                GrantAccess::ByCopy(grant) => {
                    let n = left.min(grant.len).min(FRAGMENT_MAX);
                    let at = chain::colour(request.id, grant.len, n);
                    let window = self.staging.window(done, n);
                    self.writes
                        .extend(window.map(|window| (grant, usize::from(at), window)));
                    (window, at)
                }
            };
            let part = part.ok_or(Detach::Slot(Ring::Rx, "a buffer of no bytes"))?;
            done += part.len();
            self.parts.push(part);
            self.answers.push((request.id, at));
        }
        Ok(slot <= known)
    }

    /// Answers the requests that the frame at hand takes.
    #[inline]
    fn respond(&mut self, meta: Meta) {
        let ring = &self.memory.rx;
        let last = self.parts.len() - 1;
        for (n, (part, (id, offset))) in self.parts.iter().zip(&self.answers).enumerate() {
            let mut flags = if n < last { MORE_DATA } else { 0 };
            if n == 0 {
                flags |= flags_of(meta);
            }
            let done = RxResponse {
                id: *id,
                offset: *offset,
                flags,
                // At most FRAGMENT_MAX.
                status: i16::try_from(part.len()).unwrap_or(0),
            };
            self.rx.take(1);
            ring.write(self.rx.put(), done.words());
            if let Some(gso) = meta.gso.filter(|_| n == 0) {
                self.rx.take(1);
                ring.write(self.rx.put(), extra_of(gso).words());
            }
        }
    }

    /// Shows the front what was sent. `true`: it asked for a doorbell.
    ///
    /// # Errors
    /// The queue has ended.
    #[inline]
    pub fn flush(&mut self) -> Result<bool, Detach> {
        self.alive()?;
        let ring = self.rx.publish(self.memory.rx.words());
        self.stats.doorbells += u64::from(ring);
        Ok(ring)
    }

    /// Slots to wait for before the largest frame finds room, if a buffer is a page at least; 0: it does.
    ///
    /// # Errors
    /// The queue has ended, now or before.
    pub fn lacks(&mut self) -> Result<u32, Detach> {
        self.alive()?;
        // An extra slot beside.
        let most = u32::try_from(PACKET_MAX.div_ceil(PAGE) + 1).unwrap_or(u32::MAX);
        if self.rx.known() < most {
            let looked = self.rx.look(self.memory.rx.words());
            looked.map_err(|wrong| self.end(Detach::Index(Ring::Rx, wrong)))?;
        }
        Ok(if self.rx.known() < most { most } else { 0 })
    }

    /// Asks for a doorbell, before a sleep. `false`: there is something already.
    ///
    /// # Errors
    /// The queue has ended, now or before.
    pub fn sleeps(&mut self, until: Sleep) -> Result<bool, Detach> {
        self.alive()?;
        let mut quiet = true;
        if until.frames {
            let slept = self.tx.sleeps(self.memory.tx.words(), 1);
            quiet &= slept.map_err(|wrong| self.end(Detach::Index(Ring::Tx, wrong)))?;
        }
        if until.room > 0 {
            let slept = self.rx.sleeps(self.memory.rx.words(), until.room);
            quiet &= slept.map_err(|wrong| self.end(Detach::Index(Ring::Rx, wrong)))?;
        }
        Ok(quiet)
    }

    /// From time to time: gives up mappings that are idle. `now` in milliseconds, from any beginning.
    pub fn tick(&mut self, now: u64) {
        if self.config.idle_ms > 0 {
            let idle = self.config.idle_ms;
            self.tx_grants.sweep(now, idle, &mut self.reach);
            self.rx_grants.sweep(now, idle, &mut self.reach);
        }
    }

    /// What was counted.
    pub fn stats(&self) -> QueueStats {
        QueueStats {
            quiet: self.tx.quiet() + self.rx.quiet(),
            ..self.stats
        }
    }

    /// Of both tables: tx, rx.
    pub fn grants(&self) -> [GrantCounts; 2] {
        [self.tx_grants.counts(), self.rx_grants.counts()]
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

impl<R: Reach> Drop for Back<R> {
    fn drop(&mut self) {
        self.tx_grants.clear(&mut self.reach);
        self.rx_grants.clear(&mut self.reach);
    }
}
