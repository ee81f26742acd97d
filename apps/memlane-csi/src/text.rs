//! Checks on text that a call brings.

use std::path::{Component, Path, PathBuf};

use tonic::Status;

/// Longest path that the kernel takes (`PATH_MAX`), in bytes.
const PATH_LIMIT: usize = 4096;

/// Checks text that must be there: not empty, at most `limit` bytes, and without control characters.
///
/// # Errors
/// `InvalidArgument` names the field.
pub fn required<'a>(field: &str, text: &'a str, limit: usize) -> Result<&'a str, Status> {
    if text.is_empty() {
        return Err(Status::invalid_argument(format!("{field} is missing")));
    }
    optional(field, text, limit)
}

/// Checks text that may be empty.
///
/// # Errors
/// `InvalidArgument` names the field.
pub fn optional<'a>(field: &str, text: &'a str, limit: usize) -> Result<&'a str, Status> {
    if text.len() > limit {
        let length = text.len();
        let why = format!("{field} has {length} bytes; {limit} are the limit");
        return Err(Status::invalid_argument(why));
    }
    if text.chars().any(char::is_control) {
        let why = format!("{field} has control characters");
        return Err(Status::invalid_argument(why));
    }
    Ok(text)
}

/// Checks a path of the node: absolute, and without `..`.
///
/// # Errors
/// `InvalidArgument` names the field.
pub fn path(field: &str, text: &str) -> Result<PathBuf, Status> {
    let path = Path::new(required(field, text, PATH_LIMIT)?);
    let climbs = path.components().any(|part| part == Component::ParentDir);
    if !path.is_absolute() || climbs {
        let why = format!("{field} is {text:?}: an absolute path without \"..\" is needed");
        return Err(Status::invalid_argument(why));
    }
    Ok(path.to_path_buf())
}

/// Whether all characters are ASCII letters, digits or one of `others`.
#[must_use]
pub fn is_plain(text: &str, others: &str) -> bool {
    text.chars()
        .all(|c| c.is_ascii_alphanumeric() || others.contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    #[test]
    fn a_path_that_climbs_or_is_relative_is_refused() {
        for wrong in ["", "a/b", "/a/../b", "/a\nb", &"/a".repeat(3000)] {
            let error = path("target_path", wrong).expect_err(wrong);
            assert_eq!(error.code(), Code::InvalidArgument);
            assert!(error.message().contains("target_path"), "{error}");
        }
        assert_eq!(path("p", "/a/..b").expect("a name"), Path::new("/a/..b"));
    }

    #[test]
    fn a_message_never_repeats_a_field_that_is_too_long() {
        let error = required("name", &"x".repeat(1 << 20), 128).expect_err("too long");
        assert!(error.message().len() < 100, "{}", error.message().len());
    }
}
