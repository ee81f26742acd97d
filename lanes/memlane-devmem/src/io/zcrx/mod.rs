//! io_uring's zero-copy receive: an interface writes payload into the region, as on the kernel's own path, and a ring
//! tells where.
//!
//! It takes Linux 6.15, an interface whose driver can, headers that are split off, and flows that are steered to the
//! queue. The region is the interface's as a whole: [`Binding::beside`](super::Binding::beside) with nothing kept. A
//! ring is the thread's that receives first: the stream stays there.

mod ring;

pub use ring::{From, RefillRing, Ring, Uring};

use super::binding::Binding;
use super::kernel::Interface;
use super::path::Path;
use super::stream::{Stream, Terms};
use super::ways::{Giver, Most, Placed, Placer};
use crate::engine::zcrx::{Area, Completion, Flow, Refill, Said};
use crate::error::{Fault, ReceiveError, ZcrxError};
use memlane_sys::Errno;
use memlane_wait::mutex::lock;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

/// Completions that are looked at in one receive.
const COMPLETIONS: usize = 256;

/// A region that is a queue's, until a stream takes it over.
#[derive(Debug)]
pub struct Link {
    ring: Uring,
    refill: Arc<RefillRing>,
    area: Area,
    binding: Arc<Binding>,
}

impl Link {
    /// Gives a binding's region to a queue (`CAP_NET_ADMIN`).
    ///
    /// # Errors
    /// What is missing, or the kernel's number and what it means.
    pub fn open(binding: &Arc<Binding>, from: From<'_>) -> Result<Link, ZcrxError> {
        if binding.counts().chunks > 0 {
            return Err(ZcrxError::Shared);
        }
        let (ring, refill, area) = Uring::open(binding, from)?;
        Ok(Link {
            ring,
            refill: Arc::new(refill),
            area,
            binding: Arc::clone(binding),
        })
    }

    /// A stream of a connected TCP socket whose flow comes by that queue.
    pub fn stream(self, socket: OwnedFd, terms: &Terms) -> Stream {
        let socket = Arc::new(socket);
        let ring = Box::new(self.ring.of(Arc::clone(&socket)));
        stream_by(ring, self.refill, self.area, socket, &self.binding, terms)
    }
}

/// A stream that uses this ring instead of the kernel's.
pub fn stream_by(
    ring: Box<dyn Ring>,
    refill: Arc<RefillRing>,
    area: Area,
    socket: Arc<OwnedFd>,
    binding: &Arc<Binding>,
    terms: &Terms,
) -> Stream {
    let returns = Arc::new(Returns {
        refill: Mutex::new(Refill::new(area, refill.entries())),
        ring: refill,
    });
    let placer = Zcrx {
        ring,
        flow: Flow::new(area),
        returns,
        told: Vec::new(),
        later: None,
        binding: Arc::clone(binding),
    };
    Stream::placed(socket, binding, Box::new(placer), None, terms)
}

/// What speaks against this path on an interface, tried on a queue that it does not have; nothing: try it.
pub fn lacks(interface: &Interface) -> Vec<String> {
    let tried = || -> Result<Link, ZcrxError> {
        let region = crate::DeviceRegion::create(&crate::region::Spec {
            kind: crate::region::RegionKind::Memfd,
            bytes: memlane_sys::mem::PAGE,
        });
        let region = region.map_err(ZcrxError::Region)?;
        let binding = Binding::beside(region, crate::engine::chunks::CHUNK_MIN, 0);
        Link::open(
            &binding.map_err(ZcrxError::Region)?,
            From::Queue(interface, NO_QUEUE),
        )
    };
    match tried() {
        // As far as the queue's number, the kernel had nothing against it.
        Ok(_) | Err(ZcrxError::NoQueue(..)) => Vec::new(),
        Err(why) => vec![why.to_string()],
    }
}

/// A queue's number that no interface reaches.
const NO_QUEUE: u32 = 1 << 20;

/// A stream's ring.
#[derive(Debug)]
struct Zcrx {
    /// Closed before the region is gone.
    ring: Box<dyn Ring>,
    flow: Flow,
    returns: Arc<Returns>,
    told: Vec<Completion>,
    /// An error that came behind bytes.
    later: Option<ReceiveError>,
    binding: Arc<Binding>,
}

impl Placer for Zcrx {
    fn path(&self) -> Path {
        Path::Zcrx
    }

    /// What the interface does not put there, the kernel copies there.
    fn comes_beside(&self) -> bool {
        false
    }

    fn receive(&mut self, most: Most, found: &mut Vec<Placed>) -> Result<u64, ReceiveError> {
        self.returns.flush();
        let bytes = self.take(most, found)?;
        if bytes > 0 {
            return Ok(bytes);
        }
        match self.flow.said() {
            Said::Goes => Err(ReceiveError::WouldBlock),
            Said::Starved => Err(self.no_room()),
            Said::Over => Ok(0),
            Said::Failed(errno) => Err(ReceiveError::Kernel(errno)),
            Said::Broken(fault) => Err(ReceiveError::Interface(fault)),
        }
    }

    fn beside(&self) -> &[u8] {
        &[]
    }

    fn giver(&self) -> Arc<dyn Giver> {
        Arc::clone(&self.returns) as Arc<dyn Giver>
    }

    fn bell(&self) -> Option<BorrowedFd<'_>> {
        Some(self.ring.bell())
    }
}

/// Times that a request is armed in one receive.
const ROUNDS: usize = 4;

impl Zcrx {
    /// Takes what there is. Behind it the request is armed, unless nothing more is to come by itself: whoever waits then
    /// is woken.
    fn take(&mut self, most: Most, found: &mut Vec<Placed>) -> Result<u64, ReceiveError> {
        if let Some(later) = self.later.take() {
            return Err(later);
        }
        let limit = most.stretches.min(COMPLETIONS);
        let mut taken = Ok(());
        for _ in 0..ROUNDS {
            taken = self.arm().and_then(|()| self.reap(limit, found));
            // It goes on, or would be over again at once.
            if taken.is_err() || self.flow.is_armed() || self.flow.said() != Said::Goes {
                break;
            }
        }
        let goes = self.flow.said() == Said::Goes;
        let taken = taken.and_then(|()| if goes { self.arm() } else { Ok(()) });
        if let Err(why) = taken {
            // What has come is told first.
            if found.is_empty() {
                return Err(why);
            }
            self.later = Some(why);
        }
        let len = |placed: &Placed| match placed {
            Placed::There { span, .. } => u64::from(span.len),
            Placed::Beside(_) => 0,
        };
        Ok(found.iter().map(len).sum())
    }

    fn reap(&mut self, limit: usize, found: &mut Vec<Placed>) -> Result<(), ReceiveError> {
        self.told.clear();
        let reaped = self.ring.reap(limit - found.len(), &mut self.told);
        reaped.map_err(refused)?;
        let mut returns = self.returns.refill();
        for completion in self.told.drain(..) {
            if let Some(span) = self.flow.take(completion) {
                let name = returns.hold(span);
                found.push(Placed::There { span, name });
            }
        }
        Ok(())
    }

    /// Arms the request, if it is not.
    fn arm(&mut self) -> Result<(), ReceiveError> {
        let Some(number) = self.flow.to_arm() else {
            return Ok(());
        };
        self.ring.arm(number).map_err(|errno| {
            self.flow.not_armed();
            refused(errno)
        })
    }

    /// No buffer was free: there is one when fragments have come back.
    fn no_room(&self) -> ReceiveError {
        self.binding.pool().want(self.binding.freed());
        match self.returns.refill().out() {
            0 => ReceiveError::WouldBlock,
            _ => ReceiveError::NoRoom,
        }
    }
}

/// EEXIST: the ring is another thread's.
fn refused(errno: Errno) -> ReceiveError {
    match errno.0 {
        17 => ReceiveError::Interface(Fault::Thread),
        _ => ReceiveError::Kernel(errno),
    }
}

/// Buffers on their way back to the interface.
#[derive(Debug)]
struct Returns {
    /// Who has this lock is the one who writes to the ring.
    refill: Mutex<Refill>,
    ring: Arc<RefillRing>,
}

impl Returns {
    fn refill(&self) -> MutexGuard<'_, Refill> {
        lock(&self.refill)
    }

    fn flush(&self) {
        self.flush_held(&mut self.refill());
    }

    fn flush_held(&self, refill: &mut Refill) {
        let tail = refill.flush(self.ring.head(), |at, entry| self.ring.write(at, entry));
        if let Some(tail) = tail {
            self.ring.publish(tail);
        }
    }
}

impl Giver for Returns {
    fn give(&self, names: &[u64]) {
        let mut refill = self.refill();
        refill.give(names);
        self.flush_held(&mut refill);
    }
}
