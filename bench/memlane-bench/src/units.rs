//! Sizes, as flags take them.

/// Reads `512`, `64k`, `128KiB`, `10G`: binary units.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    memlane_core::size::parse(text).map_err(|error| format!("{text:?}: {error}"))
}
