//! The program that the kernel runs for each file of a process: it writes out what it finds of a TCP socket.
//!
//! Source of the instruction set: the kernel's `Documentation/bpf/standardization/instruction-set.rst`; of the numbers of
//! helpers: `__BPF_FUNC_MAPPER` in `include/uapi/linux/bpf.h`.

use super::btf::{Btf, BtfError};

/// One instruction, as the kernel takes it.
pub(super) type Instruction = [u8; 8];

/// Bytes that the program writes for each socket; [`Record::parse`] has the layout.
pub(super) const RECORD: usize = 64;

const BPF_SEQ_WRITE: i32 = 127;
const BPF_SKC_TO_TCP_SOCK: i32 = 137;
const BPF_SOCK_FROM_FILE: i32 = 162;
/// `src_reg` of a load of a map's value by address (`BPF_PSEUDO_MAP_VALUE`).
const PSEUDO_MAP_VALUE: u8 = 2;

const R0: u8 = 0;
const R1: u8 = 1;
const R2: u8 = 2;
const R3: u8 = 3;
const R6: u8 = 6;
const R7: u8 = 7;
const R8: u8 = 8;
const R9: u8 = 9;
/// The frame pointer.
const R10: u8 = 10;

// Fields of `struct bpf_iter__task_file` (kernel/bpf/task_iter.c) and `struct bpf_iter_meta` (include/linux/bpf.h): pointers
// and numbers in 8 bytes each, in this order, part of the interface between kernel and program.
const CTX_META: i16 = 0;
const CTX_FD: i16 = 16;
const CTX_FILE: i16 = 24;
const META_SEQ: i16 = 0;

/// Width of a load or store.
#[derive(Clone, Copy)]
enum Width {
    U8,
    U32,
    U64,
}

impl Width {
    /// `BPF_SIZE` of an opcode.
    fn bits(self) -> u8 {
        match self {
            Width::U8 => 0x10,
            Width::U32 => 0x00,
            Width::U64 => 0x18,
        }
    }
}

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
    p.zero_record();
    p.store(Width::U32, FD, R8);
    p.load(Width::U64, R2, R7, at.file_inode);
    p.load(Width::U64, R2, R2, at.inode_number);
    p.store(Width::U64, INODE, R2);
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
    p.store(Width::U32, STATE, R2);
    p.load(Width::U32, R2, R0, at.snd_una);
    p.store(Width::U32, SND_UNA, R2);
    p.load(Width::U32, R2, R0, at.rcv_nxt);
    p.store(Width::U32, RCV_NXT, R2);
    p.load(Width::U64, R2, R0, at.acked);
    p.store(Width::U64, ACKED, R2);
    p.load(Width::U64, R2, R0, at.received);
    p.store(Width::U64, RECEIVED, R2);
    p.load(Width::U64, R2, R9, at.network);
    p.load(Width::U32, R3, R2, at.network_inode);
    p.store(Width::U32, NETWORK, R3);
    p.load(Width::U64, R2, R2, at.network_owner);
    p.load(Width::U32, R3, R2, at.owner_inode);
    p.store(Width::U32, OWNER, R3);
    p.load(Width::U32, R3, R2, at.owner_maker);
    p.store(Width::U32, MADE_BY, R3);
    // Written out.
    p.copy(R1, R6);
    p.record_address(R2);
    p.set(R3, i32::try_from(RECORD).unwrap_or(0));
    p.call(BPF_SEQ_WRITE);
    p.finish()
}

/// Instructions, and the jumps among them that lead to the end.
#[derive(Default)]
struct Assembler {
    code: Vec<Instruction>,
    to_end: Vec<usize>,
}

impl Assembler {
    fn put(&mut self, op: u8, dst: u8, src: u8, off: i16, imm: i32) {
        let (off, imm) = (off.to_ne_bytes(), imm.to_ne_bytes());
        let regs = if cfg!(target_endian = "little") {
            src << 4 | dst
        } else {
            dst << 4 | src
        };
        self.code
            .push([op, regs, off[0], off[1], imm[0], imm[1], imm[2], imm[3]]);
    }

    /// `dst = *(src + off)`: BPF_LDX | BPF_MEM.
    fn load(&mut self, width: Width, dst: u8, src: u8, off: i16) {
        self.put(0x61 | width.bits(), dst, src, off, 0);
    }

    /// `record[at] = src`: BPF_STX | BPF_MEM.
    fn store(&mut self, width: Width, at: usize, src: u8) {
        self.put(0x63 | width.bits(), R10, src, place(at), 0);
    }

    /// The record begins as zeros: BPF_ST | BPF_MEM.
    fn zero_record(&mut self) {
        for at in (0..RECORD).step_by(8) {
            self.put(0x62 | Width::U64.bits(), R10, 0, place(at), 0);
        }
    }

    /// `dst = src`: BPF_ALU64 | BPF_MOV.
    fn copy(&mut self, dst: u8, src: u8) {
        self.put(0xbf, dst, src, 0, 0);
    }

    /// `dst = number`.
    fn set(&mut self, dst: u8, number: i32) {
        self.put(0xb7, dst, 0, 0, number);
    }

    /// `dst = &record`: a move of the frame pointer and an addition.
    fn record_address(&mut self, dst: u8) {
        self.copy(dst, R10);
        self.put(0x07, dst, 0, 0, i32::from(place(0)));
    }

    /// `dst = &map[0]`: BPF_LD | BPF_IMM | BPF_DW, two instructions.
    fn load_map_value(&mut self, dst: u8, map: i32) {
        self.put(0x18, dst, PSEUDO_MAP_VALUE, 0, map);
        self.put(0, 0, 0, 0, 0);
    }

    fn call(&mut self, helper: i32) {
        self.put(0x85, 0, 0, 0, helper);
    }

    /// To the end if `reg` is zero: BPF_JMP | BPF_JEQ.
    fn leave_if_zero(&mut self, reg: u8) {
        self.to_end.push(self.code.len());
        self.put(0x15, reg, 0, 0, 0);
    }

    /// To the end if `left < right`, without signs: BPF_JMP | BPF_JLT | BPF_X.
    fn leave_if_less(&mut self, left: u8, right: u8) {
        self.to_end.push(self.code.len());
        self.put(0xad, left, right, 0, 0);
    }

    /// `return 0`, where all jumps lead.
    fn finish(mut self) -> Vec<Instruction> {
        let end = self.code.len();
        for &from in &self.to_end {
            let distance = i16::try_from(end - from - 1).unwrap_or(0).to_ne_bytes();
            self.code[from][2..4].copy_from_slice(&distance);
        }
        self.set(R0, 0);
        self.put(0x95, 0, 0, 0, 0);
        self.code
    }
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

    #[test]
    fn every_jump_leads_to_the_end() {
        let mut p = Assembler::default();
        p.leave_if_zero(R1);
        p.set(R2, 1);
        p.leave_if_less(R2, R1);
        let code = p.finish();
        assert_eq!(code.len(), 5);
        assert_eq!(i16::from_ne_bytes([code[0][2], code[0][3]]), 2);
        assert_eq!(i16::from_ne_bytes([code[2][2], code[2][3]]), 0);
    }
}
