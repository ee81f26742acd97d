//! A TCP stream whose payload lands in a region.

use super::mapped::{Mapped, PIECES};
use super::staged::Staged;
use super::{Binding, Source};
use crate::engine::inflow::Room;
use crate::engine::tokens::{RANGES_MAX, ranges_of};
use crate::engine::{Fragment, Inflow, Range, Tokens};
use crate::error::{AccessError, ReceiveError, ReleaseError};
use core::fmt;
use memlane_sys::Errno;
use memlane_sys::iov::{self, Piece};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How payload gets into the region.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Path {
    /// The kernel writes into the mapped region: one copy.
    Mapped,
    /// By memory in between: two copies.
    Staged,
}

impl Path {
    /// All that there are, the best first.
    pub const ALL: [Path; 2] = [Path::Mapped, Path::Staged];

    /// As `--require` has it.
    pub fn name(self) -> &'static str {
        match self {
            Path::Mapped => "mapped",
            Path::Staged => "staged",
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Path {
    type Err = String;

    fn from_str(text: &str) -> Result<Path, String> {
        let found = Path::ALL.into_iter().find(|path| path.name() == text);
        found.ok_or_else(|| "a path is mapped or staged".into())
    }
}

/// What a stream's user asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// This path and no other; `None`: the best that there is.
    pub require: Option<Path>,
    /// Fragments that may be out at a time; beyond that nothing is received.
    pub fragments: u32,
    /// Bytes of one receive, at most.
    pub burst: u32,
}

impl Default for Terms {
    /// The best path; 65536 fragments; 1 MiB.
    fn default() -> Terms {
        Terms {
            require: None,
            fragments: 1 << 16,
            burst: 1 << 20,
        }
    }
}

/// What a stream has counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StreamCounts {
    /// Bytes that came.
    pub received: u64,
    /// As so many fragments.
    pub fragments: u64,
    /// Of these, given back.
    pub released: u64,
    /// And still out.
    pub out: u32,
    /// Bytes that were copied between two places of host memory on their way.
    pub bounced: u64,
    /// Receives that found no free chunk, or no token.
    pub no_room: u64,
    /// Bytes that were sent out of the region.
    pub sent: u64,
}

/// What to wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// Bytes to receive, or the stream's end.
    Payload,
    /// Chunks that come back, after [`ReceiveError::NoRoom`].
    Room,
    /// Room in the socket, to send.
    Socket,
}

/// What a stream and whoever has its fragments share.
#[derive(Debug)]
struct Shared {
    binding: Arc<Binding>,
    tokens: Mutex<Given>,
}

#[derive(Debug)]
struct Given {
    tokens: Tokens,
    released: u64,
}

impl Shared {
    fn given(&self) -> MutexGuard<'_, Given> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn release(&self, ranges: &[Range]) -> Result<u32, ReleaseError> {
        let mut freed = Vec::new();
        let count = {
            let mut given = self.given();
            let count = given
                .tokens
                .release(ranges, |fragment| freed.push(fragment))?;
            given.released += u64::from(count);
            count
        };
        self.binding.give(freed.into_iter());
        Ok(count)
    }

    fn release_unowned(&self) {
        let mut freed = Vec::new();
        let mut given = self.given();
        given.tokens.release_all(|fragment| freed.push(fragment));
        drop(given);
        self.binding.give(freed.into_iter());
    }

    fn give_up(&self, token: u32) {
        let mut given = self.given();
        let fragment = given.tokens.give_up(token);
        given.released += u64::from(fragment.is_some());
        drop(given);
        self.binding.give(fragment.into_iter());
    }
}

/// A fragment that gives itself back when it is dropped, also after its stream's end.
#[derive(Debug)]
pub struct Owned {
    fragment: Fragment,
    shared: Arc<Shared>,
}

impl Owned {
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

/// One TCP stream. Closing it gives back what is out, but for fragments that are [`Owned`].
#[derive(Debug)]
pub struct Stream {
    socket: OwnedFd,
    shared: Arc<Shared>,
    source: Box<dyn Source>,
    inflow: Inflow,
    rooms: Vec<Room>,
    ranges: Vec<Range>,
    burst: u32,
    counts: StreamCounts,
}

impl Stream {
    /// Of a connected TCP (or unix stream) socket.
    pub fn new(socket: OwnedFd, binding: &Arc<Binding>, terms: &Terms) -> Stream {
        let source: Box<dyn Source> = match terms.require {
            None | Some(Path::Mapped) => Box::new(Mapped),
            Some(Path::Staged) => Box::new(Staged::new()),
        };
        Stream {
            socket,
            shared: Arc::new(Shared {
                binding: Arc::clone(binding),
                tokens: Mutex::new(Given {
                    tokens: Tokens::new(terms.fragments),
                    released: 0,
                }),
            }),
            source,
            inflow: Inflow::new(),
            rooms: Vec::new(),
            ranges: Vec::new(),
            burst: terms.burst.max(1),
            counts: StreamCounts::default(),
        }
    }

    /// How payload comes.
    pub fn path(&self) -> Path {
        self.source.path()
    }

    /// Appends what has come to `fragments`; its bytes, 0 at the stream's end. Never waits.
    ///
    /// # Errors
    /// [`ReceiveError::WouldBlock`]: nothing has come; [`ReceiveError::NoRoom`]: release fragments first.
    pub fn receive(&mut self, fragments: &mut Vec<Fragment>) -> Result<u64, ReceiveError> {
        self.receive_some(u64::from(self.burst), fragments)
    }

    /// As [`receive`](Self::receive), at most `limit` bytes (not 0), and no more than a burst.
    ///
    /// # Errors
    /// As there.
    pub fn receive_some(
        &mut self,
        limit: u64,
        fragments: &mut Vec<Fragment>,
    ) -> Result<u64, ReceiveError> {
        self.find_room(limit.min(u64::from(self.burst)))?;
        let region = self.shared.binding.region();
        let came = self
            .source
            .receive(self.socket.as_fd(), region, &self.rooms);
        let (bytes, bounced) = came
            .as_ref()
            .map_or((0, 0), |came| (came.bytes, came.bounced));
        let before = fragments.len();
        // Also of a receive that failed: what was taken for it goes back.
        let mut given = self.shared.given();
        let mut pool = self.shared.binding.pool();
        self.inflow
            .landed(bytes, &mut pool.chunks, &mut given.tokens, fragments);
        drop((given, pool));
        self.counts.received += bytes;
        self.counts.bounced += bounced;
        self.counts.fragments += (fragments.len() - before) as u64;
        came.map(|came| came.bytes)
    }

    /// From the next byte on, each `unit` of them lie in one piece, as far as the path can choose where they lie: the
    /// first at a multiple of 64, the others behind it. `false`, and nothing is changed: no chunk has so many.
    pub fn whole(&mut self, unit: u32) -> bool {
        let mut pool = self.shared.binding.pool();
        self.inflow.whole(unit, &mut pool.chunks)
    }

    fn find_room(&mut self, bytes: u64) -> Result<(), ReceiveError> {
        let given = self.shared.given();
        let mut pool = self.shared.binding.pool();
        let limits = (PIECES, bytes);
        self.inflow
            .room(&mut pool.chunks, &given.tokens, limits, &mut self.rooms);
        if self.rooms.is_empty() {
            pool.want(self.shared.binding.freed());
            self.counts.no_room += 1;
            return Err(ReceiveError::NoRoom);
        }
        Ok(())
    }

    /// Waits until there is what is asked for, or not longer than `limit`; `false`: that was it.
    ///
    /// # Errors
    /// The kernel's.
    pub fn wait(&self, until: Wait, limit: Duration) -> Result<bool, Errno> {
        let fd = match until {
            Wait::Payload => PollFd::new(&self.socket, PollFlags::IN),
            Wait::Socket => PollFd::new(&self.socket, PollFlags::OUT),
            Wait::Room => PollFd::from_borrowed_fd(self.shared.binding.freed(), PollFlags::IN),
        };
        let end = Instant::now() + limit;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).map_err(|_| Errno::INVAL)?;
            match poll(&mut [fd.clone()], Some(&left)) {
                Err(rustix::io::Errno::INTR) => {}
                polled => return polled.map(|n| n > 0).map_err(|e| Errno(e.raw_os_error())),
            }
        }
    }

    /// Gives fragments back, in ranges of tokens: at most 128, of which 1024 tokens are looked at. How many were out.
    ///
    /// # Errors
    /// Too many ranges: nothing was given back.
    pub fn release(&self, ranges: &[Range]) -> Result<u32, ReleaseError> {
        self.shared.release(ranges)
    }

    /// Gives all of these back, in as many calls as it takes; those that are not out are passed over.
    pub fn release_all(&mut self, fragments: &[Fragment]) -> u32 {
        let mut given = 0;
        // No call has more than it may look at, nor more ranges than it takes.
        for fragments in fragments.chunks(RANGES_MAX) {
            ranges_of(fragments, &mut self.ranges);
            given += self.shared.release(&self.ranges).unwrap_or(0);
        }
        given
    }

    /// From now on, this fragment gives itself back, and nothing else does. `None`: it is not out, or has an owner.
    pub fn own(&self, fragment: Fragment) -> Option<Owned> {
        self.shared.given().tokens.keep(fragment).then(|| Owned {
            fragment,
            shared: Arc::clone(&self.shared),
        })
    }

    /// Copies bytes of a fragment out, from `at` of it. For who looks, not for who computes on the device.
    ///
    /// # Errors
    /// Nothing of that token is out; beyond its end.
    pub fn read(&self, token: u32, at: u32, into: &mut [u8]) -> Result<(), AccessError> {
        let fragment = self.shared.given().tokens.find(token);
        let fragment = fragment.ok_or(AccessError::NoSuchToken(token))?;
        let end = u64::from(at) + into.len() as u64;
        if end > u64::from(fragment.len) {
            return Err(AccessError::Outside);
        }
        let region = self.shared.binding.region();
        region.read(fragment.offset + u64::from(at), into)
    }

    /// Sends bytes of the region; how many went. Never waits.
    ///
    /// # Errors
    /// Beyond its end; the kernel's, EAGAIN if the socket is full.
    pub fn send(&mut self, offset: u64, len: u32) -> Result<u32, AccessError> {
        let at = usize::try_from(offset).map_err(|_| AccessError::Outside)?;
        let region = self.shared.binding.region();
        let sent = region.cpu(crate::region::Access::Read, |bytes| {
            let window = bytes.part(at, len as usize).ok_or(AccessError::Outside)?;
            let piece = Piece {
                base: window.as_ptr(),
                len: window.len(),
            };
            // SAFETY: a window of the region, which lives; the kernel copies its bytes.
            let sent = unsafe { iov::send(self.socket.as_raw_fd(), &[piece]) };
            sent.map_err(AccessError::Device)
        });
        let sent = sent.map_err(AccessError::Device)??;
        self.counts.sent += sent as u64;
        // At most `len`.
        Ok(u32::try_from(sent).unwrap_or(len))
    }

    /// Where payload lands.
    pub fn binding(&self) -> &Arc<Binding> {
        &self.shared.binding
    }

    /// What was counted.
    pub fn counts(&self) -> StreamCounts {
        let given = self.shared.given();
        StreamCounts {
            released: given.released,
            out: given.tokens.out(),
            ..self.counts
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.inflow.close(&mut self.shared.binding.pool().chunks);
        self.shared.release_unowned();
    }
}
