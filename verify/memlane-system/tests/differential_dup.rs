//! dup, dup2, dup3, F_DUPFD, close_range, closefrom, descriptor numbers, sockets as stdin and stdout.

use memlane_system::cases::compare;
use memlane_system::exceptions::DUP;

#[test]
fn copied_swept_and_renumbered_descriptors_are_the_same_connection() {
    compare("dup", DUP);
}
