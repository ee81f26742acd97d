//! A link that can be broken: bytes between a client and a server go through this process.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How often a link looks whether it was broken.
const LOOK: Duration = Duration::from_millis(1);

/// What is wrong with it. Written by the bench, read by the link's threads; nothing else is passed by these.
#[derive(Default)]
struct State {
    /// Connections that were made before this count went up are reset.
    resets: AtomicU32,
    /// New ones are reset at once.
    refuses: AtomicBool,
    /// Nothing is passed on, and nobody is told.
    silent: AtomicBool,
    /// The threads end.
    over: AtomicBool,
}

/// One link.
pub(super) struct Link {
    address: SocketAddr,
    state: Arc<State>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Link {
    /// To a server.
    pub(super) fn new(to: SocketAddr) -> anyhow::Result<Link> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        let thread = std::thread::Builder::new()
            .name("link".into())
            .spawn(move || accept(&listener, to, &shared))?;
        Ok(Link {
            address,
            state,
            thread: Some(thread),
        })
    }

    /// Where the client goes.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Both ends of each connection get a reset; with `for_good` new ones do, too.
    pub(super) fn reset(&self, for_good: bool) {
        self.state.refuses.store(for_good, Ordering::SeqCst);
        self.state.resets.fetch_add(1, Ordering::SeqCst);
    }

    /// Silence, or its end.
    pub(super) fn silence(&self, silent: bool) {
        self.state.silent.store(silent, Ordering::SeqCst);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.state.over.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

fn accept(listener: &TcpListener, to: SocketAddr, state: &Arc<State>) {
    let mut connections = Vec::new();
    for client in listener.incoming() {
        while state.silent.load(Ordering::SeqCst) && !state.over.load(Ordering::SeqCst) {
            std::thread::sleep(LOOK);
        }
        if state.over.load(Ordering::SeqCst) {
            break;
        }
        let Ok(client) = client else { continue };
        if state.refuses.load(Ordering::SeqCst) {
            reset_when_dropped(&client);
            continue;
        }
        let born = state.resets.load(Ordering::SeqCst);
        let Ok(server) = TcpStream::connect(to) else {
            continue;
        };
        let shared = Arc::clone(state);
        let thread = std::thread::Builder::new()
            .name("connection".into())
            .spawn(move || carry(client, server, &shared, born));
        connections.extend(thread);
    }
    for thread in connections {
        let _ = thread.join();
    }
}

/// A close without a farewell: RST instead of FIN.
fn reset_when_dropped(stream: &TcpStream) {
    let _ = rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO));
}

/// Bytes that were read at one end and not yet written at the other.
struct Half {
    buffer: Vec<u8>,
    from: usize,
    to: usize,
    ended: bool,
}

impl Half {
    fn new() -> Half {
        Half {
            buffer: vec![0; 256 << 10],
            from: 0,
            to: 0,
            ended: false,
        }
    }

    fn is_empty(&self) -> bool {
        self.from == self.to
    }

    /// Moves what can be moved now; an error is the end of the connection.
    fn step(&mut self, source: &mut TcpStream, sink: &mut TcpStream) -> std::io::Result<()> {
        if self.is_empty() && !self.ended {
            (self.from, self.to) = (0, 0);
            match source.read(&mut self.buffer) {
                Ok(0) => {
                    self.ended = true;
                    sink.shutdown(std::net::Shutdown::Write)?;
                }
                Ok(count) => self.to = count,
                Err(error) => not_now(error)?,
            }
        }
        if !self.is_empty() {
            match sink.write(&self.buffer[self.from..self.to]) {
                Ok(count) => self.from += count,
                Err(error) => not_now(error)?,
            }
        }
        Ok(())
    }

    /// What to wait for: at the source, at the sink.
    fn wants(&self) -> (PollFlags, PollFlags) {
        match (self.is_empty(), self.ended) {
            (true, false) => (PollFlags::IN, PollFlags::empty()),
            (true, true) => (PollFlags::empty(), PollFlags::empty()),
            (false, _) => (PollFlags::empty(), PollFlags::OUT),
        }
    }
}

fn not_now(error: std::io::Error) -> std::io::Result<()> {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::Interrupted => Ok(()),
        _ => Err(error),
    }
}

/// One connection, until it ends at one end or is broken here.
fn carry(mut client: TcpStream, mut server: TcpStream, state: &State, born: u32) {
    for stream in [&client, &server] {
        let _ = (stream.set_nodelay(true), stream.set_nonblocking(true));
        // Also when one end is gone: what the link does not carry, it does not end politely.
        reset_when_dropped(stream);
    }
    let (mut there, mut back) = (Half::new(), Half::new());
    while !state.over.load(Ordering::SeqCst) && state.resets.load(Ordering::SeqCst) == born {
        if state.silent.load(Ordering::SeqCst) {
            std::thread::sleep(LOOK);
            continue;
        }
        let moved = there
            .step(&mut client, &mut server)
            .and_then(|()| back.step(&mut server, &mut client));
        if moved.is_err() || (there.ended && back.ended) {
            return;
        }
        let ((client_in, server_out), (server_in, client_out)) = (there.wants(), back.wants());
        let mut fds = [
            PollFd::new(&client, client_in | client_out),
            PollFd::new(&server, server_in | server_out),
        ];
        let limit = Timespec {
            tv_sec: 0,
            tv_nsec: i64::from(LOOK.subsec_nanos()),
        };
        let _ = poll(&mut fds, Some(&limit));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that sends back what it gets.
    fn echo() -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        std::thread::spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                std::thread::spawn(move || {
                    let mut reader = stream.try_clone().expect("a copy");
                    std::io::copy(&mut reader, &mut stream)
                });
            }
        });
        address
    }

    fn connected(link: &Link) -> TcpStream {
        let stream = TcpStream::connect(link.address()).expect("the link listens");
        let limit = Some(Duration::from_secs(10));
        stream.set_read_timeout(limit).expect("a limit");
        stream
    }

    fn asks(stream: &mut TcpStream) -> std::io::Result<u8> {
        stream.write_all(&[7])?;
        let mut answer = [0];
        stream.read_exact(&mut answer)?;
        Ok(answer[0])
    }

    #[test]
    fn more_than_a_buffer_goes_through_unchanged_both_ways() {
        let link = Link::new(echo()).expect("a link");
        let mut stream = connected(&link);
        let data: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
        let sent = data.clone();
        let mut writer = stream.try_clone().expect("a copy");
        let writing = std::thread::spawn(move || writer.write_all(&sent));
        let mut back = vec![0; data.len()];
        stream.read_exact(&mut back).expect("all of it");
        assert!(back == data);
        writing.join().expect("a thread").expect("written");
    }

    #[test]
    fn a_reset_ends_what_there_is_and_for_good_also_what_comes() {
        let link = Link::new(echo()).expect("a link");
        let mut first = connected(&link);
        assert_eq!(asks(&mut first).expect("an echo"), 7);
        link.reset(false);
        let error = first.read_exact(&mut [0]).expect_err("reset");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        let mut second = connected(&link);
        assert_eq!(asks(&mut second).expect("an echo"), 7);
        link.reset(true);
        assert!(second.read_exact(&mut [0]).is_err());
        assert!(asks(&mut connected(&link)).is_err());
    }

    #[test]
    fn silence_passes_nothing_and_its_end_passes_what_waited() {
        let link = Link::new(echo()).expect("a link");
        let mut stream = connected(&link);
        assert_eq!(asks(&mut stream).expect("an echo"), 7);
        link.silence(true);
        // The thread may have been past its look.
        std::thread::sleep(50 * LOOK);
        stream.write_all(&[9]).expect("the kernel takes it");
        let limit = Some(Duration::from_millis(200));
        stream.set_read_timeout(limit).expect("a limit");
        let error = stream.read_exact(&mut [0]).expect_err("silence");
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        link.silence(false);
        let limit = Some(Duration::from_secs(10));
        stream.set_read_timeout(limit).expect("a limit");
        let mut late = [0];
        stream.read_exact(&mut late).expect("what waited");
        assert_eq!(late, [9]);
    }
}
