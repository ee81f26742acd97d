//! As much of generic netlink as is needed to speak to one family: a request, and what comes back for it.
//!
//! Layouts and numbers: the kernel's `include/uapi/linux/netlink.h` and `genetlink.h`. Host byte order; everything is
//! aligned to four bytes. The kernel has done what it is asked for before the call that asks returns, so nothing here
//! waits for long.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::netlink::{GENERIC, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};
use std::os::fd::OwnedFd;

/// `NLMSG_ERROR`: an error, or with number 0 "done".
const NLMSG_ERROR: u16 = 2;
/// `NLM_F_REQUEST | NLM_F_ACK`.
const REQUEST_WITH_ACK: u16 = 1 | 4;
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
/// Longest answer that we read; the kernel's are a page at most.
const MAX_ANSWER: usize = 32 * 1024;
/// For an answer that should be there already.
const PATIENCE: Timespec = Timespec {
    tv_sec: 10,
    tv_nsec: 0,
};

/// A list of attributes.
#[derive(Debug, Default)]
pub(super) struct Attributes(Vec<u8>);

impl Attributes {
    pub(super) fn bytes(mut self, kind: u16, value: &[u8]) -> Attributes {
        let len = u16::try_from(ATTRIBUTE + value.len()).unwrap_or(u16::MAX);
        self.0.extend_from_slice(&len.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0
            .extend_from_slice(&value[..usize::from(len) - ATTRIBUTE]);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    pub(super) fn u32(self, kind: u16, value: u32) -> Attributes {
        self.bytes(kind, &value.to_ne_bytes())
    }

    pub(super) fn u64(self, kind: u16, value: u64) -> Attributes {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// With the zero byte that the kernel's strings end with.
    pub(super) fn text(self, kind: u16, value: &str) -> Attributes {
        self.bytes(kind, &[value.as_bytes(), &[0]].concat())
    }

    pub(super) fn nested(self, kind: u16, inner: &Attributes) -> Attributes {
        self.bytes(kind | NESTED, &inner.0)
    }
}

/// What a datagram of the kernel says about one request.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Answer {
    Done,
    Failed(i32),
    /// Attributes.
    Data(Vec<u8>),
}

/// A socket to one family.
#[derive(Debug)]
pub(super) struct Family {
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
    pub(super) fn open(name: &str, version: u8) -> Result<Family, Errno> {
        let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
        let socket = socket_with(family, kind, SocketFlags::CLOEXEC, Some(GENERIC))?;
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
    /// The kernel's. `EPROTO`: what it says cannot be understood.
    pub(super) fn ask(&mut self, command: u8, attributes: &Attributes) -> Result<Vec<u8>, Errno> {
        self.sequence = self.sequence.wrapping_add(1);
        let request = encode(self.id, self.sequence, (command, self.version), attributes);
        send(&self.socket, &request, SendFlags::empty())?;
        let mut data = Vec::new();
        let mut buffer = vec![0; MAX_ANSWER];
        loop {
            let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
            match poll(&mut fds, Some(&PATIENCE)) {
                Ok(0) => return Err(Errno::TIMEDOUT),
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
            let (_, len) = match recv(&self.socket, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok(received) => received,
                Err(Errno::INTR | Errno::AGAIN) => continue,
                Err(error) => return Err(error),
            };
            let datagram = buffer.get(..len).ok_or(Errno::PROTO)?;
            for answer in answers(datagram, self.sequence).ok_or(Errno::PROTO)? {
                match answer {
                    Answer::Done => return Ok(data),
                    Answer::Failed(number) => return Err(Errno::from_raw_os_error(number)),
                    Answer::Data(told) => data = told,
                }
            }
        }
    }
}

fn encode(
    id: u16,
    sequence: u32,
    (command, version): (u8, u8),
    attributes: &Attributes,
) -> Vec<u8> {
    let len = HEADER + GENERIC_HEADER + attributes.0.len();
    let mut bytes = Vec::with_capacity(len);
    bytes.extend_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_ne_bytes());
    bytes.extend_from_slice(&id.to_ne_bytes());
    bytes.extend_from_slice(&REQUEST_WITH_ACK.to_ne_bytes());
    bytes.extend_from_slice(&sequence.to_ne_bytes());
    // The port: the kernel's own.
    bytes.extend_from_slice(&0_u32.to_ne_bytes());
    bytes.extend_from_slice(&[command, version, 0, 0]);
    bytes.extend_from_slice(&attributes.0);
    bytes
}

/// What a datagram says about request `sequence`; `None` if it is not netlink.
fn answers(mut datagram: &[u8], sequence: u32) -> Option<Vec<Answer>> {
    let mut found = Vec::new();
    while !datagram.is_empty() {
        let header = datagram.first_chunk::<HEADER>()?;
        let len = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]);
        let kind = u16::from_ne_bytes([header[4], header[5]]);
        let about = u32::from_ne_bytes([header[8], header[9], header[10], header[11]]);
        let len = usize::try_from(len).ok()?;
        let message = datagram.get(HEADER..len)?;
        datagram = datagram.get(len.next_multiple_of(4)..).unwrap_or_default();
        if about != sequence {
            continue;
        }
        found.push(match kind {
            NLMSG_ERROR => match i32::from_ne_bytes(*message.first_chunk()?) {
                0 => Answer::Done,
                // `MAX_ERRNO`.
                number @ -4095..0 => Answer::Failed(-number),
                _ => return None,
            },
            _ => Answer::Data(message.get(GENERIC_HEADER..)?.to_vec()),
        });
    }
    Some(found)
}

/// The value of the first attribute of this kind.
pub(super) fn find(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    while let Some(header) = attributes.first_chunk::<ATTRIBUTE>() {
        let len = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & TYPE_MASK;
        let value = attributes.get(ATTRIBUTE..len)?;
        if kind == wanted {
            return Some(value);
        }
        attributes = attributes.get(len.next_multiple_of(4)..)?;
    }
    None
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
            Family::open("memlane-no-such", 1).unwrap_err(),
            Errno::NOENT
        );
    }

    #[test]
    fn a_request_is_laid_out_as_the_kernel_wants_it() {
        let sockets = Attributes::default().u32(1, 7);
        let sockets = Attributes::default().nested(1, &sockets);
        let attributes = Attributes::default().text(9, "ab").nested(7, &sockets);
        let bytes = encode(0x1b, 3, (1, 1), &attributes);
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
        let other = encode(0x1b, 9, (1, 1), &Attributes::default().u32(1, 5));
        let ours = encode(0x1b, 10, (1, 1), &Attributes::default().u32(1, 6));
        let told = answers(&[other, ours].concat(), 10).unwrap();
        let [Answer::Data(data)] = &told[..] else {
            panic!("{told:?}");
        };
        assert_eq!(find(data, 1), Some(&6_u32.to_ne_bytes()[..]));
        assert_eq!(find(data, 2), None);
    }

    proptest! {
        #[test]
        fn whatever_comes_is_an_answer_or_none(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..96),
            len in 0_u32..100,
            kind in 0_u16..4,
        ) {
            if let Some(header) = bytes.first_chunk_mut::<HEADER>() {
                header[..4].copy_from_slice(&len.to_ne_bytes());
                header[4..6].copy_from_slice(&kind.to_ne_bytes());
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
