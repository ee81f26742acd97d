//! `memlane_fuzz::tcp_stream` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    memlane_fuzz::tcp_stream(bytes);
});
