//! Sizes, as flags take them and as people read them.

/// Reads `512`, `64k`, `128KiB`, `10G`: binary units.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    memlane_core::size::parse(text).map_err(|error| format!("{text:?}: {error}"))
}

/// Bytes for people, as a whole number or with one decimal: `1023`, `64KiB`, `1.5MiB`.
pub(crate) fn human(bytes: u64) -> String {
    memlane_core::size::Human(bytes).to_string()
}
