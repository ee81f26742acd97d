//! One direction of a stream and a queue that says what must come out of it:
//! the harness of `ring_oracle.rs`, and of the fuzz target `ring_ops`.

use memlane_core::access::SharedBytes;
use memlane_core::layout::{DMB_WORDS_LEN, DmbWords, PARKED, RUNS, TCP_ONLY, TRIMMED};
use memlane_core::region::Region;
use memlane_core::ring::{MustTcp, Next, ParkCheck, Room, Rx, Stretch, Tx};
use memlane_core::sync::Cpu;
use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;

/// One step of either side.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// The application sends `n` bytes; where TCP must be used the kernel takes `kernel` of them.
    Send {
        n: usize,
        kernel: usize,
    },
    /// The lane prefers TCP for `n` bytes although the ring may have room.
    SendTcp {
        n: usize,
        kernel: usize,
    },
    /// The sender reserves, in one stretch if that can be, and copies only a part of it (or nothing).
    Reserve {
        n: usize,
        used: usize,
    },
    /// The application takes up to `n` bytes, from whichever lane is next.
    Recv {
        n: usize,
    },
    /// The application takes up to `n` bytes, and uses those of the ring where they lie.
    Hold {
        n: usize,
    },
    /// The application lets go of the bytes that it uses in the ring.
    Release,
    Park,
    /// Park; if that is all right, give the ring's bytes back.
    Trim,
    Unpark,
    /// The receiver asks for TCP only.
    AskTcpOnly,
    /// The sender gives the memory lane up.
    GoTcpOnly,
    /// `n` times one byte by the ring, one by TCP: each makes a run.
    Alternate {
        n: usize,
    },
}

/// How often each interesting thing happened, over all cases.
#[derive(Default, Debug, Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) ring_bytes: u64,
    pub(crate) tcp_bytes: u64,
    pub(crate) full: u64,
    pub(crate) runs_full: u64,
    pub(crate) debts: u64,
    pub(crate) parked_sends: u64,
    pub(crate) ended: u64,
    pub(crate) drained: u64,
    pub(crate) sheds: u64,
    pub(crate) grown: u64,
    pub(crate) bounded: u64,
    pub(crate) shrunk: u64,
    pub(crate) made_room: u64,
    pub(crate) held: u64,
    pub(crate) straightened: u64,
}

pub(crate) struct Stream {
    region: Region,
    size: usize,
    tx: Tx,
    rx: Rx,
    tcp: VecDeque<u8>,
    /// The oracle: every byte that a lane has accepted and the receiver has not got.
    in_flight: VecDeque<u8>,
    /// Bytes promised to TCP that the kernel has not taken.
    debt: usize,
    /// The sender's first window; 0: it uses the whole ring, always. Windows need runs, too.
    least: u32,
    /// Places in the ring that the application uses, and the bytes that lie there.
    held: Vec<(Stretch, Vec<u8>)>,
    sent: u64,
    got: u64,
    pub(crate) seen: Seen,
}

/// The stream's byte at `offset`: a function of all its bits.
fn byte(offset: u64) -> u8 {
    (offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

impl Stream {
    /// A stream of which `before` bytes have gone, and been taken, by TCP.
    pub(crate) fn new(size: usize, before: u64) -> Stream {
        Stream::with_window(size, before, 0)
    }

    /// … whose sender begins with `least` bytes of the ring; 0: with all, always.
    pub(crate) fn with_window(size: usize, before: u64, least: u32) -> Stream {
        let region = Region::create(c"oracle", DMB_WORDS_LEN + size, false).unwrap();
        let (mut tx, mut rx) = (Tx::default(), Rx::default());
        // SAFETY: DmbWords consists of atomics; the region outlives the stream.
        let w = unsafe { region.words::<DmbWords<Cpu>>(0).unwrap().as_ref() };
        rx.prepare(w);
        assert!(!Rx::sender_active(w));
        rx.skip(before);
        if least == 0 {
            tx.activate(w, before);
        } else {
            tx.activate_window(w, before, least);
        }
        assert!(Rx::sender_active(w) && !Rx::sender_detached(w));
        rx.took(w, 0);
        rx.unpark(w);
        let (tcp, in_flight) = (VecDeque::new(), VecDeque::new());
        Stream {
            region,
            size,
            tx,
            rx,
            tcp,
            in_flight,
            debt: 0,
            least,
            held: Vec::new(),
            sent: before,
            got: before,
            seen: Seen::default(),
        }
    }

    /// The window that the sender declared last.
    fn declared_window(&self) -> u32 {
        let words = self.words();
        let last = words.sent.0.runs_declared.load(Relaxed).wrapping_sub(1);
        words.windows.0[last as usize % RUNS].len.load(Relaxed)
    }

    fn words<'a>(&self) -> &'a DmbWords<Cpu> {
        // SAFETY: atomics only; no caller keeps the reference beyond the stream's life.
        unsafe { self.region.words::<DmbWords<Cpu>>(0).unwrap().as_ref() }
    }

    fn ring(&self) -> SharedBytes {
        self.region.bytes().part(DMB_WORDS_LEN, self.size).unwrap()
    }

    pub(crate) fn step(&mut self, op: &Op) {
        match *op {
            Op::Send { n, kernel } => {
                self.send(n, n, kernel);
            }
            Op::SendTcp { n, kernel } => self.by_tcp(n, kernel),
            Op::Reserve { n, used } => {
                self.straighten(n);
                self.send(n, used, 0);
            }
            Op::Recv { n } => {
                self.receive(n);
            }
            Op::Hold { n } => self.hold(n),
            Op::Release => self.release(),
            Op::Park => self.park(PARKED),
            Op::Trim => self.trim(),
            Op::Unpark => self.rx.unpark(self.words()),
            Op::AskTcpOnly => self.park(TCP_ONLY),
            Op::GoTcpOnly => {
                self.tx.go_tcp_only(self.words());
                self.debt = 0;
            }
            Op::Alternate { n } => {
                for _ in 0..n {
                    self.send(1, 1, usize::MAX);
                    self.by_tcp(1, usize::MAX);
                }
            }
        }
        self.agree();
    }

    fn agree(&self) {
        assert_eq!(self.tx.offset(), self.sent, "sender's offset");
        assert_eq!(self.rx.offset(), self.got, "receiver's offset");
        assert_eq!(self.in_flight.len() as u64, self.sent - self.got);
        assert!(self.tx.in_flight() >= self.sent - self.got + self.debt as u64);
    }

    fn straighten(&mut self, n: usize) {
        let window = self.tx.window(self.size);
        let wraps = |tx: &Tx| tx.stretches(self.size, n).1.len > 0;
        let before = wraps(&self.tx);
        let straightened = self.tx.straighten(self.words(), self.size, n);
        straightened.expect("an honest receiver");
        assert_eq!(self.tx.window(self.size), window);
        if before && !wraps(&self.tx) {
            let unread = self.in_flight.len() - self.tcp.len();
            assert_eq!(unread, 0, "begun anew over unread bytes");
            self.seen.straightened += 1;
        }
    }

    /// `n` bytes to send, of which the copy into the ring gives only `used`.
    fn send(&mut self, n: usize, used: usize, kernel: usize) {
        let unconsumed = self.in_flight.len();
        let (window, declared) = (self.tx.window(self.size), self.declared_window());
        let mut allowed = window;
        let allow = |wanted: usize| {
            assert!(wanted >= window);
            allowed = match n % 7 {
                0 => window,                  // memory is scarce
                1 | 2 => (window / 4).max(1), // others need the room
                _ => wanted,
            };
            allowed
        };
        let answer = self
            .tx
            .reserve_if(self.words(), self.size, n, allow)
            .expect("an honest receiver");
        let now = self.tx.window(self.size);
        assert!(
            now <= allowed.max(self.least as usize) || self.least == 0,
            "more than is allowed"
        );
        self.seen.grown += u64::from(now > window);
        self.seen.bounded += u64::from(now < window);
        self.seen.made_room += u64::from(self.declared_window() < declared);
        match answer {
            Room::Ring(room) => {
                assert_eq!(self.debt, 0, "the ring would overtake unpaid TCP bytes");
                // In a window that has just grown, what is unread on TCP takes no room.
                let beside = if self.least > 0 { self.tcp.len() } else { 0 };
                assert!(
                    room <= n && room + unconsumed - beside <= now,
                    "room for what is not there"
                );
                assert_eq!(
                    self.rx.flags() & (PARKED | TCP_ONLY),
                    0,
                    "a parked receiver must not be passed by"
                );
                self.by_ring(room.min(used));
            }
            Room::Full => {
                // A smaller window waits for what lies in the larger one; growth waits for the slots of runs.
                assert!(
                    n == 0
                        || !self.held.is_empty()
                        || unconsumed >= if self.least > 0 { 1 } else { self.size },
                    "full without bytes"
                );
                self.seen.full += 1;
                self.by_tcp(n, kernel);
            }
            Room::Tcp(why) => {
                self.check_reason(why);
                self.by_tcp(n, kernel);
            }
        }
    }

    fn check_reason(&mut self, why: MustTcp) {
        match why {
            MustTcp::Parked => {
                assert_eq!(self.rx.flags() & (PARKED | TCP_ONLY), PARKED);
                self.seen.parked_sends += 1;
            }
            MustTcp::TcpOnly => assert_ne!(self.rx.flags() & TCP_ONLY, 0),
            MustTcp::Debt => {
                assert_ne!(self.debt, 0, "no debt is known");
                self.seen.debts += 1;
            }
            MustTcp::RunsFull => {
                assert!(
                    self.least > 0
                        || !self.held.is_empty()
                        || self.in_flight.len() >= 2 * (RUNS - 3),
                    "few bytes cannot fill the run list"
                );
                self.seen.runs_full += 1;
            }
            MustTcp::Ended => {
                assert!(self.tx.is_ended());
                self.seen.ended += 1;
            }
        }
    }

    fn next_bytes(&self, n: usize) -> Vec<u8> {
        (self.sent..self.sent + n as u64).map(byte).collect()
    }

    fn sent(&mut self, bytes: &[u8]) {
        self.in_flight.extend(bytes);
        self.sent += bytes.len() as u64;
    }

    /// Publishes the first half of some writes before the second, as a long send does.
    fn by_ring(&mut self, n: usize) {
        let first = if self.sent.is_multiple_of(3) {
            n / 2
        } else {
            0
        };
        if first > 0 {
            self.copy_to_ring(first);
            self.tx.commit_part(self.words(), first);
        }
        self.copy_to_ring(n - first);
        self.tx.commit(self.words(), n - first);
        self.seen.ring_bytes += n as u64;
    }

    fn copy_to_ring(&mut self, n: usize) {
        let bytes = self.next_bytes(n);
        let (a, b) = self.tx.stretches(self.size, n);
        assert_eq!(a.len + b.len, n);
        // SAFETY: both parts of `bytes` are readable for their lengths.
        unsafe {
            assert!(self.ring().copy_in(a.at, bytes.as_ptr(), a.len));
            assert!(self.ring().copy_in(b.at, bytes[a.len..].as_ptr(), b.len));
        }
        self.sent(&bytes);
    }

    fn by_tcp(&mut self, n: usize, kernel: usize) {
        let window = self.tx.window(self.size);
        self.tx.promise_tcp(self.words(), n);
        if self.tx.window(self.size) < window {
            assert_ne!(self.rx.flags() & TRIMMED, 0, "shrunk without being asked");
            self.seen.shrunk += 1;
        }
        let taken = n.min(kernel);
        if !self.tx.is_ended() {
            self.debt = self.debt.max(n) - taken;
        }
        let bytes = self.next_bytes(taken);
        self.tcp.extend(&bytes);
        self.tx.paid(taken);
        self.sent(&bytes);
        self.seen.tcp_bytes += taken as u64;
    }

    /// Takes up to `n` bytes; how many there were.
    pub(crate) fn receive(&mut self, n: usize) -> usize {
        let bytes = self.take(n);
        self.rx.took(self.words(), bytes.len() as u64);
        bytes.len()
    }

    /// Takes up to `n` bytes. Those that lie in the ring stay there until [`Stream::release`].
    fn hold(&mut self, n: usize) {
        let is_ring = matches!(self.rx.next(self.words(), self.size), Ok(Next::Ring(_)));
        let before = self.rx;
        let bytes = self.take(n);
        if !is_ring {
            self.rx.took(self.words(), bytes.len() as u64);
            return;
        }
        let (a, b) = before.stretches(self.size, bytes.len());
        let (first, second) = bytes.split_at(a.len);
        self.held
            .extend([(a, first.to_vec()), (b, second.to_vec())]);
        self.rx.took_to_hold(bytes.len() as u64);
        self.seen.held += bytes.len() as u64;
    }

    fn release(&mut self) {
        for (place, bytes) in std::mem::take(&mut self.held) {
            let mut now = vec![0; place.len];
            // SAFETY: `now` is writable for its length.
            assert!(unsafe { self.ring().copy_out(place.at, now.as_mut_ptr(), place.len) });
            assert_eq!(now, bytes, "written over while in use");
        }
        self.rx.release_to(self.words(), self.got);
    }

    fn take(&mut self, n: usize) -> Vec<u8> {
        let bytes = match self
            .rx
            .next(self.words(), self.size)
            .expect("an honest sender")
        {
            Next::Ring(len) => self.take_ring(len.min(n)),
            Next::Tcp(len) => self.take_tcp(usize::try_from(len).unwrap().min(n)),
            Next::TcpForever => {
                assert!(self.tx.is_ended());
                self.take_tcp(n)
            }
            Next::Empty => {
                assert!(
                    self.in_flight.is_empty(),
                    "bytes are under way and the receiver sees none"
                );
                Vec::new()
            }
        };
        let want: Vec<u8> = self.in_flight.drain(..bytes.len()).collect();
        assert_eq!(bytes, want, "at {}", self.got);
        self.got += bytes.len() as u64;
        bytes
    }

    fn take_ring(&self, n: usize) -> Vec<u8> {
        let mut bytes = vec![0; n];
        let (a, b): (Stretch, Stretch) = self.rx.stretches(self.size, n);
        // SAFETY: both parts of `bytes` are writable for their lengths.
        unsafe {
            assert!(self.ring().copy_out(a.at, bytes.as_mut_ptr(), a.len));
            assert!(
                self.ring()
                    .copy_out(b.at, bytes[a.len..].as_mut_ptr(), b.len)
            );
        }
        bytes
    }

    fn take_tcp(&mut self, n: usize) -> Vec<u8> {
        let n = n.min(self.tcp.len());
        self.tcp.drain(..n).collect()
    }

    fn park(&mut self, flags: u32) {
        self.rx.begin_park(self.words(), flags);
        match self.rx.check_park(self.words()) {
            // An ended sender publishes nothing more: its bytes wake as TCP's always do.
            ParkCheck::Parked if self.tx.is_ended() => {
                assert_eq!(self.in_flight.len(), self.tcp.len())
            }
            ParkCheck::Parked => assert!(self.in_flight.is_empty(), "asleep over unread bytes"),
            // An ended sender's last promise may stand unpaid in `published` for ever.
            ParkCheck::Data => {
                assert!(self.tx.is_ended() || !self.in_flight.is_empty() || self.debt > 0)
            }
            ParkCheck::WriterBusy => panic!("nobody is writing"),
        }
    }

    /// The whole ring reads as zero afterwards, as pages do that were given back.
    fn trim(&mut self) {
        self.park(PARKED);
        if !self.rx.owns_ring(self.words()) {
            return;
        }
        let nothing = vec![0; self.size];
        // SAFETY: as long as the ring.
        assert!(unsafe { self.ring().copy_in(0, nothing.as_ptr(), self.size) });
        self.rx.set_trimmed(self.words());
        self.seen.sheds += 1;
    }

    /// The kernel takes what is owed, the application takes everything.
    pub(crate) fn finish(&mut self) {
        self.release();
        if self.debt > 0 {
            self.by_tcp(self.debt, usize::MAX);
        }
        while self.receive(33) > 0 {
            self.agree();
        }
        assert!(self.in_flight.is_empty() && self.tcp.is_empty());
        if !self.tx.is_ended() {
            assert!(self.tx.drained(self.words()).unwrap());
            assert_eq!(self.tx.in_flight(), 0);
            self.seen.drained += 1;
        }
        Tx::detach(self.words());
        assert!(Rx::sender_detached(self.words()) && !Rx::sender_active(self.words()));
    }
}

impl Seen {
    /// Counts what another stream has seen.
    pub(crate) fn add(&mut self, one: Seen) {
        self.ring_bytes += one.ring_bytes;
        self.tcp_bytes += one.tcp_bytes;
        self.full += one.full;
        self.runs_full += one.runs_full;
        self.debts += one.debts;
        self.parked_sends += one.parked_sends;
        self.ended += one.ended;
        self.drained += one.drained;
        self.sheds += one.sheds;
        self.grown += one.grown;
        self.bounded += one.bounded;
        self.shrunk += one.shrunk;
        self.made_room += one.made_room;
        self.held += one.held;
        self.straightened += one.straightened;
    }
}
