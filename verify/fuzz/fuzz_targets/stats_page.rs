//! `memlane_fuzz::stats_page` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    memlane_fuzz::stats_page(bytes);
});
