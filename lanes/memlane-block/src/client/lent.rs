//! A volume's memory, borrowed from its server: requests that this process carries out itself.

use super::answer::Opened;
use super::request::PendingRequest;
use crate::loan::Borrowed;
use crate::store::{self, Backing, StoreRequest};
use crate::volume::{Errno, Op};
use crate::wire::Access;
use memlane_core::access::SharedBytes;
use memlane_wait::mutex::lock;
use rustix::event::epoll;
use rustix::process::{Resource, getrlimit};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, Weak};

/// What one client has borrowed. Dropping it gives it back.
#[derive(Debug)]
struct Loan {
    /// Dropped before the socket: when that is closed, the server knows that this process cannot write any more.
    backing: Arc<Backing>,
    socket: Borrowed,
}

/// One queue's share in the loan. Its thread holds the lock while it reads or writes; the reopener empties it.
#[derive(Debug, Default)]
pub(super) struct Share(Mutex<Option<Arc<Loan>>>);

/// What the reopener knows of a volume's loan.
#[derive(Debug, Default)]
pub(super) struct Lent {
    loan: Option<Arc<Loan>>,
    shares: Vec<Weak<Share>>,
}

impl Share {
    /// Carries out a read or write. `false`: the server must do it, because nothing is borrowed, or this did not work and the
    /// server knows why.
    pub(super) fn perform(&self, request: &mut PendingRequest) -> bool {
        let share = lock(&self.0);
        let Some(loan) = share.as_ref() else {
            return false;
        };
        // Memory of the user's own may be out of the CPU's reach: the way by the server knows what to do then.
        let lease = request.lease.as_mut();
        let Some(lease) = lease.filter(|lease| !lease.is_of_its_user()) else {
            return false;
        };
        let data = lease.bytes().part(0, request.len as usize);
        let moves_data = matches!(request.op, Op::Read | Op::Write);
        let (op, at, len) = (request.op, request.at, request.len);
        if !moves_data || data.is_none() || loan.backing.check(op, at, len).is_err() {
            return false;
        }
        let done = store::at_once(&StoreRequest {
            id: request.tag,
            backing: Arc::clone(&loan.backing),
            op,
            at,
            len,
            flags: request.flags,
            data,
        });
        let is_done = done == Some(Ok(()));
        if is_done && op == Op::Read {
            lease.note_copied(len);
        }
        is_done
    }
}

impl Share {
    /// Has `moves` read or write these bytes in the memory that is lent. `None`: nothing is borrowed, or this cannot be done there.
    ///
    /// # Errors
    /// `EIO`: its file has become shorter meanwhile.
    pub(super) fn in_place(
        &self,
        op: Op,
        place: (u64, u32),
        moves: &mut dyn FnMut(SharedBytes) -> usize,
    ) -> Result<Option<usize>, Errno> {
        let share = lock(&self.0);
        let Some(loan) = share.as_ref() else {
            return Ok(None);
        };
        loan.backing.in_place(op, place, moves)
    }
}

impl Lent {
    /// A share for one more queue.
    pub(super) fn enter(&mut self) -> Arc<Share> {
        let share = Arc::new(Share(Mutex::new(self.loan.clone())));
        self.shares.retain(|share| share.strong_count() > 0);
        self.shares.push(Arc::downgrade(&share));
        share
    }

    /// Takes what the server offers with this answer, for all queues, in the place of what was borrowed before.
    ///
    /// # Errors
    /// It cannot be had, or is no memory of such a volume.
    pub(super) fn take(&mut self, opened: &Opened, access: Access) -> io::Result<()> {
        self.give_back();
        let Some(token) = opened.loan else {
            return Ok(());
        };
        let writable = access != Access::ReadOnly;
        if writable && !may_write(opened.info.size) {
            return Ok(());
        }
        let (socket, memory, size) = Borrowed::take(token)?;
        let backing = Backing::borrowed(memory, size, writable)?;
        let backing = Arc::new(backing);
        self.set(Some(Arc::new(Loan { backing, socket })));
        Ok(())
    }

    /// Ends the loan. When this is back, no queue reads or writes the memory any more.
    pub(super) fn give_back(&mut self) {
        if self.loan.is_some() {
            self.set(None);
        }
    }

    fn set(&mut self, loan: Option<Arc<Loan>>) {
        for share in self.shares.iter().filter_map(Weak::upgrade) {
            lock(&share.0).clone_from(&loan);
        }
        self.loan = loan;
    }

    /// Is anything borrowed?
    pub(super) fn is_lent(&self) -> bool {
        self.loan.is_some()
    }

    /// Ends a loan that the server wants back, or that ended with the server.
    pub(super) fn look(&mut self) {
        let is_over = |loan: &Arc<Loan>| loan.socket.is_over();
        if self.loan.as_ref().is_some_and(is_over) {
            self.give_back();
        }
    }

    /// The volume has another size, on purpose.
    pub(super) fn resized(&mut self, size: u64) {
        match &self.loan {
            Some(_) if !may_write(size) => self.give_back(),
            Some(loan) => _ = loan.backing.resized(),
            None => {}
        }
    }

    /// Has `epoll` wake up when the loan is over.
    pub(super) fn watch(&self, epoll: &OwnedFd) -> io::Result<()> {
        let Some(loan) = &self.loan else {
            return Ok(());
        };
        let data = epoll::EventData::new_u64(0);
        // Once: a child of this process may keep the socket, and with it the place in the set.
        let once = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        Ok(epoll::add(epoll, &loan.socket, data, once)?)
    }
}

/// May this process write a file of that size to its end? A write behind its limit (`RLIMIT_FSIZE`) would end it by a signal.
fn may_write(size: u64) -> bool {
    let limit = getrlimit(Resource::Fsize).current;
    limit.is_none_or(|limit| size <= limit)
}
