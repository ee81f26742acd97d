//! Makes text that another process wrote safe to print.

/// The text up to the first NUL, with `?` for every byte that is not printable ASCII.
///
/// ```
/// assert_eq!(memlane_observe::printable(b"ng\x1b[31minx\0junk"), "ng?[31minx");
/// ```
pub fn printable(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    bytes[..end]
        .iter()
        .map(|&b| match b {
            0x20..=0x7e => char::from(b),
            _ => '?',
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_cannot_drive_the_terminal() {
        assert_eq!(printable(b"ng\x1b[31minx\0junk"), "ng?[31minx");
        assert_eq!(printable(&[0xff, b'a', b'\n']), "?a?");
    }
}
