//! What is sent: somebody's bytes, held where they are.

use crate::dlpack::{self, Borrowed};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

/// As long as it lives, the bytes stay where they are.
pub(crate) enum Source<'py> {
    Buffer(PyUntypedBuffer),
    Tensor(Borrowed<'py>),
}

impl<'py> Source<'py> {
    /// By the buffer protocol, or else by DLPack.
    ///
    /// # Errors
    /// It has neither; not in one piece; not in host memory.
    pub(crate) fn of(object: &Bound<'py, PyAny>) -> PyResult<Source<'py>> {
        let refused = match PyUntypedBuffer::get(object) {
            Ok(buffer) if buffer.is_c_contiguous() => return Ok(Source::Buffer(buffer)),
            Ok(_) => {
                return Err(PyValueError::new_err(
                    "the bytes do not lie in one piece, row by row: send a contiguous copy (numpy.ascontiguousarray)",
                ));
            }
            Err(error) => error,
        };
        if object.hasattr("__dlpack__")? {
            return dlpack::borrow(object).map(Source::Tensor);
        }
        if refused.is_instance_of::<PyTypeError>(object.py()) {
            return Err(PyTypeError::new_err(format!(
                "{} has neither the buffer protocol nor DLPack",
                object.get_type().name()?
            )));
        }
        Err(refused)
    }

    /// Address and length.
    pub(crate) fn bytes(&self) -> (usize, usize) {
        match self {
            Source::Buffer(buffer) => {
                let address = buffer.buf_ptr().expose_provenance();
                (address, buffer.len_bytes())
            }
            Source::Tensor(tensor) => (tensor.address.expose_provenance(), tensor.bytes),
        }
    }
}
