//! Messages with descriptors over a unix socket.

use crate::error::AttachError;
use crate::wire::{LEN, Message, WireError};
use memlane_sys::Errno;
use memlane_sys::fd::Fd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::time::Instant;

/// Control, tx and rx memory, and the doorbells of 16 queues.
pub(super) const DESCRIPTORS_MAX: usize = 3 + crate::layout::QUEUES_MAX as usize;

/// The number of an error of rustix, as the spine has errors.
pub fn errno(error: rustix::io::Errno) -> Errno {
    Errno(error.raw_os_error())
}

fn socket_error(error: rustix::io::Errno) -> AttachError {
    AttachError::Socket(errno(error))
}

/// Sends a message with descriptors. It is one packet: all of it or nothing.
pub(super) fn send(
    socket: &OwnedFd,
    message: &Message,
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), AttachError> {
    send_bytes(socket, &message.encode(), descriptors)
}

/// Sends bytes with descriptors, as one packet: all of it or nothing.
pub fn send_bytes(
    socket: &OwnedFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), AttachError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(AttachError::Descriptors("too many"));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let sent = sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags);
    sent.map(|_| ()).map_err(socket_error)
}

/// Takes one message and its descriptors, by `end`.
pub(super) fn receive(
    socket: &OwnedFd,
    end: Instant,
) -> Result<(Message, Vec<OwnedFd>), AttachError> {
    // One byte more: so a longer message shows.
    let mut buffer = [0; LEN + 1];
    let (n, descriptors) = receive_bytes(socket, end, &mut buffer)?;
    let bytes = buffer.get(..n).ok_or(WireError::Length(n))?;
    Ok((Message::decode(bytes)?, descriptors))
}

/// Receives one packet of bytes and its descriptors, by `end`; returns how many bytes, at most what `buffer` takes.
pub fn receive_bytes(
    socket: &OwnedFd,
    end: Instant,
    buffer: &mut [u8],
) -> Result<(usize, Vec<OwnedFd>), AttachError> {
    sleep(socket, end)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let mut parts = [IoSliceMut::new(buffer)];
    let received = recvmsg(socket, &mut parts, &mut control, flags).map_err(socket_error)?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(some) = message {
            descriptors.extend(some);
        }
    }
    if received.bytes == 0 {
        return Err(AttachError::Socket(Errno(
            rustix::io::Errno::CONNRESET.raw_os_error(),
        )));
    }
    Ok((received.bytes, descriptors))
}

/// Sleeps until something can be received, or accepted.
pub fn sleep(socket: &impl AsFd, end: Instant) -> Result<(), AttachError> {
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let limit = Timespec::try_from(left).map_err(|_| AttachError::Timeout)?;
        match poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&limit)) {
            Ok(0) => return Err(AttachError::Timeout),
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(socket_error(error)),
        }
    }
}

/// An owned descriptor, as the spine has descriptors.
pub fn owned(fd: OwnedFd) -> Fd {
    // SAFETY: it was owned, and is given away.
    unsafe { Fd::from_raw(fd.into_raw_fd()) }
}
