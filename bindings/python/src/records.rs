//! A stream as tensors of one shape: what a data loader does.

use crate::dtype::Dtype;
use crate::receiver::Want;
use crate::stream::{Limit, Stream, ended, tensor_bytes};
use crate::tensor::frameworks;
use pyo3::exceptions::{PyStopIteration, PyValueError};
use pyo3::prelude::*;

/// Tensors of one shape out of a stream. See :meth:`Stream.records`.
#[pyclass(module = "memlane")]
pub(crate) struct Records {
    stream: Py<Stream>,
    /// Of one record.
    shape: Vec<i64>,
    dtype: Dtype,
    bytes: u32,
    /// Records in a tensor; `None`: one, without a dimension for it.
    batch: Option<i64>,
    drop_last: bool,
    framework: Option<String>,
    timeout: Option<f64>,
}

impl Records {
    pub(crate) fn new(
        stream: Py<Stream>,
        (shape, dtype): (Vec<i64>, Dtype),
        batch: Option<i64>,
        drop_last: bool,
        (framework, timeout): (Option<String>, Option<f64>),
    ) -> PyResult<Records> {
        let bytes = tensor_bytes(&shape, dtype)?;
        if batch.is_some_and(|batch| batch < 1) {
            return Err(PyValueError::new_err("batch must be 1 or more"));
        }
        if bytes == 0 {
            return Err(PyValueError::new_err(
                "records of no bytes: there would be no end of them",
            ));
        }
        let records = Records {
            stream,
            shape,
            dtype,
            bytes,
            batch,
            drop_last,
            framework,
            timeout,
        };
        tensor_bytes(&records.shaped(batch), dtype)?;
        Ok(records)
    }

    fn shaped(&self, records: Option<i64>) -> Vec<i64> {
        records
            .into_iter()
            .chain(self.shape.iter().copied())
            .collect()
    }
}

#[pymethods]
impl Records {
    fn __iter__(slf: Bound<'_, Records>) -> Bound<'_, Records> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let stream = self.stream.get();
        let limit = Limit::new(self.timeout)?;
        let shape = self.shaped(self.batch);
        let all = tensor_bytes(&shape, self.dtype)?;
        let (memory, shape) = match stream.take(py, Want::Record(all), limit)? {
            Ok(memory) => (memory, shape),
            Err(left) => self.rest(py, left, limit)?,
        };
        let tensor = Bound::new(py, stream.tensor(memory, self.dtype, shape))?;
        frameworks(py)?.call_method1("convert", (tensor, self.framework.as_deref()))
    }
}

impl Records {
    /// What is left behind the last whole batch: records, if they are whole.
    fn rest(
        &self,
        py: Python<'_>,
        left: u64,
        limit: Limit,
    ) -> PyResult<(crate::memory::Memory, Vec<i64>)> {
        let one = u64::from(self.bytes);
        if !left.is_multiple_of(one) {
            return Err(ended(left % one, one));
        }
        if left == 0 || self.drop_last {
            return Err(PyStopIteration::new_err(()));
        }
        let records = i64::try_from(left / one).unwrap_or(i64::MAX);
        match self.stream.get().take(py, Want::Rest, limit)? {
            Ok(memory) => Ok((memory, self.shaped(Some(records)))),
            Err(_) => Err(PyStopIteration::new_err(())),
        }
    }
}
