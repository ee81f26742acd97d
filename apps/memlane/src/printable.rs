//! Text of others. On its own, for the fuzz target `stats_page` uses it without the rest of the command.

/// Text from another process, safe to print: no control characters, nothing outside ASCII.
pub(crate) fn printable(bytes: &[u8]) -> String {
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
