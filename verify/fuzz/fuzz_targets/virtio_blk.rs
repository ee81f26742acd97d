//! `memlane_fuzz::virtio_blk` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    memlane_fuzz::virtio_blk(bytes);
});
