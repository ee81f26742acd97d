//! Header split, by flows: of a packet that a [rule](rules::Rule) names, the headers go to host memory and the payload
//! to a device's. What a network interface does for device memory TCP, in software.
//!
//! ```text
//!            ┌ Ethernet │ IP │ TCP ┐┌ payload ────────────────┐
//!  frame     └─────────────────────┘└─────────────────────────┘   granted memory, lent
//!                      │ copied once           │ copied once
//!  split     headers: host memory,   fragments: chunks of a region, each with its token:
//!            lent for the call       theirs who has it, until it is given back
//! ```
//!
//! The payload goes from where it lies, which is the other side's memory in mode `persistent`, straight into the
//! device's memory. What cannot be split goes to host memory as a whole, with a reason, and is counted: devices call
//! that *linear*. That is so if there is no chunk left, too: nothing waits here, and nothing is lost.
//!
//! ```
//! use memlane_core::region::Region;
//! use memlane_packet::Meta;
//! use memlane_packet_ends::split::{Splitter, Terms, Whole};
//! use memlane_packet_ends::lend;
//! use memlane_packet::More;
//! use std::sync::Arc;
//!
//! let device = Arc::new(Region::create(c"device", 1 << 20, false).map_err(|e| e.to_string())?);
//! let rules = vec!["udp dst *:9000".parse().map_err(|e| format!("{e}"))?];
//! let mut splitter = Splitter::new(Arc::clone(&device), rules, Terms::default())?;
//! # let mut frame = vec![2; 12];
//! # frame.extend([8, 0, 0x45, 0, 0, 33, 0, 0, 0x40, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
//! # frame.extend([0, 7, 0x23, 0x28, 0, 13, 0, 0]);
//! # frame.extend(b"hello");
//! // 42 bytes of headers, and "hello"; of a queue: `port.receive(32, |frame| …)`.
//! let meta = Meta { data_validated: true, ..Meta::default() };
//! let mut tokens = Vec::new();
//! lend(&frame, meta, &mut |frame| {
//!     splitter.split(frame, |split| {
//!         assert_eq!((split.whole, split.headers.len()), (None, 42));
//!         let [fragment] = split.fragments else { panic!("one is enough for five bytes") };
//!         assert_eq!(fragment.len, 5);
//!         tokens.push(fragment.token);
//!     });
//!     More::Yes
//! });
//! let mut bytes = [0; 5];
//! // SAFETY: five bytes, in a region that is alive.
//! assert!(unsafe { device.bytes().copy_out(0, bytes.as_mut_ptr(), 5) });
//! assert_eq!(&bytes, b"hello");
//! assert_eq!(splitter.give_back(&tokens), 1);
//! # Ok::<(), String>(())
//! ```

pub mod device;
pub mod end;
mod look;
pub mod rules;

use super::{End, EndError, More};
use device::Chunks;
pub use device::{DeviceMemory, Token};
use end::Returns;
pub use end::{OwnedFragment, Receiver, SplitEnd};
use look::{Headers, Seen};
use memlane_packet::Meta;
use memlane_packet::engine::chain::Frame;
use memlane_packet::layout::PACKET_MAX;
use rules::Rule;
use std::sync::Arc;

/// How to split.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// The region's number, for users with several regions.
    pub region: u32,
    /// Bytes of a chunk: a power of two, 1 KiB to 64 KiB.
    pub chunk: usize,
    /// Split also packets whose checksum nobody vouches for ([`Meta::data_validated`]). Payload that lies on a device
    /// cannot be summed up by who has the headers.
    pub unchecked: bool,
}

impl Default for Terms {
    /// Region 0, chunks of 4 KiB, checked packets only.
    fn default() -> Terms {
        Terms {
            region: 0,
            chunk: 4096,
            unchecked: false,
        }
    }
}

/// A stretch of payload on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fragment {
    /// Of [`Terms::region`].
    pub region: u32,
    /// First byte, in the region.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
    /// The chunk is used until this is given back.
    pub token: Token,
}

/// Why a frame went to host memory as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whole {
    /// No rule names it, or it is neither TCP nor UDP.
    NoMatch,
    /// A piece of an IP packet.
    Fragmented,
    /// A packet within another.
    Encapsulated,
    /// Its headers are not whole, longer than 256 bytes, or contradict themselves.
    Torn,
    /// Nobody vouches for its checksum.
    Unchecked,
    /// There were too few chunks.
    NoChunk,
    /// The device could not be written.
    Device,
}

/// What became of a frame. Headers and fragments are lent; chunks are theirs who gets the tokens.
#[derive(Clone, Copy, Debug)]
pub struct Split<'a> {
    /// Headers, from Ethernet's on; the frame, if it is whole.
    pub headers: &'a [u8],
    /// The payload, in order; all but the last are full chunks. None, if there is none.
    pub fragments: &'a [Fragment],
    /// Bytes behind the packet, to make a short frame longer: left out.
    pub padding: usize,
    /// What the frame said of itself. One of several segments is split as one.
    pub meta: Meta,
    /// `None`: it was split; else why not.
    pub whole: Option<Whole>,
}

/// What was counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SplitCounts {
    /// Frames that were split.
    pub split: u64,
    /// Bytes that were copied to host memory.
    pub host_bytes: u64,
    /// Bytes that were copied to the device's memory.
    pub device_bytes: u64,
    /// Frames that went to host memory as a whole because no rule matches them.
    pub no_match: u64,
    /// Frames that stayed whole because they are fragments of an IP packet.
    pub fragmented: u64,
    /// Frames that stayed whole because they are in a tunnel.
    pub encapsulated: u64,
    /// Frames that stayed whole because their headers are incomplete or inconsistent.
    pub torn: u64,
    /// Frames that stayed whole because nobody vouches for their checksum.
    pub unchecked: u64,
    /// Frames that stayed whole because too few chunks were free.
    pub no_chunk: u64,
    /// Frames that stayed whole because the device's memory could not be written.
    pub device: u64,
    /// Tokens that were given back, and were nobody's.
    pub strange_tokens: u64,
}

impl SplitCounts {
    fn note(&mut self, whole: Option<Whole>) {
        let counter = match whole {
            None => &mut self.split,
            Some(Whole::NoMatch) => &mut self.no_match,
            Some(Whole::Fragmented) => &mut self.fragmented,
            Some(Whole::Encapsulated) => &mut self.encapsulated,
            Some(Whole::Torn) => &mut self.torn,
            Some(Whole::Unchecked) => &mut self.unchecked,
            Some(Whole::NoChunk) => &mut self.no_chunk,
            Some(Whole::Device) => &mut self.device,
        };
        *counter += 1;
    }
}

/// Splits frames into a device's memory.
#[derive(Debug)]
pub struct Splitter<D> {
    device: D,
    rules: Vec<Rule>,
    terms: Terms,
    chunks: Chunks,
    /// Host memory: headers of a frame, or all of it.
    slot: Box<[u8]>,
    fragments: Vec<Fragment>,
    /// Tokens that owners of fragments give back.
    returns: Arc<Returns>,
    returned: Vec<Token>,
    counts: SplitCounts,
}

impl<D: DeviceMemory> Splitter<D> {
    /// Into `device`, what one of the rules names.
    ///
    /// # Errors
    /// What is wrong with the terms.
    pub fn new(device: D, rules: Vec<Rule>, terms: Terms) -> Result<Splitter<D>, &'static str> {
        if !terms.chunk.is_power_of_two() || !(1 << 10..=1 << 16).contains(&terms.chunk) {
            return Err("a chunk has a power of two of bytes, 1 KiB to 64 KiB");
        }
        let chunks = Chunks::new(device.len(), terms.chunk);
        let chunks = chunks.ok_or("the region is shorter than a chunk, or has too many")?;
        Ok(Splitter {
            device,
            rules,
            terms,
            chunks,
            slot: vec![0; PACKET_MAX].into(),
            fragments: Vec::with_capacity(PACKET_MAX.div_ceil(terms.chunk)),
            returns: Arc::default(),
            returned: Vec::new(),
            counts: SplitCounts::default(),
        })
    }

    /// Receives up to `most` frames from an end, and lends `take` what became of each; how many came.
    ///
    /// # Errors
    /// The end has ended.
    pub fn receive(
        &mut self,
        from: &mut dyn End,
        most: usize,
        take: &mut dyn FnMut(&Split<'_>) -> More,
    ) -> Result<usize, EndError> {
        from.receive(most, &mut |frame| self.split(frame, &mut *take))
    }

    /// Splits a frame, or not; what `take` says of it.
    pub fn split<R>(&mut self, frame: &Frame<'_>, take: impl FnOnce(&Split<'_>) -> R) -> R {
        self.take_back();
        self.fragments.clear();
        let mut headers = Headers::new(frame, &mut self.slot);
        let seen = headers.look();
        let copied = headers.copied();
        let placed = match self.judge(seen, frame.meta()) {
            Ok((from, to)) => self.place(frame, from, to).map(|()| (from, to)),
            Err(why) => Err(why),
        };
        let (len, padding) = match placed {
            Ok((from, to)) => (from, frame.len() - to),
            Err(_) => {
                // The rest behind what was looked at; nothing that was looked at is read again.
                let end = frame.len().clamp(copied, self.slot.len());
                let rest = &mut self.slot[copied..end];
                (copied + frame.copy_out(copied, rest), 0)
            }
        };
        let whole = placed.err();
        self.counts.note(whole);
        self.counts.host_bytes += len as u64;
        take(&Split {
            headers: &self.slot[..len],
            fragments: &self.fragments,
            padding,
            meta: frame.meta(),
            whole,
        })
    }

    /// From where to where the payload goes to the device; or why not.
    fn judge(&self, seen: Seen, meta: Meta) -> Result<(usize, usize), Whole> {
        let (flow, from, to) = match seen {
            Seen::Flow(flow, from, to) => (flow, from, to),
            Seen::Other => return Err(Whole::NoMatch),
            Seen::Fragment => return Err(Whole::Fragmented),
            Seen::Tunnel => return Err(Whole::Encapsulated),
            Seen::Torn => return Err(Whole::Torn),
        };
        if !self.rules.iter().any(|rule| rule.matches(&flow)) {
            return Err(Whole::NoMatch);
        }
        if !(self.terms.unchecked || meta.data_validated || meta.csum_blank) {
            return Err(Whole::Unchecked);
        }
        if (to - from).div_ceil(self.chunks.size()) > self.chunks.free() {
            return Err(Whole::NoChunk);
        }
        Ok((from, to))
    }

    /// Copies a payload to the device: all of it, or nothing is used.
    fn place(&mut self, frame: &Frame<'_>, from: usize, to: usize) -> Result<(), Whole> {
        let done = self.copy(frame, from, to);
        if done.is_err() {
            for fragment in self.fragments.drain(..) {
                self.chunks.give_back(fragment.token);
            }
        }
        done
    }

    fn copy(&mut self, frame: &Frame<'_>, from: usize, to: usize) -> Result<(), Whole> {
        let (mut skip, mut left) = (from, to - from);
        for part in frame.parts() {
            let mut at = skip.min(part.len());
            skip -= at;
            while at < part.len() && left > 0 {
                let place = self.room()?;
                let n = left.min(part.len() - at).min(place.1);
                let stretch = part.part(at, n).ok_or(Whole::Torn)?;
                self.device
                    .write(place.0, &stretch)
                    .map_err(|_| Whole::Device)?;
                if let Some(last) = self.fragments.last_mut() {
                    last.len += n;
                }
                self.counts.device_bytes += n as u64;
                (at, left) = (at + n, left - n);
            }
        }
        Ok(())
    }

    /// Where the payload goes on, and how much fits there: in the last fragment's chunk, or in a new one.
    fn room(&mut self) -> Result<(usize, usize), Whole> {
        let size = self.chunks.size();
        if let Some(last) = self.fragments.last().filter(|last| last.len < size) {
            return Ok((last.offset + last.len, size - last.len));
        }
        let (offset, token) = self.chunks.take().ok_or(Whole::NoChunk)?;
        self.fragments.push(Fragment {
            region: self.terms.region,
            offset,
            len: 0,
            token,
        });
        Ok((offset, size))
    }

    /// Chunks are free again; how many. Tokens that are nobody's are counted, and nothing else.
    pub fn give_back(&mut self, tokens: &[Token]) -> usize {
        let freed = tokens.iter().filter(|token| self.chunks.give_back(**token));
        let freed = freed.count();
        self.counts.strange_tokens += (tokens.len() - freed) as u64;
        freed
    }

    /// Gives a fragment an owner, who gives it back when he drops it, from any thread.
    pub fn hold(&self, fragment: &Fragment) -> OwnedFragment {
        OwnedFragment::new(*fragment, &self.returns)
    }

    fn returns(&self) -> Arc<Returns> {
        Arc::clone(&self.returns)
    }

    /// Frees what owners have dropped. This happens before each frame and before each count.
    pub fn take_back(&mut self) {
        let mut returned = core::mem::take(&mut self.returned);
        self.returns.take(&mut returned);
        if !returned.is_empty() {
            self.give_back(&returned);
            returned.clear();
        }
        self.returned = returned;
    }

    /// The number of chunks that have an owner.
    pub fn outstanding(&self) -> usize {
        self.chunks.outstanding()
    }

    /// What was counted.
    pub fn counts(&self) -> SplitCounts {
        self.counts
    }

    /// The memory.
    pub fn device(&self) -> &D {
        &self.device
    }
}
