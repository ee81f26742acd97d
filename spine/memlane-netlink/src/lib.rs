//! As much of generic netlink as is needed to speak to one family of the kernel's: a request, and what comes back for it.
//!
//! A crate of its own, as it allocates and uses rustix, which the library that is loaded into programs does not.
//!
//! Layouts and numbers: the kernel's `include/uapi/linux/netlink.h` and `genetlink.h`. Host byte order; everything is
//! aligned to four bytes. The kernel has done what it is asked for before the call that asks returns, so nothing here
//! waits for long.
//!
//! ```
//! use memlane_netlink::{Attributes, Family, find};
//!
//! // The family that knows all families: what number has it itself?
//! # let found = (|| {
//! let mut control = Family::open("nlctrl", 2)?;
//! let (get_family, family_id, family_name) = (3, 1, 2);
//! let told = control.ask(get_family, &Attributes::default().text(family_name, "nlctrl"))?;
//! assert_eq!(find(&told, family_id), Some(&16_u16.to_ne_bytes()[..]));
//! # Ok::<(), memlane_netlink::Refused>(()) })();
//! # // Where there is no netlink at all, it is said so.
//! # if let Err(refused) = found { assert!(!refused.to_string().is_empty()); }
//! ```

use core::fmt;
use memlane_sys::sock::set_option;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::netlink::{GENERIC, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};
use std::os::fd::{AsRawFd, OwnedFd};

/// `NLMSG_ERROR`: an error, or with number 0 "done". `NLMSG_DONE`: the end of a list.
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// `NLM_F_REQUEST | NLM_F_ACK`; `NLM_F_REQUEST | NLM_F_DUMP`.
const REQUEST_WITH_ACK: u16 = 1 | 4;
const REQUEST_LIST: u16 = 1 | 0x300;
/// `NLM_F_CAPPED`: an answer has only the header of its request. `NLM_F_ACK_TLVS`: and attributes behind it.
const CAPPED: u16 = 0x100;
const ACK_TLVS: u16 = 0x200;
/// `NLMSGERR_ATTR_MSG`: why, in words.
const WORDS: u16 = 1;
/// `SOL_NETLINK`; `NETLINK_CAP_ACK`, `NETLINK_EXT_ACK`.
const SOL_NETLINK: i32 = 270;
const SHORT_AND_IN_WORDS: [i32; 2] = [10, 11];
/// `struct nlmsghdr`.
const HEADER: usize = 16;
/// `struct genlmsghdr`.
const GENERIC_HEADER: usize = 4;
/// `struct nlattr`.
const ATTRIBUTE: usize = 4;
/// `NLA_F_NESTED`.
const NESTED: u16 = 1 << 15;
/// `NLA_TYPE_MASK`: without `NLA_F_NESTED` and `NLA_F_NET_BYTEORDER`.
const TYPE_MASK: u16 = !(3 << 14);
/// `GENL_ID_CTRL`, `CTRL_CMD_GETFAMILY`, `CTRL_ATTR_FAMILY_ID`, `CTRL_ATTR_FAMILY_NAME`.
const CONTROL: (u16, u8, u16, u16) = (0x10, 3, 1, 2);
/// Longest datagram that we read; the kernel's are a page, or 32 KiB of a list.
const MAX_ANSWER: usize = 64 * 1024;
/// Parts of a list that are taken: interfaces and queues of a machine are fewer.
const MAX_PARTS: usize = 1 << 16;
/// For an answer that should be there already.
const PATIENCE: Timespec = Timespec {
    tv_sec: 10,
    tv_nsec: 0,
};

/// Why the kernel did not do as it was asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused {
    /// Its number. `EPROTO`: what it says cannot be understood.
    pub errno: Errno,
    /// Its words, if it had some.
    pub words: Option<String>,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.words {
            Some(words) => write!(f, "{words} ({})", self.errno),
            None => write!(f, "{}", self.errno),
        }
    }
}

impl core::error::Error for Refused {}

impl From<Errno> for Refused {
    fn from(errno: Errno) -> Refused {
        Refused { errno, words: None }
    }
}

/// A list of attributes.
#[derive(Clone, Debug, Default)]
pub struct Attributes(Vec<u8>);

impl Attributes {
    /// One more, of any bytes (what is longer than an attribute can be is cut).
    #[must_use]
    pub fn bytes(mut self, kind: u16, value: &[u8]) -> Attributes {
        let len = u16::try_from(ATTRIBUTE + value.len()).unwrap_or(u16::MAX);
        self.0.extend_from_slice(&len.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0
            .extend_from_slice(&value[..usize::from(len) - ATTRIBUTE]);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// A number of 32 bits.
    #[must_use]
    pub fn u32(self, kind: u16, value: u32) -> Attributes {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// A number of 64 bits.
    #[must_use]
    pub fn u64(self, kind: u16, value: u64) -> Attributes {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// Text, with the zero byte that the kernel's strings end with.
    #[must_use]
    pub fn text(self, kind: u16, value: &str) -> Attributes {
        self.bytes(kind, &[value.as_bytes(), &[0]].concat())
    }

    /// As it goes over the socket.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// A list in this list.
    #[must_use]
    pub fn nested(self, kind: u16, inner: &Attributes) -> Attributes {
        self.bytes(kind | NESTED, &inner.0)
    }
}

/// What a datagram of the kernel says about one request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// It is done, or a list is at its end.
    Done,
    /// It is not: its number, and words.
    Failed(i32, Option<String>),
    /// Attributes.
    Data(Vec<u8>),
}

/// A socket to one family. What the kernel has bound to it is unbound when it is dropped.
#[derive(Debug)]
pub struct Family {
    socket: OwnedFd,
    id: u16,
    version: u8,
    sequence: u32,
}

impl Family {
    /// Finds a family by its name.
    ///
    /// # Errors
    /// `ENOENT`: the kernel has none of this name.
    pub fn open(name: &str, version: u8) -> Result<Family, Refused> {
        let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
        let socket = socket_with(family, kind, SocketFlags::CLOEXEC, Some(GENERIC))?;
        for option in SHORT_AND_IN_WORDS {
            // A kernel that cannot answers with numbers alone.
            let _ = set_option(socket.as_raw_fd(), SOL_NETLINK, option, 1_i32);
        }
        bind(&socket, &SocketAddrNetlink::new(0, 0))?;
        let (id, command, family_id, family_name) = CONTROL;
        let mut control = Family {
            socket,
            id,
            version: 1,
            sequence: 0,
        };
        let asked = Attributes::default().text(family_name, name);
        let told = control.ask(command, &asked)?;
        let id = find(&told, family_id).and_then(|value| Some(*value.first_chunk()?));
        Ok(Family {
            id: u16::from_ne_bytes(id.ok_or(Errno::PROTO)?),
            version,
            ..control
        })
    }

    /// Has a command done; the attributes of what was answered, if anything was.
    ///
    /// # Errors
    /// The kernel's.
    pub fn ask(&mut self, command: u8, attributes: &Attributes) -> Result<Vec<u8>, Refused> {
        let mut parts = self.talk(REQUEST_WITH_ACK, command, attributes)?;
        Ok(parts.pop().unwrap_or_default())
    }

    /// Has a list told; the attributes of each of its parts.
    ///
    /// # Errors
    /// The kernel's.
    pub fn list(&mut self, command: u8, attributes: &Attributes) -> Result<Vec<Vec<u8>>, Refused> {
        self.talk(REQUEST_LIST, command, attributes)
    }

    fn talk(
        &mut self,
        flags: u16,
        command: u8,
        attributes: &Attributes,
    ) -> Result<Vec<Vec<u8>>, Refused> {
        self.sequence = self.sequence.wrapping_add(1);
        let who = (self.id, flags, self.sequence);
        let request = encode(who, (command, self.version), attributes);
        send(&self.socket, &request, SendFlags::empty())?;
        let mut parts = Vec::new();
        let mut buffer = vec![0; MAX_ANSWER];
        loop {
            let len = self.next(&mut buffer)?;
            let datagram = buffer.get(..len).ok_or(Errno::PROTO)?;
            for answer in answers(datagram, self.sequence).ok_or(Errno::PROTO)? {
                match answer {
                    Answer::Done => return Ok(parts),
                    Answer::Failed(number, words) => {
                        let errno = Errno::from_raw_os_error(number);
                        return Err(Refused { errno, words });
                    }
                    Answer::Data(told) if parts.len() < MAX_PARTS => parts.push(told),
                    Answer::Data(_) => return Err(Errno::PROTO.into()),
                }
            }
        }
    }

    /// The next datagram's bytes.
    fn next(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        loop {
            let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
            match poll(&mut fds, Some(&PATIENCE)) {
                Ok(0) => return Err(Errno::TIMEDOUT),
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
            match recv(&self.socket, &mut *buffer, RecvFlags::DONTWAIT) {
                Ok((_, len)) => return Ok(len),
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

fn encode(
    (id, flags, sequence): (u16, u16, u32),
    (command, version): (u8, u8),
    attributes: &Attributes,
) -> Vec<u8> {
    let len = HEADER + GENERIC_HEADER + attributes.0.len();
    let mut bytes = Vec::with_capacity(len);
    bytes.extend_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_ne_bytes());
    bytes.extend_from_slice(&id.to_ne_bytes());
    bytes.extend_from_slice(&flags.to_ne_bytes());
    bytes.extend_from_slice(&sequence.to_ne_bytes());
    // The port: the kernel's own.
    bytes.extend_from_slice(&0_u32.to_ne_bytes());
    bytes.extend_from_slice(&[command, version, 0, 0]);
    bytes.extend_from_slice(&attributes.0);
    bytes
}

/// What a datagram says about request `sequence`; `None` if it is not netlink.
pub fn answers(mut datagram: &[u8], sequence: u32) -> Option<Vec<Answer>> {
    let mut found = Vec::new();
    while !datagram.is_empty() {
        let header = datagram.first_chunk::<HEADER>()?;
        let len = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]);
        let kind = u16::from_ne_bytes([header[4], header[5]]);
        let flags = u16::from_ne_bytes([header[6], header[7]]);
        let about = u32::from_ne_bytes([header[8], header[9], header[10], header[11]]);
        let len = usize::try_from(len).ok()?;
        let message = datagram.get(HEADER..len)?;
        datagram = datagram.get(len.next_multiple_of(4)..).unwrap_or_default();
        if about != sequence {
            continue;
        }
        found.push(match kind {
            NLMSG_ERROR | NLMSG_DONE => match i32::from_ne_bytes(*message.first_chunk()?) {
                0 => Answer::Done,
                // `MAX_ERRNO`.
                number @ -4095..0 => Answer::Failed(-number, words(message, kind, flags)),
                _ => return None,
            },
            _ => Answer::Data(message.get(GENERIC_HEADER..)?.to_vec()),
        });
    }
    Some(found)
}

/// What the kernel says beside an error's number.
fn words(message: &[u8], kind: u16, flags: u16) -> Option<String> {
    if flags & ACK_TLVS == 0 {
        return None;
    }
    // An error repeats its request: its header, or all of it. The end of a list does not.
    let repeated = match kind {
        NLMSG_DONE => 0,
        _ if flags & CAPPED != 0 => HEADER,
        _ => {
            let len = u32::from_ne_bytes(*message.get(4..)?.first_chunk()?);
            usize::try_from(len).ok()?.checked_next_multiple_of(4)?
        }
    };
    let attributes = message.get(repeated.checked_add(4)?..)?;
    let words = find(attributes, WORDS)?;
    let words = words.strip_suffix(&[0]).unwrap_or(words);
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    Some(String::from_utf8_lossy(words).chars().map(plain).collect())
}

/// The attributes of a list, in order: kind and value. It ends where they end, or make no sense.
pub fn each(mut attributes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let header = attributes.first_chunk::<ATTRIBUTE>()?;
        let len = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & TYPE_MASK;
        let value = attributes.get(ATTRIBUTE..len)?;
        attributes = attributes
            .get(len.next_multiple_of(4)..)
            .unwrap_or_default();
        Some((kind, value))
    })
}

/// The value of the first attribute of this kind.
pub fn find(attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    each(attributes).find_map(|(kind, value)| (kind == wanted).then_some(value))
}

/// The value of the first attribute of this kind, as a number of 32 bits.
pub fn find_u32(attributes: &[u8], wanted: u16) -> Option<u32> {
    let value = find(attributes, wanted)?;
    Some(u32::from_ne_bytes(*value.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_family_that_every_kernel_has_is_found_and_one_that_none_has_is_not() {
        match Family::open("nlctrl", 2) {
            Ok(family) => assert_eq!(family.id, CONTROL.0),
            Err(error) => return eprintln!("SKIPPED: no generic netlink: {error}"),
        }
        assert_eq!(
            Family::open("memlane-no-such", 1).unwrap_err().errno,
            Errno::NOENT
        );
    }

    #[test]
    fn a_request_is_laid_out_as_the_kernel_wants_it() {
        let sockets = Attributes::default().u32(1, 7);
        let sockets = Attributes::default().nested(1, &sockets);
        let attributes = Attributes::default().text(9, "ab").nested(7, &sockets);
        let bytes = encode((0x1b, REQUEST_WITH_ACK, 3), (1, 1), &attributes);
        let mut expected = vec![
            44, 0, 0, 0, 0x1b, 0, 5, 0, 3, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0,
        ];
        expected.extend([7, 0, 9, 0, b'a', b'b', 0, 0]);
        expected.extend([16, 0, 7, 0x80, 12, 0, 1, 0x80, 8, 0, 1, 0, 7, 0, 0, 0]);
        if cfg!(target_endian = "little") {
            assert_eq!(bytes, expected);
        }
    }

    #[test]
    fn an_answer_to_somebody_else_is_passed_over() {
        let other = encode((0x1b, 0, 9), (1, 1), &Attributes::default().u32(1, 5));
        let ours = encode((0x1b, 0, 10), (1, 1), &Attributes::default().u32(1, 6));
        let told = answers(&[other, ours].concat(), 10).unwrap();
        let [Answer::Data(data)] = &told[..] else {
            panic!("{told:?}");
        };
        assert_eq!(find(data, 1), Some(&6_u32.to_ne_bytes()[..]));
        assert_eq!(find(data, 2), None);
    }

    #[test]
    fn a_list_has_all_its_parts() {
        let Ok(mut control) = Family::open("nlctrl", 2) else {
            return eprintln!("SKIPPED: no generic netlink");
        };
        let families = control.list(CONTROL.1, &Attributes::default()).unwrap();
        let own = CONTROL.0.to_ne_bytes();
        let own = families.iter().filter(|f| find(f, CONTROL.2) == Some(&own));
        assert_eq!(own.count(), 1);
    }

    /// An error as the kernel lays it out: number, the request's header (or all of it), words.
    #[test]
    fn the_kernel_s_words_are_told() {
        let said = Attributes::default()
            .u32(2, 20)
            .text(WORDS, "split is\noff")
            .0;
        let request = encode((0x1b, 5, 3), (1, 1), &Attributes::default().u32(1, 7));
        for (flags, repeated) in [
            (CAPPED | ACK_TLVS, &request[..HEADER]),
            (ACK_TLVS, &request),
        ] {
            let body = [&(-22_i32).to_ne_bytes(), repeated, &said].concat();
            let len = u32::try_from(HEADER + body.len()).unwrap();
            let mut header = [0; HEADER];
            header[..4].copy_from_slice(&len.to_ne_bytes());
            header[4..6].copy_from_slice(&NLMSG_ERROR.to_ne_bytes());
            header[6..8].copy_from_slice(&flags.to_ne_bytes());
            header[8..12].copy_from_slice(&3_u32.to_ne_bytes());
            let told = answers(&[&header[..], &body].concat(), 3);
            let expected = Answer::Failed(22, Some("split is off".into()));
            assert_eq!(told, Some(vec![expected]));
        }
    }

    proptest! {
        #[test]
        fn whatever_comes_is_an_answer_or_none(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..96),
            len in 0_u32..100,
            kind in 0_u16..4,
            flags in any::<u16>(),
        ) {
            if let Some(header) = bytes.first_chunk_mut::<HEADER>() {
                header[..4].copy_from_slice(&len.to_ne_bytes());
                header[4..6].copy_from_slice(&kind.to_ne_bytes());
                header[6..8].copy_from_slice(&flags.to_ne_bytes());
                header[8..12].copy_from_slice(&1_u32.to_ne_bytes());
            }
            for answer in answers(&bytes, 1).into_iter().flatten() {
                if let Answer::Data(data) = answer {
                    let _ = find(&data, 1);
                }
            }
            let _ = find(&bytes, 1);
        }
    }
}
