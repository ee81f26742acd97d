//! The program that the kernel runs for each file of a process: it writes out what it finds of a TCP socket.
//!
//! Source of the numbers of helpers: `__BPF_FUNC_MAPPER` in `include/uapi/linux/bpf.h`.

use super::btf::{Btf, BtfError};
use crate::bpf::assembler::{Assembler, Instruction, R0, R1, R2, R3, R6, R7, R8, R9, Width};

/// Bytes that the program writes for each socket; [`Record::parse`] has the layout.
pub(super) const RECORD: usize = 64;

const BPF_SEQ_WRITE: i32 = 127;
const BPF_SKC_TO_TCP_SOCK: i32 = 137;
const BPF_SOCK_FROM_FILE: i32 = 162;

// Fields of `struct bpf_iter__task_file` (kernel/bpf/task_iter.c) and `struct bpf_iter_meta` (include/linux/bpf.h): pointers
// and numbers in 8 bytes each, in this order, part of the interface between kernel and program.
const CTX_META: i16 = 0;
const CTX_FD: i16 = 16;
const CTX_FILE: i16 = 24;
const META_SEQ: i16 = 0;

/// What the program wrote of one socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// The descriptor's number.
    pub fd: i32,
    /// `TCP_ESTABLISHED` …
    pub state: u8,
    /// The socket's inode.
    pub inode: u64,
    /// Sequence number of the first byte that this end sends: its initial sequence number, plus one if it accepted.
    pub sends_from: u32,
    /// Sequence number of the first byte that this end receives.
    pub receives_from: u32,
    /// The network namespace, by its inode.
    pub network: u32,
    /// The user namespace that owns it, by its inode.
    pub owner: u32,
    /// The user who made that user namespace, as the host numbers users.
    pub made_by: u32,
}

impl Record {
    /// Bytes of a record, as the program writes it.
    pub const LEN: usize = RECORD;

    /// The first record of these bytes, and the bytes behind it.
    pub fn from_bytes(bytes: &[u8]) -> Option<(Record, &[u8])> {
        let (record, rest) = bytes.split_first_chunk()?;
        Some((Record::parse(record), rest))
    }

    /// From the bytes of one record.
    pub(super) fn parse(bytes: &[u8; RECORD]) -> Record {
        let u32_at = |at: usize| {
            u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let u64_at = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_ne_bytes(word)
        };
        // Sequence numbers count modulo 2^32.
        let low = |n: u64| u32::try_from(n & 0xffff_ffff).unwrap_or(0);
        Record {
            fd: i32::try_from(u32_at(FD)).unwrap_or(-1),
            state: bytes[STATE],
            inode: u64_at(INODE),
            sends_from: u32_at(SND_UNA).wrapping_sub(low(u64_at(ACKED))),
            receives_from: u32_at(RCV_NXT).wrapping_sub(low(u64_at(RECEIVED))),
            network: u32_at(NETWORK),
            owner: u32_at(OWNER),
            made_by: u32_at(MADE_BY),
        }
    }
}

// Where things lie in a record.
const FD: usize = 0;
const STATE: usize = 4;
const INODE: usize = 8;
const SND_UNA: usize = 16;
const RCV_NXT: usize = 20;
const ACKED: usize = 24;
const RECEIVED: usize = 32;
const NETWORK: usize = 40;
const OWNER: usize = 44;
const MADE_BY: usize = 48;

/// Where this kernel keeps what the program reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offsets {
    file_inode: i16,
    inode_number: i16,
    socket_sk: i16,
    state: i16,
    network: i16,
    network_inode: i16,
    network_owner: i16,
    owner_inode: i16,
    owner_maker: i16,
    snd_una: i16,
    rcv_nxt: i16,
    acked: i16,
    received: i16,
}

impl Offsets {
    /// Looks them up.
    pub(super) fn find(btf: &Btf) -> Result<Offsets, BtfError> {
        Ok(Offsets {
            file_inode: btf.offset("file", "f_inode")?,
            inode_number: btf.offset("inode", "i_ino")?,
            socket_sk: btf.offset("socket", "sk")?,
            state: btf.offset("sock", "__sk_common.skc_state")?,
            network: btf.offset("sock", "__sk_common.skc_net.net")?,
            network_inode: btf.offset("net", "ns.inum")?,
            network_owner: btf.offset("net", "user_ns")?,
            owner_inode: btf.offset("user_namespace", "ns.inum")?,
            owner_maker: btf.offset("user_namespace", "owner.val")?,
            snd_una: btf.offset("tcp_sock", "snd_una")?,
            rcv_nxt: btf.offset("tcp_sock", "rcv_nxt")?,
            acked: btf.offset("tcp_sock", "bytes_acked")?,
            received: btf.offset("tcp_sock", "bytes_received")?,
        })
    }
}

/// The program. `map` is the descriptor of an array map whose only value is two numbers: the lowest and the highest
/// descriptor that are asked about.
pub(super) fn assemble(at: &Offsets, map: i32) -> Vec<Instruction> {
    let mut p = Assembler::default();
    // Is this descriptor asked about?
    p.load(Width::U64, R7, R1, CTX_FILE);
    p.leave_if_zero(R7);
    p.load(Width::U32, R8, R1, CTX_FD);
    p.load(Width::U64, R6, R1, CTX_META);
    p.load(Width::U64, R6, R6, META_SEQ);
    p.load_map_value(R2, map);
    p.load(Width::U32, R3, R2, 0);
    p.leave_if_less(R8, R3);
    p.load(Width::U32, R3, R2, 4);
    p.leave_if_less(R3, R8);
    for at in (0..RECORD).step_by(8) {
        p.zero_on_stack(place(at));
    }
    p.store_on_stack(Width::U32, place(FD), R8);
    p.load(Width::U64, R2, R7, at.file_inode);
    p.load(Width::U64, R2, R2, at.inode_number);
    p.store_on_stack(Width::U64, place(INODE), R2);
    // Is it a TCP socket?
    p.copy(R1, R7);
    p.call(BPF_SOCK_FROM_FILE);
    p.leave_if_zero(R0);
    p.load(Width::U64, R9, R0, at.socket_sk);
    p.leave_if_zero(R9);
    p.copy(R1, R9);
    p.call(BPF_SKC_TO_TCP_SOCK);
    p.leave_if_zero(R0);
    // Its numbers, and whose network namespace it is in.
    p.load(Width::U8, R2, R9, at.state);
    p.store_on_stack(Width::U32, place(STATE), R2);
    p.load(Width::U32, R2, R0, at.snd_una);
    p.store_on_stack(Width::U32, place(SND_UNA), R2);
    p.load(Width::U32, R2, R0, at.rcv_nxt);
    p.store_on_stack(Width::U32, place(RCV_NXT), R2);
    p.load(Width::U64, R2, R0, at.acked);
    p.store_on_stack(Width::U64, place(ACKED), R2);
    p.load(Width::U64, R2, R0, at.received);
    p.store_on_stack(Width::U64, place(RECEIVED), R2);
    p.load(Width::U64, R2, R9, at.network);
    p.load(Width::U32, R3, R2, at.network_inode);
    p.store_on_stack(Width::U32, place(NETWORK), R3);
    p.load(Width::U64, R2, R2, at.network_owner);
    p.load(Width::U32, R3, R2, at.owner_inode);
    p.store_on_stack(Width::U32, place(OWNER), R3);
    p.load(Width::U32, R3, R2, at.owner_maker);
    p.store_on_stack(Width::U32, place(MADE_BY), R3);
    // Written out.
    p.copy(R1, R6);
    p.stack_address(R2, place(0));
    p.set(R3, i32::try_from(RECORD).unwrap_or(0));
    p.call(BPF_SEQ_WRITE);
    p.finish(0)
}

/// Where a field of the record lies, from the frame pointer.
fn place(at: usize) -> i16 {
    i16::try_from(at).unwrap_or(0) - i16::try_from(RECORD).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_gives_the_numbers_that_both_ends_share() {
        let mut bytes = [0u8; RECORD];
        let mut put = |at: usize, what: &[u8]| bytes[at..at + what.len()].copy_from_slice(what);
        put(FD, &7u32.to_ne_bytes());
        put(STATE, &1u32.to_ne_bytes());
        put(SND_UNA, &5u32.to_ne_bytes());
        put(ACKED, &10u64.to_ne_bytes());
        put(RCV_NXT, &100u32.to_ne_bytes());
        put(RECEIVED, &(1u64 << 32 | 100).to_ne_bytes());
        let seen = Record::parse(&bytes);
        assert_eq!((seen.fd, seen.state), (7, 1));
        assert_eq!(seen.sends_from, 5u32.wrapping_sub(10), "it has wrapped");
        assert_eq!(seen.receives_from, 0, "4 GiB and a hundred bytes have come");
    }
}
