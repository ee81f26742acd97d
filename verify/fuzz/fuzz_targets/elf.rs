//! `memlane_fuzz::elf` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    memlane_fuzz::elf(bytes);
});
