//! Doors, limits, growth and the end of a server.

mod nbd_support;

use memlane_block::volume::mem::MemVolume;
use memlane_block_frontends::nbd::wire::{cmd, error};
use memlane_block_frontends::nbd::{Listen, Server, ServerConfig};
use nbd_support::{Folder, Raw, Served, export, have, noise, ok};
use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::time::Duration;

const SIZE: u64 = 4 << 20;

fn config(listen: Listen) -> ServerConfig {
    let exports = vec![export("", MemVolume::new(SIZE).unwrap())];
    ServerConfig::new(vec![listen], exports)
}

fn refused(config: ServerConfig) -> io::Error {
    match Server::bind(config) {
        Err(error) => error,
        Ok(_) => panic!("it was accepted"),
    }
}

#[test]
fn the_socket_of_a_dead_server_is_replaced_and_ours_goes_with_us() {
    let folder = Folder::new();
    let path = folder.file("nbd.sock");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "a dead server leaves its file");
    let server = Server::bind(config(Listen::Unix(path.clone()))).unwrap();
    let stop = server.stop_handle();
    stop.stop();
    server.run().unwrap();
    assert!(!path.exists());
}

#[test]
fn a_live_server_is_not_driven_from_its_socket() {
    let served = Served::volume(MemVolume::new(SIZE).unwrap());
    let error = refused(config(Listen::Unix(served.socket.clone())));
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    assert!(error.to_string().contains("another server"), "{error}");
    assert_eq!(served.client(true).read(0, 512).error, 0);
}

#[test]
fn a_file_that_is_not_a_socket_is_left_alone() {
    let folder = Folder::new();
    let path = folder.file("precious");
    std::fs::write(&path, "data").unwrap();
    let error = refused(config(Listen::Unix(path.clone())));
    assert!(error.to_string().contains("not a socket"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), b"data");
}

#[test]
fn a_socket_that_another_has_put_there_meanwhile_is_left_alone() {
    let mut served = Served::volume(MemVolume::new(SIZE).unwrap());
    std::fs::remove_file(&served.socket).unwrap();
    let _other = UnixListener::bind(&served.socket).unwrap();
    served.end();
    assert!(served.socket.exists());
}

#[test]
fn beyond_this_host_only_with_tls_or_on_purpose() {
    let everywhere = || Listen::Tcp("0.0.0.0:0".parse().unwrap());
    assert_eq!(
        refused(config(everywhere())).kind(),
        io::ErrorKind::InvalidInput
    );
    let mut on_purpose = config(everywhere());
    on_purpose.insecure = true;
    assert!(Server::bind(on_purpose).is_ok());
}

#[test]
fn exports_that_cannot_be_told_apart_are_refused() {
    let volume = MemVolume::new(SIZE).unwrap();
    let listen = || vec![Listen::Tcp("127.0.0.1:0".parse().unwrap())];
    let twice = vec![export("a", volume.clone()), export("a", volume)];
    assert!(Server::bind(ServerConfig::new(listen(), twice)).is_err());
    assert!(Server::bind(ServerConfig::new(listen(), vec![])).is_err());
}

#[test]
fn a_socket_that_was_opened_for_us_is_used() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = Server::bind(config(Listen::Socket(listener.into()))).unwrap();
    assert_eq!(server.tcp_addresses(), [address]);
    let stop = server.stop_handle();
    std::thread::scope(|scope| {
        scope.spawn(|| server.run().unwrap());
        if have("nbdinfo") {
            let size = ok("nbdinfo", &["--size", &format!("nbd://{address}")]);
            assert_eq!(size.trim(), "4194304");
        }
        stop.stop();
    });
    let not_listening = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    refused(config(Listen::Socket(not_listening.into())));
}

#[test]
fn a_server_that_stops_finishes_what_is_under_way_and_refuses_what_is_new() {
    let volume = MemVolume::late(SIZE, |_| {}).unwrap();
    let exports = vec![export("", volume.clone())];
    let mut served = Served::with(exports, |config| config.grace = Duration::from_secs(30));
    let mut raw = served.client(true);
    let bytes = noise(1 << 20, 3);
    let writes: Vec<u64> = (0..3)
        .map(|i| raw.ask(cmd::WRITE, 0, i << 20, 1 << 20, &bytes))
        .collect();
    for _ in &writes {
        assert_eq!(raw.reply().1.error, 0);
    }
    served.stop.stop();
    served.until("no door any more", |_| !served.socket.exists());
    let late = raw.write(0, &[1; 512]);
    assert_eq!(late.error, error::ESHUTDOWN);
    assert_eq!(raw.read(0, 512).error, error::ESHUTDOWN);
    drop(raw);
    served.end();
}

#[test]
fn clients_that_stay_do_not_keep_a_server_from_stopping() {
    let exports = vec![export("", MemVolume::new(SIZE).unwrap())];
    let mut served = Served::with(exports, |config| config.grace = Duration::from_millis(20));
    let mut idle = served.client(true);
    let mut half = served.client(true);
    half.ask(cmd::WRITE, 0, 0, 100_000, &[1; 50_000]);
    let mut greeting = served.connect();
    greeting.bytes(18);
    served.end();
    assert!(idle.is_closed() && half.is_closed() && greeting.is_closed());
}

#[test]
fn a_volume_that_grows_is_seen_by_old_and_new_clients() {
    let volume = MemVolume::new(SIZE).unwrap();
    volume.resize(1 << 20);
    let served = Served::volume(volume.clone());
    let mut old = served.client(true);
    assert_eq!(old.read(1 << 20, 512).error, error::EINVAL);
    volume.resize(SIZE);
    assert_eq!(old.read(1 << 20, 512).error, 0);
    assert_eq!(old.write(SIZE - 512, &[1; 512]).error, 0);
    if have("nbdinfo") {
        assert_eq!(ok("nbdinfo", &["--size", &served.uri()]).trim(), "4194304");
    }
}

#[test]
fn a_read_only_export_of_a_writable_volume_cannot_be_written() {
    let mut export = export("", MemVolume::new(SIZE).unwrap());
    export.read_only = true;
    let served = Served::with(vec![export], |_| {});
    let mut raw = served.client(true);
    assert_eq!(raw.write(0, &[1; 70_000]).error, error::EPERM);
    assert_eq!(raw.read(0, 70_000).data, vec![0; 70_000]);
}

#[test]
fn who_is_here_and_what_was_done_can_be_looked_at() {
    let served = Served::with(vec![export("vol", MemVolume::new(SIZE).unwrap())], |_| {});
    let mut raw: Raw = served.connect();
    raw.greet();
    raw.go("vol", true);
    raw.write(0, &[1; 1000]);
    raw.read(0, 5000);
    raw.call(99, 0, 0, 0, b"");
    served.until("counted", |s| s.total.errors == 1);
    let snapshot = served.snapshot();
    let here = &snapshot.connections[0];
    assert_eq!(
        (here.peer.as_str(), here.export.as_deref()),
        ("unix", Some("vol"))
    );
    let counters = here.counters;
    assert_eq!((counters.requests, counters.read_bytes), (3, 5000));
    assert_eq!((counters.written_bytes, counters.errors), (1000, 1));
    drop(raw);
    served.until("gone, but counted", |s| s.connections.is_empty());
    assert_eq!(served.snapshot().total, counters);
}
