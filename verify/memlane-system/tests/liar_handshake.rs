//! A peer that lies in the handshake: the connection stays on TCP, with a reason, and every byte arrives. A message
//! for another connection, or one that is invalid, has no effect.

mod handshake;

use std::fs::File;
use std::os::fd::{AsRawFd as _, IntoRawFd as _};

use handshake::{ID, Meeting, chunk, chunk_with, is_let_go_of};
use memlane_core::layout::{CHUNK_MAGIC, LAYOUT_VERSION, chunk_len};
use memlane_socket::protocol::wire::{LEN, Message, MessageKind};
use memlane_sys::fd::{self, Fd};
use memlane_sys::mem::SEALS_FIXED;
use memlane_system::faulty;
use memlane_system::harness::plain_only;
use memlane_system::pair::{DEFAULT, Pair, Settings};
use memlane_system::real::Reason;
use memlane_system::real::held::Held;

/// A descriptor of this file.
fn opened(path: &str) -> Fd {
    let file = File::options().read(true).write(true).open(path);
    let raw = file.expect(path).into_raw_fd();
    // SAFETY: just opened, and nobody else's.
    unsafe { Fd::from_raw(raw) }
}

/// Neither a memfd nor a socket.
fn event() -> Fd {
    fd::event().expect("an eventfd")
}

/// The Proposal of a liar, changed by `lie`, sent with these descriptors; and the answer.
fn proposal(lie: impl Fn(&Meeting, &mut Message), proof: impl Fn(&Meeting) -> Fd, reason: Reason) {
    if plain_only() {
        return;
    }
    let mut meeting = Meeting::with_server(&DEFAULT);
    let (mut m, proof) = (meeting.message(MessageKind::Proposal), proof(&meeting));
    lie(&meeting, &mut m);
    meeting.propose(&m.encode(), &[&proof]);
    meeting.ends_on_tcp(reason);
    let (answer, _) = meeting.mail();
    assert_eq!(
        (answer.kind, answer.reason),
        (MessageKind::Decline, reason.0)
    );
    assert_eq!(answer.echo, ID);
}

#[test]
fn a_proposal_about_another_connection_is_declined() {
    let forged = |_: &Meeting, m: &mut Message| m.tuple.local.port ^= 1;
    proposal(forged, Meeting::proof, Reason::NOT_PROVEN);
}

#[test]
fn a_proof_that_is_something_else_proves_nothing() {
    let honest = |_: &Meeting, _: &mut Message| {};
    let another = |_: &Meeting| {
        let other = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        fd::open_path_of(other.as_raw_fd()).expect("a handle")
    };
    proposal(honest, another, Reason::NOT_PROVEN);
    proposal(honest, |_| event(), Reason::NOT_PROVEN);
    proposal(honest, |_| opened("/dev/zero"), Reason::NOT_PROVEN);
}

#[test]
fn what_is_no_proposal_is_not_heard_and_the_real_one_is() {
    if plain_only() {
        return;
    }
    let mut meeting = Meeting::with_server(&DEFAULT);
    let good = meeting.message(MessageKind::Proposal).encode();
    let mut foreign = good;
    foreign[0] ^= 1;
    let mut odd = good;
    odd[4] = 77;
    let decline = meeting.message(MessageKind::Decline).encode();
    let long = [&good[..], &[0; 5000]].concat();
    let noise: [&[u8]; 8] = [
        &[],
        &[0],
        &good[..LEN - 1],
        &long,
        &foreign,
        &odd,
        &decline,
        &[0xff; LEN],
    ];
    for bytes in noise {
        let proof = meeting.proof();
        meeting.propose(bytes, &[&proof, &proof, &proof]);
        meeting.exchange();
    }
    confirm(&mut meeting);
}

/// Honest from here on.
fn confirm(meeting: &mut Meeting) {
    let (m, _) = meeting.accepted();
    assert_eq!(m.kind, MessageKind::Accept);
    let (proof, memory) = (meeting.proof(), chunk());
    let m = meeting.message(MessageKind::Confirm);
    meeting.answer(&m.encode(), &[&proof, &memory]);
    meeting.ends_on_lane();
}

/// A memory that a liar tells of, in a Confirm and in an Accept.
fn memory(lie: impl Fn(&mut Message), memory: impl Fn() -> Option<Fd>, reason: Reason) {
    if plain_only() {
        return;
    }
    let mut servers = Meeting::with_server(&DEFAULT);
    assert_eq!(servers.accepted().0.kind, MessageKind::Accept);
    let mut clients = Meeting::with_client(&DEFAULT);
    assert_eq!(clients.proposed().0.kind, MessageKind::Proposal);
    for (mut meeting, kind) in [
        (servers, MessageKind::Confirm),
        (clients, MessageKind::Accept),
    ] {
        let (mut m, proof, memory) = (meeting.message(kind), meeting.proof(), memory());
        lie(&mut m);
        let fds: Vec<&Fd> = [&proof].into_iter().chain(&memory).collect();
        meeting.answer(&m.encode(), &fds);
        meeting.ends_on_tcp(reason);
        let (no, _) = meeting.mail();
        assert_eq!((no.kind, no.reason), (MessageKind::Decline, reason.0));
    }
}

fn honest(_: &mut Message) {}

fn sized(len: usize) -> impl Fn() -> Option<Fd> {
    move || Some(chunk_with(len, SEALS_FIXED, LAYOUT_VERSION, CHUNK_MAGIC))
}

const LEN_OF_CHUNK: usize = chunk_len(handshake::RING as usize);

#[test]
fn memory_that_is_no_sealed_memfd_of_the_right_size_is_refused() {
    memory(honest, || None, Reason::MEMORY);
    for seals in [0, SHRINK, SEALS_FIXED & !SHRINK] {
        let unsealed = || Some(chunk_with(LEN_OF_CHUNK, seals, LAYOUT_VERSION, CHUNK_MAGIC));
        memory(honest, unsealed, Reason::MEMORY);
    }
    memory(honest, sized(LEN_OF_CHUNK + 4096), Reason::MEMORY);
    memory(honest, sized(LEN_OF_CHUNK - 4096), Reason::MEMORY);
}

/// `F_SEAL_SHRINK` (linux/fcntl.h).
const SHRINK: i32 = 2;

#[test]
fn memory_that_is_no_memory_is_refused() {
    memory(honest, || Some(event()), Reason::MEMORY);
    memory(honest, || Some(opened("/dev/zero")), Reason::MEMORY);
    memory(honest, || Some(opened("/dev/null")), Reason::MEMORY);
}

#[test]
fn memory_of_another_layout_is_of_another_release() {
    let version =
        |version| move || Some(chunk_with(LEN_OF_CHUNK, SEALS_FIXED, version, CHUNK_MAGIC));
    memory(honest, version(LAYOUT_VERSION + 1), Reason::RELEASE);
    memory(honest, version(0), Reason::RELEASE);
    let empty = || Some(chunk_with(LEN_OF_CHUNK, SEALS_FIXED, LAYOUT_VERSION, 0));
    memory(honest, empty, Reason::RELEASE);
}

#[test]
fn a_place_that_is_none_is_refused() {
    let good = || Some(chunk());
    memory(|m| m.token ^= 1, good, Reason::PEER_MISBEHAVED);
    memory(|m| m.token = 0, good, Reason::PEER_MISBEHAVED);
    memory(|m| m.slot = 6, good, Reason::PEER_MISBEHAVED);
    memory(|m| m.slot = 64, good, Reason::PEER_MISBEHAVED);
    memory(|m| m.ring_size = 0, good, Reason::PEER_MISBEHAVED);
    memory(|m| m.ring_size = u32::MAX, good, Reason::PEER_MISBEHAVED);
    memory(|m| m.ring_size *= 2, good, Reason::MEMORY);
}

#[test]
fn a_ring_of_its_own_that_is_none_is_refused() {
    // The chunk comes last: without it, what comes first is taken for the ring.
    let one = || Some(chunk());
    memory(|m| m.own_ring = 1 << 20, one, Reason::MEMORY);
}

#[test]
fn an_answer_to_another_connection_is_declined_and_the_real_one_is_heard() {
    if plain_only() {
        return;
    }
    let mut meeting = Meeting::with_client(&DEFAULT);
    meeting.proposed();
    let proof = meeting.proof();
    let stale = |id: u64| id + (1 << 32);
    for lie in [stale, |id| id + 1, |_| u64::MAX] {
        let mut m = meeting.message(MessageKind::Accept);
        m.echo = lie(m.echo);
        let real = meeting.to;
        meeting.answer(&m.encode(), &[&proof, &chunk()]);
        let (no, _) = meeting.mail();
        assert_eq!(
            (no.kind, no.reason),
            (MessageKind::Decline, Reason::CLOSING.0)
        );
        assert_eq!((no.token, no.slot), (handshake::TOKEN, handshake::SLOT));
        meeting.to = real;
    }
    let m = meeting.message(MessageKind::Accept);
    meeting.answer(&m.encode(), &[&proof, &chunk()]);
    meeting.ends_on_lane();
}

#[test]
fn an_answer_that_comes_twice_is_heard_once() {
    if plain_only() {
        return;
    }
    let mut meeting = Meeting::with_client(&DEFAULT);
    meeting.proposed();
    let (proof, memory) = (meeting.proof(), chunk());
    let m = meeting.message(MessageKind::Accept);
    for _ in 0..2 {
        meeting.answer(&m.encode(), &[&proof, &memory]);
    }
    meeting.ends_on_lane();
    assert_eq!(meeting.mail().0.kind, MessageKind::Confirm);
    meeting.exchange();
    assert!(!meeting.has_mail());
    // Once more, when the lane is open: the memory stays in use.
    meeting.answer(&m.encode(), &[&proof, &memory]);
    for _ in 0..20 {
        meeting.exchange();
    }
    meeting.ends_on_lane();
    assert!(!is_let_go_of(&memory), "it uses what it was given");
}

#[test]
fn a_confirm_that_comes_twice_is_heard_once() {
    if plain_only() {
        return;
    }
    let mut meeting = Meeting::with_server(&DEFAULT);
    confirm(&mut meeting);
    let (proof, memory) = (meeting.proof(), chunk());
    let m = meeting.message(MessageKind::Confirm);
    for _ in 0..3 {
        meeting.answer(&m.encode(), &[&proof, &memory]);
        meeting.exchange();
    }
    meeting.ends_on_lane();
}

#[test]
fn a_decline_is_shown_with_the_peers_reason() {
    if plain_only() {
        return;
    }
    let mut meeting = Meeting::with_client(&DEFAULT);
    meeting.proposed();
    let mut m = meeting.message(MessageKind::Decline);
    m.reason = Reason::MAX_DMB.0;
    meeting.answer(&m.encode(), &[]);
    meeting.ends_on_tcp(Reason::PEER_DECLINED);
    let conn = meeting.victim.end.conn().expect("a page");
    assert_eq!(conn.peer_reason, Reason::MAX_DMB);
}

/// Descriptors that came with lies are closed, and memory of lies is unmapped.
#[test]
fn nothing_of_a_lie_stays_behind() {
    if plain_only() {
        return;
    }
    let mut meeting = Meeting::with_client(&DEFAULT);
    meeting.proposed();
    let before = Held::by(meeting.victim.end.pid()).expect("it is there");
    let proof = meeting.proof();
    for n in 0..200 {
        let kinds = [
            MessageKind::Accept,
            MessageKind::Confirm,
            MessageKind::Decline,
            MessageKind::Proposal,
        ];
        let mut m = meeting.message(kinds[n % 4]);
        // Of another connection, or of this one by another name.
        m.echo += u64::from(n % 3 == 0);
        m.tuple.local.port ^= u16::from(n % 3 != 0);
        meeting.answer(&m.encode(), &[&proof, &chunk(), &proof, &proof]);
        meeting.exchange();
    }
    let after = Held::by(meeting.victim.end.pid()).expect("it is there");
    assert!(
        after.fds <= before.fds && after.maps <= before.maps + 2,
        "{before:?}, {after:?}"
    );
}

// ---- with the library of the tests: what takes half a minute, and other releases ------------

/// Settings of an end with fault points, and these faults.
fn faulty<'a>(env: &'a [(&'a str, &'a str)]) -> Settings<'a> {
    Settings { env, ..DEFAULT }
}

fn with_faults<T>(fault: &str, act: impl FnOnce(&Settings<'_>) -> T) -> Option<T> {
    let library = (!plain_only()).then(|| faulty::library().to_str().expect("a plain name"))?;
    let env = [("MEMLANE_PRELOAD", library), ("MEMLANE_FAULT", fault)];
    Some(act(&faulty(&env)))
}

#[test]
fn a_proposal_that_nobody_answers_is_given_up() {
    with_faults("", |settings| {
        let mut meeting = Meeting::with_client(settings);
        meeting.proposed();
        meeting.ends_on_tcp(Reason::TIMEOUT_CL);
    });
}

#[test]
fn an_accept_that_nobody_confirms_is_given_up() {
    with_faults("", |settings| {
        let mut meeting = Meeting::with_server(settings);
        assert_eq!(meeting.accepted().0.kind, MessageKind::Accept);
        meeting.ends_on_tcp(Reason::TIMEOUT_AL);
    });
}

/// Both ends, of which one has this fault: each one's own reason and the peer's, of client and server.
fn differ(fault: &str, reasons: [[Reason; 2]; 2]) {
    let name = |both: [Reason; 2]| both.map(Reason::name);
    with_faults("", |plain| {
        with_faults(fault, |other| {
            let mut pair = Pair::start(plain, other);
            let said = pair.stay_on_tcp().map(|both| both.map(name));
            assert_eq!(said, reasons.map(name).map(Some), "a client with {fault}");
        });
    });
}

#[test]
fn a_peer_of_another_version_of_the_handshake_is_told_so() {
    let (own, told) = (
        [Reason::VERSION, Reason::NONE],
        [Reason::PEER_DECLINED, Reason::VERSION],
    );
    differ("version:wire", [told, own]);
}

#[test]
fn a_peer_of_another_version_of_the_chunk_is_told_so() {
    let (own, told) = (
        [Reason::RELEASE, Reason::NONE],
        [Reason::PEER_DECLINED, Reason::RELEASE],
    );
    differ("version:chunk", [own, told]);
}

/// An answer, of a version that the client does not know.
#[test]
fn an_answer_of_another_version_is_declined() {
    if plain_only() {
        return;
    }
    let mut meeting = Meeting::with_client(&DEFAULT);
    meeting.proposed();
    let mut bytes = meeting.message(MessageKind::Accept).encode();
    bytes[5] = 2;
    meeting.answer(&bytes, &[&meeting.proof(), &chunk()]);
    meeting.ends_on_tcp(Reason::VERSION);
    let (no, _) = meeting.mail();
    assert_eq!(
        (no.kind, no.reason),
        (MessageKind::Decline, Reason::VERSION.0)
    );
}

#[test]
fn a_peer_that_lacks_what_was_added_since_the_first_release_gets_the_lane() {
    with_faults("", |plain| {
        with_faults("version:first", |old| {
            for (server, client) in [(plain, old), (old, plain)] {
                let mut pair = Pair::start(server, client);
                pair.open();
                pair.flood(1 << 20);
            }
        });
    });
}

#[test]
fn a_process_with_too_many_peers_stays_on_tcp_with_the_next() {
    let (own, told) = (
        [Reason::MAX_DMB, Reason::NONE],
        [Reason::PEER_DECLINED, Reason::MAX_DMB],
    );
    differ("groups:0", [own, told]);
}
