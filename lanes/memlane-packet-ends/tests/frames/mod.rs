//! Frames with headers, for tests that take them apart.
#![allow(dead_code)] // each test uses a part

use memlane_packet::{Gso, GsoKind, Meta};
use memlane_packet_ends::headers::find;
use proptest::prelude::*;

/// What a frame is made of.
#[derive(Clone, Debug)]
pub(crate) struct Recipe {
    pub(crate) tags: Vec<u16>,
    pub(crate) ipv6: bool,
    /// IPv4 options, in words; of IPv6: extension headers of 8 bytes each.
    pub(crate) options: u8,
    pub(crate) tcp: bool,
    /// TCP options, in words.
    pub(crate) tcp_options: u8,
    pub(crate) flags: u8,
    pub(crate) id: u16,
    pub(crate) sequence: u32,
    pub(crate) hosts: [u8; 2],
    pub(crate) ports: [u16; 2],
    pub(crate) payload: usize,
    pub(crate) padding: usize,
}

impl Default for Recipe {
    fn default() -> Recipe {
        Recipe {
            tags: Vec::new(),
            ipv6: false,
            options: 0,
            tcp: true,
            tcp_options: 3,
            flags: 0x10,
            id: 7,
            sequence: 1000,
            hosts: [1, 2],
            ports: [40000, 5201],
            payload: 100,
            padding: 0,
        }
    }
}

pub(crate) fn recipes(payload: usize) -> impl Strategy<Value = Recipe> {
    let tag = prop_oneof![Just(0x8100), Just(0x88a8)];
    let net = (
        proptest::collection::vec(tag, 0..3),
        any::<bool>(),
        0..=5_u8,
        any::<u16>(),
    );
    let transport = (any::<bool>(), 0..=10_u8, any::<u8>(), any::<u32>());
    let rest = (any::<[u8; 2]>(), any::<[u16; 2]>(), 0..payload, 0..20_usize);
    (net, transport, rest).prop_map(|(net, transport, rest)| {
        let (tags, ipv6, options, id) = net;
        let (tcp, tcp_options, flags, sequence) = transport;
        let (hosts, ports, payload, padding) = rest;
        Recipe {
            tags,
            ipv6,
            options,
            tcp,
            tcp_options,
            flags,
            id,
            sequence,
            hosts,
            ports,
            payload,
            padding,
        }
    })
}

impl Recipe {
    pub(crate) fn kind(&self) -> GsoKind {
        match self.ipv6 {
            true => GsoKind::Tcp6,
            false => GsoKind::Tcp4,
        }
    }

    pub(crate) fn gso(&self, size: u16) -> Meta {
        Meta {
            csum_blank: true,
            data_validated: true,
            gso: Some(Gso {
                kind: self.kind(),
                size,
            }),
        }
    }

    /// Its bytes, with the pseudo header's sum where the transport checksum will be.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut frame = vec![0x02, 0, 0, 0, 0, 2, 0x02, 0, 0, 0, 0, 1];
        for tag in &self.tags {
            frame.extend(tag.to_be_bytes());
            frame.extend([0, 7]);
        }
        let segment = self.transport();
        let protocol = if self.tcp { 6 } else { 17 };
        if self.ipv6 {
            self.ipv6(&mut frame, protocol, segment.len());
        } else {
            self.ipv4(&mut frame, protocol, segment.len());
        }
        frame.extend(segment);
        frame.extend(vec![0xee; self.padding]);
        if let Some(found) = find(&frame[..frame.len().min(256)], frame.len()) {
            let at = found.at + found.checksum;
            let pseudo = found.pseudo(&frame);
            frame[at..at + 2].copy_from_slice(&pseudo.to_be_bytes());
        }
        frame
    }

    fn ipv4(&self, frame: &mut Vec<u8>, protocol: u8, len: usize) {
        let header = 20 + usize::from(self.options) * 4;
        frame.extend([8, 0, 0x45 + self.options, 0]);
        frame.extend(u16::try_from(header + len).expect("short").to_be_bytes());
        frame.extend(self.id.to_be_bytes());
        frame.extend([0x40, 0, 64, protocol, 0, 0]);
        frame.extend([198, 51, 100, self.hosts[0], 198, 51, 100, self.hosts[1]]);
        // Options that do nothing.
        frame.extend(vec![1; header - 20]);
    }

    fn ipv6(&self, frame: &mut Vec<u8>, protocol: u8, len: usize) {
        let extra = usize::from(self.options) * 8;
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend(u16::try_from(extra + len).expect("short").to_be_bytes());
        // Destination options, which may come more than once; of them, six bytes of padding.
        frame.extend([if self.options > 0 { 60 } else { protocol }, 64]);
        for host in self.hosts {
            frame.extend([0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host]);
        }
        for left in (0..self.options).rev() {
            let next = if left > 0 { 60 } else { protocol };
            frame.extend([next, 0, 1, 4, 0, 0, 0, 0]);
        }
    }

    fn transport(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for port in self.ports {
            bytes.extend(port.to_be_bytes());
        }
        if self.tcp {
            bytes.extend(self.sequence.to_be_bytes());
            bytes.extend([0, 0, 0, 9, (5 + self.tcp_options) << 4, self.flags]);
            bytes.extend([1, 0, 0, 0, 0, 0]);
            bytes.extend(vec![1; usize::from(self.tcp_options) * 4]);
        } else {
            let len = u16::try_from(8 + self.payload).expect("short");
            bytes.extend(len.to_be_bytes());
            bytes.extend([0, 0]);
        }
        let seed = u64::from(self.sequence);
        bytes.extend((0..self.payload).map(|n| (n as u64 * 7 + seed).to_le_bytes()[0]));
        bytes
    }
}
