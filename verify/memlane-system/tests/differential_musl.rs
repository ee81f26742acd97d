//! Programs that are linked with musl see on the lane what they see on plain TCP, also with peers that are linked with glibc.

use memlane_system::cases::{Exception, Libcs, compare_libcs};
use memlane_system::exceptions::{DEATH, DUP, HANDOVER};

/// With the peer in a process and in a thread, whose stack is small in musl.
const WAYS: &[&str] = &["warm20", "thread", "once"];
/// The peer is a process that runs the other program.
const MIXED: &[&str] = &["warm20", "swapped"];
fn with_musl(family: &'static str) {
    compare_libcs(family, Libcs::Musl, WAYS, exceptions(family));
}

fn mixed(family: &'static str) {
    for libcs in [Libcs::MuslWithSystem, Libcs::SystemWithMusl] {
        compare_libcs(family, libcs, MIXED, exceptions(family));
    }
}

fn exceptions(family: &str) -> &'static [Exception] {
    match family {
        "death" => DEATH,
        "dup" => DUP,
        "handover" => HANDOVER,
        _ => &[],
    }
}

macro_rules! families {
    ($($name:ident: $how:ident($family:literal);)+) => {
        $(
            #[test]
            fn $name() {
                $how($family);
            }
        )+
    };
}

families! {
    bulk: with_musl("bulk");
    closing: with_musl("closing");
    connect: with_musl("connect");
    death: with_musl("death");
    dup: with_musl("dup");
    epoll: with_musl("epoll");
    flags: with_musl("flags");
    fork: with_musl("fork");
    handover: with_musl("handover");
    loops: with_musl("loops");
    numbers: with_musl("numbers");
    options: with_musl("options");
    sets: with_musl("sets");
    signals: with_musl("signals");
    stdio: with_musl("stdio");
    threads: with_musl("threads");
    upgrade: with_musl("upgrade");
    uring: with_musl("uring");
    vectors: with_musl("vectors");

    closing_with_a_peer_of_glibc: mixed("closing");
    epoll_with_a_peer_of_glibc: mixed("epoll");
    vectors_with_a_peer_of_glibc: mixed("vectors");
}
