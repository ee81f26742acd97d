//! `memlane_fuzz::agent::kernel_types` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    memlane_fuzz::agent::kernel_types(bytes);
});
