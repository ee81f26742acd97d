//! Kernels whose ublk driver is known to be broken.
//!
//! Sources: reports of others who use the driver. 6.7: NULL dereference in the kernel when a device's process dies
//! (spdk #3384). 6.17: `START_DEV` fails with `EINVAL`, later panics (longhorn #11977, #13509; spdk #3758). 6.18 up
//! to 6.18.4: broken (zabbly/linux #52).

/// How it is broken in the kernel of this release (`uname -r`), if it is.
#[must_use]
pub fn broken(release: &str) -> Option<&'static str> {
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|number| number.parse::<u32>().unwrap_or(0));
    let version = (numbers.next()?, numbers.next()?, numbers.next()?);
    match version {
        (6, 7, _) => Some("the kernel can crash when the device's process dies"),
        (6, 17, _) => Some("devices do not start, or the kernel crashes later"),
        (6, 18, 0..=4) => Some("devices do not start"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::broken;

    #[test]
    fn bad_kernels_are_known_by_their_numbers_however_they_are_written() {
        for bad in [
            "6.17.0-5-generic",
            "6.7.12",
            "6.18.4+deb13-amd64\n",
            "6.18.0-rc3",
        ] {
            assert!(broken(bad).is_some(), "{bad}");
        }
        for good in [
            "6.12.117+deb12-amd64",
            "6.18.44-fc",
            "6.19.0",
            "7.0.1",
            "",
            "linux",
        ] {
            assert!(broken(good).is_none(), "{good}");
        }
    }
}
