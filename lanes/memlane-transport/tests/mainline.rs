//! The messages of mainline's kernel modules mean to us what they meant to each other, and we would have sent the same bytes.

use memlane_fixtures::mainline::{How, Said, conversation};
use memlane_transport::wire::{
    CONN_LEN, ConnReq, ConnRsp, Control, Geometry, Immediate, Request, RequestKind, SgDesc,
};

fn said(by_client: bool, is_how: fn(How) -> bool) -> Vec<Said> {
    let all = conversation().into_iter();
    all.filter(|said| said.by_client == by_client && is_how(said.how))
        .collect()
}

fn private(how: How) -> bool {
    how == How::Private
}

fn sent(how: How) -> bool {
    how == How::Send
}

fn written(how: How) -> bool {
    matches!(how, How::Write(_))
}

/// All connections' answers say the same.
fn geometry() -> Geometry {
    let answers = said(false, private);
    let answer = ConnRsp::decode(&answers[0].bytes).expect("an answer");
    Geometry::of(&answer).expect("a geometry")
}

/// The server's chunks, as it has told them.
fn chunks() -> Vec<SgDesc> {
    let told = said(false, sent).into_iter();
    let mut told = told.filter_map(|said| match Control::decode(&said.bytes) {
        Ok(Control::InfoRsp { chunks }) => Some(chunks),
        _ => None,
    });
    told.next().expect("they are told")
}

#[test]
fn connections_are_asked_for_and_accepted_as_we_would() {
    let (asked, answered) = (said(true, private), said(false, private));
    let asked: Vec<ConnReq> = asked
        .iter()
        .map(|one| {
            let req = ConnReq::decode(&one.bytes).expect("a request");
            assert_eq!(req.encode(), one.bytes[..CONN_LEN]);
            req
        })
        .collect();
    assert!(asked.len() >= 2, "one for messages, others for requests");
    for (number, req) in (0..).zip(&asked) {
        assert_eq!((req.cid, req.recon_cnt), (number, 1));
        assert_eq!(usize::from(req.cid_num), asked.len());
        assert_eq!((req.session, req.path), (asked[0].session, asked[0].path));
        assert!(req.first_conn && req.caps.is_none());
    }
    for one in &answered {
        let rsp = ConnRsp::decode(&one.bytes).expect("an answer");
        assert_eq!(rsp.encode(), one.bytes[..CONN_LEN]);
        assert_eq!((rsp.errno, rsp.queue_depth, rsp.caps), (0, 512, None));
    }
    assert_eq!(geometry().chunk(), 128 << 10);
}

#[test]
fn messages_introduce_the_session_its_chunks_and_new_keys() {
    let decoded = |said: &Said| {
        let message = Control::decode(&said.bytes).expect("a message");
        assert_eq!(message.encode(), said.bytes);
        message
    };
    let client: Vec<Control> = said(true, sent).iter().map(decoded).collect();
    let name = "vectors".to_owned();
    assert_eq!(client, [Control::InfoReq { name }]);
    let server = said(false, sent).into_iter();
    // Invalidations of a client's key have no bytes.
    let server = server.filter(|said| !said.bytes.is_empty());
    let server: Vec<Control> = server.map(|said| decoded(&said)).collect();
    let (Control::InfoRsp { chunks }, keys) = (&server[0], &server[1..]) else {
        panic!("{:?}", server[0]);
    };
    assert_eq!(chunks.len(), usize::from(geometry().depth()));
    assert!(chunks.iter().all(|chunk| chunk.len == geometry().chunk()));
    let is_key = |message: &Control| matches!(message, Control::RkeyRsp { id, .. } if *id < 512);
    assert!(keys.len() > 10 && keys.iter().all(is_key), "{keys:?}");
}

#[test]
fn immediates_lead_to_request_headers_and_to_answers() {
    let (mut reads, mut writes) = (0, 0);
    let chunks = chunks();
    for one in said(true, written) {
        let raw = one.immediate.expect("each request has one");
        let immediate = Immediate::decode(raw).expect("an immediate");
        assert_eq!(immediate.encode(), raw);
        let Immediate::Request(payload) = immediate else {
            panic!("{immediate:?}");
        };
        let (id, offset) = geometry().split(payload).expect("a chunk");
        assert_eq!(geometry().request(id, offset), immediate);
        let How::Write(at) = one.how else { continue };
        let begins = u32::try_from(at - chunks[usize::from(id)].addr).expect("in its chunk");
        let header = &one.bytes[(offset - begins) as usize..];
        let request = Request::decode(header, false).expect("a header");
        assert_eq!(request.encode(), header);
        assert!(u32::from(request.usr_len) <= offset - begins);
        match request.kind {
            RequestKind::Read { into, .. } => {
                // A flush is a read of nothing.
                assert!(into.is_none_or(|into| into.len > 0));
                reads += 1;
            }
            RequestKind::Write => writes += 1,
        }
    }
    assert!(reads > 3 && writes > 3, "{reads} reads, {writes} writes");
    let answers = said(false, sent)
        .into_iter()
        .filter_map(|one| one.immediate);
    let mut count = 0;
    for raw in answers {
        let immediate = Immediate::decode(raw).expect("an immediate");
        assert_eq!(immediate.encode(), raw);
        let fine = matches!(immediate, Immediate::Response { id, errno: 0, .. } if id < 512);
        assert!(fine, "{immediate:?}");
        count += 1;
    }
    assert_eq!(count, reads + writes, "each request is answered once");
}
