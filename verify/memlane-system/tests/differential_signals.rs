//! poll, select, signals, masks, longjmp, cancellation.

use memlane_system::cases::{Exception, compare};

const EXCEPTIONS: &[Exception] = &[];

#[test]
fn interrupted_waits_end_as_the_kernel_would_end_them() {
    compare("signals", EXCEPTIONS);
}
