//! TAP devices that one process lends to another over a unix socket.
//!
//! A process that has two devices copies each frame within its own CPU's cache. Two processes with a device each move every
//! frame from one CPU's cache to the other's. So one of them may lend its device: the [lender](Lender) opens it and keeps
//! it, the [borrower](borrow) reads and writes it. The loan lasts until either closes the socket.
//! `docs/formats/device-loan.md` has the message.
//!
//! A lender trusts its borrower with the device: whoever holds a descriptor can keep it. A borrower need not trust its
//! lender: it takes nothing but a TAP device, and since Linux 6.4 it never waits in a call for it.

use super::kernel::Interface;
use super::{
    End, EndCounts, EndError, LoanError, More, OpenError, Placed, Sent, Sleep, Taker, Taking, tap,
};
use memlane_packet::engine::chain::Frame;
use memlane_packet::error::Detach;
use memlane_packet::io::door::{Door, knock};
use memlane_packet::io::socket::{errno, receive_bytes, send_bytes};
use memlane_packet::layout::QUEUES_MAX;
use memlane_packet::{AttachError, Offloads};
use rustix::event::{PollFd, PollFlags};
use rustix::net::{RecvFlags, recv};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// "MLDEVICE".
const MAGIC: [u8; 8] = *b"MLDEVICE";
const VERSION: u16 = 1;
/// Bytes of the message.
const LEN: usize = 16;
/// The lender's message comes at once.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Receives after which a borrower looks whether the loan is over, should it never sleep. A look is a system call, as each
/// receive is.
const LOOK_AFTER: u8 = 64;

/// What a lender says to whoever connects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answer {
    /// The device comes with this message. It has this many queues, and there is a descriptor for each.
    Lent(u16),
    /// Another process has the device.
    Taken,
}

impl Answer {
    fn encode(self) -> [u8; LEN] {
        let (kind, queues) = match self {
            Answer::Lent(queues) => (1_u16, queues),
            Answer::Taken => (2, 0),
        };
        let mut out = [0; LEN];
        out[..8].copy_from_slice(&MAGIC);
        out[8..10].copy_from_slice(&VERSION.to_le_bytes());
        out[10..12].copy_from_slice(&kind.to_le_bytes());
        out[12..14].copy_from_slice(&queues.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8]) -> Result<Answer, LoanError> {
        let two = |at: usize| Some(u16::from_le_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]));
        if !bytes.starts_with(&MAGIC) {
            return Err(LoanError::NoLender);
        }
        if let Some(version) = two(8).filter(|version| *version != VERSION) {
            let (theirs, ours) = (version, VERSION);
            return Err(LoanError::Version { theirs, ours });
        }
        let answer = match (two(10), two(12)) {
            (Some(1), Some(queues)) if (1..=QUEUES_MAX).contains(&queues) => Answer::Lent(queues),
            (Some(2), _) => Answer::Taken,
            _ => return Err(LoanError::Malformed),
        };
        // Whatever means nothing must be zero: nobody can put a meaning there without a new version.
        match answer.encode() == *bytes {
            true => Ok(answer),
            false => Err(LoanError::Malformed),
        }
    }
}

/// Lends a device at a socket, to one process at a time.
#[derive(Debug)]
pub struct Lender {
    door: Door,
    queues: Vec<Interface>,
}

impl Lender {
    /// Listens at a path or at `@name` for whoever borrows these queues of one TAP device. The name is removed when the
    /// lender is dropped.
    ///
    /// # Errors
    /// The socket's. [`AttachError::Config`]: there is no queue.
    pub fn open(at: &str, queues: Vec<Interface>) -> Result<Lender, AttachError> {
        if queues.is_empty() {
            return Err(AttachError::Config("no queue to lend"));
        }
        Ok(Lender {
            door: Door::open(at)?,
            queues,
        })
    }

    /// The device, which shows an error to `poll` when it has been removed.
    pub fn device(&self) -> BorrowedFd<'_> {
        // There is one: `open` has looked.
        self.queues[0].fd().as_fd()
    }

    /// Waits for somebody until `end`, and lends the device.
    ///
    /// # Errors
    /// [`AttachError::Timeout`], or what became of who came.
    pub fn lend(&self, end: Instant) -> Result<Loan, AttachError> {
        let socket = self.door.come_in(end)?;
        let queues: Vec<BorrowedFd<'_>> = self.queues.iter().map(|one| one.fd().as_fd()).collect();
        let count = u16::try_from(queues.len()).unwrap_or(0);
        send_bytes(&socket, &Answer::Lent(count).encode(), &queues)?;
        Ok(Loan(Arc::new(socket)))
    }

    /// Waits for somebody until `end`, and answers that another has the device.
    ///
    /// # Errors
    /// [`AttachError::Timeout`], or what became of who came.
    pub fn refuse(&self, end: Instant) -> Result<(), AttachError> {
        send_bytes(&self.door.come_in(end)?, &Answer::Taken.encode(), &[])
    }
}

impl AsFd for Lender {
    /// Readable when somebody comes.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.door.as_fd()
    }
}

/// What holds lender and borrower together. Dropping it ends the loan.
#[derive(Debug)]
pub struct Loan(Arc<OwnedFd>);

impl Loan {
    /// Has the other side ended it?
    pub fn ended(&self) -> Option<Detach> {
        look(&self.0)
    }
}

impl AsFd for Loan {
    /// Readable when the other side ends it.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Is the other side gone? Both are silent once the device is lent.
fn look(socket: &OwnedFd) -> Option<Detach> {
    let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    match recv(socket, &mut [0; 1][..], flags) {
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => None,
        Err(rustix::io::Errno::CONNRESET) | Ok(_) => Some(Detach::PeerGone),
        Err(error) => Some(Detach::Socket(errno(error))),
    }
}

/// Borrows the device that a [`Lender`] has at `at`: all its queues, of which there must be `queues`.
///
/// # Errors
/// Nobody lends one there, another has it, or it is no TAP device that can be used.
pub fn borrow(at: &str, queues: u16) -> Result<(Loan, Vec<Borrowed>), OpenError> {
    let socket = Arc::new(knock(at)?);
    let mut buffer = [0; LEN + 1];
    let end = Instant::now() + ANSWER_WITHIN;
    let (n, descriptors) = receive_bytes(&socket, end, &mut buffer)?;
    let Answer::Lent(count) = Answer::decode(&buffer[..n])? else {
        return Err(LoanError::Taken.into());
    };
    if descriptors.len() != usize::from(count) {
        return Err(LoanError::Malformed.into());
    }
    if count != queues {
        return Err(LoanError::Queues(count).into());
    }
    let mut found = Vec::new();
    for (n, fd) in descriptors.into_iter().enumerate() {
        found.push(Borrowed {
            interface: tap::adopt(fd, format!("lent:{at}/{n}")).map_err(unusable)?,
            line: Arc::clone(&socket),
            receives: 0,
        });
    }
    Ok((Loan(socket), found))
}

fn unusable(error: tap::Unusable) -> LoanError {
    LoanError::Unusable(match error {
        tap::Unusable::NoTap => "what was lent is no TAP device",
        tap::Unusable::NoHeader => "the device that was lent has frames without vnet headers",
    })
}

/// One queue of a device that is borrowed. The [`Loan`] stays with its owner, who drops it last.
#[derive(Debug)]
pub struct Borrowed {
    interface: Interface,
    /// The loan's socket.
    line: Arc<OwnedFd>,
    /// Since the last look at it.
    receives: u8,
}

impl Borrowed {
    /// The end of the loan is an error, as the end of any link.
    fn look(&mut self) -> Result<(), EndError> {
        self.receives = 0;
        look(&self.line).map_or(Ok(()), |why| Err(why.into()))
    }
}

impl End for Borrowed {
    fn name(&self) -> &str {
        self.interface.name()
    }

    fn limit(&mut self, takes: Offloads) -> Result<(), EndError> {
        self.interface.limit(takes)
    }

    fn receive(
        &mut self,
        most: usize,
        take: &mut dyn FnMut(&Frame<'_>) -> More,
    ) -> Result<usize, EndError> {
        self.receive_for(most, &mut Taking(take))
    }

    fn receive_for(&mut self, most: usize, taker: &mut dyn Taker) -> Result<usize, EndError> {
        self.receives += 1;
        if self.receives == LOOK_AFTER {
            self.look()?;
        }
        self.interface.receive_for(most, taker)
    }

    fn send(&mut self, frame: &Frame<'_>) -> Result<Sent, EndError> {
        self.interface.send(frame)
    }

    fn place(
        &mut self,
        fill: &mut dyn FnMut(&super::Room<'_>) -> super::Filled,
    ) -> Result<Placed, EndError> {
        self.interface.place(fill)
    }

    fn lacks(&mut self) -> Result<u32, EndError> {
        self.interface.lacks()
    }

    fn flush(&mut self) -> Result<(), EndError> {
        self.interface.flush()
    }

    fn asks_the_kernel(&self) -> bool {
        self.interface.asks_the_kernel()
    }

    fn sleeps(&mut self, until: Sleep) -> Result<bool, EndError> {
        self.interface.sleeps(until)
    }

    fn watch<'a>(&'a self, until: Sleep, fds: &mut Vec<PollFd<'a>>) {
        self.interface.watch(until, fds);
        fds.push(PollFd::new(&self.line, PollFlags::IN));
    }

    fn woken(&mut self) -> Result<(), EndError> {
        self.look()?;
        self.interface.woken()
    }

    fn due(&self) -> Option<Instant> {
        self.interface.due()
    }

    fn counts(&self) -> EndCounts {
        self.interface.counts()
    }
}

#[cfg(test)]
mod tests {
    use super::super::kernel::DescriptorKind;
    use super::*;
    use memlane_fixtures::golden;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn at() -> String {
        use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Relaxed);
        format!("@memlane-loan-{}-{n}", std::process::id())
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(5)
    }

    /// What a borrower says to a lender that says `bytes` and hands over `descriptors`.
    fn borrowed(bytes: &[u8], descriptors: &[BorrowedFd<'_>], queues: u16) -> OpenError {
        let at = at();
        let door = Door::open(&at).unwrap();
        std::thread::scope(|scope| {
            let borrower = scope.spawn(|| borrow(&at, queues).map(|_| ()));
            let socket = door.come_in(soon()).unwrap();
            send_bytes(&socket, bytes, descriptors).unwrap();
            borrower.join().unwrap().unwrap_err()
        })
    }

    #[test]
    fn answers_are_read_as_written() {
        for answer in [Answer::Lent(1), Answer::Lent(16), Answer::Taken] {
            assert_eq!(Answer::decode(&answer.encode()), Ok(answer));
        }
    }

    #[test]
    fn messages_are_as_the_page_shows_them() {
        let page = golden::page("device-loan");
        for (name, answer) in [
            ("a device of 3 queues is lent", Answer::Lent(3)),
            ("another process has it", Answer::Taken),
        ] {
            let dump = golden::dump(name, &answer.encode());
            assert!(page.contains(&dump), "not in docs/formats:\n{dump}");
        }
    }

    #[test]
    fn one_changed_byte_is_no_answer_or_another_that_is_valid() {
        let good = Answer::Lent(3).encode();
        for at in 0..LEN {
            for bit in 0..8 {
                let mut bytes = good;
                bytes[at] ^= 1 << bit;
                match Answer::decode(&bytes) {
                    Ok(answer) => {
                        assert_eq!(answer.encode(), bytes);
                        assert_eq!(at, 12, "only the number of queues may be another");
                    }
                    Err(error) => assert!(!error.to_string().is_empty()),
                }
            }
        }
        assert!(Answer::decode(&good[..LEN - 1]).is_err());
        assert!(Answer::decode(&[&good[..], &[0]].concat()).is_err());
    }

    #[test]
    fn a_lender_that_hands_over_anything_but_a_tap_is_refused() {
        let null = std::fs::File::open("/dev/null").unwrap();
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let flags = SocketFlags::CLOEXEC;
        let (socket, _other) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        // A descriptor of the right device that belongs to no interface.
        let tun = std::fs::File::open("/dev/net/tun").ok();
        let all = [null.as_fd(), file.as_fd(), socket.as_fd()];
        for fd in all.into_iter().chain(tun.iter().map(AsFd::as_fd)) {
            let error = borrowed(&Answer::Lent(1).encode(), &[fd], 1);
            assert!(error.to_string().contains("no TAP device"), "{error}");
        }
    }

    #[test]
    fn descriptors_must_be_as_many_as_the_queues() {
        let null = std::fs::File::open("/dev/null").unwrap();
        for fds in [&[][..], &[null.as_fd(), null.as_fd()][..]] {
            let error = borrowed(&Answer::Lent(1).encode(), fds, 1);
            assert!(
                matches!(error, OpenError::Loan(LoanError::Malformed)),
                "{error}"
            );
        }
        let error = borrowed(&Answer::Lent(2).encode(), &[null.as_fd(); 2], 1);
        assert!(
            matches!(error, OpenError::Loan(LoanError::Queues(2))),
            "{error}"
        );
    }

    #[test]
    fn a_device_that_another_has_is_not_lent_twice() {
        let error = borrowed(&Answer::Taken.encode(), &[], 1);
        assert!(
            matches!(error, OpenError::Loan(LoanError::Taken)),
            "{error}"
        );
    }

    #[test]
    fn a_socket_of_another_kind_is_named_as_such() {
        for other in [&[7; 48][..], b"MLPACKET", b"x"] {
            let error = borrowed(other, &[], 1);
            assert!(error.to_string().contains("memlane net lend"), "{error}");
        }
    }

    /// A queue that always has frames never sleeps, so nothing wakes it when the loan ends.
    #[test]
    fn a_busy_borrower_notices_the_end_of_the_loan() {
        let pair = |kind| socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None);
        let (device, _frames) = pair(SocketType::DGRAM).unwrap();
        let (line, lender) = pair(SocketType::SEQPACKET).unwrap();
        let mut queue = Borrowed {
            interface: Interface::new(device, DescriptorKind::Lent, "x".into()),
            line: Arc::new(line),
            receives: 0,
        };
        let mut receive = || queue.receive(1, &mut |_| More::Yes);
        for _ in 0..3 * u32::from(LOOK_AFTER) {
            assert_eq!(receive(), Ok(0));
        }
        drop(lender);
        let ended = (0..LOOK_AFTER).find_map(|_| receive().err());
        assert_eq!(ended, Some(Detach::PeerGone.into()));
    }

    #[test]
    fn the_end_of_a_loan_shows_at_both_sides() {
        let at = at();
        let file = std::fs::File::open("/dev/null").unwrap();
        let queue = Interface::new(file.into(), DescriptorKind::Device, "x".into());
        assert!(Lender::open(&at, Vec::new()).is_err());
        let lender = Lender::open(&at, vec![queue]).unwrap();
        let borrower = knock(&at).unwrap();
        let loan = lender.lend(soon()).unwrap();
        assert_eq!(loan.ended(), None);
        drop(borrower);
        assert_eq!(loan.ended(), Some(Detach::PeerGone));
        // Words where silence was agreed on are an end, too.
        let borrower = knock(&at).unwrap();
        let loan = lender.lend(soon()).unwrap();
        send_bytes(&borrower, &[0; LEN], &[]).unwrap();
        assert_eq!(loan.ended(), Some(Detach::PeerGone));
    }
}
