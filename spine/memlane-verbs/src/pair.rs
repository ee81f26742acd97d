//! A queue pair, with the queue of its completions.

use crate::cm::{Id, set_nonblocking};
use crate::domain::{Domain, Piece};
use crate::error::{Status, VerbsError};
use crate::layout::{
    CompletionChannel, CompletionQueue, Context, Element, INLINE, PairSettings, QueuePair,
    RECEIVED, RECEIVED_IMMEDIATE, RELIABLE_CONNECTED, ReceiveRequest, SIGNALED, SendRequest,
    WITH_IMMEDIATE, WorkCompletion, opcode,
};
use core::ffi::c_int;
use core::ptr::{NonNull, null_mut};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Pieces of a request, at most: data, and what comes behind it.
const PIECES: usize = 2;
/// Completions that are fetched in one go.
const BATCH: usize = 32;

/// How much a queue pair holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capacity {
    /// Send requests that were not completed.
    pub sends: u32,
    /// Receives that were not completed.
    pub receives: u32,
    /// Bytes of a request that the device takes without a registration.
    pub inline: u32,
}

/// What a send request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verb {
    /// Sends a message.
    Send,
    /// Sends a message, with an immediate.
    SendImmediate(u32),
    /// Sends a message, and invalidates a key of the peer's.
    SendInvalidate(u32),
    /// Writes to the peer's memory.
    Write {
        /// Where, as the peer calls it.
        to: u64,
        /// What opens it.
        key: u32,
    },
    /// Writes to the peer's memory, and tells an immediate when it is there.
    WriteImmediate {
        /// Where, as the peer calls it.
        to: u64,
        /// What opens it.
        key: u32,
        /// The immediate.
        immediate: u32,
    },
}

/// The bytes of a send request.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// Up to two pieces of registered memory, which the device reads until the request is completed.
    Registered(&'a [Piece]),
    /// Bytes that are copied now; at most [`Capacity::inline`].
    Inline(&'a [u8]),
}

/// What a work request has come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The number that it was posted with.
    pub number: u64,
    /// What it has come to.
    pub what: Completed,
}

/// How a work request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Completed {
    /// A send request is done, and so are all before it.
    Sent,
    /// A message has come into a receive.
    Message {
        /// Its bytes.
        len: u32,
        /// What came with it.
        immediate: Option<u32>,
    },
    /// The peer has written, and says so; a receive is used up.
    Immediate(u32),
    /// It failed, and so will everything else of this queue pair.
    Failed(Status),
}

/// A queue pair of one connection. Dropped, the device forgets all that was posted.
#[derive(Debug)]
pub struct Pair {
    id: Arc<Id>,
    raw: NonNull<QueuePair>,
    queue: Completions,
    inline: u32,
    receives: u32,
    /// What it may reach.
    _domain: Arc<Domain>,
}

// SAFETY: the pointers lead to what is the pair's alone; libibverbs locks what its functions share.
unsafe impl Send for Pair {}

impl Pair {
    /// A queue pair for `id`, whose device `domain` is of.
    ///
    /// # Errors
    /// The device cannot have one of this capacity, or no more at all; locked memory is used up.
    pub fn new(id: &Arc<Id>, domain: &Arc<Domain>, most: Capacity) -> Result<Pair, VerbsError> {
        let queue = Completions::new(id, most.sends + most.receives)?;
        let mut settings = PairSettings {
            context: null_mut(),
            send_queue: queue.raw.as_ptr(),
            receive_queue: queue.raw.as_ptr(),
            shared_receives: null_mut(),
            sends: most.sends,
            receives: most.receives,
            // `PIECES`.
            send_elements: 2,
            receive_elements: 1,
            inline: most.inline,
            kind: RELIABLE_CONNECTED,
            signal_all: 0,
        };
        let create = id.verbs().functions.rdma_create_qp;
        // SAFETY: the id, the domain and the completion queue live longer than the queue pair.
        let made = unsafe { create(id.raw(), domain.raw(), &raw mut settings) };
        // SAFETY: the call that sets it has returned.
        let raw = NonNull::new(unsafe { (*id.raw()).pair }).filter(|_| made == 0);
        let raw = raw.ok_or_else(|| VerbsError::last("rdma_create_qp"))?;
        Ok(Pair {
            id: Arc::clone(id),
            raw,
            queue,
            // The device may have given more, which nobody has asked for.
            inline: most.inline,
            receives: most.receives,
            _domain: Arc::clone(domain),
        })
    }

    /// The connection that it belongs to.
    #[must_use]
    pub fn id(&self) -> &Arc<Id> {
        &self.id
    }

    /// Bytes that may be sent [inline](Data::Inline).
    #[must_use]
    pub fn inline(&self) -> u32 {
        self.inline
    }

    /// Receives that it holds.
    #[must_use]
    pub fn receives(&self) -> u32 {
        self.receives
    }

    /// Posts a send request. Its number comes back with its completion, which there is if it is `signaled`, or fails.
    ///
    /// # Errors
    /// The send queue is full; more pieces, or more bytes inline, than there may be.
    pub fn send(
        &mut self,
        number: u64,
        verb: Verb,
        data: Data<'_>,
        signaled: bool,
    ) -> Result<(), VerbsError> {
        let mut elements = [Element::default(); PIECES];
        let count = describe(data, self.inline, &mut elements)?;
        let (opcode, immediate, (remote_addr, remote_key)) = parts(verb);
        let inline = match data {
            Data::Inline(_) => INLINE,
            Data::Registered(_) => 0,
        };
        let mut request = SendRequest {
            number,
            next: null_mut(),
            elements: elements.as_mut_ptr(),
            count,
            opcode,
            flags: inline | if signaled { SIGNALED } else { 0 },
            immediate,
            remote_addr,
            remote_key,
            rest: [0; 19],
        };
        let (pair, mut bad) = (self.raw.as_ptr(), null_mut());
        // SAFETY: the device's own function; the request, and what is inline, are read before it returns.
        let posted =
            unsafe { ((*(*pair).context).post_send)(pair, &raw mut request, &raw mut bad) };
        posted_well("ibv_post_send", posted)
    }

    /// Posts a receive: a message comes into `into`, an immediate alone only uses it up.
    ///
    /// # Errors
    /// The receive queue is full.
    pub fn receive(&mut self, number: u64, into: Piece) -> Result<(), VerbsError> {
        let mut element = into.0;
        let mut request = ReceiveRequest {
            number,
            next: null_mut(),
            elements: &raw mut element,
            count: 1,
        };
        let (pair, mut bad) = (self.raw.as_ptr(), null_mut());
        // SAFETY: the device's own function; the request is read before it returns.
        let posted =
            unsafe { ((*(*pair).context).post_recv)(pair, &raw mut request, &raw mut bad) };
        posted_well("ibv_post_recv", posted)
    }

    /// Fetches up to 32 completions, and appends them. It asks no kernel.
    ///
    /// # Errors
    /// The completion queue is broken.
    pub fn poll(&mut self, into: &mut impl Extend<Completion>) -> Result<usize, VerbsError> {
        self.queue.poll(into)
    }

    /// From now on the next completion makes the [channel](Self::channel) readable. What came before does not: poll again.
    ///
    /// # Errors
    /// The device does not do that.
    pub fn arm(&mut self) -> Result<(), VerbsError> {
        let queue = self.queue.raw.as_ptr();
        // SAFETY: the device's own function.
        let armed = unsafe { ((*(*queue).context).req_notify_cq)(queue, 0) };
        posted_well("ibv_req_notify_cq", armed)
    }

    /// Takes one of the events that have made the [channel](Self::channel) readable; there is one for each [`arm`](Self::arm)
    /// at most. `false`: there was none.
    pub fn hush(&mut self) -> bool {
        self.queue.hush()
    }

    /// Readable after an [`arm`](Self::arm), when something is completed.
    #[must_use]
    pub fn channel(&self) -> BorrowedFd<'_> {
        // SAFETY: it is open as long as the channel lives, which is as long as `self`.
        unsafe { BorrowedFd::borrow_raw(self.queue.channel.number()) }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // SAFETY: it is ours. After this the device does not touch what was posted; the queue of completions goes next.
        unsafe { (self.id.verbs().functions.rdma_destroy_qp)(self.id.raw()) };
    }
}

/// Readable when something has happened to the connection.
impl AsFd for Pair {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.id.as_fd()
    }
}

/// `struct ibv_comp_channel`, alone.
#[derive(Debug)]
struct Channel {
    raw: NonNull<CompletionChannel>,
    id: Arc<Id>,
}

impl Channel {
    fn number(&self) -> c_int {
        // SAFETY: it lives as long as `self`, and its descriptor does not change.
        unsafe { (*self.raw.as_ptr()).fd }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: it is ours; its completion queue is gone.
        unsafe { (self.id.verbs().functions.ibv_destroy_comp_channel)(self.raw.as_ptr()) };
    }
}

/// Which of a device's interrupts tells of a queue's completions: each queue of this process the next one, so that
/// several connections of a path are served by several CPUs. Processes begin at different ones.
fn next_vector(device: NonNull<Context>) -> c_int {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // SAFETY: the device is open, and its number of vectors does not change.
    let count = u32::try_from(unsafe { (*device.as_ptr()).vectors }).unwrap_or(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    let next = next.wrapping_add(std::process::id()) % count.max(1);
    c_int::try_from(next).unwrap_or(0)
}

/// `struct ibv_cq`.
#[derive(Debug)]
struct Completions {
    raw: NonNull<CompletionQueue>,
    /// Where the device writes what it has: a look that finds nothing must cost next to nothing.
    found: Box<[WorkCompletion; BATCH]>,
    /// Dropped after `raw`, by this type's `drop`.
    channel: Channel,
}

impl Completions {
    fn new(id: &Arc<Id>, most: u32) -> Result<Completions, VerbsError> {
        let functions = &id.verbs().functions;
        let device = id.context().ok_or(VerbsError::Failed {
            function: "ibv_create_cq",
            errno: libc::ENODEV,
        })?;
        // SAFETY: the device is open as long as the id lives.
        let raw = unsafe { (functions.ibv_create_comp_channel)(device.as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(|| VerbsError::last("ibv_create_comp_channel"))?;
        let channel = Channel {
            raw,
            id: Arc::clone(id),
        };
        set_nonblocking(channel.number())?;
        let most = c_int::try_from(most).unwrap_or(c_int::MAX);
        let bell = channel.raw.as_ptr();
        let vector = next_vector(device);
        let create = functions.ibv_create_cq;
        // SAFETY: as above; the channel lives longer than the queue.
        let raw = unsafe { create(device.as_ptr(), most, null_mut(), bell, vector) };
        let raw = NonNull::new(raw).ok_or_else(|| VerbsError::last("ibv_create_cq"))?;
        Ok(Completions {
            raw,
            found: Box::new([WorkCompletion::default(); BATCH]),
            channel,
        })
    }

    fn poll(&mut self, into: &mut impl Extend<Completion>) -> Result<usize, VerbsError> {
        const MOST: c_int = 32;
        const { assert!(MOST as usize == BATCH) };
        let queue = self.raw.as_ptr();
        let found = self.found.as_mut_ptr();
        // SAFETY: the device's own function; it writes at most `MOST` entries, and there are as many.
        let count = unsafe { ((*(*queue).context).poll_cq)(queue, MOST, found) };
        let count = usize::try_from(count).map_err(|_| VerbsError::Failed {
            function: "ibv_poll_cq",
            errno: libc::EIO,
        })?;
        into.extend(self.found.iter().take(count).map(understand));
        Ok(count)
    }

    fn hush(&mut self) -> bool {
        let functions = &self.channel.id.verbs().functions;
        let (mut queue, mut context) = (null_mut(), null_mut());
        let bell = self.channel.raw.as_ptr();
        // SAFETY: the channel is ours and does not block; it writes two pointers on success.
        let got = unsafe { (functions.ibv_get_cq_event)(bell, &raw mut queue, &raw mut context) };
        if got != 0 {
            return false;
        }
        // SAFETY: one event of the one queue of this channel.
        unsafe { (functions.ibv_ack_cq_events)(queue, 1) };
        true
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        // SAFETY: it is ours; its queue pair is gone, and each of its events was acknowledged.
        unsafe { (self.channel.id.verbs().functions.ibv_destroy_cq)(self.raw.as_ptr()) };
    }
}

fn understand(found: &WorkCompletion) -> Completion {
    let immediate = u32::from_be(found.immediate);
    let what = match (found.status, found.opcode) {
        (0, RECEIVED_IMMEDIATE) => Completed::Immediate(immediate),
        (0, RECEIVED) => Completed::Message {
            len: found.length,
            immediate: (found.flags & WITH_IMMEDIATE != 0).then_some(immediate),
        },
        (0, _) => Completed::Sent,
        (status, _) => Completed::Failed(Status(status)),
    };
    Completion {
        number: found.number,
        what,
    }
}

/// `errno` by value: 0 is none.
fn posted_well(function: &'static str, errno: c_int) -> Result<(), VerbsError> {
    match errno {
        0 => Ok(()),
        // Some providers say -1.
        -1 => Err(VerbsError::last(function)),
        errno => Err(VerbsError::Failed { function, errno }),
    }
}

fn describe(
    data: Data<'_>,
    inline: u32,
    elements: &mut [Element; PIECES],
) -> Result<c_int, VerbsError> {
    let too_long = VerbsError::Failed {
        function: "ibv_post_send",
        errno: libc::EMSGSIZE,
    };
    match data {
        Data::Registered(pieces) => {
            if pieces.len() > PIECES {
                return Err(too_long);
            }
            let filled = pieces.iter().filter(|piece| !piece.is_empty());
            let mut count = 0;
            for (element, piece) in elements.iter_mut().zip(filled) {
                *element = piece.0;
                count += 1;
            }
            Ok(count)
        }
        Data::Inline(bytes) => {
            let length = u32::try_from(bytes.len()).ok();
            let length = length.filter(|length| *length <= inline);
            elements[0] = Element {
                addr: bytes.as_ptr().addr() as u64,
                length: length.ok_or(too_long)?,
                key: 0,
            };
            Ok(c_int::from(!bytes.is_empty()))
        }
    }
}

/// Opcode, immediate, where to.
fn parts(verb: Verb) -> (c_int, u32, (u64, u32)) {
    let nowhere = (0, 0);
    match verb {
        Verb::Send => (opcode::SEND, 0, nowhere),
        Verb::SendImmediate(immediate) => (opcode::SEND_IMMEDIATE, immediate.to_be(), nowhere),
        Verb::SendInvalidate(key) => (opcode::SEND_INVALIDATE, key, nowhere),
        Verb::Write { to, key } => (opcode::WRITE, 0, (to, key)),
        Verb::WriteImmediate { to, key, immediate } => {
            (opcode::WRITE_IMMEDIATE, immediate.to_be(), (to, key))
        }
    }
}
