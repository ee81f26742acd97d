//! A server with volumes in memory for fio to measure: `memory_server ADDRESS [DEPTH [MAX_IO]]`, where ADDRESS is
//! `local:NAME` or `tcp:HOST:PORT`. Prints where it listens and serves until its input ends.

#[path = "../tests/support/memory.rs"]
#[allow(dead_code)] // the tests use more of it
mod memory;

use memlane_transport::io::Address;
use std::io::Read as _;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let address = args.first().map_or("tcp:127.0.0.1:0", String::as_str);
    let number = |at: usize, default| {
        args.get(at)
            .map_or(default, |n| n.parse().expect("a number"))
    };
    let listen = match address.split_once(':') {
        Some(("local", name)) => Address::Local(format!("memlane/blocks/{name}")),
        Some(("tcp", host)) => Address::Tcp(host.parse().expect("an address and a port")),
        _ => panic!("{address}: neither local:NAME nor tcp:HOST:PORT"),
    };
    let depth = u16::try_from(number(1, 512)).expect("a depth");
    let (server, _) = memory::start(listen, depth, number(2, 128 << 10)).expect("a server");
    for address in server.addresses() {
        println!("{address}");
    }
    let _ = std::io::stdin().read(&mut [0]);
}
