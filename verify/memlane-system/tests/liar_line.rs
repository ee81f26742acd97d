//! A peer that lies over the life line: what it says there proves no more than what it says by mail, and a life line that
//! is none, or is full of noise, keeps nobody from the lane.

mod handshake;

use handshake::{Meeting, chunk};
use memlane_socket::protocol::wire::{self, MessageKind};
use memlane_sys::fd::{self, Fd};
use memlane_sys::sock;
use memlane_system::harness::plain_only;
use memlane_system::pair::DEFAULT;
use memlane_system::real::Reason;

const SPEAKS: u8 = wire::KEEPS_LIFE_LINE | wire::HEARS_LIFE_LINE;

/// A liar that has proposed honestly, and its end of the life line that the victim made.
fn with_line() -> (Meeting, Fd) {
    let mut meeting = Meeting::with_server(&DEFAULT);
    let (mut m, proof) = (meeting.message(MessageKind::Proposal), meeting.proof());
    m.features = SPEAKS;
    meeting.propose(&m.encode(), &[&proof]);
    let (yes, mut got) = meeting.mail();
    assert_eq!(yes.kind, MessageKind::Accept);
    assert_ne!(yes.features & wire::LIFE_LINE_COMES, 0);
    let line = got.fds.iter_mut().rev().find_map(Option::take);
    (meeting, line.expect("a life line"))
}

fn confirm_by(meeting: &Meeting, line: &Fd, proof: &Fd) {
    let m = meeting.message(MessageKind::Confirm).encode();
    sock::send_to_peer(line.raw(), &m, &[proof.raw(), chunk().raw()]).expect("room");
}

#[test]
fn a_confirm_over_the_life_line_is_heard() {
    if plain_only() {
        return;
    }
    let (mut meeting, line) = with_line();
    confirm_by(&meeting, &line, &meeting.proof());
    meeting.ends_on_lane();
}

#[test]
fn a_confirm_over_the_life_line_needs_a_proof() {
    if plain_only() {
        return;
    }
    let (mut meeting, line) = with_line();
    let no_socket = fd::event().expect("an eventfd");
    confirm_by(&meeting, &line, &no_socket);
    meeting.ends_on_tcp(Reason::NOT_PROVEN);
}

#[test]
fn noise_on_the_life_line_is_bounded_and_not_heard() {
    if plain_only() {
        return;
    }
    let (mut meeting, line) = with_line();
    let fits = |len: usize| sock::send_to_peer(line.raw(), &vec![7; len], &[line.raw()]).is_ok();
    for _ in 0..3 {
        let taken = (0..2000).take_while(|n| fits(1 + n % 1000)).count();
        assert!((10..1000).contains(&taken), "{taken} messages");
        // Each exchange takes some of them out.
        (0..40).for_each(|_| meeting.exchange());
    }
    confirm_by(&meeting, &line, &meeting.proof());
    meeting.ends_on_lane();
}

#[test]
fn a_proposal_over_the_life_line_for_no_connection_is_declined_there() {
    if plain_only() {
        return;
    }
    let (mut meeting, line) = with_line();
    let mut m = meeting.message(MessageKind::Proposal);
    m.tuple.local.port ^= 1;
    sock::send_to_peer(line.raw(), &m.encode(), &[meeting.proof().raw()]).expect("room");
    meeting.exchange();
    let mut bytes = [0; wire::LEN + 1];
    sock::recv_with_fds(line.raw(), &mut bytes).expect("an answer");
    let no = wire::Message::decode(&bytes[..wire::LEN]).expect("a message");
    assert_eq!(
        (no.kind, no.reason),
        (MessageKind::Decline, Reason::TOO_YOUNG.0)
    );
    confirm_by(&meeting, &line, &meeting.proof());
    meeting.ends_on_lane();
}

#[test]
fn after_an_empty_message_and_after_its_end_the_life_line_is_not_heard_but_mail_is() {
    if plain_only() {
        return;
    }
    for is_closed in [false, true] {
        let (mut meeting, line) = with_line();
        if is_closed {
            drop(line);
        } else {
            sock::send_to_peer(line.raw(), &[], &[]).expect("room");
        }
        (0..10).for_each(|_| meeting.exchange());
        let (m, proof) = (meeting.message(MessageKind::Confirm), meeting.proof());
        meeting.answer(&m.encode(), &[&proof, &chunk()]);
        meeting.ends_on_lane();
    }
}

#[test]
fn a_life_line_that_is_none_is_not_kept_and_the_lane_opens() {
    if plain_only() {
        return;
    }
    let lines: [fn() -> Fd; 4] = [
        || fd::event().expect("an eventfd"),
        || sock::unix_datagram(None).expect("a mailbox"),
        || sock::unix_channel().expect("a channel").0, // its other end is closed
        || memlane_sys::epoll::create().expect("a set"),
    ];
    for line in lines {
        let mut meeting = Meeting::with_client(&DEFAULT);
        meeting.proposed();
        let mut m = meeting.message(MessageKind::Accept);
        m.features = SPEAKS | wire::LIFE_LINE_COMES;
        meeting.answer(&m.encode(), &[&meeting.proof(), &chunk(), &line()]);
        meeting.ends_on_lane();
    }
}
