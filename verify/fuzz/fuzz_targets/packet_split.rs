//! `memlane_fuzz::frames::packet_split` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    memlane_fuzz::frames::packet_split(bytes);
});
