//! What others may write, thrown at what reads it. A target is a function of
//! bytes that panics if something is wrong, and says whether the bytes were
//! taken for what they claim to be, so that a test can tell that both happen.
//!
//! - `fuzz_targets/`: each target under libFuzzer, which `./dev fuzz` runs.
//! - `tests/smoke.rs`: each target on stable Rust, over its seeds and a few
//!   thousand mutants of them.
//! - `seeds/`: written by [`seeds`], which makes them from the formats.

use std::cell::Cell;
use std::io;

use arbitrary::{Arbitrary, Unstructured};
use memlane_block::client::answer::{Opened, Server};
use memlane_block::wire as rnbd;
use memlane_core::layout::ring_size_ok;
use memlane_core::reason::Reason;
use memlane_core::stats::CONN_CAPACITY;
use memlane_observe::page;
use memlane_socket::config::{Config, DOMAIN_LEN, EID_LEN, EIDS};
use memlane_socket::protocol::wire::{LEN, Message};
use memlane_sys::diag;
use memlane_sys::sock::{Addr, Tuple};
use ring_stream::Op;

pub mod across;
pub mod admission;
pub mod agent;
pub mod devmem;
pub mod frames;
mod map;
pub mod memif;
pub mod nbd;
pub mod packet;
mod rtrs;
pub mod seeds;
mod stream;

pub use map::run_list;
pub use rtrs::rtrs_message;
pub use stream::tcp_stream;

// The command is a program, not a library: what it reads with is taken in by path.
#[path = "../../../apps/memlane/src/run/elf.rs"]
#[allow(dead_code)]
mod elf_file;

// The harnesses of the spine's own tests.
#[path = "../../../spine/memlane-core/tests/hostile/mod.rs"]
#[allow(dead_code)]
mod hostile;
#[path = "../../../spine/memlane-core/tests/ring_stream/mod.rs"]
#[allow(dead_code)]
mod ring_stream;

/// A function of bytes: panics if something is wrong, tells whether they were believed.
pub type Target = fn(&[u8]) -> bool;

/// Every target that must find nothing.
pub const TARGETS: [(&str, Target); 31] = [
    ("clc_message", clc_message),
    ("admission_review", admission::admission_review),
    ("agent_message", agent::agent_message),
    ("agent_record", agent::agent_record),
    ("kernel_types", agent::kernel_types),
    ("region", across::region),
    ("stats_page", stats_page),
    ("elf", elf),
    ("ring_ops", ring_ops),
    ("hostile_ring", hostile_ring),
    ("run_list", run_list),
    ("sock_diag", sock_diag),
    ("config", config),
    ("nbd_handshake", nbd::nbd_handshake),
    ("nbd_requests", nbd::nbd_requests),
    ("rnbd_message", rnbd_message),
    ("rnbd_answer", rnbd_answer),
    ("rtrs_message", rtrs_message),
    ("tcp_stream", tcp_stream),
    ("virtio_blk", virtio_blk),
    ("extents", extents),
    ("memif_messages", memif::memif_messages),
    ("memif_rings", memif::memif_rings),
    ("packet_split", frames::packet_split),
    ("packet_segment", frames::packet_segment),
    ("packet_link", packet::packet_link),
    ("packet_rings", packet::packet_rings),
    ("packet_headers", packet::packet_headers),
    ("capture", packet::capture),
    ("devmem_told", devmem::devmem_told),
    ("devmem_netlink", devmem::devmem_netlink),
];

/// A guest's memory, with a ring and requests to a disk in it.
pub fn virtio_blk(bytes: &[u8]) -> bool {
    memlane_block_frontends::vhost::fuzzing::requests(bytes)
}

/// What a volume says of its holes.
pub fn extents(bytes: &[u8]) -> bool {
    memlane_block_frontends::fuse::fuzzing::extents(bytes)
}

/// A handshake message of a peer: refused, or the same after encoding it again.
pub fn clc_message(bytes: &[u8]) -> bool {
    let Ok(message) = Message::decode(bytes) else {
        return false;
    };
    assert_eq!(bytes.len(), LEN);
    assert!(message.eids().len() <= EIDS);
    assert_eq!(Message::decode(&message.encode()), Ok(message));
    true
}

/// A file whose owner goes on writing while it is read: every `every`th read
/// finds one byte changed (never, if 0).
struct Restless<'a> {
    bytes: &'a [u8],
    every: u8,
    reads: Cell<u8>,
}

impl page::Source for Restless<'_> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let n = copy_at(self.bytes, buffer, offset);
        self.reads.set(self.reads.get().wrapping_add(1));
        if self.every > 0 && self.reads.get().is_multiple_of(self.every) && n > 0 {
            let at = usize::from(self.reads.get()) * 7 % n;
            buffer[at] ^= 1;
        }
        Ok(n)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.bytes.len() as u64)
    }
}

/// Copies what `bytes` has at `offset`; how many that were.
fn copy_at(bytes: &[u8], buffer: &mut [u8], offset: u64) -> usize {
    let rest = usize::try_from(offset).ok().and_then(|at| bytes.get(at..));
    let rest = rest.unwrap_or_default();
    let n = rest.len().min(buffer.len());
    buffer[..n].copy_from_slice(&rest[..n]);
    n
}

/// A stats page of another process (after a byte that says how restless it is).
pub fn stats_page(bytes: &[u8]) -> bool {
    let Some((every, bytes)) = bytes.split_first() else {
        return false;
    };
    let source = Restless {
        bytes,
        every: *every,
        reads: Cell::new(0),
    };
    let Ok(page) = page::Page::read(&source) else {
        return false;
    };
    let entries = page.conns.len() as u64 + page.bad_entries;
    assert!(entries <= CONN_CAPACITY as u64);
    assert!(page.comm.bytes().all(|b| (0x20..=0x7e).contains(&b)));
    let named = page.fallbacks.iter().all(|f| f.reason != Reason::NONE);
    assert!(named, "a reason that is none: {:?}", page.fallbacks);
    for flow in page.conns.iter().flat_map(|conn| [conn.tx, conn.rx]) {
        assert!(flow.ring_used.is_none(), "a page alone cannot know that");
    }
    true
}

/// A program file, read in pieces of as many bytes as the first byte says.
pub fn elf(bytes: &[u8]) -> bool {
    let Some((most, bytes)) = bytes.split_first() else {
        return false;
    };
    let most = usize::from(*most) + 1;
    let read = |buffer: &mut [u8], offset| {
        let most = most.min(buffer.len());
        Ok(copy_at(bytes, &mut buffer[..most], offset))
    };
    let Some(elf) = elf_file::Elf::parse(&read) else {
        return false;
    };
    assert!(bytes.starts_with(b"\x7fELF"));
    let interp = elf.interp.as_deref().unwrap_or_default();
    assert!(!interp.contains('\0'));
    true
}

/// A step of either side of one stream, with the weights of the spine's own test:
/// of steps that are equally likely, most streams would leave the lane at once.
struct RingOp(Op);

impl<'a> Arbitrary<'a> for RingOp {
    fn arbitrary(bytes: &mut Unstructured<'a>) -> arbitrary::Result<RingOp> {
        let kind = bytes.arbitrary::<u8>()?;
        let op = match kind % 32 {
            0..=7 => Op::Send {
                n: amount(bytes)?,
                kernel: taken(bytes)?,
            },
            8..=10 => Op::SendTcp {
                n: amount(bytes)?,
                kernel: taken(bytes)?,
            },
            11..=12 => Op::Reserve {
                n: amount(bytes)?,
                used: amount(bytes)?,
            },
            13..=21 => Op::Recv { n: amount(bytes)? },
            22 => Op::Hold { n: amount(bytes)? },
            23 => Op::Release,
            24 => Op::Park,
            25 => Op::Trim,
            26..=29 => Op::Unpark,
            30 => Op::Alternate {
                n: bytes.int_in_range(0..=40)?,
            },
            _ if kind == 31 => Op::AskTcpOnly,
            _ if kind == 63 => Op::GoTcpOnly,
            _ => Op::Unpark,
        };
        Ok(RingOp(op))
    }
}

/// Mostly a few bytes, sometimes more than a ring.
fn amount(bytes: &mut Unstructured<'_>) -> arbitrary::Result<usize> {
    let n = usize::from(bytes.arbitrary::<u8>()?);
    match n {
        0..220 => Ok(n % 12),
        _ => Ok(n % 36 + usize::from(bytes.arbitrary::<u16>()?) % 600),
    }
}

/// Mostly the kernel takes all.
fn taken(bytes: &mut Unstructured<'_>) -> arbitrary::Result<usize> {
    let n = bytes.arbitrary::<u8>()?;
    Ok(if n < 200 { usize::MAX } else { n.into() })
}

/// The steps that `bytes` stand for, for as long as they last.
fn steps<'a, T: Arbitrary<'a> + 'a>(bytes: &mut Unstructured<'a>) -> Vec<T> {
    const MOST: usize = 500;
    let mut steps = Vec::new();
    while !bytes.is_empty() && steps.len() < MOST {
        match bytes.arbitrary() {
            Ok(step) => steps.push(step),
            Err(_) => break,
        }
    }
    steps
}

/// Any order of sends, receives, parks and changes of lane: every byte arrives
/// once and in order. True if some went by the ring.
pub fn ring_ops(bytes: &[u8]) -> bool {
    let mut bytes = Unstructured::new(bytes);
    let (Ok(log2), Ok(before)) = (bytes.int_in_range(1u32..=9), bytes.arbitrary::<u64>()) else {
        return false;
    };
    // The part of the ring to begin with; none: all of it, always.
    let least = match before & 3 {
        0 => 0,
        1 => 1,
        2 => 1 << (log2 / 2),
        _ => 1 << log2,
    };
    // No stream is longer than that.
    let mut stream = ring_stream::Stream::with_window(1 << log2, before >> 2, least);
    for op in steps::<RingOp>(&mut bytes) {
        stream.step(&op.0);
    }
    stream.finish();
    stream.seen.ring_bytes > 0
}

#[derive(Arbitrary, Debug)]
enum HostileStep {
    Scribble(u64, u64, u64),
    Send(u64, u64, u64),
    Receive(u64, u64),
}

/// A peer that writes anything into the shared words between the steps of the
/// honest side: an error, or bytes in bounds. True if it got an error.
pub fn hostile_ring(bytes: &[u8]) -> bool {
    use hostile::start;
    let dmb = hostile::Dmb::new();
    let mut victim = hostile::Victim::new(&dmb);
    for step in steps(&mut Unstructured::new(bytes)) {
        match step {
            HostileStep::Scribble(which, how, value) => dmb.scribble(which, how, value),
            HostileStep::Send(want, how, at) => victim.send(want, how, start(at)),
            HostileStep::Receive(want, at) => victim.receive(want, start(at)),
        }
    }
    victim.refused > 0
}

/// Bytes of the question in [`sock_diag`]'s input: how, and two addresses.
const QUESTION_LEN: usize = 37;

/// The kernel's answer about a connection: only about the one that was asked for.
pub fn sock_diag(bytes: &[u8]) -> bool {
    let Some((question, answer)) = bytes.split_at_checked(QUESTION_LEN) else {
        return false;
    };
    let (v4, patched) = (question[0] & 1 != 0, question[0] & 2 != 0);
    let tuple = Tuple {
        local: address(&question[1..19]),
        remote: address(&question[19..37]),
    };
    // What the kernel must repeat stands at the same place of question and answer, 4 bytes apart.
    let asked = diag::build_request(&tuple, v4);
    let mut answer = answer.to_vec();
    if patched && answer.len() >= 56 {
        answer[20..56].copy_from_slice(&asked[24..60]);
    }
    match diag::parse_reply(&answer, &tuple, v4) {
        Ok(socket) => {
            assert_eq!(answer[20..56], asked[24..60], "of another connection");
            assert_eq!(socket.state, answer[17]);
            assert!(answer[84..].starts_with(&socket.inode.to_ne_bytes()));
            true
        }
        Err(error) => {
            assert_ne!(error.0, 0, "an error that is none");
            false
        }
    }
}

fn address(bytes: &[u8]) -> Addr {
    let (ip, port) = bytes.split_at(16);
    Addr {
        ip: ip.try_into().expect("16 bytes"),
        port: u16::from_be_bytes([port[0], port[1]]),
    }
}

/// Between the values in [`config`]'s input.
const BETWEEN: u8 = 0xff;
const VARIABLES: [&str; 9] = [
    "MEMLANE_RING",
    "MEMLANE_SPIN",
    "MEMLANE_UPGRADE",
    "MEMLANE_PEER",
    "MEMLANE_EID",
    "MEMLANE_DISABLE",
    "MEMLANE_STATS_ON_EXIT",
    "MEMLANE_MODE",
    "MEMLANE_DOMAIN",
];

/// Values of the variables: whatever they are, the settings can be used. True
/// if they differ from the defaults.
pub fn config(bytes: &[u8]) -> bool {
    let values: Vec<&[u8]> = bytes.split(|b| *b == BETWEEN).collect();
    let get = |name: &std::ffi::CStr| {
        let at = VARIABLES
            .iter()
            .position(|known| name.to_bytes() == known.as_bytes());
        let at = at.unwrap_or_else(|| panic!("an unknown variable: {name:?}"));
        values.get(at).copied()
    };
    let config = Config::read(get);
    assert!(
        ring_size_ok(config.ring as usize),
        "ring of {}",
        config.ring
    );
    assert!(config.spin_us <= 1_000_000);
    assert!(config.eid_count <= EIDS);
    let domain = config.domain.path();
    assert!(domain.len() <= DOMAIN_LEN && (domain.is_empty() || domain[0] == b'/'));
    for eid in &config.eids[..config.eid_count] {
        assert_eq!(eid.len(), EID_LEN);
        assert!(
            !eid.iter().any(u8::is_ascii_lowercase),
            "two spellings of an EID"
        );
    }
    let default = Config::DEFAULT;
    config.ring != default.ring || config.eid_count > 0 || config.upgrade != default.upgrade
}

/// A message between a volume's user and its server, of either: refused, or the same after encoding it again, and
/// what it says of a volume can be used as it is.
pub fn rnbd_message(bytes: &[u8]) -> bool {
    let asked = rnbd::Message::decode(bytes);
    if let Ok(message) = &asked {
        let again = match message {
            rnbd::Message::SessInfo(info) => info.encode().to_vec(),
            rnbd::Message::Open(open) => open.encode().expect("a name that was read").to_vec(),
            rnbd::Message::Io(io) => io.encode().to_vec(),
            rnbd::Message::Close(close) => close.encode().to_vec(),
        };
        assert_eq!(rnbd::Message::decode(&again).as_ref(), Ok(message));
    }
    let session = rnbd::SessInfoRsp::decode(bytes);
    if let Ok(rsp) = session {
        assert_eq!(rnbd::SessInfoRsp::decode(&rsp.encode()), Ok(rsp));
    }
    let volume = rnbd::OpenRsp::decode(bytes);
    if let Ok(rsp) = volume {
        assert_eq!(rnbd::OpenRsp::decode(&rsp.encode()), Ok(rsp));
        let info = rsp.info();
        assert!(info.block >= 512 && info.block.is_power_of_two());
        assert!(info.preferred >= info.block && info.preferred.is_power_of_two());
        assert!(info.size.is_multiple_of(info.block.into()) && i64::try_from(info.size).is_ok());
        assert!(info.max_io >= info.block && info.max_io.is_multiple_of(info.block));
        assert!(info.max_trim.is_multiple_of(info.block));
        assert_eq!(info.max_trim > 0, info.trim || info.zeroes);
    }
    asked.is_ok() || session.is_ok() || volume.is_ok()
}

/// A reader with a planted bug: the number in front of each piece is believed.
/// Whatever runs the targets must find it, or else it finds nothing.
pub fn canary(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    let mut sum = 0u32;
    while let Some((len, after)) = rest.split_first() {
        let (piece, next) = after.split_at(usize::from(*len));
        sum += piece.iter().map(|b| u32::from(*b)).sum::<u32>();
        rest = next;
    }
    sum > 0
}

/// What a client makes of a server's answers: refused, or a volume that can be used, with bounded work for each request
/// (after two bytes of capabilities and four of the longest request).
pub fn rnbd_answer(bytes: &[u8]) -> bool {
    let Some((head, answer)) = bytes.split_at_checked(6) else {
        return false;
    };
    let caps = u16::from_le_bytes([head[0], head[1]]);
    let max_io = u32::from_le_bytes([head[2], head[3], head[4], head[5]]);
    let server = Server::parse(answer);
    if let Ok(server) = server {
        assert_eq!(server.caps & !rnbd::CAPS, 0);
        assert!(server.boot.is_none() || server.kept_memory_since(&server));
    }
    let opened = Opened::parse(answer, caps, max_io);
    if let Ok(opened) = opened {
        let (info, steps) = (opened.info, opened.steps);
        assert!(info.block.is_power_of_two() && info.block >= 512);
        assert!(info.max_io >= info.block && info.max_io <= max_io);
        assert!(info.size.is_multiple_of(info.block.into()) && i64::try_from(info.size).is_ok());
        assert!(info.max_io.is_multiple_of(info.block) && info.max_trim.is_multiple_of(info.block));
        for (able, step) in [(info.trim, steps.trim), (info.zeroes, steps.zeroes)] {
            assert!(able == (step > 0) && step.is_multiple_of(info.block));
            assert!(!able || info.max_trim.div_ceil(step) <= 256);
        }
        assert!(!info.extents || caps & rnbd::CAP_EXTENTS != 0);
        assert_eq!(opened.still(&info, false), Ok(()));
    }
    server.is_ok() || opened.is_ok()
}
