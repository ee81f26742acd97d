//! `memlane_fuzz::extents` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    memlane_fuzz::extents(bytes);
});
