//! Values of flags that several verbs take.

use std::time::Duration;

/// Parses a size, such as `512`, `64K` or `10GiB`: binary units.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    memlane_core::size::parse(text).map_err(|error| format!("{text:?}: {error}"))
}

/// Parses a time, such as `500ms`, `30s` or `2m`. A number alone is seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits
        .parse()
        .map_err(|_| format!("{text:?}: expected a number and ms, s, m or h"))?;
    let millis = match &text[digits.len()..] {
        "ms" => Some(number),
        "" | "s" => number.checked_mul(1000),
        "m" => number.checked_mul(60_000),
        "h" => number.checked_mul(3_600_000),
        unit => return Err(format!("the unit {unit:?} is none of ms, s, m and h")),
    };
    millis
        .map(Duration::from_millis)
        .ok_or_else(|| format!("{text:?} is too long"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units_and_never_overflow() {
        assert_eq!(duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        for wrong in [
            "",
            "x",
            "5y",
            "99999999999999999999s",
            "18446744073709551615h",
        ] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_wrong_size_is_shown_with_the_reason() {
        assert_eq!(size("128k"), Ok(128 << 10));
        let why = size("5x").expect_err("no unit");
        assert_eq!(why, "\"5x\": the unit is none of K, M, G and T");
    }
}
