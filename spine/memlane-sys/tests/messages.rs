//! AF_UNIX datagrams that carry descriptors and credentials.
//!
//! Descriptors are the process's: tests that count them take turns.

use memlane_sys::Errno;
use memlane_sys::fd::{Fd, is_cloexec, stat};
use memlane_sys::mem::memfd;
use memlane_sys::sock::{
    MAX_FDS, UnixName, recv_with_fds, send_with_fds, unix_datagram, unix_name_of,
};
use std::sync::{Mutex, MutexGuard};

fn in_turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A bound socket and its name.
fn mailbox() -> (Fd, UnixName) {
    let fd = unix_datagram(None).unwrap();
    let name = unix_name_of(fd.raw()).unwrap();
    (fd, name)
}

fn memory(len: usize) -> Fd {
    memfd(c"parcel", len, false).unwrap()
}

/// The numbers of this process's open descriptors (less the one that lists them).
fn open_fds() -> Vec<i32> {
    let numbers = std::fs::read_dir("/proc/self/fd").unwrap();
    let mut fds: Vec<i32> = numbers
        .map(|e| e.unwrap().file_name().to_str().unwrap().parse().unwrap())
        .filter(|fd| stat(*fd).is_ok())
        .collect();
    fds.sort_unstable();
    fds
}

/// Sends `data` with any number of descriptors, as a peer that is not us could.
fn send_raw(to: &UnixName, data: &[u8], fds: &[i32]) {
    let mut sun: libc::sockaddr_un = unsafe_zeroed();
    sun.sun_family = libc::sa_family_t::try_from(libc::AF_UNIX).unwrap();
    for (dst, src) in sun.sun_path[1..].iter_mut().zip(to.as_bytes()) {
        *dst = src.cast_signed();
    }
    let mut iov = libc::iovec {
        iov_base: data.as_ptr().cast_mut().cast(),
        iov_len: data.len(),
    };
    let mut control = [0u64; 32];
    let mut msg: libc::msghdr = unsafe_zeroed();
    msg.msg_name = (&raw mut sun).cast();
    msg.msg_namelen =
        u32::try_from(size_of::<libc::sa_family_t>() + 1 + to.as_bytes().len()).unwrap();
    msg.msg_iov = &raw mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control.as_mut_ptr().cast();
    let len = u32::try_from(fds.len() * 4).unwrap();
    // SAFETY: `control` has room for one header and 60 descriptors; `msg` points to live values.
    unsafe {
        msg.msg_controllen = libc::CMSG_SPACE(len) as usize;
        let hdr = &mut *libc::CMSG_FIRSTHDR(&raw const msg);
        hdr.cmsg_level = libc::SOL_SOCKET;
        hdr.cmsg_type = libc::SCM_RIGHTS;
        hdr.cmsg_len = libc::CMSG_LEN(len) as usize;
        std::ptr::copy_nonoverlapping(
            fds.as_ptr().cast::<u8>(),
            libc::CMSG_DATA(hdr),
            fds.len() * 4,
        );
        let sock = libc::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        let sent = libc::sendmsg(sock, &raw const msg, 0);
        assert_eq!(
            usize::try_from(sent),
            Ok(data.len()),
            "{}",
            std::io::Error::last_os_error()
        );
        libc::close(sock);
    }
}

fn unsafe_zeroed<T: Copy>() -> T {
    // SAFETY: used for the C structures above only, of which all-zero bytes are a value.
    unsafe { std::mem::zeroed() }
}

#[test]
fn a_message_arrives_with_its_descriptors_and_its_senders_credentials() {
    let _turn = in_turn();
    let ((to, to_name), (from, from_name)) = (mailbox(), mailbox());
    let (a, b) = (memory(4096), memory(8192));
    send_with_fds(from.raw(), &to_name, b"hello", &[a.raw(), b.raw()]).unwrap();

    let mut buf = [0u8; 64];
    let got = recv_with_fds(to.raw(), &mut buf).unwrap();
    assert_eq!((got.len, &buf[..5]), (Some(5), b"hello".as_slice()));
    // SAFETY: these calls only ask.
    let me = unsafe { (libc::getpid(), libc::geteuid(), libc::getegid()) };
    assert_eq!((got.cred.pid, got.cred.uid, got.cred.gid), me);
    assert_eq!(got.from.unwrap().as_bytes(), from_name.as_bytes());
    let [Some(x), Some(y), None, None, None, None] = got.fds else {
        panic!("two descriptors");
    };
    assert_eq!(stat(x.raw()), stat(a.raw()));
    assert_eq!(stat(y.raw()), stat(b.raw()));
    assert!(is_cloexec(x.raw()).unwrap() && is_cloexec(y.raw()).unwrap());
}

#[test]
fn a_message_without_descriptors_brings_none() {
    let _turn = in_turn();
    let ((to, name), (from, _)) = (mailbox(), mailbox());
    send_with_fds(from.raw(), &name, b"", &[]).unwrap();
    let got = recv_with_fds(to.raw(), &mut [0; 8]).unwrap();
    assert_eq!(got.len, Some(0));
    assert!(got.fds.iter().all(Option::is_none));
}

#[test]
fn credentials_of_a_forked_sender_are_the_childs() {
    let _turn = in_turn();
    let ((to, name), (from, _)) = (mailbox(), mailbox());
    // SAFETY: the child makes raw system calls only and leaves by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let sent = send_with_fds(from.raw(), &name, b"x", &[]).is_ok();
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(i32::from(!sent)) };
    }
    let mut status = 0;
    // SAFETY: waits for our own child.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    let got = recv_with_fds(to.raw(), &mut [0; 8]).unwrap();
    assert_eq!((got.cred.pid, got.len), (child, Some(1)));
}

#[test]
fn more_descriptors_than_a_message_may_carry_leak_nothing() {
    let _turn = in_turn();
    let (to, name) = mailbox();
    let parcels = [memory(1), memory(2), memory(3)];
    let raw: Vec<i32> = parcels.iter().map(Fd::raw).collect::<Vec<_>>().repeat(3);
    let before = open_fds();
    for n in [7, 6, 7] {
        send_raw(&name, b"too many", &raw[..n]);
    }
    send_raw(&name, b"60 of them", &raw[..6].repeat(10));
    for expect in [None, Some(8), None, None] {
        let got = recv_with_fds(to.raw(), &mut [0; 64]).unwrap();
        assert_eq!(got.len, expect, "a message cut short must not be believed");
        assert_eq!(got.fds.iter().flatten().count(), MAX_FDS);
        assert_eq!(open_fds().len(), before.len() + MAX_FDS);
        drop(got);
        assert_eq!(open_fds(), before);
    }
}

#[test]
fn a_message_longer_than_the_buffer_says_so_and_its_descriptors_are_closed() {
    let _turn = in_turn();
    let ((to, name), (from, _)) = (mailbox(), mailbox());
    let parcel = memory(4096);
    let before = open_fds();
    send_with_fds(from.raw(), &name, &[7; 100], &[parcel.raw()]).unwrap();
    let got = recv_with_fds(to.raw(), &mut [0; 99]).unwrap();
    assert_eq!(got.len, None);
    drop(got);
    assert_eq!(open_fds(), before);
}

#[test]
fn sending_more_descriptors_than_a_message_may_carry_or_to_nobody_is_an_error() {
    let _turn = in_turn();
    let ((to, name), (from, _)) = (mailbox(), mailbox());
    assert_eq!(
        send_with_fds(from.raw(), &name, b"x", &[0; MAX_FDS + 1]),
        Err(Errno::INVAL)
    );
    drop(to);
    assert_eq!(
        send_with_fds(from.raw(), &name, b"x", &[]),
        Err(Errno(libc::ECONNREFUSED))
    );
    assert_eq!(
        recv_with_fds(from.raw(), &mut [0; 8]).err(),
        Some(Errno::AGAIN)
    );
}

#[test]
fn a_sender_never_blocks_on_a_full_mailbox() {
    let _turn = in_turn();
    let ((_to, name), (from, _)) = (mailbox(), mailbox());
    let first_error =
        (0..100_000).find_map(|_| send_with_fds(from.raw(), &name, &[0; 512], &[]).err());
    assert_eq!(first_error, Some(Errno::AGAIN));
}

#[test]
fn names_are_abstract_unique_and_at_most_107_bytes() {
    let _turn = in_turn();
    let longest = [b'x'; 107];
    let name = UnixName::abstract_name(&longest).unwrap();
    let fd = unix_datagram(Some(&name)).unwrap();
    assert_eq!(unix_name_of(fd.raw()).unwrap().as_bytes(), longest);
    assert_eq!(
        unix_datagram(Some(&name)).err(),
        Some(Errno(libc::EADDRINUSE))
    );
    assert_eq!(
        UnixName::abstract_name(&[b'x'; 108]).err(),
        Some(Errno::INVAL)
    );
    drop(fd);
    assert!(
        unix_datagram(Some(&name)).is_ok(),
        "the name goes with its socket"
    );
}
