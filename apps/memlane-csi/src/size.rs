//! How large a volume is to be.

use tonic::Status;

use crate::proto::CapacityRange;

/// Size of a volume of which nobody says how large it is to be, in bytes.
const DEFAULT: u64 = 1 << 30;
/// Sizes are multiples of this: a page, which every device of the kernel can show.
const UNIT: u64 = 4096;

/// Bytes at the beginning of each copy of a mirrored volume in which md keeps what it knows of the mirror.
pub const MIRROR: u64 = 4 << 20;

/// A range of sizes, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// The size that a new volume gets.
    pub chosen: u64,
    least: u64,
    most: u64,
}

impl Range {
    /// Reads a range; `None` allows any size.
    ///
    /// # Errors
    /// `InvalidArgument`: it contradicts itself. `OutOfRange`: no multiple of 4096 bytes lies in it.
    pub fn read(range: Option<&CapacityRange>) -> Result<Range, Status> {
        let CapacityRange {
            required_bytes,
            limit_bytes,
        } = range.copied().unwrap_or_default();
        let [Ok(least), Ok(limit)] = [required_bytes, limit_bytes].map(u64::try_from) else {
            let why = "capacity_range has a negative size";
            return Err(Status::invalid_argument(why));
        };
        let most = if limit == 0 { u64::MAX } else { limit };
        if least > most {
            let why = format!("capacity_range wants {least} bytes or more, and {most} or less");
            return Err(Status::invalid_argument(why));
        }
        let wanted = match least {
            0 => DEFAULT.min(most / UNIT * UNIT).max(UNIT),
            _ => least,
        };
        let chosen = wanted.checked_next_multiple_of(UNIT);
        match chosen.filter(|chosen| *chosen <= most && i64::try_from(*chosen).is_ok()) {
            Some(chosen) => Ok(Range {
                chosen,
                least,
                most,
            }),
            None => Err(Status::out_of_range(format!(
                "no multiple of {UNIT} bytes is in the wanted capacity_range"
            ))),
        }
    }

    /// Whether this size is in the range.
    #[must_use]
    pub fn has(&self, size: u64) -> bool {
        (self.least..=self.most).contains(&size)
    }

    /// The range for a copy of `size` bytes: not smaller.
    ///
    /// # Errors
    /// `OutOfRange`: the copy would not fit.
    pub fn of_copy(self, size: u64) -> Result<Range, Status> {
        let size = size.next_multiple_of(UNIT);
        if size > self.most {
            let why = format!("the source has {size} bytes, more than limit_bytes allows");
            return Err(Status::out_of_range(why));
        }
        let chosen = match self.least {
            0 => size,
            _ => self.chosen.max(size),
        };
        if self.least != 0 && self.chosen < size {
            let why = format!("the source has {size} bytes, and required_bytes is less");
            return Err(Status::out_of_range(why));
        }
        Ok(Range { chosen, ..self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tonic::Code;

    fn read(required_bytes: i64, limit_bytes: i64) -> Result<Range, Status> {
        Range::read(Some(&CapacityRange {
            required_bytes,
            limit_bytes,
        }))
    }

    proptest! {
        #[test]
        fn what_is_chosen_is_in_the_range(required in any::<i64>(), limit in any::<i64>()) {
            if let Ok(range) = read(required, limit) {
                prop_assert!(range.has(range.chosen) && range.chosen > 0);
                prop_assert_eq!(range.chosen % UNIT, 0);
            }
        }
    }

    #[test]
    fn a_range_without_a_size_is_refused() {
        for (required, limit, code) in [
            (-1, 0, Code::InvalidArgument),
            (0, -1, Code::InvalidArgument),
            (2, 1, Code::InvalidArgument),
            (1, 4095, Code::OutOfRange),
            (i64::MAX, 0, Code::OutOfRange),
            (0, 100, Code::OutOfRange),
        ] {
            let error = read(required, limit).expect_err("no size");
            assert_eq!(error.code(), code, "{required} {limit}");
        }
        assert_eq!(Range::read(None).expect("any").chosen, DEFAULT);
        assert_eq!(read(0, 10_000).expect("some").chosen, 8192);
    }

    #[test]
    fn a_copy_is_as_large_as_its_source_or_larger() {
        let any = Range::read(None).expect("any");
        assert_eq!(any.of_copy(8192).expect("fits").chosen, 8192);
        let large = read(1 << 20, 0).expect("large");
        assert_eq!(large.of_copy(8192).expect("fits").chosen, 1 << 20);
        for (required, limit) in [(4096, 0), (0, 4096)] {
            let small = read(required, limit).expect("small");
            let error = small.of_copy(8192).expect_err("too small");
            assert_eq!(error.code(), Code::OutOfRange);
        }
    }
}
