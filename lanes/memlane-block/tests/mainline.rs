//! The messages of mainline's `rnbd-client` and `rnbd-server` mean to us what they meant to each other, and we would have sent
//! the same bytes.

use memlane_block::volume::{Flags, Op};
use memlane_block::wire::{
    Access, CLOSE_LEN, IO_LEN, IoMsg, Message, OPEN_LEN, OPEN_RSP_LEN, OpenRsp, SESS_INFO_LEN,
    SessInfoRsp, VERSION,
};
use memlane_fixtures::mainline::{How, Said, conversation};
use memlane_transport::wire::{ConnRsp, Control, Geometry, Immediate, Request, SgDesc};

/// `RNBD_F_SYNC`, by place and bit: somebody waits for the request. We neither send it nor look at it.
const SYNC: (usize, u8) = (17, 1);

/// The server's chunks.
struct Chunks {
    geometry: Geometry,
    table: Vec<SgDesc>,
}

impl Chunks {
    fn told(all: &[Said]) -> Chunks {
        let mut server = all.iter().filter(|said| !said.by_client);
        let accepts = server.find(|said| said.how == How::Private);
        let accepts = ConnRsp::decode(&accepts.expect("an answer").bytes);
        let mut server = all.iter().filter(|said| !said.by_client);
        let table = server.find_map(|said| match Control::decode(&said.bytes) {
            Ok(Control::InfoRsp { chunks }) if said.how == How::Send => Some(chunks),
            _ => None,
        });
        Chunks {
            geometry: Geometry::of(&accepts.expect("an answer")).expect("a geometry"),
            table: table.expect("the chunks"),
        }
    }

    /// The user message of a request.
    fn message(&self, said: &Said) -> Option<Vec<u8>> {
        let How::Write(at) = said.how else {
            return None;
        };
        let Immediate::Request(payload) = Immediate::decode(said.immediate?).ok()? else {
            return None;
        };
        let (id, offset) = self.geometry.split(payload).ok()?;
        let begins = at.checked_sub(self.table.get(usize::from(id))?.addr)?;
        let header = usize::try_from(u64::from(offset).checked_sub(begins)?).ok()?;
        let request = Request::decode(said.bytes.get(header..)?, false).ok()?;
        let message = header.checked_sub(usize::from(request.usr_len))?;
        Some(said.bytes[message..header].to_vec())
    }
}

/// What the client asks, and by which bytes.
fn asked() -> Vec<(Message, Vec<u8>)> {
    let all = conversation();
    let chunks = Chunks::told(&all);
    let requests = all.iter().filter(|said| said.by_client);
    let requests = requests.filter(|said| matches!(said.how, How::Write(_)));
    requests
        .map(|said| {
            let bytes = chunks.message(said).expect("a request");
            (Message::decode(&bytes).expect("a message"), bytes)
        })
        .collect()
}

#[test]
fn the_client_opens_uses_and_closes_its_device_as_we_would() {
    let asked = asked();
    let (Message::SessInfo(first), bytes) = &asked[0] else {
        panic!("{:?}", asked[0]);
    };
    assert_eq!(
        (first.version, first.caps, bytes.len()),
        (VERSION, 0, SESS_INFO_LEN)
    );
    assert_eq!(first.encode()[..], bytes[..]);
    let (Message::Open(open), bytes) = &asked[1] else {
        panic!("{:?}", asked[1]);
    };
    assert_eq!((open.access, bytes.len()), (Access::ReadWrite, OPEN_LEN));
    assert_eq!(open.encode().expect("a name")[..], bytes[..]);
    let (Message::Close(close), bytes) = asked.last().expect("some") else {
        panic!("{:?}", asked.last());
    };
    assert_eq!((&close.encode()[..], bytes.len()), (&bytes[..], CLOSE_LEN));
    assert!(asked.len() > 20);
}

#[test]
fn each_kind_of_request_means_what_the_client_was_asked_for() {
    let asked = asked().into_iter();
    let asked: Vec<(IoMsg, Vec<u8>)> = asked
        .filter_map(|(message, bytes)| match message {
            Message::Io(io) => Some((io, bytes)),
            _ => None,
        })
        .collect();
    for (io, bytes) in &asked {
        assert_eq!(bytes.len(), IO_LEN);
        let mut meant = bytes.clone();
        meant[SYNC.0] &= !SYNC.1;
        assert_eq!(io.encode()[..], meant[..], "{io:?}");
    }
    let has = |op: Op, sector: u64, len: u32, flags: Flags| {
        let is_it = |io: &IoMsg| (io.op, io.sector, io.len, io.flags) == (op, sector, len, flags);
        assert!(asked.iter().any(|(io, _)| is_it(io)), "{op:?} at {sector}");
    };
    has(Op::Read, 7, 512, Flags::NONE);
    has(Op::Write, 8, 512, Flags::NONE);
    has(Op::Trim, 2048, 65536, Flags::NONE);
    has(Op::WriteZeroes, 4096, 65536, Flags::NONE);
    // Its place and its flag are not looked at.
    has(Op::Flush, u64::MAX, 0, Flags::FUA);
}

#[test]
fn the_server_answers_as_we_would() {
    let answers = conversation().into_iter();
    let answers = answers.filter(|said| !said.by_client && matches!(said.how, How::Write(_)));
    let answers: Vec<Vec<u8>> = answers.map(|said| said.bytes).collect();
    let session = SessInfoRsp::decode(&answers[0]).expect("the session");
    assert_eq!((session.version, session.caps), (VERSION, 0));
    assert_eq!(session.encode()[..], answers[0][..]);
    assert_eq!(answers[1].len(), OPEN_RSP_LEN);
    let device = OpenRsp::decode(&answers[1]).expect("the device");
    assert_eq!(device.info().size, 16 << 20);
    assert_eq!(device.encode()[..], answers[1][..]);
}
