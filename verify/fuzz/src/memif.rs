//! memif: a client's messages to a server, and rings that the other side has written.

use std::sync::Arc;

use memlane_core::region::Region;
use memlane_packet::error::Ring;
use memlane_packet::port::More;
use memlane_packet_ends::memif::handshake::{REGIONS_MAX, Server, ServerTerms, Step};
use memlane_packet_ends::memif::layout::{Desc, Memory, NEXT, ring_len};
use memlane_packet_ends::memif::rings::{Buffers, Counts, FRAME_MIN, Rx, Tx};
use memlane_packet_ends::memif::wire::{AddRing, Init, LEN, MODE_ETHERNET, Message, Text, VERSION};

const MEMORY: u64 = 1 << 20;

/// Messages of 128 bytes, each after a byte whose lowest bit says whether a descriptor came with it. Believed: the
/// server would connect.
pub fn memif_messages(bytes: &[u8]) -> bool {
    let terms = ServerTerms {
        memory: MEMORY,
        ..ServerTerms::default()
    };
    let mut server = Server::new(&terms);
    for said in bytes.chunks(LEN + 1) {
        let Some((first, rest)) = said.split_first() else {
            continue;
        };
        let Ok(message) = Message::decode(rest) else {
            return false;
        };
        assert_eq!(Message::decode(&message.encode()), Ok(message));
        let step = server.take(&message, first & 1 != 0);
        let regions = server.regions();
        assert!(regions.len() <= usize::from(REGIONS_MAX) && regions.iter().sum::<u64>() <= MEMORY);
        for ring in server.rings() {
            let end = u64::from(ring.offset) + ring_len(ring.log2) as u64;
            assert!(end <= regions[usize::from(ring.region)]);
        }
        match step {
            Ok(Step::Connect) => return true,
            Ok(_) => {}
            Err(_) => return false,
        }
    }
    false
}

/// Seeds of it.
pub fn messages() -> Vec<(&'static str, Vec<u8>)> {
    let ring = |s2m, offset| {
        Message::AddRing(AddRing {
            s2m,
            index: 0,
            region: 0,
            offset,
            log2: 4,
            private: 0,
        })
    };
    let init = Message::Init(Init {
        version: VERSION,
        id: 0,
        mode: MODE_ETHERNET,
        secret: Text::new(""),
        name: Text::new("fuzz"),
    });
    let region = Message::AddRegion {
        index: 0,
        size: 65536,
    };
    let all = [
        (0, init),
        (1, region),
        (1, ring(true, 0)),
        (1, ring(false, 1024)),
        (0, Message::Connect(Text::new("fuzz"))),
    ];
    let said =
        |(descriptor, message): &(u8, Message)| [&[*descriptor][..], &message.encode()].concat();
    vec![
        ("right", all.iter().flat_map(said).collect()),
        ("early", all[..4].iter().flat_map(said).collect()),
    ]
}

const LOG2: u8 = 3;
const BUFFER: u32 = 256;

/// What the other side does between our steps, each in 4 bytes: what, where, and a number. The first byte of all says
/// who we are. Believed: a frame came.
pub fn memif_rings(bytes: &[u8]) -> bool {
    let Some((role, bytes)) = bytes.split_first() else {
        return false;
    };
    let offset = u32::try_from(ring_len(LOG2)).unwrap_or(0);
    let own = Buffers {
        region: 0,
        offset,
        stride: BUFFER,
        len: BUFFER,
    };
    let len = ring_len(LOG2) + (BUFFER << LOG2) as usize;
    let Ok(region) = Region::create(c"fuzz", len, false) else {
        return false;
    };
    let memory = Arc::new(Memory::new(vec![Arc::new(region)]));
    let client = role & 1 != 0;
    let direction = if client { Ring::Rx } else { Ring::Tx };
    let Some(ring) = memory.ring(direction, 0, 0, LOG2) else {
        return false;
    };
    ring.init();
    let buffers = client.then_some(own);
    let sends = role & 2 != 0;
    let (Some(mut rx), Some(mut tx)) = (
        Rx::new(ring.clone(), buffers),
        Tx::new(ring.clone(), buffers),
    ) else {
        return false;
    };
    if sends {
        tx.start()
    } else {
        rx.start()
    }
    let mut counts = Counts::default();
    for act in bytes.chunks_exact(4).take(4096) {
        let value = u16::from_le_bytes([act[2], act[3]]);
        match act[0] % 6 {
            0 => ring.set_head(value),
            1 => ring.set_tail(value),
            2 => ring.set_flags(value),
            3 | 4 => ring.store(
                act[1].into(),
                Desc {
                    flags: value & NEXT,
                    region: value >> 1 & 1,
                    length: u32::from(value >> 2),
                    offset: offset + u32::from(act[1] & 7) * BUFFER + u32::from(act[0] >> 4),
                    metadata: 0,
                },
            ),
            _ => {}
        }
        let done = if sends {
            tx.send(usize::from(value), &mut counts, |room| {
                assert_eq!(room.copy_in(0, &vec![1; room.len()]), room.len());
            })
            .map(|_| tx.flush())
        } else {
            rx.receive(usize::from(act[1]), &mut counts, |frame| {
                assert!((FRAME_MIN..=65535).contains(&frame.len()));
                let mut copy = vec![0; frame.len()];
                assert_eq!(frame.copy_out(0, &mut copy), copy.len());
                More::Yes
            })
            .map(|n| n > 0)
        };
        if let Err(why) = done {
            assert!(why.is_hostile(), "{why}");
            return false;
        }
    }
    counts.received > 0 || counts.sent > 0
}

/// Seeds of it.
pub fn rings() -> Vec<(&'static str, Vec<u8>)> {
    let word = |flags: u16, length: u16| (length << 2 | flags).to_le_bytes();
    let desc = |slot: u8, flags: u16, length: u16| {
        let [low, high] = word(flags, length);
        vec![3, slot, low, high]
    };
    let receive = [
        vec![0],
        desc(0, 0, 64),
        desc(1, 1, 200),
        desc(2, 0, 100),
        vec![0, 8, 3, 0],
        vec![5, 8, 0, 0],
    ];
    let client = [vec![1], desc(0, 0, 64), vec![1, 8, 1, 0], vec![5, 8, 0, 0]];
    let send = [
        vec![2],
        desc(0, 0, 256),
        desc(1, 0, 256),
        vec![0, 8, 2, 0],
        vec![5, 0, 100, 0],
    ];
    vec![
        ("server", receive.concat()),
        ("client", client.concat()),
        ("send", send.concat()),
        (
            "client_sends",
            vec![3, 5, 0, 100, 0, 1, 0, 1, 0, 5, 0, 0, 4],
        ),
    ]
}
