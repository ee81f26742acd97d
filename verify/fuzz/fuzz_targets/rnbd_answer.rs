//! `memlane_fuzz::rnbd_answer` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    memlane_fuzz::rnbd_answer(bytes);
});
