//! `memlane_fuzz::frames::packet_segment` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    memlane_fuzz::frames::packet_segment(bytes);
});
