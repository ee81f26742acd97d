//! Whatever is encoded reads back; whatever bytes come give a message or an error, never a panic.

use memlane_transport::error::WireError;
use memlane_transport::wire::{
    Caps, ConnReq, ConnRsp, Control, Geometry, Immediate, MAX_CONNECTIONS, Replay, Request,
    RequestKind, SgDesc,
};
use proptest::prelude::*;

fn caps() -> impl Strategy<Value = Option<Caps>> {
    proptest::option::of(
        (any::<u16>(), any::<u64>()).prop_map(|(bits, number)| Caps { bits, number }),
    )
}

fn desc() -> impl Strategy<Value = SgDesc> {
    (any::<u64>(), any::<u32>(), any::<u32>()).prop_map(|(addr, key, len)| SgDesc {
        addr,
        key,
        len,
    })
}

fn control() -> impl Strategy<Value = Control> {
    prop_oneof![
        "[a-zA-Z0-9@:_ é-]{1,120}".prop_map(|name| Control::InfoReq { name }),
        proptest::collection::vec(desc(), 0..40).prop_map(|chunks| Control::InfoRsp { chunks }),
        (any::<u16>(), any::<u32>()).prop_map(|(id, key)| Control::RkeyRsp { id, key }),
        any::<u64>().prop_map(|epoch| Control::Fence { epoch }),
        any::<u64>().prop_map(|epoch| Control::FenceAck { epoch }),
        any::<u16>().prop_map(|errno| Control::Refused { errno }),
    ]
}

fn request() -> impl Strategy<Value = Request> {
    let kind = prop_oneof![
        Just(RequestKind::Write),
        (any::<u16>(), proptest::option::of(desc()))
            .prop_map(|(flags, into)| RequestKind::Read { flags, into }),
    ];
    let replay = proptest::option::of(
        (1..u64::MAX, any::<u32>()).prop_map(|(generation, flags)| Replay { generation, flags }),
    );
    (any::<u16>(), kind, replay).prop_map(|(usr_len, kind, replay)| Request {
        usr_len,
        kind,
        replay,
    })
}

proptest! {
    #[test]
    fn a_connection_request_reads_back(
        (cid_num, cid) in (1..=MAX_CONNECTIONS).prop_flat_map(|n| (Just(n), 0..n)),
        recon_cnt: u16, path: [u8; 16], session: [u8; 16], first_conn: bool, caps in caps(),
    ) {
        let sent = ConnReq { cid, cid_num, recon_cnt, path, session, first_conn, caps };
        prop_assert_eq!(ConnReq::decode(&sent.encode()), Ok(sent));
    }

    #[test]
    fn a_connection_response_reads_back(
        errno: u16, queue_depth: u16, max_io_size: u32, max_hdr_size: u32, flags: u32, caps in caps(),
    ) {
        let sent = ConnRsp { errno, queue_depth, max_io_size, max_hdr_size, flags, caps };
        prop_assert_eq!(ConnRsp::decode(&sent.encode()), Ok(sent));
    }

    #[test]
    fn a_control_message_reads_back_and_is_refused_when_cut(sent in control(), cut: prop::sample::Index) {
        let bytes = sent.encode();
        prop_assert_eq!(Control::decode(&bytes), Ok(sent));
        let cut = cut.index(bytes.len());
        let short = matches!(Control::decode(&bytes[..cut]), Err(WireError::Short { .. }));
        prop_assert!(short, "{cut} of {}", bytes.len());
    }

    #[test]
    fn a_request_reads_back_also_from_the_middle_of_a_chunk(sent in request(), behind: Vec<u8>) {
        let mut bytes = sent.encode();
        bytes.extend(behind);
        prop_assert_eq!(Request::decode(&bytes, sent.replay.is_some()), Ok(sent));
    }

    #[test]
    fn an_immediate_names_each_place_of_each_chunk(
        (depth, id) in (1..=u16::MAX).prop_flat_map(|n| (Just(n), 0..n)),
        chunk in 4096_u32..1 << 28, at: prop::sample::Index,
    ) {
        if let Ok(geometry) = Geometry::new(depth, chunk, 4096) {
            let offset = u32::try_from(at.index(chunk as usize)).unwrap();
            let imm = geometry.request(id, offset);
            prop_assert_eq!(Immediate::decode(imm.encode()), Ok(imm));
            let Immediate::Request(payload) = imm else { unreachable!() };
            prop_assert_eq!(geometry.split(payload), Ok((id, offset)));
        } else {
            let bits = u32::from(depth).next_power_of_two().trailing_zeros();
            prop_assert!(chunk < 8192 || u64::from(chunk) << bits > 1 << 28);
        }
    }

    #[test]
    fn an_immediate_that_is_one_reads_back(imm: u32) {
        if let Ok(immediate) = Immediate::decode(imm) {
            let again = Immediate::decode(immediate.encode());
            prop_assert_eq!(again, Ok(immediate));
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..400), kind in 0_u16..6, payload: u32,
        depth: u16, chunk: u32, header: u32, can_replay: bool,
    ) {
        let _ = (ConnReq::decode(&bytes), ConnRsp::decode(&bytes), Control::decode(&bytes));
        let _ = Request::decode(&bytes, can_replay);
        // Few random bytes get past the type, or the magic.
        let mut typed = kind.to_le_bytes().to_vec();
        typed.extend(&bytes);
        let _ = (Control::decode(&typed), Request::decode(&typed, can_replay));
        let mut magic = vec![0xBD, 0x1B, 0, 2];
        magic.extend(&bytes);
        let _ = ConnRsp::decode(&magic);
        magic.splice(0..0, [0, 0]);
        let _ = ConnReq::decode(&magic);
        if let Ok(geometry) = Geometry::new(depth, chunk, header) {
            let _ = geometry.split(payload & 0x0FFF_FFFF);
        }
    }
}

#[test]
fn a_strange_magic_a_newer_major_version_and_a_bad_name_are_told_apart() {
    let rsp = ConnRsp::default().encode();
    let with = |at: usize, value: u8| {
        let mut bytes = rsp;
        bytes[at] = value;
        ConnRsp::decode(&bytes)
    };
    assert_eq!(with(1, 0x1C), Err(WireError::Magic(0x1CBD)));
    assert_eq!(with(3, 3), Err(WireError::Version(0x0300)));
    assert!(with(2, 9).is_ok(), "the minor version does not count");
    let name = String::from("up/../down");
    let bytes = Control::InfoReq { name }.encode();
    assert_eq!(Control::decode(&bytes), Err(WireError::Name));
    let unended = [&[0; 2][..], &[b'a'; 270]].concat();
    assert_eq!(Control::decode(&unended), Err(WireError::Name));
}
