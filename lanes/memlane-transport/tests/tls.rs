//! Sessions over TLS: they are sessions like others, and nobody who has not proven who he is has one.

#![allow(clippy::cast_possible_truncation, reason = "small numbers")]

mod certs;
mod support;

use certs::{Authority, Both, Folder, Wish};
use memlane_transport::error::{CertificateFault as Fault, ENOKEY, PathError, TlsError};
use memlane_transport::io::frame::{HEADER, Header, Step};
use memlane_transport::io::tls::{ClientTls, ServerTls, TlsFiles};
use memlane_transport::io::{
    Address, ClientConfig, ClientSession, Holder, Limits, Means, PathAddr, Server, ServerConfig,
    SharedMemory, open_over_tls, open_with,
};
use memlane_transport::port::{Identity, News};
use memlane_transport::wire::{CAPS, CONN_LEN, Caps, ConnReq};
use rcgen::ExtendedKeyUsagePurpose as Usage;
use rustls::pki_types::ServerName;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConnection, StreamOwned};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::proxy::Proxy;
use support::{
    Disk, Manners, PATIENCE, Rng, User, client_engine, connect, each_once, hear, local,
    server_engine, start, start_with, tcp, until,
};

fn start_tls(disk: &Arc<Disk>, tls: ServerTls, listen: Vec<Address>) -> Server {
    start_limited(disk, tls, listen, Limits::default())
}

fn start_limited(disk: &Arc<Disk>, tls: ServerTls, listen: Vec<Address>, limits: Limits) -> Server {
    let mut config = ServerConfig::new(listen, server_engine(1));
    config.tls = Some(tls);
    config.limits = limits;
    start_with(disk, config, Manners::default())
}

fn connect_tls(tls: &ClientTls, paths: &[&Address]) -> Arc<ClientSession> {
    let engine = client_engine("test");
    let paths = paths.iter().map(|to| PathAddr::to((*to).clone())).collect();
    open_over_tls(ClientConfig { engine, paths }, Some(tls.clone())).expect("a session")
}

fn socket_of(server: &Server) -> SocketAddr {
    match &server.addresses()[0] {
        Address::Tcp(addr) => *addr,
        other => panic!("{other} is not TCP"),
    }
}

/// Why the only path went down, and that this was told at once.
#[track_caller]
fn why(session: &ClientSession) -> PathError {
    let begin = Instant::now();
    let news = hear(session, |news| matches!(news, News::PathDown(..)));
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(4), "told after {took:?} only");
    let News::PathDown(path, why) = news else {
        panic!("{news:?}");
    };
    until("the path says so", || {
        let paths = session.paths();
        let known = paths.iter().find(|known| known.id == path);
        known.is_some_and(|known| known.why.is_some())
    });
    why
}

#[test]
fn what_is_written_is_read_back_and_the_server_knows_by_whom() {
    let both = Both::new(&Wish::server(), &Wish::client(&["test", "other*"]));
    let disk = Arc::<Disk>::default();
    let server = start_tls(&disk, both.server(), vec![tcp()]);
    let session = connect_tls(&both.client(), &[&server.addresses()[0]]);
    let mut user = User::new(&*session, 1);
    user.work(300, 1);
    user.work(3000, 16);
    each_once(&disk, &user.ids);
    std::thread::scope(|scope| {
        for seed in 2..=5 {
            let (session, disk) = (&session, &disk);
            scope.spawn(move || {
                let mut user = User::new(&**session, seed);
                user.work(300, 1 + seed as usize);
                each_once(disk, &user.ids);
            });
        }
    });
    let sessions = server.sessions();
    let path = &sessions[0].paths[0];
    let names = vec!["test".to_owned(), "other*".to_owned()];
    assert_eq!(path.who, Identity::Certificate(names));
    assert_eq!(path.peer, "tls:127.0.0.1");
    let stats = &session.paths()[0].stats;
    assert_eq!((stats.connected, stats.failed), (1, 0));
}

/// The client proves who it is by TLS; then data goes by memory, and only the bells by the socket.
#[test]
fn memory_that_machines_share_carries_the_data_of_a_client_with_a_certificate() {
    let file = rustix::fs::memfd_create("memlane-test", rustix::fs::MemfdFlags::CLOEXEC);
    let file = file.expect("memory");
    rustix::fs::ftruncate(&file, 8 << 20).expect("memory");
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let shared = |machine| {
        let file = std::fs::File::options().read(true).write(true).open(&path);
        let holder = Holder { machine, boot: 1 };
        let memory = SharedMemory::map(file.expect("memory").into(), holder);
        Some(Arc::new(memory.expect("memory")))
    };
    let both = Both::new(&Wish::server(), &Wish::client(&["test"]));
    let disk = Arc::<Disk>::default();
    let mut config = ServerConfig::new(vec![tcp()], server_engine(1));
    (config.tls, config.shares) = (Some(both.server()), shared(1));
    let server = start_with(&disk, config, Manners::default());
    let (at, seen) = tapped(socket_of(&server));
    let means = Means {
        tls: Some(both.client()),
        shares: shared(2),
        ..Means::default()
    };
    let config = ClientConfig {
        engine: client_engine("test"),
        paths: vec![PathAddr::to(Address::Ivshmem(at))],
    };
    let session = open_with(config, means).expect("a session");
    hear(&session, |news| matches!(news, News::PathUp(_)));
    let before = seen.lock().expect("bytes").len();
    let mut user = User::new(&*session, 1);
    user.work(300, 1);
    user.work(2000, 16);
    each_once(&disk, &user.ids);
    let by_socket = seen.lock().expect("bytes").len() - before;
    assert!(by_socket < 100_000, "{by_socket} bytes went by TCP");
    let path = &server.sessions()[0].paths[0];
    assert_eq!(path.who, Identity::Certificate(vec!["test".to_owned()]));
    assert_eq!(path.peer, "ivshmem+tls:127.0.0.1");
    let stats = &session.paths()[0].stats;
    assert_eq!((stats.connected, stats.failed), (1, 0));
}

/// Forwards one way or the other, and keeps what went by.
fn tapped(to: SocketAddr) -> (SocketAddr, Arc<std::sync::Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let address = listener.local_addr().expect("an address");
    let seen = Arc::<std::sync::Mutex<Vec<u8>>>::default();
    let all = Arc::clone(&seen);
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let server = TcpStream::connect(to).expect("the server");
            for (mut from, mut to) in [
                (client.try_clone().unwrap(), server.try_clone().unwrap()),
                (server, client),
            ] {
                let all = Arc::clone(&all);
                std::thread::spawn(move || {
                    let mut bytes = vec![0; 64 << 10];
                    while let Ok(count @ 1..) = from.read(&mut bytes) {
                        all.lock().unwrap().extend(&bytes[..count]);
                        if to.write_all(&bytes[..count]).is_err() {
                            return;
                        }
                    }
                    let _ = to.shutdown(std::net::Shutdown::Both);
                });
            }
        }
    });
    (address, seen)
}

#[test]
fn nobody_between_reads_what_goes_by() {
    const SECRET: &[u8] = b"memlane\0";
    let both = Both::good();
    let holds = |seen: &[u8]| seen.windows(SECRET.len()).any(|window| window == SECRET);
    for encrypted in [false, true] {
        let disk = Arc::<Disk>::default();
        let server = match encrypted {
            true => start_tls(&disk, both.server(), vec![tcp()]),
            false => start(&disk, vec![tcp()], Manners::default()),
        };
        let (address, seen) = tapped(socket_of(&server));
        let address = Address::Tcp(address);
        let session = match encrypted {
            true => connect_tls(&both.client(), &[&address]),
            false => connect(&[&address]),
        };
        User::new(&*session, 1).work(100, 4);
        let seen = seen.lock().unwrap();
        assert!(seen.len() > 100_000);
        // The magic that each connection begins with.
        assert_eq!(holds(&seen), !encrypted);
    }
}

#[test]
fn a_path_on_this_machine_is_not_encrypted_and_both_serve_one_session() {
    let both = Both::good();
    let disk = Arc::<Disk>::default();
    let server = start_tls(&disk, both.server(), vec![tcp(), local()]);
    let session = connect_tls(&both.client(), &[&server.addresses()[1]]);
    let mut user = User::new(&*session, 1);
    user.work(200, 8);
    each_once(&disk, &user.ids);
}

#[test]
fn certificates_that_are_not_good_are_refused_at_once_and_each_end_knows_why() {
    let (server, client) = (Wish::server, || Wish::client(&["test"]));
    let expired = |wish: Wish| Wish {
        years: (2020, 2021),
        ..wish
    };
    let early = |wish: Wish| Wish {
        years: (2089, 2090),
        ..wish
    };
    let elsewhere = |wish: Wish| Wish {
        names: vec!["192.0.2.1".into(), "other.example".into()],
        ..wish
    };
    let with = |usage: Usage, wish: Wish| Wish { usage, ..wish };
    use TlsError::{Ours, Theirs};
    for (server, client, wanted) in [
        (expired(server()), client(), Theirs(Fault::Expired)),
        (early(server()), client(), Theirs(Fault::Expired)),
        (elsewhere(server()), client(), Theirs(Fault::WrongName)),
        (
            with(Usage::ClientAuth, server()),
            client(),
            Theirs(Fault::Purpose),
        ),
        (server(), expired(client()), Ours(Fault::Expired)),
        (server(), early(client()), Ours(Fault::Expired)),
        (
            server(),
            with(Usage::ServerAuth, client()),
            Ours(Fault::Purpose),
        ),
    ] {
        let both = Both::new(&server, &client);
        let disk = Arc::<Disk>::default();
        let server = start_tls(&disk, both.server(), vec![tcp()]);
        let session = connect_tls(&both.client(), &[&server.addresses()[0]]);
        let why = why(&session);
        assert_eq!(why, PathError::Tls(wanted), "{why}");
        assert!(why.wants_a_person());
        assert!(server.sessions().is_empty());
    }
}

#[test]
fn authorities_that_are_not_believed_are_refused_by_whoever_does_not() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    // Of the same name, but with another key.
    let twin = Authority::new("ours");
    for (of_server, believed_by_client, of_client, believed_by_server, wanted) in [
        (
            &ours,
            &theirs,
            &ours,
            &ours,
            TlsError::Theirs(Fault::UnknownIssuer),
        ),
        (
            &ours,
            &twin,
            &ours,
            &ours,
            TlsError::Theirs(Fault::UnknownIssuer),
        ),
        (
            &ours,
            &ours,
            &theirs,
            &ours,
            TlsError::Ours(Fault::UnknownIssuer),
        ),
        (
            &ours,
            &ours,
            &twin,
            &ours,
            TlsError::Ours(Fault::UnknownIssuer),
        ),
    ] {
        let (server, client) = (Folder::new(), Folder::new());
        of_server.server(&server.0, &Wish::server(), believed_by_server);
        of_client.client(&client.0, &Wish::client(&["test"]), believed_by_client);
        let disk = Arc::<Disk>::default();
        let tls = ServerTls::load(&TlsFiles::of_server(&server.0)).expect("files");
        let server = start_tls(&disk, tls, vec![tcp()]);
        let tls = ClientTls::load(&TlsFiles::of_client(&client.0), None).expect("files");
        let session = connect_tls(&tls, &[&server.addresses()[0]]);
        assert_eq!(why(&session), PathError::Tls(wanted));
    }
}

#[test]
fn a_server_is_believed_by_its_name_or_its_address_whichever_was_asked_for() {
    let both = Both::good();
    let disk = Arc::<Disk>::default();
    let server = start_tls(&disk, both.server(), vec![tcp()]);
    for (name, wanted) in [
        (None, true),
        (Some("storage.example"), true),
        (Some("127.0.0.1"), true),
        (Some("127.0.0.2"), false),
        (Some("example"), false),
    ] {
        let session = connect_tls(&both.client_of(name), &[&server.addresses()[0]]);
        match wanted {
            true => User::new(&*session, 1).work(10, 1),
            false => assert_eq!(
                why(&session),
                PathError::Tls(TlsError::Theirs(Fault::WrongName)),
                "{name:?}"
            ),
        }
    }
    let files = TlsFiles::of_client(&both.client.0);
    assert!(ClientTls::load(&files, Some("no name")).is_err());
}

#[test]
fn a_certificate_that_was_revoked_is_refused_once_the_list_was_read() {
    let client = Wish::client(&["test"]);
    let both = Both::new(&Wish::server(), &client);
    let disk = Arc::<Disk>::default();
    let tls = both.server();
    let server = start_tls(&disk, tls.clone(), vec![tcp()]);
    let session = connect_tls(&both.client(), &[&server.addresses()[0]]);
    User::new(&*session, 1).work(10, 1);
    both.authority.revoke(&both.server.0, client.serial);
    let files = TlsFiles::of_server(&both.server.0);
    assert!(files.revoked.is_some());
    tls.reload(&files).expect("good files");
    // Who is there stays; who comes anew does not come in.
    User::new(&*session, 1).work(10, 1);
    let path = session.paths()[0].id;
    session.reconnect(path);
    let revoked = PathError::Tls(TlsError::Ours(Fault::Revoked));
    hear(&session, |news| *news == News::PathDown(path, revoked));
}

#[test]
fn renewed_certificates_are_shown_from_then_on_and_bad_ones_change_nothing() {
    let both = Both::new(
        &Wish {
            years: (2020, 2021),
            ..Wish::server()
        },
        &Wish::client(&["test"]),
    );
    let disk = Arc::<Disk>::default();
    let (server_tls, client_tls) = (both.server(), both.client());
    let server = start_tls(&disk, server_tls.clone(), vec![tcp()]);
    let session = connect_tls(&client_tls, &[&server.addresses()[0]]);
    assert_eq!(
        why(&session),
        PathError::Tls(TlsError::Theirs(Fault::Expired))
    );
    let (server_files, client_files) = (
        TlsFiles::of_server(&both.server.0),
        TlsFiles::of_client(&both.client.0),
    );
    // Half of a renewal: the key is another one's.
    let key = both.server.0.join("server-key.pem");
    let old = std::fs::read(&key).expect("the key");
    std::fs::copy(both.client.0.join("client-key.pem"), &key).expect("a copy");
    assert!(server_tls.reload(&server_files).is_err());
    std::fs::write(&key, old).expect("the key");
    both.authority
        .server(&both.server.0, &Wish::server(), &both.authority);
    server_tls.reload(&server_files).expect("good files");
    // The client has tried all the time.
    User::new(&*session, 1).work(10, 1);
    // A client's, likewise.
    std::fs::remove_file(both.client.0.join("client-cert.pem")).expect("it was there");
    let error = client_tls.reload(&client_files).expect_err("no file");
    assert!(error.to_string().contains("client-cert.pem"), "{error}");
    let wish = Wish::client(&["renewed"]);
    both.authority
        .client(&both.client.0, &wish, &both.authority);
    client_tls.reload(&client_files).expect("good files");
    session.reconnect(session.paths()[0].id);
    User::new(&*session, 1).work(10, 1);
    let who = server.sessions()[0].paths[0].who.clone();
    assert_eq!(who, Identity::Certificate(vec!["renewed".into()]));
}

#[test]
fn one_end_with_tls_and_one_without_find_out_at_once() {
    let both = Both::good();
    let disk = Arc::<Disk>::default();
    let with = start_tls(&disk, both.server(), vec![tcp()]);
    let session = connect(&[&with.addresses()[0]]);
    let said = why(&session);
    assert_eq!(said, PathError::Refused(ENOKEY));
    assert!(said.to_string().contains("--tls"), "{said}");
    let without = start(&disk, vec![tcp()], Manners::default());
    let session = connect_tls(&both.client(), &[&without.addresses()[0]]);
    assert_eq!(why(&session), PathError::Tls(TlsError::NotTls));
    // Something else altogether.
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let address = Address::Tcp(listener.local_addr().expect("an address"));
    let session = connect_tls(&both.client(), &[&address]);
    let (mut stream, _) = listener.accept().expect("a client");
    stream.write_all(b"SSH-2.0-OpenSSH\r\n").expect("said");
    assert_eq!(why(&session), PathError::Tls(TlsError::NotTls));
}

// ---- by hand ----

/// How a client by hand behaves.
struct Hand<'a> {
    both: &'a Both,
    certificate: bool,
    protocol: Option<&'a [u8]>,
}

impl Hand<'_> {
    fn config(&self) -> Arc<rustls::ClientConfig> {
        let folder = &self.both.client.0;
        let mut roots = rustls::RootCertStore::empty();
        let root = CertificateDer::from_pem_file(folder.join("ca-cert.pem")).expect("a root");
        roots.add(root).expect("a root");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots);
        let mut config = match self.certificate {
            false => builder.with_no_client_auth(),
            true => {
                let own = CertificateDer::from_pem_file(folder.join("client-cert.pem"));
                let key = PrivateKeyDer::from_pem_file(folder.join("client-key.pem"));
                builder
                    .with_client_auth_cert(vec![own.expect("a certificate")], key.expect("a key"))
                    .expect("they fit")
            }
        };
        config.alpn_protocols = self.protocol.map(<[u8]>::to_vec).into_iter().collect();
        Arc::new(config)
    }

    fn connect(&self, server: &Server) -> StreamOwned<ClientConnection, TcpStream> {
        let stream = TcpStream::connect(socket_of(server)).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
        let name = ServerName::try_from("storage.example").expect("a name");
        let tls = ClientConnection::new(self.config(), name).expect("a client");
        StreamOwned::new(tls, stream)
    }
}

fn hand(both: &Both) -> Hand<'_> {
    Hand {
        both,
        certificate: true,
        protocol: Some(b"memlane/1"),
    }
}

fn wish(session: u8) -> Vec<u8> {
    let wish = ConnReq {
        cid: 0,
        cid_num: 2,
        recon_cnt: 0,
        path: [session; 16],
        session: [session; 16],
        first_conn: true,
        caps: Some(Caps {
            bits: CAPS,
            number: 1,
        }),
    };
    [&Header::Step(Step::Connect).encode()[..], &wish.encode()].concat()
}

fn is_accepted(stream: &mut impl Read) -> bool {
    let mut bytes = [0; HEADER + CONN_LEN];
    let head = |bytes: &[u8]| Header::decode(bytes.first_chunk().expect("a header"));
    stream.read_exact(&mut bytes).is_ok() && head(&bytes) == Ok(Header::Step(Step::Accept))
}

/// The server closes the connection, whatever else it says before.
#[track_caller]
fn is_closed(mut stream: impl Read) {
    let mut sink = vec![0; 1 << 16];
    loop {
        match stream.read(&mut sink) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                panic!("it is still open")
            }
            Err(_) => return,
        }
    }
}

#[test]
fn nobody_comes_in_without_a_certificate_or_with_another_protocol_in_mind() {
    let both = Both::good();
    let disk = Arc::<Disk>::default();
    let server = start_tls(&disk, both.server(), vec![tcp()]);
    let comes_in = |hand: Hand<'_>| {
        let mut stream = hand.connect(&server);
        stream.write_all(&wish(1)).is_ok() && is_accepted(&mut stream)
    };
    assert!(comes_in(hand(&both)));
    assert!(!comes_in(Hand {
        certificate: false,
        ..hand(&both)
    }));
    assert!(!comes_in(Hand {
        protocol: None,
        ..hand(&both)
    }));
    assert!(!comes_in(Hand {
        protocol: Some(b"h2"),
        ..hand(&both)
    }));
    // Without a certificate, one is told so.
    let mut stream = Hand {
        certificate: false,
        ..hand(&both)
    }
    .connect(&server);
    let _ = stream.write_all(&wish(1));
    let told = stream.read(&mut [0; 99]).expect_err("refused").to_string();
    assert!(told.contains("CertificateRequired"), "{told}");
    until("their sessions are gone", || {
        server.sessions().iter().all(|s| s.name.is_none())
    });
}

#[test]
fn records_of_any_size_and_new_keys_in_between_are_one_stream() {
    let both = Both::good();
    let disk = Arc::<Disk>::default();
    let server = start_tls(&disk, both.server(), vec![tcp()]);
    let mut stream = hand(&both).connect(&server);
    // A byte in each record: more of them than are read in one turn.
    for (at, byte) in wish(2).iter().enumerate() {
        if at % 20 == 7 {
            stream.conn.refresh_traffic_keys().expect("new keys");
        }
        stream.write_all(&[*byte]).expect("sent");
    }
    assert!(is_accepted(&mut stream));
    // The server was asked to change its keys, too, and goes on.
    let mut stream = hand(&both).connect(&server);
    stream.write_all(&wish(3)).expect("sent");
    assert!(is_accepted(&mut stream));
    stream.conn.send_close_notify();
    let _ = stream.flush();
    is_closed(stream);
}

#[test]
fn strangers_at_the_door_harm_nobody_and_do_not_stay() {
    let both = Both::good();
    let disk = Arc::<Disk>::default();
    let limits = Limits {
        handshake: Duration::from_millis(700),
        half_open_per_peer: 12,
        ..Limits::default()
    };
    let server = start_limited(&disk, both.server(), vec![tcp()], limits);
    let session = connect_tls(&both.client(), &[&server.addresses()[0]]);
    let mut user = User::new(&*session, 1);
    user.work(20, 2);
    let address = socket_of(&server);
    let dial = || {
        let stream = TcpStream::connect(address).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
        stream
    };
    // What a client says first.
    let mut hello = Vec::new();
    let name = ServerName::try_from("storage.example").expect("a name");
    let mut first = ClientConnection::new(hand(&both).config(), name).expect("a client");
    first.write_tls(&mut hello).expect("a hello");
    let mut rng = Rng(7);
    for round in 0..60 {
        let mut stream = dial();
        let mut said = match round % 4 {
            // Noise, noise that begins as a record, a part of a hello, a hello with a wrong bit.
            0 => (0..rng.below(300)).map(|_| rng.next() as u8).collect(),
            1 => {
                let mut noise: Vec<u8> = (0..300).map(|_| rng.next() as u8).collect();
                noise[..5].copy_from_slice(&[22, 3, 3, 0x40, 0]);
                noise
            }
            2 => hello[..rng.below(hello.len() as u64) as usize].to_vec(),
            _ => hello.clone(),
        };
        if round % 4 == 3 {
            let at = rng.below(said.len() as u64) as usize;
            said[at] ^= 1 << rng.below(8);
        }
        let _ = stream.write_all(&said);
        match round % 3 {
            0 => drop(stream),
            1 => is_closed(stream),
            _ => {
                let _ = stream.shutdown(std::net::Shutdown::Write);
                is_closed(stream);
            }
        }
        user.work(3, 2);
    }
    // One byte now and then: the time is for all of them together.
    let mut slow = dial();
    let begin = Instant::now();
    for byte in &hello {
        if slow.write_all(&[*byte]).is_err() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
        if begin.elapsed() > Duration::from_secs(3) {
            break;
        }
    }
    assert!(begin.elapsed() < Duration::from_secs(3), "it has waited");
    is_closed(slow);
    // Forty from one address are more than it may have at a time. When they are closed, there is room again.
    let flood: Vec<_> = (0..40).map(|_| dial()).collect();
    user.work(20, 4);
    flood.into_iter().for_each(is_closed);
    let second = connect_tls(&both.client(), &[&server.addresses()[0]]);
    User::new(&*second, 2).work(20, 2);
    assert_eq!(session.paths()[0].stats.failed, 0);
}

#[test]
fn of_one_address_only_so_many_may_wait_at_the_door() {
    let both = Both::good();
    let disk = Arc::<Disk>::default();
    let limits = Limits {
        handshake: PATIENCE * 2,
        half_open_per_peer: 5,
        ..Limits::default()
    };
    let server = start_limited(&disk, both.server(), vec![tcp()], limits);
    let flood: Vec<_> = (0..12)
        .map(|_| {
            let stream = TcpStream::connect(socket_of(&server)).expect("a connection");
            stream.set_nonblocking(true).expect("it does not wait");
            stream
        })
        .collect();
    let open = || {
        let waits = |mut stream: &TcpStream| {
            let read = stream.read(&mut [0; 9]);
            read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
        };
        flood.iter().filter(|stream| waits(stream)).count()
    };
    until("seven of them are closed", || open() == 5);
}

#[test]
fn a_bit_that_is_changed_on_the_way_ends_the_connection_and_nothing_is_wrong() {
    let both = Both::good();
    let disk = Arc::<Disk>::default();
    let server = start_tls(&disk, both.server(), vec![tcp()]);
    let to = socket_of(&server);
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let address = Address::Tcp(listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        let mut rng = Rng(5);
        for client in listener.incoming().flatten() {
            let server = TcpStream::connect(to).expect("the server");
            for (mut from, mut to) in [
                (client.try_clone().unwrap(), server.try_clone().unwrap()),
                (server, client),
            ] {
                let mut after = 5_000 + rng.below(400_000) as usize;
                std::thread::spawn(move || {
                    let mut bytes = vec![0; 16 << 10];
                    while let Ok(count @ 1..) = from.read(&mut bytes) {
                        if after < count {
                            bytes[after] ^= 4;
                        }
                        after = after.wrapping_sub(count);
                        if to.write_all(&bytes[..count]).is_err() {
                            break;
                        }
                    }
                    let _ = to.shutdown(std::net::Shutdown::Both);
                });
            }
        }
    });
    let session = connect_tls(&both.client(), &[&address]);
    let mut user = User::new(&*session, 1);
    while session.paths()[0].stats.failed < 8 {
        user.work(20, 4);
    }
    each_once(&disk, &user.ids);
    let broken = |news: &News| {
        matches!(
            news,
            News::PathDown(_, PathError::Tls(TlsError::Broken) | PathError::Closed)
        )
    };
    hear(&session, broken);
}

#[test]
fn paths_that_are_cut_and_stalled_lose_nothing() {
    let both = Both::good();
    let disk = Arc::<Disk>::default();
    let server = start_tls(&disk, both.server(), vec![tcp()]);
    let proxies = [1, 2].map(|seed| Proxy::new(socket_of(&server), seed));
    let addresses = proxies.each_ref().map(|proxy| Address::Tcp(proxy.address));
    let session = connect_tls(&both.client(), &[&addresses[0], &addresses[1]]);
    std::thread::scope(|scope| {
        for seed in 1..=3 {
            let (session, disk) = (&session, &disk);
            scope.spawn(move || {
                let mut user = User::new(&**session, seed);
                user.work(1200, 4);
                each_once(disk, &user.ids);
            });
        }
        for (turn, proxy) in proxies.iter().cycle().take(6).enumerate() {
            use std::sync::atomic::Ordering::SeqCst;
            match turn % 3 {
                2 => {
                    proxy.switches.stalled.store(true, SeqCst);
                    std::thread::sleep(Duration::from_millis(900));
                    proxy.switches.stalled.store(false, SeqCst);
                }
                _ => {
                    proxy.switches.cut_after.store(400_000, SeqCst);
                    std::thread::sleep(Duration::from_millis(150));
                    proxy.switches.cut_after.store(0, SeqCst);
                }
            }
        }
    });
    let failed: u64 = session.paths().iter().map(|path| path.stats.failed).sum();
    assert!(failed > 0, "nothing was tried");
}

#[test]
fn files_that_are_not_what_they_should_be_are_named() {
    let both = Both::good();
    let files = TlsFiles::of_server(&both.server.0);
    let told = |files: &TlsFiles| ServerTls::load(files).expect_err("bad").to_string();
    let none = TlsFiles {
        authority: None,
        ..files.clone()
    };
    assert!(told(&none).contains("no authority"));
    std::fs::write(both.server.0.join("ca-cert.pem"), "nothing").expect("a file");
    assert!(told(&files).contains("ca-cert.pem"));
    std::fs::remove_file(&files.key).expect("it was there");
    std::fs::copy(
        both.client.0.join("ca-cert.pem"),
        both.server.0.join("ca-cert.pem"),
    )
    .expect("a copy");
    assert!(told(&files).contains("server-key.pem"));
}
