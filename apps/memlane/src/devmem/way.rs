//! Which path `memlane nc` takes, and what is prepared for it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use memlane_devmem::DeviceRegion;
use memlane_devmem::error::{RegionError, ZcrxError};
use memlane_devmem::io::kernel::nic::RealNic;
use memlane_devmem::io::kernel::{self, Bound, Interface, Link, Setup, Wanted};
use memlane_devmem::io::lane::{self, End};
use memlane_devmem::io::path::{Choice, NoPath, choose};
use memlane_devmem::io::{Binding, Path, Stream, Terms, zcrx};
use memlane_devmem::region::Spec;
use memlane_devmem::wire::steer::Flow;

use crate::cli::exit::{Exit, fail};
use crate::cli::out;

/// What a user has said of it.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) require: Option<Path>,
    pub(super) interface: Option<Interface>,
    pub(super) queues: Option<u32>,
    pub(super) flow: Option<Flow>,
}

/// A region that is bound, and the path by which its bytes come or go.
pub(super) struct Ready {
    pub(super) binding: Arc<Binding>,
    pub(super) choice: Choice,
    pub(super) require: Option<Path>,
    receives: bool,
    link: Link,
    /// Until the stream takes it over.
    ring: Mutex<Option<zcrx::Link>>,
    interface: Arc<Prepared>,
    _sends: Option<Bound>,
}

/// An interface that was prepared: also a signal's handler puts it back.
type Prepared = Mutex<Option<Setup<RealNic>>>;

/// What there is of a region for the kernel's path, if it can be had.
#[derive(Default)]
struct Kernel {
    setup: Option<Setup<RealNic>>,
    signals: Option<Signals>,
    sends: Option<Bound>,
    kept: Option<u64>,
    ring: Option<(Arc<Binding>, zcrx::Link)>,
}

/// To receive into a region.
pub(super) fn into(region: &Spec, chunk: u64, asked: &Asked) -> anyhow::Result<Ready> {
    let refused = |error: RegionError| refused(region, &error);
    let made = DeviceRegion::create(region).map_err(refused)?;
    // A size that is none at all is refused there.
    let chunk = u32::try_from(chunk).unwrap_or(u32::MAX);
    let mut kernel = Kernel::default();
    let choice = choose(asked.require, |path| match path {
        Path::Kernel => kernel.receives(&made, chunk, asked),
        Path::Lane if elsewhere(asked) => vec![ELSEWHERE.into()],
        Path::Lane if made.is_mapped() => lane::lacks(&made, chunk),
        Path::Lane | Path::Mapped => unmapped(&made),
        Path::Zcrx => kernel.rings(region, chunk, asked),
        Path::Staged => Vec::new(),
    });
    let choice = choice.map_err(not_there)?;
    if let Some((binding, ring)) = kernel.ring.take() {
        return kernel.ready(binding, choice, Some(ring));
    }
    let binding = match kernel.kept {
        Some(kept) => Binding::beside(made, chunk, kept),
        None => Binding::new(made, chunk),
    };
    let mut ready = kernel.ready(binding.map_err(refused)?, choice, None)?;
    (ready.require, ready.receives) = (asked.require, true);
    Ok(ready)
}

fn unmapped(region: &DeviceRegion) -> Vec<String> {
    let why = || format!("the CPU cannot reach {}", region.kind());
    (!region.is_mapped()).then(why).into_iter().collect()
}

/// To send out of one.
pub(super) fn from(region: &Spec, asked: &Asked) -> anyhow::Result<Ready> {
    let refused = |error: RegionError| refused(region, &error);
    let made = DeviceRegion::create(region).map_err(refused)?;
    let mut kernel = Kernel::default();
    let choice = choose(asked.require, |path| match path {
        Path::Kernel => kernel.sends_from(&made, asked),
        Path::Lane | Path::Mapped => unmapped(&made),
        // By memory in between, as it is received.
        Path::Staged if !made.is_mapped() => Vec::new(),
        other => vec![format!("{other} is a way to receive")],
    });
    let choice = choice.map_err(not_there)?;
    let binding = Binding::new(made, memlane_devmem::engine::chunks::CHUNK_MIN);
    let mut ready = kernel.ready(binding.map_err(refused)?, choice, None)?;
    ready.require = asked.require;
    Ok(ready)
}

/// Why an interface that was named speaks against the path within this host.
const ELSEWHERE: &str = "an interface was named: what comes by it is another host's";

fn elsewhere(asked: &Asked) -> bool {
    asked.interface.is_some() && asked.require != Some(Path::Lane)
}

pub(super) fn refused(region: &Spec, error: &RegionError) -> anyhow::Error {
    let exit = match error {
        RegionError::Missing(_) => Exit::Unsupported,
        RegionError::Chunk(_) | RegionError::Name(_) => Exit::Usage,
        RegionError::Kernel(..) | RegionError::Device(_) => Exit::Failed,
    };
    fail(exit, format!("{region}: {error}"))
}

pub(super) fn not_there(no: NoPath) -> anyhow::Error {
    fail(Exit::FellBack, no.to_string())
}

impl Kernel {
    /// Prepares the interface; what speaks against it.
    fn receives(&mut self, region: &DeviceRegion, chunk: u32, asked: &Asked) -> Vec<String> {
        let shared = match kernel::share(region, chunk) {
            Ok(shared) => shared,
            Err(why) => return vec![why.to_string()],
        };
        let Some(interface) = &asked.interface else {
            return vec!["no interface was named: --interface NAME --queues N --flow RULE".into()];
        };
        if asked.queues.is_none() && asked.flow.is_none() {
            let mut lacks = texts(kernel::missing(interface));
            lacks.push("no queue was named: --queues N --flow RULE".into());
            return lacks;
        }
        let wanted = Wanted {
            queues: asked.queues.unwrap_or(1),
            flow: asked.flow.clone(),
        };
        let nic = RealNic::new(interface.clone());
        let signals = Signals::held();
        match Setup::prepare(nic, shared.dma_buf.as_fd(), &wanted) {
            Ok(setup) => {
                self.setup = Some(setup);
                self.signals = Some(signals);
                self.kept = Some(shared.kept);
                Vec::new()
            }
            Err(why) => {
                signals.let_go();
                vec![why.to_string()]
            }
        }
    }

    /// Gives the interface's last queue a region of io_uring's; what speaks against it. The interface is not changed.
    fn rings(&mut self, region: &Spec, chunk: u32, asked: &Asked) -> Vec<String> {
        let Some(interface) = &asked.interface else {
            return vec!["no interface was named: --interface NAME".into()];
        };
        let lacks = zcrx::lacks(interface);
        if !lacks.is_empty() {
            return lacks;
        }
        let last = interface.queues().ok();
        let last = last.and_then(|queues| queues.iter().map(|queue| queue.id).max());
        let Some(last) = last.filter(|last| *last > 0) else {
            return vec![format!(
                "{0} has one receive queue, and one must stay for everything else: ethtool -L {0}",
                interface.name
            )];
        };
        let bound = DeviceRegion::create(region).and_then(|made| Binding::beside(made, chunk, 0));
        let opened = bound.map_err(ZcrxError::Region).and_then(|binding| {
            let link = zcrx::Link::open(&binding, zcrx::From::Queue(interface, last))?;
            Ok((binding, link))
        });
        match opened {
            Ok(ring) => {
                self.ring = Some(ring);
                Vec::new()
            }
            Err(why) => vec![why.to_string()],
        }
    }

    fn sends_from(&mut self, region: &DeviceRegion, asked: &Asked) -> Vec<String> {
        let dma_buf = match kernel::dma_buf(region) {
            Ok(dma_buf) => dma_buf,
            Err(why) => return vec![why.to_string()],
        };
        let Some(interface) = &asked.interface else {
            return vec!["no interface was named: --interface NAME".into()];
        };
        let missing = texts(kernel::missing_to_send(interface));
        if !missing.is_empty() {
            return missing;
        }
        match Bound::send(dma_buf, interface) {
            Ok(bound) => {
                self.sends = Some(bound);
                Vec::new()
            }
            Err(why) => vec![why.to_string()],
        }
    }

    fn ready(
        self,
        binding: Arc<Binding>,
        choice: Choice,
        ring: Option<zcrx::Link>,
    ) -> anyhow::Result<Ready> {
        let link = Link {
            receive: self.setup.as_ref().map(Setup::binding),
            send: self.sends.as_ref().map(Bound::id),
        };
        let ready = Ready {
            binding,
            choice,
            require: None,
            receives: false,
            link,
            ring: Mutex::new(ring),
            interface: Arc::new(Mutex::new(self.setup)),
            _sends: self.sends,
        };
        if let Some(signals) = self.signals {
            let interface = Arc::clone(&ready.interface);
            signals.at_the_first(move || put_back(&interface))?;
        }
        Ok(ready)
    }
}

fn texts(missing: Vec<kernel::Missing>) -> Vec<String> {
    missing.iter().map(ToString::to_string).collect()
}

impl Ready {
    /// Which path was taken in the end: on a lane, the other end has a say too.
    pub(super) fn taken(&self, stream: &Stream) -> Choice {
        let mut choice = self.choice.clone();
        if let Some(passed) = stream.passed() {
            choice.path = stream.path();
            choice.passed.push(passed);
        }
        choice
    }

    /// A stream of a connected socket.
    pub(super) fn stream(&self, socket: OwnedFd, end: End) -> anyhow::Result<Stream> {
        let terms = Terms {
            require: Some(self.choice.path),
            ..Terms::default()
        };
        match self.choice.path {
            Path::Kernel => {
                let stream = self.link.stream(socket, &self.binding, &terms);
                stream.context("sending without a copy")
            }
            Path::Zcrx => {
                let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
                let ring = ring.take().context("one stream for a ring")?;
                Ok(ring.stream(socket, &terms))
            }
            Path::Lane => {
                let require = self.require;
                let terms = Terms { require, ..terms };
                let receives = self.receives;
                let stream = match receives {
                    true => lane::stream(socket, end, &self.binding, &terms),
                    false => lane::sender(socket, end, &self.binding, &terms),
                };
                stream.map_err(not_there)
            }
            Path::Mapped | Path::Staged => Ok(Stream::new(socket, &self.binding, &terms)),
        }
    }

    /// What was changed of an interface, in words.
    pub(super) fn changed(&self) -> Vec<String> {
        let setup = self
            .interface
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        setup
            .as_ref()
            .map_or(Vec::new(), |setup| setup.changed().to_vec())
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        put_back(&self.interface);
    }
}

/// Puts an interface back as it was, once.
fn put_back(interface: &Prepared) {
    let setup = interface
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    for left in setup.map(|mut setup| setup.put_back()).unwrap_or_default() {
        out::warn(&format!("could not be put back: {left}"));
    }
}

/// SIGINT and SIGTERM, kept from killing us while an interface is not as it was.
struct Signals(libc::sigset_t);

impl Signals {
    /// From now on they wait; and those of threads that are made later.
    fn held() -> Signals {
        // SAFETY: a set is any bytes, which sigemptyset makes a valid one of; the others read and write this one alone.
        let set = unsafe {
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGINT);
            libc::sigaddset(&raw mut set, libc::SIGTERM);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            set
        };
        Signals(set)
    }

    /// They kill us again.
    fn let_go(&self) {
        // SAFETY: the set from above.
        unsafe {
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const self.0, std::ptr::null_mut())
        };
    }

    /// At the first of them: this, and then it kills us all the same.
    fn at_the_first(self, first: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
        let wait = move || {
            let mut signal = 0;
            // SAFETY: the set from above, and a number of ours.
            if unsafe { libc::sigwait(&raw const self.0, &raw mut signal) } == 0 {
                first();
                self.let_go();
                // SAFETY: it is sent to this thread, which does not hold it any more.
                unsafe { libc::raise(signal) };
            }
        };
        let thread = std::thread::Builder::new().name("signals".into());
        thread.spawn(wait).context("a thread for signals")?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pipe::{PipeFlags, pipe_with};
    use std::fs::File;
    use std::io::{Read, Write};
    use std::time::Duration;

    /// A process with one thread, as the command is: holds signals, and says what it does.
    fn child(holds: bool, mut says: File) -> i32 {
        for signal in [libc::SIGINT, libc::SIGTERM] {
            // Whoever has started the tests may ignore them, as a shell does for what runs in the background.
            // SAFETY: no handler.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        let mut put_back = says.try_clone().unwrap();
        let signals = Signals::held();
        if holds {
            let first = move || put_back.write_all(b"put back").unwrap();
            signals.at_the_first(first).unwrap();
        } else {
            signals.let_go();
        }
        says.write_all(b"!").unwrap();
        std::thread::sleep(Duration::from_secs(60));
        1
    }

    #[test]
    fn a_signal_ends_us_after_the_interface_was_put_back() {
        let all = [
            (true, libc::SIGTERM),
            (true, libc::SIGINT),
            (false, libc::SIGTERM),
        ];
        for (holds, signal) in all {
            let (reads, writes) = pipe_with(PipeFlags::CLOEXEC).unwrap();
            let (mut reads, writes) = (File::from(reads), File::from(writes));
            // SAFETY: the child uses what it has alone, and never comes back from here.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                let code = child(holds, writes);
                // SAFETY: the end.
                unsafe { libc::_exit(code) };
            }
            assert!(pid > 0);
            drop(writes);
            reads.read_exact(&mut [0]).unwrap();
            let (mut said, mut status) = (String::new(), 0);
            // SAFETY: a child of ours, which was not waited for; a number of ours.
            unsafe { libc::kill(pid, signal) };
            reads.read_to_string(&mut said).unwrap();
            // SAFETY: as above.
            assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
            assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == signal);
            assert_eq!(said, if holds { "put back" } else { "" });
        }
    }
}
