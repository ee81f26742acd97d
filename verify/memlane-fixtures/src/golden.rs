//! Hex dumps as the documents in docs/formats show them.

use std::fmt::Write as _;

/// A dump with 16 bytes on a line. A line of zeros is left out, unless it is the last one.
///
/// # Panics
/// If there are no bytes.
pub fn dump(name: &str, bytes: &[u8]) -> String {
    let mut text = format!("{name}, {} bytes\n", bytes.len());
    let last = (bytes.len() - 1) / 16;
    for (at, line) in bytes.chunks(16).enumerate() {
        if at == last || line.iter().any(|byte| *byte != 0) {
            let _ = write!(text, "{:04x} ", at * 16);
            for byte in line {
                let _ = write!(text, " {byte:02x}");
            }
            text.push('\n');
        }
    }
    text
}

/// The document `docs/formats/NAME.md`.
///
/// # Panics
/// If there is none.
pub fn page(name: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/formats");
    std::fs::read_to_string(format!("{folder}/{name}.md")).expect("a page of docs/formats")
}
