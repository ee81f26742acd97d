use super::*;
use proptest::prelude::*;

fn terms() -> Terms {
    let info = Info {
        size: 1 << 30,
        block: 512,
        preferred: 4096,
        max_io: 128 * 1024,
        max_trim: 1 << 20,
        read_only: false,
        cached: true,
        trim: true,
        zeroes: true,
        extents: true,
    };
    Terms {
        info,
        read_only: false,
        structured: true,
        allocation: true,
        stopping: false,
    }
}

fn request(command: u16, flags: u16, at: u64, len: u32) -> Request {
    Request {
        flags,
        command,
        cookie: 1,
        at,
        len,
    }
}

const SIZE: u64 = 1 << 30;
const ALL: [u16; 7] = [
    cmd::READ,
    cmd::WRITE,
    cmd::FLUSH,
    cmd::TRIM,
    cmd::CACHE,
    cmd::WRITE_ZEROES,
    cmd::BLOCK_STATUS,
];

#[test]
fn behind_the_end_each_command_has_its_own_error() {
    for (command, error) in [
        (cmd::READ, error::EINVAL),
        (cmd::WRITE, error::ENOSPC),
        (cmd::TRIM, error::EINVAL),
        (cmd::CACHE, error::EINVAL),
        (cmd::WRITE_ZEROES, error::ENOSPC),
        (cmd::BLOCK_STATUS, error::EINVAL),
    ] {
        for (at, len) in [
            (SIZE, 1),
            (SIZE - 1, 2),
            (u64::MAX, 1),
            (u64::MAX - 511, 512),
        ] {
            let verdict = terms().judge(&request(command, 0, at, len));
            assert_eq!(verdict, Verdict::Refuse(error), "{command} {at} {len}");
        }
        let verdict = terms().judge(&request(command, 0, SIZE - 1, 1));
        assert_eq!(verdict, Verdict::Serve, "{command}");
    }
}

#[test]
fn a_read_only_export_permits_nothing_that_writes() {
    let terms = Terms {
        read_only: true,
        ..terms()
    };
    for command in [cmd::WRITE, cmd::TRIM, cmd::WRITE_ZEROES] {
        let verdict = terms.judge(&request(command, 0, 0, 512));
        assert_eq!(verdict, Verdict::Refuse(error::EPERM));
    }
    assert_eq!(terms.judge(&request(cmd::FLUSH, 0, 0, 0)), Verdict::Serve);
}

#[test]
fn flags_are_taken_only_where_they_mean_something() {
    let known: [u16; 7] = [1 | 4, 1, 1, 1, 1, 1 | 2 | 16, 1 | 8];
    for (command, known) in ALL.into_iter().zip(known) {
        let len = if command == cmd::FLUSH { 0 } else { 512 };
        for bit in 0..16 {
            let verdict = terms().judge(&request(command, 1 << bit, 0, len));
            let expected = match known & (1 << bit) {
                0 => Verdict::Refuse(error::EINVAL),
                _ => Verdict::Serve,
            };
            assert_eq!(verdict, expected, "command {command} bit {bit}");
        }
    }
    let simple = Terms {
        structured: false,
        ..terms()
    };
    let df = request(cmd::READ, cmd_flag::DF, 0, 512);
    assert_eq!(simple.judge(&df), Verdict::Refuse(error::EINVAL));
}

#[test]
fn what_was_not_offered_is_not_done() {
    let mut less = terms();
    (less.info.trim, less.info.zeroes, less.allocation) = (false, false, false);
    for command in [cmd::TRIM, cmd::WRITE_ZEROES, cmd::BLOCK_STATUS, 8, 9, 65535] {
        let verdict = less.judge(&request(command, 0, 0, 512));
        assert_eq!(verdict, Verdict::Refuse(error::EINVAL), "{command}");
    }
}

#[test]
fn lengths_beyond_the_limit_are_refused_and_monsters_end_it() {
    let max = wire::MAX_PAYLOAD;
    let judge = |command, len| terms().judge(&request(command, 0, 0, len));
    assert_eq!(judge(cmd::READ, max), Verdict::Serve);
    assert_eq!(judge(cmd::READ, max + 1), Verdict::Refuse(error::EOVERFLOW));
    assert_eq!(judge(cmd::WRITE, max), Verdict::Serve);
    assert_eq!(judge(cmd::WRITE, max + 1), Verdict::Refuse(error::EINVAL));
    assert_eq!(judge(cmd::WRITE, u32::MAX), Verdict::Broken);
    assert_eq!(judge(cmd::TRIM, 1 << 30), Verdict::Serve);
    assert_eq!(judge(cmd::WRITE_ZEROES, 1 << 30), Verdict::Serve);
}

#[test]
fn zeroes_that_must_be_fast_are_not_made_by_reading_blocks() {
    let fast = cmd_flag::FAST_ZERO;
    let judge = |at, len| terms().judge(&request(cmd::WRITE_ZEROES, fast, at, len));
    assert_eq!(judge(512, 1024), Verdict::Serve);
    assert_eq!(judge(513, 1024), Verdict::Refuse(error::ENOTSUP));
}

#[test]
fn nothing_new_is_begun_by_a_server_that_stops() {
    let terms = Terms {
        stopping: true,
        ..terms()
    };
    for command in ALL {
        let verdict = terms.judge(&request(command, 0, 0, 0));
        assert_eq!(verdict, Verdict::Refuse(error::ESHUTDOWN));
    }
    assert_eq!(terms.judge(&request(cmd::DISC, 0, 0, 0)), Verdict::End);
}

#[test]
fn a_volume_in_blocks_that_nbd_does_not_have_is_no_export() {
    let info = terms().info;
    assert!(Terms::whole_blocks(Info { block: 600, ..info }).is_none());
    assert!(
        Terms::whole_blocks(Info {
            block: 1 << 17,
            ..info
        })
        .is_none()
    );
    assert!(
        Terms::whole_blocks(Info {
            max_io: 511,
            ..info
        })
        .is_none()
    );
    let odd = Info {
        size: 1025,
        max_io: 1000,
        max_trim: 100,
        ..info
    };
    let whole = Terms::whole_blocks(odd).unwrap();
    assert_eq!((whole.size, whole.max_io, whole.max_trim), (1024, 512, 0));
    assert!(!whole.trim && !whole.zeroes);
}

proptest! {
    #[test]
    fn the_pieces_of_a_request_are_the_request(
        at in 0..1_000_000_u64, len in 1..300_000_u64, shift in 9..17_u32, times in 1..40_u32,
    ) {
        let (block, end) = (1_u32 << shift, at + len);
        let most = block * times;
        let (mut next, mut parts) = (at, 0);
        while next < end {
            let piece = Piece::next(next, end, block, most);
            match piece {
                Piece::Whole { at, len } => {
                    prop_assert_eq!(at, next);
                    prop_assert!(at.is_multiple_of(block.into()) && len.is_multiple_of(block));
                    prop_assert!(len > 0 && len <= most);
                }
                Piece::Part { block: start, from, len } => {
                    prop_assert!(start.is_multiple_of(block.into()));
                    prop_assert_eq!(start + u64::from(from), next);
                    prop_assert!(len > 0 && len < block && from + len <= block);
                    parts += 1;
                }
            }
            next += u64::from(piece.len());
        }
        prop_assert_eq!(next, end);
        prop_assert!(parts <= 2);
    }

    #[test]
    fn the_spans_of_a_read_are_the_read(
        at in 0..1_000_000_u64, len in 1..300_000_u64, shift in 9..17_u32, times in 1..40_u32,
    ) {
        let (block, end) = (1_u32 << shift, at + len);
        let mut next = at;
        while next < end {
            let span = Span::next(next, end, block, block * times);
            prop_assert!(span.at.is_multiple_of(block.into()) && span.len.is_multiple_of(block));
            prop_assert!(span.take > 0 && span.len <= block * times);
            prop_assert!(span.skip + span.take <= span.len);
            prop_assert_eq!(span.at + u64::from(span.skip), next);
            next += u64::from(span.take);
        }
        prop_assert_eq!(next, end);
    }

    #[test]
    fn the_inner_blocks_are_inside(at in 0..100_000_u64, len in 0..10_000_u64, shift in 9..14_u32) {
        let (from, to) = inner_blocks(at, at + len, 1 << shift);
        prop_assert!(from <= to && from >= at);
        prop_assert!(to == from || (to <= at + len && (to - from).is_multiple_of(1 << shift)));
    }
}
