//! The moment of the upgrade: a side that opens alone, and signal handlers in the middle of it.

use memlane_system::cases::{Exception, compare};

const EXCEPTIONS: &[Exception] = &[];

#[test]
fn what_happens_during_an_upgrade_is_not_seen() {
    compare("upgrade", EXCEPTIONS);
}
