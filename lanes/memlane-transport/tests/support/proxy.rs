//! Between a client and a server: forwards bytes, and now and then cuts, stalls or delays, at points out of a seed.

use super::Rng;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

#[derive(Default)]
pub struct Switches {
    /// Nothing is forwarded; connections stay.
    pub stalled: AtomicBool,
    /// Each piece of up to 32 KiB takes this many milliseconds.
    pub delay_ms: AtomicU64,
    /// Connections are cut after about this many bytes; 0: never.
    pub cut_after: AtomicU64,
    /// Connections that were cut.
    pub cuts: AtomicU64,
    /// Bytes that were forwarded, either way.
    pub forwarded: AtomicU64,
    over: AtomicBool,
}

pub struct Proxy {
    pub address: SocketAddr,
    pub switches: Arc<Switches>,
}

impl Proxy {
    pub fn new(to: SocketAddr, seed: u64) -> Proxy {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        let switches = Arc::new(Switches::default());
        let shared = Arc::clone(&switches);
        std::thread::spawn(move || {
            let mut rng = Rng(seed);
            for client in listener.incoming() {
                if shared.over.load(Ordering::SeqCst) {
                    return;
                }
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(to)) else {
                    continue;
                };
                let _ = (client.set_nodelay(true), server.set_nodelay(true));
                pipe(&client, &server, &shared, rng.next());
                pipe(&server, &client, &shared, rng.next());
            }
        });
        Proxy { address, switches }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.switches.over.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
    }
}

fn pipe(from: &TcpStream, to: &TcpStream, switches: &Arc<Switches>, seed: u64) {
    let (mut from, mut to) = (
        from.try_clone().expect("a copy"),
        to.try_clone().expect("a copy"),
    );
    let switches = Arc::clone(switches);
    std::thread::spawn(move || {
        let mut rng = Rng(seed);
        let mut buffer = vec![0; 32 << 10];
        let mut until_cut = None;
        loop {
            let most = 1 + rng.below(buffer.len() as u64) as usize;
            let Ok(count @ 1..) = from.read(&mut buffer[..most]) else {
                break;
            };
            let delay = switches.delay_ms.load(Ordering::SeqCst);
            if delay > 0 {
                std::thread::sleep(Duration::from_millis(delay));
            }
            while switches.stalled.load(Ordering::SeqCst) && !switches.over.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(5));
            }
            let cut_after = switches.cut_after.load(Ordering::SeqCst);
            if cut_after == 0 {
                until_cut = None;
            } else if until_cut.is_none() {
                until_cut = Some(1 + rng.below(2 * cut_after));
            }
            let allowed = until_cut.unwrap_or(u64::MAX).min(count as u64) as usize;
            if to.write_all(&buffer[..allowed]).is_err() {
                break;
            }
            switches
                .forwarded
                .fetch_add(allowed as u64, Ordering::SeqCst);
            until_cut = until_cut.map(|left| left - allowed as u64);
            if until_cut == Some(0) {
                switches.cuts.fetch_add(1, Ordering::SeqCst);
                break;
            }
            if rng.below(200) == 0 {
                std::thread::sleep(Duration::from_millis(rng.below(10)));
            }
        }
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    });
}
