//! Which path `memlane nc` takes, and what is prepared for it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use memlane_devmem::DeviceRegion;
use memlane_devmem::error::RegionError;
use memlane_devmem::io::kernel::nic::RealNic;
use memlane_devmem::io::kernel::{self, Bound, Interface, Link, Setup, Wanted};
use memlane_devmem::io::lane::{self, End};
use memlane_devmem::io::path::{Choice, NoPath, choose};
use memlane_devmem::io::{Binding, Path, Stream, Terms};
use memlane_devmem::region::Spec;
use memlane_devmem::wire::steer::Flow;

use crate::exit::{Exit, fail};
use crate::{out, service};

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
    interface: Arc<Prepared>,
    _sends: Option<Bound>,
}

/// An interface that was prepared: also a signal's handler puts it back.
type Prepared = Mutex<Option<Setup<RealNic>>>;

/// What there is of a region for the kernel's path, if it can be had.
#[derive(Default)]
struct Kernel {
    setup: Option<Setup<RealNic>>,
    sends: Option<Bound>,
    kept: Option<u64>,
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
        Path::Lane => lane::lacks(&made, chunk),
        Path::Mapped | Path::Staged => Vec::new(),
    });
    let choice = choice.map_err(not_there)?;
    let binding = match kernel.kept {
        Some(kept) => Binding::beside(made, chunk, kept),
        None => Binding::new(made, chunk),
    };
    let mut ready = kernel.ready(binding.map_err(refused)?, choice)?;
    (ready.require, ready.receives) = (asked.require, true);
    Ok(ready)
}

/// To send out of one.
pub(super) fn from(region: &Spec, asked: &Asked) -> anyhow::Result<Ready> {
    let refused = |error: RegionError| refused(region, &error);
    let made = DeviceRegion::create(region).map_err(refused)?;
    let mut kernel = Kernel::default();
    let choice = choose(asked.require, |path| match path {
        Path::Kernel => kernel.sends_from(&made, asked),
        Path::Lane | Path::Mapped => Vec::new(),
        other => vec![format!("{other} is a way to receive")],
    });
    let choice = choice.map_err(not_there)?;
    let binding = Binding::new(made, memlane_devmem::engine::chunks::CHUNK_MIN);
    let mut ready = kernel.ready(binding.map_err(refused)?, choice)?;
    ready.require = asked.require;
    Ok(ready)
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
        match Setup::prepare(nic, shared.dma_buf.as_fd(), &wanted) {
            Ok(setup) => {
                self.setup = Some(setup);
                self.kept = Some(shared.kept);
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

    fn ready(self, binding: Arc<Binding>, choice: Choice) -> anyhow::Result<Ready> {
        let link = Link {
            receive: self.setup.as_ref().map(Setup::binding),
            send: self.sends.as_ref().map(Bound::id),
        };
        let prepared = self.setup.is_some();
        let ready = Ready {
            binding,
            choice,
            require: None,
            receives: false,
            link,
            interface: Arc::new(Mutex::new(self.setup)),
            _sends: self.sends,
        };
        if prepared {
            put_back_at_a_signal(&ready.interface)?;
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

/// SIGINT and SIGTERM would leave the interface as we need it.
fn put_back_at_a_signal(interface: &Arc<Prepared>) -> anyhow::Result<()> {
    let interface = Arc::clone(interface);
    let wait = move || {
        if service::wait_for_the_end().is_ok() {
            put_back(&interface);
            out::warn("ended by a signal");
            std::process::exit(Exit::Failed.code().into());
        }
    };
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(wait)
        .context("a thread for signals")?;
    Ok(())
}
