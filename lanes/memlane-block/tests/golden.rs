//! docs/formats/rnbd.md shows the bytes that the code makes, and the code reads them back.

use memlane_block::volume::{Flags, Info, Op};
use memlane_block::wire::{
    Access, Busy, CAP_BOOT_ID, CAPS, Close, IoMsg, Message, Open, OpenRsp, SessInfo, SessInfoRsp,
    VERSION, WireError, Wish,
};
use memlane_fixtures::golden::{dump, page};
use std::fmt::Debug;

/// The page shows these bytes under this name, and they read back as `message`.
#[track_caller]
fn golden<T: Debug + PartialEq>(name: &str, bytes: &[u8], message: &T, read: Result<T, WireError>) {
    let told = dump(name, bytes);
    assert!(
        page("rnbd").contains(&told),
        "the page does not show\n{told}"
    );
    assert_eq!(read.as_ref(), Ok(message), "{name}");
}

#[track_caller]
fn asked(name: &str, bytes: &[u8], message: &Message) {
    golden(name, bytes, message, Message::decode(bytes));
}

fn info() -> Info {
    Info {
        size: 10 << 30,
        block: 512,
        preferred: 4096,
        max_io: 126_976,
        max_trim: 1 << 30,
        read_only: true,
        cached: true,
        trim: true,
        zeroes: true,
        extents: true,
    }
}

#[test]
fn sessions_are_as_the_page_shows() {
    let plain = SessInfo {
        version: VERSION,
        caps: 0,
    };
    asked("sess_info", &plain.encode(), &Message::SessInfo(plain));
    let ours = SessInfo {
        version: VERSION,
        caps: CAPS,
    };
    asked(
        "sess_info with capabilities",
        &ours.encode(),
        &Message::SessInfo(ours),
    );
    let rsp = SessInfoRsp {
        version: VERSION,
        caps: CAPS,
        boot: *b"boot-id-of-16-by",
    };
    let bytes = rsp.encode();
    golden(
        "sess_info_rsp with capabilities",
        &bytes,
        &rsp,
        SessInfoRsp::decode(&bytes),
    );
    let plain = SessInfoRsp {
        version: VERSION,
        caps: 0,
        boot: [0; 16],
    };
    let bytes = plain.encode();
    golden("sess_info_rsp", &bytes, &plain, SessInfoRsp::decode(&bytes));
}

#[test]
fn opening_is_as_the_page_shows() {
    let mut open = Open::new(Access::ReadWrite, "vm/disk0.img");
    asked(
        "open",
        &open.encode().unwrap(),
        &Message::Open(open.clone()),
    );
    open.wish = Wish {
        take_over: true,
        again: Some(0x22_3344),
    };
    asked(
        "open with wishes",
        &open.encode().unwrap(),
        &Message::Open(open),
    );
    let busy = Busy::new("host-a@192-0-2-1-1234", Some(75));
    let bytes = busy.encode();
    golden("busy", &bytes, &busy, Busy::decode(&bytes));
    let plain = OpenRsp::of(0x1122_3344, &info(), 0);
    let bytes = plain.encode();
    golden("open_rsp", &bytes, &plain, OpenRsp::decode(&bytes));
    let ours = OpenRsp::of(0x1122_3344, &info(), CAPS);
    let bytes = ours.encode();
    golden(
        "open_rsp with flags",
        &bytes,
        &ours,
        OpenRsp::decode(&bytes),
    );
    assert_eq!(ours.info(), info());
    // Mainline cannot say read-only, and has no extents.
    let told = Info {
        read_only: false,
        extents: false,
        ..info()
    };
    assert_eq!(plain.info(), told);
    let close = Close {
        device_id: 0x1122_3344,
    };
    asked("close", &close.encode(), &Message::Close(close));
}

#[test]
fn requests_are_as_the_page_shows() {
    let cases = [
        ("io, read", Op::Read, Flags::NONE),
        (
            "io, write with FUA and PREFLUSH",
            Op::Write,
            Flags::FUA.and(Flags::PREFLUSH),
        ),
        ("io, flush", Op::Flush, Flags::NONE),
        ("io, discard", Op::Trim, Flags::NONE),
        ("io, write zeroes, NOUNMAP", Op::WriteZeroes, Flags::NO_HOLE),
        ("io, write zeroes, fast", Op::WriteZeroes, Flags::FAST),
        ("io, extents", Op::Extents, Flags::NONE),
    ];
    for (name, op, flags) in cases {
        let data = op != Op::Flush;
        let io = IoMsg {
            device_id: 0x1122_3344,
            sector: if data { 0x0102_0304_0506 } else { 0 },
            op,
            flags,
            len: if data { 4096 } else { 0 },
            prio: 0,
        };
        asked(name, &io.encode(), &Message::Io(io));
    }
}

#[test]
fn what_a_mainline_end_sees_is_zero_where_it_expects_zero() {
    let caps = CAPS & !CAP_BOOT_ID;
    let rsp = SessInfoRsp {
        version: VERSION,
        caps,
        boot: [7; 16],
    };
    assert!(rsp.encode()[8..].iter().all(|byte| *byte == 0));
    let plain = OpenRsp::of(1, &info(), 0).encode();
    assert!(plain[46..].iter().all(|byte| *byte == 0));
}

#[test]
fn a_server_that_describes_no_volume_is_not_believed() {
    let right = OpenRsp::of(1, &info(), CAPS);
    let wrong = |change: &dyn Fn(&mut OpenRsp)| {
        let mut rsp = right;
        change(&mut rsp);
        OpenRsp::decode(&rsp.encode()).unwrap_err()
    };
    for block in [0, 3, 1, 256, 513] {
        assert_eq!(
            wrong(&|rsp| rsp.logical_block = block),
            WireError::Field("logical_block_size")
        );
    }
    assert_eq!(
        wrong(&|rsp| rsp.physical_block = 3),
        WireError::Field("physical_block_size")
    );
    for sectors in [u64::MAX, 1 << 55] {
        assert_eq!(
            wrong(&|rsp| rsp.sectors = sectors),
            WireError::Field("nsectors")
        );
    }
    let uneven = |rsp: &mut OpenRsp| (rsp.logical_block, rsp.sectors) = (4096, 9);
    assert_eq!(wrong(&uneven), WireError::Field("nsectors"));
    assert_eq!(
        wrong(&|rsp| rsp.max_io_sectors = 0),
        WireError::Field("max_hw_sectors")
    );
    let short = right.encode();
    for len in 0..short.len() {
        assert!(matches!(
            OpenRsp::decode(&short[..len]),
            Err(WireError::Short { .. })
        ));
    }
}

#[test]
fn a_name_that_is_no_name_is_refused() {
    let named = |name: &str| Open::new(Access::ReadOnly, name);
    let long = "x".repeat(255);
    for name in ["", "a\0b", long.as_str()] {
        assert_eq!(named(name).encode(), Err(WireError::Name), "{name:?}");
    }
    let mut bytes = named("right").encode().unwrap();
    bytes[6] = 0xff;
    assert_eq!(Message::decode(&bytes), Err(WireError::Name));
    bytes[6..261].fill(b'x');
    assert_eq!(Message::decode(&bytes), Err(WireError::Name), "without end");
    bytes[4] = 3;
    assert_eq!(
        Message::decode(&bytes),
        Err(WireError::Field("access_mode"))
    );
}
