//! Streams of the socket lane by name: messages, and payload that lands in device memory.

use std::net::{TcpListener, TcpStream};
use std::os::fd::IntoRawFd as _;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use memlane_devmem::io::lane::{self, End};
use memlane_devmem::io::{Binding, Path, Terms};
use memlane_devmem::{DeviceRegion, Fragment};
use memlane_socket::native::Standing;
use memlane_socket::{Listener, Stream};

use super::WARM_UP;
use super::counted::counted;

const MESSAGE: usize = 64;
const FRAGMENT: u32 = 4096;
/// For the handshake; under valgrind everything takes fifty times as long.
const PATIENCE: Duration = Duration::from_secs(30);

/// `stream`, once it carries bytes by memory. The other end does the same meanwhile, in another thread.
fn agreed(mut stream: Stream) -> anyhow::Result<Stream> {
    let standing = stream.negotiate(PATIENCE);
    ensure!(standing == Standing::Memory, "no memory lane: {standing:?}");
    Ok(stream)
}

/// The result of a thread that ended well.
fn joined<T>(thread: std::thread::JoinHandle<anyhow::Result<T>>) -> anyhow::Result<T> {
    let result = thread.join();
    result.map_err(|_| anyhow::anyhow!("the other end's thread ended badly"))?
}

pub(super) fn messages(times: u64) -> anyhow::Result<()> {
    let listener = Listener::bind(&([127, 0, 0, 1], 0).into())?;
    let at = listener.local_addr()?;
    let client = std::thread::spawn(move || agreed(Stream::connect(&at)?));
    let mut server = agreed(listener.accept()?)?;
    let mut client = joined(client)?;
    let mut bytes = [7; MESSAGE];
    let mut carry = |times: u64| {
        for _ in 0..times {
            let sent = client.write(&bytes)?;
            let came = server.read(&mut bytes)?;
            ensure!((sent, came) == (MESSAGE, MESSAGE), "a part of a message");
        }
        Ok(())
    };
    carry(WARM_UP)?;
    counted(&mut || carry(times))?;
    let in_memory = client.counts().sent_in_memory;
    ensure!(in_memory >= times * MESSAGE as u64, "bytes left the lane");
    Ok(())
}

pub(super) fn fragments(times: u64) -> anyhow::Result<()> {
    let region = "memfd:1M".parse().map_err(anyhow::Error::msg)?;
    let binding = Binding::new(DeviceRegion::create(&region)?, FRAGMENT)?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let there = TcpStream::connect(listener.local_addr()?)?;
    let here = listener.accept()?.0;
    // SAFETY: a socket that its owner gives up here.
    let there = unsafe { memlane_sys::fd::Fd::from_raw(there.into_raw_fd()) };
    let there = Stream::of(there, End::Connected)?;
    let there = std::thread::spawn(move || agreed(there));
    let terms = Terms {
        require: Some(Path::Lane),
        ..Terms::default()
    };
    let mut here = lane::stream(here.into(), End::Accepted, &binding, &terms)?;
    let mut there = joined(there)?;
    let mut fragments: Vec<Fragment> = Vec::new();
    let mut carry = |times: u64| {
        for _ in 0..times {
            let slot = there.reserve(FRAGMENT as usize)?;
            ensure!(slot.len() >= FRAGMENT as usize, "too little room");
            slot.commit(FRAGMENT as usize)?;
            here.receive(&mut fragments).context("a fragment")?;
            ensure!(fragments.len() == 1, "{} fragments", fragments.len());
            ensure!(here.release_all(&fragments) == 1, "a token was lost");
            fragments.clear();
        }
        Ok(())
    };
    carry(WARM_UP)?;
    counted(&mut || carry(times))?;
    let by_lane = here.counts().by_lane;
    ensure!(
        by_lane >= times * u64::from(FRAGMENT),
        "bytes left the lane"
    );
    Ok(())
}
