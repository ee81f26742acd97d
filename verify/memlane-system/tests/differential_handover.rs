//! SCM_RIGHTS, chroot, setuid, limits.

use memlane_system::cases::compare;
use memlane_system::exceptions::HANDOVER;

#[test]
fn connections_survive_a_change_of_hands_root_and_user() {
    compare("handover", HANDOVER);
}
