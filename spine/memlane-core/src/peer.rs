//! Who the other end of a TCP connection is, by the kernel's word.
//!
//! A peer *claims* to hold the other end. It proves it by handing over a path
//! handle (`O_PATH`) of its socket, which only somebody who holds that socket
//! can open: the handle's inode must be the one that sock_diag names for the
//! mirrored 4-tuple in *our* network namespace. Such a handle keeps nothing
//! alive, so a proof lying unread in a queue never delays a FIN (a duplicate of
//! the socket itself would).

use crate::reason::Reason;
use memlane_sys::diag::DiagSocket;
use memlane_sys::fd::{Fd, stat};
use memlane_sys::sock::{self, Cred, TCP_ESTABLISHED, Tuple};
use memlane_sys::{Errno, diag, proc};

/// Who may be a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Policy {
    /// Whoever the kernel proves to be the other end.
    #[default]
    Any,
    /// Only processes of our own effective user.
    SameUid,
}

/// Checks the proof. `tuple` is the connection as *this* side sees it, `own_fd`
/// this side's socket.
pub fn prove(
    tuple: &Tuple,
    own_fd: i32,
    cred: &Cred,
    proof: &Fd,
    policy: Policy,
) -> Result<(), Reason> {
    welcome(cred, policy)?;
    let handle = stat(proof.raw()).map_err(|_| Reason::NOT_PROVEN)?;
    // Sockets live on one internal filesystem: the device number must be our socket's.
    let own = stat(own_fd).map_err(|_| Reason::INTERNAL)?;
    if handle.mode & libc::S_IFMT != libc::S_IFSOCK || handle.dev != own.dev {
        return Err(Reason::NOT_PROVEN);
    }
    let theirs = other_end(tuple, own_fd)?;
    if u64::from(theirs.inode) != handle.ino || theirs.inode == 0 {
        return Err(Reason::NOT_PROVEN);
    }
    Ok(())
}

/// May this user's process be a peer?
///
/// Users of another user namespace that have no number in this one all appear as the kernel's overflow uid. Under
/// `SameUid`, whoever appears so is a stranger, even if this process appears so itself.
///
/// # Errors
/// `PEER_REFUSED` if it may not.
pub fn welcome(cred: &Cred, policy: Policy) -> Result<(), Reason> {
    let same =
        || cred.uid == proc::euid() && (cred.uid != overflow_uid() || every_user_has_a_number());
    match policy {
        Policy::SameUid if !same() => Err(Reason::PEER_REFUSED),
        _ => Ok(()),
    }
}

/// Is this the initial user namespace, or one like it? Then nobody appears as the overflow uid but who has that number.
fn every_user_has_a_number() -> bool {
    let mut text = [0u8; 64];
    let n = memlane_sys::fd::read_file(c"/proc/self/uid_map", &mut text).unwrap_or(0);
    let mut words = text
        .get(..n)
        .unwrap_or(&[])
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty());
    // First number inside, first number outside, how many: user_namespaces(7).
    [b"0".as_slice(), b"0", b"4294967295"]
        .into_iter()
        .all(|wanted| words.next() == Some(wanted))
}

/// What the kernel calls users that have no number here.
fn overflow_uid() -> u32 {
    // DEFAULT_OVERFLOWUID of include/linux/highuid.h, unless the administrator has set another.
    const DEFAULT: u32 = 65534;
    let mut text = [0u8; 12];
    let n = memlane_sys::fd::read_file(c"/proc/sys/kernel/overflowuid", &mut text).unwrap_or(0);
    let digits = text.get(..n).unwrap_or(&[]).trim_ascii();
    core::str::from_utf8(digits)
        .ok()
        .and_then(|digits| digits.parse().ok())
        .unwrap_or(DEFAULT)
}

/// The socket at the other end of `tuple`, if it is established in our network
/// namespace. `own_fd` is this side's socket.
///
/// # Errors
/// `CLOSING` if either end is on its way down, `NOT_SAME_HOST` if only ours is
/// here, `NO_DEVICE` if there is no descriptor left to ask with.
pub fn other_end(tuple: &Tuple, own_fd: i32) -> Result<DiagSocket, Reason> {
    match look_up(&tuple.mirrored()) {
        Ok(theirs) if theirs.state == TCP_ESTABLISHED => Ok(theirs),
        Ok(_) => Err(Reason::CLOSING),
        Err(Errno(libc::EMFILE | libc::ENFILE)) => Err(Reason::NO_DEVICE),
        // A socket that was reset is found no more, but ours has heard of it.
        Err(_) if !is_established(own_fd) => Err(Reason::CLOSING),
        Err(_) => Err(Reason::NOT_SAME_HOST),
    }
}

fn is_established(fd: i32) -> bool {
    sock::tcp_counts(fd).is_ok_and(|counts| counts.state == TCP_ESTABLISHED)
}

/// A v4-mapped end is an IPv6 socket, and may be found only as one.
fn look_up(tuple: &Tuple) -> Result<DiagSocket, Errno> {
    if tuple.local.is_v4() && tuple.remote.is_v4() {
        diag::lookup_tcp(tuple, true).or_else(|_| diag::lookup_tcp(tuple, false))
    } else {
        diag::lookup_tcp(tuple, false)
    }
}
