//! MSG_* flags, urgent data, cork, zero copy, bad arguments.

use memlane_system::cases::{Exception, compare};

const EXCEPTIONS: &[Exception] = &[];

#[test]
fn flags_of_send_and_recv_mean_what_they_mean_on_tcp() {
    compare("flags", EXCEPTIONS);
}
