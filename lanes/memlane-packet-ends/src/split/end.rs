//! An end that frames go to, and whose user gets what became of them: headers in host memory, payload in the region, in
//! fragments that give themselves back.

use super::{DeviceMemory, Fragment, Split, SplitCounts, Splitter};
use crate::split::device::Token;
use crate::tally::Verdict;
use crate::{End, EndCounts, EndError, Frame, More, Sent, Sleep};
use memlane_wait::mutex::lock;
use rustix::event::PollFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Tokens on their way back, from whatever thread.
#[derive(Debug, Default)]
pub(super) struct Returns {
    tokens: Mutex<Vec<Token>>,
    /// There are some. Set by who gives back, after the token is there (release); cleared by the splitter before it
    /// takes them (acquire): a token that comes in between is seen with the next frame.
    some: AtomicBool,
}

impl Returns {
    fn push(&self, token: Token) {
        let mut tokens = lock(&self.tokens);
        tokens.push(token);
        self.some.store(true, Ordering::Release);
    }

    /// Moves them to `into`.
    pub(super) fn take(&self, into: &mut Vec<Token>) {
        if self.some.swap(false, Ordering::Acquire) {
            let mut tokens = lock(&self.tokens);
            into.append(&mut tokens);
        }
    }
}

/// A fragment that has an owner: its chunk is used until this is dropped, by any thread, also after its splitter.
#[derive(Debug)]
pub struct OwnedFragment {
    fragment: Fragment,
    returns: Arc<Returns>,
}

impl OwnedFragment {
    pub(super) fn new(fragment: Fragment, returns: &Arc<Returns>) -> OwnedFragment {
        OwnedFragment {
            fragment,
            returns: Arc::clone(returns),
        }
    }

    /// Where its bytes are.
    pub fn fragment(&self) -> Fragment {
        self.fragment
    }
}

impl Drop for OwnedFragment {
    fn drop(&mut self) {
        self.returns.push(self.fragment.token);
    }
}

/// The receiver of split frames.
pub trait Receiver: Send + core::fmt::Debug {
    /// A frame: its headers, or all of it. Fragments that are still in `held` afterwards are free again.
    fn take(&mut self, split: &Split<'_>, held: &mut Vec<OwnedFragment>);

    /// What it thinks of what came, if it looks.
    fn verdict(&self) -> Option<Verdict> {
        None
    }

    /// What was counted until now, when nothing more comes.
    fn over(&mut self, counts: SplitCounts) {
        let _ = counts;
    }
}

/// A splitter as an end. Nothing comes from it.
#[derive(Debug)]
pub struct SplitEnd<D: DeviceMemory, R: Receiver> {
    splitter: Splitter<D>,
    receiver: R,
    held: Vec<OwnedFragment>,
    counts: EndCounts,
}

impl<D: DeviceMemory, R: Receiver> SplitEnd<D, R> {
    /// What it splits is `receiver`'s.
    pub fn new(splitter: Splitter<D>, receiver: R) -> SplitEnd<D, R> {
        SplitEnd {
            splitter,
            receiver,
            held: Vec::new(),
            counts: EndCounts::default(),
        }
    }
}

impl<D, R> End for SplitEnd<D, R>
where
    D: DeviceMemory + Send + core::fmt::Debug,
    R: Receiver,
{
    fn name(&self) -> &'static str {
        "split"
    }

    fn receive(
        &mut self,
        _: usize,
        _: &mut dyn FnMut(&Frame<'_>) -> More,
    ) -> Result<usize, EndError> {
        Ok(0)
    }

    fn send(&mut self, frame: &Frame<'_>) -> Result<Sent, EndError> {
        self.counts.count_sent(frame.len());
        let Self {
            splitter,
            receiver,
            held,
            ..
        } = self;
        let returns = splitter.returns();
        splitter.split(frame, |split| {
            let fragments = split.fragments.iter();
            held.extend(fragments.map(|fragment| OwnedFragment::new(*fragment, &returns)));
            receiver.take(split, held);
        });
        held.clear();
        Ok(Sent::Queued)
    }

    fn sleeps(&mut self, _: Sleep) -> Result<bool, EndError> {
        Ok(true)
    }

    fn watch<'a>(&'a self, _: Sleep, _: &mut Vec<PollFd<'a>>) {}

    fn verdict(&self) -> Option<Verdict> {
        self.receiver.verdict()
    }

    fn counts(&self) -> EndCounts {
        self.counts
    }
}

impl<D: DeviceMemory, R: Receiver> Drop for SplitEnd<D, R> {
    fn drop(&mut self) {
        self.receiver.over(self.splitter.counts());
    }
}
