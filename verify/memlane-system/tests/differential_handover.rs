//! SCM_RIGHTS, chroot, setuid, limits.

use memlane_system::cases::{Exception, compare};

const EXCEPTIONS: &[Exception] = &[
    Exception::NoLane {
        case: "new_connection_in_a_chroot",
        because: "no /proc there",
    },
    Exception::Gap {
        case: "passed_with_unread_bytes",
        because: "EBUSY",
    },
    Exception::Gap {
        case: "passed_in_mid_stream",
        because: "EBUSY",
    },
];

#[test]
fn connections_survive_a_change_of_hands_root_and_user() {
    compare("handover", EXCEPTIONS);
}
