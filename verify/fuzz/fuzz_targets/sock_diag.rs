//! `memlane_fuzz::sock_diag` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    memlane_fuzz::sock_diag(bytes);
});
