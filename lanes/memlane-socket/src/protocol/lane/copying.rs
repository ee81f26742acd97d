//! Mode `copy`: the sender puts its bytes into a buffer of its own, and a [`Device`] moves them into the receiver's
//! DMB. Devices whose ends cannot map the same memory (ISM) work like that.
//!
//! Only payload goes this way. The words of a DMB stay in memory that both sides have mapped, since
//! [`memlane_core::ring`] needs a fence between them.

use crate::config::Mode;
use crate::faults::{self, Step};
use crate::iov::{self, Cursor};
use crate::protocol::wire;
use crate::state::conn::Conn;
use crate::state::guard::TxGuard;
use crate::state::process;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use memlane_core::access::SharedBytes;
use memlane_core::device::{Device, DeviceError, Loopback};
use memlane_core::reason::Reason;
use memlane_core::ring::Stretch;
use memlane_core::stores::Stores;
use memlane_core::token::{Grant, Rights, Token};
use memlane_sys::mem;

/// The device that moves the bytes. No other line here says which one it is.
type Mover = Loopback<1>;

/// The state of a sender in mode `copy`. It lies in front of its buffer, in one private mapping. Guarded by `tx_lock`.
#[derive(Debug)]
pub struct Outgoing {
    device: Mover,
    token: Token,
    /// Address and size of the ring that the device knows by this token.
    known: Option<(usize, usize)>,
    /// Size of the buffer, in bytes.
    size: usize,
    /// Position of the next bytes in the buffer. It goes round, as in SMC's `sndbuf`.
    at: usize,
}

/// Offset of the buffer in the mapping, in bytes.
const HEAD: usize = mem::PAGE;
const _: () = assert!(size_of::<Outgoing>() <= HEAD);

/// The features that this process announces in a handshake.
pub fn features() -> u8 {
    let wants = match process::config().mode {
        Mode::NoCopy => 0,
        Mode::Copy => wire::WANTS_COPY,
    };
    let can = match Mover::empty().caps().write {
        true => wire::CAN_COPY,
        false => 0,
    };
    wire::OWN_RINGS | wire::TAKES_MAIL | can | wants
}

/// Does this side copy what it sends, and does the peer? `peers` are the features that the peer has announced.
///
/// If either side wants it, both directions copy. A peer that does not know the mode does not copy.
pub fn agreed(peers: u8) -> [bool; 2] {
    agreed_between(process::config().mode, peers)
}

fn agreed_between(own: Mode, peers: u8) -> [bool; 2] {
    let wanted = own == Mode::Copy || peers & wire::WANTS_COPY != 0;
    [wanted, wanted && peers & wire::CAN_COPY != 0]
}

/// Makes this connection's sender copy, from its first byte on the memory lane on. `token` names the peer's DMB.
pub fn start(conn: &Conn, token: u64) -> Result<(), Reason> {
    let token = Token::from_bits(token).ok_or(Reason::PEER_MISBEHAVED)?;
    stop(conn);
    let size = process::config()
        .ring
        .min(conn.tx_size.load(Ordering::Relaxed)) as usize;
    let base = mem::map_anon(HEAD + size, false).map_err(|_| Reason::MEMORY)?;
    let own = base.cast::<Outgoing>();
    let fresh = Outgoing {
        device: Mover::empty(),
        token,
        known: None,
        size,
        at: 0,
    };
    // SAFETY: page-aligned, of at least a page, and no other code knows of it yet.
    unsafe { own.write(fresh) };
    conn.tx_own.store(own.as_ptr().cast(), Ordering::Release);
    faults::at(Step::BufferMade);
    Ok(())
}

/// Frees the sender's buffer, when nobody sends any more.
pub fn stop(conn: &Conn) {
    let own = conn.tx_own.swap(core::ptr::null_mut(), Ordering::AcqRel);
    if let Some(own) = NonNull::new(own.cast::<Outgoing>()) {
        // SAFETY: `start` made the whole mapping, and this was the only pointer to it; the device inside holds nothing
        // that would have to be dropped (a view of the peer's ring).
        unsafe { mem::unmap(own.cast(), HEAD + own.as_ref().size) };
    }
}

/// The sender's own buffer, if this connection has one.
#[inline(always)]
fn outgoing<'a>(conn: &Conn, _held: &'a mut TxGuard<'_>) -> Option<&'a mut Outgoing> {
    // SAFETY: null, or what `start` made; `tx_lock` is held, so nobody else uses it, and it goes only after the last
    // sender.
    unsafe {
        conn.tx_own
            .load(Ordering::Relaxed)
            .cast::<Outgoing>()
            .as_mut()
    }
}

impl Outgoing {
    /// A piece of the buffer, without a wrap, for up to `want` bytes.
    fn piece(&mut self, want: usize) -> SharedBytes {
        let len = want.min(self.size - self.at);
        let base = core::ptr::from_mut(self).cast::<u8>();
        // SAFETY: `at + len` is within the buffer, which lies HEAD bytes behind this in the same mapping.
        unsafe { SharedBytes::new(NonNull::new_unchecked(base.add(HEAD + self.at)), len) }
    }

    /// Makes the device move the first `n` bytes of `piece` to position `at` of the ring.
    fn take(
        &mut self,
        piece: &SharedBytes,
        n: usize,
        ring: &SharedBytes,
        at: usize,
    ) -> Result<(), DeviceError> {
        self.tell(ring)?;
        // SAFETY: a piece of our own buffer, in private memory: nobody writes there while `tx_lock` is held.
        let bytes = unsafe { core::slice::from_raw_parts(piece.as_ptr(), n) };
        self.device.write(self.token, at, bytes, None)?;
        iov::copied(n);
        self.at = (self.at + n) % self.size;
        Ok(())
    }

    /// Makes the peer's ring known to the device, unless it is.
    #[inline]
    fn tell(&mut self, ring: &SharedBytes) -> Result<(), DeviceError> {
        let wanted = Some((ring.as_ptr() as usize, ring.len()));
        if self.known == wanted {
            return Ok(());
        }
        let grant = Grant {
            token: self.token,
            offset: 0,
            len: ring.len(),
            rights: Rights::Write,
        };
        self.device = Mover::empty();
        self.known = None;
        self.device.know(grant, Some(*ring))?;
        self.known = wanted;
        Ok(())
    }
}

/// Puts what `stretches` have room for into the ring, through our own buffer. Returns the number of bytes that are
/// there; it is smaller than the room only if the device has refused.
#[inline(never)]
pub(super) fn put(
    conn: &Conn,
    held: &mut TxGuard<'_>,
    cursor: &mut Cursor<'_>,
    ring: &SharedBytes,
    stretches: [Stretch; 2],
) -> usize {
    let Some(own) = outgoing(conn, held) else {
        return 0;
    };
    let mut sum = 0;
    for stretch in stretches {
        let mut done = 0;
        while done < stretch.len {
            let left = stretch.len - done;
            let piece = own.piece(faults::half(Step::HalfCopied, left).max(1));
            let before = cursor.clone();
            let all = Stretch {
                at: 0,
                len: piece.len(),
            };
            // SAFETY: the program's buffers, as it promised its call.
            unsafe { cursor.drain_to(&piece, all, Stores::Cached) };
            faults::at(Step::Buffered);
            if own
                .take(&piece, piece.len(), ring, stretch.at + done)
                .is_err()
            {
                *cursor = before;
                return sum;
            }
            faults::at(Step::DeviceWrote);
            if piece.len() < left {
                faults::at(Step::HalfCopied);
            }
            done += piece.len();
            sum += piece.len();
        }
    }
    sum
}

/// Room for up to `want` bytes in our own buffer; `None`: this connection does not copy.
pub(super) fn place(conn: &Conn, held: &mut TxGuard<'_>, want: usize) -> Option<SharedBytes> {
    outgoing(conn, held).map(|own| own.piece(want))
}

/// Makes the device move the first `n` bytes of such room to position `at` of the ring. `false`: it has refused.
pub(super) fn take(
    conn: &Conn,
    held: &mut TxGuard<'_>,
    place: &SharedBytes,
    n: usize,
    at: usize,
) -> bool {
    let Some(lane) = held.lane() else {
        return false;
    };
    outgoing(conn, held).is_some_and(|own| own.take(place, n, &lane.ring, at).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks::calls::io;
    use crate::iov::count::COPIED;
    use crate::protocol::lane::looped::{Looped, looped};
    use crate::protocol::lane::place::{self, Reserved};
    use crate::state::conn::TxMode;
    use crate::state::guard::lock_tx;
    use std::io::Read as _;

    const N: usize = 100_000;

    fn bytes() -> Vec<u8> {
        (0..N).map(|i| (i * 7 + i / 251).to_le_bytes()[0]).collect()
    }

    fn copying() -> Looped {
        let l = looped();
        start(&l.conn, 7).unwrap();
        {
            // The ends of this buffer and of the ring come at different bytes.
            let mut held = lock_tx(&l.conn).unwrap();
            let own = outgoing(&l.conn, &mut held).unwrap();
            own.at = own.size - 70_001;
        }
        l
    }

    fn receive(l: &Looped, bytes: usize) -> Vec<u8> {
        let mut got = vec![0u8; bytes];
        let n = io::recv(l.fd, got.as_mut_ptr().cast(), bytes, libc::MSG_DONTWAIT);
        assert_eq!(n, bytes.cast_signed());
        got
    }

    fn over(l: Looped) {
        process::forget(l.fd);
        drop(l.conn);
    }

    #[test]
    fn a_byte_is_copied_twice_into_the_ring_and_once_out_of_it() {
        let (l, sent) = (copying(), bytes());
        // Five times, so that messages also cross the ends of the ring and of our own buffer.
        for _ in 0..5 {
            COPIED.set(0);
            assert_eq!(io::send(l.fd, sent.as_ptr().cast(), N, 0), N.cast_signed());
            assert_eq!(COPIED.replace(0), 2 * N, "send");
            assert_eq!(receive(&l, N), sent);
            assert_eq!(COPIED.get(), N, "receive");
        }
        assert_eq!(memlane_sys::sock::tcp_counts(l.fd).unwrap().written, 0);
        over(l);
    }

    #[test]
    fn a_place_lies_in_our_own_buffer_and_what_is_committed_arrives() {
        let (l, sent) = (copying(), bytes());
        let mut at = 0;
        while at < N {
            let Ok(Reserved::Ring(slot)) = place::reserve(&l.conn, N - at, 0) else {
                panic!("no place at {at}");
            };
            assert!(!slot.is_in_ring());
            let n = slot.bytes().len().min(30_000);
            // SAFETY: `n` bytes are readable.
            assert!(unsafe { slot.bytes().copy_in(0, sent[at..].as_ptr(), n) });
            slot.publish(n);
            assert_eq!(receive(&l, n), &sent[at..at + n]);
            at += n;
        }
        over(l);
    }

    #[test]
    fn either_side_s_wish_counts_for_both_and_an_older_peer_does_not_copy() {
        let older = wire::OWN_RINGS;
        let can = older | wire::CAN_COPY;
        let wants = can | wire::WANTS_COPY;
        for (own, peers, agreed) in [
            (Mode::NoCopy, older, [false, false]),
            (Mode::NoCopy, can, [false, false]),
            (Mode::NoCopy, wants, [true, true]),
            (Mode::Copy, older, [true, false]),
            (Mode::Copy, can, [true, true]),
            (Mode::Copy, wants, [true, true]),
        ] {
            assert_eq!(agreed_between(own, peers), agreed, "{own:?} {peers}");
        }
    }

    /// A device that refuses cannot occur today; no byte may be lost even so.
    #[test]
    fn what_a_device_refuses_goes_by_tcp() {
        let (mut l, sent) = (copying(), bytes());
        assert_eq!(io::send(l.fd, sent.as_ptr().cast(), 10, 0), 10);
        {
            let mut held = lock_tx(&l.conn).unwrap();
            outgoing(&l.conn, &mut held).unwrap().device = Mover::empty();
        }
        assert_eq!(io::send(l.fd, sent.as_ptr().cast(), N, 0), N.cast_signed());
        assert_eq!(l.conn.tx_mode(), TxMode::Ended);
        assert_eq!(receive(&l, 10), &sent[..10]);
        let mut rest = vec![0; N];
        l.ends[1].read_exact(&mut rest).unwrap();
        assert_eq!(rest, sent);
        over(l);
    }
}
