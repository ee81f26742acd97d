//! `memlane_fuzz::nbd::nbd_handshake` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    memlane_fuzz::nbd::nbd_handshake(bytes);
});
