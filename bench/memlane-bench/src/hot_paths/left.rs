//! Connections that are left to TCP, since their server is not under memlane: what hooks cost those who gain nothing.

use std::env::current_exe;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::ensure;

use super::WARM_UP;
use super::counted::counted;
use super::sockets::{Set, is_hooked};
use crate::runner::lane::usage_of;
use crate::runner::proc::{Scratch, Service, free_port};
use crate::runner::sys;

const MESSAGE: usize = 100;
/// A connection is left to TCP within this time: the library asks for a lane for 0.3 s.
const LEFT_WITHIN: Duration = Duration::from_secs(10);

/// A server in a process without the preload library, until this is dropped.
struct Plain {
    port: u16,
    _service: Service,
    /// Removed when the server has ended.
    _scratch: Scratch,
}

impl Plain {
    /// It answers, and closes each connection after `answers`, if that is not 0.
    fn start(answers: u64) -> anyhow::Result<Plain> {
        ensure!(is_hooked(), "no memory lane: not under `memlane run`");
        let (port, scratch) = (free_port()?, Scratch::new()?);
        let mut command = Command::new(current_exe()?);
        command.args(["peer", "embedded", "server", "--at"]);
        command.arg(format!("127.0.0.1:{port}"));
        if answers > 0 {
            command.args(["--answers", &answers.to_string()]);
        }
        command.env_remove("LD_PRELOAD");
        sys::confine(&mut command, &[]);
        Ok(Plain {
            port,
            _service: Service::start(command, port, &scratch)?,
            _scratch: scratch,
        })
    }

    fn connect(&self) -> std::io::Result<TcpStream> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

fn exchange(stream: &mut TcpStream) -> std::io::Result<()> {
    let mut bytes = [7; MESSAGE];
    stream.write_all(&bytes)?;
    stream.read_exact(&mut bytes)
}

/// Exchanges messages until the library has given up asking for a lane.
fn until_it_is_left(stream: &mut TcpStream) -> anyhow::Result<()> {
    let begin = Instant::now();
    while begin.elapsed() < LEFT_WITHIN {
        for _ in 0..WARM_UP {
            exchange(stream)?;
        }
        if !usage_of(&[std::process::id()]).reasons.is_empty() {
            return Ok(());
        }
    }
    anyhow::bail!("the connection still waits for its memory lane")
}

/// Messages there and back on one connection, long after it was left to TCP.
pub(super) fn messages(times: u64) -> anyhow::Result<()> {
    let server = Plain::start(0)?;
    let mut stream = server.connect()?;
    until_it_is_left(&mut stream)?;
    counted(&mut || {
        for _ in 0..times {
            exchange(&mut stream)?;
        }
        Ok(())
    })
}

/// Waits by epoll for the answers on one connection, long after it was left to TCP.
pub(super) fn waits(times: u64) -> anyhow::Result<()> {
    let server = Plain::start(0)?;
    let mut stream = server.connect()?;
    until_it_is_left(&mut stream)?;
    let set = Set::new()?;
    set.add(&stream, 1)?;
    let mut bytes = [7; MESSAGE];
    for _ in 0..times {
        stream.write_all(&bytes)?;
        let mut found = None;
        counted(&mut || {
            found = set.wait(1000)?;
            Ok(())
        })?;
        ensure!(found == Some(1), "the set does not report the answer");
        stream.read_exact(&mut bytes)?;
    }
    Ok(())
}

/// Connections that carry one message there and back. The server closes them first, so that TIME_WAIT takes no port of
/// the client's.
pub(super) fn short(times: u64) -> anyhow::Result<()> {
    let server = Plain::start(1)?;
    let once = || {
        let mut stream = server.connect()?;
        exchange(&mut stream)?;
        ensure!(stream.read(&mut [0])? == 0, "more than one answer");
        Ok(())
    };
    (0..WARM_UP).try_for_each(|_| once())?;
    counted(&mut || (0..times).try_for_each(|_| once()))
}
