//! A volume in memory, lent by its server to a client of the same host: how its descriptor goes from one to the other, and
//! how both learn that the loan is over.
//!
//! ```text
//!   server  offer ──► listens at an abstract name, which its answer to OPEN tells
//!   client  take  ──► connects; gets the descriptor, or takes it; maps it, or reads and writes it
//!           … the socket stays: a message of the server's, or its end at either side, ends the loan …
//! ```
//!
//! `docs/formats/volume-loan.md` has the message; `docs/decisions/0043-volumes-that-are-lent.md` has the reasons.

use memlane_sys::{Errno, fd::Fd, sock};
use memlane_wait::mutex::lock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::set_socket_passcred;
use rustix::net::{
    AddressFamily, RecvFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind,
    connect, listen, recv, shutdown, socket_with,
};
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd as _, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// "MLVOLUME".
const MAGIC: [u8; 8] = *b"MLVOLUME";
/// The version of a message that comes with the descriptor.
const SENT: u16 = 1;
/// The version of a message that tells the descriptor's number in the server's process.
const TOLD: u16 = 2;
/// Bytes of a message.
const LEN: usize = 24;
/// How long an offer stands.
const OFFER_STANDS: Duration = Duration::from_secs(5);
/// How long a client waits for the descriptor. The server hands it over at once, unless it is stopped.
const HANDED_OVER_WITHIN: Duration = Duration::from_secs(1);
/// How often a server looks whether an offer was withdrawn.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Names an offer: 64 random bits, never zero, which the server tells the client in its answer to OPEN.
pub(crate) type LoanToken = NonZeroU64;

fn address(token: LoanToken) -> io::Result<SocketAddrUnix> {
    let name = format!("memlane-volume-{token:016x}");
    Ok(SocketAddrUnix::new_abstract_name(name.as_bytes())?)
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    Ok(socket_with(family, kind, flags, None)?)
}

/// Anybody may connect to an abstract name, and anybody may take one that is free. So both sides ask the kernel who the
/// other is.
fn user_of(socket: &OwnedFd) -> Option<u32> {
    sock::peer_uid(socket.as_raw_fd()).ok()
}

fn io_error(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.0)
}

fn owned(file: Fd) -> OwnedFd {
    // SAFETY: it is open and was owned, and is given away.
    unsafe { OwnedFd::from_raw_fd(file.into_raw()) }
}

/// How a client gets the descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Handover {
    /// It comes with the message.
    Sent,
    /// The client takes it out of the server's process. The kernel allows that to a process that may trace the server. Such a
    /// process could change the server's memory, and so the volume, without any loan.
    Taken,
}

/// Does this process lend something to this user? To its own, and to root.
pub(crate) fn may_borrow(uid: u32) -> bool {
    uid == 0 || uid == memlane_sys::proc::euid()
}

/// May this user lend something to this process? Root uses the volumes of every user.
fn may_lend(uid: u32) -> bool {
    may_borrow(uid) || memlane_sys::proc::euid() == 0
}

/// Waits until `socket` is readable. `false`: it is not, within `limit`.
fn readable(socket: impl AsFd, limit: Duration) -> bool {
    let limit = Timespec::try_from(limit).ok();
    let mut fds = [PollFd::new(&socket, PollFlags::IN)];
    poll(&mut fds, limit.as_ref()).is_ok_and(|n| n > 0)
}

/// What a server tells a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Message {
    /// The volume's bytes.
    size: u64,
    /// The descriptor's number in the server's process, if it does not come with the message.
    number: Option<u32>,
}

impl Message {
    fn encode(self) -> [u8; LEN] {
        let version = self.number.map_or(SENT, |_| TOLD);
        let mut bytes = [0; LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&version.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.number.unwrap_or(0).to_le_bytes());
        bytes[16..].copy_from_slice(&self.size.to_le_bytes());
        bytes
    }

    /// `None`: it is none of these versions' messages.
    fn decode(bytes: &[u8]) -> Option<Message> {
        let version = u16::from_le_bytes(bytes.get(8..10)?.try_into().ok()?);
        let number = u32::from_le_bytes(bytes.get(12..16)?.try_into().ok()?);
        let message = Message {
            size: u64::from_le_bytes(bytes.get(16..LEN)?.try_into().ok()?),
            number: (version == TOLD).then_some(number),
        };
        // Whatever means nothing must be zero: nobody can put a meaning there without a new version.
        (bytes == message.encode()).then_some(message)
    }
}

// ---- the server's side ----

/// A volume that is offered to one client, or lent to it.
#[derive(Debug)]
pub(crate) struct Offer {
    token: LoanToken,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    /// Nobody has come yet for this descriptor.
    Stands(Arc<OwnedFd>),
    /// The client has it, or is about to take it, as long as it keeps the other end of this socket.
    Taken {
        client: OwnedFd,
        /// If the client takes it itself: its number means this descriptor until the loan is over.
        _kept: Option<Arc<OwnedFd>>,
    },
    /// It was never taken, or given back.
    Over,
}

impl Offer {
    /// Offers `volume`, of `size` bytes, to the first that comes within five seconds and may have it.
    ///
    /// # Errors
    /// No random numbers, descriptors or threads are left.
    pub(crate) fn make(volume: OwnedFd, size: u64, handover: Handover) -> io::Result<Arc<Offer>> {
        let random = memlane_sys::proc::random_u64();
        let token = NonZeroU64::new(random.map_err(io_error)?).unwrap_or(NonZeroU64::MIN);
        let door = socket()?;
        bind(&door, &address(token)?)?;
        listen(&door, 1)?;
        let offer = Arc::new(Offer {
            token,
            state: Mutex::new(State::Stands(Arc::new(volume))),
        });
        let offered = Arc::clone(&offer);
        let thread = std::thread::Builder::new().name("memlane-loan".to_owned());
        thread.spawn(move || offered.wait_for_the_client(&door, size, handover))?;
        Ok(offer)
    }

    /// What the client is told.
    pub(crate) fn token(&self) -> LoanToken {
        self.token
    }

    fn wait_for_the_client(&self, door: &OwnedFd, size: u64, handover: Handover) {
        let until = Instant::now() + OFFER_STANDS;
        while self.stands() && Instant::now() < until {
            if !readable(door, LOOK_EVERY) {
                continue;
            }
            let Ok(client) = accept_with(door, SocketFlags::CLOEXEC) else {
                // No descriptors, say: the client does without.
                break;
            };
            if user_of(&client).is_some_and(may_borrow) && self.hand_over(client, size, handover) {
                return;
            }
        }
        self.end();
    }

    fn stands(&self) -> bool {
        matches!(*lock(&self.state), State::Stands(_))
    }

    /// Gives the client the volume, or tells it where to take it, unless the offer was withdrawn meanwhile.
    fn hand_over(&self, client: OwnedFd, size: u64, handover: Handover) -> bool {
        let mut state = lock(&self.state);
        let State::Stands(volume) = &*state else {
            return false;
        };
        let descriptor = [volume.as_raw_fd()];
        let (sent, number, kept) = match handover {
            Handover::Sent => (&descriptor[..], None, None),
            Handover::Taken => (
                &[][..],
                u32::try_from(descriptor[0]).ok(),
                Some(Arc::clone(volume)),
            ),
        };
        let message = Message { size, number }.encode();
        let told = sock::send_to_peer(client.as_raw_fd(), &message, sent).is_ok();
        if told {
            *state = State::Taken {
                client,
                _kept: kept,
            };
        }
        told
    }

    /// Can the client still read or write the volume by itself?
    pub(crate) fn is_held(&self) -> bool {
        let mut state = lock(&self.state);
        let State::Taken { client, .. } = &*state else {
            return false;
        };
        // The client says nothing: there is something to receive only when its end is closed.
        if !readable(client, Duration::ZERO) {
            return true;
        }
        *state = State::Over;
        false
    }

    /// Withdraws the offer, or tells the client to give the volume back.
    pub(crate) fn end(&self) {
        let mut state = lock(&self.state);
        match &*state {
            State::Stands(_) => *state = State::Over,
            State::Taken { client, .. } => {
                // If there is no room for it, the client has not read what was sent before.
                let _ = sock::send_to_peer(client.as_raw_fd(), b"!", &[]);
            }
            State::Over => {}
        }
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        self.end();
    }
}

// ---- the client's side ----

/// Takes the descriptor of that number out of the process that listens at the other end of `socket`.
///
/// `teller` is the process that sent the number, by the kernel's word. It has to be the one that listens: a hostile server could
/// otherwise name a descriptor of another process, which this one may trace and the server may not.
fn taken_out(socket: &OwnedFd, teller: i32, number: u32) -> memlane_sys::Result<Fd> {
    let listens = sock::peer_cred(socket.as_raw_fd())?.pid;
    if teller == 0 || teller != listens {
        return Err(Errno(libc::EPERM));
    }
    let number = i32::try_from(number).map_err(|_| Errno(libc::EBADF))?;
    let server = sock::peer_pidfd(socket.as_raw_fd())?;
    memlane_sys::proc::descriptor_of(server.raw(), number)
}

/// What holds a client and what it has borrowed together. Dropping it gives the volume back.
#[derive(Debug)]
pub(crate) struct Borrowed {
    socket: OwnedFd,
}

impl Borrowed {
    /// Takes what was offered: its descriptor, and its size in bytes.
    ///
    /// # Errors
    /// Nobody offers it, a stranger does, what came is no volume, or this process may not trace the server's.
    pub(crate) fn take(token: LoanToken) -> io::Result<(Borrowed, OwnedFd, u64)> {
        let nonsense = || io::Error::from(io::ErrorKind::InvalidData);
        let socket = socket()?;
        // The kernel says who has sent a message.
        set_socket_passcred(&socket, true)?;
        connect(&socket, &address(token)?)?;
        if !user_of(&socket).is_some_and(may_lend) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        if !readable(&socket, HANDED_OVER_WITHIN) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut bytes = [0; LEN];
        let received = sock::recv_with_fds(socket.as_raw_fd(), &mut bytes).map_err(io_error)?;
        let sent = received.fds.into_iter().flatten().next();
        let len = received.len.ok_or_else(nonsense)?;
        let message = Message::decode(&bytes[..len]).ok_or_else(nonsense)?;
        let volume = match message.number {
            None => sent.ok_or_else(nonsense)?,
            Some(number) => taken_out(&socket, received.cred.pid, number).map_err(io_error)?,
        };
        Ok((Borrowed { socket }, owned(volume), message.size))
    }

    /// Does the server want it back, or has it ended?
    pub(crate) fn is_over(&self) -> bool {
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        let peeked = recv(&self.socket, &mut [0; 1][..], flags);
        !matches!(
            peeked,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR)
        )
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        // A child of this process may keep the descriptor, but does not use the memory.
        let _ = shutdown(&self.socket, Shutdown::Both);
    }
}

impl AsFd for Borrowed {
    /// Readable when the loan is over.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memlane_fixtures::golden;
    use memlane_sys::mem;

    const SIZE: u64 = 8192;

    /// Held by the test that forks, whose child has a copy of each descriptor for a while, and by tests that watch a
    /// descriptor's other end close.
    static COPIES: std::sync::Mutex<()> = std::sync::Mutex::new(());

    /// A memory file of [`SIZE`] bytes.
    fn volume() -> OwnedFd {
        let file = mem::memfd(c"volume", 8192, false).expect("a file");
        mem::add_seals(file.raw(), mem::SEALS_FIXED).expect("sealed");
        owned(file)
    }

    /// What a client makes of a server that sends these bytes and, perhaps, a descriptor.
    fn taken_from(bytes: &[u8], volume: Option<OwnedFd>) -> io::ErrorKind {
        let token = NonZeroU64::new(memlane_sys::proc::random_u64().expect("a number"));
        let token = token.expect("not zero");
        let door = socket().expect("a socket");
        bind(&door, &address(token).expect("a name")).expect("bound");
        listen(&door, 1).expect("it listens");
        std::thread::scope(|scope| {
            let client = scope.spawn(move || Borrowed::take(token).map(|_| ()));
            assert!(readable(&door, OFFER_STANDS));
            let client_end = accept_with(&door, SocketFlags::CLOEXEC).expect("a client");
            let descriptors: Vec<i32> = volume.iter().map(AsRawFd::as_raw_fd).collect();
            sock::send_to_peer(client_end.as_raw_fd(), bytes, &descriptors).expect("sent");
            let error = client.join().expect("no panic").expect_err("refused");
            error.kind()
        })
    }

    #[test]
    fn what_is_offered_is_had_once_and_held_until_it_is_dropped() {
        for handover in [Handover::Sent, Handover::Taken] {
            let offered = volume();
            let inode = |file: &OwnedFd| rustix::fs::fstat(file).expect("a file").st_ino;
            let which = inode(&offered);
            let offer = Offer::make(offered, SIZE, handover).expect("an offer");
            assert!(!offer.is_held(), "nobody has it yet");
            let (borrowed, file, size) = Borrowed::take(offer.token()).expect("taken");
            assert_eq!((size, inode(&file)), (SIZE, which), "{handover:?}");
            assert!(offer.is_held() && !borrowed.is_over());
            assert!(Borrowed::take(offer.token()).is_err(), "it is had once");
            drop(borrowed);
            assert!(!offer.is_held());
        }
    }

    #[test]
    fn what_a_client_takes_itself_is_kept_open_until_the_loan_is_over() {
        let _no_copies = lock(&COPIES);
        let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
        let offer = Offer::make(writer, SIZE, Handover::Taken).expect("an offer");
        let (borrowed, file, _) = Borrowed::take(offer.token()).expect("taken");
        drop(file);
        let has_ended = || readable(&reader, Duration::ZERO);
        assert!(offer.is_held() && !has_ended(), "its number means it still");
        drop(borrowed);
        assert!(!offer.is_held() && has_ended());
    }

    #[test]
    fn the_descriptor_of_a_process_that_has_not_told_its_number_is_not_taken() {
        let _copies = lock(&COPIES);
        let token = NonZeroU64::new(memlane_sys::proc::random_u64().expect("a number"));
        let token = token.expect("not zero");
        let door = socket().expect("a socket");
        bind(&door, &address(token).expect("a name")).expect("bound");
        listen(&door, 1).expect("it listens");
        let volume = volume();
        let number = u32::try_from(volume.as_raw_fd()).ok();
        let message = Message { size: SIZE, number }.encode();
        // SAFETY: the child makes system calls only, allocates nothing, and ends without running anything of its parent's.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let came = readable(&door, OFFER_STANDS);
            let client = accept_with(&door, SocketFlags::CLOEXEC);
            let told = client
                .is_ok_and(|client| sock::send_to_peer(client.as_raw_fd(), &message, &[]).is_ok());
            // SAFETY: as above.
            unsafe { libc::_exit(i32::from(!came || !told)) };
        }
        let refused = Borrowed::take(token).map(|_| ()).expect_err("refused");
        let mut status = 0;
        // SAFETY: `status` is alive.
        let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!((ended, status), (child, 0), "it has told the number");
        assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
    }

    #[test]
    fn a_server_that_wants_it_back_says_so_and_waits_for_the_client() {
        let offer = Offer::make(volume(), SIZE, Handover::Sent).expect("an offer");
        let (borrowed, _, _) = Borrowed::take(offer.token()).expect("taken");
        offer.end();
        assert!(borrowed.is_over());
        assert!(offer.is_held(), "the client has not given it back");
        drop(borrowed);
        assert!(!offer.is_held());
    }

    #[test]
    fn a_client_learns_that_its_server_is_gone() {
        let _no_copies = lock(&COPIES);
        let offer = Offer::make(volume(), SIZE, Handover::Sent).expect("an offer");
        let (borrowed, _, _) = Borrowed::take(offer.token()).expect("taken");
        // As if its process had ended: its end of the socket is closed.
        *lock(&offer.state) = State::Over;
        assert!(borrowed.is_over());
    }

    #[test]
    fn an_offer_that_was_withdrawn_is_not_handed_over_and_keeps_nothing_open() {
        let _no_copies = lock(&COPIES);
        let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
        let offer = Offer::make(writer, SIZE, Handover::Sent).expect("an offer");
        let token = offer.token();
        offer.end();
        // The end of a pipe that nobody can write any more.
        assert_eq!(rustix::io::read(&reader, &mut [0; 1][..]), Ok(0));
        assert!(!offer.is_held());
        let refused = Borrowed::take(token).map(|_| ());
        assert!(refused.is_err());
    }

    #[test]
    fn the_message_is_as_the_page_shows_it() {
        let page = golden::page("volume-loan");
        for (what, number) in [
            ("a volume of 32 MiB is lent", None),
            ("a volume of 32 MiB may be taken as descriptor 17", Some(17)),
        ] {
            let message = Message {
                size: 32 << 20,
                number,
            };
            let dump = golden::dump(what, &message.encode());
            assert!(page.contains(&dump), "not in docs/formats:\n{dump}");
            assert_eq!(Message::decode(&message.encode()), Some(message));
        }
    }

    #[test]
    fn what_is_no_message_of_this_version_is_refused() {
        let right = Message {
            size: SIZE,
            number: None,
        };
        let right = right.encode();
        let mut other_version = right;
        other_version[8] = 3;
        let mut with_a_meaning = right;
        with_a_meaning[12] = 1;
        let longer = [&right[..], &[0]].concat();
        let wrong = [
            &other_version[..],
            &with_a_meaning,
            &longer,
            &right[..23],
            b"?",
        ];
        for bytes in wrong {
            let kind = taken_from(bytes, Some(volume()));
            assert_eq!(kind, io::ErrorKind::InvalidData, "{bytes:?}");
        }
        assert_eq!(taken_from(&right, None), io::ErrorKind::InvalidData);
        // These are larger than any descriptor of a process.
        for number in [1 << 30, u32::MAX] {
            let told = Message {
                size: SIZE,
                number: Some(number),
            };
            let error = taken_from(&told.encode(), Some(volume()));
            assert_eq!(error, io::Error::from_raw_os_error(libc::EBADF).kind());
        }
    }
}
