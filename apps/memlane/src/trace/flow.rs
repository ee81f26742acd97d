//! Records into the segments of the TCP streams they stand for. Knows no descriptors and no clock.
//!
//! Both ends of a connection may be traced: then every byte is told twice. What
//! counts is the stream offset: the first record that has the next bytes is
//! written, and what was written already is not written again. A record that
//! comes too early (threads of one program, or its bytes' first half is still on
//! its way from the other end) waits for [`HOLD_NS`] for what is missing; then the
//! gap stays, for Wireshark to point at.

use std::collections::{BTreeMap, HashMap};

use memlane_core::trace::{Record, RecordKind, Way};

use super::packet::{ACK, End, FIN, PSH, RST, SYN, Segment, end};

/// How long bytes wait for those before them.
pub(super) const HOLD_NS: u64 = 200_000_000;
/// Records of one direction that wait at most.
const MOST_WAITING: usize = 1024;
/// How long a connection that has ended is remembered, if there are many.
const REMEMBER_NS: u64 = 2_000_000_000;
/// How many of them are many.
const MOST_ENDED: usize = 4096;
/// From one connection of these addresses and ports to the next.
const NEXT_START: u32 = 0x2000_0001;

/// Where segments go.
pub(super) trait Sink {
    /// One segment, of which `payload` was captured.
    fn segment(&mut self, lane: u8, time_ns: u64, segment: &Segment, payload: &[u8]);
}

/// What waits for bytes before it.
#[derive(Debug)]
struct Early {
    record: Record,
    payload: Vec<u8>,
}

/// One direction of a connection.
#[derive(Debug, Default)]
struct Direction {
    /// Stream offset of the next byte to be written; `None`: nothing is known of it yet.
    next: Option<u64>,
    /// What the other end has said to have of it.
    acked: u64,
    ended: bool,
    early: BTreeMap<u64, Early>,
}

/// One connection.
#[derive(Debug, Default)]
struct Flow {
    started: bool,
    over: bool,
    /// When it was last told of.
    last_ns: u64,
    /// Sequence number of offset 0, less one.
    start: u32,
    /// By end: which connection of which process told of it.
    known: [Option<(usize, u64)>; 2],
    /// Bytes from the first end of the key to the second, and back.
    ways: [Direction; 2],
}

/// All connections.
#[derive(Debug, Default)]
pub(super) struct Flows {
    flows: HashMap<(End, End), Flow>,
    /// Connections that were ever seen.
    pub(super) count: u64,
    /// Stream bytes between what was written that no record told of.
    pub(super) missing: u64,
    /// Connections with something in `early`.
    waiting: Vec<(End, End)>,
    /// When there are this many connections, those that have ended are forgotten.
    forget_at: usize,
}

impl Flows {
    /// Takes one record of process `source`.
    pub(super) fn record(
        &mut self,
        source: usize,
        record: &Record,
        payload: &[u8],
        sink: &mut impl Sink,
    ) {
        let (local, remote) = (end(record.local), end(record.remote));
        let key = (local.min(remote), local.max(remote));
        let here = usize::from(local != key.0);
        let flow = self.flows.entry(key).or_default();
        let again = flow.known[here].is_some_and(|id| id != (source, record.conn));
        if again && (flow.over || record.kind == RecordKind::Open) {
            *flow = Flow {
                start: flow.start.wrapping_add(NEXT_START),
                ..Flow::default()
            };
        }
        if flow.known == [None; 2] {
            self.count += 1;
        }
        flow.known[here] = Some((source, record.conn));
        flow.last_ns = record.time_ns;
        let way = match record.way {
            Way::Sent => here,
            Way::Received => 1 - here,
        };
        let mut work = Work {
            key,
            way,
            flow,
            missing: &mut self.missing,
            sink,
        };
        work.begin(record);
        work.take(record, payload);
        if !work.flow.ways[way].early.is_empty() && !self.waiting.contains(&key) {
            self.waiting.push(key);
        }
    }

    /// Gives up on what has been missing since before `until_ns`.
    pub(super) fn settle(&mut self, until_ns: u64, sink: &mut impl Sink) {
        let waiting = std::mem::take(&mut self.waiting);
        for key in waiting {
            let Some(flow) = self.flows.get_mut(&key) else {
                continue;
            };
            for way in 0..2 {
                let mut work = Work {
                    key,
                    way,
                    flow,
                    missing: &mut self.missing,
                    sink,
                };
                work.give_up(until_ns);
            }
            if flow.ways.iter().any(|w| !w.early.is_empty()) {
                self.waiting.push(key);
            }
        }
        if self.flows.len() >= self.forget_at.max(MOST_ENDED) {
            // The other end may still have to tell of it.
            self.flows.retain(|_, flow| {
                !flow.over || flow.last_ns > until_ns.saturating_sub(REMEMBER_NS)
            });
            self.forget_at = 2 * self.flows.len();
        }
    }
}

/// One direction of one connection, at work.
struct Work<'a, S> {
    key: (End, End),
    way: usize,
    flow: &'a mut Flow,
    missing: &'a mut u64,
    sink: &'a mut S,
}

impl<S: Sink> Work<'_, S> {
    /// The first thing that is known of a connection: its beginning, or somewhere in the middle.
    fn begin(&mut self, record: &Record) {
        if self.flow.started || record.kind == RecordKind::Reset {
            return;
        }
        self.flow.started = true;
        if record.seq != 0 || record.ack != 0 {
            return;
        }
        let connecting = match (record.role, record.way) {
            (0, Way::Sent) | (1, Way::Received) => self.way,
            _ => 1 - self.way,
        };
        for (way, flags) in [
            (connecting, SYN),
            (1 - connecting, SYN | ACK),
            (connecting, ACK),
        ] {
            let offset = if flags == ACK { 0 } else { -1 };
            let seq = self.number(offset);
            let acked = self.number(0);
            self.put(way, seq, acked, flags, record, &[], 0);
        }
        for way in &mut self.flow.ways {
            way.next = Some(0);
        }
    }

    fn take(&mut self, record: &Record, payload: &[u8]) {
        match record.kind {
            RecordKind::Open => {}
            RecordKind::Reset => self.reset(record),
            RecordKind::Data | RecordKind::Fin => {
                let next = self.direction().next.get_or_insert(record.seq);
                if record.seq > *next {
                    self.keep(record, payload);
                } else {
                    self.write(record, payload);
                    self.write_early();
                }
                if record.kind == RecordKind::Data && record.way == Way::Received {
                    self.acknowledge(record);
                }
            }
        }
    }

    fn direction(&mut self) -> &mut Direction {
        &mut self.flow.ways[self.way]
    }

    fn keep(&mut self, record: &Record, payload: &[u8]) {
        let early = &mut self.direction().early;
        early.insert(
            record.seq,
            Early {
                record: *record,
                payload: payload.to_vec(),
            },
        );
        if early.len() > MOST_WAITING {
            self.give_up(u64::MAX);
        }
    }

    /// What waited, as far as nothing is missing before it.
    fn write_early(&mut self) {
        loop {
            let way = self.direction();
            let next = way.next.unwrap_or(0);
            let Some(first) = way.early.first_entry().filter(|e| *e.key() <= next) else {
                return;
            };
            let early = first.remove();
            self.write(&early.record, &early.payload);
        }
    }

    /// What has waited since before `until_ns` is written, with a gap before it.
    fn give_up(&mut self, until_ns: u64) {
        loop {
            let way = self.direction();
            let Some(first) = way.early.first_key_value() else {
                return;
            };
            if first.1.record.time_ns > until_ns {
                return;
            }
            let seq = *first.0;
            *self.missing += seq.saturating_sub(self.direction().next.unwrap_or(seq));
            self.direction().next = Some(seq);
            self.write_early();
        }
    }

    /// Bytes (or the end) that begin at or before the next byte: what is new of them.
    fn write(&mut self, record: &Record, payload: &[u8]) {
        let next = self.direction().next.unwrap_or(record.seq);
        if self.flow.ways[self.way].ended {
            return;
        }
        if record.kind == RecordKind::Fin {
            let (seq, acked) = (self.number(to_signed(next)), self.acked(record));
            self.put(self.way, seq, acked, FIN | ACK, record, &[], 0);
            self.direction().ended = true;
            self.flow.over = true;
            return;
        }
        let bytes = u64::from(record.bytes);
        let old = next.saturating_sub(record.seq);
        if old >= bytes {
            return;
        }
        let skip = usize::try_from(old).unwrap_or(usize::MAX);
        let new = usize::try_from(bytes - old).unwrap_or(0);
        let (seq, acked) = (self.number(to_signed(next)), self.acked(record));
        let payload = payload.get(skip..).unwrap_or(&[]);
        self.put(self.way, seq, acked, ACK | PSH, record, payload, new);
        self.direction().next = Some(next.saturating_add(bytes - old));
    }

    /// The receiver has these bytes.
    fn acknowledge(&mut self, record: &Record) {
        let way = self.way;
        let direction = self.direction();
        let have = record.seq.saturating_add(u64::from(record.bytes));
        let have = have.min(direction.next.unwrap_or(have));
        if have <= direction.acked {
            return;
        }
        direction.acked = have;
        // Not before the first byte of the other direction is known to have a place.
        let back = self.flow.ways[1 - way].next.unwrap_or(record.ack);
        let back = back.saturating_add(u64::from(self.flow.ways[1 - way].ended));
        let (seq, acked) = (self.number(to_signed(back)), self.number(to_signed(have)));
        self.put(1 - way, seq, acked, ACK, record, &[], 0);
    }

    fn reset(&mut self, record: &Record) {
        if self.flow.ways[self.way].ended {
            return;
        }
        let next = self.direction().next.unwrap_or(record.seq);
        let (seq, acked) = (self.number(to_signed(next)), self.acked(record));
        self.put(self.way, seq, acked, RST | ACK, record, &[], 0);
        for way in &mut self.flow.ways {
            way.ended = true;
        }
        self.flow.over = true;
    }

    /// What the sender of this direction's bytes has of the other: never more than was written of it.
    fn acked(&mut self, record: &Record) -> u32 {
        let other = &mut self.flow.ways[1 - self.way];
        let mut has = record.ack.min(other.next.unwrap_or(record.ack));
        has = has.max(other.acked);
        other.acked = has;
        if other.ended && Some(has) == other.next {
            has = has.saturating_add(1);
        }
        self.number(to_signed(has))
    }

    /// The sequence number of a stream offset; −1 is the SYN's.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // sequence numbers wrap
    fn number(&self, offset: i64) -> u32 {
        self.flow.start.wrapping_add(1).wrapping_add(offset as u32)
    }

    #[allow(clippy::too_many_arguments)] // a segment's fields
    fn put(
        &mut self,
        way: usize,
        seq: u32,
        ack: u32,
        flags: u8,
        record: &Record,
        payload: &[u8],
        bytes: usize,
    ) {
        let (from, to) = match way {
            0 => (self.key.0, self.key.1),
            _ => (self.key.1, self.key.0),
        };
        let segment = Segment {
            from,
            to,
            seq,
            ack,
            flags,
            bytes,
        };
        self.sink
            .segment(record.lane, record.time_ns, &segment, payload);
    }
}

/// Offsets stay far below 2⁶³; one that does not is a liar's.
fn to_signed(offset: u64) -> i64 {
    i64::try_from(offset).unwrap_or(i64::MAX)
}

#[cfg(test)]
#[path = "flow_tests.rs"]
mod tests;
