//! docs/formats/rtrs.md shows the bytes that the code makes, and the code reads them back.

use memlane_fixtures::golden;
use memlane_transport::wire::{
    CAP_REPLAY, Caps, ConnReq, ConnRsp, Control, Geometry, Immediate, REPLAYED, Replay, Request,
    RequestKind, SgDesc,
};
use std::fmt::Debug;

fn page() -> String {
    golden::page("rtrs")
}

/// The page shows these bytes under this name, and they read back as `message`.
#[track_caller]
fn golden<T: Debug + PartialEq>(name: &str, bytes: &[u8], message: &T, read: Option<T>) {
    let told = golden::dump(name, bytes);
    assert!(page().contains(&told), "the page does not show\n{told}");
    assert_eq!(read.as_ref(), Some(message), "{name}");
}

fn conn_req() -> ConnReq {
    ConnReq {
        cid: 1,
        cid_num: 3,
        recon_cnt: 2,
        path: *b"path-uuid-16-byt",
        session: *b"sess-uuid-16-byt",
        first_conn: true,
        caps: None,
    }
}

fn conn_rsp() -> ConnRsp {
    ConnRsp {
        errno: 0,
        queue_depth: 512,
        max_io_size: 126_976,
        max_hdr_size: 4096,
        flags: 2,
        caps: None,
    }
}

#[test]
fn connection_messages_are_as_the_page_shows_them() {
    let plain = conn_req();
    let bytes = plain.encode();
    golden("conn_req", &bytes, &plain, ConnReq::decode(&bytes).ok());
    let number = 0x0102_0304_0506_0708;
    let bits = CAP_REPLAY;
    let caps = Some(Caps { bits, number });
    let ours = ConnReq { caps, ..plain };
    let bytes = ours.encode();
    let name = "conn_req with epoch";
    golden(name, &bytes, &ours, ConnReq::decode(&bytes).ok());

    let plain = conn_rsp();
    let bytes = plain.encode();
    golden("conn_rsp", &bytes, &plain, ConnRsp::decode(&bytes).ok());
    let ours = ConnRsp { caps, ..plain };
    let bytes = ours.encode();
    let name = "conn_rsp with instance";
    golden(name, &bytes, &ours, ConnRsp::decode(&bytes).ok());
    let refused = ConnRsp {
        errno: 6,
        ..ConnRsp::default()
    };
    let bytes = refused.encode();
    let name = "conn_rsp, refused with ENXIO";
    golden(name, &bytes, &refused, ConnRsp::decode(&bytes).ok());
}

fn desc(n: u64) -> SgDesc {
    SgDesc {
        addr: 0x7f00_0000_0000 + n * 0x2_0000,
        key: 0x1122_3344,
        len: 0x2_0000,
    }
}

#[test]
fn control_messages_are_as_the_page_shows_them() {
    let name = "blktest".to_string();
    let chunks = vec![desc(0), desc(1)];
    let key = 0x1122_3345;
    let epoch = 7;
    let all = [
        ("info_req", Control::InfoReq { name }),
        ("info_rsp", Control::InfoRsp { chunks }),
        ("rkey_rsp", Control::RkeyRsp { id: 511, key }),
        ("fence", Control::Fence { epoch }),
        ("fence_ack", Control::FenceAck { epoch }),
        ("refused with EACCES", Control::Refused { errno: 13 }),
    ];
    for (name, message) in all {
        let bytes = message.encode();
        golden(name, &bytes, &message, Control::decode(&bytes).ok());
    }
}

#[test]
fn request_headers_are_as_the_page_shows_them() {
    let write = Request {
        usr_len: 32,
        kind: RequestKind::Write,
        replay: None,
    };
    let read = Request {
        kind: RequestKind::Read {
            flags: 1,
            into: Some(desc(3)),
        },
        ..write
    };
    let replay = Some(Replay {
        generation: 9,
        flags: REPLAYED,
    });
    let all = [
        ("rdma_write", write),
        ("rdma_read", read),
        ("rdma_write, replayed", Request { replay, ..write }),
    ];
    for (name, message) in all {
        let bytes = message.encode();
        let read = Request::decode(&bytes, message.replay.is_some());
        golden(name, &bytes, &message, read.ok());
    }
}

#[test]
fn immediates_are_as_the_page_shows_them() {
    let geometry = Geometry::new(512, 128 << 10, 4096).expect("the defaults");
    let response = |errno, invalidated| Immediate::Response {
        id: 511,
        errno,
        invalidated,
    };
    let all = [
        (
            "request in chunk 3 at offset 4128",
            geometry.request(3, 4128),
        ),
        ("response for chunk 511", response(0, false)),
        ("response for chunk 511, EIO", response(5, false)),
        ("response for chunk 511, invalidated", response(0, true)),
        ("heartbeat", Immediate::Heartbeat),
        ("heartbeat acknowledged", Immediate::HeartbeatAck),
        ("notice 0x1234567", Immediate::Notice(0x123_4567)),
    ];
    let page = page();
    for (name, immediate) in all {
        let row = format!("| {name} | `{:08x}` |", immediate.encode());
        assert!(page.contains(&row), "the page does not show\n{row}");
        assert_eq!(Immediate::decode(immediate.encode()), Ok(immediate));
    }
    assert_eq!(geometry.split((3 << 19) | 4128), Ok((3, 4128)));
}
