//! Output: text is built first and written at once; a broken pipe is no error.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

use comfy_table::{CellAlignment, Table};
use serde::Serialize;

/// Writes `text` to stdout. A reader that has gone away is no error.
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

/// Writes `text` to stderr. A closed stderr is no error.
pub(crate) fn stderr(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Writes one line to stderr, with the command's name in front.
pub(crate) fn warn(text: &str) {
    stderr(&format!("memlane: {text}\n"));
}

/// Is there a line of progress on the terminal? Written by whoever draws or clears it.
static DRAWN: AtomicBool = AtomicBool::new(false);

/// Draws a line of progress, over the one before.
pub(crate) fn draw(text: &str) {
    DRAWN.store(true, Ordering::Relaxed);
    stderr(&format!("\r{text}\x1b[K"));
}

/// Takes the line of progress away, if there is one.
pub(crate) fn clear() {
    if DRAWN.swap(false, Ordering::Relaxed) {
        stderr("\r\x1b[K");
    }
}

/// Writes one line to stderr as [`warn`] does, in place of a line of progress.
pub(crate) fn note(text: &str) {
    clear();
    warn(text);
}

/// A JSON document, indented, with a newline at its end.
pub(crate) fn json(document: &impl Serialize) -> anyhow::Result<String> {
    let mut text = serde_json::to_string_pretty(document)?;
    text.push('\n');
    Ok(text)
}

/// A table without lines. The columns named in `right` are aligned to the right.
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

/// A number of bytes for people, such as `1.5KiB`.
pub(crate) fn human(bytes: u64) -> String {
    memlane_core::size::Human(bytes).to_string()
}
