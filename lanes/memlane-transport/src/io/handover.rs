//! Descriptors over a unix socket.

use memlane_sys::fd::Fd;
use memlane_sys::{Errno, Result};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd};

/// Descriptors that come with one frame.
const COUNT: usize = 2;

fn errno(error: rustix::io::Errno) -> Errno {
    Errno(error.raw_os_error())
}

/// Sends all of `bytes`, with these descriptors, or nothing.
pub(super) fn send(socket: &OwnedFd, bytes: &[u8], descriptors: [i32; COUNT]) -> Result<()> {
    // SAFETY: they are open: their owners are with the caller until this is back.
    let borrowed = descriptors.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) });
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(COUNT))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&borrowed));
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags) {
        Ok(sent) if sent == bytes.len() => Ok(()),
        // The socket is new, and has room for that.
        Ok(_) => Err(Errno::AGAIN),
        Err(error) => Err(errno(error)),
    }
}

/// Takes what has come, and the descriptors with it; more than there should be are closed.
pub(super) fn receive(
    socket: &OwnedFd,
    buffer: &mut [u8],
    into: &mut Vec<OwnedFd>,
) -> Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(COUNT))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags);
    let received = received.map_err(errno)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            let room = COUNT.saturating_sub(into.len());
            into.extend(descriptors.take(room));
        }
    }
    Ok(received.bytes)
}

/// As the spine has descriptors.
pub(super) fn owned(fd: OwnedFd) -> Fd {
    // SAFETY: it was owned, and is given away.
    unsafe { Fd::from_raw(fd.into_raw_fd()) }
}
