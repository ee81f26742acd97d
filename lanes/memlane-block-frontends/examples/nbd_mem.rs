//! A volume in memory as an NBD export: `nbd_mem SIZE_MIB (unix:PATH | ADDRESS:PORT)…`, until standard input ends.
//! For measurements (`bench/nbd.sh`) and for a try by hand.

use memlane_block::volume::mem::MemVolume;
use memlane_block_frontends::nbd::{Export, Listen, Server, ServerConfig};
use std::error::Error;
use std::io::Read as _;
use std::sync::Arc;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let size: u64 = arguments.next().ok_or("which size?")?.parse()?;
    let mut listen = Vec::new();
    for place in arguments {
        listen.push(match place.strip_prefix("unix:") {
            Some(path) => Listen::Unix(path.into()),
            None => Listen::Tcp(place.parse()?),
        });
    }
    let export = Export {
        name: String::new(),
        description: "memory".into(),
        volume: Arc::new(MemVolume::new(size << 20)?),
        read_only: false,
    };
    let server = Server::bind(ServerConfig::new(listen, vec![export]))?;
    let stop = server.stop_handle();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        stop.stop();
        println!("{:#?}", stop.snapshot());
    });
    server.run()?;
    Ok(())
}
