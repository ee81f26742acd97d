//! Fragments that have a place and a token, and whose bytes are not there yet.

use crate::engine::{Fragment, Tokens};
use crate::error::ReceiveError;
use std::collections::VecDeque;

/// What a [late](super::Late) source has received, in order, until its bytes are in the region. Until then the stream
/// itself is the fragments' owner: nobody can hand a token back and so free a chunk that is still written to.
#[derive(Debug, Default)]
pub(super) struct Coming {
    fragments: VecDeque<Fragment>,
    /// Bytes of those that were handed out.
    handed: u64,
    /// What the socket said last, to be told behind the last fragment: its end (0), or an error.
    end: Option<Result<u64, ReceiveError>>,
}

impl Coming {
    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.fragments.len()).unwrap_or(u32::MAX)
    }

    /// Bytes that are under way.
    pub(super) fn bytes(&self) -> u64 {
        self.fragments.iter().map(|f| u64::from(f.len)).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.fragments.is_empty()
    }

    /// These have been named.
    pub(super) fn add(&mut self, named: impl Iterator<Item = Fragment>, tokens: &mut Tokens) {
        self.fragments.extend(named.inspect(|fragment| {
            tokens.keep(*fragment);
        }));
    }

    /// Nothing comes behind them.
    pub(super) fn ends(&mut self, with: Result<u64, ReceiveError>) {
        self.end.get_or_insert(with);
    }

    /// Has it ended, and how?
    pub(super) fn end(&self) -> Option<Result<u64, ReceiveError>> {
        self.end
    }

    /// Hands out those that are whole when `done` bytes are in the region, counted from the first; their bytes.
    pub(super) fn hand_out(
        &mut self,
        done: u64,
        tokens: &mut Tokens,
        fragments: &mut Vec<Fragment>,
    ) -> u64 {
        let before = self.handed;
        while let Some(fragment) = self.fragments.front().copied() {
            if self.handed + u64::from(fragment.len) > done {
                break;
            }
            self.handed += u64::from(fragment.len);
            self.fragments.pop_front();
            tokens.let_go(fragment);
            fragments.push(fragment);
        }
        self.handed - before
    }

    /// The stream is over, and nobody writes to the region any more: all are as if they had been handed out.
    pub(super) fn abandon(&mut self, tokens: &mut Tokens) {
        self.fragments
            .drain(..)
            .for_each(|fragment| tokens.let_go(fragment));
    }
}
