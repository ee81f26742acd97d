//! A seeded generator of numbers.

/// The generator xorshift64*. It starts from a seed other than zero, so that a test that failed can run again.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    #[allow(clippy::should_implement_trait)] // it never ends
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `n`, which is not zero.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// The lower half of the next number.
    #[allow(clippy::cast_possible_truncation)] // that is meant
    pub fn word(&mut self) -> u32 {
        self.next() as u32
    }
}
