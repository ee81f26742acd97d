//! `memlane_fuzz::rtrs_message` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    memlane_fuzz::rtrs_message(bytes);
});
