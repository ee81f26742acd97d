//! Each reason for TCP that a program can provoke: the connection gets that reason, and the bytes arrive. `policy.rs`
//! covers the reasons that come from settings.

use std::time::Instant;

use memlane_system::harness::plain_only;
use memlane_system::pair::{DEFAULT, PATIENCE, Pair, Settings, flags};
use memlane_system::real::Reason;

/// The client does something before the lane could open, and gives this reason.
fn client_gives(reason: Reason, what: &str) {
    if plain_only() {
        return;
    }
    let mut pair = Pair::start(&DEFAULT, &DEFAULT);
    pair.client.does(&format!("spoil {what}"));
    if what == "unseen" {
        pair.server.does("take 100");
    }
    let start = Instant::now();
    while !pair.client.gave_up() {
        assert!(start.elapsed() < PATIENCE, "{}", pair.describe());
        pair.exchange();
    }
    pair.flood(1 << 20);
    let conn = pair.client.conn().expect("a page");
    assert_eq!(conn.reason.name(), reason.name(), "{}", pair.describe());
    assert_eq!(conn.bytes[..2], [0, 0], "{}", pair.describe());
    assert!(pair.client.times(reason) > 0, "it was not counted");
}

#[test]
fn an_option_that_the_lane_does_not_carry_keeps_a_connection_on_tcp() {
    client_gives(Reason::OPTION, "option");
}

/// The ring keeps no times.
#[test]
fn times_that_recvmsg_tells_keep_a_connection_on_tcp() {
    client_gives(Reason::OPTION, "times");
}

#[test]
fn urgent_data_keeps_a_connection_on_tcp() {
    client_gives(Reason::URGENT, "urgent");
}

#[test]
fn a_child_with_a_copy_keeps_a_connection_on_tcp() {
    client_gives(Reason::SHARED_FD, "fork");
}

#[test]
fn a_copy_that_is_sent_away_keeps_a_connection_on_tcp() {
    client_gives(Reason::PASSED_ON, "pass");
}

#[test]
fn a_connection_that_is_stderr_stays_on_tcp() {
    client_gives(Reason::UNHOOKED_IO, "stdio");
}

#[test]
fn a_connection_that_sends_signals_stays_on_tcp() {
    client_gives(Reason::WAIT_KIND, "signals");
}

#[test]
fn bytes_that_the_library_did_not_see_keep_a_connection_on_tcp() {
    client_gives(Reason::COUNTS, "unseen");
}

#[test]
fn a_sandboxed_process_stays_on_tcp() {
    client_gives(Reason::SANDBOXED, "sandbox");
}

#[test]
fn a_process_whose_io_uring_a_thread_of_the_kernel_polls_stays_on_tcp() {
    client_gives(Reason::IO_URING, "uring");
}

#[test]
fn an_operation_of_io_uring_keeps_its_connection_on_tcp() {
    client_gives(Reason::IO_URING, "uring-op");
}

#[test]
fn a_process_without_a_descriptor_left_stays_on_tcp() {
    client_gives(Reason::NO_DEVICE, "descriptors");
}

#[test]
fn a_process_without_memory_for_rings_stays_on_tcp() {
    client_gives(Reason::MEMORY, "memory");
}

#[test]
fn a_process_that_may_make_no_memory_files_stays_on_tcp() {
    client_gives(Reason::MEMORY, "nomemfd");
}

/// The kernel would answer with a signal that ends the program.
#[test]
fn a_process_that_may_make_no_large_files_stays_on_tcp() {
    client_gives(Reason::MEMORY, "fsize");
}

#[test]
fn a_process_that_may_make_no_unix_sockets_stays_on_tcp() {
    client_gives(Reason::NO_DEVICE, "nounix");
}

#[test]
fn a_process_that_loses_proc_stays_on_tcp() {
    client_gives(Reason::NO_DEVICE, "noproc");
}

#[test]
fn a_process_without_random_numbers_stays_on_tcp() {
    client_gives(Reason::INTERNAL, "norandom");
}

/// What both ends of a pair exchange while its client is held to this limit from its start on.
fn limited(limit: &str) -> Pair {
    let under = ["prlimit", limit];
    let held = Settings {
        under: &under,
        ..DEFAULT
    };
    let mut pair = Pair::start(&DEFAULT, &held);
    for _ in 0..30 {
        pair.exchange();
    }
    pair.flood(1 << 20);
    pair
}

#[test]
fn programs_with_narrow_limits_run_as_without_memlane() {
    if plain_only() {
        return;
    }
    for limit in [
        "--fsize=4096",
        "--as=300000000",
        "--data=60000000",
        "--nofile=9",
    ] {
        let pair = limited(limit);
        let conn = pair.client.conn();
        assert!(!conn.is_some_and(|conn| conn.on_lane()), "{limit}");
    }
}

#[test]
fn limits_of_what_the_lane_does_not_need_do_not_keep_it_shut() {
    if plain_only() {
        return;
    }
    for limit in ["--memlock=0", "--core=0", "--sigpending=0", "--msgqueue=0"] {
        limited(limit).open();
    }
}

/// Everything else is death: the library must not make a call that the program does not make.
#[test]
fn a_program_that_locks_itself_in_goes_on_by_tcp_and_lives() {
    if plain_only() {
        return;
    }
    let mut pair = Pair::start(&DEFAULT, &DEFAULT);
    pair.open();
    // Some of it still lies in the ring when the filter comes.
    while pair.server.conn().expect("a page").bytes[1] == 0 {
        pair.exchange();
    }
    let sent = pair.client.does("send 77 30000").sent;
    pair.server.does("wait");
    pair.server.does("spoil strict");
    assert_eq!(pair.server.does("take 30000").taken, sent);
    for _ in 0..20 {
        pair.exchange();
    }
    let conn = pair.server.conn().expect("a page");
    assert_eq!(conn.reason, Reason::SANDBOXED, "{}", pair.describe());
    assert!(!conn.on_lane(), "{}", pair.describe());
}

#[test]
fn a_peer_that_goes_back_to_tcp_takes_the_connection_with_it() {
    if plain_only() {
        return;
    }
    let mut pair = Pair::start(&DEFAULT, &DEFAULT);
    pair.open();
    pair.client.does("spoil option");
    let start = Instant::now();
    while pair.server.conn().expect("a page").on_lane() {
        assert!(start.elapsed() < PATIENCE, "{}", pair.describe());
        pair.exchange();
    }
    let conn = pair.server.conn().expect("a page");
    assert_eq!(conn.reason, Reason::PEER_TCP_ONLY, "{}", pair.describe());
    assert_eq!(pair.server.times(Reason::PEER_TCP_ONLY), 1);
    pair.flood(1 << 20);
}

#[test]
fn a_connection_that_has_moved_little_is_too_young() {
    if plain_only() {
        return;
    }
    let auto = flags(&["--upgrade", "auto"]);
    let mut pair = Pair::start(&auto, &auto);
    for _ in 0..2 {
        pair.exchange();
    }
    pair.client.look();
    let conn = pair.client.conn().expect("a page");
    assert_eq!(conn.reason, Reason::TOO_YOUNG, "{}", pair.describe());
    assert!(!conn.on_lane());
}

#[test]
fn a_half_closed_connection_is_closing() {
    if plain_only() {
        return;
    }
    let mut pair = Pair::start(&DEFAULT, &DEFAULT);
    pair.client.does("spoil end");
    let start = Instant::now();
    while !pair.client.gave_up() {
        assert!(start.elapsed() < PATIENCE, "{}", pair.describe());
        let sent = pair.server.does("send 5 100").sent;
        assert_eq!(pair.client.does("take 100").taken, sent);
    }
    let conn = pair.client.conn().expect("a page");
    assert_eq!(conn.reason, Reason::CLOSING, "{}", pair.describe());
}

#[test]
fn a_peer_that_scribbles_into_the_shared_memory_is_cut_off() {
    if plain_only() {
        return;
    }
    let mut pair = Pair::start(&DEFAULT, &DEFAULT);
    pair.open();
    while pair.server.conn().expect("a page").bytes[1] == 0 {
        pair.exchange();
    }
    pair.client.does("spoil scribble");
    // The server wants more: what it finds instead ends this connection, and nothing else.
    pair.server.tell("take 100");
    let start = Instant::now();
    while pair.server.times(Reason::PEER_MISBEHAVED) == 0 {
        assert!(start.elapsed() < PATIENCE, "{}", pair.describe());
        std::thread::yield_now();
    }
    let status = pair.server.end();
    assert_eq!(
        status.code(),
        Some(1),
        "its stream ended, it did not: {status}"
    );
}
