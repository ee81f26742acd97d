//! Random requests of two clients at the same time, in blocks or not, against a plain vector.

mod nbd_support;

use memlane_block::volume::mem::MemVolume;
use memlane_block_frontends::nbd::wire::{cmd, cmd_flag};
use nbd_support::{Served, noise};
use proptest::prelude::*;

const SIZE: usize = 96 * 1024;

#[derive(Clone, Debug)]
struct Ask {
    client: usize,
    kind: u16,
    at: usize,
    len: usize,
    seed: u64,
    fua: bool,
}

fn ask() -> impl Strategy<Value = Ask> {
    let kind = prop_oneof![
        3 => Just(cmd::READ),
        5 => Just(cmd::WRITE),
        1 => Just(cmd::TRIM),
        2 => Just(cmd::WRITE_ZEROES),
        1 => Just(cmd::FLUSH),
        1 => Just(cmd::CACHE),
    ];
    // Mostly a few bytes here and there in few blocks, sometimes much.
    let len = prop_oneof![4 => 1..3000_usize, 1 => 1..40_000_usize];
    let at = prop_oneof![1 => 0..SIZE, 1 => (0..SIZE / 512).prop_map(|n| n * 512)];
    let who = (0..2_usize, any::<u64>(), any::<bool>());
    (who, kind, at, len).prop_map(|((client, seed, fua), kind, at, len)| Ask {
        client,
        kind,
        at,
        len: len.min(SIZE - at),
        seed,
        fua,
    })
}

/// Those of a batch that do not touch each other's bytes (but perhaps each other's blocks).
fn apart(batch: Vec<Ask>) -> Vec<Ask> {
    let mut taken: Vec<Ask> = Vec::new();
    for ask in batch {
        let apart = |other: &Ask| ask.at + ask.len <= other.at || other.at + other.len <= ask.at;
        if taken.iter().all(apart) {
            taken.push(ask);
        }
    }
    taken
}

fn apply(model: &mut [u8], ask: &Ask, block: usize) {
    let end = ask.at + ask.len;
    match ask.kind {
        cmd::WRITE => model[ask.at..end].copy_from_slice(&noise(ask.len, ask.seed)),
        cmd::WRITE_ZEROES => model[ask.at..end].fill(0),
        // This volume makes zeroes of what is trimmed; parts of blocks stay.
        cmd::TRIM => {
            let (from, to) = (ask.at.next_multiple_of(block), end - end % block);
            if from < to {
                model[from..to].fill(0);
            }
        }
        _ => {}
    }
}

fn play(batches: Vec<Vec<Ask>>, block: u32, late: bool) {
    let change = |info: &mut memlane_block::volume::Info| {
        (info.block, info.max_io, info.max_trim) = (block, 4 * block, 8 * block);
    };
    let size = SIZE as u64;
    let volume = match late {
        true => MemVolume::late(size, change),
        false => MemVolume::with(size, change),
    };
    let served = Served::volume(volume.unwrap());
    let mut clients = [served.client(true), served.client(false)];
    let mut model = vec![0; SIZE];
    for batch in batches {
        let batch = apart(batch);
        let before = model.clone();
        let mut asked = [Vec::new(), Vec::new()];
        for ask in &batch {
            let (at, mut len) = (ask.at as u64, u32::try_from(ask.len).unwrap());
            let payload = match ask.kind {
                cmd::WRITE => noise(ask.len, ask.seed),
                _ => Vec::new(),
            };
            let at = if ask.kind == cmd::FLUSH { 0 } else { at };
            if ask.kind == cmd::FLUSH {
                len = 0;
            }
            let flags = if ask.fua { cmd_flag::FUA } else { 0 };
            let cookie = clients[ask.client].ask(ask.kind, flags, at, len, &payload);
            asked[ask.client].push((cookie, ask.clone()));
            apply(&mut model, ask, block as usize);
        }
        for (client, asked) in clients.iter_mut().zip(asked) {
            for _ in 0..asked.len() {
                let (cookie, reply) = client.reply();
                let (_, ask) = asked.iter().find(|a| a.0 == cookie).expect("ours");
                assert_eq!(reply.error, 0, "{ask:?}");
                if ask.kind == cmd::READ {
                    let expected = &before[ask.at..ask.at + ask.len];
                    assert!(reply.data == expected, "{ask:?}");
                }
            }
        }
        for client in &mut clients {
            let whole = client.read(0, u32::try_from(SIZE).unwrap());
            assert!(whole.data == model, "after {batch:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn two_clients_leave_what_a_plain_vector_would_hold(
        batches in prop::collection::vec(prop::collection::vec(ask(), 1..40), 1..6),
        block in prop_oneof![Just(512_u32), Just(4096_u32)],
        late in any::<bool>(),
    ) {
        play(batches, block, late);
    }
}

#[test]
fn clients_that_share_a_block_do_not_lose_each_others_bytes() {
    let volume = MemVolume::late(1 << 16, |info| info.block = 4096).unwrap();
    let served = Served::volume(volume);
    let mut clients = [served.client(true), served.client(false)];
    for round in 0..200_u8 {
        let bytes = [round; 100];
        for i in 0..20_u64 {
            let client = &mut clients[usize::try_from(i % 2).unwrap()];
            client.ask(cmd::WRITE, 0, i * 100, 100, &bytes);
        }
        for client in &mut clients {
            for _ in 0..10 {
                assert_eq!(client.reply().1.error, 0);
            }
        }
        assert_eq!(
            clients[0].read(0, 2000).data,
            [round; 2000],
            "round {round}"
        );
    }
}
