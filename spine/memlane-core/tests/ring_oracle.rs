//! One direction of a stream against a queue: random sends, receives, parks and
//! lane changes over the real words in a mapped region, one step at a time.

use memlane_core::layout::RUNS;
use proptest::prelude::*;
use ring_stream::{Op, Seen, Stream};

mod ring_stream;

/// Mostly a few bytes, sometimes more than a ring.
fn amount() -> impl Strategy<Value = usize> {
    prop_oneof![6 => 0usize..12, 1 => 0usize..300]
}

/// Mostly the kernel takes all.
fn kernel() -> impl Strategy<Value = usize> {
    prop_oneof![4 => Just(usize::MAX), 1 => 0usize..12]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (amount(), kernel()).prop_map(|(n, kernel)| Op::Send { n, kernel }),
        3 => (amount(), kernel()).prop_map(|(n, kernel)| Op::SendTcp { n, kernel }),
        2 => (amount(), amount()).prop_map(|(n, used)| Op::Reserve { n, used }),
        9 => amount().prop_map(|n| Op::Recv { n }),
        2 => amount().prop_map(|n| Op::Hold { n }),
        2 => Just(Op::Release),
        2 => Just(Op::Park),
        1 => Just(Op::Trim),
        4 => Just(Op::Unpark),
        1 => (0usize..40).prop_map(|n| Op::Alternate { n }),
    ]
}

/// Most lists never leave the memory lane: leaving it ends what there is to test.
fn ops() -> impl Strategy<Value = Vec<Op>> {
    let staying = |most| prop::collection::vec(op(), 0..most);
    let leaving = prop_oneof![Just(Op::AskTcpOnly), Just(Op::GoTcpOnly)];
    (
        staying(300),
        prop::option::weighted(0.3, (leaving, staying(60))),
    )
        .prop_map(|(mut ops, more)| {
            if let Some((leave, rest)) = more {
                ops.push(leave);
                ops.extend(rest);
            }
            ops
        })
}

#[test]
fn every_byte_arrives_once_and_in_order_whichever_lane_it_took() {
    let config = ProptestConfig {
        cases: 3000,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let mut total = Seen::default();
    let seen = std::cell::RefCell::new(&mut total);
    let starts = prop_oneof![
        Just(0u64),
        1u64..300,
        any::<u32>().prop_map(|n| u64::from(n) << 16)
    ];
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let windows = prop_oneof![Just(None), (0u32..10).prop_map(Some)];
    let outcome = runner.run(
        &(2u32..10, windows, starts, ops()),
        |(log2, window, before, ops)| {
            let least = window.map_or(0, |p| 1 << p.min(log2));
            let mut stream = Stream::with_window(1 << log2, before, least);
            for op in &ops {
                stream.step(op);
            }
            stream.finish();
            seen.borrow_mut().add(stream.seen);
            Ok(())
        },
    );
    outcome.unwrap();
    println!("{total:?}");
    let Seen {
        ring_bytes,
        tcp_bytes,
        full,
        runs_full,
        debts,
        parked_sends,
        ended,
        drained,
        sheds,
        grown,
        bounded,
        shrunk,
        made_room,
        held,
        straightened,
    } = total;
    for n in [
        ring_bytes,
        tcp_bytes,
        full,
        runs_full,
        debts,
        parked_sends,
        ended,
        drained,
        sheds,
        grown,
        bounded,
        shrunk,
        made_room,
        held,
        straightened,
    ] {
        assert!(
            n > 0,
            "the cases miss something that they claim to cover: {total:?}"
        );
    }
}

#[test]
fn a_sender_out_of_run_slots_uses_tcp_and_comes_back_to_the_ring() {
    let mut s = Stream::new(256, 0);
    s.step(&Op::Alternate { n: 3 * RUNS });
    assert!(s.seen.runs_full > 0);
    let ring_before = s.seen.ring_bytes;
    while s.receive(7) > 0 {}
    s.step(&Op::Send { n: 5, kernel: 0 });
    assert_eq!(s.seen.ring_bytes, ring_before + 5);
    s.finish();
}

#[test]
fn many_times_more_runs_than_slots_pass_through_the_list() {
    let mut s = Stream::new(64, 12345);
    for i in 0..10_000 {
        s.step(&Op::Alternate { n: i % 20 });
        s.step(&Op::Recv { n: i % 11 });
        s.step(&Op::Recv { n: 3 });
    }
    s.finish();
}

#[test]
fn a_stream_that_has_passed_exabytes_goes_on() {
    let mut s = Stream::new(16, 1 << 62);
    for _ in 0..50 {
        s.step(&Op::Send { n: 9, kernel: 4 });
        s.step(&Op::Recv { n: 6 });
    }
    s.finish();
}
