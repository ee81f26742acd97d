//! kill -9, stop and crash of the other end.

use memlane_system::cases::compare;
use memlane_system::exceptions::DEATH;

#[test]
fn survivors_see_what_tcp_would_show() {
    compare("death", DEATH);
}
