//! `memlane_fuzz::agent::agent_record` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    memlane_fuzz::agent::agent_record(bytes);
});
