//! Headers of a frame, step by step: no byte behind them is touched, and none of them copied twice.

use super::rules::Flow;
use core::net::IpAddr;
use memlane_packet::engine::chain::Frame;

/// Bytes of headers, at most, of a frame that is split.
pub(super) const HEADERS_MAX: usize = 256;

const VLAN: [u16; 2] = [0x8100, 0x88a8];
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const TCP: u8 = 6;
const UDP: u8 = 17;
const FRAGMENT: u8 = 44;
/// Extension headers of IPv6 that have their length in their second byte (RFC 8200).
const OPTIONS: [u8; 3] = [0, 43, 60];
/// Packets within packets, or what cannot be read: IP in IP, IPv6 in IPv4, GRE, ESP, AH.
const TUNNELS: [u8; 5] = [4, 41, 47, 50, 51];

/// What a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Seen {
    /// TCP or UDP: its flow, first byte of its payload, first byte behind it.
    Flow(Flow, usize, usize),
    /// Something else: ARP, ICMP, …
    Other,
    /// A piece of an IP packet.
    Fragment,
    /// A packet within another.
    Tunnel,
    /// Headers that are not whole, too long, or contradict themselves.
    Torn,
}

/// The first bytes of a frame, copied into a slot of our own as far as they were asked for.
pub(super) struct Headers<'a> {
    frame: &'a Frame<'a>,
    slot: &'a mut [u8],
    /// Bytes that were copied.
    have: usize,
}

impl<'a> Headers<'a> {
    pub(super) fn new(frame: &'a Frame<'a>, slot: &'a mut [u8]) -> Headers<'a> {
        Headers {
            frame,
            slot,
            have: 0,
        }
    }

    /// How many there are in the slot.
    pub(super) fn copied(&self) -> usize {
        self.have
    }

    /// The first `n` bytes; `None`: the frame is shorter, or that is too much.
    fn first(&mut self, n: usize) -> Option<&[u8]> {
        if n > self.have {
            if n > self.frame.len() || n > HEADERS_MAX {
                return None;
            }
            let into = self.slot.get_mut(self.have..n)?;
            self.frame.copy_out(self.have, into);
            self.have = n;
        }
        self.slot.get(..n)
    }

    fn byte(&mut self, at: usize) -> Option<u8> {
        self.first((at + 1).max(self.have))?.get(at).copied()
    }

    fn word(&mut self, at: usize) -> Option<u16> {
        let bytes = self.first((at + 2).max(self.have))?;
        Some(u16::from_be_bytes([bytes[at], bytes[at + 1]]))
    }

    /// Looks at all headers.
    pub(super) fn look(&mut self) -> Seen {
        self.network().unwrap_or(Seen::Torn)
    }

    fn network(&mut self) -> Option<Seen> {
        let (mut kind, mut ip) = (self.word(12)?, 14);
        for _ in 0..2 {
            if VLAN.contains(&kind) {
                kind = self.word(ip + 2)?;
                ip += 4;
            }
        }
        match kind {
            IPV4 => self.ipv4(ip),
            IPV6 => self.ipv6(ip),
            _ => Some(Seen::Other),
        }
    }

    fn ipv4(&mut self, ip: usize) -> Option<Seen> {
        let header = self.first(ip + 20)?;
        let len = usize::from(header[ip] & 15) * 4;
        let total = usize::from(u16::from_be_bytes([header[ip + 2], header[ip + 3]]));
        let piece = u16::from_be_bytes([header[ip + 6], header[ip + 7]]) & 0x3fff != 0;
        let protocol = header[ip + 9];
        let address = |at: usize| {
            let bytes = header[at..at + 4].try_into().unwrap_or([0; 4]);
            IpAddr::from(bytes)
        };
        let addresses = [address(ip + 12), address(ip + 16)];
        if header[ip] >> 4 != 4 || len < 20 {
            return None;
        }
        if piece {
            return Some(Seen::Fragment);
        }
        self.transport(protocol, addresses, ip + len, ip + total)
    }

    fn ipv6(&mut self, ip: usize) -> Option<Seen> {
        let header = self.first(ip + 40)?;
        let end = ip + 40 + usize::from(u16::from_be_bytes([header[ip + 4], header[ip + 5]]));
        let (mut next, mut at) = (header[ip + 6], ip + 40);
        let address = |at: usize| {
            let bytes: [u8; 16] = header[at..at + 16].try_into().unwrap_or([0; 16]);
            IpAddr::from(bytes)
        };
        let addresses = [address(ip + 8), address(ip + 24)];
        if header[ip] >> 4 != 6 {
            return None;
        }
        while OPTIONS.contains(&next) {
            // Its first two bytes, and then those of the next.
            let len = 8 * (usize::from(self.byte(at + 1)?) + 1);
            next = self.byte(at)?;
            at += len;
        }
        if next == FRAGMENT {
            return Some(Seen::Fragment);
        }
        self.transport(next, addresses, at, end)
    }

    fn transport(
        &mut self,
        protocol: u8,
        addresses: [IpAddr; 2],
        at: usize,
        end: usize,
    ) -> Option<Seen> {
        let payload = match protocol {
            TCP => at + usize::from(self.byte(at + 12)? >> 4) * 4,
            UDP => at + 8,
            tunnel if TUNNELS.contains(&tunnel) => return Some(Seen::Tunnel),
            _ => return Some(Seen::Other),
        };
        let least = if protocol == TCP { 20 } else { 8 };
        if payload < at + least || payload > end || end > self.frame.len() {
            return None;
        }
        // All headers, and not a byte more.
        self.first(payload)?;
        if protocol == UDP && usize::from(self.word(at + 4)?) != end - at {
            return None;
        }
        let flow = Flow {
            tcp: protocol == TCP,
            addresses,
            ports: [self.word(at)?, self.word(at + 2)?],
        };
        Some(Seen::Flow(flow, payload, end))
    }
}
