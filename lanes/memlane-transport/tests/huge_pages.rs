//! Sessions whose memory is made of huge pages. The pool of them is the machine's (`vm.nr_hugepages`), and none of these tests changes it.

#![allow(clippy::cast_possible_truncation, reason = "small numbers")]

mod support;

use memlane_core::region::Pages;
use memlane_transport::error::{ENOMEM, PathError};
use memlane_transport::io::{
    Address, ClientConfig, ClientSession, Means, PathAddr, ServerConfig, open_with,
};
use std::sync::Arc;
use support::{Disk, Manners, User, client_engine, local, server_engine, start_with, tcp, until};

/// Huge pages that nobody has.
fn free() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").expect("a file");
    let value = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        let number = line.and_then(|line| line.split_whitespace().nth(1));
        number.map_or(0, |number| number.parse::<u64>().expect("a number"))
    };
    value("HugePages_Free:") - value("HugePages_Rsvd:")
}

fn server(listen: Address, pages: Pages) -> memlane_transport::io::Server {
    let mut config = ServerConfig::new(vec![listen], server_engine(1));
    config.pages = pages;
    start_with(&Arc::<Disk>::default(), config, Manners::default())
}

fn session(to: &Address, pages: Pages) -> Arc<ClientSession> {
    let config = ClientConfig {
        engine: client_engine("huge"),
        paths: vec![PathAddr::to(to.clone())],
    };
    open_with(
        config,
        Means {
            pages,
            ..Means::default()
        },
    )
    .expect("a session")
}

fn why(session: &ClientSession) -> Option<PathError> {
    session.paths()[0].why
}

#[test]
fn where_no_huge_pages_are_free_the_path_says_so_and_how_many_are_needed() {
    if free() > 0 {
        eprintln!("SKIPPED: this machine has free huge pages");
        return;
    }
    let huge = server(tcp(), Pages::Huge);
    let refused = session(&huge.addresses()[0], Pages::Plain);
    until("the server refuses", || {
        why(&refused) == Some(PathError::Refused(ENOMEM))
    });
    assert!(why(&refused).expect("why").wants_a_person());

    let plain = server(tcp(), Pages::Plain);
    let without = session(&plain.addresses()[0], Pages::Huge);
    let needs = |session| match why(session) {
        Some(PathError::HugePages(pages)) => pages,
        _ => 0,
    };
    until("the client says it", || needs(&without) > 0);
    let text = why(&without).expect("why").to_string();
    assert!(text.contains("vm.nr_hugepages"), "{text}");
}

#[test]
fn sessions_in_huge_pages_work_over_a_network_and_within_a_host() {
    const EACH: u64 = 16;
    if free() < 2 * EACH {
        eprintln!(
            "SKIPPED: fewer than {} huge pages are free here: sysctl vm.nr_hugepages={}",
            2 * EACH,
            2 * EACH
        );
        return;
    }
    for listen in [tcp(), local()] {
        let server = server(listen, Pages::Huge);
        let before = free();
        let session = session(&server.addresses()[0], Pages::Huge);
        User::new(&*session, 1).work(200, 8);
        assert!(free() < before, "both ends' memory is made of them");
    }
}
