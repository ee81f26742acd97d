//! Processes of other machines, by a region of memory that the machines share.
//!
//! Two virtual machines, or one and its host, share a file that appears in a guest as the memory of a PCI device (ivshmem). The
//! agents of all machines that have it find each other there, and introduce their processes to each other: each process gets
//! the region's descriptor, two extents in it, and a channel over which the two agents pass its messages on.
//!
//! **Trust**: whoever has the region can read and write all of it. So it belongs to one domain, and all of its machines trust
//! each other with the connections between them. Nothing outside of the region is reached or believed by it.
//!
//! | room | what |
//! |---|---|
//! | [`layout`] | where things lie in a region |
//! | [`region`] | a region, opened and mapped |
//! | [`untruncated`] | a file that nobody can truncate with the descriptor that programs get |
//! | [`participants`] | which machines take part, and which live |
//! | [`extents`] | who receives and who writes where |
//! | [`mail`] | messages between agents |
//! | [`relay`] | who meets whom: what is decided |

pub mod extents;
pub mod layout;
mod mail;
pub mod participants;
pub mod region;
pub mod relay;
mod untruncated;

use crate::pairs::Pairs;
use relay::{Act, Party, Relay, Tally};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use std::collections::HashMap;
use std::io;
use std::time::Instant;

/// Set in the numbers by which an epoll set knows channels.
pub(crate) const CHANNEL: u64 = 1 << 63;
/// Messages that are taken from one channel at a time.
const AT_ONCE: usize = 16;

/// What a program is given of a meeting with a process of another machine.
pub(crate) struct Given {
    /// Its end of the channel.
    pub(crate) channel: OwnedFd,
    /// Its end of the life line, if it has none to that process yet.
    pub(crate) line: Option<OwnedFd>,
}

/// The agent's ends of what its programs have of other machines.
pub(crate) struct Across {
    /// The domain to which the region belongs.
    pub(crate) domain: u64,
    pub(crate) relay: Relay,
    channels: HashMap<u64, OwnedFd>,
    lines: HashMap<u64, OwnedFd>,
}

impl Across {
    pub(crate) fn new(domain: u64, relay: Relay) -> Across {
        Across {
            domain,
            relay,
            channels: HashMap::new(),
            lines: HashMap::new(),
        }
    }

    /// Takes the mail, and what else time brings.
    pub(crate) fn turn(
        &mut self,
        pairs: &mut Pairs,
        parties: &dyn Fn(u64) -> Option<Party>,
        now: Instant,
    ) {
        self.relay.turn(pairs, parties, now);
    }

    pub(crate) fn tally(&self) -> Tally {
        self.relay.tally(Instant::now())
    }

    /// Does what needs no more than channels and life lines; the rest, which is introductions and refusals, is the caller's.
    /// Acts come in order: the first message over a channel may follow the introduction that makes the channel.
    pub(crate) fn act(&mut self, act: Act) -> Option<Act> {
        match act {
            Act::Deliver(channel, bytes) => self.deliver(channel, &bytes),
            Act::EndChannel(channel) => drop(self.channels.remove(&channel)),
            Act::EndLine(bond) => drop(self.lines.remove(&bond)),
            Act::Introduce { .. } | Act::Refuse(..) => return Some(act),
        }
        None
    }

    /// Makes a channel, and a life line if `bond` is given.
    pub(crate) fn give(
        &mut self,
        epoll: BorrowedFd<'_>,
        channel: u64,
        bond: Option<u64>,
    ) -> io::Result<Given> {
        let (ours, theirs) = pair()?;
        let line = bond.map(|_| pair()).transpose()?;
        let token = EventData::new_u64(CHANNEL | channel);
        epoll::add(epoll, &ours, token, EventFlags::IN)?;
        self.channels.insert(channel, ours);
        let line = bond.zip(line).map(|(bond, (ours, theirs))| {
            self.lines.insert(bond, ours);
            theirs
        });
        Ok(Given {
            channel: theirs,
            line,
        })
    }

    /// A program does not get what was made for it.
    pub(crate) fn take_back(&mut self, channel: u64) {
        self.channels.remove(&channel);
        self.relay.channel_ended(channel);
    }

    /// Passes on what a program has said over a channel.
    pub(crate) fn hear(&mut self, channel: u64) {
        let Some(end) = self.channels.get(&channel) else {
            return;
        };
        for _ in 0..AT_ONCE {
            let mut bytes = [0u8; mail::BYTES + 1];
            // No room for descriptors: the kernel closes what a program tries to hand in.
            let is_over = match rustix::net::recv(end, &mut bytes[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => true,
                Ok((n, _)) => !self.relay.said(channel, bytes.get(..n).unwrap_or(&bytes)),
                Err(Errno::AGAIN | Errno::INTR) => return,
                Err(_) => true,
            };
            if is_over {
                return self.take_back(channel);
            }
        }
    }

    /// A program that does not read what it is told loses its channel.
    fn deliver(&mut self, channel: u64, bytes: &[u8]) {
        let Some(end) = self.channels.get(&channel) else {
            return;
        };
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        if rustix::net::send(end, bytes, flags).is_err() {
            self.take_back(channel);
        }
    }

    /// The region's descriptor, for programs.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.relay.region().descriptor()
    }
}

/// Two ends of a private channel: ours, and a program's, which is told who speaks as on each channel of an agent's.
fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let kind = SocketType::SEQPACKET;
    let (ours, theirs) = rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None)?;
    sockopt::set_socket_passcred(&theirs, true)?;
    Ok((ours, theirs))
}
