//! Vectors, messages, sendfile, splice, raw system calls, fortified names.

use memlane_system::cases::{Exception, compare};

const EXCEPTIONS: &[Exception] = &[];

#[test]
fn every_way_to_move_bytes_moves_the_same_bytes() {
    compare("vectors", EXCEPTIONS);
}
