//! The messages of sessions between machines.

use memlane_transport::wire::{
    CAP_REPLAY, Caps, ConnReq, ConnRsp, Control, Geometry, Immediate, Replay, Request, RequestKind,
    SgDesc,
};

/// A message of a client or a server (connect, accept or send) and the header of a request, after a byte that says
/// whether replays are supported, and four bytes of an immediate. A message is refused, or encodes to the same bytes
/// again; and whatever an immediate names lies in an existing chunk.
pub fn rtrs_message(bytes: &[u8]) -> bool {
    let Some((head, bytes)) = bytes.split_at_checked(5) else {
        return false;
    };
    let can_replay = head[0] & 1 == 1;
    let immediate = u32::from_le_bytes([head[1], head[2], head[3], head[4]]);
    let wish = ConnReq::decode(bytes);
    if let Ok(wish) = &wish {
        assert_eq!(ConnReq::decode(&wish.encode()).as_ref(), Ok(wish));
    }
    let answer = ConnRsp::decode(bytes);
    if let Ok(answer) = answer {
        assert_eq!(ConnRsp::decode(&answer.encode()), Ok(answer));
        chunks(&answer, immediate);
    }
    let control = Control::decode(bytes);
    if let Ok(control) = &control {
        assert_eq!(Control::decode(&control.encode()).as_ref(), Ok(control));
        if let Control::InfoReq { name } = control {
            assert!(
                !name.is_empty() && !name.contains(['/', '.', '\0']),
                "{name:?}"
            );
        }
    }
    let request = Request::decode(bytes, can_replay);
    if let Ok(request) = request {
        assert_eq!(Request::decode(&request.encode(), can_replay), Ok(request));
        assert_eq!(request.replay.is_some(), can_replay);
        assert!(request.replay.is_none_or(|replay| replay.generation > 0));
    }
    wish.is_ok() || answer.is_ok() || control.is_ok() || request.is_ok()
}

fn chunks(answer: &ConnRsp, immediate: u32) {
    let Ok(geometry) = Geometry::of(answer) else {
        return;
    };
    assert!(geometry.depth() > 0 && geometry.max_io() < geometry.chunk());
    let Ok(Immediate::Request(payload)) = Immediate::decode(immediate) else {
        return;
    };
    if let Ok((id, offset)) = geometry.split(payload) {
        assert!(id < geometry.depth() && offset < geometry.chunk());
        assert_eq!(geometry.request(id, offset), Immediate::Request(payload));
    }
}

/// Seeds: one message of each kind.
pub(crate) fn messages() -> Vec<(&'static str, Vec<u8>)> {
    let (bits, desc) = (
        CAP_REPLAY,
        SgDesc {
            addr: 0x1000,
            key: 7,
            len: 65536,
        },
    );
    let wish = ConnReq {
        cid: 1,
        cid_num: 3,
        recon_cnt: 2,
        path: [1; 16],
        session: [2; 16],
        first_conn: true,
        caps: Some(Caps { bits, number: 9 }),
    };
    let answer = ConnRsp {
        queue_depth: 512,
        max_io_size: 126_976,
        max_hdr_size: 4096,
        caps: Some(Caps { bits, number: 10 }),
        ..ConnRsp::default()
    };
    let request = |kind| Request {
        usr_len: 28,
        kind,
        replay: Some(Replay {
            generation: 3,
            flags: 0,
        }),
    };
    let read = RequestKind::Read {
        flags: 0,
        into: Some(desc),
    };
    let name = "host-a:server".to_owned();
    let chunks = vec![desc; 2];
    let all = [
        ("connect", wish.encode().to_vec()),
        ("accept", answer.encode().to_vec()),
        ("info", Control::InfoReq { name }.encode()),
        ("chunks", Control::InfoRsp { chunks }.encode()),
        ("key", Control::RkeyRsp { id: 5, key: 6 }.encode()),
        ("fence", Control::Fence { epoch: 4 }.encode()),
        ("write", request(RequestKind::Write).encode()),
        ("read", request(read).encode()),
    ];
    let head = [&[1][..], &(5_u32 << 19 | 4096).to_le_bytes()].concat();
    all.map(|(name, bytes)| (name, [head.clone(), bytes].concat()))
        .to_vec()
}
