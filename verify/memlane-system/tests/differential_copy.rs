//! Mode `copy`: data that goes through the sender's own buffer behaves as on TCP, whenever the connection ends.

use memlane_system::cases::compare_copied;
use memlane_system::exceptions::DEATH;

/// The lane is there from the case's beginning.
const WARM: &[&str] = &["warm20", "once"];

#[test]
fn every_way_to_move_bytes_moves_the_same_bytes() {
    compare_copied("vectors", WARM, &[]);
}

#[test]
fn much_data_arrives_whole_in_both_directions() {
    compare_copied("bulk", &["warm20", "bulk", "once"], &[]);
}

#[test]
fn streams_end_as_tcp_streams_end() {
    compare_copied("closing", WARM, &[]);
}

#[test]
fn a_peer_that_dies_is_noticed_as_on_tcp() {
    compare_copied("death", WARM, DEATH);
}

#[test]
fn epoll_reports_what_it_reports_for_tcp() {
    compare_copied("epoll", WARM, &[]);
}

#[test]
fn sets_of_sets_report_what_they_report_on_tcp() {
    compare_copied("sets", WARM, &[]);
}

#[test]
fn io_uring_does_what_it_does_for_tcp() {
    compare_copied("uring", WARM, &[]);
}

#[test]
fn processes_that_share_a_connection_see_what_tcp_would_show() {
    compare_copied("fork", WARM, &[]);
}
