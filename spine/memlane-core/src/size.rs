//! Sizes in bytes, as people write and read them: `512`, `64K`, `1.5MiB`. Units are binary: K is 1024.

use core::fmt;

/// Why a text is not a size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SizeError {
    /// It does not start with a number.
    Number,
    /// The unit is none of K, M, G and T.
    Unit,
    /// The size does not fit into 64 bits.
    TooLarge,
}

impl fmt::Display for SizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SizeError::Number => "expected a number, optionally followed by K, M, G or T",
            SizeError::Unit => "the unit is none of K, M, G and T",
            SizeError::TooLarge => "the size is too large",
        })
    }
}

impl core::error::Error for SizeError {}

/// Reads a size: digits, and a unit (`K`, `M`, `G`, `T`; in either case; alone, or followed by `B`, `i` or `iB`).
///
/// ```
/// use memlane_core::size::parse;
///
/// assert_eq!(parse("64k"), Ok(65_536));
/// assert_eq!(parse("10GiB"), Ok(10 << 30));
/// ```
///
/// # Errors
///
/// [`SizeError`], if the text is not a size.
pub fn parse(text: &str) -> Result<u64, SizeError> {
    let end = text.find(|c: char| !c.is_ascii_digit());
    let (digits, unit) = text.split_at(end.unwrap_or(text.len()));
    if digits.is_empty() {
        return Err(SizeError::Number);
    }
    let number: u64 = digits.parse().map_err(|_| SizeError::TooLarge)?;
    let mut letters = unit.bytes().map(|letter| letter.to_ascii_lowercase());
    let shift = match letters.next() {
        None => 0,
        Some(b'k') => 10,
        Some(b'm') => 20,
        Some(b'g') => 30,
        Some(b't') => 40,
        Some(b'b') if unit.len() == 1 => 0,
        Some(_) => return Err(SizeError::Unit),
    };
    match (letters.next(), letters.next(), letters.next()) {
        (None | Some(b'b' | b'i'), None, None) | (Some(b'i'), Some(b'b'), None) => {}
        _ => return Err(SizeError::Unit),
    }
    number.checked_mul(1 << shift).ok_or(SizeError::TooLarge)
}

/// Shows a number of bytes to people: rounded down, with one decimal at most.
///
/// ```
/// use memlane_core::size::Human;
///
/// assert_eq!(Human(1536).to_string(), "1.5KiB");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Human(pub u64);

impl fmt::Display for Human {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        if self.0 < 1024 {
            return write!(f, "{}", self.0);
        }
        let mut tenths = u128::from(self.0) * 10 / 1024;
        let mut unit = 0;
        while tenths >= 10240 && unit + 1 < UNITS.len() {
            tenths /= 1024;
            unit += 1;
        }
        match tenths % 10 {
            0 => write!(f, "{}{}", tenths / 10, UNITS[unit]),
            rest => write!(f, "{}.{}{}", tenths / 10, rest, UNITS[unit]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_binary_units_in_either_case() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("512B", 512),
            ("128k", 128 << 10),
            ("1Mi", 1 << 20),
            ("64MB", 64 << 20),
            ("10GiB", 10 << 30),
            ("16777215T", 16_777_215 << 40),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn a_text_that_is_no_size_is_refused_with_the_reason() {
        for text in ["", "k", "-1", "+1", " 1", "µ"] {
            assert_eq!(parse(text), Err(SizeError::Number), "{text}");
        }
        for text in ["5x", "1MM", "1KiBi", "1bk", "1 K", "1µ", "1.5K", "1bb"] {
            assert_eq!(parse(text), Err(SizeError::Unit), "{text}");
        }
        for text in ["18446744073709551616", "18446744073709551615k", "16777216T"] {
            assert_eq!(parse(text), Err(SizeError::TooLarge), "{text}");
        }
    }

    #[test]
    fn sizes_for_people_are_short_and_never_overflow() {
        for (bytes, text) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1KiB"),
            (1536, "1.5KiB"),
            (262_144, "256KiB"),
            (u64::MAX, "15.9EiB"),
        ] {
            assert_eq!(Human(bytes).to_string(), text);
        }
    }
}
