//! A server that was replaced by another one while a session lived.
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of tests are small"
)]

mod support;

use memlane_transport::error::{PathError, WireError};
use memlane_transport::io::frame::{Header, Step};
use memlane_transport::io::{Address, ServerConfig};
use memlane_transport::port::News;
use memlane_transport::wire::ConnRsp;
use std::io::Write as _;
use std::net::TcpListener;
use std::sync::Arc;
use support::{
    Disk, Manners, User, connect, each_once, hear, server_engine, start, start_with, tcp, until,
};

#[test]
fn a_server_of_another_version_on_the_way_back_is_told_and_the_right_one_is_found_again() {
    let disk = Arc::<Disk>::default();
    let server = start(&disk, vec![tcp()], Manners::default());
    let address = server.addresses()[0].clone();
    let Address::Tcp(at) = &address else {
        panic!("{address:?}");
    };
    let session = connect(&[&address]);
    let mut user = User::new(&*session, 1);
    user.work(50, 8);
    server.stop();
    drop(server);
    let mut listener = None;
    until("the port is free", || {
        listener = TcpListener::bind(at).ok();
        listener.is_some()
    });
    let listener = listener.expect("bound");
    let mut newer = ConnRsp::default().encode();
    newer[3] = 3;
    for _ in 0..3 {
        let (mut stream, _) = listener.accept().expect("the client comes again");
        let said = [&Header::Step(Step::Accept).encode()[..], &newer].concat();
        stream.write_all(&said).expect("said");
        let other = PathError::Wire(WireError::Version(0x0300));
        hear(
            &session,
            |news| matches!(news, News::PathDown(_, why) if *why == other),
        );
    }
    drop(listener);
    let config = ServerConfig::new(vec![address.clone()], server_engine(2));
    let _server = start_with(&disk, config, Manners::default());
    hear(&session, |news| matches!(news, News::PathUp(_)));
    // What was written before is what is read now, and nothing was done twice.
    user.work(50, 8);
    each_once(&disk, &user.ids);
}
