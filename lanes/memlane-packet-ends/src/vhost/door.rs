//! The socket: one monitor after another, and the thread that listens to it.

use super::device::Device;
use super::early;
use super::queue::VhostQueue;
use super::shared::Shared;
use crate::OpenError;
use memlane_packet::AttachError;
use memlane_packet::Offloads;
use memlane_packet::io::socket::{errno, sleep};
use memlane_sys::Errno;
use memlane_virtio::socket::listen;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use vhost::vhost_user::{BackendReqHandler, Error};

/// The first pause before another try to connect, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(1)];

/// Who listens at the socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// We do; the monitor connects.
    Server,
    /// The monitor does (QEMU: `-chardev socket,…,server=on`).
    Client,
}

/// How guests are served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VhostTerms {
    /// Queue pairs: from 1 to [`QUEUES_MAX`](memlane_packet::layout::QUEUES_MAX).
    pub queues: u16,
    /// Takes any memory of the guest's, not only what its owner cannot take away: a monitor that makes its memory
    /// shorter then ends this process.
    pub any_memory: bool,
    /// What frames of the guest may ask for: all that it is offered.
    pub takes: Offloads,
}

impl Default for VhostTerms {
    /// One pair; sealed memory; frames of up to 64 KiB that are still to be cut.
    fn default() -> VhostTerms {
        VhostTerms {
            queues: 1,
            any_memory: false,
            takes: Offloads {
                gso4: true,
                gso6: true,
            },
        }
    }
}

/// Where a monitor finds us, or we find it. The name is removed when it is dropped.
#[derive(Debug)]
pub struct VhostDoor {
    shared: Arc<Shared>,
    /// Of a server: its socket's.
    path: Option<PathBuf>,
    thread: Option<JoinHandle<()>>,
}

/// A guest that was taken. Dropped, it can be taken again; it goes with its door.
#[derive(Debug)]
pub struct VhostLink {
    shared: Arc<Shared>,
    session: u32,
}

fn socket_error(error: &io::Error) -> AttachError {
    match (error.kind(), error.raw_os_error()) {
        (io::ErrorKind::AlreadyExists, None) => AttachError::Config(
            "something other than a socket is there: name a path that is free, or take it away",
        ),
        (io::ErrorKind::AddrInUse, _) => {
            AttachError::Config("another process listens there: name another path, or end it")
        }
        (_, errno) => AttachError::Socket(Errno(errno.unwrap_or(Errno::INVAL.0))),
    }
}

impl VhostDoor {
    /// Opens a door at a path. As a server, a file that a dead process left there is replaced, and only its owner may
    /// connect.
    ///
    /// # Errors
    /// The socket's; as a client there are none: it tries until there is a monitor.
    pub fn open(at: &str, role: Role, terms: &VhostTerms) -> Result<VhostDoor, AttachError> {
        if at.starts_with('@') {
            return Err(AttachError::Config(
                "a vhost-user socket is a path: its permissions say who may connect",
            ));
        }
        if !(1..=memlane_packet::layout::QUEUES_MAX).contains(&terms.queues) {
            return Err(AttachError::Config("1 to 16 queues"));
        }
        let path = Path::new(at);
        let way = match role {
            Role::Server => Way::Listen(listen(path).map_err(|error| socket_error(&error))?),
            Role::Client => Way::Connect(path.to_owned()),
        };
        let name = format!("vhost-user:{at}");
        let shared = Shared::new(name, terms.queues).map_err(AttachError::Memory)?;
        let shared = Arc::new(shared);
        let mut door = VhostDoor {
            shared: Arc::clone(&shared),
            path: (role == Role::Server).then(|| path.to_owned()),
            thread: None,
        };
        let host = Host {
            shared,
            way,
            terms: *terms,
        };
        let builder = std::thread::Builder::new().name("memlane-vhost".into());
        let thread = builder.spawn(move || host.run());
        door.thread = Some(thread.map_err(|error| socket_error(&error))?);
        Ok(door)
    }

    /// Waits for a guest whose driver is there, not longer than `limit`, and takes it: its queue pairs, also those that
    /// it does not use (frames for them go to the first; none come from them).
    ///
    /// # Errors
    /// [`AttachError::Timeout`] in [`OpenError::Attach`], or what a monitor did wrong: the door stays open.
    pub fn accept(&self, limit: Duration) -> Result<(VhostLink, Vec<VhostQueue>), OpenError> {
        let end = Instant::now() + limit;
        loop {
            if let Some((session, driver)) = self.shared.take().map_err(OpenError::VhostUser)? {
                let queue = |pair| VhostQueue::new(&self.shared, session, driver, pair);
                let queues = (0..self.shared.pairs()).map(queue).collect();
                let link = VhostLink {
                    shared: Arc::clone(&self.shared),
                    session,
                };
                return Ok((link, queues));
            }
            sleep(&self.shared.door, end)?;
        }
    }
}

impl AsFd for VhostDoor {
    /// Readable when there is a guest to be taken.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.door.as_fd()
    }
}

impl Drop for VhostDoor {
    fn drop(&mut self) {
        self.shared.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if let Some(path) = &self.path {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl VhostLink {
    /// Has the guest's driver, or its monitor, gone?
    #[must_use]
    pub fn ended(&self) -> bool {
        self.shared.session() != self.session
    }

    /// What either did wrong, if that was why.
    #[must_use]
    pub fn reason(&self) -> Option<String> {
        self.shared.wrong(self.session)
    }
}

impl Drop for VhostLink {
    fn drop(&mut self) {
        self.shared.give_back(self.session);
    }
}

/// How a monitor is found.
#[derive(Debug)]
enum Way {
    Listen(UnixListener),
    Connect(PathBuf),
}

/// The thread that talks with monitors, one after another.
struct Host {
    shared: Arc<Shared>,
    way: Way,
    terms: VhostTerms,
}

impl Host {
    fn run(self) {
        while let Some(stream) = self.next() {
            let clone = stream.try_clone().ok();
            if !self.shared.begin(clone) {
                return;
            }
            let wrong = self.listen_to(stream);
            self.shared.end(wrong);
        }
    }

    /// The next monitor; `None`: it is over.
    fn next(&self) -> Option<UnixStream> {
        let [mut pause, longest] = PAUSES;
        loop {
            let came = match &self.way {
                Way::Listen(door) if self.waits(Some(door), None) => {
                    door.accept().map(|(came, _)| came)
                }
                Way::Listen(_) => return None,
                Way::Connect(path) => UnixStream::connect(path),
            };
            match came {
                Ok(stream) => return Some(stream),
                // Also when we listen: we may be out of descriptors.
                Err(_) if !self.waits(None, Some(pause)) => return None,
                Err(_) => pause = (pause * 2).min(longest),
            }
        }
    }

    /// Waits for who comes, or for a while; `false`: it is over.
    fn waits(&self, door: Option<&UnixListener>, limit: Option<Duration>) -> bool {
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let mut fds = vec![PollFd::new(&self.shared.stop, PollFlags::IN)];
        fds.extend(door.map(|door| PollFd::new(door, PollFlags::IN)));
        loop {
            match poll(&mut fds, limit.as_ref()) {
                Err(error) if errno(error) == Errno::INTR => {}
                Err(_) => return false,
                Ok(_) => return fds[0].revents().is_empty(),
            }
        }
    }

    /// Does as a monitor says until it goes; what it did wrong. Who hangs up on it shuts its socket down.
    fn listen_to(&self, stream: UnixStream) -> Option<String> {
        let sealed = !self.terms.any_memory;
        let device = Device::new(Arc::clone(&self.shared), sealed, self.terms.takes);
        let device = Arc::new(Mutex::new(device));
        let socket = stream.try_clone().ok()?;
        let mut handler = BackendReqHandler::from_stream(stream, Arc::clone(&device));
        loop {
            let done = match early::take(&socket, &device) {
                Ok(false) => handler.handle_request(),
                early => early.map(drop),
            };
            match done {
                Ok(()) => {}
                // Going away is nothing wrong.
                Err(Error::Disconnected | Error::PartialMessage | Error::SocketBroken(_)) => {
                    return None;
                }
                Err(error) => return Some(error.to_string()),
            }
        }
    }
}
