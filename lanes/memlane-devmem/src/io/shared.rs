//! What a stream and the owners of its fragments share: the table of tokens, what is being sent, and where what comes
//! back goes.

use super::binding::Binding;
use super::ways::{Giver, Sink};
use crate::engine::{Flights, Fragment, Origin, Range, Span, Tokens};
use crate::error::ReleaseError;
use memlane_sys::Errno;
use memlane_wait::mutex::lock;
use std::sync::{Arc, Mutex, MutexGuard};

/// What a stream and whoever has its fragments share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) binding: Arc<Binding>,
    given: Mutex<Given>,
    giver: Option<Arc<dyn Giver>>,
}

#[derive(Debug)]
pub(super) struct Given {
    pub(super) tokens: Tokens,
    pub(super) released: u64,
    /// Fragments that have a token and have not been handed out yet.
    pub(super) coming: u32,
    pub(super) flights: Flights,
    /// Sends that the kernel made of a copy all the same.
    pub(super) sent_copied: u64,
    /// Released, while the interface may still read it: it comes back when that is over.
    parked: Vec<(Fragment, Origin)>,
    /// Memory of an earlier release, for the next one.
    spare: Freed,
}

/// Fragments that come back.
#[derive(Debug, Default)]
struct Freed {
    all: Vec<(Fragment, Origin)>,
    /// Of those that a path has put there: what it calls them.
    names: Vec<u64>,
}

impl Shared {
    pub(super) fn new(
        binding: &Arc<Binding>,
        fragments: u32,
        giver: Option<Arc<dyn Giver>>,
    ) -> Arc<Shared> {
        Arc::new(Shared {
            binding: Arc::clone(binding),
            given: Mutex::new(Given {
                tokens: Tokens::new(fragments),
                released: 0,
                coming: 0,
                flights: Flights::default(),
                sent_copied: 0,
                parked: Vec::new(),
                spare: Freed::default(),
            }),
            giver,
        })
    }

    /// A poisoned lock is as good: whoever panicked under it had panicked before it changed anything.
    pub(super) fn given(&self) -> MutexGuard<'_, Given> {
        lock(&self.given)
    }

    pub(super) fn release(&self, ranges: &[Range]) -> Result<u32, ReleaseError> {
        let mut given = self.given();
        let mut freed = std::mem::take(&mut given.spare);
        let all = &mut freed.all;
        let count = given.tokens.release(ranges, |f, o| all.push((f, o)));
        given.back(count.unwrap_or(0), all);
        drop(given);
        self.give(&mut freed);
        self.given().spare = freed;
        count
    }

    fn give_up(&self, token: u32) {
        let mut given = self.given();
        let mut freed = Freed::default();
        freed.all.extend(given.tokens.give_up(token));
        given.back(u32::from(!freed.all.is_empty()), &mut freed.all);
        drop(given);
        self.give(&mut freed);
    }

    /// Hears which sends are over; what was released meanwhile comes back.
    pub(super) fn reap(&self, sink: &dyn Sink) -> Result<(), Errno> {
        let mut given = self.given();
        let told = sink.done(&mut |first, last, copied| {
            let done = given.flights.done(first, last);
            given.sent_copied += if copied { done as u64 } else { 0 };
        });
        let mut freed = Freed {
            all: std::mem::take(&mut given.parked),
            ..Freed::default()
        };
        given.back(0, &mut freed.all);
        drop(given);
        self.give(&mut freed);
        told
    }

    /// The stream is over, and nothing of it is sent any more: all that has no owner comes back.
    pub(super) fn end(&self) {
        let mut given = self.given();
        given.flights = Flights::default();
        let mut all = std::mem::take(&mut given.parked);
        given.tokens.release_all(|f, o| all.push((f, o)));
        drop(given);
        self.give(&mut Freed {
            all,
            ..Freed::default()
        });
        if let Some(giver) = &self.giver {
            giver.ended();
        }
    }

    /// Bytes of the pool's chunks go there, others to who put them. Nothing of `freed` is left.
    fn give(&self, freed: &mut Freed) {
        let of_pool = |(fragment, origin): &(Fragment, Origin)| {
            matches!(origin, Origin::Pool).then_some(*fragment)
        };
        let of_path = |(_, origin): &(Fragment, Origin)| match origin {
            Origin::Pool => None,
            Origin::Path(name) => Some(*name),
        };
        let Freed { all, names } = freed;
        names.extend(all.iter().filter_map(of_path));
        if let Some(giver) = self.giver.as_ref().filter(|_| !names.is_empty()) {
            giver.give(names);
            // A token is free by it, which may have been what was lacking.
            self.binding.tell();
        }
        self.binding.give(all.iter().filter_map(of_pool));
        all.clear();
        names.clear();
    }
}

impl Given {
    /// Fragments that their user has.
    pub(super) fn out(&self) -> u32 {
        self.tokens.out() - self.coming
    }

    /// Counts `count` released fragments. Those of `freed` that may still be sent from stay.
    fn back(&mut self, count: u32, freed: &mut Vec<(Fragment, Origin)>) {
        self.released += u64::from(count);
        if self.flights.out() == 0 {
            return;
        }
        let Given {
            flights, parked, ..
        } = self;
        freed.retain(|(fragment, origin)| {
            let flying = flights.hold(Span {
                offset: fragment.offset,
                len: fragment.len,
            });
            if flying {
                parked.push((*fragment, *origin));
            }
            !flying
        });
    }
}

/// A fragment that gives itself back when it is dropped, also after its stream's end.
#[derive(Debug)]
pub struct Owned {
    fragment: Fragment,
    shared: Arc<Shared>,
}

impl Owned {
    pub(super) fn new(fragment: Fragment, shared: &Arc<Shared>) -> Owned {
        Owned {
            fragment,
            shared: Arc::clone(shared),
        }
    }

    /// What it is.
    pub fn fragment(&self) -> Fragment {
        self.fragment
    }

    /// Where it lies.
    pub fn binding(&self) -> &Arc<Binding> {
        &self.shared.binding
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.shared.give_up(self.fragment.token);
    }
}
