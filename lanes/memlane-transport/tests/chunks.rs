//! Leases that lie in the chunks of a server of this host: nothing is copied, and nobody is hurt.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::cast_possible_truncation,
    reason = "tests"
)]

mod support;

use memlane_core::access::SharedBytes;
use memlane_transport::engine::Direction;
use memlane_transport::engine::client::AllDown;
use memlane_transport::engine::server::{Job, SessionId};
use memlane_transport::error::RequestError;
use memlane_transport::io::{
    ClientConfig, ClientSession, PathAddr, Server, ServerConfig, open, serve,
};
use memlane_transport::lease::Lease;
use memlane_transport::port::{
    Completion, Finished, Identity, News, Port, Service, Session, Submission,
};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::{
    Disk, Manners, User, client_engine, connect, hear, local, server_engine, start, until, usr,
};

const LEN: usize = 4096;

/// What a server was asked, with the chunks that it was asked in.
#[derive(Default)]
struct Seen {
    jobs: Mutex<Vec<(Job, SharedBytes)>>,
    /// It does not answer.
    mute: AtomicBool,
    /// It answers what it did not answer before.
    over: AtomicBool,
}

impl Seen {
    fn count(&self) -> usize {
        self.jobs.lock().unwrap().len()
    }

    /// The chunk of the last request.
    fn chunk(&self) -> SharedBytes {
        self.jobs.lock().unwrap().last().unwrap().1
    }

    fn permits(&self) -> Vec<u16> {
        let jobs = self.jobs.lock().unwrap();
        jobs.iter().map(|(job, _)| job.permit).collect()
    }
}

/// What it was asked, what is finished, what is not.
struct Watcher(Arc<Seen>, Vec<Finished>, Vec<Finished>);

impl Service for Watcher {
    fn opened(&mut self, _: SessionId, _: &str, _: &Identity) -> bool {
        true
    }

    fn execute(&mut self, job: Job, chunk: SharedBytes) {
        let done = match self.0.mute.load(Ordering::SeqCst) {
            true => &mut self.2,
            false => &mut self.1,
        };
        done.push(Finished {
            session: job.session,
            permit: job.permit,
            generation: job.generation,
            errno: 0,
        });
        self.0.jobs.lock().unwrap().push((job, chunk));
    }

    fn finished(&mut self, into: &mut Vec<Finished>) {
        into.append(&mut self.1);
        if self.0.over.load(Ordering::SeqCst) {
            into.append(&mut self.2);
        }
    }

    fn notices(&mut self, _: &mut Vec<(SessionId, u32)>) {}

    fn gone(&mut self, _: SessionId) {}

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

fn watch(seen: &Arc<Seen>, config: ServerConfig) -> Server {
    let seen = Arc::clone(seen);
    serve(config, move |_| {
        Ok(Watcher(Arc::clone(&seen), Vec::new(), Vec::new()))
    })
    .unwrap()
}

fn watched(seen: &Arc<Seen>) -> (Server, Arc<ClientSession>) {
    let server = watch(seen, ServerConfig::new(vec![local()], server_engine(1)));
    let session = connect(&[&server.addresses()[0]]);
    hear(&session, |news| matches!(news, News::PathUp(_)));
    (server, session)
}

fn lease(port: &mut dyn Port, len: usize) -> Lease {
    let mut lent = None;
    until("a lease", || {
        lent = port.lease(len as u32).unwrap();
        lent.is_some()
    });
    lent.unwrap()
}

fn submit(port: &mut dyn Port, direction: Direction, len: usize, lease: Lease) {
    port.submit(Submission {
        tag: 1,
        direction,
        usr: usr(1, 1),
        len: len as u32,
        lease: Some(lease),
    });
    port.push();
}

/// The result, and the lease, which comes back whatever that is.
fn result(port: &mut dyn Port) -> (Result<(), RequestError>, Lease) {
    let mut done: Vec<Completion> = Vec::new();
    until("it is over", || port.reap(&mut done) == 1);
    let done = done.pop().unwrap();
    (done.result, done.lease.expect("it comes back"))
}

fn ask(port: &mut dyn Port, direction: Direction, len: usize, lease: Lease) -> Lease {
    submit(port, direction, len, lease);
    let (result, lease) = result(port);
    assert_eq!(result, Ok(()));
    lease
}

fn bytes_of(memory: &SharedBytes, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    // SAFETY: `bytes` is writable for its length.
    assert!(unsafe { memory.copy_out(0, bytes.as_mut_ptr(), len) });
    bytes
}

fn scribble(chunk: &SharedBytes, byte: u8, len: usize) {
    let bytes = vec![byte; len];
    // SAFETY: `bytes` is readable for its length.
    assert!(unsafe { chunk.copy_in(0, bytes.as_ptr(), len) });
}

#[test]
fn a_lease_is_a_piece_of_the_chunk_that_its_requests_are_made_in() {
    let seen = Arc::<Seen>::default();
    let (_server, session) = watched(&seen);
    let mut port = session.port().unwrap();
    let mut lent = lease(&mut *port, LEN);
    for (round, direction) in (1..).zip([Direction::Write, Direction::Read, Direction::Write]) {
        assert!(lent.fill(0, &[round; LEN]));
        lent = ask(&mut *port, direction, LEN, lent);
        let chunk = seen.chunk();
        assert_eq!(bytes_of(&chunk, LEN), [round; LEN], "it is there");
        scribble(&chunk, 100 + round, LEN);
        assert_eq!(
            bytes_of(&lent.bytes(), LEN),
            [100 + round; LEN],
            "it is the same memory"
        );
    }
    // Another one has another chunk, as long as the first is held.
    let other = lease(&mut *port, LEN);
    drop(ask(&mut *port, Direction::Read, LEN, other));
    let permits = seen.permits();
    assert!(permits[..3].iter().all(|permit| *permit == permits[0]));
    assert_ne!(permits[3], permits[0]);
}

#[test]
fn what_lies_behind_the_data_of_a_request_is_left_alone() {
    let seen = Arc::<Seen>::default();
    let (_server, session) = watched(&seen);
    let mut port = session.port().unwrap();
    let lent = lease(&mut *port, 2 * LEN);
    assert!(lent.fill(0, &[7; 2 * LEN]));
    let lent = ask(&mut *port, Direction::Write, LEN, lent);
    assert_eq!(bytes_of(&seen.chunk(), LEN), [7; LEN]);
    assert_eq!(bytes_of(&lent.bytes(), 2 * LEN), [7; 2 * LEN]);
}

#[test]
fn what_the_server_may_still_have_is_not_where_a_failed_request_s_bytes_are() {
    let seen = Arc::<Seen>::default();
    let server = watch(&seen, ServerConfig::new(vec![local()], server_engine(1)));
    let mut engine = client_engine("test");
    engine.all_down = AllDown::Fail;
    let paths = vec![PathAddr::to(server.addresses()[0].clone())];
    let session = open(ClientConfig { engine, paths }).unwrap();
    let mut port = session.port().unwrap();
    hear(&session, |news| matches!(news, News::PathUp(_)));
    let path = session.paths()[0].id;
    // More often than there are permits, and then than there are slots: none of either is lost.
    for round in 1..=100 {
        let lent = lease(&mut *port, LEN);
        assert!(lent.fill(0, &[round; LEN]));
        seen.mute.store(round <= 5, Ordering::SeqCst);
        let before = seen.count();
        submit(&mut *port, Direction::Write, LEN, lent);
        until("it is there", || seen.count() > before);
        let chunk = seen.chunk();
        assert_eq!(bytes_of(&chunk, LEN), [round; LEN]);
        if round > 5 {
            assert_eq!(result(&mut *port).0, Ok(()));
            continue;
        }
        session.disconnect(path);
        let (result, lent) = result(&mut *port);
        assert_eq!(result, Err(RequestError::NoPath));
        scribble(&chunk, 0xEE, LEN);
        assert_eq!(
            bytes_of(&lent.bytes(), LEN),
            [round; LEN],
            "the server reached it"
        );
        session.reconnect(path);
        hear(&session, |news| matches!(news, News::PathUp(_)));
    }
    let mut used = seen.permits().split_off(5);
    used.sort_unstable();
    used.dedup();
    let stuck = &seen.permits()[..5];
    assert!(
        stuck.iter().all(|permit| !used.contains(permit)),
        "a chunk was used that the server has"
    );
    seen.over.store(true, Ordering::SeqCst);
}

#[test]
fn a_lease_from_before_a_restart_is_as_good_as_any() {
    let seen = Arc::<Seen>::default();
    let (server, session) = watched(&seen);
    let address = server.addresses()[0].clone();
    let mut port = session.port().unwrap();
    let lent = lease(&mut *port, LEN);
    assert!(lent.fill(0, &[1; LEN]));
    let lent = ask(&mut *port, Direction::Write, LEN, lent);
    let waits = lease(&mut *port, LEN);
    assert!(waits.fill(0, &[2; LEN]));
    server.stop();
    // Taken before the next server is there.
    submit(&mut *port, Direction::Write, LEN, waits);
    let _again = watch(&seen, ServerConfig::new(vec![address], server_engine(2)));
    let (told, waits) = result(&mut *port);
    assert_eq!(told, Ok(()));
    assert_eq!(bytes_of(&seen.chunk(), LEN), [2; LEN]);
    drop(waits);
    assert!(lent.fill(0, &[3; LEN]));
    let lent = ask(&mut *port, Direction::Write, LEN, lent);
    assert_eq!(bytes_of(&seen.chunk(), LEN), [3; LEN]);
    scribble(&seen.chunk(), 4, LEN);
    let lent = ask(&mut *port, Direction::Read, LEN, lent);
    // It does not lie there, so what is read is brought.
    assert_ne!(bytes_of(&lent.bytes(), LEN), [3; LEN]);
    drop(lent);
    let fresh = lease(&mut *port, LEN);
    let fresh = ask(&mut *port, Direction::Read, LEN, fresh);
    scribble(&seen.chunk(), 5, LEN);
    assert_eq!(
        bytes_of(&fresh.bytes(), LEN),
        [5; LEN],
        "new leases lie in the new chunks"
    );
}

#[test]
fn who_holds_leases_leaves_enough_permits_for_others() {
    let disk = Arc::<Disk>::default();
    let server = start(&disk, vec![local()], Manners::default());
    let session = connect(&[&server.addresses()[0]]);
    let mut user = User::new(&*session, 1);
    let held: Vec<_> = (0..40).map(|_| user.lease(LEN as u32)).collect();
    user.work(500, 12);
    drop(held);
    user.work(500, 12);
    support::each_once(&disk, &user.ids);
    user.port.wait(Some(Duration::ZERO));
}
