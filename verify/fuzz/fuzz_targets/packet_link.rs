//! `memlane_fuzz::packet::packet_link` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    memlane_fuzz::packet::packet_link(bytes);
});
