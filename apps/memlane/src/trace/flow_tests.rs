use super::*;
use std::net::IpAddr;

/// What a receiver makes of the segments, each checked as it comes.
#[derive(Default)]
struct Reader {
    streams: HashMap<(End, End), Stream>,
    segments: usize,
    gaps: usize,
    flags: Vec<u8>,
}

#[derive(Default, Clone)]
struct Stream {
    next: Option<u32>,
    bytes: Vec<u8>,
}

impl Sink for Reader {
    fn segment(&mut self, _: u8, _: u64, s: &Segment, payload: &[u8]) {
        self.segments += 1;
        self.flags.push(s.flags);
        let other = self.streams.get(&(s.to, s.from)).and_then(|o| o.next);
        if let (Some(other), true) = (other, s.flags & ACK != 0) {
            let ahead = s.ack.wrapping_sub(other).cast_signed();
            assert!(ahead <= 0, "bytes that nobody sent are acknowledged");
        }
        let stream = self.streams.entry((s.from, s.to)).or_default();
        let next = *stream.next.get_or_insert(s.seq);
        let ahead = s.seq.wrapping_sub(next).cast_signed();
        assert!(ahead >= 0, "sent once more");
        self.gaps += usize::from(ahead > 0);
        stream.bytes.extend_from_slice(payload);
        let more = u32::try_from(s.bytes).unwrap() + u32::from(s.flags & (SYN | FIN) != 0);
        stream.next = Some(s.seq.wrapping_add(more));
    }
}

const A: ([u8; 16], u16) = ([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 127, 0, 0, 1], 4000);
const B: ([u8; 16], u16) = ([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 127, 0, 0, 1], 80);

fn ends() -> (End, End) {
    let ip = IpAddr::from([127, 0, 0, 1]);
    ((ip, 4000), (ip, 80))
}

/// A record of A, which connected, or of B.
fn record(of_a: bool, way: Way, seq: u64, ack: u64, bytes: usize) -> Record {
    let (local, remote) = if of_a { (A, B) } else { (B, A) };
    Record {
        kind: RecordKind::Data,
        way,
        lane: 1,
        role: u8::from(!of_a),
        time_ns: 1000 + seq,
        seq,
        ack,
        conn: if of_a { 1 } else { 2 },
        bytes: u32::try_from(bytes).unwrap(),
        captured: u32::try_from(bytes).unwrap(),
        local,
        remote,
    }
}

fn text(from: u64, n: usize) -> Vec<u8> {
    (from..from + n as u64)
        .map(|i| (i % 251).to_le_bytes()[0])
        .collect()
}

struct World {
    flows: Flows,
    out: Reader,
}

impl World {
    fn new() -> World {
        World {
            flows: Flows::default(),
            out: Reader::default(),
        }
    }

    fn tell(&mut self, of_a: bool, way: Way, seq: u64, ack: u64, n: usize) {
        let r = record(of_a, way, seq, ack, n);
        let source = usize::from(!of_a);
        self.flows.record(source, &r, &text(seq, n), &mut self.out);
    }

    fn event(&mut self, of_a: bool, way: Way, kind: RecordKind, seq: u64, ack: u64) {
        let r = Record {
            kind,
            ..record(of_a, way, seq, ack, 0)
        };
        self.flows
            .record(usize::from(!of_a), &r, &[], &mut self.out);
    }

    fn by_a(&self) -> &Stream {
        let (a, b) = ends();
        &self.out.streams[&(a, b)]
    }

    fn by_b(&self) -> &Stream {
        let (a, b) = ends();
        &self.out.streams[&(b, a)]
    }
}

#[test]
fn a_connection_seen_from_its_start_has_a_handshake_streams_and_an_end() {
    let mut w = World::new();
    w.event(true, Way::Sent, RecordKind::Open, 0, 0);
    w.tell(true, Way::Sent, 0, 0, 100);
    w.tell(true, Way::Received, 0, 100, 5000);
    w.tell(true, Way::Sent, 100, 5000, 7);
    w.event(true, Way::Sent, RecordKind::Fin, 107, 5000);
    w.event(true, Way::Received, RecordKind::Fin, 5000, 107);
    assert_eq!(w.out.flags[..3], [SYN, SYN | ACK, ACK]);
    assert_eq!(w.by_a().bytes, text(0, 107));
    assert_eq!(w.by_b().bytes, text(0, 5000));
    assert_eq!(w.out.flags.iter().filter(|f| **f & FIN != 0).count(), 2);
    assert_eq!((w.out.gaps, w.flows.missing, w.flows.count), (0, 0, 1));
}

#[test]
fn a_connection_that_was_there_before_begins_in_the_middle() {
    let mut w = World::new();
    w.tell(false, Way::Received, 70_000, 900, 50);
    w.tell(false, Way::Sent, 900, 70_050, 60);
    w.tell(false, Way::Received, 70_050, 960, 50);
    assert!(w.out.flags.iter().all(|f| f & SYN == 0));
    assert_eq!(w.by_a().bytes, text(70_000, 100));
    assert_eq!(w.by_b().bytes, text(900, 60));
    assert_eq!(w.out.gaps, 0);
}

#[test]
fn bytes_that_both_ends_tell_of_are_written_once_whoever_is_first() {
    for receiver_first in [false, true] {
        let mut w = World::new();
        let mut at = 0;
        for n in [10usize, 300, 1, 65_000] {
            // The receiver takes them in other pieces.
            let half = n / 2;
            let sender = |w: &mut World| w.tell(true, Way::Sent, at, 0, n);
            let receiver = |w: &mut World| {
                if half > 0 {
                    w.tell(false, Way::Received, at, 0, half);
                }
                w.tell(false, Way::Received, at + half as u64, 0, n - half);
            };
            if receiver_first {
                receiver(&mut w);
                sender(&mut w);
            } else {
                sender(&mut w);
                receiver(&mut w);
            }
            at += n as u64;
        }
        assert_eq!(w.by_a().bytes, text(0, 65_311), "{receiver_first}");
        assert_eq!(w.out.gaps, 0);
    }
}

#[test]
fn records_of_two_threads_come_into_order_and_what_is_lost_stays_a_gap() {
    let mut w = World::new();
    w.tell(true, Way::Sent, 0, 0, 10);
    w.tell(true, Way::Sent, 30, 0, 10);
    w.tell(true, Way::Sent, 20, 0, 10);
    assert_eq!(w.by_a().bytes, text(0, 10));
    w.tell(true, Way::Sent, 10, 0, 10);
    assert_eq!(w.by_a().bytes, text(0, 40));
    // 40..50 never come.
    w.tell(true, Way::Sent, 50, 0, 10);
    w.flows.settle(999, &mut w.out);
    assert_eq!(w.by_a().bytes.len(), 40, "too early to give up");
    w.flows.settle(u64::MAX, &mut w.out);
    assert_eq!(w.by_a().bytes.len(), 50);
    assert_eq!((w.out.gaps, w.flows.missing), (1, 10));
    // The other end may have them, but too late.
    w.tell(false, Way::Received, 0, 0, 60);
    assert_eq!(w.by_a().bytes.len(), 50);
}

#[test]
fn what_one_end_lost_the_other_may_tell_in_time() {
    let mut w = World::new();
    w.tell(true, Way::Sent, 0, 0, 10);
    w.tell(true, Way::Sent, 20, 0, 10);
    w.tell(false, Way::Received, 0, 0, 30);
    w.flows.settle(u64::MAX, &mut w.out);
    assert_eq!(w.by_a().bytes, text(0, 30));
    assert_eq!((w.out.gaps, w.flows.missing), (0, 0));
}

#[test]
fn the_same_ports_once_more_are_another_connection() {
    let mut w = World::new();
    w.event(true, Way::Sent, RecordKind::Open, 0, 0);
    w.tell(true, Way::Sent, 0, 0, 10);
    w.event(true, Way::Sent, RecordKind::Reset, 10, 0);
    let r = Record {
        conn: 9,
        ..record(true, Way::Sent, 0, 0, 10)
    };
    w.out.streams.clear();
    w.flows.record(0, &r, &text(0, 10), &mut w.out);
    assert_eq!(w.flows.count, 2);
    assert_eq!(w.out.flags.iter().filter(|f| **f == SYN).count(), 2);
    assert_eq!(w.by_a().bytes, text(0, 10));
}

#[test]
fn impossible_offsets_do_no_harm() {
    let mut w = World::new();
    for seq in [u64::MAX, u64::MAX - 5, 0, 1 << 63] {
        let r = Record {
            seq,
            ack: u64::MAX,
            ..record(true, Way::Received, 0, 0, 9)
        };
        let mut out = Nothing;
        w.flows.record(0, &r, &text(0, 9), &mut out);
        w.flows.settle(u64::MAX, &mut out);
    }
}

struct Nothing;
impl Sink for Nothing {
    fn segment(&mut self, _: u8, _: u64, _: &Segment, _: &[u8]) {}
}
