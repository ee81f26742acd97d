//! `memlane_fuzz::across::region` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    memlane_fuzz::across::region(bytes);
});
