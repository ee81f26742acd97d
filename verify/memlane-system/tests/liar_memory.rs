//! A peer with an open lane that writes anything into the shared memory. This connection may end, with an error that
//! TCP also gives; the program never dies of it and never hangs.

mod handshake;

use std::io::{Read as _, Write as _};
use std::mem::offset_of;
use std::os::fd::IntoRawFd as _;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use handshake::{Meeting, RING, chunk, put, word};
use memlane_core::layout::{
    ASLEEP, ASLEEP_AT_EDGE, ChunkHeader, DmbWords, RINGS_AT, RUNG, ReadyWords, WANT_READY,
};
use memlane_core::sync::Cpu;
use memlane_socket::protocol::wire::{BELL_COMES, MessageKind};
use memlane_sys::fd::{self, Fd};
use memlane_sys::{epoll, mem, sock};
use memlane_system::harness::plain_only;
use memlane_system::pair::{DEFAULT, PATIENCE};
use memlane_system::real::Reason;

/// Words of a DMB, from its beginning.
type Dmb = DmbWords<Cpu>;
const CONSUMED: usize = offset_of!(Dmb, consumed.0);
const FLAGS: usize = offset_of!(Dmb, rx.0.flags);
const PUBLISHED: usize = offset_of!(Dmb, sent.0.published);
const WRITING: usize = offset_of!(Dmb, tx.0.writing);
const ACTIVE: usize = offset_of!(Dmb, tx.0.active);
const RUNS_DECLARED: usize = offset_of!(Dmb, sent.0.runs_declared);
const RUNS: usize = offset_of!(Dmb, runs);
/// Where `asleep` lies in a chunk, with `rings` behind it.
const ASLEEP_AT: u64 =
    (offset_of!(ChunkHeader, ready) + offset_of!(ReadyWords<Cpu>, asleep)) as u64;

/// A meeting whose lane is open at the victim's side: the liar's own memory, and the victim's.
struct Open {
    meeting: Meeting,
    own: Fd,
    theirs: Fd,
    /// Where the victim's DMB lies in `theirs`.
    slot: u16,
    /// Bytes that the liar has sent, and the victim.
    said: u64,
}

impl Open {
    /// The victim accepts; the liar has told where its stream stands, as an honest peer does.
    fn new() -> Open {
        Open::with_bell(None)
    }

    /// With a descriptor that the liar says is the bell of its chunk.
    fn with_bell(bell: Option<&Fd>) -> Open {
        let mut meeting = Meeting::with_server(&DEFAULT);
        let (accept, mut got) = meeting.accepted();
        let (own, proof) = (chunk(), meeting.proof());
        let mut m = meeting.message(MessageKind::Confirm);
        m.features |= bell.map_or(0, |_| BELL_COMES);
        let fds = [Some(&proof), Some(&own), bell];
        let fds: Vec<&Fd> = fds.into_iter().flatten().collect();
        meeting.answer(&m.encode(), &fds);
        meeting.ends_on_lane();
        let theirs = got.fds[1].take().expect("a chunk");
        let said = meeting.said();
        let open = Open {
            meeting,
            own,
            theirs,
            slot: accept.slot,
            said,
        };
        open.declare();
        open.tell(ACTIVE, &1_u32.to_ne_bytes());
        open
    }

    /// Writes into the words of the victim's DMB.
    fn tell(&self, offset: usize, bytes: &[u8]) {
        let at = word(offset) - word(0) + 4096 + u64::from(self.slot) * 1024;
        put(&self.theirs, at, bytes);
    }

    /// All that was said so far went by TCP.
    fn declare(&self) {
        self.tell(RUNS, &0_u64.to_ne_bytes());
        self.tell(RUNS + 8, &self.said.to_ne_bytes());
        self.tell(RUNS_DECLARED, &1_u32.to_ne_bytes());
        self.tell(PUBLISHED, &self.said.to_ne_bytes());
    }

    /// Promises a few bytes to TCP, sends them, and hears something back.
    fn exchange(&mut self) {
        self.said += 100;
        self.declare();
        self.meeting.exchange();
    }

    /// The words of the liar's own chunk by which its bell is asked for: `asleep` and `rings`.
    fn own_bell(&self) -> (u32, u32) {
        let word = |at| {
            let mut bytes = [0; 4];
            assert_eq!(fd::read_at(self.own.raw(), &mut bytes, at), Ok(4));
            u32::from_ne_bytes(bytes)
        };
        (word(ASLEEP_AT), word(ASLEEP_AT + 4))
    }

    /// The liar pretends to sleep until its bell rings, as `asleep` says, and the victim has something to say.
    fn lies_asleep(&mut self, asleep: u32) {
        self.exchange();
        let before = self.own_word(PUBLISHED);
        put(&self.own, word(CONSUMED), &before.to_ne_bytes());
        put(&self.own, word(FLAGS), &WANT_READY.to_ne_bytes());
        put(&self.own, ASLEEP_AT, &asleep.to_ne_bytes());
        self.meeting.victim.end.does("send 9 1000");
        assert_eq!(self.own_word(PUBLISHED), before + 1000);
    }

    /// A word of the liar's own DMB.
    fn own_word(&self, offset: usize) -> u64 {
        let mut bytes = [0; 8];
        let read = fd::read_at(self.own.raw(), &mut bytes, word(offset));
        assert_eq!(read, Ok(8));
        u64::from_ne_bytes(bytes)
    }

    /// The victim's stream ends with an error, for the reason that it shows; it does not.
    fn cut_off(mut self) {
        let start = Instant::now();
        while self.meeting.victim.end.times(Reason::PEER_MISBEHAVED) == 0 {
            assert!(
                start.elapsed() < PATIENCE,
                "nothing happens: {:?}",
                self.meeting.victim.end.conn()
            );
            std::thread::yield_now();
        }
        let status = self.meeting.victim.end.end();
        assert_eq!(status.code(), Some(1), "{status}");
    }
}

#[test]
fn a_peer_that_never_ends_a_write_delays_nobody() {
    if plain_only() {
        return;
    }
    let mut open = Open::new();
    for _ in 0..3 {
        open.exchange();
    }
    open.tell(WRITING, &1_u32.to_ne_bytes());
    for _ in 0..30 {
        open.exchange();
    }
    // The stream's end is TCP's.
    open.meeting.victim.end.tell("take 1");
    drop(open.meeting.stream);
    let status = open.meeting.victim.end.end();
    assert_eq!(status.code(), Some(1), "end of stream: {status}");
}

#[test]
fn a_peer_that_has_consumed_what_was_never_sent_is_cut_off() {
    if plain_only() {
        return;
    }
    let mut open = Open::new();
    open.exchange();
    put(&open.own, word(FLAGS), &0_u32.to_ne_bytes()); // awake
    // In the ring, and told nobody: the liar only looks.
    let before = open.own_word(PUBLISHED);
    put(&open.own, word(CONSUMED), &before.to_ne_bytes());
    open.meeting.victim.end.does("send 9 1000");
    assert_eq!(open.own_word(PUBLISHED), before + 1000);
    // Somewhere: the sender has chosen which part of the ring it uses.
    let mut bytes = vec![0; RING as usize];
    let at = RINGS_AT as u64 + 5 * u64::from(RING);
    let read = fd::read_at(open.own.raw(), &mut bytes, at);
    assert_eq!(read, Ok(bytes.len()));
    assert!(bytes.iter().any(|byte| *byte != 0), "not in the ring");
    put(&open.own, word(CONSUMED), &u64::MAX.to_ne_bytes());
    open.meeting.victim.end.tell("send 10 400000");
    open.cut_off();
}

#[test]
fn a_peer_that_publishes_what_no_ring_holds_is_cut_off() {
    if plain_only() {
        return;
    }
    for lie in [u64::MAX, u64::MAX / 2, 1] {
        let mut open = Open::new();
        open.exchange();
        let far = if lie == 1 {
            1
        } else {
            open.said.wrapping_add(lie)
        };
        open.tell(PUBLISHED, &far.to_ne_bytes());
        open.meeting.victim.end.tell("take 100000");
        open.cut_off();
    }
}

#[test]
fn a_peer_that_says_by_tcp_what_it_has_not_declared_is_cut_off_or_heard() {
    if plain_only() {
        return;
    }
    let mut open = Open::new();
    for _ in 0..3 {
        open.exchange();
    }
    open.meeting.victim.end.tell("take 200000");
    // Not all of it: somebody who sleeps on TCP takes what comes.
    let _ = open.meeting.stream.write_all(&[7; 100_000]);
    drop(open.meeting.stream);
    let status = open.meeting.victim.end.end();
    assert_eq!(status.code(), Some(1), "{status}");
}

#[test]
fn a_sleeper_s_bell_is_rung_once_however_often_it_is_written_to() {
    if plain_only() {
        return;
    }
    let (ours, theirs) = sock::unix_stream().expect("a bell");
    let mut open = Open::with_bell(Some(&theirs));
    assert_eq!(open.own_bell(), (0, 1), "the victim can ring");
    open.lies_asleep(ASLEEP);
    open.meeting.victim.end.does("send 10 1000");
    assert_eq!(open.own_bell(), (RUNG, 1));
    assert_eq!(sock::discard(ours.raw()), Ok(1), "one ring for both");
}

#[test]
fn a_sleeper_that_hears_edges_is_rung_without_a_byte() {
    if plain_only() {
        return;
    }
    let (ours, theirs) = sock::unix_stream().expect("a bell");
    let set = epoll::create().expect("a set");
    epoll::add_edges(set.raw(), ours.raw(), 7).expect("a bell");
    let is_rung = || epoll::ready(set.raw()).eq([7]);
    let mut open = Open::with_bell(Some(&theirs));
    assert!(is_rung() && !is_rung(), "it is reported once when it comes");
    open.lies_asleep(ASLEEP_AT_EDGE);
    assert_eq!(open.own_bell(), (RUNG, 1));
    assert!(is_rung() && !is_rung());
    for asleep in [ASLEEP_AT_EDGE, ASLEEP, u32::MAX] {
        put(&open.own, ASLEEP_AT, &asleep.to_ne_bytes());
        open.meeting.victim.end.does("send 10 1000");
        assert_eq!(open.own_bell(), (RUNG, 1));
        assert!(is_rung() && !is_rung());
        let has_byte = sock::discard(ours.raw()).is_ok();
        assert_eq!(has_byte, asleep != ASLEEP_AT_EDGE);
    }
}

#[test]
fn a_sleeper_that_never_hears_its_bell_holds_up_nobody() {
    if plain_only() {
        return;
    }
    // Files that wait, in the eyes of those who ask them.
    let (ours, theirs) = UnixStream::pair().expect("a bell");
    // SAFETY: its one owner gives it up.
    let theirs = unsafe { Fd::from_raw(theirs.into_raw_fd()) };
    let mut open = Open::with_bell(Some(&theirs));
    while sock::send_byte(theirs.raw()).is_ok() {}
    open.lies_asleep(ASLEEP);
    assert_eq!(open.own_bell(), (RUNG, 1));
    open.meeting.victim.end.does("send 10 1000");
    // Nobody is there to hear it: the victim says that it cannot ring.
    drop(ours);
    put(&open.own, ASLEEP_AT, &ASLEEP.to_ne_bytes());
    open.meeting.victim.end.does("send 11 1000");
    assert_eq!(open.own_bell(), (RUNG, 0));
}

#[test]
fn what_is_no_bell_is_never_rung() {
    if plain_only() {
        return;
    }
    let (channel, _other) = sock::unix_channel().expect("a channel");
    let mut open = Open::with_bell(Some(&channel));
    assert_eq!(open.own_bell(), (0, 0), "the victim does not rely on it");
    open.lies_asleep(ASLEEP);
    assert_eq!(open.own_bell(), (RUNG, 0));
}

#[test]
fn neither_side_s_memory_can_be_cut_or_sealed_by_the_other() {
    if plain_only() {
        return;
    }
    let mut open = Open::new();
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(format!("/proc/self/fd/{}", open.theirs.raw()));
    let file = file.expect("one's own descriptor");
    assert!(file.set_len(0).is_err() && file.set_len(1 << 30).is_err());
    for seals in [mem::SEALS_WRITING, mem::SEALS_FIXED] {
        assert!(mem::add_seals(open.theirs.raw(), seals).is_err());
        assert!(mem::add_seals(open.own.raw(), seals).is_err());
    }
    open.exchange();
}

/// Words that are written at most before the peer goes.
const ROUNDS: u32 = 3000;

/// Anything, anywhere in the words of both, while bytes go both ways.
#[test]
fn a_peer_that_scribbles_on_every_word_never_ends_the_program_by_a_signal() {
    if plain_only() {
        return;
    }
    for seed in 1..=12_u64 {
        let mut open = Open::new();
        open.meeting.victim.end.tell("both 3 3000000 100000000"); // more than comes
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let mut buffer = [0; 40_000];
        let stream = &mut open.meeting.stream;
        stream.set_nonblocking(true).expect("a socket");
        // A peer may keep its bytes to itself for as long as it likes: at last it goes.
        for _ in 0..ROUNDS {
            let value = match random() % 4 {
                0 => random(),
                1 => random() % 3,
                _ => open.said + random() % 300_000,
            };
            for file in [&open.own, &open.theirs] {
                let slot = if file.raw() == open.own.raw() {
                    5
                } else {
                    u64::from(open.slot)
                };
                let at = 4096 + slot * 1024 + random() % 96 * 8;
                put(file, at, &value.to_ne_bytes());
            }
            let heard = stream.read(&mut buffer);
            let said = stream.write(&buffer[..1 + (random() % 9000) as usize]);
            let gone = |result: &std::io::Result<usize>| match result {
                Ok(n) => *n == 0,
                Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
            };
            if gone(&heard) || gone(&said) {
                break;
            }
            open.said += said.unwrap_or(0) as u64;
        }
        drop(open.meeting.stream);
        let status = open.meeting.victim.end.end();
        assert_eq!(status.code(), Some(1), "seed {seed}: {status}");
    }
}

/// Holes in the memory are zeros, not the end of a program.
#[test]
fn a_peer_that_punches_holes_into_the_memory_is_cut_off() {
    if plain_only() {
        return;
    }
    let mut open = Open::new();
    open.exchange();
    let len = fd::stat(open.theirs.raw()).expect("a memfd").size;
    rustix::fs::fallocate(
        // SAFETY: open, and stays so over the call.
        unsafe { rustix::fd::BorrowedFd::borrow_raw(open.theirs.raw()) },
        rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE,
        0,
        len,
    )
    .expect("the memory is both sides'");
    open.meeting.victim.end.tell("take 100000");
    open.cut_off();
}
