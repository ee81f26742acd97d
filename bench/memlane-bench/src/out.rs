//! What goes to stdout and stderr. Text for stdout is built first and written once.

use std::io::Write as _;

use serde::Serialize;

/// Writes `text` to stdout. A reader that has gone away is not an error.
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

/// Writes `text` to stderr, which may be closed.
pub(crate) fn stderr(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Writes a hint or a warning to stderr.
pub(crate) fn warn(text: &str) {
    stderr(&format!("memlane-bench: {text}\n"));
}

/// A JSON document, indented, with a newline at its end.
pub(crate) fn json(document: &impl Serialize) -> anyhow::Result<String> {
    let mut text = serde_json::to_string_pretty(document)?;
    text.push('\n');
    Ok(text)
}
