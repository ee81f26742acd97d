//! What a client does, step by step, with a server that is played by hand.

use memlane_transport::engine::client::{
    Action, AfterRestart, AllDown, Client, Config, Event, Post, Request,
};
use memlane_transport::engine::path::{Conn, PathId, PathState};
use memlane_transport::engine::permits::Ticket;
use memlane_transport::engine::{Direction, Inbound, Time};
use memlane_transport::error::{PathError, RequestError, SubmitError};
use memlane_transport::wire::{
    CAP_REPLAY, Caps, ConnReq, ConnRsp, Control, Immediate, NEW_RKEY, REPLAYED, Request as Header,
    SETTLE, SgDesc,
};

const CHUNK: u32 = 8192;

fn ms(millis: u64) -> Time {
    Time::from_millis(millis)
}

/// A server of ours, of the first instance.
fn ours() -> ConnRsp {
    let (bits, number) = (CAP_REPLAY, 1);
    ConnRsp {
        queue_depth: 4,
        max_io_size: CHUNK - 4096,
        max_hdr_size: 4096,
        caps: Some(Caps { bits, number }),
        ..ConnRsp::default()
    }
}

fn actions(client: &mut Client) -> Vec<Action> {
    std::iter::from_fn(|| client.poll_action()).collect()
}

fn events(client: &mut Client) -> Vec<Event> {
    std::iter::from_fn(|| client.poll_event()).collect()
}

/// Plays the server until the client has nothing to say; what is not part of an introduction is returned.
fn serve(client: &mut Client, now: Time, rsp: &ConnRsp) -> Vec<Action> {
    let mut other = Vec::new();
    while let Some(action) = client.poll_action() {
        match action {
            Action::Connect { conn, .. } => client.on_accepted(now, conn, &rsp.encode()),
            Action::Send { conn, bytes } if bytes[..2] == [0, 0] => {
                let len = CHUNK * u32::from(rsp.queue_depth);
                let (addr, key) = (0, 7);
                let chunks = vec![SgDesc { addr, key, len }];
                let told = Control::InfoRsp { chunks }.encode();
                client.on_message(now, conn, Inbound::Send(&told));
            }
            action => other.push(action),
        }
    }
    other
}

/// A client with this number of paths, all up.
fn session(config: Config, paths: usize, rsp: &ConnRsp) -> Client {
    let mut client = Client::new(config);
    for _ in 0..paths {
        client.add_path(ms(0));
    }
    serve(&mut client, ms(0), rsp);
    assert_eq!(events(&mut client).len(), paths);
    client
}

fn config() -> Config {
    Config::new("story", [3; 16])
}

fn write() -> Request {
    Request {
        direction: Direction::Write,
        usr: [1, 2, 3].into(),
        len: 100,
        into: None,
        hint: 0,
    }
}

fn post(actions: Vec<Action>) -> Post {
    let mut posts = actions.into_iter().filter_map(|action| match action {
        Action::Post(post) => Some(post),
        _ => None,
    });
    let post = posts.next().expect("a post");
    assert_eq!(posts.next(), None, "one copy");
    post
}

fn answer(client: &mut Client, now: Time, conn: Conn, permit: u16, errno: u16) {
    let imm = Immediate::Response {
        id: u32::from(permit),
        errno,
        invalidated: false,
    };
    client.on_message(now, conn, Inbound::Immediate(imm.encode()));
}

fn header(post: &Post) -> Header {
    Header::decode(&post.tail[3..], true).expect("a header behind the user message")
}

fn done(ticket: Ticket, result: Result<(), RequestError>) -> Event {
    Event::Done { ticket, result }
}

fn down(path: u32, why: PathError, failed_over: usize) -> Event {
    Event::PathDown {
        path: PathId(path),
        why,
        failed_over,
    }
}

#[test]
fn a_request_lies_in_its_chunk_as_data_message_and_header() {
    let mut client = session(config(), 1, &ours());
    client.submit(ms(1), write()).expect("a permit");
    client.submit(ms(1), write()).expect("a permit");
    let posts = actions(&mut client);
    let post = post(posts[1..].to_vec());
    assert_eq!((post.chunk.addr, post.chunk.key), (8192, 7));
    assert_eq!((post.data, post.tail_at, post.conn.cid), (100, 100, 1));
    assert_eq!(post.tail[..3], [1, 2, 3]);
    // Two bits for four chunks.
    assert_eq!(post.imm, (1 << 26) | 103);
}

#[test]
fn a_request_of_a_dead_path_goes_by_another_one_behind_a_fence() {
    let mut client = session(config(), 2, &ours());
    let ticket = client.submit(ms(1), write()).expect("a permit");
    let first = post(actions(&mut client));
    client.on_closed(ms(2), first.conn);
    let then = actions(&mut client);
    let Conn { path, epoch, .. } = first.conn;
    assert_eq!(then[0], Action::Close { path, epoch });
    let fence = Control::Fence { epoch }.encode();
    assert!(
        matches!(&then[1], Action::Send { conn, bytes } if conn.cid == 0 && *bytes == fence),
        "{then:?}"
    );
    let copy = post(then);
    assert_ne!(copy.conn.path, path);
    assert_eq!((copy.conn.cid, copy.imm), (0, first.imm));
    let replay = header(&copy).replay.expect("counted");
    assert_eq!((replay.generation, replay.flags), (1, REPLAYED));
    // The dead incarnation can say what it wants.
    answer(&mut client, ms(3), first.conn, 0, 5);
    answer(&mut client, ms(3), copy.conn, 0, 0);
    let told = [down(path.0, PathError::Closed, 1), done(ticket, Ok(()))];
    assert_eq!(events(&mut client), told);
}

#[test]
fn a_server_that_counts_nothing_gets_no_second_copy_unless_asked_for() {
    let mainline = ConnRsp {
        caps: None,
        ..ours()
    };
    let mut client = session(config(), 2, &mainline);
    let ticket = client.submit(ms(1), write()).expect("a permit");
    let first = post(actions(&mut client));
    assert_eq!(first.tail.len(), 3 + 4, "mainline's header alone");
    client.on_closed(ms(2), first.conn);
    assert!(events(&mut client).contains(&done(ticket, Err(RequestError::Aborted))));
    assert_eq!(client.free_permits(), 4);

    let config = Config {
        replay_unfenced: true,
        ..config()
    };
    let mut client = session(config, 2, &mainline);
    client.submit(ms(1), write()).expect("a permit");
    let first = post(actions(&mut client));
    client.on_closed(ms(2), first.conn);
    assert_eq!(post(actions(&mut client)).imm, first.imm);
}

#[test]
fn a_request_that_waited_too_long_fails_but_keeps_its_permit_until_it_is_settled() {
    let config = Config {
        all_down: AllDown::Queue(ms(1000)),
        ..config()
    };
    let mut client = session(config, 1, &ours());
    let ticket = client.submit(ms(1), write()).expect("a permit");
    let first = post(actions(&mut client));
    client.on_closed(ms(2), first.conn);
    // Taken while nothing is up, and never sent: nothing to be settled.
    let unsent = client.submit(ms(3), write()).expect("a permit");
    client.poll(ms(1500));
    let told = events(&mut client);
    for ticket in [ticket, unsent] {
        assert!(told.contains(&done(ticket, Err(RequestError::TimedOut))));
    }
    assert_eq!(client.free_permits(), 3);
    let settle = post(serve(&mut client, ms(1501), &ours()));
    assert_eq!((settle.data, settle.imm), (0, first.imm));
    let flags = header(&settle).replay.expect("counted").flags;
    assert_eq!(flags, REPLAYED | SETTLE);
    answer(&mut client, ms(1502), settle.conn, 0, 125);
    assert_eq!(client.free_permits(), 4);
    assert_eq!(events(&mut client), [Event::PathUp(PathId(0))]);
}

#[test]
fn a_session_that_is_told_to_fail_does_so_at_once() {
    let config = Config {
        all_down: AllDown::Fail,
        ..config()
    };
    let mut client = session(config, 1, &ours());
    let ticket = client.submit(ms(1), write()).expect("a permit");
    let first = post(actions(&mut client));
    client.on_closed(ms(2), first.conn);
    assert!(events(&mut client).contains(&done(ticket, Err(RequestError::NoPath))));
    assert_eq!(client.submit(ms(3), write()), Err(SubmitError::NoPath));
}

/// When a client that hears nothing but questions gives its path up.
fn given_up(client: &mut Client) -> Time {
    let conn = Conn {
        path: PathId(0),
        epoch: 1,
        cid: 0,
    };
    let asks = Immediate::Heartbeat.encode();
    for at in (0..10_000).step_by(10) {
        // The server is there and asks; nothing that we say reaches it.
        client.on_message(ms(at), conn, Inbound::Immediate(asks));
        client.poll(ms(at));
        if client.why_down(PathId(0)) == Some(PathError::Silent) {
            return ms(at);
        }
    }
    panic!("never");
}

#[test]
fn a_cut_that_goes_one_way_is_noticed_in_less_than_a_second_if_anybody_waits() {
    let mut client = session(config(), 1, &ours());
    client.submit(ms(0), write()).expect("a permit");
    assert_eq!(given_up(&mut client), ms(800));
    // Nobody waits.
    let mut client = session(config(), 1, &ours());
    assert_eq!(given_up(&mut client), ms(3200));
}

#[test]
fn a_path_that_died_while_it_was_idle_is_given_up_in_less_than_a_second_after_it_is_used() {
    for idle in [100, 700, 801, 1500, 1700, 3100] {
        let mut client = session(config(), 1, &ours());
        for at in (0..idle).step_by(100) {
            client.poll(ms(at));
        }
        client.submit(ms(idle), write()).expect("a permit");
        let end = idle + 800;
        while client.why_down(PathId(0)).is_none() {
            let at = client.deadline().expect("it asks");
            assert!(at <= ms(end), "{idle}: {at:?}");
            client.poll(at);
        }
    }
}

#[test]
fn who_was_stopped_asks_again_before_he_gives_a_path_up() {
    let mut client = session(config(), 1, &ours());
    client.submit(ms(1), write()).expect("a permit");
    let first = post(actions(&mut client));
    // Questions go out, and the client is stopped for a minute before their answers can come.
    for at in [202, 402, 602] {
        client.poll(ms(at));
    }
    assert!(!actions(&mut client).is_empty());
    client.poll(ms(60_000));
    assert_eq!(events(&mut client), []);
    let asks = Immediate::Heartbeat.encode();
    let (conn, imm) = (first.conn, asks);
    assert!(actions(&mut client).contains(&Action::Immediate { conn, imm }));
    // The server is there.
    let ack = Immediate::HeartbeatAck.encode();
    for cid in [0, 1] {
        let conn = Conn { cid, ..first.conn };
        client.on_message(ms(60_100), conn, Inbound::Immediate(ack));
    }
    client.poll(ms(60_299));
    assert_eq!(events(&mut client), []);
    // Now it is not.
    while events(&mut client).is_empty() {
        let at = client.deadline().expect("it asks");
        assert!(at <= ms(60_900), "{at:?}");
        client.poll(at);
    }
    assert_eq!(client.why_down(PathId(0)), Some(PathError::Silent));
}

#[test]
fn what_was_not_sent_to_a_server_that_has_restarted_is_not_sent_to_the_new_one() {
    let config = Config {
        after_restart: AfterRestart::Fail,
        ..config()
    };
    let mut client = session(config, 1, &ours());
    let sent = client.submit(ms(1), write()).expect("a permit");
    let first = post(actions(&mut client));
    client.on_closed(ms(2), first.conn);
    let waits = client.submit(ms(3), write()).expect("a permit");
    actions(&mut client);
    client.poll(ms(500));
    let mut other = ours();
    other.caps = other.caps.map(|caps| Caps { number: 2, ..caps });
    let posts = serve(&mut client, ms(501), &other);
    assert!(
        !posts.iter().any(|action| matches!(action, Action::Post(_))),
        "{posts:?}"
    );
    let told = events(&mut client);
    for ticket in [sent, waits] {
        let lost = done(ticket, Err(RequestError::OutcomeUnknown));
        assert!(told.contains(&lost), "{told:?}");
    }
    assert_eq!(client.free_permits(), 4);
}

#[test]
fn a_connection_that_dies_alone_takes_its_path_along() {
    let mut client = session(config(), 1, &ours());
    client.submit(ms(1), write()).expect("a permit");
    let first = post(actions(&mut client));
    for at in (0..2000).step_by(50) {
        client.poll(ms(at));
        for action in actions(&mut client) {
            // Connection 0 is well.
            if let Action::Immediate { conn, .. } = action
                && conn.cid == 0
            {
                let ack = Immediate::HeartbeatAck.encode();
                client.on_message(ms(at), conn, Inbound::Immediate(ack));
            }
        }
    }
    assert_eq!(first.conn.cid, 1);
    assert!(events(&mut client).contains(&down(0, PathError::Silent, 1)));
}

#[test]
fn a_response_to_no_request_ends_the_path() {
    let mut client = session(config(), 1, &ours());
    client.submit(ms(1), write()).expect("a permit");
    let first = post(actions(&mut client));
    answer(&mut client, ms(2), first.conn, 3, 0);
    let told = events(&mut client);
    let why = PathError::Misbehaved("a response to no request");
    assert_eq!(told, [down(0, why, 1)]);
}

#[test]
fn a_server_that_comes_back_with_other_chunks_is_not_tried_for_ever() {
    let mut client = session(config(), 1, &ours());
    let path = PathId(0);
    client.reconnect(ms(1), path);
    let other = ConnRsp {
        queue_depth: 8,
        ..ours()
    };
    serve(&mut client, ms(2), &other);
    assert!(events(&mut client).contains(&down(0, PathError::GeometryChanged, 0)));
    assert_eq!(
        client.paths().collect::<Vec<_>>(),
        [(path, PathState::Closed)]
    );
    client.reconnect(ms(3), path);
    serve(&mut client, ms(3), &ours());
    assert_eq!(
        client.paths().collect::<Vec<_>>(),
        [(path, PathState::Connected)]
    );
}

#[test]
fn a_server_that_has_forgotten_the_session_is_known_by_its_instance() {
    let mut client = session(config(), 1, &ours());
    let ticket = client.submit(ms(1), write()).expect("a permit");
    let first = post(actions(&mut client));
    client.on_closed(ms(2), first.conn);
    client.poll(ms(200));
    let (bits, number) = (CAP_REPLAY, 2);
    let caps = Some(Caps { bits, number });
    let again = post(serve(&mut client, ms(200), &ConnRsp { caps, ..ours() }));
    // For this server it is the first copy.
    assert_eq!(header(&again).replay.expect("counted").flags, 0);
    answer(&mut client, ms(201), again.conn, 0, 0);
    let told = events(&mut client);
    assert_eq!(
        told[1..3],
        [Event::ServerRestarted, Event::PathUp(PathId(0))]
    );
    assert_eq!(told[3], done(ticket, Ok(())));
}

#[test]
fn only_a_session_without_a_path_may_be_created() {
    let mut client = Client::new(config());
    let first_conn = |client: &mut Client| {
        let Some(Action::Connect { private, .. }) = client.poll_action() else {
            panic!("no attempt")
        };
        ConnReq::decode(&private).expect("a request").first_conn
    };
    client.add_path(ms(0));
    assert!(first_conn(&mut client));
    let mut client = session(config(), 1, &ours());
    client.add_path(ms(1));
    assert!(!first_conn(&mut client));
}

#[test]
fn a_key_that_came_with_a_response_opens_the_chunk_next_time() {
    let flags = NEW_RKEY;
    let mut client = session(config(), 1, &ConnRsp { flags, ..ours() });
    client.submit(ms(1), write()).expect("a permit");
    let conn = post(actions(&mut client)).conn;
    let key = Control::RkeyRsp { id: 0, key: 99 }.encode();
    let response = Immediate::Response {
        id: 0,
        errno: 0,
        invalidated: false,
    };
    let inbound = Inbound::SendImmediate(&key, response.encode());
    client.on_message(ms(2), conn, inbound);
    client.submit(ms(3), write()).expect("a permit");
    assert_eq!(post(actions(&mut client)).chunk.key, 99);
}

#[test]
fn what_does_not_fit_is_refused_and_nothing_has_happened() {
    let mut client = session(config(), 1, &ours());
    let long = Request {
        len: CHUNK - 4095,
        ..write()
    };
    assert_eq!(client.submit(ms(1), long), Err(SubmitError::TooLong));
    let usr = vec![0; 4090].into();
    let wordy = Request { usr, ..write() };
    assert_eq!(client.submit(ms(1), wordy), Err(SubmitError::TooLong));
    let direction = Direction::Read;
    let homeless = Request {
        direction,
        ..write()
    };
    assert_eq!(
        client.submit(ms(1), homeless),
        Err(SubmitError::Destination)
    );
    for _ in 0..4 {
        client.submit(ms(1), write()).expect("a permit");
    }
    assert_eq!(client.submit(ms(1), write()), Err(SubmitError::NoPermit));
    client.close(ms(2));
    assert_eq!(client.submit(ms(2), write()), Err(SubmitError::Closed));
    assert_eq!(client.add_path(ms(2)), None);
}
