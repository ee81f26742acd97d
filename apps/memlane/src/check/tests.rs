use super::*;

fn conn(state: ConnState, reason: Reason, ring: (u64, u64)) -> Conn {
    let flow = |ring_bytes| Flow {
        ring_size: 65536,
        ring_bytes,
        ..Flow::default()
    };
    Conn {
        index: 0,
        state,
        fd: 3,
        accepted: false,
        addresses: None,
        inode: 0,
        since_ns: 0,
        lane: 0,
        peer_pid: 0,
        peer_comm: String::new(),
        peer_uid: 0,
        reason,
        peer_reason: Reason::NONE,
        parked: false,
        tx: flow(ring.0),
        rx: flow(ring.1),
    }
}

fn end(conn: &Conn) -> Option<(End, Conn)> {
    Some((End::new(7, "x", conn), conn.clone()))
}

fn pair(client: &Conn, server: &Conn) -> Report {
    Report::of_pair((end(client), end(server)), 100)
}

#[test]
fn the_pair_is_proven_only_by_ring_bytes_both_ways_at_both_ends() {
    let good = conn(ConnState::Memlane, Reason::NONE, (5, 6));
    assert_eq!(pair(&good, &good).exit, Exit::Ok);
    for other in [
        conn(ConnState::Memlane, Reason::NONE, (5, 0)),
        conn(ConnState::Memlane, Reason::NONE, (0, 6)),
        conn(ConnState::Tcp, Reason::TOO_YOUNG, (0, 0)),
        conn(ConnState::Downgraded, Reason::URGENT, (5, 6)),
    ] {
        assert_eq!(pair(&good, &other).exit, Exit::FellBack, "{other:?}");
        assert_eq!(pair(&other, &good).exit, Exit::FellBack, "{other:?}");
    }
}

#[test]
fn a_pair_that_fell_back_gives_its_reason_and_code_five() {
    let young = conn(ConnState::Tcp, Reason::TOO_YOUNG, (0, 0));
    let refused = conn(ConnState::Tcp, Reason::PEER_REFUSED, (0, 0));
    let report = pair(&young, &refused);
    assert_eq!((report.result, report.exit), ("tcp", Exit::FellBack));
    assert_eq!(report.reason.unwrap().name, "MODEUNSUPP");
    let lacking = conn(ConnState::Tcp, Reason::NO_DEVICE, (0, 0));
    assert_eq!(pair(&lacking, &young).exit, Exit::Unsupported);
    assert_eq!(Report::of_pair((None, end(&young)), 0).exit, Exit::FellBack);
}

#[test]
fn a_service_is_judged_by_the_table() {
    let judge = |c: &Conn, sent| Report::of_service("h:1", end(c), None, sent);
    let open = conn(ConnState::Memlane, Reason::NONE, (0, 0));
    assert_eq!(judge(&open, false).exit, Exit::Ok);
    assert_eq!(judge(&open, true).exit, Exit::FellBack);
    let young = conn(ConnState::Tcp, Reason::TOO_YOUNG, (0, 0));
    let report = judge(&young, false);
    assert_eq!((report.result, report.exit), ("undecided", Exit::FellBack));
    assert!(report.text().contains("--send"));
    for (reason, exit) in [
        (Reason::PEER_NO_MEMLANE, Exit::FellBack),
        (Reason::NOT_SAME_HOST, Exit::FellBack),
        (Reason::PEER_REFUSED, Exit::PeerRefused),
        (Reason::NO_EID, Exit::PeerRefused),
        (Reason::NO_DEVICE, Exit::Unsupported),
    ] {
        let report = judge(&conn(ConnState::Tcp, reason, (0, 0)), false);
        assert_eq!((report.result, report.exit), ("tcp", exit), "{reason:?}");
        assert!(report.text().contains(reason.text()));
    }
}

#[test]
fn the_document_keeps_its_shape() {
    let good = conn(ConnState::Memlane, Reason::NONE, (5, 6));
    let mut report = pair(&good, &good);
    report.version = "VERSION";
    let golden = include_str!("../../tests/golden/check.json");
    assert_eq!(out::json(&report).unwrap(), golden);
}

#[test]
fn escapes_in_a_request_are_understood() {
    assert_eq!(unescape(r"PING\r\n").as_deref(), Ok("PING\r\n"));
    assert_eq!(unescape(r"a\\b\t").as_deref(), Ok("a\\b\t"));
    assert!(unescape(r"a\x").is_err());
    assert!(unescape("a\\").is_err());
}
