//! An epoll set of the library's own: which of many descriptors have something to read.

use crate::errno::Result;
use crate::fd::{Fd, as_fd};
use crate::syscall;

/// The most descriptors that one [`ready`] names.
pub const READY_MOST: usize = 16;

/// A new set.
pub fn create() -> Result<Fd> {
    // SAFETY: no pointers are passed.
    let n = unsafe { syscall!(libc::SYS_epoll_create1, libc::EPOLL_CLOEXEC) }?;
    // SAFETY: the kernel just made this number for us.
    Ok(unsafe { Fd::from_raw(as_fd(n)) })
}

/// Adds a descriptor to the set. [`ready`] calls it `name` while it has something to read, or has ended.
pub fn add(set: i32, fd: i32, name: u64) -> Result<()> {
    add_events(set, fd, libc::EPOLLIN as u32, name)
}

/// Adds a descriptor that is always writable to the set. [`ready`] calls it `name` once now, and once whenever its state has
/// changed or bytes have come.
pub fn add_edges(set: i32, fd: i32, name: u64) -> Result<()> {
    let events = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLET;
    add_events(set, fd, events as u32, name)
}

fn add_events(set: i32, fd: i32, events: u32, name: u64) -> Result<()> {
    let mut event = libc::epoll_event { events, u64: name };
    // SAFETY: `event` is readable.
    unsafe {
        syscall!(
            libc::SYS_epoll_ctl,
            set,
            libc::EPOLL_CTL_ADD,
            fd,
            &raw mut event
        )
    }
    .map(|_| ())
}

/// Removes a descriptor from the set.
pub fn remove(set: i32, fd: i32) -> Result<()> {
    // SAFETY: the kernel reads no event for this operation.
    unsafe { syscall!(libc::SYS_epoll_ctl, set, libc::EPOLL_CTL_DEL, fd, 0) }.map(|_| ())
}

/// The names of descriptors that have something to read, without waiting. Where there are more than [`READY_MOST`], the
/// next call begins with the others.
pub fn ready(set: i32) -> impl Iterator<Item = u64> {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; READY_MOST];
    // SAFETY: `events` is writable for as many events as are asked for; no signal mask is passed.
    let n = unsafe {
        syscall!(
            libc::SYS_epoll_pwait,
            set,
            events.as_mut_ptr(),
            READY_MOST,
            0,
            0,
            0
        )
    };
    let found = n.unwrap_or(0).min(READY_MOST);
    events.into_iter().take(found).map(|event| event.u64)
}

/// Takes one event that the set has, without waiting. Returns its bits, `EPOLLIN | …`.
pub fn take_edge(set: i32) -> Option<u32> {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: `event` is writable; no signal mask is passed.
    let n = unsafe { syscall!(libc::SYS_epoll_pwait, set, &raw mut event, 1, 0, 0, 0) };
    (n == Ok(1)).then_some(event.events)
}

/// Do these bits of an event say that there are bytes to read?
pub fn has_bytes(events: u32) -> bool {
    events & libc::EPOLLIN as u32 != 0
}

/// Do these bits of an event say that the peer has ended?
pub fn has_hung_up(events: u32) -> bool {
    events & (libc::EPOLLHUP | libc::EPOLLERR) as u32 != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sock;

    #[test]
    fn what_has_something_to_read_is_named_until_it_is_read_or_removed() {
        let set = create().expect("a set");
        let (a, b) = sock::unix_channel().expect("a channel");
        add(set.raw(), a.raw(), 7).expect("a descriptor");
        assert_eq!(ready(set.raw()).count(), 0);
        sock::send_to_peer(b.raw(), b"word", &[]).expect("room");
        assert!(ready(set.raw()).eq([7]));
        assert!(ready(set.raw()).eq([7]), "it has not been read");
        remove(set.raw(), a.raw()).expect("it is there");
        assert_eq!(ready(set.raw()).count(), 0);
    }
}
