//! Where streams come from: accepted, connected, or made of a socket that Python has.

use crate::errors::{self, PathError, Timeout};
use crate::region::Region;
use crate::stream::{Limit, Made, Stream, duration, polled};
use memlane_devmem::io::{Binding, Path};
use memlane_wait::mutex::lock;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use rustix::event::PollFlags;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// For a connection, if nothing else is said.
const CONNECT: Duration = Duration::from_secs(60);

/// Waits for connections, whose payload lands in a region. Made by :func:`listen`; iterating over it accepts.
#[pyclass(frozen, module = "memlane", weakref)]
pub(crate) struct Listener {
    socket: Mutex<Option<Arc<OwnedFd>>>,
    at: SocketAddr,
    made: Made,
    process: u32,
}

impl Listener {
    fn socket(&self) -> Option<Arc<OwnedFd>> {
        let socket = lock(&self.socket);
        socket.clone()
    }

    fn next(&self, py: Python<'_>, limit: Limit) -> PyResult<Option<Stream>> {
        if self.process != std::process::id() {
            return Err(errors::forked());
        }
        loop {
            let Some(socket) = self.socket() else {
                return Ok(None);
            };
            let until = limit.slice();
            let accepted = py.detach(|| {
                let left = until.saturating_duration_since(std::time::Instant::now());
                let waited = polled(&socket, PollFlags::IN, left);
                let flags = rustix::net::SocketFlags::CLOEXEC;
                (waited, rustix::net::accept_with(&*socket, flags))
            });
            py.check_signals()?;
            match accepted {
                (_, Ok(accepted)) => return stream(accepted, &self.made).map(Some),
                (Err(errno), _) => return Err(errors::kernel(errno)),
                // Nobody yet; or somebody who was gone before he was let in.
                (_, Err(rustix::io::Errno::AGAIN | rustix::io::Errno::CONNABORTED)) => {}
                (_, Err(_)) if self.socket().is_none() => return Ok(None),
                (_, Err(error)) => return Err(errors::io(&error.into(), "accept")),
            }
            if limit.is_over() {
                return Err(Timeout::new_err("nobody connected in time"));
            }
        }
    }
}

#[pymethods]
impl Listener {
    /// Where it listens: "127.0.0.1:5201".
    #[getter]
    fn address(&self) -> String {
        self.at.to_string()
    }

    /// The next connection.
    #[pyo3(signature = (*, timeout=None))]
    fn accept(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Stream> {
        let accepted = self.next(py, Limit::new(timeout)?)?;
        accepted.ok_or_else(|| errors::Closed::new_err("the listener is closed"))
    }

    /// Ends it; streams that came of it stay.
    fn close(&self) {
        let mut socket = lock(&self.socket);
        if let Some(socket) = socket.take().filter(|_| self.process == std::process::id()) {
            // Whoever waits for it wakes up.
            let _ = rustix::net::shutdown(&*socket, rustix::net::Shutdown::Both);
        }
    }

    /// The socket's descriptor, to wait for with ``select`` or asyncio.
    fn fileno(&self) -> PyResult<i32> {
        use std::os::fd::AsRawFd;
        let closed = || errors::Closed::new_err("the listener is closed");
        Ok(self.socket().ok_or_else(closed)?.as_raw_fd())
    }

    fn __iter__(slf: Bound<'_, Listener>) -> Bound<'_, Listener> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Stream>> {
        self.next(py, Limit::new(None)?)
    }

    fn __enter__(slf: Bound<'_, Listener>) -> Bound<'_, Listener> {
        slf
    }

    #[pyo3(signature = (*_how))]
    fn __exit__(&self, _how: &Bound<'_, PyAny>) {
        self.close();
    }

    fn __repr__(&self) -> String {
        format!("<memlane.Listener {}>", self.at)
    }
}

/// What streams of a listener, or one stream, are made with.
fn made(
    region: Option<&Bound<'_, PyAny>>,
    chunk: Option<u32>,
    path: Option<&str>,
    patience: Option<f64>,
) -> PyResult<Made> {
    let path = path.map(|path| path.parse::<Path>().map_err(PathError::new_err));
    let path = path.transpose()?;
    let Some(region) = region else {
        if chunk.is_some() || path.is_some() {
            return Err(PyValueError::new_err(
                "chunk and path are a region's: give it one",
            ));
        }
        return Ok(Made {
            binding: None,
            path: None,
            patience: duration(patience)?,
        });
    };
    let of_text = |spec: String| Bound::new(region.py(), Region::new(region.py(), &spec)?);
    let region = match region.cast::<Region>() {
        Ok(region) => region.clone(),
        Err(_) => match region.extract::<String>() {
            Ok(spec) => of_text(spec)?,
            Err(_) => {
                return Err(PyTypeError::new_err(
                    "region: a memlane.Region, or its text",
                ));
            }
        },
    };
    let region = region.get();
    let binding = region.cut(chunk)?;
    prepared(path, &binding)?;
    Ok(Made {
        binding: Some((binding, region.kind().to_owned())),
        path,
        patience: duration(patience)?,
    })
}

/// Paths that a stream needs nothing else for.
fn prepared(path: Option<Path>, binding: &Binding) -> PyResult<()> {
    match path {
        None | Some(Path::Staged) => Ok(()),
        Some(Path::Mapped) if binding.region().is_mapped() => Ok(()),
        Some(Path::Mapped) => Err(PathError::new_err(
            "mapped: the CPU cannot reach this region; take staged",
        )),
        Some(path) => Err(PathError::new_err(format!(
            "{path}: what it takes is not set up from Python; memlane nc --require {path} does that"
        ))),
    }
}

fn stream(socket: OwnedFd, made: &Made) -> PyResult<Stream> {
    // Short tensors are not to wait for long ones. Unix sockets have no such thing.
    let _ = rustix::net::sockopt::set_tcp_nodelay(&socket, true);
    Stream::new(socket, made).map_err(|error| errors::io(&error, "descriptor"))
}

/// Listens at HOST:PORT (port 0: any, see ``address``) for connections whose payload lands in ``region``.
///
/// ``chunk``: bytes of the region that are taken and given back together, a power of two from 4096 to 67108864, and as long as
/// the longest tensor; by default a sixteenth of the region. ``path``: this one ("mapped", "staged") and no other. ``patience``:
/// seconds to wait for chunks that other threads give back, before :class:`NoRoom`; None: for ever.
///
/// >>> import memlane
/// >>> with memlane.listen("127.0.0.1:0", "memfd:1M") as listener:
/// ...     sender = memlane.connect(listener.address)
/// ...     receiver = listener.accept()
/// >>> sender.send(bytearray(b"abc"))
/// 3
/// >>> bytes(receiver.receive()[0])
/// b'abc'
#[pyfunction]
#[pyo3(signature = (address, region, *, chunk=None, path=None, patience=Some(0.0)))]
pub(crate) fn listen(
    py: Python<'_>,
    address: &str,
    region: &Bound<'_, PyAny>,
    chunk: Option<u32>,
    path: Option<&str>,
    patience: Option<f64>,
) -> PyResult<Listener> {
    let made = made(Some(region), chunk, path, patience)?;
    let listening = py.detach(|| {
        let mut last = std::io::Error::from(std::io::ErrorKind::AddrNotAvailable);
        for at in address.to_socket_addrs()? {
            match TcpListener::bind(at) {
                Ok(listener) => {
                    listener.set_nonblocking(true)?;
                    return Ok((listener.local_addr()?, listener));
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    });
    let (at, listener) = listening.map_err(|error| errors::io(&error, address))?;
    Ok(Listener {
        socket: Mutex::new(Some(Arc::new(listener.into()))),
        at,
        made,
        process: std::process::id(),
    })
}

/// Connects to HOST:PORT. Without a region the stream only sends. See :func:`listen` for the rest.
#[pyfunction]
#[pyo3(signature = (address, region=None, *, chunk=None, path=None, patience=Some(0.0), timeout=None))]
pub(crate) fn connect(
    py: Python<'_>,
    address: &str,
    region: Option<&Bound<'_, PyAny>>,
    chunk: Option<u32>,
    path: Option<&str>,
    patience: Option<f64>,
    timeout: Option<f64>,
) -> PyResult<Stream> {
    let made = made(region, chunk, path, patience)?;
    let limit = duration(timeout)?.unwrap_or(CONNECT);
    let connected = py.detach(|| {
        let mut last = std::io::Error::from(std::io::ErrorKind::AddrNotAvailable);
        for at in address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&at, limit.max(Duration::from_millis(1))) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    });
    match connected {
        Ok(connected) => stream(connected.into(), &made),
        Err(error) if error.kind() == std::io::ErrorKind::TimedOut => Err(Timeout::new_err(
            format!("{address}: nobody answered in time"),
        )),
        Err(error) => Err(errors::io(&error, address)),
    }
}

/// A stream of a socket that is connected already, TCP or unix (``socket.socket``, or anything with ``fileno``). The socket is
/// not closed; do not use it beside the stream. See :func:`listen` for the rest.
#[pyfunction]
#[pyo3(signature = (socket, region=None, *, chunk=None, path=None, patience=Some(0.0)))]
pub(crate) fn adopt(
    socket: &Bound<'_, PyAny>,
    region: Option<&Bound<'_, PyAny>>,
    chunk: Option<u32>,
    path: Option<&str>,
    patience: Option<f64>,
) -> PyResult<Stream> {
    let fd: i32 = match socket.extract() {
        Ok(fd) => fd,
        Err(_) => socket.call_method0("fileno")?.extract()?,
    };
    if fd < 0 {
        return Err(PyValueError::new_err("the socket is closed"));
    }
    // SAFETY: not negative; if it is not open, the kernel says so at the next line, and it is not used again.
    let given = unsafe { BorrowedFd::borrow_raw(fd) };
    let kind = rustix::net::sockopt::socket_type(given);
    if kind.map_err(|error| errors::io(&error.into(), "socket"))? != rustix::net::SocketType::STREAM
    {
        return Err(PyValueError::new_err(
            "the socket is not one of a stream of bytes",
        ));
    }
    let ours = given.try_clone_to_owned();
    let ours = ours.map_err(|error| errors::io(&error, "descriptor"))?;
    stream(ours, &made(region, chunk, path, patience)?)
}
