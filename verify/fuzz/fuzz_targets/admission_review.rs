//! `memlane_fuzz::admission::admission_review` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    memlane_fuzz::admission::admission_review(bytes);
});
