//! Clients and servers in one process, over real sockets: what users can rely on, whatever happens to their paths.

#![allow(clippy::cast_possible_truncation, reason = "small numbers")]

mod support;

use memlane_transport::engine::client::{AfterRestart, AllDown};
use memlane_transport::engine::path::PathState;
use memlane_transport::engine::{Direction, server};
use memlane_transport::error::{PathError, RequestError};
use memlane_transport::io::{Address, ClientConfig, PathAddr, ServerConfig, open};
use memlane_transport::port::{LeaseError, News, Session, Submission};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use support::proxy::Proxy;
use support::{
    Disk, MOST, Manners, User, client_engine, connect, each_once, hear, local, server_engine,
    start, start_with, tcp, until, usr,
};

fn socket_of(address: &Address) -> SocketAddr {
    match address {
        Address::Tcp(addr) => *addr,
        other => panic!("{other} is not TCP"),
    }
}

fn slow() -> Manners {
    Manners {
        slow: Some(Duration::from_millis(3)),
        picky: false,
    }
}

#[test]
fn what_is_written_is_read_back_by_every_device() {
    for listen in [tcp(), local()] {
        let disk = Arc::<Disk>::default();
        let server = start(&disk, vec![listen], Manners::default());
        let session = connect(&[&server.addresses()[0]]);
        let mut user = User::new(&*session, 1);
        user.work(500, 1);
        user.work(3000, 16);
        each_once(&disk, &user.ids);
        let sessions = server.sessions();
        assert_eq!(sessions.len(), 1);
        assert_eq!(sessions[0].name.as_deref(), Some("test"));
        assert_eq!(sessions[0].stats.begun, user.ids.len() as u64);
        assert_eq!(
            sessions[0]
                .paths
                .iter()
                .map(|path| path.connections)
                .sum::<usize>(),
            2
        );
        let stats = &session.paths()[0].stats;
        assert_eq!(
            (stats.connected, stats.failed),
            (1, 0),
            "the path went down"
        );
    }
}

#[test]
fn every_thread_gets_its_own_results_through_one_session() {
    for (listen, manners) in [
        (tcp(), Manners::default()),
        (tcp(), slow()),
        (local(), slow()),
    ] {
        let disk = Arc::<Disk>::default();
        let server = start(&disk, vec![listen], manners);
        let session = connect(&[&server.addresses()[0]]);
        std::thread::scope(|scope| {
            for seed in 1..=8 {
                let (session, disk) = (&session, &disk);
                scope.spawn(move || {
                    let mut user = User::new(&**session, seed);
                    user.work(400, 1 + seed as usize);
                    each_once(disk, &user.ids);
                });
            }
        });
    }
}

/// Those that wait for slow answers fall asleep while others take turns at leading, and some sleep in a poll of their own.
#[test]
fn threads_that_sleep_miss_nothing_while_others_take_turns() {
    for listen in [tcp(), local()] {
        let disk = Arc::<Disk>::default();
        let server = start(&disk, vec![listen], slow());
        let session = connect(&[&server.addresses()[0]]);
        let ids: Vec<u64> = std::thread::scope(|scope| {
            let user = |seed: u64| {
                let session = &session;
                scope.spawn(move || {
                    let mut user = User::new(&**session, seed);
                    // A deep queue always has something to reap; one of depth 1 waits for what is slow.
                    let depth = if seed.is_multiple_of(2) { 1 } else { 16 };
                    user.work(if depth == 1 { 60 } else { 600 }, depth);
                    user.ids
                })
            };
            let users: Vec<_> = (1..=9).map(user).collect();
            let ids = users.into_iter().map(|user| user.join().expect("no panic"));
            ids.flatten().collect()
        });
        each_once(&disk, &ids);
    }
}

#[test]
fn a_port_that_lingers_gets_its_results_without_sleeping() {
    for listen in [tcp(), local()] {
        let disk = Arc::<Disk>::default();
        let server = start(&disk, vec![listen], Manners::default());
        let session = connect(&[&server.addresses()[0]]);
        let mut user = User::new(&*session, 1);
        user.work(10, 1);
        let limit = Duration::from_millis(1);
        assert!(!user.port.linger(limit), "nothing is under way");
        for _ in 0..100 {
            user.ask();
            until("the answer", || user.port.linger(limit));
            assert_eq!(user.reap(), 1);
        }
        // It may sleep after that as before.
        user.work(100, 4);
        each_once(&disk, &user.ids);
    }
}

#[test]
fn a_port_that_lingers_in_vain_is_back_in_time_and_misses_nothing_afterwards() {
    let disk = Arc::<Disk>::default();
    let manners = Manners {
        slow: Some(Duration::from_millis(200)),
        picky: false,
    };
    let server = start(&disk, vec![local()], manners);
    let session = connect(&[&server.addresses()[0]]);
    let mut user = User::new(&*session, 1);
    for _ in 0..4 {
        user.ask();
        let began = Instant::now();
        let found = user.port.linger(Duration::from_micros(100));
        // A tenth of what the slow ones take, for a machine on which others work.
        let took = began.elapsed();
        assert!(found || took < Duration::from_millis(100), "{took:?}");
        user.drain();
    }
    each_once(&disk, &user.ids);
}

#[test]
fn a_port_that_sleeps_in_a_poll_of_its_own_misses_nothing() {
    let disk = Arc::<Disk>::default();
    let server = start(&disk, vec![tcp()], slow());
    let session = connect(&[&server.addresses()[0]]);
    std::thread::scope(|scope| {
        for seed in 1..=3 {
            let session = &session;
            scope.spawn(move || {
                let mut user = User::new(&**session, seed);
                for _ in 0..400 {
                    user.ask();
                    let start = Instant::now();
                    while user.reap() == 0 {
                        if user.port.arm() {
                            continue;
                        }
                        let fd = user.port.fd();
                        let mut set = [rustix::event::PollFd::new(
                            &fd,
                            rustix::event::PollFlags::IN,
                        )];
                        let limit = rustix::event::Timespec {
                            tv_sec: 10,
                            tv_nsec: 0,
                        };
                        let ready = rustix::event::poll(&mut set, Some(&limit)).expect("a poll");
                        assert!(ready > 0, "slept {:?} over a result", start.elapsed());
                    }
                }
                user.drain();
            });
        }
    });
}

#[test]
fn nothing_is_lost_or_done_twice_while_connections_are_cut_in_mid_frame() {
    for seed in 1..=4 {
        let disk = Arc::<Disk>::default();
        let server = start(&disk, vec![tcp()], slow());
        let proxies: Vec<_> = (0..seed % 2 + 1)
            .map(|n| Proxy::new(socket_of(&server.addresses()[0]), seed * 10 + n))
            .collect();
        let addresses: Vec<_> = proxies.iter().map(|p| Address::Tcp(p.address)).collect();
        let session = connect(&addresses.iter().collect::<Vec<_>>());
        let mut users: Vec<_> = (1..=3).map(|n| User::new(&*session, n)).collect();
        users[0].work(5, 1);
        for proxy in &proxies {
            proxy.switches.cut_after.store(2_000_000, Ordering::SeqCst);
        }
        std::thread::scope(|scope| {
            for user in &mut users {
                let disk = &disk;
                scope.spawn(move || {
                    user.work(500, 12);
                    each_once(disk, &user.ids);
                });
            }
        });
        let cuts: u64 = proxies
            .iter()
            .map(|proxy| proxy.switches.cuts.load(Ordering::SeqCst))
            .sum();
        assert!(cuts > 3, "only {cuts} cuts");
        let stats = server.sessions()[0].stats;
        assert!(
            stats.joined + stats.answered > 0,
            "no replay met its first copy: {stats:?}"
        );
    }
}

#[test]
fn a_path_that_stalls_does_not_hold_the_other() {
    let disk = Arc::<Disk>::default();
    let server = start(&disk, vec![tcp()], Manners::default());
    let proxy = Proxy::new(socket_of(&server.addresses()[0]), 5);
    let session = connect(&[&server.addresses()[0], &Address::Tcp(proxy.address)]);
    let both_up = || {
        session
            .paths()
            .iter()
            .all(|path| path.state == PathState::Connected)
    };
    until("both paths are up", both_up);
    let mut user = User::new(&*session, 1);
    user.work(200, 8);
    assert!(
        session
            .paths()
            .iter()
            .all(|path| path.stats.reads + path.stats.writes > 0)
    );
    proxy.switches.stalled.store(true, Ordering::SeqCst);
    user.work(2000, 8);
    // Whoever of the two despairs first.
    let is_silence = |news: &News| {
        matches!(
            news,
            News::PathDown(_, PathError::Silent | PathError::Closed)
        )
    };
    hear(&session, is_silence);
    proxy.switches.stalled.store(false, Ordering::SeqCst);
    until("both paths are up again", both_up);
    user.work(200, 8);
    each_once(&disk, &user.ids);
}

#[test]
fn a_server_that_restarts_is_found_again_and_its_requests_are_replayed() {
    let disk = Arc::<Disk>::default();
    let mut server = start(&disk, vec![tcp()], slow());
    let address = server.addresses()[0].clone();
    let session = connect(&[&address]);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let mut user = User::new(&*session, 1);
            while !over.load(Ordering::SeqCst) {
                user.work(50, 12);
            }
        });
        for born in 2..5 {
            std::thread::sleep(Duration::from_millis(100));
            server.stop();
            let config = ServerConfig::new(vec![address.clone()], server_engine(born));
            server = start_with(&disk, config, slow());
            hear(&session, |news| *news == News::ServerRestarted);
        }
        over.store(true, Ordering::SeqCst);
        worker.join().expect("every byte was right");
    });
}

#[test]
fn requests_that_a_restarted_server_had_fail_if_that_is_wanted() {
    let disk = Arc::<Disk>::default();
    let never = Manners {
        slow: Some(Duration::from_millis(700)),
        picky: false,
    };
    let server = start(&disk, vec![tcp()], never);
    let address = server.addresses()[0].clone();
    let mut engine = client_engine("test");
    engine.after_restart = AfterRestart::Fail;
    let paths = vec![PathAddr::to(address.clone())];
    let session = open(ClientConfig { engine, paths }).expect("a session");
    let mut port = session.port().expect("a port");
    let mut results = Vec::new();
    hear(&session, |news| matches!(news, News::PathUp(_)));
    for tag in 0..2 {
        // The second use of permit 0 is the one that takes long.
        port.submit(Submission {
            tag,
            direction: Direction::Write,
            usr: usr(3, tag),
            len: 0,
            lease: None,
        });
        if tag == 0 {
            until("the first is done", || port.reap(&mut results) == 1);
        }
    }
    port.push();
    until("the second is under way", || {
        session.paths()[0].inflight == 1
    });
    server.stop();
    let config = ServerConfig::new(vec![address], server_engine(2));
    let _again = start_with(&disk, config, Manners::default());
    until("it is over", || port.reap(&mut results) == 1);
    assert_eq!(results[0].result, Ok(()));
    assert_eq!(results[1].result, Err(RequestError::OutcomeUnknown));
}

#[test]
fn paths_come_and_go_under_load() {
    let disk = Arc::<Disk>::default();
    let server = start(&disk, vec![tcp(), tcp(), local()], slow());
    let session = connect(&[&server.addresses()[0]]);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (1..=2)
            .map(|seed| {
                let (session, over, disk) = (&session, &over, &disk);
                scope.spawn(move || {
                    let mut user = User::new(&**session, seed);
                    while !over.load(Ordering::SeqCst) {
                        user.work(50, 12);
                    }
                    each_once(disk, &user.ids);
                })
            })
            .collect();
        let mut newest = session.paths()[0].id;
        for round in 1..20 {
            let to = server.addresses()[round % 3].clone();
            let id = session.add_path(PathAddr::to(to)).expect("there is room");
            let state = |of| session.paths().iter().find(|p| p.id == of).map(|p| p.state);
            until("the new path is up", || {
                state(id) == Some(PathState::Connected)
            });
            match round % 3 {
                0 => session.disconnect(newest),
                1 => session.reconnect(newest),
                _ => {}
            }
            session.remove_path(newest);
            newest = id;
        }
        over.store(true, Ordering::SeqCst);
        for worker in workers {
            worker.join().expect("every byte was right");
        }
    });
    assert_eq!(session.paths().len(), 1);
}

#[test]
fn a_session_that_the_service_refuses_is_told_why() {
    let disk = Arc::<Disk>::default();
    let picky = Manners {
        slow: None,
        picky: true,
    };
    let server = start(&disk, vec![tcp()], picky);
    let paths = vec![PathAddr::to(server.addresses()[0].clone())];
    let engine = client_engine("!me");
    let session = open(ClientConfig { engine, paths }).expect("a session");
    let News::PathDown(_, why) = hear(&session, |_| true) else {
        panic!("it came up");
    };
    assert_eq!(why, PathError::Refused(13));
}

#[test]
fn a_notice_of_the_service_reaches_the_client() {
    let disk = Arc::<Disk>::default();
    let server = start(&disk, vec![tcp()], slow());
    let session = connect(&[&server.addresses()[0]]);
    hear(&session, |news| matches!(news, News::PathUp(_)));
    *disk.notice.lock().unwrap() = Some(77);
    let mut user = User::new(&*session, 1);
    user.work(10, 1);
    hear(&session, |news| *news == News::Notice(77));
}

#[test]
fn an_error_of_the_service_is_told_and_not_retried() {
    let disk = Arc::<Disk>::default();
    let server = start(&disk, vec![tcp()], Manners::default());
    let session = connect(&[&server.addresses()[0]]);
    let mut user = User::new(&*session, 1);
    let lease = user.lease(100);
    user.port.submit(Submission {
        tag: 1,
        direction: Direction::Write,
        usr: usr(u64::MAX, 1),
        len: 100,
        lease: Some(lease),
    });
    let mut done = Vec::new();
    until("it is done", || user.port.reap(&mut done) == 1);
    assert_eq!(done[0].result, Err(RequestError::Remote(28)));
    assert_eq!(disk.executed.lock().unwrap()[&1], 1);
}

#[test]
fn leases_outlive_their_session_and_its_requests_say_that_it_is_closed() {
    let disk = Arc::<Disk>::default();
    let forever = Manners {
        slow: Some(Duration::from_millis(300)),
        picky: false,
    };
    let server = start(&disk, vec![tcp()], forever);
    let session = connect(&[&server.addresses()[0]]);
    let mut user = User::new(&*session, 1);
    let kept = user.lease(MOST);
    assert!(kept.fill(0, b"kept"));
    for tag in 0..40 {
        user.port.submit(Submission {
            tag,
            direction: Direction::Write,
            usr: usr(1, tag),
            len: 0,
            lease: None,
        });
    }
    user.port.push();
    drop(session);
    let mut done = Vec::new();
    until("all are over", || {
        user.port.reap(&mut done);
        done.len() == 40
    });
    let closed = |result: &Result<(), RequestError>| *result == Err(RequestError::Closed);
    assert!(done.iter().any(|completion| closed(&completion.result)));
    assert!(matches!(user.port.lease(1), Err(LeaseError::Closed)));
    drop(user);
    let mut bytes = [0; 4];
    assert!(kept.take(0, &mut bytes));
    assert_eq!(&bytes, b"kept");
}

#[test]
fn why_a_path_is_not_up_is_told_in_the_kernels_words() {
    let nobody = |listen| {
        let server = start(&Arc::default(), vec![listen], Manners::default());
        server.addresses()[0].clone()
    };
    let mut paths = vec![PathAddr::to(nobody(tcp())), PathAddr::to(nobody(local()))];
    paths.push(PathAddr {
        src: "192.0.2.1".parse().ok(),
        dst: paths[0].dst.clone(),
    });
    let engine = client_engine("test");
    let session = open(ClientConfig { engine, paths }).expect("a session");
    let why = || {
        let paths = session.paths().into_iter();
        paths.map(|path| path.why).collect::<Option<Vec<_>>>()
    };
    until("all have failed", || why().is_some());
    let texts: Vec<_> = why()
        .expect("reasons")
        .iter()
        .map(ToString::to_string)
        .collect();
    let refused = "Connection refused";
    let not_ours = "Cannot assign requested address";
    assert_eq!(texts, [refused, refused, not_ours]);
}

#[test]
fn without_a_path_requests_wait_or_fail_as_the_session_was_told() {
    let nobody = Address::Tcp(([127, 0, 0, 1], 9).into());
    for (all_down, expected) in [
        (AllDown::Fail, RequestError::NoPath),
        (
            AllDown::Queue(Duration::from_millis(50)),
            RequestError::TimedOut,
        ),
    ] {
        let mut engine = client_engine("test");
        engine.all_down = all_down;
        let paths = vec![PathAddr::to(nobody.clone())];
        let session = open(ClientConfig { engine, paths }).expect("a session");
        let mut port = session.port().expect("a port");
        port.submit(Submission {
            tag: 1,
            direction: Direction::Write,
            usr: usr(1, 1),
            len: 0,
            lease: None,
        });
        let mut done = Vec::new();
        until("it is over", || port.reap(&mut done) == 1);
        assert_eq!(done[0].result, Err(expected));
        assert!(matches!(port.lease(1), Ok(None)));
    }
}

#[test]
fn what_does_not_fit_into_a_chunk_fails_and_harms_nobody() {
    let disk = Arc::<Disk>::default();
    let server = start(&disk, vec![tcp()], Manners::default());
    let session = connect(&[&server.addresses()[0]]);
    let mut user = User::new(&*session, 1);
    user.work(5, 1);
    assert!(matches!(
        user.port.lease(MOST + 1),
        Err(LeaseError::TooLong)
    ));
    let lease = user.lease(10);
    let longer_than_its_lease = (usr(1, 1), 11, Some(lease));
    for (usr, len, lease) in [
        longer_than_its_lease,
        (vec![0; 60_000].into(), 0, None),
        (usr(1, 2), 5, None),
    ] {
        user.port.submit(Submission {
            tag: 1,
            direction: Direction::Read,
            usr,
            len,
            lease,
        });
        let mut done = Vec::new();
        until("it is over", || user.port.reap(&mut done) == 1);
        assert_eq!(done[0].result, Err(RequestError::TooLong));
    }
    user.work(50, 4);
}

#[test]
fn a_port_that_takes_all_leases_does_not_starve_another() {
    let disk = Arc::<Disk>::default();
    let server = start(&disk, vec![tcp()], Manners::default());
    let session = connect(&[&server.addresses()[0]]);
    let (mut greedy, mut modest) = (User::new(&*session, 1), User::new(&*session, 2));
    let mut hoard = vec![greedy.lease(10)];
    while let Ok(Some(lease)) = greedy.port.lease(10) {
        hoard.push(lease);
    }
    assert!(matches!(modest.port.lease(10), Ok(None)));
    assert!(!modest.port.arm());
    hoard.pop();
    assert!(modest.port.arm(), "nobody told that there is one again");
    // One is free; both were refused, and either may have it, but not the same one for ever.
    let (mut first, mut second) = (0, 0);
    for _ in 0..20 {
        let one = greedy.port.lease(10).expect("not too long");
        let other = modest.port.lease(10).expect("not too long");
        first += usize::from(one.is_some());
        second += usize::from(other.is_some());
    }
    assert!(first > 0 && second > 0, "{first} and {second}");
}

#[test]
fn sessions_are_spread_over_workers_and_each_finds_its_own() {
    let disk = Arc::<Disk>::default();
    let mut config = ServerConfig::new(vec![tcp()], server_engine(1));
    config.workers = 3;
    let server = start_with(&disk, config, slow());
    let sessions: Vec<_> = (0..12)
        .map(|_| connect(&[&server.addresses()[0]]))
        .collect();
    std::thread::scope(|scope| {
        for (seed, session) in (1..).zip(&sessions) {
            scope.spawn(move || User::new(&**session, seed).work(60, 4));
        }
    });
    let seen = server.sessions();
    assert_eq!(seen.len(), 12);
    let workers: std::collections::BTreeSet<_> = seen.iter().map(|s| s.id.0).collect();
    assert!(workers.len() > 1, "one worker has them all");
}

#[test]
fn a_session_is_forgotten_when_its_client_stays_away_and_its_service_hears_of_it() {
    let disk = Arc::<Disk>::default();
    let mut config = ServerConfig::new(vec![tcp()], server_engine(1));
    config.engine = server::Config {
        linger: Duration::from_millis(50),
        ..config.engine
    };
    let server = start_with(&disk, config, Manners::default());
    let session = connect(&[&server.addresses()[0]]);
    User::new(&*session, 1).work(20, 2);
    drop(session);
    until("it is forgotten", || server.sessions().is_empty());
    assert_eq!(disk.gone.load(Ordering::SeqCst), 1);
}
