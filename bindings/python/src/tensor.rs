//! A tensor whose bytes lie where they were received.

use crate::dlpack::{self, Exported};
use crate::dtype::{Dtype, bytes_of, strides_of};
use crate::errors;
use crate::memory::{CPU, Memory};
use memlane_wait::mutex::lock;
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};
use std::ffi::c_int;
use std::sync::{Arc, Mutex, PoisonError};

/// A tensor whose bytes lie where they were received: nothing is copied to make a NumPy array or a PyTorch tensor of it.
///
/// It has the buffer protocol (``numpy.asarray(t)``, ``memoryview(t)``) and DLPack (``torch.from_dlpack(t)``). Its chunk
/// of the region goes back to the stream when it and all that was made of it are gone, in whatever thread.
///
/// >>> import memlane, socket
/// >>> here, there = socket.socketpair()
/// >>> stream = memlane.adopt(here, memlane.Region("memfd:1M"))
/// >>> there.sendall(bytes([1, 0, 2, 0, 3, 0]))
/// >>> t = stream.receive_tensor((3,), "int16", framework="memlane")
/// >>> t
/// <memlane.Tensor int16 (3,) at 0 of memfd>
/// >>> memoryview(t).tolist()
/// [1, 2, 3]
/// >>> stream.counts()["out"]
/// 1
/// >>> del t
/// >>> stream.counts()["out"]
/// 0
/// >>> here.close(), there.close()
/// (None, None)
#[pyclass(frozen, module = "memlane", weakref)]
pub(crate) struct Tensor {
    /// `None`: its user has given it back.
    memory: Mutex<Option<Arc<Memory>>>,
    dtype: Dtype,
    shape: Vec<i64>,
    bytes: usize,
    region: String,
}

impl Tensor {
    pub(crate) fn new(memory: Memory, dtype: Dtype, shape: Vec<i64>, region: String) -> Tensor {
        Tensor {
            bytes: memory.bytes(),
            memory: Mutex::new(Some(Arc::new(memory))),
            dtype,
            shape,
            region,
        }
    }

    fn memory(&self) -> PyResult<Arc<Memory>> {
        let memory = lock(&self.memory);
        let gone = || errors::Error::new_err("the tensor was released");
        memory.clone().ok_or_else(gone)
    }
}

/// What a view of the buffer protocol points to.
struct View {
    shape: Vec<ffi::Py_ssize_t>,
    strides: Vec<ffi::Py_ssize_t>,
    _memory: Arc<Memory>,
}

#[pymethods]
impl Tensor {
    /// Lengths, as a tuple.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }

    /// What its elements are, by NumPy's names.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.dtype.name
    }

    /// Bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.bytes
    }

    /// Where its first byte is in this process' memory.
    #[getter]
    fn address(&self) -> PyResult<usize> {
        Ok(self.memory()?.address().addr())
    }

    /// Where its first byte is in the region; None if it was copied out of it, because it did not lie in one piece.
    #[getter]
    fn offset(&self) -> PyResult<Option<u64>> {
        Ok(self.memory()?.offset())
    }

    /// The fragments that it lies in: (offset, length, token) of each.
    #[getter]
    fn fragments(&self) -> PyResult<Vec<(u64, u32, u32)>> {
        Ok(self.memory()?.fragments())
    }

    /// Gives the bytes back now: what is asked of it later is an error. What others have made of it keeps them.
    fn release(&self) {
        let memory = self.memory.lock();
        let gone = memory.unwrap_or_else(PoisonError::into_inner).take();
        drop(gone);
    }

    /// The same bytes as elements of another kind, in another shape.
    #[pyo3(signature = (dtype, shape=None))]
    fn view(&self, dtype: &Bound<'_, PyAny>, shape: Option<&Bound<'_, PyAny>>) -> PyResult<Tensor> {
        let dtype = dtype_of(dtype)?;
        let shape = match shape {
            Some(shape) => shape_of(shape)?,
            None => vec![i64::try_from(self.bytes / dtype.size()).unwrap_or(i64::MAX)],
        };
        if bytes_of(&shape, dtype) != Some(self.bytes) {
            return Err(PyValueError::new_err(format!(
                "{} bytes are not {} of shape {shape:?}",
                self.bytes, dtype.name
            )));
        }
        Ok(Tensor {
            memory: Mutex::new(Some(self.memory()?)),
            dtype,
            shape,
            bytes: self.bytes,
            region: self.region.clone(),
        })
    }

    /// A NumPy array on the same bytes.
    fn numpy<'py>(slf: &Bound<'py, Tensor>) -> PyResult<Bound<'py, PyAny>> {
        frameworks(slf.py())?.call_method1("to_numpy", (slf,))
    }

    /// A PyTorch tensor on the same bytes.
    fn torch<'py>(slf: &Bound<'py, Tensor>) -> PyResult<Bound<'py, PyAny>> {
        frameworks(slf.py())?.call_method1("to_torch", (slf,))
    }

    fn __len__(&self) -> PyResult<usize> {
        let first = self.shape.first();
        let first = first.ok_or_else(|| PyTypeError::new_err("a tensor of no dimension"))?;
        Ok(usize::try_from(*first).unwrap_or(0))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let what = format!("{} {}", self.dtype.name, self.shape(py)?.repr()?);
        let place = match self.memory().map(|memory| memory.offset()) {
            Ok(Some(offset)) => format!("at {offset} of {}", self.region),
            Ok(None) => "copied".into(),
            Err(_) => "released".into(),
        };
        Ok(format!("<memlane.Tensor {what} {place}>"))
    }

    /// (1, 0): host memory; (2, N): CUDA's device N.
    fn __dlpack_device__(&self) -> PyResult<(i32, i32)> {
        Ok(self.memory()?.device())
    }

    /// A DLPack capsule: with a version for who names one from 1 on, without for others.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let memory = self.memory()?;
        let device = memory.device();
        if device == CPU && stream.is_some() {
            return Err(PyBufferError::new_err(
                "host memory has no streams: stream must be None",
            ));
        }
        let wanted = dl_device.unwrap_or(device);
        if wanted != device && wanted != CPU {
            return Err(PyBufferError::new_err(format!(
                "the bytes lie on {device:?}: they can be had there, or as a copy in host memory, {CPU:?}"
            )));
        }
        let copied = copy.unwrap_or(wanted != device);
        if wanted != device && !copied {
            return Err(PyBufferError::new_err(
                "the CPU cannot reach them without a copy",
            ));
        }
        if copied && wanted != CPU {
            return Err(PyBufferError::new_err(
                "a copy is made in host memory: dl_device=(1, 0)",
            ));
        }
        let memory = match copied {
            true => {
                let copy = py.detach(|| memory.copy());
                Arc::new(copy.map_err(|error| errors::access(&error))?)
            }
            // What came is there before it is handed out: no stream need wait for it.
            false => memory,
        };
        let exported = Exported {
            memory,
            dtype: self.dtype,
            shape: self.shape.clone(),
            copied,
        };
        dlpack::capsule(
            py,
            &exported,
            max_version.is_some_and(|(major, _)| major >= 1),
        )
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Tensor>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        // SAFETY: the interpreter's structure, for this call ours.
        let view = unsafe { view.as_mut() };
        let view = view.ok_or_else(|| PyBufferError::new_err("no view"))?;
        view.obj = std::ptr::null_mut();
        let this = slf.get();
        let memory = this.memory()?;
        if memory.device() != CPU {
            return Err(PyBufferError::new_err(
                "the bytes lie on a device: take them by DLPack (torch())",
            ));
        }
        let asks = |what: c_int| flags & what == what;
        if asks(ffi::PyBUF_F_CONTIGUOUS) && !asks(ffi::PyBUF_ANY_CONTIGUOUS) && this.shape.len() > 1
        {
            return Err(PyBufferError::new_err(
                "its rows lie one behind another, not its columns",
            ));
        }
        let format = match (asks(ffi::PyBUF_FORMAT), this.dtype.format) {
            (false, _) => std::ptr::null_mut(),
            (true, Some(format)) => format.as_ptr().cast_mut(),
            (true, None) => {
                return Err(PyBufferError::new_err(format!(
                    "the buffer protocol has no {}: take DLPack, or view(\"uint16\")",
                    this.dtype.name
                )));
            }
        };
        let size = this.dtype.size();
        let signed = |n: i64| ffi::Py_ssize_t::try_from(n).unwrap_or(ffi::Py_ssize_t::MAX);
        let unit = i64::try_from(size).unwrap_or(1);
        let mut kept = Box::new(View {
            shape: this.shape.iter().map(|n| signed(*n)).collect(),
            strides: strides_of(&this.shape, unit)
                .into_iter()
                .map(signed)
                .collect(),
            _memory: Arc::clone(&memory),
        });
        let dimensions = !this.shape.is_empty();
        view.buf = memory.address().cast();
        view.len = ffi::Py_ssize_t::try_from(this.bytes).unwrap_or(ffi::Py_ssize_t::MAX);
        view.itemsize = ffi::Py_ssize_t::try_from(size).unwrap_or(1);
        view.readonly = 0;
        view.format = format;
        view.ndim = c_int::try_from(this.shape.len()).unwrap_or(c_int::MAX);
        view.shape = std::ptr::null_mut();
        view.strides = std::ptr::null_mut();
        view.suboffsets = std::ptr::null_mut();
        if asks(ffi::PyBUF_ND) && dimensions {
            view.shape = kept.shape.as_mut_ptr();
        }
        if asks(ffi::PyBUF_STRIDES) && dimensions {
            view.strides = kept.strides.as_mut_ptr();
        }
        let ffi::Py_buffer { obj, internal, .. } = view;
        *internal = Box::into_raw(kept).cast();
        *obj = slf.into_ptr();
        Ok(())
    }

    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: a view of ours, whose `internal` is the box of `__getbuffer__`; the interpreter gives it back once.
        unsafe { drop(Box::from_raw((*view).internal.cast::<View>())) };
    }
}

/// What makes arrays of other libraries: `memlane/_frameworks.py`.
pub(crate) fn frameworks(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    py.import("memlane._frameworks")
}

/// `"float32"`, `numpy.float32`, `numpy.dtype("float32")`, `torch.float32`.
pub(crate) fn dtype_of(object: &Bound<'_, PyAny>) -> PyResult<Dtype> {
    let name = match object.extract::<String>() {
        Ok(name) => name,
        Err(_) => {
            if let Ok(order) = object.getattr("byteorder")
                && order.extract::<String>().is_ok_and(|order| order == ">")
            {
                return Err(PyValueError::new_err(
                    "elements are in this machine's byte order: take that dtype, and swap them afterwards",
                ));
            }
            let name = object
                .getattr("name")
                .or_else(|_| object.getattr("__name__"));
            name.or_else(|_| object.str().map(Bound::into_any))?
                .to_string()
        }
    };
    Dtype::named(&name)
        .ok_or_else(|| PyValueError::new_err(format!("{name} is none of {}", Dtype::names())))
}

/// A length, or several.
pub(crate) fn shape_of(object: &Bound<'_, PyAny>) -> PyResult<Vec<i64>> {
    let shape = match object.extract::<i64>() {
        Ok(length) => vec![length],
        Err(_) => object
            .extract::<Vec<i64>>()
            .map_err(|_| PyTypeError::new_err("a shape is a length or a sequence of lengths"))?,
    };
    if shape.iter().any(|length| *length < 0) || shape.len() > 32 {
        return Err(PyValueError::new_err(
            "a shape has at most 32 lengths, none of them negative",
        ));
    }
    Ok(shape)
}
