//! The trace ring: what a process carries, for a tracer that may look at it.
//!
//! One memfd per process, named `memlane-trace`: a page of words, and from
//! [`RING_AT`] on a ring of records that the *tracer* makes as long as it wants
//! (the process seals the file against shrinking, so nothing it has mapped can
//! go). While nobody traces, the process looks at one word, `on`, and at nothing
//! else; docs/formats/trace-ring.md has the whole story.
//!
//! | word | written by | read by | ordering |
//! |---|---|---|---|
//! | `magic` … `uid` | process, once | tracer | `magic` last, release/acquire |
//! | `on` | tracer (1, 0), process (0: the tracer is gone) | process | after the other words of the tracer, release/acquire; the first look is relaxed |
//! | `ring_size`, `snaplen`, `port`, `tracer` | tracer, while `on` is 0 | process, other tracers | before `on` |
//! | `tail` | tracer | process | release/acquire: what lies below may be overwritten, and is zero |
//! | `head`, `dropped_records`, `dropped_bytes`, `error` | process | tracer | `head` release/acquire, the rest statistics |
//! | `writers` | process | tracer, when it begins and ends | sequentially consistent, against `on` |
//! | a record's `length` | process, last; tracer (0) | tracer | release/acquire: the record is there |
//!
//! The process believes nothing: where it writes comes from its own `head`, and
//! `tail` and `ring_size` are checked against what it knows. The tracer believes
//! nothing either: a record is copied out once, then checked.

use crate::access::SharedBytes;
use core::ffi::CStr;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Name of the memfd.
pub const MEMFD_NAME: &CStr = c"memlane-trace";
/// `Page::magic`: "MLTRACE1", little endian.
pub const MAGIC: u64 = u64::from_le_bytes(*b"MLTRACE1");
/// `Page::version`.
pub const VERSION: u32 = 1;
/// Where the ring begins: the largest page of the architectures that we build for.
pub const RING_AT: usize = 65536;
/// Smallest ring: some records of the longest kind.
pub const RING_MIN: u64 = 256 * 1024;
/// Largest ring.
pub const RING_MAX: u64 = 1024 * 1024 * 1024;
/// Bytes of a record before its payload.
pub const RECORD: usize = 96;
/// Records begin at multiples of this, so that `length` never wraps.
pub const ALIGN: usize = 32;
/// Most bytes of a stream in one record: the most that fits into an IPv4 packet
/// (65,535 less two headers of 20), which is also what SMC calls a loopback MSS.
pub const SEGMENT: usize = 65_495;

/// The words. Each group has 128 bytes to itself.
#[repr(C)]
#[derive(Debug)]
pub struct Page {
    /// See the table above: 0 = nobody traces.
    pub on: AtomicU32,
    /// `VERSION`.
    pub version: AtomicU32,
    /// `MAGIC`.
    pub magic: AtomicU64,
    /// `RING_AT`.
    pub ring_at: AtomicU32,
    /// The process's id in its own pid namespace.
    pub pid: AtomicU32,
    /// Its effective user id when the page was made.
    pub uid: AtomicU32,
    /// Filler.
    pub reserved0: [AtomicU32; 25],
    /// Bytes of the ring: a power of two.
    pub ring_size: AtomicU64,
    /// Most payload bytes of one record that are copied.
    pub snaplen: AtomicU32,
    /// Only connections with this port at either end; 0 = all.
    pub port: AtomicU32,
    /// The tracer's process id, as it says: for messages.
    pub tracer: AtomicU32,
    /// Filler.
    pub reserved1: [AtomicU32; 27],
    /// Position up to which the tracer has everything.
    pub tail: AtomicU64,
    /// Filler.
    pub reserved2: [AtomicU64; 15],
    /// Position up to which room has been given to records.
    pub head: AtomicU64,
    /// Records for which there was no room.
    pub dropped_records: AtomicU64,
    /// Stream bytes of those.
    pub dropped_bytes: AtomicU64,
    /// Threads that are writing a record now.
    pub writers: AtomicU32,
    /// Why there is no ring (an errno); 0 = nothing is wrong.
    pub error: AtomicU32,
    /// Filler.
    pub reserved3: [AtomicU64; 12],
}

/// Bytes of `Page`.
pub const PAGE_LEN: usize = 512;

const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<Page>() == PAGE_LEN);
    assert!(offset_of!(Page, ring_size) == 128);
    assert!(offset_of!(Page, tail) == 256);
    assert!(offset_of!(Page, head) == 384);
};

impl Page {
    /// All zero: nobody traces.
    pub const fn zero() -> Page {
        Page {
            on: AtomicU32::new(0),
            version: AtomicU32::new(0),
            magic: AtomicU64::new(0),
            ring_at: AtomicU32::new(0),
            pid: AtomicU32::new(0),
            uid: AtomicU32::new(0),
            reserved0: [const { AtomicU32::new(0) }; 25],
            ring_size: AtomicU64::new(0),
            snaplen: AtomicU32::new(0),
            port: AtomicU32::new(0),
            tracer: AtomicU32::new(0),
            reserved1: [const { AtomicU32::new(0) }; 27],
            tail: AtomicU64::new(0),
            reserved2: [const { AtomicU64::new(0) }; 15],
            head: AtomicU64::new(0),
            dropped_records: AtomicU64::new(0),
            dropped_bytes: AtomicU64::new(0),
            writers: AtomicU32::new(0),
            error: AtomicU32::new(0),
            reserved3: [const { AtomicU64::new(0) }; 12],
        }
    }
}

/// Can a ring have `size` bytes?
pub fn ring_size_ok(size: u64) -> bool {
    size.is_power_of_two() && (RING_MIN..=RING_MAX).contains(&size)
}

/// What a record tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum RecordKind {
    /// Bytes of the stream.
    Data = 1,
    /// The connection was made.
    Open = 2,
    /// This direction has ended.
    Fin = 3,
    /// The connection was broken off.
    Reset = 4,
}

/// Which way a record's bytes went, for the process that tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Way {
    /// It sent them.
    Sent = 0,
    /// It received them.
    Received = 1,
}

/// One record without its payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// What it tells.
    pub kind: RecordKind,
    /// Which way.
    pub way: Way,
    /// 0 = TCP, 1 = the memory lane.
    pub lane: u8,
    /// 0 = the process had connected, 1 = it had accepted.
    pub role: u8,
    /// Wall clock, ns since 1970, when the bytes were copied.
    pub time_ns: u64,
    /// Stream offset of the first byte, in this direction.
    pub seq: u64,
    /// Stream offset up to which the sender of these bytes has the other direction.
    pub ack: u64,
    /// Which connection of the process.
    pub conn: u64,
    /// Bytes of the stream.
    pub bytes: u32,
    /// … and how many of them follow here.
    pub captured: u32,
    /// The process's end: address as `sock::Addr::ip`, port.
    pub local: ([u8; 16], u16),
    /// The other end.
    pub remote: ([u8; 16], u16),
}

impl Record {
    /// As it lies in the ring: all but `length`, which is 0.
    pub fn encode(&self) -> [u8; RECORD] {
        let mut out = [0u8; RECORD];
        let mut put = |at: usize, bytes: &[u8]| {
            for (to, from) in out.iter_mut().skip(at).zip(bytes) {
                *to = *from;
            }
        };
        put(4, &[self.kind as u8, self.way as u8, self.lane, self.role]);
        put(8, &self.time_ns.to_ne_bytes());
        put(16, &self.seq.to_ne_bytes());
        put(24, &self.ack.to_ne_bytes());
        put(32, &self.conn.to_ne_bytes());
        put(40, &self.bytes.to_ne_bytes());
        put(44, &self.captured.to_ne_bytes());
        put(48, &self.local.0);
        put(64, &self.remote.0);
        put(80, &self.local.1.to_ne_bytes());
        put(82, &self.remote.1.to_ne_bytes());
        out
    }

    /// What those bytes say; `None`: nothing that we write.
    pub fn decode(raw: &[u8; RECORD]) -> Option<Record> {
        let record = Record {
            kind: match raw[4] {
                1 => RecordKind::Data,
                2 => RecordKind::Open,
                3 => RecordKind::Fin,
                4 => RecordKind::Reset,
                _ => return None,
            },
            way: match raw[5] {
                0 => Way::Sent,
                1 => Way::Received,
                _ => return None,
            },
            lane: raw[6],
            role: raw[7],
            time_ns: u64::from_ne_bytes(part(raw, 8)),
            seq: u64::from_ne_bytes(part(raw, 16)),
            ack: u64::from_ne_bytes(part(raw, 24)),
            conn: u64::from_ne_bytes(part(raw, 32)),
            bytes: u32::from_ne_bytes(part(raw, 40)),
            captured: u32::from_ne_bytes(part(raw, 44)),
            local: (part(raw, 48), u16::from_ne_bytes(part(raw, 80))),
            remote: (part(raw, 64), u16::from_ne_bytes(part(raw, 82))),
        };
        let fits = record.captured <= record.bytes
            && record.bytes as usize <= SEGMENT
            && (record.kind == RecordKind::Data) == (record.bytes > 0);
        (fits && record.lane < 2 && record.role < 2).then_some(record)
    }
}

fn part<const N: usize>(raw: &[u8; RECORD], at: usize) -> [u8; N] {
    let mut out = [0u8; N];
    for (to, from) in out.iter_mut().zip(raw.iter().skip(at)) {
        *to = *from;
    }
    out
}

/// Bytes of a record with so much payload.
pub fn length_of(captured: usize) -> usize {
    (RECORD + captured).next_multiple_of(ALIGN)
}

/// A ring, as both sides use it. `bytes` is as long as a ring may be ([`ring_size_ok`]).
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    bytes: SharedBytes,
}

impl Ring {
    /// `None`: no ring is so long.
    pub fn new(bytes: SharedBytes) -> Option<Ring> {
        ring_size_ok(bytes.len() as u64).then_some(Ring { bytes })
    }

    #[allow(clippy::cast_possible_truncation)] // masked by the ring's size
    fn place(&self, position: u64) -> usize {
        (position & (self.bytes.len() as u64 - 1)) as usize
    }

    /// The `length` of the record at `position`, a multiple of `ALIGN`.
    fn length(&self, position: u64) -> &AtomicU32 {
        let at = self.place(position) & !(ALIGN - 1);
        // SAFETY: inside the window (its length is a multiple of ALIGN), aligned, and mapped as long as the window is
        // used; both sides access these words as atomics, or by copies that the compiler cannot look into.
        unsafe { &*self.bytes.as_ptr().add(at).cast::<AtomicU32>() }
    }

    /// Room for a record of `length` bytes, if there is: its position. `head` is the writer's own word, which it
    /// believes; `tail` is the reader's.
    pub fn reserve(&self, head: &AtomicU64, tail: &AtomicU64, length: usize) -> Option<u64> {
        let mut at = head.load(Ordering::Relaxed);
        loop {
            let used = at.checked_sub(tail.load(Ordering::Acquire))?;
            if used.checked_add(length as u64)? > self.bytes.len() as u64 {
                return None;
            }
            match head.compare_exchange_weak(
                at,
                at + length as u64,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(at),
                Err(now) => at = now,
            }
        }
    }

    /// Copies `n` bytes to `position`, over the ring's end if they reach it.
    ///
    /// # Safety
    /// `src` is readable for `n` bytes.
    pub unsafe fn put(&self, position: u64, src: *const u8, n: usize) {
        let at = self.place(position);
        let first = n.min(self.bytes.len() - at);
        // SAFETY: the caller's promise; the window checks its bounds.
        unsafe {
            self.bytes.copy_in(at, src, first);
            self.bytes.copy_in(0, src.wrapping_add(first), n - first);
        }
    }

    /// Writes a record's words, but for `length`.
    pub fn put_record(&self, position: u64, record: &Record) {
        let raw = record.encode();
        // SAFETY: both parts lie in `raw`.
        unsafe { self.put(position + 4, raw.as_ptr().add(4), RECORD - 4) };
    }

    /// The record at `position` is there, `length` bytes of it.
    pub fn publish(&self, position: u64, length: usize) {
        let length = u32::try_from(length).unwrap_or(0);
        self.length(position).store(length, Ordering::Release);
    }

    fn get(&self, position: u64, to: &mut [u8]) {
        let at = self.place(position);
        let first = to.len().min(self.bytes.len() - at);
        // SAFETY: both parts lie in `to`; the window checks its bounds.
        unsafe {
            self.bytes.copy_out(at, to.as_mut_ptr(), first);
            let rest = to.len() - first;
            self.bytes
                .copy_out(0, to.as_mut_ptr().wrapping_add(first), rest);
        }
    }

    fn clear(&self, mut position: u64, mut n: usize) {
        let zeroes = [0u8; 4096];
        while n > 0 {
            let piece = n.min(zeroes.len());
            // SAFETY: `zeroes` is that long.
            unsafe { self.put(position, zeroes.as_ptr(), piece) };
            position += piece as u64;
            n -= piece;
        }
    }
}

/// What lies in the ring is not what a process under memlane writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Garbled;

/// The tracer's side: how far it has read.
#[derive(Debug)]
pub struct Reader {
    /// Position of the next record.
    pub tail: u64,
}

impl Reader {
    /// The next record and its payload, if it is there. What was read is zero afterwards, and the process may write there.
    ///
    /// # Errors
    /// What is there is no record: nothing that follows can be read.
    pub fn next(
        &mut self,
        ring: &Ring,
        tail: &AtomicU64,
        payload: &mut [u8; SEGMENT],
    ) -> Result<Option<Record>, Garbled> {
        let length = ring.length(self.tail).load(Ordering::Acquire) as usize;
        if length == 0 {
            return Ok(None);
        }
        let mut raw = [0u8; RECORD];
        if !length.is_multiple_of(ALIGN) || length > length_of(SEGMENT) {
            return Err(Garbled);
        }
        ring.get(self.tail, &mut raw);
        let record = Record::decode(&raw).ok_or(Garbled)?;
        let captured = record.captured as usize;
        if length_of(captured) != length {
            return Err(Garbled);
        }
        if let Some(to) = payload.get_mut(..captured) {
            ring.get(self.tail + RECORD as u64, to);
        }
        ring.clear(self.tail, length);
        self.tail += length as u64;
        tail.store(self.tail, Ordering::Release);
        Ok(Some(record))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ptr::NonNull;

    const SIZE: usize = 256 * 1024;

    /// A ring in memory of this process, aligned as a mapping is.
    fn ring() -> (Ring, Vec<u64>) {
        let mut memory = vec![0u64; SIZE / 8 + 512];
        let at = memory.as_mut_ptr();
        let skip = at.align_offset(4096);
        let base = NonNull::new(at.wrapping_add(skip).cast()).unwrap();
        // SAFETY: inside `memory`, which the caller keeps.
        let bytes = unsafe { SharedBytes::new(base, SIZE) };
        (Ring::new(bytes).unwrap(), memory)
    }

    fn record(seq: u64, bytes: usize) -> Record {
        Record {
            kind: RecordKind::Data,
            way: Way::Sent,
            lane: 1,
            role: 0,
            time_ns: 12,
            seq,
            ack: 77,
            conn: 5,
            bytes: u32::try_from(bytes).unwrap(),
            captured: u32::try_from(bytes).unwrap(),
            local: ([1; 16], 80),
            remote: ([2; 16], 4000),
        }
    }

    fn write(ring: &Ring, head: &AtomicU64, tail: &AtomicU64, seq: u64, payload: &[u8]) -> bool {
        let length = length_of(payload.len());
        let Some(at) = ring.reserve(head, tail, length) else {
            return false;
        };
        ring.put_record(at, &record(seq, payload.len()));
        // SAFETY: the slice is that long.
        unsafe { ring.put(at + RECORD as u64, payload.as_ptr(), payload.len()) };
        ring.publish(at, length);
        true
    }

    #[test]
    fn records_of_all_lengths_come_out_as_they_went_in_over_many_laps() {
        let (ring, _memory) = ring();
        let (head, tail) = (AtomicU64::new(0), AtomicU64::new(0));
        let mut reader = Reader { tail: 0 };
        let mut out = Box::new([0u8; SEGMENT]);
        for turn in 1..400usize {
            let n = 1 + turn * 7919 % SEGMENT;
            let payload: Vec<u8> = (0..n).map(|i| (i * 31 + turn).to_le_bytes()[0]).collect();
            assert!(write(&ring, &head, &tail, turn as u64, &payload), "{turn}");
            let got = reader.next(&ring, &tail, &mut out).unwrap().unwrap();
            assert_eq!(got, record(turn as u64, n));
            assert!(out[..n] == payload, "{turn}");
            assert_eq!(reader.next(&ring, &tail, &mut out), Ok(None));
        }
        assert!(head.load(Ordering::Relaxed) > 20 * SIZE as u64);
    }

    #[test]
    fn what_finds_no_room_is_not_written_and_room_comes_back() {
        let (ring, _memory) = ring();
        let (head, tail) = (AtomicU64::new(0), AtomicU64::new(0));
        let mut reader = Reader { tail: 0 };
        let mut out = Box::new([0u8; SEGMENT]);
        let payload = [9u8; 1000];
        let written = (0..1000)
            .filter(|&i| write(&ring, &head, &tail, i, &payload))
            .count();
        assert_eq!(written, SIZE / length_of(1000));
        let mut read = 0;
        while reader.next(&ring, &tail, &mut out).unwrap().is_some() {
            read += 1;
        }
        assert_eq!(read, written);
        assert!(write(&ring, &head, &tail, 0, &payload));
    }

    #[test]
    fn a_tail_that_lies_gives_no_room_and_no_harm() {
        let (ring, _memory) = ring();
        let head = AtomicU64::new(1024);
        for tail in [1025, u64::MAX, u64::MAX / 2] {
            assert_eq!(ring.reserve(&head, &AtomicU64::new(tail), 96), None);
        }
        let far = AtomicU64::new(10 * SIZE as u64);
        assert_eq!(ring.reserve(&far, &AtomicU64::new(0), 96), None);
    }

    #[test]
    fn a_record_that_nobody_would_write_is_refused() {
        let whole = length_of(100);
        type Change = fn(&mut [u8; RECORD]);
        let changes: [(usize, Change); 9] = [
            (whole + 1, |_| ()),
            (whole + 32, |_| ()),
            (32, |_| ()),
            (1 << 20, |_| ()),
            (whole, |r| r[4] = 9),
            (whole, |r| r[5] = 2),
            (whole, |r| r[6] = 2),
            (whole, |r| r[43] = 0xff),
            (whole, |r| r[47] = 0xff),
        ];
        for (i, (length, change)) in changes.into_iter().enumerate() {
            let (ring, _memory) = ring();
            let mut raw = record(0, 100).encode();
            change(&mut raw);
            // SAFETY: the array is that long.
            unsafe { ring.put(0, raw.as_ptr(), RECORD) };
            ring.publish(0, length);
            let mut out = Box::new([0u8; SEGMENT]);
            let got = Reader { tail: 0 }.next(&ring, &AtomicU64::new(0), &mut out);
            assert_eq!(got, Err(Garbled), "{i}");
        }
    }

    #[test]
    fn many_writers_at_a_time_lose_nothing_and_mix_nothing() {
        let (ring, _memory) = ring();
        let (head, tail) = (AtomicU64::new(0), AtomicU64::new(0));
        let mut seen = [0u64; 3];
        std::thread::scope(|s| {
            for thread in 0..3u8 {
                let (ring, head, tail) = (&ring, &head, &tail);
                s.spawn(move || {
                    for i in 0..2000u64 {
                        let payload = [thread; 600];
                        while !write(
                            ring,
                            head,
                            tail,
                            i,
                            &payload[..1 + usize::try_from(i % 599).unwrap()],
                        ) {
                            std::thread::yield_now();
                        }
                    }
                });
            }
            let mut reader = Reader { tail: 0 };
            let mut out = Box::new([0u8; SEGMENT]);
            while seen.iter().sum::<u64>() < 6000 {
                let Some(got) = reader.next(&ring, &tail, &mut out).unwrap() else {
                    std::thread::yield_now();
                    continue;
                };
                let who = usize::from(out[0]);
                assert_eq!(got.seq, seen[who], "thread {who}");
                let payload = &out[..got.captured as usize];
                assert!(payload.iter().all(|&b| usize::from(b) == who));
                seen[who] += 1;
            }
        });
    }
}
