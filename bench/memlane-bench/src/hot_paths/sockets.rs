//! TCP connections of the standard library, whose calls the preload library hooks.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use anyhow::ensure;

use super::WARM_UP;
use super::counted::counted;
use crate::runner::lane::usage_of;

pub(super) const MESSAGE: usize = 100;
const STREAM: usize = 64 << 10;
/// Connections of the epoll set.
const MANY: u16 = 16;
/// Tries of a connection to get its lane.
const TRIES: u32 = 50;

/// Both ends of a connection.
pub(super) struct Pair {
    pub(super) client: TcpStream,
    pub(super) server: TcpStream,
}

impl Pair {
    fn open() -> anyhow::Result<Pair> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let client = TcpStream::connect(listener.local_addr()?)?;
        let pair = Pair {
            client,
            server: listener.accept()?.0,
        };
        for end in [&pair.client, &pair.server] {
            end.set_nodelay(true)?;
        }
        Ok(pair)
    }

    fn there(&mut self, bytes: &mut [u8]) -> anyhow::Result<()> {
        self.client.write_all(bytes)?;
        Ok(self.server.read_exact(bytes)?)
    }

    fn back(&mut self, bytes: &mut [u8]) -> anyhow::Result<()> {
        self.server.write_all(bytes)?;
        Ok(self.client.read_exact(bytes)?)
    }
}

/// Does the library hook the calls of this process?
pub(super) fn is_hooked() -> bool {
    let preloaded = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    preloaded.to_string_lossy().contains("memlane")
}

/// Connections that carry a message there and back by the memory lane.
pub(super) fn on_the_lane(count: usize) -> anyhow::Result<Vec<Pair>> {
    ensure!(is_hooked(), "no memory lane: not under `memlane run`");
    let mut pairs = (0..count)
        .map(|_| Pair::open())
        .collect::<anyhow::Result<Vec<Pair>>>()?;
    for _ in 0..TRIES {
        let tcp_before = by_tcp();
        for pair in &mut pairs {
            for _ in 0..WARM_UP {
                pair.there(&mut [1; MESSAGE])?;
                pair.back(&mut [2; MESSAGE])?;
            }
        }
        if tcp_before.is_some() && tcp_before == by_tcp() {
            return Ok(pairs);
        }
    }
    anyhow::bail!("the connections do not get the memory lane")
}

/// Bytes of this process that went by TCP, as the first ones of each connection do. `None`: none are counted.
pub(super) fn by_tcp() -> Option<u64> {
    let usage = usage_of(&[std::process::id()]);
    (usage.tcp > 0).then_some(usage.tcp)
}

/// Of `bytes` that were counted, all but a few went by memory. Now and then a thread looks at the kernel, parks, and the
/// next message goes by TCP.
pub(super) fn stayed(before: Option<u64>, bytes: u64) -> anyhow::Result<()> {
    let by_tcp = by_tcp().unwrap_or(u64::MAX) - before.unwrap_or_default();
    ensure!(by_tcp <= bytes / 100, "{by_tcp} bytes left the memory lane");
    Ok(())
}

pub(super) fn messages(times: u64) -> anyhow::Result<()> {
    let mut pairs = on_the_lane(1)?;
    let (pair, before) = (&mut pairs[0], by_tcp());
    let mut bytes = [7; MESSAGE];
    counted(&mut || {
        for _ in 0..times {
            pair.there(&mut bytes)?;
            pair.back(&mut bytes)?;
        }
        Ok(())
    })?;
    stayed(before, times * MESSAGE as u64)
}

pub(super) fn stream(times: u64) -> anyhow::Result<()> {
    let mut pairs = on_the_lane(1)?;
    let pair = &mut pairs[0];
    let mut bytes = vec![7; STREAM];
    // The window grows to what such writes need.
    for _ in 0..WARM_UP {
        pair.there(&mut bytes)?;
    }
    let before = by_tcp();
    counted(&mut || (0..times).try_for_each(|_| pair.there(&mut bytes)))?;
    stayed(before, times * STREAM as u64)
}

pub(super) fn epoll(times: u64) -> anyhow::Result<()> {
    let mut pairs = on_the_lane(MANY.into())?;
    let set = Set::new()?;
    for (pair, number) in pairs.iter().zip(0..) {
        set.add(&pair.server, number)?;
    }
    let mut bytes = [7; MESSAGE];
    let mut turn = |n: u64, counts: bool, pairs: &mut [Pair]| -> anyhow::Result<()> {
        let at = usize::try_from(n)? % usize::from(MANY);
        // A wait asks the kernel too when it was last asked some time ago, or some waits ago. Asked now, it is not due, so
        // the count does not depend on how fast this machine is.
        ensure!(set.wait(0)?.is_none(), "a connection is ready too early");
        pairs[at].client.write_all(&bytes)?;
        let mut found = None;
        let mut wait = || {
            found = set.wait(1000)?;
            Ok(())
        };
        match counts {
            true => counted(&mut wait)?,
            false => wait()?,
        }
        ensure!(
            found == Some(at as u64),
            "the set reports another connection"
        );
        pairs[at].server.read_exact(&mut bytes)?;
        pairs[at].back(&mut bytes)
    };
    for n in 0..WARM_UP * u64::from(MANY) {
        turn(n, false, &mut pairs)?;
    }
    let before = by_tcp();
    for n in 0..times {
        turn(n, true, &mut pairs)?;
    }
    stayed(before, times * MESSAGE as u64)
}

/// An epoll set, by libc's names: a preloaded library sees no others.
pub(super) struct Set(OwnedFd);

impl Set {
    pub(super) fn new() -> std::io::Result<Set> {
        // SAFETY: takes a number and makes a descriptor, which is ours alone.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: the descriptor is open, and nobody else has it.
        Ok(Set(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub(super) fn add(&self, stream: &TcpStream, number: u64) -> std::io::Result<()> {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN.cast_unsigned(),
            u64: number,
        };
        let (set, fd) = (self.0.as_raw_fd(), stream.as_raw_fd());
        // SAFETY: `event` lives; the kernel only reads it.
        match unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &raw mut event) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    }

    /// The connection that is ready within `timeout` ms, if it is the only one.
    pub(super) fn wait(&self, timeout: libc::c_int) -> std::io::Result<Option<u64>> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; MANY as usize];
        let (set, room) = (self.0.as_raw_fd(), libc::c_int::from(MANY));
        // SAFETY: there is room for this many events.
        let n = unsafe { libc::epoll_wait(set, events.as_mut_ptr(), room, timeout) };
        match n {
            -1 => Err(std::io::Error::last_os_error()),
            1 => Ok(Some(events[0].u64)),
            _ => Ok(None),
        }
    }
}
