//! `memlane_fuzz::memif::memif_messages` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    memlane_fuzz::memif::memif_messages(bytes);
});
