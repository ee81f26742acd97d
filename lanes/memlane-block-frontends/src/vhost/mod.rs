//! A volume as a virtual machine's disk (vhost-user-blk): the machine monitor (QEMU, Cloud Hypervisor, crosvm)
//! connects to a socket and hands over the guest's memory; requests then go past it.
//!
//! ```text
//! qemu-system-x86_64 -object memory-backend-memfd,id=m,size=1G,share=on -machine memory-backend=m \
//!     -chardev socket,id=c,path=SOCKET -device vhost-user-blk-pci,chardev=c
//! ```
//!
//! Data is copied once, between the guest's memory and the lease. Everything in the guest's memory may be wrong and
//! may change while it is looked at; everything on the socket, too. The memory itself must be there to stay: a file
//! that gets shorter ends the process that has it mapped (`SIGBUS`), so only sealed memfds are taken, which is what
//! QEMU makes, unless [`Options::any_memory`] says otherwise. The socket is for its owner.
//!
//! One machine at a time; when it goes, the next may come. What was under way is waited for before that.

mod device;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod request;
mod ring;
mod worker;

use device::Device;
use memlane_block::volume::Volume;
use memlane_virtio::memory::Memory;
use memlane_virtio::socket::listen;
use request::ID_LEN;

use memlane_wait::event::{EventFd, poll};
use memlane_wait::mutex::lock;
use rustix::event::{PollFd, PollFlags};
use std::fmt;
use std::io;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use vhost::vhost_user::Listener;
use vhost_user_backend::{ShutdownHandle, VhostUserDaemon};
use vm_memory::GuestMemoryMmap;
use vmm_sys_util::epoll::EventSet;

/// How to serve.
#[derive(Clone)]
pub struct Options {
    /// Virtqueues, each with a thread and a queue of the volume: at most 32.
    pub queues: usize,
    /// What the guest reads as the disk's serial number: its first 20 bytes.
    pub serial: String,
    /// Takes any memory of the guest's, not only what its owner cannot take away: a monitor that makes its memory
    /// shorter then ends this process.
    pub any_memory: bool,
    /// How long a machine that stops waits for its requests; then they fail.
    pub drain: Duration,
    /// Receives the events.
    pub told: Option<Arc<dyn Fn(Event) + Send + Sync>>,
}

impl Default for Options {
    fn default() -> Options {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Options {
            queues: cpus.min(4),
            serial: String::new(),
            any_memory: false,
            drain: Duration::from_secs(30),
            told: None,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("queues", &self.queues)
            .field("serial", &self.serial)
            .field("any_memory", &self.any_memory)
            .field("drain", &self.drain)
            .finish_non_exhaustive()
    }
}

/// What happens to a socket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A machine has gone; why, if it was not its own wish.
    Gone(Option<String>),
    /// A machine could not be served.
    Failed(String),
}

/// A volume on a socket. Dropped, it is taken away.
pub struct Served {
    path: PathBuf,
    stop: Arc<EventFd>,
    machine: Arc<Mutex<Machine>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Machine {
    stopping: bool,
    shutdown: Option<ShutdownHandle>,
}

/// Serves `volume` to the machine that connects to `path`.
///
/// # Errors
/// A process listens there, the path exists and is not a socket, or the socket cannot be made.
pub fn serve(volume: Arc<dyn Volume>, path: &Path, options: &Options) -> io::Result<Served> {
    let listener = listen(path)?;
    let stop = Arc::new(EventFd::new()?);
    let machine: Arc<Mutex<Machine>> = Arc::default();
    let server = Server {
        volume,
        listener: Listener::from(listener.try_clone()?),
        socket: listener,
        stop: Arc::clone(&stop),
        machine: Arc::clone(&machine),
        options: options.clone(),
    };
    let builder = std::thread::Builder::new().name("memlane-vhost".into());
    let thread = builder.spawn(move || server.run())?;
    Ok(Served {
        path: path.to_owned(),
        stop,
        machine,
        thread: Some(thread),
    })
}

impl Served {
    /// The socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Does a machine use it?
    #[must_use]
    pub fn has_machine(&self) -> bool {
        lock(&self.machine).shutdown.is_some()
    }

    /// Takes it away, also from a machine that uses it.
    pub fn stop(&mut self) {
        let Some(thread) = self.thread.take() else {
            return;
        };
        self.stop.signal();
        let mut machine = lock(&self.machine);
        machine.stopping = true;
        if let Some(shutdown) = machine.shutdown.take() {
            shutdown.shutdown();
        }
        drop(machine);
        let _ = thread.join();
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop();
    }
}

struct Server {
    volume: Arc<dyn Volume>,
    listener: Listener,
    socket: UnixListener,
    stop: Arc<EventFd>,
    machine: Arc<Mutex<Machine>>,
    options: Options,
}

impl Server {
    fn run(mut self) {
        while self.somebody_comes() {
            let ended = if self.options.any_memory {
                self.machine::<false>()
            } else {
                self.machine::<true>()
            };
            let event = match ended {
                Ok(why) => Event::Gone(why),
                Err(error) => Event::Failed(error.to_string()),
            };
            if let Some(told) = &self.options.told {
                told(event);
            }
        }
    }

    /// Waits; `false`: it is over.
    fn somebody_comes(&self) -> bool {
        let mut fds = [
            PollFd::new(&self.socket, PollFlags::IN),
            PollFd::new(&*self.stop, PollFlags::IN),
        ];
        loop {
            match poll(&mut fds, None) {
                Ok(0) => {}
                Err(_) => return false,
                Ok(_) => return fds[1].revents().is_empty(),
            }
        }
    }

    /// Serves one machine, from its connection to its end; says what it did wrong, if anything.
    fn machine<const SEALED: bool>(&mut self) -> io::Result<Option<String>> {
        let failed = |error: vhost_user_backend::Error| io::Error::other(error.to_string());
        let memory = Memory::new(GuestMemoryMmap::new());
        let mut serial = [0; ID_LEN];
        let n = self.options.serial.len().min(ID_LEN);
        serial[..n].copy_from_slice(&self.options.serial.as_bytes()[..n]);
        let queues = self.options.queues.clamp(1, 32);
        let device = Device::<SEALED>::new(&self.volume, queues, serial, self.options.drain)?;
        let device = Arc::new(device);
        let name = "memlane-vhost-user".into();
        let mut daemon = VhostUserDaemon::new(name, Arc::clone(&device), memory).map_err(failed)?;
        for (handler, fd) in daemon.get_epoll_handlers().iter().zip(device.descriptors()) {
            // The numbers up to that of the queues are the crate's own.
            handler.register_listener(fd, EventSet::IN, queues as u64 + 1)?;
        }
        let started = daemon.start(&mut self.listener).map_err(failed);
        let said = started.map(|()| {
            self.may_be_stopped(&daemon);
            daemon.wait()
        });
        device.end();
        drop(daemon);
        device.close();
        lock(&self.machine).shutdown = None;
        Ok(said?.err().and_then(complaint))
    }

    fn may_be_stopped<const SEALED: bool>(&self, daemon: &VhostUserDaemon<Arc<Device<SEALED>>>) {
        let mut machine = lock(&self.machine);
        machine.shutdown = daemon.shutdown_handle();
        if machine.stopping {
            daemon.request_shutdown();
        }
    }
}

/// What a front end did wrong. Going away is nothing wrong.
fn complaint(error: vhost_user_backend::Error) -> Option<String> {
    use vhost::vhost_user::Error as Protocol;
    use vhost_user_backend::Error;
    match error {
        Error::HandleRequest(Protocol::Disconnected | Protocol::PartialMessage) => None,
        error => Some(error.to_string()),
    }
}
