//! Copies of bytes that a peer may change meanwhile, by the best instructions of the CPU.
//!
//! Machine code that the compiler cannot look into: it can neither read a byte twice nor assume that two reads agree.
//! Two kinds of copies differ in what the other CPU has done with the destination:
//!
//! | copy | by |
//! |---|---|
//! | [`copy`]: the destination is ours | registers: 16 bytes wide, from [`WIDE_FROM`] bytes on 32 bytes wide where the CPU has AVX |
//! | [`copy_to_peer`]: the other CPU has read the destination's cache lines | as `copy`; from 1 KiB on (on Intel's CPUs and in the middle of a line, 2 KiB) by one string instruction (`rep movsb`), where the CPU has a fast one |
//! | `copy_past_caches`: the other CPU is far | non-temporal stores of 16 bytes |
//!
//! A store by a register to a line that another CPU has must first fetch that line, and only few such fetches are under way
//! at once. The string instruction takes whole lines over without their old bytes. Frames of 1,496 bytes go from one CPU to
//! the other in half the time (medians on Zen 5, two CPUs: 71 ns by registers, 47 ns by the string instruction; on a busy machine 382 and 170 ns),
//! frames of 64 KiB in half to a third. In a cache of one's own the two take the same time from 1 KiB on.

#[cfg(target_arch = "x86_64")]
use core::sync::atomic::{AtomicUsize, Ordering};

/// Bytes from which wide registers are worth the call and the look at what the CPU has.
#[cfg(target_arch = "x86_64")]
const WIDE_FROM: usize = 128;

/// Copies without overlap, opaque to the compiler.
///
/// # Safety
/// `src` readable and `dst` writable for `n` bytes, not overlapping.
#[inline]
pub unsafe fn copy(dst: *mut u8, src: *const u8, n: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's promise; every branch touches exactly n bytes, and each has as many as it needs.
    unsafe {
        if n >= WIDE_FROM {
            copy_wide(dst, src, n);
        } else if n > 32 {
            copy_blocks(dst, src, n);
        } else {
            copy_small(dst, src, n);
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller's promise.
    unsafe {
        copy_words(dst, src, n);
    }
}

/// Copies without overlap to memory that another CPU has in its cache, because a peer has read what lay there before.
///
/// # Safety
/// `src` readable and `dst` writable for `n` bytes, not overlapping.
#[inline]
pub(crate) unsafe fn copy_to_peer(dst: *mut u8, src: *const u8, n: usize) {
    #[cfg(target_arch = "x86_64")]
    if n >= string_least(dst) && n >= best().string_from() {
        // SAFETY: the caller's promise.
        unsafe { copy_string(dst, src, n) };
        return;
    }
    // SAFETY: the caller's promise.
    unsafe { copy(dst, src, n) }
}

/// Copies without overlap past the caches, to memory that a CPU far away has in its cache. All bytes are there before any
/// later store is.
///
/// # Safety
/// `src` readable and `dst` writable for `n` bytes, not overlapping.
pub(crate) unsafe fn copy_past_caches(dst: *mut u8, src: *const u8, n: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        let head = dst.align_offset(LINE).min(n);
        let lines = (n - head) / LINE;
        let tail = head + lines * LINE;
        // SAFETY: `head`, `lines` whole lines and what is behind them make up the n bytes; the lines begin at a multiple of
        // their length.
        unsafe {
            copy(dst, src, head);
            copy_lines_past_caches(dst.add(head), src.add(head), lines);
            copy(dst.add(tail), src.add(tail), n - tail);
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller's promise.
    unsafe {
        copy(dst, src, n);
    }
}

/// Bytes of a cache line. Non-temporal stores to a part of one are slow.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

/// Copies whole cache lines by non-temporal stores, and waits until they are on their way.
///
/// # Safety
/// `src` readable and `dst` writable for `lines` cache lines, not overlapping; `dst` is the beginning of one, unless there are none.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_lines_past_caches(dst: *mut u8, src: *const u8, lines: usize) {
    // SAFETY: the loop moves 64 bytes for each line. `movntdq` needs an address that is a multiple of 16. Its stores have no
    // order, not even before later stores of another kind: `sfence` orders them before what publishes the bytes.
    unsafe {
        core::arch::asm!(
            "test {left}, {left}",
            "jz 3f",
            "2:",
            "movups xmm0, [{s}]",
            "movups xmm1, [{s} + 16]",
            "movups xmm2, [{s} + 32]",
            "movups xmm3, [{s} + 48]",
            "movntdq [{d}], xmm0",
            "movntdq [{d} + 16], xmm1",
            "movntdq [{d} + 32], xmm2",
            "movntdq [{d} + 48], xmm3",
            "add {s}, 64",
            "add {d}, 64",
            "dec {left}",
            "jnz 2b",
            "sfence",
            "3:",
            left = inout(reg) lines => _,
            s = inout(reg) src => _,
            d = inout(reg) dst => _,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            options(nostack)
        );
    }
}

/// No CPU gets the string instruction for fewer bytes than this: it takes some 30 cycles to begin. Measured on Zen 5: in a
/// cache of one's own, 1 KiB is where it is level with 16-byte registers.
#[cfg(target_arch = "x86_64")]
const STRING_LEAST: usize = 1024;

/// The same for a destination in the middle of a cache line, whose first and last lines cannot be taken over: measured with
/// iperf3, which loses a fifth with writes of 1,460 bytes and gains a seventh with writes of 2,800.
#[cfg(target_arch = "x86_64")]
const STRING_LEAST_ASKEW: usize = 2048;

#[cfg(target_arch = "x86_64")]
#[inline]
fn string_least(dst: *const u8) -> usize {
    if dst.addr().is_multiple_of(64) {
        STRING_LEAST
    } else {
        STRING_LEAST_ASKEW
    }
}

/// On CPUs other than AMD's: measured on a Xeon (Emerald Rapids) between two CPUs, 1,496 bytes take 181 to 200 ns by the string
/// instruction and 137 to 160 ns by registers; from 2 KiB on, both take the same time.
#[cfg(target_arch = "x86_64")]
const STRING_ELSEWHERE: usize = 2048;

/// On CPUs whose string instruction is fast for long copies only (ERMS without FSRM): glibc takes it from this length on beside registers of 32 bytes.
#[cfg(target_arch = "x86_64")]
const STRING_LONG: usize = 4096;

/// No length at all: what comes after [`Best`]'s two flags.
#[cfg(target_arch = "x86_64")]
const NEVER: usize = usize::MAX >> 2;

/// What this CPU copies best by, in one word: bit 0: it was found out, bit 1: it has AVX, above: [`string_from`].
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
struct Best(usize);

#[cfg(target_arch = "x86_64")]
impl Best {
    fn new(cpu: Cpu) -> Best {
        Best(string_from(cpu) << 2 | usize::from(cpu.avx) << 1 | 1)
    }

    /// Has registers of 32 bytes.
    #[inline]
    fn wide(self) -> bool {
        self.0 & 2 != 0
    }

    /// Bytes from which its string instruction is best.
    #[inline]
    fn string_from(self) -> usize {
        self.0 >> 2
    }
}

/// The word of a [`Best`]; 0: nobody has asked.
#[cfg(target_arch = "x86_64")]
static BEST: AtomicUsize = AtomicUsize::new(0);

/// What is best here. Asks the CPU once: that takes microseconds in a virtual machine.
#[cfg(target_arch = "x86_64")]
#[inline]
fn best() -> Best {
    match BEST.load(Ordering::Relaxed) {
        0 => find_best(),
        best => Best(best),
    }
}

#[cfg(target_arch = "x86_64")]
#[cold]
fn find_best() -> Best {
    let best = Best::new(Cpu::of_this_machine());
    BEST.store(best.0, Ordering::Relaxed);
    best
}

/// What CPUID says, as far as copies depend on it.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
struct Cpu {
    /// AMD's, or Hygon's, which are AMD's.
    amd: bool,
    /// Base and extended family together (leaf 1, EAX).
    family: u32,
    /// Registers of 32 bytes (leaf 1, ECX bit 28), which the kernel keeps for each thread (bit 27; XCR0, bits 1 and 2).
    avx: bool,
    /// Enhanced `rep movsb` (leaf 7, EBX bit 9).
    erms: bool,
    /// Fast short `rep movsb` (leaf 7, EDX bit 4).
    fsrm: bool,
}

#[cfg(target_arch = "x86_64")]
impl Cpu {
    #[allow(unused_unsafe)] // newer compilers call CPUID safe; the oldest that compiles this does not
    fn of_this_machine() -> Cpu {
        use core::arch::x86_64::{__cpuid, __cpuid_count};
        // SAFETY: every x86-64 CPU has CPUID.
        let (vendor, version) = unsafe { (__cpuid(0), __cpuid(1)) };
        let (mut erms, mut fsrm) = (false, false);
        if vendor.eax >= 7 {
            // SAFETY: the CPU has this leaf, as it just said.
            let features = unsafe { __cpuid_count(7, 0) };
            erms = features.ebx & 1 << 9 != 0;
            fsrm = features.edx & 1 << 4 != 0;
        }
        let base = version.eax >> 8 & 15;
        let extended = if base == 15 {
            version.eax >> 20 & 255
        } else {
            0
        };
        let name = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes);
        let kept = version.ecx & 1 << 27 != 0 && kept_registers() & 6 == 6;
        Cpu {
            amd: [&b"AuthenticAMD"[..], b"HygonGenuine"].contains(&name.as_flattened()),
            family: base + extended,
            avx: kept && version.ecx & 1 << 28 != 0,
            erms,
            fsrm,
        }
    }
}

/// XCR0: which registers the kernel keeps for each thread. Only on CPUs with OSXSAVE.
#[cfg(target_arch = "x86_64")]
fn kept_registers() -> u32 {
    let kept: u32;
    // SAFETY: reads a register of the CPU, which the caller has seen to be there.
    unsafe {
        core::arch::asm!("xgetbv", in("ecx") 0, out("eax") kept, out("edx") _, options(nomem, nostack, preserves_flags));
    }
    kept
}

/// Zen 3 and Zen 4 have the string instruction, but take up to twenty times as long where the source is aligned to a line
/// and the destination is not (glibc's bug 30994).
#[cfg(target_arch = "x86_64")]
const ZEN_3_AND_4: u32 = 0x19;

/// Bytes from which a CPU copies best by its string instruction; [`NEVER`].
#[cfg(target_arch = "x86_64")]
fn string_from(cpu: Cpu) -> usize {
    match cpu {
        Cpu {
            amd: true, family, ..
        } if family <= ZEN_3_AND_4 => NEVER,
        Cpu {
            amd: true,
            fsrm: true,
            ..
        } => STRING_LEAST,
        Cpu { fsrm: true, .. } => STRING_ELSEWHERE,
        Cpu { erms: true, .. } => STRING_LONG,
        _ => NEVER,
    }
}

/// As the CPU's microcode does it.
///
/// # Safety
/// As [`copy`].
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn copy_string(dst: *mut u8, src: *const u8, n: usize) {
    // SAFETY: moves exactly n bytes upwards; the direction flag is clear by the ABI. Its stores may reach memory in any
    // order among themselves, but all of them before any later store: what publishes the bytes comes after them.
    unsafe {
        core::arch::asm!(
            "rep movsb",
            inout("rcx") n => _,
            inout("rsi") src => _,
            inout("rdi") dst => _,
            options(nostack, preserves_flags)
        );
    }
}

/// By the widest registers that pay.
///
/// # Safety
/// As [`copy`]; `n` is at least [`WIDE_FROM`].
#[cfg(target_arch = "x86_64")]
unsafe fn copy_wide(dst: *mut u8, src: *const u8, n: usize) {
    // SAFETY: the caller's promise; AVX is there where it is used.
    unsafe {
        if best().wide() {
            copy_blocks_avx(dst, src, n);
        } else {
            copy_blocks(dst, src, n);
        }
    }
}

/// 128-byte blocks through four registers of 32 bytes, then the last 128 bytes, some of which may be copied already.
///
/// # Safety
/// As [`copy`]; `n` is at least 128, and the CPU has AVX.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn copy_blocks_avx(dst: *mut u8, src: *const u8, n: usize) {
    // SAFETY: the loop moves n/128 whole blocks; the tail moves the last 128 bytes of 0..n, which has as many. All vector
    // registers are given up, because `vzeroupper` clears the upper half of each.
    unsafe {
        core::arch::asm!(
            "2:",
            "vmovups ymm0, [{s}]",
            "vmovups ymm1, [{s} + 32]",
            "vmovups ymm2, [{s} + 64]",
            "vmovups ymm3, [{s} + 96]",
            "vmovups [{d}], ymm0",
            "vmovups [{d} + 32], ymm1",
            "vmovups [{d} + 64], ymm2",
            "vmovups [{d} + 96], ymm3",
            "add {s}, 128",
            "add {d}, 128",
            "sub {left}, 128",
            "cmp {left}, 128",
            "jae 2b",
            "test {left}, {left}",
            "jz 3f",
            "vmovups ymm0, [{s} + {left} - 128]",
            "vmovups ymm1, [{s} + {left} - 96]",
            "vmovups ymm2, [{s} + {left} - 64]",
            "vmovups ymm3, [{s} + {left} - 32]",
            "vmovups [{d} + {left} - 128], ymm0",
            "vmovups [{d} + {left} - 96], ymm1",
            "vmovups [{d} + {left} - 64], ymm2",
            "vmovups [{d} + {left} - 32], ymm3",
            "3:",
            "vzeroupper",
            left = inout(reg) n => _,
            s = inout(reg) src => _,
            d = inout(reg) dst => _,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            options(nostack)
        );
    }
}

/// 33 bytes and more: 64-byte blocks through four vector registers, then a tail
/// of one or two 32-byte moves that may overlap what is already copied.
///
/// # Safety
/// As [`copy`]; `n` > 32.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn copy_blocks(dst: *mut u8, src: *const u8, n: usize) {
    // SAFETY: the loop moves n/64 whole blocks; the tail moves the last 32 bytes
    // and, if more than 32 remain, the 32 before them; all inside 0..n because n > 32.
    unsafe {
        core::arch::asm!(
            "mov {left}, {n}",
            "cmp {left}, 64",
            "jb 3f",
            "2:",
            "movups xmm0, [{s}]",
            "movups xmm1, [{s} + 16]",
            "movups xmm2, [{s} + 32]",
            "movups xmm3, [{s} + 48]",
            "movups [{d}], xmm0",
            "movups [{d} + 16], xmm1",
            "movups [{d} + 32], xmm2",
            "movups [{d} + 48], xmm3",
            "add {s}, 64",
            "add {d}, 64",
            "sub {left}, 64",
            "cmp {left}, 64",
            "jae 2b",
            "3:",
            "test {left}, {left}",
            "jz 5f",
            "movups xmm2, [{s} + {left} - 32]",
            "movups xmm3, [{s} + {left} - 16]",
            "cmp {left}, 32",
            "jbe 4f",
            "movups xmm0, [{s}]",
            "movups xmm1, [{s} + 16]",
            "movups [{d}], xmm0",
            "movups [{d} + 16], xmm1",
            "4:",
            "movups [{d} + {left} - 32], xmm2",
            "movups [{d} + {left} - 16], xmm3",
            "5:",
            n = in(reg) n,
            left = out(reg) _,
            s = inout(reg) src => _,
            d = inout(reg) dst => _,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            options(nostack)
        );
    }
}

/// Up to 32 bytes: two moves of 16, 8 or 4 that may overlap, or single bytes.
///
/// # Safety
/// As [`copy`].
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn copy_small(dst: *mut u8, src: *const u8, n: usize) {
    // SAFETY: moves exactly n bytes upwards; the direction flag is clear by the ABI.
    unsafe {
        core::arch::asm!(
            "cmp {n}, 16",
            "jb 2f",
            "movups xmm0, [{s}]",
            "movups xmm1, [{s} + {n} - 16]",
            "movups [{d}], xmm0",
            "movups [{d} + {n} - 16], xmm1",
            "jmp 6f",
            "2:",
            "cmp {n}, 8",
            "jb 3f",
            "mov {t}, [{s}]",
            "mov {u}, [{s} + {n} - 8]",
            "mov [{d}], {t}",
            "mov [{d} + {n} - 8], {u}",
            "jmp 6f",
            "3:",
            "cmp {n}, 4",
            "jb 4f",
            "mov {t:e}, [{s}]",
            "mov {u:e}, [{s} + {n} - 4]",
            "mov [{d}], {t:e}",
            "mov [{d} + {n} - 4], {u:e}",
            "jmp 6f",
            "4:",
            "test {n}, {n}",
            "jz 6f",
            "5:",
            "mov {t:l}, [{s} + {n} - 1]",
            "mov [{d} + {n} - 1], {t:l}",
            "dec {n}",
            "jnz 5b",
            "6:",
            n = inout(reg) n => _,
            s = in(reg) src,
            d = in(reg) dst,
            t = out(reg) _,
            u = out(reg) _,
            out("xmm0") _, out("xmm1") _,
            options(nostack)
        );
    }
}

/// Portable: volatile bytes and words.
///
/// # Safety
/// As [`copy`].
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_words(dst: *mut u8, src: *const u8, n: usize) {
    let mut i = 0;
    if (dst as usize | src as usize) % 8 == 0 {
        while i + 8 <= n {
            // SAFETY: inside 0..n and aligned.
            unsafe {
                let w = src.add(i).cast::<u64>().read_volatile();
                dst.add(i).cast::<u64>().write_volatile(w);
            }
            i += 8;
        }
    }
    while i < n {
        // SAFETY: inside 0..n.
        unsafe { dst.add(i).write_volatile(src.add(i).read_volatile()) };
        i += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A way to copy, its name, and the fewest bytes that it takes.
    type Way = (&'static str, unsafe fn(*mut u8, *const u8, usize), usize);

    fn ways() -> Vec<Way> {
        let mut ways: Vec<Way> = vec![
            ("copy", copy, 0),
            ("copy to a peer", copy_to_peer, 0),
            ("past the caches", copy_past_caches, 0),
        ];
        #[cfg(target_arch = "x86_64")]
        {
            ways.push(("16 bytes wide", copy_blocks, 33));
            ways.push(("string instruction", copy_string, 0));
            if best().wide() {
                ways.push(("32 bytes wide", copy_blocks_avx, 128));
            }
        }
        ways
    }

    #[test]
    fn every_length_and_alignment_copies_exactly_its_bytes() {
        let src: Vec<u8> = (0..6000u32).map(|i| (i * 7 + 3).to_le_bytes()[0]).collect();
        let lens = (0..300).chain([
            511, 512, 513, 1000, 1023, 1024, 1025, 1500, 4095, 4097, 5000,
        ]);
        for (name, way, n) in lens.flat_map(|n| {
            ways()
                .into_iter()
                .map(move |(name, way, least)| (name, way, n.max(least)))
        }) {
            for (so, d_o) in [(0, 0), (1, 3), (5, 0), (0, 9), (13, 31)] {
                let mut dst = vec![0xAAu8; 6000];
                // SAFETY: both vectors are longer than offset + n.
                unsafe { way(dst.as_mut_ptr().add(d_o), src.as_ptr().add(so), n) };
                assert!(dst[d_o..d_o + n] == src[so..so + n], "{name}, {n} bytes");
                assert!(dst[..d_o].iter().all(|&b| b == 0xAA), "{name}, {n} bytes");
                assert!(
                    dst[d_o + n..].iter().all(|&b| b == 0xAA),
                    "{name}, {n} bytes"
                );
            }
        }
    }

    /// The compiler may have values in vector registers while a copy clears their upper halves.
    #[test]
    fn what_lies_in_registers_survives_a_copy() {
        let (src, mut dst) = ([7u8; 400], [0u8; 400]);
        let numbers: [f64; 16] = std::array::from_fn(|n| std::hint::black_box(n as f64 + 0.5));
        // SAFETY: both arrays have 400 bytes.
        unsafe { copy(dst.as_mut_ptr(), src.as_ptr(), 400) };
        let sum: f64 = numbers.iter().sum();
        assert_eq!((dst, sum), (src, 128.0));
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_string_instruction_is_used_where_it_is_fast_and_nowhere_else() {
        let cpu = |amd, family, erms, fsrm| Cpu {
            amd,
            family,
            avx: true,
            erms,
            fsrm,
        };
        // Zen 5; Ice Lake and later; Haswell to Cascade Lake.
        assert_eq!(string_from(cpu(true, 0x1a, true, true)), STRING_LEAST);
        assert_eq!(string_from(cpu(false, 6, true, true)), STRING_ELSEWHERE);
        assert_eq!(string_from(cpu(false, 6, true, false)), STRING_LONG);
        // Zen 3 and 4; Zen 2; a CPU that says nothing of it.
        assert_eq!(string_from(cpu(true, 0x19, true, true)), NEVER);
        assert_eq!(string_from(cpu(true, 0x17, false, false)), NEVER);
        assert_eq!(string_from(cpu(false, 6, false, false)), NEVER);
        assert!(Best::new(cpu(true, 0x19, true, true)).wide());
        assert_eq!(Best::new(cpu(true, 0x19, true, true)).string_from(), NEVER);
        assert_eq!(best().0, Best::new(Cpu::of_this_machine()).0);
        let avx = std::arch::is_x86_feature_detected!("avx");
        assert_eq!(best().wide(), avx);
    }
}
