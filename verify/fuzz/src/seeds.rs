//! Seeds: inputs that are right, made from the formats as they are now. The
//! files in `seeds/` are these; a test says so when a format has changed.

use std::mem::offset_of;

use memlane_block::volume::{Flags, Info, Op};
use memlane_block::wire as rnbd;
use memlane_core::reason::Reason;
use memlane_core::stats::{
    CONN_ENTRY_LEN, ConnEntry, ConnState, HEADER_LEN, Header, MAGIC, ReasonCount, VERSION,
};
use memlane_socket::protocol::wire::{Message, MessageKind};
use memlane_sys::sock::{Addr, Tuple};
use memlane_transport::io::frame::{Header as Frame, Step, WriteTarget};

use crate::stream::{BASE, KEY};

/// Files of `seeds/`, as `target/name` with their bytes.
pub fn all() -> Vec<(String, Vec<u8>)> {
    let of = |target: &str, seeds: Vec<(&str, Vec<u8>)>| {
        let seeds = seeds.into_iter();
        let named = seeds.map(|(name, bytes)| (format!("{target}/{name}"), bytes));
        named.collect::<Vec<_>>()
    };
    let all = [
        of("clc_message", clc_messages()),
        of("admission_review", crate::admission::reviews()),
        of("agent_message", crate::agent::messages()),
        of("agent_record", crate::agent::records()),
        of("kernel_types", crate::agent::types()),
        of("region", crate::across::scribbles()),
        of("stats_page", stats_pages()),
        of("elf", elves()),
        of("ring_ops", ring_ops()),
        of("hostile_ring", hostile_rings()),
        of("run_list", crate::map::maps()),
        of("sock_diag", sock_diags()),
        of("config", configs()),
        of("nbd_handshake", crate::nbd::handshakes()),
        of("nbd_requests", crate::nbd::requests()),
        of("rnbd_message", rnbd_messages()),
        of("rnbd_answer", rnbd_answers()),
        of("rtrs_message", crate::rtrs::messages()),
        of("tcp_stream", tcp_streams()),
        of("virtio_blk", guests()),
        of("extents", extents()),
        of("memif_messages", crate::memif::messages()),
        of("memif_rings", crate::memif::rings()),
        of("packet_split", crate::frames::splits()),
        of("packet_segment", crate::frames::segments()),
        of("packet_link", crate::packet::messages()),
        of("packet_rings", crate::packet::rings()),
        of("packet_headers", crate::packet::frames()),
        of("capture", crate::packet::captures()),
        of("devmem_told", crate::devmem::told()),
        of("devmem_netlink", crate::devmem::datagrams()),
        of("canary", vec![("right", b"\x03abc\x00\x05hello".to_vec())]),
    ];
    all.concat()
}

fn tuple() -> Tuple {
    let ip = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1];
    Tuple {
        local: Addr { ip, port: 40000 },
        remote: Addr { ip, port: 80 },
    }
}

/// After a byte that says how the stream is cut.
fn tcp_streams() -> Vec<(&'static str, Vec<u8>)> {
    let place = |len: usize, tail: &[u8]| WriteTarget {
        addr: BASE + 16,
        key: KEY,
        len: len as u32,
        tail_at: len as u32,
        tail: tail.len() as u16,
    };
    let write = |data: &[u8], tail: &[u8], imm| {
        let place = place(data.len(), tail);
        [&Frame::Write { place, imm }.encode(), tail, data].concat()
    };
    let accept = [&Frame::Step(Step::Accept).encode()[..], &[3; 56]].concat();
    let message = |imm| [&Frame::Send { len: 5, imm }.encode()[..], b"hello"].concat();
    let heartbeat = Frame::Immediate(0x8000_0000).encode().to_vec();
    vec![
        (
            "request",
            [vec![10], write(&[5; 512], b"user and header", Some(7))].concat(),
        ),
        (
            "reply",
            [vec![200], write(&[6; 2000], b"", Some(8))].concat(),
        ),
        (
            "setup",
            [vec![3], accept, message(None), heartbeat.clone()].concat(),
        ),
        (
            "share",
            [
                vec![1],
                Frame::Share {
                    slots: 128,
                    base: 9,
                }
                .encode()
                .to_vec(),
            ]
            .concat(),
        ),
        (
            "place",
            [
                vec![1],
                Frame::Place {
                    slots: 128,
                    base: 9,
                }
                .encode()
                .to_vec(),
                vec![1; memlane_transport::wire::CONN_LEN],
            ]
            .concat(),
        ),
        (
            "key",
            [vec![0], message(Some(9)), write(b"", b"", None), heartbeat].concat(),
        ),
    ]
}

fn clc_messages() -> Vec<(&'static str, Vec<u8>)> {
    let kinds = [
        ("proposal", MessageKind::Proposal),
        ("accept", MessageKind::Accept),
        ("confirm", MessageKind::Confirm),
        ("decline", MessageKind::Decline),
    ];
    let message = |kind| {
        let mut message = Message::new(kind, tuple());
        (message.gid, message.boot, message.id) = (0x0102_0304_0506_0708, [1, 2], 5);
        match kind {
            MessageKind::Proposal => {
                message.eid_count = 2;
                message.eids[0][..4].copy_from_slice(b"BLUE");
                message.eids[1][..6].copy_from_slice(b"TEAM-2");
            }
            MessageKind::Decline => message.reason = Reason::CLOSING.0,
            MessageKind::Accept | MessageKind::Confirm => {
                (message.token, message.chunk, message.slot) = (0xdead_beef, 3, 63);
                (message.ring_size, message.echo) = (1 << 18, 6);
            }
        }
        message.encode().to_vec()
    };
    kinds.map(|(name, kind)| (name, message(kind))).to_vec()
}

/// Writes words in the machine's own order, as the library does.
struct Bytes(Vec<u8>);

impl Bytes {
    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn u16(&mut self, at: usize, value: u16) {
        self.put(at, &value.to_ne_bytes());
    }

    fn u32(&mut self, at: usize, value: u32) {
        self.put(at, &value.to_ne_bytes());
    }

    fn u64(&mut self, at: usize, value: u64) {
        self.put(at, &value.to_ne_bytes());
    }
}

fn stats_pages() -> Vec<(&'static str, Vec<u8>)> {
    let restless = |every: u8| [vec![every], stats_page(3)].concat();
    vec![
        ("empty", [vec![0], stats_page(0)].concat()),
        ("three", restless(0)),
        ("restless", restless(3)),
    ]
}

fn stats_page(conns: u32) -> Vec<u8> {
    let len = HEADER_LEN + conns as usize * CONN_ENTRY_LEN;
    let mut page = Bytes(vec![0; len]);
    page.u64(offset_of!(Header, magic), MAGIC);
    page.u32(offset_of!(Header, version), VERSION);
    page.u32(offset_of!(Header, header_len), HEADER_LEN as u32);
    page.u32(offset_of!(Header, conn_entry_len), CONN_ENTRY_LEN as u32);
    page.u64(offset_of!(Header, page_len), len as u64);
    page.u32(offset_of!(Header, conn_capacity), conns);
    page.u32(offset_of!(Header, conn_high), conns);
    page.u32(offset_of!(Header, pid), 77);
    page.put(offset_of!(Header, comm), b"server");
    let reasons = offset_of!(Header, reasons);
    page.u32(reasons + offset_of!(ReasonCount, code), Reason::TOO_YOUNG.0);
    page.u64(reasons + offset_of!(ReasonCount, client), 2);
    let states = [ConnState::Memlane, ConnState::Tcp, ConnState::Downgraded];
    for (index, state) in states.iter().take(conns as usize).enumerate() {
        let at = HEADER_LEN + index * CONN_ENTRY_LEN;
        page.u32(at + offset_of!(ConnEntry, state), *state as u32);
        page.u32(at + offset_of!(ConnEntry, role), (index % 2) as u32);
        page.u32(at + offset_of!(ConnEntry, ports), 80 << 16 | 40000);
        page.put(at + offset_of!(ConnEntry, local_ip), &tuple().local.ip);
        page.put(at + offset_of!(ConnEntry, remote_ip), &tuple().remote.ip);
        page.u32(at + offset_of!(ConnEntry, tx_ring_size), 1 << 18);
    }
    page.0
}

/// Small 64-bit programs for this byte order; the first byte is how they are read.
fn elves() -> Vec<(&'static str, Vec<u8>)> {
    let dynamic = elf(&[(3, b"/lib64/ld-linux-x86-64.so.2\0")]);
    // A note: lengths of owner and text, type, owner, text.
    let note = b"\x04\0\0\0\x04\0\0\0\x04\0\0\0Go\0\0abcd";
    vec![
        ("dynamic", [vec![255], dynamic.clone()].concat()),
        ("slow", [vec![6], dynamic].concat()),
        ("go", [vec![255], elf(&[(4, note)])].concat()),
        ("static", [vec![255], elf(&[])].concat()),
    ]
}

fn elf(segments: &[(u32, &[u8])]) -> Vec<u8> {
    const HEAD: usize = 64;
    const ENTRY: usize = 56;
    let mut file = Bytes(vec![0; HEAD + segments.len() * ENTRY]);
    let little = u8::from(cfg!(target_endian = "big")) + 1;
    file.put(0, &[0x7f, b'E', b'L', b'F', 2, little, 1]);
    file.u16(16, 3);
    file.u16(18, 62);
    file.u64(32, HEAD as u64);
    file.u16(54, ENTRY as u16);
    file.u16(56, segments.len() as u16);
    for (index, (kind, content)) in segments.iter().enumerate() {
        let (at, offset) = (HEAD + index * ENTRY, file.0.len() as u64);
        file.u32(at, *kind);
        file.u64(at + 8, offset);
        file.u64(at + 32, content.len() as u64);
        file.0.extend_from_slice(content);
    }
    file.0
}

/// Bytes that look random: the operations are whatever they decode to.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}

fn ring_ops() -> Vec<(&'static str, Vec<u8>)> {
    let at = |before: u64, noise: Vec<u8>| [vec![5], before.to_le_bytes().to_vec(), noise].concat();
    vec![
        ("short", at(0, noise(1, 60))),
        ("long", at(0, noise(2, 1500))),
        ("late", at(u64::MAX - 7, noise(3, 400))),
    ]
}

fn hostile_rings() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("few", noise(4, 200)),
        ("many", noise(5, 3000)),
        ("still", vec![0; 400]),
    ]
}

fn sock_diags() -> Vec<(&'static str, Vec<u8>)> {
    let question = |how: u8| {
        let mut bytes = vec![how];
        for end in [tuple().local, tuple().remote] {
            bytes.extend(end.ip);
            bytes.extend(end.port.to_be_bytes());
        }
        bytes
    };
    let found = || {
        let mut answer = Bytes(vec![0; 88]);
        answer.u32(0, 88);
        answer.u16(4, 20);
        answer.put(16, &[2, 1, 0, 0]);
        answer.u32(80, 1000);
        answer.u32(84, 4242);
        answer.0
    };
    let mut error = Bytes(vec![0; 36]);
    error.u32(0, 36);
    error.u16(4, 2);
    error.u32(16, (-2i32).cast_unsigned());
    vec![
        ("found_v4", [question(3), found()].concat()),
        ("found_v6", [question(2), found()].concat()),
        ("another", [question(1), found()].concat()),
        ("error", [question(1), error.0].concat()),
    ]
}

fn configs() -> Vec<(&'static str, Vec<u8>)> {
    let values = |values: [&str; 7]| {
        let values = values.map(|value| value.as_bytes().to_vec());
        values.join(&super::BETWEEN)
    };
    vec![
        (
            "usual",
            values([
                "1048576",
                "20",
                "eager",
                "same-uid",
                "blue,,TEAM-2",
                "0",
                "1",
            ]),
        ),
        (
            "wrong",
            values(["100000", "fast", "always", "all", ",,,", "", "2"]),
        ),
        (
            "long",
            values([
                "67108864",
                "999999999999",
                "off",
                "any",
                "a,b,c,d,e,f,g,h,i,j,an-enterprise-id-of-32-characters",
                "1",
                "",
            ]),
        ),
    ]
}

fn rnbd_messages() -> Vec<(&'static str, Vec<u8>)> {
    let (version, caps, device_id) = (rnbd::VERSION, rnbd::CAPS, 0x1122_3344);
    let info = Info {
        size: 10 << 30,
        block: 512,
        preferred: 4096,
        max_io: 126_976,
        max_trim: 1 << 30,
        read_only: false,
        cached: true,
        trim: true,
        zeroes: true,
        extents: true,
    };
    let mut open = rnbd::Open::new(rnbd::Access::ReadWrite, "vm/disk0.img");
    open.wish.again = Some(7);
    let io = rnbd::IoMsg {
        device_id,
        sector: 8,
        op: Op::WriteZeroes,
        flags: Flags::FUA.and(Flags::NO_HOLE),
        len: 4096,
        prio: 0,
    };
    let boot = [7; 16];
    vec![
        (
            "sess_info",
            rnbd::SessInfo { version, caps }.encode().to_vec(),
        ),
        (
            "sess_info_rsp",
            rnbd::SessInfoRsp {
                version,
                caps,
                boot,
            }
            .encode()
            .to_vec(),
        ),
        ("open", open.encode().expect("a name").to_vec()),
        (
            "open_rsp",
            rnbd::OpenRsp::of(device_id, &info, caps).encode().to_vec(),
        ),
        ("io", io.encode().to_vec()),
        ("close", rnbd::Close { device_id }.encode().to_vec()),
    ]
}

/// A guest's memory after one byte for the volume: descriptors, two requests available, headers at 0x200.
fn guests() -> Vec<(&'static str, Vec<u8>)> {
    let guest = |kind: u32, sector: u64, data: &[u8], to_guest: bool| {
        let mut memory = vec![0; 0x300];
        let mut put = |at: usize, bytes: &[u8]| memory[at..at + bytes.len()].copy_from_slice(bytes);
        let data_len = if to_guest { 4096 } else { data.len() as u32 };
        let data_flags = if to_guest { 3_u16 } else { 1 };
        let status = (0x2f0_u64, 1_u32, 2_u16, 0_u16);
        let chain = [(0x200, 16, 1, 1), (0x210, data_len, data_flags, 2), status];
        // The same by an indirect table, which is at 0x280.
        let indirect = (0x280, 48, 4, 0);
        let tables = [(0, &chain[..]), (0x30, &[indirect]), (0x280, &chain)];
        for (table, descriptors) in tables {
            for (number, (at, len, flags, next)) in descriptors.iter().enumerate() {
                let place = table + number * 16;
                put(place, &u64::to_le_bytes(*at));
                put(place + 8, &u32::to_le_bytes(*len));
                put(place + 12, &u16::to_le_bytes(*flags));
                put(place + 14, &u16::to_le_bytes(*next));
            }
        }
        // flags, index, the heads 0 and 3.
        put(0x100, &[0, 0, 2, 0, 0, 0, 3, 0]);
        put(0x200, &kind.to_le_bytes());
        put(0x208, &sector.to_le_bytes());
        put(0x210, data);
        [&[0], &memory[..]].concat()
    };
    let range = [
        &8_u64.to_le_bytes()[..],
        &8_u32.to_le_bytes(),
        &0_u32.to_le_bytes(),
    ]
    .concat();
    vec![
        ("read", guest(0, 8, &[], true)),
        ("flush", guest(4, 0, &[], false)),
        ("id", guest(8, 0, &[], true)),
        ("discard", guest(11, 0, &range, false)),
        ("zeroes", guest(13, 0, &range, false)),
    ]
}

/// Where the search begins (and in bit 0: for a hole?), then answers of up to 64 records: length, state, nothing.
fn extents() -> Vec<(&'static str, Vec<u8>)> {
    let search = |first: u64, records: &[(u64, u32)]| {
        let mut bytes = first.to_le_bytes().to_vec();
        for (len, state) in records {
            bytes.extend_from_slice(&len.to_le_bytes());
            bytes.extend_from_slice(&state.to_le_bytes());
            bytes.extend_from_slice(&[0; 4]);
        }
        bytes
    };
    let alternating: Vec<(u64, u32)> = (0..64)
        .map(|n| (4096 * (n + 1), 3 * (n as u32 & 1)))
        .collect();
    let nothing = vec![(1 << 24, 3); 64];
    vec![
        ("hole", search(1, &alternating)),
        (
            "data-late",
            search(0, &[&nothing[..], &[(4096, 0)]].concat()),
        ),
        ("end", search(1, &[(1 << 30, 0), (0, 0)])),
    ]
}

/// The answers among them, to a client that knows all and whose requests have 126,976 bytes.
fn rnbd_answers() -> Vec<(&'static str, Vec<u8>)> {
    let mut head = rnbd::CAPS.to_le_bytes().to_vec();
    head.extend(126_976_u32.to_le_bytes());
    let messages = rnbd_messages().into_iter();
    let answers = messages.filter(|(name, _)| name.ends_with("_rsp"));
    answers
        .map(|(name, bytes)| (name, [head.clone(), bytes].concat()))
        .collect()
}
