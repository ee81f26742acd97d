//! `memlane_fuzz::devmem::devmem_netlink` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    memlane_fuzz::devmem::devmem_netlink(bytes);
});
