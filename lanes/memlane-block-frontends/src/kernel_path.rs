//! The names of files in the kernel's own tables.

use std::path::{Path, PathBuf};

/// The name under which the kernel's tables have a file. A mount whose process is dead can be asked for nothing, so only the
/// folder's name is looked up.
pub(crate) fn of(file: &Path) -> PathBuf {
    let whole = file.parent().and_then(|parent| {
        let here = parent.as_os_str().is_empty();
        let parent = if here { Path::new(".") } else { parent };
        Some(parent.canonicalize().ok()?.join(file.file_name()?))
    });
    whole.unwrap_or_else(|| file.to_owned())
}
