//! Streams, as Python has them.
//!
//! Locks are taken without the interpreter's, which is never asked for while one is held. Whoever waits does so in slices,
//! between which signals are looked for, and lets others to the receiver in turn (`gate`).

use crate::dtype::{Dtype, bytes_of};
use crate::errors::{self, EndOfStream, Error, NoRoom, Timeout};
use crate::memory::Memory;
use crate::receiver::{Failed, Got, Receiver, Want};
use crate::records::Records;
use crate::source::Source;
use crate::tensor::{Tensor, dtype_of, frameworks, shape_of};
use memlane_devmem::error::{AccessError, ReceiveError};
use memlane_devmem::io::{Binding, Path, Stream as Lane, StreamCounts, Terms, Wait};
use memlane_sys::Errno;
use memlane_sys::iov::{self, Piece};
use memlane_wait::event::poll;
use memlane_wait::mutex::lock;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rustix::event::{PollFd, PollFlags};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Between two looks for signals (Ctrl-C).
pub(crate) const SLICE: Duration = Duration::from_millis(100);
/// As long as the receiver is kept from others at a time.
const TURN: Duration = Duration::from_millis(10);

/// One connection. What it receives lands in a region; it sends whatever has the buffer protocol or DLPack.
///
/// Made by :func:`connect`, :func:`adopt` and :meth:`Listener.accept`. One thread receives and one sends at a time; any thread closes.
#[pyclass(frozen, module = "memlane", weakref)]
pub(crate) struct Stream {
    process: u32,
    /// For sending and waiting; taken by `close`.
    socket: Mutex<Option<Arc<OwnedFd>>>,
    /// `None`: closed, or it has no region.
    receiver: Mutex<Option<Receiver>>,
    /// Whoever waits for the receiver: one after another.
    gate: Mutex<()>,
    receives: bool,
    region: String,
    patience: Option<Duration>,
    path: Option<Path>,
    sending: AtomicBool,
    out: Arc<AtomicU32>,
    sent: AtomicU64,
    last: Mutex<(StreamCounts, u64)>,
}

/// What a stream is made with.
#[derive(Clone)]
pub(crate) struct Made {
    pub(crate) binding: Option<(Arc<Binding>, String)>,
    pub(crate) path: Option<Path>,
    pub(crate) patience: Option<Duration>,
}

impl Stream {
    pub(crate) fn new(socket: OwnedFd, terms: &Made) -> std::io::Result<Stream> {
        let ours = socket.try_clone()?;
        let lane = terms.binding.as_ref().map(|(binding, _)| {
            let asked = Terms {
                require: terms.path,
                ..Terms::default()
            };
            Lane::new(socket, binding, &asked)
        });
        let receiver = lane.map(Receiver::new);
        let region = terms.binding.as_ref().map(|(_, region)| region.clone());
        Ok(Stream {
            process: std::process::id(),
            socket: Mutex::new(Some(Arc::new(ours))),
            receives: receiver.is_some(),
            path: receiver.as_ref().map(Receiver::path),
            receiver: Mutex::new(receiver),
            gate: Mutex::new(()),
            region: region.unwrap_or_default(),
            patience: terms.patience,
            sending: AtomicBool::new(false),
            out: Arc::new(AtomicU32::new(0)),
            sent: AtomicU64::new(0),
            last: Mutex::new(Default::default()),
        })
    }

    fn ours(&self) -> PyResult<()> {
        match self.process == std::process::id() {
            true => Ok(()),
            false => Err(errors::forked()),
        }
    }

    fn socket(&self) -> Option<Arc<OwnedFd>> {
        lock(&self.socket).clone()
    }

    /// In turn: who comes now is the next, whoever has just had it.
    fn receiver(&self) -> MutexGuard<'_, Option<Receiver>> {
        let _gate = lock(&self.gate);
        lock(&self.receiver)
    }

    /// Until it is there, or `until`. For the lack of room it does not wait unless it is `patient`.
    fn attempt(&self, want: Want, until: Instant, patient: bool) -> Result<Got, Failed> {
        loop {
            let Some(socket) = self.socket() else {
                return Err(Failed::Closed);
            };
            let left = until.saturating_duration_since(Instant::now());
            let (wait, waited) = {
                let mut receiver = self.receiver();
                let receiver = receiver.as_mut().ok_or(Failed::Closed)?;
                let wait = match receiver.next(want, &self.out)? {
                    Got::Wait(wait) => wait,
                    got => return Ok(got),
                };
                if left.is_zero() || (wait == Wait::Room && !patient) {
                    return Ok(Got::Wait(wait));
                }
                let here = wait == Wait::Room || !receiver.waits_by_socket();
                if here {
                    receiver.wait(wait, left.min(TURN))?;
                }
                (wait, here)
            };
            if !waited {
                let polled = polled(&socket, PollFlags::IN, left);
                polled.map_err(|errno| Failed::Receive(ReceiveError::Kernel(errno)))?;
            }
            if Instant::now() >= until {
                return Ok(Got::Wait(wait));
            }
        }
    }

    /// What is wanted; `Err` of how many bytes are left, if the stream has ended before.
    pub(crate) fn take(
        &self,
        py: Python<'_>,
        want: Want,
        limit: Limit,
    ) -> PyResult<Result<Memory, u64>> {
        self.ours()?;
        if !self.receives {
            return Err(Error::new_err(
                "the stream was made without a region: it only sends",
            ));
        }
        let mut lacking: Option<Instant> = None;
        loop {
            let until = limit.slice();
            let got = py.detach(|| self.attempt(want, until, lacking.is_some()));
            match got.map_err(|failed| self.failed(failed, want))? {
                Got::Bytes(memory) => return Ok(Ok(memory)),
                Got::Ended(left) => return Ok(Err(left)),
                Got::Wait(wait) => {
                    py.check_signals()?;
                    match wait {
                        Wait::Room => self.lack(py, &mut lacking)?,
                        _ => lacking = None,
                    }
                }
            }
            if limit.is_over() {
                return Err(Timeout::new_err(
                    "nothing came in time; what has come is kept",
                ));
            }
        }
    }

    /// What is there already. Whatever else there is to say, the next call says.
    fn more(&self, py: Python<'_>, most: u64) -> Option<Memory> {
        let now = Instant::now();
        match py.detach(|| self.attempt(Want::Some(most), now, false)) {
            Ok(Got::Bytes(memory)) => Some(memory),
            _ => None,
        }
    }

    /// All chunks are out: first by what is garbage, then by who is patient.
    fn lack(&self, py: Python<'_>, since: &mut Option<Instant>) -> PyResult<()> {
        let Some(began) = since else {
            *since = Some(Instant::now());
            // Tensors in cycles (an exception's frames) are nobody's, and hold chunks all the same.
            return py.import("gc")?.call_method0("collect").map(|_| ());
        };
        match self.patience {
            Some(patience) if began.elapsed() >= patience => Err(NoRoom::new_err(
                "all chunks of the region are out: drop tensors of it (patience=SECONDS waits for other threads to), or take a larger region",
            )),
            _ => Ok(()),
        }
    }

    fn failed(&self, failed: Failed, want: Want) -> PyErr {
        match failed {
            Failed::Closed => errors::closed(),
            Failed::Receive(error) => errors::receive(&error),
            Failed::Access(error) => errors::access(&error),
            Failed::Chunk(chunk) => PyValueError::new_err(format!(
                "{} bytes in one piece, and a chunk of the region has {chunk}: take chunk={} or more (a power of two)",
                match want {
                    Want::All(bytes) | Want::Record(bytes) => bytes,
                    _ => 0,
                },
                match want {
                    Want::All(bytes) | Want::Record(bytes) => u64::from(bytes).next_power_of_two(),
                    _ => 0,
                }
            )),
        }
    }

    /// A tensor of bytes that are there.
    pub(crate) fn tensor(&self, memory: Memory, dtype: Dtype, shape: Vec<i64>) -> Tensor {
        Tensor::new(memory, dtype, shape, self.region.clone())
    }

    /// Sends all of it. How much went, also if not all of it did.
    fn send_all(
        &self,
        py: Python<'_>,
        len: usize,
        limit: Limit,
        mut some: impl FnMut(&OwnedFd, usize) -> Result<usize, Errno> + Send,
    ) -> PyResult<usize> {
        self.ours()?;
        let turn = Turn::take(&self.sending)?;
        let mut sent = 0;
        while sent < len {
            let until = limit.slice();
            let went = py.detach(|| self.send_until(&mut sent, len, until, &mut some));
            match went {
                Some(Ok(())) => {}
                Some(Err(errno)) => return Err(errors::kernel(errno)),
                None => return Err(errors::closed()),
            }
            py.check_signals()?;
            if sent < len && limit.is_over() {
                return Err(Timeout::new_err(format!(
                    "{sent} of {len} bytes were sent in time"
                )));
            }
        }
        drop(turn);
        Ok(sent)
    }

    fn send_until(
        &self,
        sent: &mut usize,
        len: usize,
        until: Instant,
        some: &mut impl FnMut(&OwnedFd, usize) -> Result<usize, Errno>,
    ) -> Option<Result<(), Errno>> {
        while *sent < len {
            let socket = self.socket()?;
            match some(&socket, *sent) {
                Ok(n) => {
                    *sent += n;
                    self.sent.fetch_add(n as u64, Ordering::Relaxed);
                }
                Err(Errno::AGAIN) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Some(Ok(()));
                    }
                    if let Err(errno) = polled(&socket, PollFlags::OUT, left) {
                        return Some(Err(errno));
                    }
                }
                // It was closed meanwhile.
                Err(_) if self.socket().is_none() => return None,
                Err(errno) => return Some(Err(errno)),
            }
        }
        Some(Ok(()))
    }

    fn finish(&self, how: rustix::net::Shutdown) -> PyResult<()> {
        self.ours()?;
        let socket = self.socket().ok_or_else(errors::closed)?;
        rustix::net::shutdown(&*socket, how)
            .map_err(|error| errors::kernel(Errno(error.raw_os_error())))
    }
}

/// One thread sends at a time.
struct Turn<'a>(&'a AtomicBool);

impl Turn<'_> {
    fn take(sending: &AtomicBool) -> PyResult<Turn<'_>> {
        match sending.swap(true, Ordering::Acquire) {
            true => Err(Error::new_err("another thread is sending on this stream")),
            false => Ok(Turn(sending)),
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// How long a call may take.
#[derive(Clone, Copy)]
pub(crate) struct Limit(Option<Instant>);

impl Limit {
    /// `None`: as long as it takes.
    pub(crate) fn new(seconds: Option<f64>) -> PyResult<Limit> {
        let limit = duration(seconds)?.and_then(|limit| Instant::now().checked_add(limit));
        Ok(Limit(limit))
    }

    /// Until then, or a slice.
    pub(crate) fn slice(self) -> Instant {
        let slice = Instant::now() + SLICE;
        self.0.map_or(slice, |limit| limit.min(slice))
    }

    pub(crate) fn is_over(self) -> bool {
        self.0.is_some_and(|limit| Instant::now() >= limit)
    }
}

pub(crate) fn duration(seconds: Option<f64>) -> PyResult<Option<Duration>> {
    let read = seconds.map(|seconds| {
        Duration::try_from_secs_f64(seconds)
            .map_err(|_| PyValueError::new_err(format!("{seconds} seconds")))
    });
    read.transpose()
}

/// Waits for the socket, until `limit` has passed or a signal handler has run: the caller looks for signals.
pub(crate) fn polled(socket: &OwnedFd, what: PollFlags, limit: Duration) -> Result<(), Errno> {
    let polled = poll(&mut [PollFd::new(socket, what)], Some(limit));
    polled
        .map(|_| ())
        .map_err(|error| Errno(error.raw_os_error()))
}

#[pymethods]
impl Stream {
    /// What has come, as tensors of bytes, one for each fragment; waits for the first. An empty list: the stream has ended.
    #[pyo3(signature = (limit=None, *, timeout=None))]
    fn receive(
        &self,
        py: Python<'_>,
        limit: Option<u64>,
        timeout: Option<f64>,
    ) -> PyResult<Vec<Tensor>> {
        let mut left = limit.unwrap_or(1 << 20).max(1);
        let mut came = Vec::new();
        let mut next = self.take(py, Want::Some(left), Limit::new(timeout)?)?.ok();
        while let Some(memory) = next.take() {
            let bytes = memory.bytes();
            let shape = vec![i64::try_from(bytes).unwrap_or(i64::MAX)];
            came.push(self.tensor(memory, Dtype::BYTE, shape));
            left = left.saturating_sub(bytes as u64);
            if left > 0 {
                next = self.more(py, left);
            }
        }
        Ok(came)
    }

    /// The next bytes as a tensor: PyTorch's if it is installed, else NumPy's, else memlane's own, or as ``framework`` says
    /// ("torch", "numpy", "memlane"). They are not copied. :class:`EndOfStream`: the stream ends before.
    #[pyo3(signature = (shape, dtype=None, *, framework=None, timeout=None))]
    fn receive_tensor<'py>(
        &self,
        py: Python<'py>,
        shape: &Bound<'py, PyAny>,
        dtype: Option<&Bound<'py, PyAny>>,
        framework: Option<&str>,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (shape, dtype) = (shape_of(shape)?, dtype_or_float(dtype)?);
        let bytes = tensor_bytes(&shape, dtype)?;
        // A name that is none costs no bytes.
        frameworks(py)?.call_method1("check", (framework,))?;
        match self.take(py, Want::All(bytes), Limit::new(timeout)?)? {
            Ok(memory) => {
                let tensor = Bound::new(py, self.tensor(memory, dtype, shape))?;
                frameworks(py)?.call_method1("convert", (tensor, framework))
            }
            Err(left) => Err(ended(left, u64::from(bytes))),
        }
    }

    /// Tensors of one shape, until the stream ends: an iterator.
    ///
    /// With ``batch``, each tensor has that number of records, in one more dimension; the last may have fewer, unless
    /// ``drop_last``. It receives ahead of what is asked for. A stream that ends within a tensor is :class:`EndOfStream`.
    #[pyo3(signature = (shape, dtype=None, *, batch=None, drop_last=false, framework=None, timeout=None))]
    fn records(
        slf: &Bound<'_, Stream>,
        shape: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
        batch: Option<i64>,
        drop_last: bool,
        framework: Option<String>,
        timeout: Option<f64>,
    ) -> PyResult<Records> {
        frameworks(slf.py())?.call_method1("check", (framework.as_deref(),))?;
        duration(timeout)?;
        Records::new(
            slf.clone().unbind(),
            (shape_of(shape)?, dtype_or_float(dtype)?),
            batch,
            drop_last,
            (framework, timeout),
        )
    }

    /// Sends an object with the buffer protocol or DLPack: its bytes, which must lie in one piece in host memory. How many.
    #[pyo3(signature = (data, *, timeout=None))]
    fn send(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<usize> {
        let source = Source::of(data)?;
        let (address, len) = source.bytes();
        let address = address.expose_provenance();
        self.send_all(py, len, Limit::new(timeout)?, |socket, sent| {
            let piece = Piece {
                base: std::ptr::with_exposed_provenance_mut::<u8>(address + sent),
                len: len - sent,
            };
            // SAFETY: `source` holds these bytes in place; the kernel copies them.
            unsafe { iov::send(socket.as_raw_fd(), &[piece]) }
        })
    }

    /// Sends bytes of the stream's region, from where they lie. How many.
    #[pyo3(signature = (offset, length, *, timeout=None))]
    fn send_region(
        &self,
        py: Python<'_>,
        offset: u64,
        length: usize,
        timeout: Option<f64>,
    ) -> PyResult<usize> {
        if !self.receives {
            return Err(Error::new_err("the stream was made without a region"));
        }
        let outside = || errors::access(&AccessError::Outside);
        let limit = Limit::new(timeout)?;
        let checked = py.detach(|| {
            let mut receiver = self.receiver();
            let receiver = receiver.as_mut()?;
            let end = usize::try_from(offset).ok()?.checked_add(length);
            Some(end.is_some_and(|end| end <= receiver.stream().binding().region().len()))
        });
        match checked {
            None => return Err(errors::closed()),
            Some(false) => return Err(outside()),
            Some(true) => {}
        }
        self.send_all(py, length, limit, |_, sent| {
            let left = u32::try_from(length - sent).unwrap_or(1 << 30).min(1 << 30);
            let mut receiver = self.receiver();
            let receiver = receiver.as_mut().ok_or(Errno::INVAL)?;
            match receiver.stream().send(offset + sent as u64, left) {
                Ok(n) => Ok(n as usize),
                Err(AccessError::Device(errno)) => Err(errno),
                Err(_) => Err(Errno::INVAL),
            }
        })
    }

    /// Says to the other side that nothing more will be sent. Receiving goes on.
    fn finish_sending(&self) -> PyResult<()> {
        self.finish(rustix::net::Shutdown::Write)
    }

    /// Ends it, also if another thread is in one of its calls: that gets :class:`Closed`. Tensors stay as they are.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.ours()?;
        py.detach(|| {
            let Some(socket) = lock(&self.socket).take() else {
                return;
            };
            // Whoever waits for it wakes up. A peer that is gone already makes this an error, which says nothing new.
            let _ = rustix::net::shutdown(&*socket, rustix::net::Shutdown::Both);
            let mut receiver = self.receiver();
            if let Some(receiver) = receiver.take() {
                *lock(&self.last) = receiver.counts();
            }
        });
        Ok(())
    }

    /// Is it?
    #[getter]
    fn closed(&self) -> bool {
        self.socket().is_none()
    }

    /// By which path payload comes: "mapped", "staged" …; None without a region.
    #[getter]
    fn path(&self) -> Option<&'static str> {
        self.path.map(Path::name)
    }

    /// What was counted: bytes ``received`` and ``sent``; ``fragments``, of these ``released`` and still ``out``; bytes
    /// ``bounced`` (copied in host memory on their way, by the path) and ``gathered`` (copied because a tensor did not lie
    /// in one piece); ``no_room``: receives that found no free chunk.
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.ours()?;
        let (counts, gathered) = py.detach(|| {
            let receiver = self.receiver();
            let now = receiver.as_ref().map(Receiver::counts);
            now.unwrap_or_else(|| *lock(&self.last))
        });
        let out = u64::from(self.out.load(Ordering::Relaxed));
        let told = PyDict::new(py);
        told.set_item("path", self.path())?;
        for (name, count) in [
            ("received", counts.received),
            ("fragments", counts.fragments),
            ("released", counts.fragments.saturating_sub(out)),
            ("out", out),
            ("bounced", counts.bounced),
            ("gathered", gathered),
            ("no_room", counts.no_room),
            ("sent", self.sent.load(Ordering::Relaxed)),
        ] {
            told.set_item(name, count)?;
        }
        Ok(told)
    }

    /// The socket's descriptor, to wait for with ``select`` or asyncio.
    fn fileno(&self) -> PyResult<i32> {
        let socket = self.socket().ok_or_else(errors::closed)?;
        Ok(socket.as_raw_fd())
    }

    fn __enter__(slf: Bound<'_, Stream>) -> Bound<'_, Stream> {
        slf
    }

    #[pyo3(signature = (*_how))]
    fn __exit__(&self, py: Python<'_>, _how: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        let state = if self.closed() { "closed" } else { "open" };
        match self.path() {
            Some(path) => format!("<memlane.Stream {state} {path} {}>", self.region),
            None => format!("<memlane.Stream {state} sends>"),
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // A child's copy: its locks may be held by a thread that is none here.
            let receiver = self.receiver.get_mut();
            std::mem::forget(receiver.unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

pub(crate) fn dtype_or_float(dtype: Option<&Bound<'_, PyAny>>) -> PyResult<Dtype> {
    match dtype {
        Some(dtype) => dtype_of(dtype),
        None => Ok(Dtype::named("float32").unwrap_or(Dtype::BYTE)),
    }
}

/// Bytes of a tensor that is to be received.
pub(crate) fn tensor_bytes(shape: &[i64], dtype: Dtype) -> PyResult<u32> {
    let bytes = bytes_of(shape, dtype).and_then(|bytes| u32::try_from(bytes).ok());
    bytes.ok_or_else(|| PyValueError::new_err("a tensor of 4 GiB or more: receive it in parts"))
}

/// The stream ended too early.
pub(crate) fn ended(left: u64, wanted: u64) -> PyErr {
    match left {
        0 => EndOfStream::new_err("the stream has ended"),
        left => EndOfStream::new_err(format!(
            "the stream has ended within a tensor: {left} of {wanted} bytes came, which receive() gives"
        )),
    }
}
