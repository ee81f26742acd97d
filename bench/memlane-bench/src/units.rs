//! Sizes, as flags take them.

/// Reads `512`, `64k`, `128KiB`, `10G`: binary units.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits
        .parse()
        .map_err(|_| format!("{text:?}: a number and k, M, G or T"))?;
    let unit = text[digits.len()..].to_ascii_lowercase();
    let shift = match unit.trim_end_matches("ib").trim_end_matches('b') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(format!("{unit:?} is none of k, M, G and T")),
    };
    number
        .checked_shl(shift)
        .filter(|shifted| shifted >> shift == number)
        .ok_or_else(|| format!("{text:?} is too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_binary_units_and_never_overflow() {
        assert_eq!(size("128k"), Ok(128 << 10));
        assert_eq!(size("10GiB"), Ok(10 << 30));
        assert_eq!(size("512"), Ok(512));
        for wrong in [
            "",
            "k",
            "5y",
            "18446744073709551615k",
            "99999999999999999999",
        ] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
