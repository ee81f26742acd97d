//! Somebody's bytes, held where they are: what is sent, and what is written to a region.

use crate::dlpack::{self, Borrowed};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_char;

/// What the interpreter calls an array that lies row by row.
#[allow(
    clippy::cast_possible_wrap,
    reason = "a letter; characters have no sign on arm64"
)]
const BY_ROWS: c_char = b'C' as c_char;

/// As long as it lives, the bytes stay where they are.
pub(crate) enum Source<'py> {
    Buffer(View<'py>),
    Tensor(Borrowed<'py>),
}

impl<'py> Source<'py> {
    /// By the buffer protocol, or else by DLPack.
    ///
    /// # Errors
    /// It has neither; not in one piece; not in host memory.
    pub(crate) fn of(object: &Bound<'py, PyAny>) -> PyResult<Source<'py>> {
        let refused = match View::of(object) {
            Ok(view) => return Ok(Source::Buffer(view)),
            Err(error) => error,
        };
        let py = object.py();
        if refused.is_instance_of::<PyValueError>(py) || !object.hasattr("__dlpack__")? {
            return Err(refused);
        }
        dlpack::borrow(object).map(Source::Tensor)
    }

    /// Address and length.
    pub(crate) fn bytes(&self) -> (*mut u8, usize) {
        match self {
            Source::Buffer(view) => view.bytes(),
            Source::Tensor(tensor) => (tensor.address, tensor.bytes),
        }
    }
}

/// A view by the buffer protocol, of bytes in one piece. (PyO3's own refuses what has no dimension.)
pub(crate) struct View<'py> {
    /// In a box: some exporters have it point to itself.
    buffer: Box<ffi::Py_buffer>,
    py: Python<'py>,
}

impl<'py> View<'py> {
    /// # Errors
    /// TypeError: it has none; ValueError: not in one piece.
    fn of(object: &Bound<'py, PyAny>) -> PyResult<View<'py>> {
        let py = object.py();
        // SAFETY: asks a type whether it fills the slot; the object is alive.
        if unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } == 0 {
            return Err(PyTypeError::new_err(format!(
                "{} has neither the buffer protocol nor DLPack",
                object.get_type().name()?
            )));
        }
        let mut buffer = Box::new(ffi::Py_buffer::new());
        // SAFETY: the object is alive, the structure is ours and stays where it is.
        let got = unsafe {
            ffi::PyObject_GetBuffer(object.as_ptr(), &raw mut *buffer, ffi::PyBUF_FULL_RO)
        };
        if got != 0 {
            return Err(PyErr::fetch(py));
        }
        let view = View { buffer, py };
        // SAFETY: a view that its exporter has just filled.
        let whole = unsafe { ffi::PyBuffer_IsContiguous(&raw const *view.buffer, BY_ROWS) };
        match whole {
            0 => Err(PyValueError::new_err(
                "the bytes do not lie in one piece, row by row: send a contiguous copy (numpy.ascontiguousarray)",
            )),
            _ => Ok(view),
        }
    }

    fn bytes(&self) -> (*mut u8, usize) {
        let len = usize::try_from(self.buffer.len).unwrap_or(0);
        (self.buffer.buf.cast(), len)
    }
}

impl Drop for View<'_> {
    fn drop(&mut self) {
        // The interpreter's lock is held: `py` says so.
        let _ = self.py;
        // SAFETY: a view that was got and is given back once.
        unsafe { ffi::PyBuffer_Release(&raw mut *self.buffer) };
    }
}
