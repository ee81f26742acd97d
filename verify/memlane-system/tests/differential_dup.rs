//! dup, dup2, dup3, F_DUPFD, close_range, closefrom, descriptor numbers, sockets as stdin and stdout.

use memlane_system::cases::{Exception, compare};

const EXCEPTIONS: &[Exception] = &[Exception::NoLane {
    case: "connection_is_descriptor_1",
    because: "descriptors 0 to 2 are stdio's",
}];

#[test]
fn copied_swept_and_renumbered_descriptors_are_the_same_connection() {
    compare("dup", EXCEPTIONS);
}
