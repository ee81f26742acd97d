//! Large amounts of data, slow readers, many connections.

use memlane_system::cases::{Exception, compare};

const EXCEPTIONS: &[Exception] = &[];

#[test]
fn much_data_arrives_whole_in_both_directions() {
    compare("bulk", EXCEPTIONS);
}
