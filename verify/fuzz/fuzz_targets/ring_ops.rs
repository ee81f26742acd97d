//! `memlane_fuzz::ring_ops` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    memlane_fuzz::ring_ops(bytes);
});
