//! Connections come about: `rdma_cm`.
//!
//! Each connection has an event channel of its own, so that it can be waited for, and handed to another thread, alone.

use crate::address::{from_c, to_c};
use crate::error::VerbsError;
use crate::layout::{
    CmEvent, CmId, ConnectionParameters, Context, EventChannel, PORT_SPACE_TCP, event,
};
use crate::library::Verbs;
use core::ffi::c_int;
use core::ptr::{NonNull, null_mut};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// Most bytes of private data that a connection request takes: the 92 of InfiniBand's REQ, less the header of `rdma_cm`.
pub const PRIVATE_DATA: usize = 56;

/// `retry_count`: how often the device sends a packet again before the connection fails. The most that 3 bits can say.
const RETRIES: u8 = 7;
/// `rnr_retry_count`: how often it asks again for a receive that the peer has not posted; 7 means for ever.
const NOT_READY_RETRIES: u8 = 7;

/// What has happened to a connection.
#[derive(Debug)]
pub enum Event {
    /// The address is resolved: next, [`Id::resolve_route`].
    AddressResolved,
    /// The route is resolved: next, a queue pair and [`Id::connect`].
    RouteResolved,
    /// At a listener: a peer asks for a connection, with this private data.
    Request(Id, Vec<u8>),
    /// It is there. At the client: with the server's private data, and zeros behind it.
    Established(Vec<u8>),
    /// The peer refuses, for this reason (of InfiniBand's CM), with this private data.
    Rejected(i32, Vec<u8>),
    /// The peer, or its kernel, has ended it.
    Disconnected,
    /// It cannot be made: Linux's error number.
    Failed(i32),
    /// The device is being taken away.
    DeviceRemoved,
    /// The address that it was made from or to has moved to another device or port.
    AddressChanged,
    /// Something that asks for nothing.
    Other(i32),
}

/// `struct rdma_cm_id`: one connection, or a listener, with its event channel.
#[derive(Debug)]
pub struct Id {
    raw: NonNull<CmId>,
    channel: Channel,
    verbs: &'static Verbs,
}

// SAFETY: librdmacm locks what its functions share; nothing of an id belongs to a thread.
unsafe impl Send for Id {}
// SAFETY: as above; fields of the structure are read only after the call that sets them has returned to us.
unsafe impl Sync for Id {}

#[derive(Debug)]
struct Channel {
    raw: NonNull<EventChannel>,
    verbs: &'static Verbs,
}

impl Channel {
    fn new(verbs: &'static Verbs) -> Result<Channel, VerbsError> {
        // SAFETY: no arguments.
        let raw = unsafe { (verbs.functions.rdma_create_event_channel)() };
        let Some(raw) = NonNull::new(raw) else {
            return Err(match VerbsError::last("rdma_create_event_channel") {
                VerbsError::Failed { errno, .. } if errno == libc::ENODEV || errno == libc::ENOENT => {
                    VerbsError::Missing(
                        "no RDMA: /dev/infiniband/rdma_cm is missing: load the modules rdma_ucm and ib_uverbs".into(),
                    )
                }
                other => other,
            });
        };
        let channel = Channel { raw, verbs };
        channel.never_blocks()?;
        Ok(channel)
    }

    fn number(&self) -> c_int {
        // SAFETY: it lives as long as `self`, and its descriptor does not change.
        unsafe { (*self.raw.as_ptr()).fd }
    }

    fn never_blocks(&self) -> Result<(), VerbsError> {
        set_nonblocking(self.number())
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: it is ours; the id that used it is gone.
        unsafe { (self.verbs.functions.rdma_destroy_event_channel)(self.raw.as_ptr()) };
    }
}

/// Makes reads of a descriptor return at once.
pub(crate) fn set_nonblocking(fd: c_int) -> Result<(), VerbsError> {
    // SAFETY: its owner keeps it open meanwhile.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    rustix::io::ioctl_fionbio(fd, true).map_err(|error| VerbsError::Failed {
        function: "ioctl",
        errno: error.raw_os_error(),
    })
}

fn milliseconds(time: Duration) -> c_int {
    c_int::try_from(time.as_millis()).unwrap_or(c_int::MAX)
}

impl Id {
    /// One that belongs to no device yet.
    ///
    /// # Errors
    /// The kernel has no `rdma_cm`, or this process may not use it.
    pub fn new(verbs: &'static Verbs) -> Result<Id, VerbsError> {
        let channel = Channel::new(verbs)?;
        let mut raw = null_mut();
        let create = verbs.functions.rdma_create_id;
        // SAFETY: the channel lives as long as the id, which is written on success.
        let made = unsafe {
            create(
                channel.raw.as_ptr(),
                &raw mut raw,
                null_mut(),
                PORT_SPACE_TCP,
            )
        };
        match (made, NonNull::new(raw)) {
            (0, Some(raw)) => Ok(Id {
                raw,
                channel,
                verbs,
            }),
            _ => Err(VerbsError::last("rdma_create_id")),
        }
    }

    /// One that listens.
    ///
    /// # Errors
    /// As [`new`](Self::new); the address is taken, or is none of this machine's.
    pub fn listening(
        verbs: &'static Verbs,
        at: &SocketAddr,
        backlog: i32,
    ) -> Result<Id, VerbsError> {
        let id = Id::new(verbs)?;
        let mut addr = to_c(at);
        // SAFETY: an address of our own, which is copied.
        id.done("rdma_bind_addr", unsafe {
            (verbs.functions.rdma_bind_addr)(id.raw.as_ptr(), (&raw mut addr).cast())
        })?;
        // SAFETY: the id is ours.
        id.done("rdma_listen", unsafe {
            (verbs.functions.rdma_listen)(id.raw.as_ptr(), backlog)
        })?;
        Ok(id)
    }

    #[expect(clippy::unused_self, reason = "what failed is this id's")]
    fn done(&self, function: &'static str, result: c_int) -> Result<(), VerbsError> {
        match result {
            0 => Ok(()),
            _ => Err(VerbsError::last(function)),
        }
    }

    /// Begins to look for the device that leads to `to`; [`Event::AddressResolved`] is the answer.
    ///
    /// # Errors
    /// There is no such device.
    pub fn resolve(
        &self,
        from: Option<&SocketAddr>,
        to: &SocketAddr,
        limit: Duration,
    ) -> Result<(), VerbsError> {
        let (mut from, mut to) = (from.map(to_c), to_c(to));
        let from = from.as_mut().map_or(null_mut(), |from| &raw mut *from);
        // SAFETY: addresses of our own, or null for none; they are copied.
        self.done("rdma_resolve_addr", unsafe {
            (self.verbs.functions.rdma_resolve_addr)(
                self.raw.as_ptr(),
                from.cast(),
                (&raw mut to).cast(),
                milliseconds(limit),
            )
        })
    }

    /// Begins to look for the route; [`Event::RouteResolved`] is the answer.
    ///
    /// # Errors
    /// The address is not resolved.
    pub fn resolve_route(&self, limit: Duration) -> Result<(), VerbsError> {
        // SAFETY: the id is ours.
        self.done("rdma_resolve_route", unsafe {
            (self.verbs.functions.rdma_resolve_route)(self.raw.as_ptr(), milliseconds(limit))
        })
    }

    /// Asks for the connection, with up to [`PRIVATE_DATA`] bytes for the peer. It must have its queue pair.
    ///
    /// # Errors
    /// The route is not resolved; more bytes than fit.
    pub fn connect(&self, private: &[u8]) -> Result<(), VerbsError> {
        let mut parameters = parameters(private)?;
        // SAFETY: the private data is copied.
        self.done("rdma_connect", unsafe {
            (self.verbs.functions.rdma_connect)(self.raw.as_ptr(), &raw mut parameters)
        })
    }

    /// Accepts the connection that was asked for. It must have its queue pair.
    ///
    /// # Errors
    /// The peer has given up; more bytes than fit.
    pub fn accept(&self, private: &[u8]) -> Result<(), VerbsError> {
        let mut parameters = parameters(private)?;
        // SAFETY: the private data is copied.
        self.done("rdma_accept", unsafe {
            (self.verbs.functions.rdma_accept)(self.raw.as_ptr(), &raw mut parameters)
        })
    }

    /// Refuses the connection that was asked for.
    ///
    /// # Errors
    /// The peer has given up; more bytes than fit.
    pub fn reject(&self, private: &[u8]) -> Result<(), VerbsError> {
        let len = private_len(private)?;
        // SAFETY: the private data is copied.
        self.done("rdma_reject", unsafe {
            (self.verbs.functions.rdma_reject)(self.raw.as_ptr(), private.as_ptr(), len)
        })
    }

    /// Ends the connection: what is posted comes back as flushed.
    pub fn disconnect(&self) {
        // SAFETY: the id is ours. It fails if there is no connection, which is as well.
        unsafe { (self.verbs.functions.rdma_disconnect)(self.raw.as_ptr()) };
    }

    /// What has happened next; `None`: nothing yet.
    ///
    /// # Errors
    /// The event channel is broken.
    pub fn event(&self) -> Result<Option<Event>, VerbsError> {
        let functions = &self.verbs.functions;
        let mut raw: *mut CmEvent = null_mut();
        // SAFETY: the channel is ours; it writes one pointer on success.
        let got = unsafe { (functions.rdma_get_cm_event)(self.channel.raw.as_ptr(), &raw mut raw) };
        if got != 0 {
            let error = VerbsError::last("rdma_get_cm_event");
            return match error.errno() {
                libc::EAGAIN | libc::EINTR => Ok(None),
                _ => Err(error),
            };
        }
        // SAFETY: an event that is ours until it is acknowledged.
        let (kind, status, private, id) = unsafe {
            let event = &*raw;
            (
                event.kind,
                event.status,
                private_data(&event.parameters),
                event.id,
            )
        };
        // SAFETY: acknowledged once; all that was to be had of it was copied.
        unsafe { (functions.rdma_ack_cm_event)(raw) };
        self.understand(kind, status, private, id).map(Some)
    }

    fn understand(
        &self,
        kind: c_int,
        status: c_int,
        private: Vec<u8>,
        id: *mut CmId,
    ) -> Result<Event, VerbsError> {
        Ok(match kind {
            event::ADDR_RESOLVED => Event::AddressResolved,
            event::ROUTE_RESOLVED => Event::RouteResolved,
            event::CONNECT_REQUEST => Event::Request(self.adopt(id)?, private),
            event::ESTABLISHED => Event::Established(private),
            event::REJECTED => Event::Rejected(status, private),
            event::ADDR_ERROR | event::ROUTE_ERROR | event::CONNECT_ERROR | event::UNREACHABLE => {
                Event::Failed(match status {
                    0 => libc::EHOSTUNREACH,
                    status => status.saturating_abs(),
                })
            }
            event::DISCONNECTED | event::TIMEWAIT_EXIT => Event::Disconnected,
            event::DEVICE_REMOVAL => {
                self.verbs.notice_removed_devices();
                Event::DeviceRemoved
            }
            event::ADDR_CHANGE => Event::AddressChanged,
            other => Event::Other(other),
        })
    }

    /// Gives the id of a connection request a channel of its own.
    fn adopt(&self, raw: *mut CmId) -> Result<Id, VerbsError> {
        let raw = NonNull::new(raw).ok_or(VerbsError::Failed {
            function: "rdma_get_cm_event",
            errno: libc::EPROTO,
        })?;
        let functions = &self.verbs.functions;
        let channel = match Channel::new(self.verbs) {
            Ok(channel) => channel,
            Err(error) => {
                // SAFETY: the id is ours since its event was acknowledged; nobody will hear of it.
                unsafe { (functions.rdma_destroy_id)(raw.as_ptr()) };
                return Err(error);
            }
        };
        // SAFETY: both are ours.
        let moved = unsafe { (functions.rdma_migrate_id)(raw.as_ptr(), channel.raw.as_ptr()) };
        let error = VerbsError::last("rdma_migrate_id");
        let id = Id {
            raw,
            channel,
            verbs: self.verbs,
        };
        match moved {
            0 => Ok(id),
            _ => Err(error),
        }
    }

    /// The address of this side, once it is known.
    #[must_use]
    pub fn local(&self) -> Option<SocketAddr> {
        // SAFETY: librdmacm writes it in calls and events that have returned to us.
        from_c(unsafe { &(*self.raw.as_ptr()).source })
    }

    /// The address of the peer, once it is known.
    #[must_use]
    pub fn peer(&self) -> Option<SocketAddr> {
        // SAFETY: as above.
        from_c(unsafe { &(*self.raw.as_ptr()).destination })
    }

    /// The device, if it has one.
    pub(crate) fn context(&self) -> Option<NonNull<Context>> {
        // SAFETY: as above.
        NonNull::new(unsafe { (*self.raw.as_ptr()).verbs })
    }

    pub(crate) fn verbs(&self) -> &'static Verbs {
        self.verbs
    }

    pub(crate) fn raw(&self) -> *mut CmId {
        self.raw.as_ptr()
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: it is ours; its queue pair is gone, and each of its events was acknowledged.
        unsafe { (self.verbs.functions.rdma_destroy_id)(self.raw.as_ptr()) };
    }
}

/// Readable when there is an [`event`](Id::event).
impl AsFd for Id {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: it is open as long as the channel lives, which is as long as `self`.
        unsafe { BorrowedFd::borrow_raw(self.channel.number()) }
    }
}

fn private_len(private: &[u8]) -> Result<u8, VerbsError> {
    let fits = u8::try_from(private.len()).ok();
    let fits = fits.filter(|len| usize::from(*len) <= PRIVATE_DATA);
    fits.ok_or(VerbsError::Failed {
        function: "private data",
        errno: libc::EMSGSIZE,
    })
}

/// RDMA reads are not used, in either direction.
fn parameters(private: &[u8]) -> Result<ConnectionParameters, VerbsError> {
    Ok(ConnectionParameters {
        private: private.as_ptr(),
        private_len: private_len(private)?,
        responder_resources: 0,
        initiator_depth: 0,
        flow_control: 0,
        retries: RETRIES,
        not_ready_retries: NOT_READY_RETRIES,
        shared_receives: 0,
        pair: 0,
    })
}

/// # Safety
/// They are those of an event that was not acknowledged yet.
unsafe fn private_data(parameters: &ConnectionParameters) -> Vec<u8> {
    if parameters.private.is_null() {
        return Vec::new();
    }
    let len = usize::from(parameters.private_len);
    // SAFETY: so many bytes, as the caller promises.
    unsafe { core::slice::from_raw_parts(parameters.private, len) }.to_vec()
}
