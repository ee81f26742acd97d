//! The function that tools count, and what copies depend on.

/// Calls `work`. Tools that count instructions count what this function calls, and nothing else
/// (`callgrind --toggle-collect=*hot_paths::counted::counted*`).
///
/// # Errors
/// Those of `work`.
#[inline(never)]
pub(super) fn counted(work: &mut dyn FnMut() -> anyhow::Result<()>) -> anyhow::Result<()> {
    let done = work();
    // No call in tail position: this function is left when `work` is.
    std::hint::black_box(done)
}

/// The CPU's features by which `memlane_core::copy` chooses, as this process sees them: valgrind shows a CPU of its own.
#[cfg(target_arch = "x86_64")]
#[allow(unused_unsafe)] // newer compilers call CPUID safe; the oldest that compiles this does not
pub(super) fn cpu() -> String {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    // SAFETY: every x86-64 CPU has CPUID; a leaf that it lacks gives numbers without a meaning, and does no harm.
    let (vendor, features) = unsafe { (__cpuid(0), __cpuid_count(7, 0)) };
    let name = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes);
    let all = [
        ("avx", std::arch::is_x86_feature_detected!("avx")),
        ("avx2", std::arch::is_x86_feature_detected!("avx2")),
        ("erms", features.ebx & 1 << 9 != 0),
        ("fsrm", features.edx & 1 << 4 != 0),
    ];
    let mut words = vec![String::from_utf8_lossy(name.as_flattened()).into_owned()];
    words.extend(
        all.iter()
            .filter(|(_, has)| *has)
            .map(|(word, _)| (*word).into()),
    );
    words.join(" ")
}

/// Elsewhere copies do not depend on the CPU.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn cpu() -> String {
    std::env::consts::ARCH.into()
}
