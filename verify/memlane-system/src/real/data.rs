//! Bytes that are the same in every run, and their hashes.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// `len` bytes that look random and depend on `seed` only (splitmix64).
pub fn blob(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x6d65_6d6c_616e_6521;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        out.extend_from_slice(&(z ^ (z >> 31)).to_le_bytes());
    }
    out.truncate(len);
    out
}

/// SHA-256 of a file in hex, by coreutils' `sha256sum`.
pub fn sha256_of_file(path: &Path) -> String {
    let out = Command::new("sha256sum")
        .arg(path)
        .output()
        .expect("sha256sum starts");
    assert!(out.status.success(), "sha256sum {}", path.display());
    first_word(&out.stdout)
}

/// SHA-256 of bytes in hex.
pub fn sha256_of_bytes(bytes: &[u8]) -> String {
    let mut child = Command::new("sha256sum")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("sha256sum starts");
    // sha256sum prints only after the end of its input: no dead-lock.
    child
        .stdin
        .take()
        .expect("piped")
        .write_all(bytes)
        .expect("sha256sum reads");
    let out = child.wait_with_output().expect("sha256sum ends");
    first_word(&out.stdout)
}

/// The numbers in `ok=12 wrong=0 …`.
pub fn counts(text: &str) -> BTreeMap<String, u64> {
    let pairs = text
        .split_whitespace()
        .filter_map(|word| word.split_once('='));
    pairs
        .filter_map(|(key, value)| Some((key.to_owned(), value.parse().ok()?)))
        .collect()
}

fn first_word(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    text.split_whitespace().next().unwrap_or("").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blob_is_the_same_every_time_and_differs_by_seed() {
        assert_eq!(blob(1, 1001), blob(1, 1001));
        assert_eq!(blob(1, 1001).len(), 1001);
        assert_ne!(blob(1, 64), blob(2, 64));
        assert_eq!(blob(1, 8), blob(1, 64)[..8]);
    }

    #[test]
    fn hashes_are_sha256() {
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256_of_bytes(b"abc"), abc);
    }
}
