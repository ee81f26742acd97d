//! syscall(2): calls by number.

use memlane_system::cases::{Exception, compare};

const EXCEPTIONS: &[Exception] = &[];

#[test]
fn a_call_by_its_number_does_what_the_call_by_its_name_does() {
    compare("numbers", EXCEPTIONS);
}
