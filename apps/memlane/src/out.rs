//! What goes to stdout: built first, written once, quiet on a broken pipe.

use std::io::Write;

use comfy_table::{CellAlignment, Table};
use serde::Serialize;

/// Writes `text` to stdout; a reader that has gone away is not an error.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    let written = stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush());
    match written {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

/// Writes text to stderr (which may be closed: not an error).
pub(crate) fn stderr(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Writes one hint or warning to stderr.
pub(crate) fn warn(text: &str) {
    stderr(&format!("memlane: {text}\n"));
}

/// A JSON document, indented, with a last newline.
pub(crate) fn json(document: &impl Serialize) -> anyhow::Result<String> {
    let mut text = serde_json::to_string_pretty(document)?;
    text.push('\n');
    Ok(text)
}

/// Columns without lines around them; `right` names those that hold numbers.
pub(crate) fn columns(header: &[&str], right: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(header.to_vec());
    for row in rows {
        table.add_row(row);
    }
    for (column, name) in table.column_iter_mut().zip(header) {
        column.set_padding((0, 2));
        if right.contains(name) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut text = String::new();
    for line in table.lines() {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Bytes for people: binary units, one decimal from KiB on.
pub(crate) fn human(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return bytes.to_string();
    }
    let mut tenths = u128::from(bytes) * 10 / 1024;
    let mut unit = 0;
    while tenths >= 10240 && unit + 1 < UNITS.len() {
        tenths /= 1024;
        unit += 1;
    }
    match tenths % 10 {
        0 => format!("{}{}", tenths / 10, UNITS[unit]),
        rest => format!("{}.{}{}", tenths / 10, rest, UNITS[unit]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short_and_never_overflow() {
        assert_eq!(human(1023), "1023");
        assert_eq!(human(1024), "1KiB");
        assert_eq!(human(1536), "1.5KiB");
        assert_eq!(human(262_144), "256KiB");
        assert_eq!(human(u64::MAX), "15.9EiB");
    }
}
