//! `memlane_fuzz::run_list` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    memlane_fuzz::run_list(bytes);
});
