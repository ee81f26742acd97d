//! What the kernel tells a program on its stack (`elf_tables` in the kernel, the System V ABI for amd64).

use crate::golang::Program;

const AT_PHDR: usize = 3;
const AT_PHNUM: usize = 5;
const AT_ENTRY: usize = 9;
const AT_SYSINFO_EHDR: usize = 33;

/// As much of it as is needed.
pub(super) struct Stack {
    pub(super) environment: *const *const u8,
    /// The program's first instruction.
    pub(super) entry: usize,
    /// Where the kernel's own library lies; 0: there is none.
    pub(super) vdso: usize,
    headers: usize,
    count: usize,
}

impl Stack {
    /// # Safety
    /// At `at` lies the stack of a new program: the number of arguments, their addresses, a zero; the addresses of the
    /// environment, a zero; pairs of words, up to a pair that begins with zero.
    pub(super) unsafe fn read(at: *const usize) -> Stack {
        // SAFETY: within the stack, as the caller promises.
        unsafe {
            let environment = at.add(1 + *at + 1);
            let mut pair = environment;
            while *pair != 0 {
                pair = pair.add(1);
            }
            pair = pair.add(1);
            let mut stack = Stack {
                environment: environment.cast(),
                entry: 0,
                vdso: 0,
                headers: 0,
                count: 0,
            };
            while *pair != 0 {
                let value = *pair.add(1);
                match *pair {
                    AT_PHDR => stack.headers = value,
                    AT_PHNUM => stack.count = value,
                    AT_ENTRY => stack.entry = value,
                    AT_SYSINFO_EHDR => stack.vdso = value,
                    _ => {}
                }
                pair = pair.add(2);
            }
            stack
        }
    }

    /// The program, whose addresses are those of its file.
    pub(super) fn program(&self) -> Program {
        // SAFETY: the kernel tells where the headers of the program are mapped, which stay as long as the program.
        let segments = unsafe {
            core::slice::from_raw_parts(self.headers as *const libc::Elf64_Phdr, self.count)
        };
        Program { base: 0, segments }
    }
}
