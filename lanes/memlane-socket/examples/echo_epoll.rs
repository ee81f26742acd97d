//! An echo server: one thread, one epoll set, streams that must not wait.
//!
//! `cargo run -p memlane-socket --features std --example echo_epoll -- 127.0.0.1:7007`
//!
//! Bytes in memory do not make a descriptor readable: a stream is read until it has nothing, then armed. Armed, it is woken
//! by the kernel; not armed, its turn comes again before the loop sleeps.

use memlane_socket::Listener;
use memlane_socket::Stream;
use memlane_socket::native::Counts;
use std::collections::{HashMap, VecDeque};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// How often a stream is looked at before it is armed: the next bytes for one that is come by TCP.
const LOOKS: u32 = 50;

struct Epoll(OwnedFd);

impl Epoll {
    fn new() -> io::Result<Epoll> {
        // SAFETY: no pointers.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        // SAFETY: the kernel has just made it for us.
        (fd >= 0)
            .then(|| Epoll(unsafe { OwnedFd::from_raw_fd(fd) }))
            .ok_or_else(io::Error::last_os_error)
    }

    fn tell(&self, how: i32, fd: RawFd, events: i32) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: events.cast_unsigned(),
            u64: u64::from(fd.cast_unsigned()),
        };
        // SAFETY: the structure lives over the call.
        match unsafe { libc::epoll_ctl(self.0.as_raw_fd(), how, fd, &raw mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Adds the descriptors that have something; sleeps only if nobody's turn it is.
    fn wait(&self, ready: &mut VecDeque<RawFd>) -> io::Result<()> {
        let limit = if ready.is_empty() { -1 } else { 0 };
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        // SAFETY: 64 structures, which live over the call.
        let n = unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), 64, limit) };
        let Ok(n) = usize::try_from(n) else {
            let error = io::Error::last_os_error();
            return if error.kind() == ErrorKind::Interrupted {
                Ok(())
            } else {
                Err(error)
            };
        };
        for event in &events[..n] {
            let fd = RawFd::try_from(event.u64).expect("a descriptor, as we have told it");
            if !ready.contains(&fd) {
                ready.push_back(fd);
            }
        }
        Ok(())
    }
}

struct Client {
    stream: Stream,
    /// Read, and not sent back yet.
    unsent: Vec<u8>,
    at_end: bool,
    /// Looks in vain, one after another.
    looks: u32,
}

/// What a client needs next.
enum Next {
    Sleep,
    /// Its turn comes again, before anybody sleeps.
    Turn,
    Room,
    Over,
}

impl Client {
    /// Takes some and sends it back.
    fn turn(&mut self, buffer: &mut [u8]) -> io::Result<Next> {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(n) => drop(self.unsent.drain(..n)),
                Err(error) if error.0 == libc::EAGAIN => return Ok(Next::Room),
                Err(error) => return Err(error.into()),
            }
        }
        if self.at_end {
            return Ok(Next::Over);
        }
        match Read::read(&mut self.stream, buffer) {
            Ok(0) => self.at_end = true,
            Ok(n) => {
                self.looks = 0;
                self.unsent.extend_from_slice(&buffer[..n]);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.looks += 1;
                if self.looks > LOOKS && self.stream.arm() {
                    self.looks = 0;
                    return Ok(Next::Sleep);
                }
            }
            Err(error) => return Err(error),
        }
        Ok(Next::Turn)
    }
}

/// Echoes until this number of connections has come and gone. Returns what went which way.
pub(crate) fn serve(listener: &Listener, connections: usize) -> io::Result<Vec<Counts>> {
    let epoll = Epoll::new()?;
    listener.set_nonblocking(true)?;
    epoll.tell(libc::EPOLL_CTL_ADD, listener.as_raw_fd(), libc::EPOLLIN)?;
    let mut clients: HashMap<RawFd, Client> = HashMap::new();
    let (mut ready, mut over) = (VecDeque::new(), Vec::new());
    let mut buffer = vec![0; 64 * 1024];
    while over.len() < connections {
        epoll.wait(&mut ready)?;
        for _ in 0..ready.len() {
            let Some(fd) = ready.pop_front() else { break };
            if fd == listener.as_raw_fd() {
                let Some(client) = accept(listener)? else {
                    continue;
                };
                let fd = client.stream.as_raw_fd();
                epoll.tell(libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN)?;
                clients.insert(fd, client);
                ready.push_back(fd);
                continue;
            }
            let Some(client) = clients.get_mut(&fd) else {
                continue;
            };
            match client.turn(&mut buffer).unwrap_or(Next::Over) {
                Next::Turn => ready.push_back(fd),
                Next::Sleep => epoll.tell(libc::EPOLL_CTL_MOD, fd, libc::EPOLLIN)?,
                Next::Room => epoll.tell(libc::EPOLL_CTL_MOD, fd, libc::EPOLLOUT)?,
                Next::Over => over.extend(clients.remove(&fd).map(|gone| gone.stream.counts())),
            }
        }
    }
    Ok(over)
}

fn accept(listener: &Listener) -> io::Result<Option<Client>> {
    let mut stream = match listener.accept() {
        Err(error) if error.0 == libc::EAGAIN => return Ok(None),
        accepted => accepted?,
    };
    stream.set_nonblocking(true)?;
    Ok(Some(Client {
        stream,
        unsent: Vec::new(),
        at_end: false,
        looks: 0,
    }))
}

#[allow(dead_code)] // a test has this file as a module
fn main() -> io::Result<()> {
    let address = std::env::args()
        .nth(1)
        .unwrap_or("127.0.0.1:7007".to_owned());
    let address = address
        .parse()
        .map_err(|_| io::Error::other("an address is wanted: 127.0.0.1:7007"))?;
    let listener = Listener::bind(&address)?;
    writeln!(io::stdout(), "echo on {}", listener.local_addr()?)?;
    serve(&listener, usize::MAX).map(drop)
}
