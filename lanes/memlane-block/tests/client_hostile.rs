//! A server that answers whatever it likes: errors with names, no panic, nobody waits for ever.

mod remote;

use memlane_block::client::answer::{Opened, Server};
use memlane_block::client::error::OpenError;
use memlane_block::client::{Access, Options, Patience, Status};
use memlane_block::volume::{Done, Io, Op, Volume as _};
use memlane_block::wire::{OPEN_RSP_LEN, OpenRsp, WireError};
use memlane_transport::port::News;
use proptest::prelude::*;
use remote::rig::Rig;
use std::time::Duration;

const SIZE: u64 = 16 << 10;

/// What the server changes in an answer.
#[derive(Clone, Debug)]
enum Lie {
    Error(u16),
    Bytes(Vec<u8>),
    Byte(usize, u8),
    Word(usize, u64),
    Short(usize),
    Truth,
}

fn lie() -> impl Strategy<Value = Lie> {
    let edges = prop_oneof![
        Just(0),
        Just(3),
        Just(511),
        Just(1 << 31),
        Just(u64::MAX),
        Just(u64::MAX / 512),
        any::<u64>()
    ];
    prop_oneof![
        2 => (0..512_u16).prop_map(Lie::Error),
        1 => proptest::collection::vec(any::<u8>(), 0..60).prop_map(Lie::Bytes),
        2 => (0..56_usize, any::<u8>()).prop_map(|(at, byte)| Lie::Byte(at, byte)),
        2 => (0..48_usize, edges).prop_map(|(at, word)| Lie::Word(at, word)),
        1 => (0..56_usize).prop_map(Lie::Short),
        4 => Just(Lie::Truth),
    ]
}

fn told(lie: &Lie, answer: &mut Vec<u8>) -> Option<u16> {
    let put = |answer: &mut Vec<u8>, at: usize, bytes: &[u8]| {
        for (old, new) in answer.iter_mut().skip(at).zip(bytes) {
            *old = *new;
        }
    };
    match lie {
        Lie::Error(errno) => return Some(*errno),
        Lie::Bytes(bytes) => answer.clone_from(bytes),
        Lie::Byte(at, byte) => put(answer, *at, &[*byte]),
        Lie::Word(at, word) => put(answer, *at, &word.to_le_bytes()),
        Lie::Short(len) => answer.truncate(*len),
        Lie::Truth => {}
    }
    None
}

/// A life with such a server: opened, used, restarted, called.
fn live(lies: Vec<Lie>) {
    let options = Options {
        patience: Patience::Queue(Duration::from_millis(500)),
        open_limit: Duration::from_millis(500),
        ..Options::default()
    };
    let mut rig = Rig::with(&[("disk", SIZE)], options);
    let mut next = 0;
    rig.session.world().tamper = Some(Box::new(move |_, answer| {
        next += 1;
        told(&lies[next % lies.len()], answer)
    }));
    let Ok(volume) = rig.try_open("disk", Access::ReadWrite) else {
        return;
    };
    let info = volume.info();
    assert!(info.block.is_power_of_two() && info.block >= 512);
    assert!(info.max_io >= info.block && info.max_io <= remote::MAX_IO);
    let mut queue = volume.queue().unwrap();
    let mut done: Vec<Done> = Vec::new();
    for round in 0..6_u64 {
        for op in [
            Op::Read,
            Op::Write,
            Op::Flush,
            Op::Trim,
            Op::WriteZeroes,
            Op::Extents,
        ] {
            let lease = queue.lease(info.block).unwrap();
            let len = match op {
                Op::Trim => info.max_trim,
                _ => info.block,
            };
            let at = round * u64::from(info.block);
            let io = Io::bare(round, op, at, len);
            queue.submit(Io { lease, ..io });
        }
        rig.drive();
        if round % 2 == 1 {
            rig.restart(round == 3);
        }
        rig.session
            .tell(News::Notice(u32::try_from(round).unwrap()));
        queue.reap(&mut done);
        rig.pass(Duration::from_millis(50));
    }
    for _ in 0..400 {
        rig.pass(Duration::from_millis(20));
        queue.reap(&mut done);
        if done.len() == 36 {
            break;
        }
    }
    assert_eq!(done.len(), 36, "somebody waits for ever");
    let status = volume.status();
    assert!(!matches!(status, Status::Closed));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_server_that_lies_gets_errors_and_nobody_waits_for_ever(
        lies in proptest::collection::vec(lie(), 1..12)
    ) {
        live(lies);
    }

    #[test]
    fn any_bytes_are_a_volume_that_can_be_used_or_an_error(
        lies in proptest::collection::vec(lie(), 0..4),
        caps in any::<u16>(),
        max_io in any::<u32>(),
    ) {
        let mut bytes = answer().encode().to_vec();
        for lie in &lies {
            told(lie, &mut bytes);
        }
        let _ = Server::parse(&bytes);
        if let Ok(opened) = Opened::parse(&bytes, caps, max_io) {
            let info = opened.info;
            prop_assert!(info.max_io >= info.block && info.max_io <= max_io);
            prop_assert!(i64::try_from(info.size).is_ok());
            prop_assert!(info.max_trim <= 1 << 30);
            for (able, step) in [(info.trim, opened.steps.trim), (info.zeroes, opened.steps.zeroes)] {
                prop_assert_eq!(able, step > 0);
                prop_assert!(step % info.block == 0);
                prop_assert!(!able || info.max_trim.div_ceil(step) <= 256);
            }
        }
    }
}

fn answer() -> OpenRsp {
    OpenRsp {
        device_id: 1,
        sectors: 128,
        max_io_sectors: 248,
        max_write_zeroes_sectors: 8,
        max_discard_sectors: 8,
        discard_granularity: 4096,
        physical_block: 4096,
        logical_block: 512,
        max_segments: 31,
        fua: true,
        writeback: true,
        flags: None,
        loan: None,
    }
}

#[test]
fn what_is_wrong_with_an_answer_is_named() {
    let with = |at: usize, bytes: &[u8]| {
        let mut answer = answer().encode();
        answer[at..at + bytes.len()].copy_from_slice(bytes);
        Opened::parse(&answer, 0, 4096).unwrap_err()
    };
    let field = |name| OpenError::Nonsense(WireError::Field(name));
    for block in [0_u16, 3, 256] {
        assert_eq!(with(38, &block.to_le_bytes()), field("logical_block_size"));
    }
    assert_eq!(with(36, &[0, 1]), field("physical_block_size"));
    assert_eq!(with(8, &[0xff; 8]), field("nsectors"));
    assert_eq!(with(16, &[0; 4]), field("max_hw_sectors"));
    assert_eq!(with(0, &[1]), OpenError::Nonsense(WireError::Type(1)));
    let short = Opened::parse(&answer().encode()[..OPEN_RSP_LEN - 1], 0, 4096);
    let (have, need) = (OPEN_RSP_LEN - 1, OPEN_RSP_LEN);
    assert_eq!(
        short,
        Err(OpenError::Nonsense(WireError::Short { have, need }))
    );
    // Blocks that are longer than what a request may carry.
    assert_eq!(
        Opened::parse(&answer().encode(), 0, 511),
        Err(field("max_hw_sectors"))
    );
    let mut old = [0; 36];
    old[0] = 1;
    for version in [1, 3] {
        old[4] = version;
        assert_eq!(Server::parse(&old), Err(OpenError::OtherVersion(version)));
    }
}
