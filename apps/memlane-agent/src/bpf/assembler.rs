//! An assembler of a few instructions: straight code whose jumps all lead to its end.
//!
//! Source of the instruction set: the kernel's `Documentation/bpf/standardization/instruction-set.rst`.

/// One instruction, as the kernel takes it.
pub type Instruction = [u8; 8];

/// The result of a call.
pub const R0: u8 = 0;
/// The first argument of a call; at the beginning, the program's context.
pub const R1: u8 = 1;
/// The second argument of a call.
pub const R2: u8 = 2;
/// The third argument of a call.
pub const R3: u8 = 3;
/// The fourth argument of a call.
pub const R4: u8 = 4;
/// A register that calls preserve.
pub const R6: u8 = 6;
/// A register that calls preserve.
pub const R7: u8 = 7;
/// A register that calls preserve.
pub const R8: u8 = 8;
/// A register that calls preserve.
pub const R9: u8 = 9;
/// The frame pointer: the stack lies below it.
pub const R10: u8 = 10;

/// `src_reg` of a load of a map (`BPF_PSEUDO_MAP_FD`).
const PSEUDO_MAP_FD: u8 = 1;
/// `src_reg` of a load of a map's value by address (`BPF_PSEUDO_MAP_VALUE`).
const PSEUDO_MAP_VALUE: u8 = 2;

/// Width of a load or store.
#[derive(Clone, Copy, Debug)]
pub enum Width {
    /// One byte.
    U8,
    /// Four bytes.
    U32,
    /// Eight bytes.
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

/// Instructions, and the jumps among them that lead to the end.
#[derive(Default, Debug)]
pub struct Assembler {
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
    pub fn load(&mut self, width: Width, dst: u8, src: u8, off: i16) {
        self.put(0x61 | width.bits(), dst, src, off, 0);
    }

    /// `*(frame pointer + off) = src`: BPF_STX | BPF_MEM.
    pub fn store_on_stack(&mut self, width: Width, off: i16, src: u8) {
        self.put(0x63 | width.bits(), R10, src, off, 0);
    }

    /// `*(frame pointer + off) = 0`, 8 bytes: BPF_ST | BPF_MEM.
    pub fn zero_on_stack(&mut self, off: i16) {
        self.put(0x62 | Width::U64.bits(), R10, 0, off, 0);
    }

    /// `dst = frame pointer + off`: a move and an addition.
    pub fn stack_address(&mut self, dst: u8, off: i16) {
        self.copy(dst, R10);
        self.put(0x07, dst, 0, 0, i32::from(off));
    }

    /// `dst = src`: BPF_ALU64 | BPF_MOV.
    pub fn copy(&mut self, dst: u8, src: u8) {
        self.put(0xbf, dst, src, 0, 0);
    }

    /// `dst = number`.
    pub fn set(&mut self, dst: u8, number: i32) {
        self.put(0xb7, dst, 0, 0, number);
    }

    /// `dst &= mask`, in 32 bits: BPF_ALU | BPF_AND.
    pub fn mask(&mut self, dst: u8, mask: i32) {
        self.put(0x54, dst, 0, 0, mask);
    }

    /// `dst = htonl(dst)`: BPF_ALU | BPF_END | BPF_TO_BE.
    pub fn to_network_order(&mut self, dst: u8) {
        self.put(0xdc, dst, 0, 0, 32);
    }

    /// `dst = &map[0]`, of a map by its descriptor: BPF_LD | BPF_IMM | BPF_DW, two instructions.
    pub fn load_map_value(&mut self, dst: u8, map: i32) {
        self.put(0x18, dst, PSEUDO_MAP_VALUE, 0, map);
        self.put(0, 0, 0, 0, 0);
    }

    /// `dst = map`, by its descriptor: BPF_LD | BPF_IMM | BPF_DW, two instructions.
    pub fn load_map(&mut self, dst: u8, map: i32) {
        self.put(0x18, dst, PSEUDO_MAP_FD, 0, map);
        self.put(0, 0, 0, 0, 0);
    }

    /// Calls a helper, by its number in `__BPF_FUNC_MAPPER` (`include/uapi/linux/bpf.h`).
    pub fn call(&mut self, helper: i32) {
        self.put(0x85, 0, 0, 0, helper);
    }

    /// To the end if `reg` is zero: BPF_JMP | BPF_JEQ.
    pub fn leave_if_zero(&mut self, reg: u8) {
        self.to_end.push(self.code.len());
        self.put(0x15, reg, 0, 0, 0);
    }

    /// To the end unless `reg` is `number`: BPF_JMP | BPF_JNE.
    pub fn leave_unless(&mut self, reg: u8, number: i32) {
        self.to_end.push(self.code.len());
        self.put(0x55, reg, 0, 0, number);
    }

    /// To the end if `left < right`, without signs: BPF_JMP | BPF_JLT | BPF_X.
    pub fn leave_if_less(&mut self, left: u8, right: u8) {
        self.to_end.push(self.code.len());
        self.put(0xad, left, right, 0, 0);
    }

    /// `return value`, where all jumps lead.
    pub fn finish(mut self, value: i32) -> Vec<Instruction> {
        let end = self.code.len();
        for &from in &self.to_end {
            let distance = i16::try_from(end - from - 1).unwrap_or(0).to_ne_bytes();
            self.code[from][2..4].copy_from_slice(&distance);
        }
        self.set(R0, value);
        self.put(0x95, 0, 0, 0, 0);
        self.code
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_jump_leads_to_the_end() {
        let mut p = Assembler::default();
        p.leave_if_zero(R1);
        p.set(R2, 1);
        p.leave_if_less(R2, R1);
        let code = p.finish(0);
        assert_eq!(code.len(), 5);
        assert_eq!(i16::from_ne_bytes([code[0][2], code[0][3]]), 2);
        assert_eq!(i16::from_ne_bytes([code[2][2], code[2][3]]), 0);
    }
}
