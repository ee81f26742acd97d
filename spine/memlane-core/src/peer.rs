//! Who the other end of a TCP connection is, by the kernel's word.
//!
//! A peer *claims* to hold the other end. It proves it by handing over a path
//! handle (`O_PATH`) of its socket, which only somebody who holds that socket
//! can open: the handle's inode must be the one that sock_diag names for the
//! mirrored 4-tuple in *our* network namespace. Such a handle keeps nothing
//! alive, so a proof lying unread in a queue never delays a FIN (a duplicate of
//! the socket itself would).

use crate::reason::Reason;
use memlane_sys::fd::{Fd, stat};
use memlane_sys::sock::{Cred, TCP_ESTABLISHED, Tuple};
use memlane_sys::{diag, proc};

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
    if policy == Policy::SameUid && cred.uid != proc::euid() {
        return Err(Reason::PEER_REFUSED);
    }
    let handle = stat(proof.raw()).map_err(|_| Reason::NOT_PROVEN)?;
    // Sockets live on one internal filesystem: the device number must be our socket's.
    let own = stat(own_fd).map_err(|_| Reason::INTERNAL)?;
    if handle.mode & libc::S_IFMT != libc::S_IFSOCK || handle.dev != own.dev {
        return Err(Reason::NOT_PROVEN);
    }
    let theirs = look_up(&tuple.mirrored()).ok_or(Reason::NOT_SAME_HOST)?;
    if theirs.state != TCP_ESTABLISHED {
        return Err(Reason::CLOSING);
    }
    if u64::from(theirs.inode) != handle.ino || theirs.inode == 0 {
        return Err(Reason::NOT_PROVEN);
    }
    Ok(())
}

/// A v4-mapped end is an IPv6 socket, and may be found only as one.
fn look_up(tuple: &Tuple) -> Option<diag::DiagSocket> {
    if tuple.local.is_v4() && tuple.remote.is_v4() {
        diag::lookup_tcp(tuple, true)
            .or_else(|_| diag::lookup_tcp(tuple, false))
            .ok()
    } else {
        diag::lookup_tcp(tuple, false).ok()
    }
}
