//! One pair of virtqueues as an [`End`]: by what the guest sends frames come, by what it receives they go.

use super::shared::{Driver, Shared};
use super::vring::Vring;
use crate::headers::{self, LOOK};
use crate::peer_event::PeerEventFd;
use crate::{End, EndCounts, EndError, More, Sent, Sleep, lend, vnet};
use memlane_core::access::SharedBytes;
use memlane_packet::engine::chain::{Frame, Room};
use memlane_packet::error::Detach;
use memlane_packet::layout::{PACKET_MAX, PACKET_MIN, SLOTS_MAX};
use memlane_packet::{Meta, Offloads};
use memlane_virtio::chain::Piece;
use memlane_virtio::memory::each_window;
use rustix::event::{PollFd, PollFlags};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vm_memory::GuestMemoryMmap;

/// A guest that polls has no doorbell: how often to look.
const EVERY: Duration = Duration::from_micros(100);

/// A queue pair of a guest's network device.
#[derive(Debug)]
pub struct VhostQueue {
    shared: Arc<Shared>,
    session: u32,
    pair: usize,
    driver: Driver,
    /// What frames may ask for of who takes them here.
    takes: Offloads,
    /// Of what the guest sends by, and receives by, as they were when we last looked.
    kicks: [Option<Arc<PeerEventFd>>; 2],
    due: Option<Instant>,
    out: Out,
    scratch: Scratch,
    counts: EndCounts,
    ended: Option<Detach>,
}

/// Where the next frame goes.
#[derive(Debug)]
struct Out {
    /// Chains that are there for certain.
    left: u16,
    /// What a chain held last, in bytes.
    chain: usize,
    /// The longest frame until now, with its header.
    longest: usize,
}

#[derive(Debug)]
struct Scratch {
    pieces: Vec<Piece>,
    parts: Vec<SharedBytes>,
    /// Chains of one frame: head, bytes that they hold.
    heads: Vec<(u16, usize)>,
    /// A frame that cannot be lent as it lies there.
    bytes: Box<[u8]>,
}

impl VhostQueue {
    pub(super) fn new(
        shared: &Arc<Shared>,
        session: u32,
        driver: Driver,
        pair: usize,
    ) -> VhostQueue {
        VhostQueue {
            shared: Arc::clone(shared),
            session,
            pair,
            driver,
            takes: Offloads {
                gso4: true,
                gso6: true,
            },
            kicks: [None, None],
            due: None,
            out: Out {
                left: 0,
                chain: PACKET_MAX,
                longest: 0,
            },
            scratch: Scratch {
                pieces: Vec::new(),
                parts: Vec::new(),
                heads: Vec::new(),
                bytes: vec![0; PACKET_MAX].into(),
            },
            counts: EndCounts::default(),
            ended: None,
        }
    }

    #[inline]
    fn alive(&mut self) -> Result<(), Detach> {
        if self.ended.is_none() && self.shared.session() != self.session {
            self.ended = Some(Detach::PeerDetached(0));
        }
        self.ended.map_or(Ok(()), Err)
    }

    /// It is over; a guest that did what it must not is hung up on.
    #[cold]
    fn end(&mut self, why: Detach) -> Detach {
        let why = *self.ended.get_or_insert(why);
        if why.is_hostile() {
            self.shared.hang_up(self.session, &why);
        }
        why
    }

    // ---- from the guest -----------------------------------------------------

    fn take(
        &mut self,
        most: usize,
        take: &mut dyn FnMut(&Frame<'_>) -> More,
    ) -> Result<usize, Detach> {
        let shared = Arc::clone(&self.shared);
        let mut ring = shared.outbox(self.pair);
        let Some(memory) = ring.running() else {
            return Ok(0);
        };
        let ready = usize::from(ring.waiting(&memory)?).min(most);
        let mut n = 0;
        while n < ready {
            let Some(head) = ring.pop(&memory, &mut self.scratch.pieces)? else {
                break;
            };
            n += 1;
            let more = self.lend(&ring, &memory, take)?;
            ring.answer(&memory, head, 0)?;
            if more == More::No {
                break;
            }
        }
        ring.show(&memory)?;
        Ok(n)
    }

    /// Lends the frame whose pieces were read.
    fn lend(
        &mut self,
        ring: &Vring,
        memory: &GuestMemoryMmap,
        take: &mut dyn FnMut(&Frame<'_>) -> More,
    ) -> Result<More, Detach> {
        let Scratch {
            pieces,
            parts,
            bytes,
            ..
        } = &mut self.scratch;
        let len = self.driver.header;
        let total = windows(ring, memory, pieces, parts)?;
        let mut header = [0; vnet::LEN];
        copy_out(parts, &mut header);
        drop_front(parts, len);
        let Some(total) = total.checked_sub(len).filter(|n| *n >= PACKET_MIN) else {
            self.counts.failed += 1;
            return Ok(More::Yes);
        };
        let mut look = [0; LOOK];
        let mut looked = 0;
        if header[..2] != [0, 0] {
            looked = copy_out(parts, &mut look);
        }
        let read = vnet::read(&header, &look[..looked], total);
        let meta = match read {
            vnet::Read::Said(meta) if self.takes.allow(meta.gso) => meta,
            vnet::Read::FillIn(..) => Meta {
                data_validated: true,
                ..Meta::default()
            },
            _ => {
                self.counts.failed += 1;
                return Ok(More::Yes);
            }
        };
        self.counts.count_received(total);
        let frame = Frame::new(parts, total, meta);
        if !matches!(read, vnet::Read::FillIn(..)) && parts.len() <= SLOTS_MAX {
            return Ok(take(&frame));
        }
        let bytes = &mut bytes[..total];
        frame.copy_out(0, bytes);
        if let vnet::Read::FillIn(start, offset) = read
            && !headers::fill_in(bytes, start, offset, total)
        {
            self.counts.failed += 1;
            return Ok(More::Yes);
        }
        Ok(lend(bytes, meta, take))
    }

    // ---- to the guest -------------------------------------------------------

    fn give(&mut self, frame: &Frame<'_>, header: [u8; vnet::LEN]) -> Result<Sent, Detach> {
        let shared = Arc::clone(&self.shared);
        let mut ring = shared.inbox(self.pair);
        let Some(memory) = ring.running() else {
            return Ok(Sent::Full(1));
        };
        let want = self.driver.header + frame.len();
        self.out.longest = self.out.longest.max(want);
        match self.collect(&mut ring, &memory, want)? {
            Sent::Queued => {}
            sent => return Ok(sent),
        }
        let Scratch { parts, heads, .. } = &self.scratch;
        let mut whole = [0; 12];
        whole[..vnet::LEN].copy_from_slice(&header);
        let buffers = u16::try_from(heads.len()).unwrap_or(u16::MAX);
        whole[vnet::LEN..].copy_from_slice(&buffers.to_le_bytes());
        let room = Room::new(parts, want);
        room.copy_in(0, &whole[..self.driver.header]);
        let mut at = self.driver.header;
        for part in frame.parts() {
            at += room.copy_from(at, &part);
        }
        let mut left = want;
        for (head, holds) in heads {
            let used = left.min(*holds);
            left -= used;
            let used = u32::try_from(used).unwrap_or(u32::MAX);
            ring.answer(&memory, *head, used)?;
        }
        self.out.left = self.out.left.saturating_sub(buffers);
        self.out.chain = heads[0].1.max(1);
        Ok(Sent::Queued)
    }

    /// Takes chains that together hold this many bytes, or none.
    fn collect(
        &mut self,
        ring: &mut Vring,
        memory: &GuestMemoryMmap,
        want: usize,
    ) -> Result<Sent, Detach> {
        let Scratch {
            pieces,
            parts,
            heads,
            ..
        } = &mut self.scratch;
        parts.clear();
        heads.clear();
        let mut have = 0;
        let put_back = |ring: &mut Vring, heads: &[(u16, usize)]| {
            ring.put_back(u16::try_from(heads.len()).unwrap_or(u16::MAX));
        };
        while have < want {
            if heads.len() >= usize::from(ring.size()) || (!self.driver.merges && have > 0) {
                put_back(ring, heads);
                return Ok(Sent::Refused);
            }
            let Some(head) = ring.pop(memory, pieces)? else {
                put_back(ring, heads);
                let size = u32::from(ring.size());
                let chains = match heads.len() {
                    0 => 1,
                    n => want.div_ceil((have / n).max(1)).max(n + 1),
                };
                return Ok(Sent::Full(u32::try_from(chains).unwrap_or(size).min(size)));
            };
            let holds = rooms(ring, memory, pieces, want - have, parts)?;
            heads.push((head, holds));
            have += holds;
        }
        Ok(Sent::Queued)
    }

    /// A guest that wants all checksums has them filled in, in memory of our own.
    #[cold]
    fn give_filled_in(&mut self, frame: &Frame<'_>) -> Result<Sent, Detach> {
        let mut bytes = vec![0; frame.len()];
        frame.copy_out(0, &mut bytes);
        let look = bytes.len().min(LOOK);
        if let Some(found) = headers::find(&bytes[..look], bytes.len()) {
            headers::fill_in(&mut bytes, found.at, found.checksum, found.end);
        }
        let mut sent = Ok(Sent::Refused);
        lend(&bytes, Meta::default(), &mut |frame| {
            sent = self.give(frame, [0; vnet::LEN]);
            More::No
        });
        sent
    }

    fn send_frame(&mut self, frame: &Frame<'_>) -> Result<Sent, Detach> {
        let meta = frame.meta();
        let fits = (PACKET_MIN..=PACKET_MAX).contains(&frame.len());
        if !fits || !self.driver.takes.allow(meta.gso) {
            return Ok(Sent::Refused);
        }
        if !meta.csum_blank && meta.gso.is_none() {
            return self.give(frame, [0; vnet::LEN]);
        }
        if !self.driver.sums {
            return self.give_filled_in(frame);
        }
        let mut look = [0; LOOK];
        let n = frame.copy_out(0, &mut look);
        match vnet::write(meta, &look[..n], frame.len()) {
            Some(header) => self.give(frame, header),
            None => Ok(Sent::Refused),
        }
    }

    /// Chains that any frame may take, as far as those until now tell.
    fn need(&self, size: u16) -> u16 {
        let chains = self.out.longest.div_ceil(self.out.chain.max(1)).max(1);
        u16::try_from(chains).unwrap_or(u16::MAX).min(size / 2 + 1)
    }

    fn look_for_room(&mut self) -> Result<u32, Detach> {
        let shared = Arc::clone(&self.shared);
        let ring = shared.inbox(self.pair);
        let need = self.need(ring.size());
        if self.out.left >= need {
            return Ok(0);
        }
        let Some(memory) = ring.running() else {
            return Ok(1);
        };
        self.out.left = ring.waiting(&memory)?;
        let lacks = self.out.left < need;
        Ok(if lacks { need.into() } else { 0 })
    }

    fn show(&mut self) -> Result<(), Detach> {
        let shared = Arc::clone(&self.shared);
        let mut ring = shared.inbox(self.pair);
        if let Some(memory) = ring.running() {
            ring.show(&memory)?;
        }
        Ok(())
    }

    // ---- sleep --------------------------------------------------------------

    fn ask(&mut self, until: Sleep) -> Result<bool, Detach> {
        let shared = Arc::clone(&self.shared);
        self.due = None;
        if until.frames {
            let mut ring = shared.outbox(self.pair);
            self.kicks[0] = ring.kick();
            if let Some(memory) = ring.running() {
                if !ring.ask(&memory, 1)? {
                    return Ok(false);
                }
                self.polls(0);
            }
        }
        if until.room > 0 {
            let mut ring = shared.inbox(self.pair);
            self.kicks[1] = ring.kick();
            if let Some(memory) = ring.running() {
                let chains = u16::try_from(until.room).unwrap_or(u16::MAX);
                let chains = chains.min(ring.size());
                if !ring.ask(&memory, chains)? {
                    return Ok(false);
                }
                self.polls(1);
            }
        }
        Ok(true)
    }

    /// A ring without a doorbell, or whose doorbell another thread may have heard for us.
    fn polls(&mut self, n: usize) {
        if self.kicks[n].is_none() || self.pair > 0 && n == 1 {
            self.due = Some(Instant::now() + EVERY);
        }
    }

    fn drain(&mut self) -> Result<(), Detach> {
        self.shared.changed(self.pair).drain();
        self.kicks.iter().flatten().for_each(|kick| kick.drain());
        let shared = Arc::clone(&self.shared);
        let drain = |ring: &mut Vring| match ring.running() {
            Some(memory) => ring.drain(&memory),
            None => Ok(()),
        };
        drain(&mut shared.outbox(self.pair))?;
        drain(&mut shared.inbox(self.pair))
    }
}

/// Windows on what a guest wants to be read, in order; how many bytes.
fn windows(
    ring: &Vring,
    memory: &GuestMemoryMmap,
    pieces: &[Piece],
    parts: &mut Vec<SharedBytes>,
) -> Result<usize, Detach> {
    parts.clear();
    if pieces.iter().any(|piece| piece.writable) {
        return Err(ring.wrong("a buffer for us to write where a frame was to be"));
    }
    let total: u64 = pieces.iter().map(|piece| u64::from(piece.len)).sum();
    let total = usize::try_from(total).unwrap_or(usize::MAX);
    if total > PACKET_MAX + 12 {
        return Err(ring.wrong("a frame that is too long"));
    }
    for piece in pieces {
        let all = each_window(memory, piece.at, piece.len as usize, |window| {
            parts.push(window);
            true
        });
        if !all {
            return Err(ring.wrong("a frame outside of the guest's memory"));
        }
    }
    Ok(total)
}

/// Windows on what a guest wants to be written, of `most` bytes; how many bytes the buffer holds in all.
fn rooms(
    ring: &Vring,
    memory: &GuestMemoryMmap,
    pieces: &[Piece],
    most: usize,
    parts: &mut Vec<SharedBytes>,
) -> Result<usize, Detach> {
    let (mut left, mut holds) = (most, 0_usize);
    for piece in pieces {
        if !piece.writable {
            return Err(ring.wrong("a buffer that we may not write"));
        }
        holds = holds.saturating_add(piece.len as usize);
        let now = left.min(piece.len as usize);
        left -= now;
        let all = each_window(memory, piece.at, now, |window| {
            parts.push(window);
            true
        });
        if !all {
            return Err(ring.wrong("a buffer outside of the guest's memory"));
        }
    }
    match holds {
        0 => Err(ring.wrong("a buffer without room")),
        holds => Ok(holds),
    }
}

/// Copies the first bytes of `parts`; how many.
fn copy_out(parts: &[SharedBytes], into: &mut [u8]) -> usize {
    let len = parts.iter().map(SharedBytes::len).sum();
    Frame::new(parts, len, Meta::default()).copy_out(0, into)
}

/// Drops the first bytes.
fn drop_front(parts: &mut Vec<SharedBytes>, mut n: usize) {
    let mut whole = 0;
    for part in parts.iter_mut() {
        if n < part.len() {
            *part = part.part(n, part.len() - n).unwrap_or(*part);
            break;
        }
        n -= part.len();
        whole += 1;
    }
    parts.drain(..whole);
}

impl End for VhostQueue {
    fn name(&self) -> &str {
        &self.shared.name
    }

    fn offloads(&self) -> Offloads {
        self.driver.takes
    }

    fn limit(&mut self, takes: Offloads) -> Result<(), EndError> {
        self.takes = takes;
        Ok(())
    }

    fn receive(
        &mut self,
        most: usize,
        take: &mut dyn FnMut(&Frame<'_>) -> More,
    ) -> Result<usize, EndError> {
        self.alive()?;
        let got = self.take(most, take);
        Ok(got.map_err(|why| self.end(why))?)
    }

    fn send(&mut self, frame: &Frame<'_>) -> Result<Sent, EndError> {
        self.alive()?;
        let sent = self.send_frame(frame).map_err(|why| self.end(why))?;
        match sent {
            Sent::Queued => {
                self.counts.count_sent(frame.len());
            }
            Sent::Full(_) => self.counts.full += 1,
            Sent::Refused => self.counts.failed += 1,
        }
        Ok(sent)
    }

    fn lacks(&mut self) -> Result<u32, EndError> {
        self.alive()?;
        let lacks = self.look_for_room();
        Ok(lacks.map_err(|why| self.end(why))?)
    }

    fn flush(&mut self) -> Result<(), EndError> {
        self.alive()?;
        let shown = self.show();
        Ok(shown.map_err(|why| self.end(why))?)
    }

    fn sleeps(&mut self, until: Sleep) -> Result<bool, EndError> {
        self.alive()?;
        let nothing = self.ask(until);
        Ok(nothing.map_err(|why| self.end(why))?)
    }

    fn watch<'a>(&'a self, until: Sleep, fds: &mut Vec<PollFd<'a>>) {
        let changed = self.shared.changed(self.pair);
        fds.push(PollFd::new(changed, PollFlags::IN));
        let wanted = [until.frames, until.room > 0];
        for (kick, wanted) in self.kicks.iter().zip(wanted) {
            if let Some(kick) = kick.as_ref().filter(|_| wanted) {
                fds.push(PollFd::new(&**kick, PollFlags::IN));
            }
        }
    }

    fn woken(&mut self) -> Result<(), EndError> {
        let drained = self.drain();
        drained.map_err(|why| self.end(why))?;
        Ok(self.alive()?)
    }

    fn due(&self) -> Option<Instant> {
        self.due
    }

    fn counts(&self) -> EndCounts {
        self.counts
    }
}
