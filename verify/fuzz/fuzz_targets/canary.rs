//! `memlane_fuzz::canary` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    memlane_fuzz::canary(bytes);
});
