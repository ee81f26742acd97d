//! `memlane_fuzz::hostile_ring` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    memlane_fuzz::hostile_ring(bytes);
});
