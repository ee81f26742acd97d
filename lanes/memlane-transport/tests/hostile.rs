//! Whatever a peer sends, in whatever order: no panic, and no more in use than there is.

use memlane_transport::engine::client::{self, Client, Request};
use memlane_transport::engine::path::Conn;
use memlane_transport::engine::server::{self, Chunks, LinkId, Server, SessionId};
use memlane_transport::engine::{Direction, Inbound, Time};
use memlane_transport::wire::{
    CAP_REPLAY, Caps, ConnReq, ConnRsp, Control, Geometry, Immediate, Replay, Request as Header,
    RequestKind, SgDesc,
};
use proptest::prelude::*;

const CHUNK: u32 = 8192;

/// What a peer says: often almost right, so that it gets far.
#[derive(Clone, Debug)]
enum Said {
    Bytes(Vec<u8>),
    Control(Control),
    Immediate(u32),
    Known(Immediate),
    Gone,
    Later(u64),
}

fn said() -> impl Strategy<Value = Said> {
    let epoch = 0..12_u64;
    let chunks = prop_oneof![
        Just(vec![SgDesc {
            addr: 0,
            key: 1,
            len: 4 * CHUNK
        }]),
        proptest::collection::vec(any::<(u64, u32, u32)>(), 0..6).prop_map(|all| {
            let desc = |(addr, key, len)| SgDesc { addr, key, len };
            all.into_iter().map(desc).collect()
        }),
    ];
    let control = prop_oneof![
        4 => Just(Control::InfoReq { name: "peer".into() }),
        4 => chunks.prop_map(|chunks| Control::InfoRsp { chunks }),
        1 => (0..6_u16, any::<u32>()).prop_map(|(id, key)| Control::RkeyRsp { id, key }),
        1 => epoch.clone().prop_map(|epoch| Control::Fence { epoch }),
        1 => epoch.prop_map(|epoch| Control::FenceAck { epoch }),
    ];
    let response = (0..6_u32, 0..3_u16).prop_map(|(id, errno)| Immediate::Response {
        id,
        errno,
        invalidated: false,
    });
    let known = prop_oneof![
        2 => response,
        2 => (0..6_u32, 0..CHUNK).prop_map(|(id, at)| Immediate::Request((id << 26) | at)),
        1 => Just(Immediate::Heartbeat),
        1 => Just(Immediate::HeartbeatAck),
    ];
    prop_oneof![
        1 => proptest::collection::vec(any::<u8>(), 0..40).prop_map(Said::Bytes),
        4 => control.prop_map(Said::Control),
        1 => any::<u32>().prop_map(Said::Immediate),
        6 => known.prop_map(Said::Known),
        1 => Just(Said::Gone),
        1 => (0..1500_u64).prop_map(Said::Later),
    ]
}

/// What a client may say, and now and then anything.
fn said_by_a_client() -> impl Strategy<Value = Said> {
    let request = (0..4_u32, 0..1500_u32).prop_map(|(id, at)| Immediate::Request((id << 26) | at));
    prop_oneof![
        20 => request.prop_map(Said::Known),
        1 => (0..400_u64).prop_map(Said::Later),
        1 => said(),
    ]
}

/// A chunk in which, wherever one looks, lies the header of a request, or random bytes.
#[derive(Clone, Debug)]
struct Written(Vec<u8>);

impl Chunks for Written {
    fn table(&self, _: SessionId, _: LinkId) -> Vec<SgDesc> {
        Vec::new()
    }

    fn copy(&self, _: SessionId, chunk: u16, at: u32, into: &mut [u8]) {
        assert!(chunk < 4 && at as usize + into.len() <= CHUNK as usize);
        let bytes = self.0.iter().chain(std::iter::repeat(&0));
        into.iter_mut()
            .zip(bytes)
            .for_each(|(to, byte)| *to = *byte);
    }
}

fn written() -> impl Strategy<Value = Written> {
    let kind = prop_oneof![
        Just(RequestKind::Write),
        any::<(u64, u32, u32)>().prop_map(|(addr, key, len)| {
            let into = Some(SgDesc { addr, key, len });
            RequestKind::Read { flags: 0, into }
        }),
    ];
    let header =
        (0..60_u16, kind, 1..4_u64, 0..4_u32).prop_map(|(usr_len, kind, generation, flags)| {
            let replay = Some(Replay { generation, flags });
            let header = Header {
                usr_len,
                kind,
                replay,
            };
            header.encode()
        });
    prop_oneof![header, proptest::collection::vec(any::<u8>(), 0..40)].prop_map(Written)
}

fn request(cid: u16, path: u8, epoch: u64, first_conn: bool) -> ConnReq {
    let (bits, number) = (CAP_REPLAY, epoch);
    ConnReq {
        cid,
        cid_num: 2,
        recon_cnt: 0,
        path: [path; 16],
        session: [9; 16],
        first_conn,
        caps: (epoch > 0).then_some(Caps { bits, number }),
    }
}

proptest! {
    #[test]
    fn a_server_survives_any_client(
        script in proptest::collection::vec((0..4_u64, said_by_a_client(), written()), 1..60),
        connects in proptest::collection::vec((0..2_u16, 0..2_u8, 0..4_u64, 0..60_usize), 0..10),
        results in proptest::collection::vec(0..60_usize, 0..20),
    ) {
        let geometry = Geometry::new(4, CHUNK, 4096).unwrap();
        let mut server = Server::new(server::Config::new(geometry, 5));
        let mut now = Time::ZERO;
        // Two good connections, so that there is something to break.
        for cid in [0, 1] {
            server.on_connect(now, LinkId(u64::from(cid)), &request(cid, 0, 1, true).encode());
        }
        let hello = Control::InfoReq { name: "peer".into() }.encode();
        server.on_message(now, LinkId(0), Inbound::Send(&hello), &Written(Vec::new()));
        let mut jobs = Vec::new();
        for (step, (link, said, chunks)) in script.iter().enumerate() {
            for (at, (cid, path, epoch, _)) in connects.iter().enumerate().filter(|(_, c)| c.3 == step) {
                let link = LinkId(2 + at as u64);
                server.on_connect(now, link, &request(*cid, *path, *epoch, true).encode());
            }
            let link = LinkId(*link);
            match said {
                Said::Bytes(bytes) => server.on_message(now, link, Inbound::Send(bytes), chunks),
                Said::Control(message) => {
                    server.on_message(now, link, Inbound::Send(&message.encode()), chunks);
                }
                Said::Immediate(imm) => server.on_message(now, link, Inbound::Immediate(*imm), chunks),
                Said::Known(imm) => server.on_message(now, link, Inbound::Immediate(imm.encode()), chunks),
                Said::Gone => server.on_closed(now, link),
                Said::Later(more) => {
                    now += Time::from_millis(*more);
                    server.poll(now);
                }
            }
            while let Some(action) = server.poll_action() {
                if let server::Action::Execute(job) = action {
                    prop_assert!(job.len <= CHUNK - 4096);
                    jobs.push(job);
                }
            }
            // No chunk is in use twice at a time.
            let mut busy: Vec<_> = jobs.iter().map(|job| (job.session, job.permit)).collect();
            busy.sort_unstable();
            prop_assert!(busy.windows(2).all(|pair| pair[0] != pair[1]), "{busy:?}");
            if results.contains(&step) && !jobs.is_empty() {
                let job = jobs.remove(0);
                server.finished(job.session, job.permit, job.generation, 0);
            }
        }
    }

    #[test]
    fn a_client_survives_any_server(
        script in proptest::collection::vec((0..3_u16, said(), any::<bool>()), 1..60),
        depth in 1..6_u16, instance in proptest::collection::vec(0..3_u64, 60),
    ) {
        let mut now = Time::ZERO;
        let mut client = Client::new(client::Config::new("peer", [7; 16]));
        let path = client.add_path(now).unwrap();
        client.add_path(now);
        let mut conns: Vec<Conn> = Vec::new();
        let mut taken = 0_i64;
        for (step, (cid, said, submits)) in script.iter().enumerate() {
            while let Some(action) = client.poll_action() {
                if let client::Action::Connect { conn, .. } = action {
                    conns.push(conn);
                    let (bits, number) = (CAP_REPLAY, instance[step]);
                    let rsp = ConnRsp {
                        // Mostly the same.
                        queue_depth: if step % 9 == 8 { depth } else { 4 },
                        max_io_size: CHUNK - 4096,
                        max_hdr_size: 4096,
                        caps: (number > 0).then_some(Caps { bits, number }),
                        ..ConnRsp::default()
                    };
                    client.on_accepted(now, conn, &rsp.encode());
                }
            }
            let conn = conns.iter().rev().find(|conn| conn.cid == *cid).copied();
            let conn = conn.unwrap_or(Conn { path, epoch: 1, cid: *cid });
            match said {
                Said::Bytes(bytes) => client.on_message(now, conn, Inbound::Send(bytes)),
                Said::Control(message @ Control::RkeyRsp { .. }) => {
                    let inbound = &message.encode();
                    client.on_message(now, conn, Inbound::SendImmediate(inbound, 1 << 28));
                }
                Said::Control(message) => client.on_message(now, conn, Inbound::Send(&message.encode())),
                Said::Immediate(imm) => client.on_message(now, conn, Inbound::Immediate(*imm)),
                Said::Known(imm) => client.on_message(now, conn, Inbound::Immediate(imm.encode())),
                Said::Gone => client.on_closed(now, conn),
                Said::Later(more) => {
                    now += Time::from_millis(*more);
                    client.poll(now);
                }
            }
            if *submits {
                let request = Request {
                    direction: Direction::Write,
                    usr: [0; 8].into(),
                    len: 8,
                    into: None,
                    hint: 0,
                };
                taken += i64::from(client.submit(now, request).is_ok());
            }
            while let Some(event) = client.poll_event() {
                taken -= i64::from(matches!(event, client::Event::Done { .. }));
            }
            // Each request that was taken is told of once.
            prop_assert!(taken >= 0);
            let depth = client.geometry().map_or(0, |geometry| geometry.depth());
            prop_assert!(taken + i64::from(client.free_permits()) <= i64::from(depth));
        }
        client.close(now);
        while let Some(event) = client.poll_event() {
            taken -= i64::from(matches!(event, client::Event::Done { .. }));
        }
        prop_assert_eq!(taken, 0);
    }
}
