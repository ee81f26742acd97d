//! Waits that sleep in the kernel until another thread sends over the memory lane, and rings.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::AsRawFd as _;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use anyhow::ensure;

use super::WARM_UP;
use super::counted::counted;
use super::sockets::{MESSAGE, Pair, Set, by_tcp, on_the_lane, stayed};

/// How long the other thread waits before it sends: by then, this one sleeps.
const UNTIL_ASLEEP: Duration = Duration::from_millis(2);
/// The longest that a wait sleeps, in ms.
const LONGEST: libc::c_int = 1_000;

/// One `epoll_wait` that sleeps.
pub(super) fn epoll(times: u64) -> anyhow::Result<()> {
    let mut pairs = on_the_lane(1)?;
    let pair = pairs.remove(0);
    let set = Set::new()?;
    set.add(&pair.server, 0)?;
    sleeps(pair, times, |_, timeout| Ok(set.wait(timeout)?.is_some()))
}

/// One `poll` that sleeps.
pub(super) fn poll(times: u64) -> anyhow::Result<()> {
    let mut pairs = on_the_lane(1)?;
    sleeps(pairs.remove(0), times, |server, timeout| {
        let mut one = libc::pollfd {
            fd: server.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one entry that lives until the call returns.
        match unsafe { libc::poll(&raw mut one, 1, timeout) } {
            -1 => Err(std::io::Error::last_os_error().into()),
            n => Ok(n == 1),
        }
    })
}

/// Counts the calls of `wait`. It takes the server's end and a limit in ms, waits until the end is readable or the time is over,
/// and returns whether the end is readable.
fn sleeps(
    pair: Pair,
    times: u64,
    wait: impl Fn(&TcpStream, libc::c_int) -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let Pair { client, mut server } = pair;
    let (ask, asked) = channel();
    let sender = std::thread::spawn(move || send_when_asked(client, &asked));
    let mut bytes = [0; MESSAGE];
    let mut turn = |counts: bool| -> anyhow::Result<()> {
        // What is due now and then is done by this wait, so the count does not depend on how fast this machine is.
        ensure!(!wait(&server, 0)?, "there are bytes too early");
        ask.send(())?;
        let mut came = false;
        let mut sleep = || {
            came = wait(&server, LONGEST)?;
            Ok(())
        };
        match counts {
            true => counted(&mut sleep)?,
            false => sleep()?,
        }
        ensure!(came, "nothing came");
        Ok(server.read_exact(&mut bytes)?)
    };
    for _ in 0..WARM_UP {
        turn(false)?;
    }
    let before = by_tcp();
    for _ in 0..times {
        turn(true)?;
    }
    stayed(before, times * MESSAGE as u64)?;
    drop(ask);
    sender.join().expect("the sender does not panic")
}

/// Sends a message each time that it is asked to.
fn send_when_asked(mut client: TcpStream, asked: &Receiver<()>) -> anyhow::Result<()> {
    while asked.recv().is_ok() {
        std::thread::sleep(UNTIL_ASLEEP);
        client.write_all(&[7; MESSAGE])?;
    }
    Ok(())
}
