//! Socket options, time limits, counts, flags.

use memlane_system::cases::{Exception, compare};

const EXCEPTIONS: &[Exception] = &[];

#[test]
fn options_and_counts_are_the_kernels() {
    compare("options", EXCEPTIONS);
}
