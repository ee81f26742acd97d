//! memlane for Python: the device-memory lane's streams, and tensors on what they receive.
//!
//! | room | what |
//! |---|---|
//! | `listener`, `stream`, `records` | what Python has of connections; waiting, without the interpreter's lock |
//! | `receiver`, `pending` | what has come and what is wanted, without Python |
//! | `region`, `memory`, `tensor` | memory, who keeps it, how it is read |
//! | `dlpack`, `dtype`, `source` | what other libraries know of tensors, both ways |
//! | `errors` | which exception says what |
//!
//! What is plain Python is in `python/memlane`: the exceptions' classes, and what makes arrays of other libraries.

mod dlpack;
mod dtype;
mod errors;
mod listener;
mod memory;
mod pending;
mod receiver;
mod records;
mod region;
mod source;
mod stream;
mod tensor;

use memlane_devmem::probe::{self as lane, Finding};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

/// What this machine has, ``{"memory": […], "paths": […]}``: of each thing its ``name``, ``what`` it is, and what it ``lacks``
/// (nothing: it is here).
///
/// >>> import memlane
/// >>> [found["lacks"] for found in memlane.probe()["memory"] if found["name"] == "memfd"]
/// [[]]
#[pyfunction]
fn probe<'py>(py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
    let (memory, paths) = py.detach(|| (lane::memory(), lane::paths(None)));
    let told = PyDict::new(py);
    for (kind, found) in [("memory", memory), ("paths", paths)] {
        let list = PyList::empty(py);
        for finding in found {
            list.append(tell(py, finding)?)?;
        }
        told.set_item(kind, list)?;
    }
    Ok(told)
}

fn tell(py: Python<'_>, finding: Finding) -> PyResult<Bound<'_, PyDict>> {
    let told = PyDict::new(py);
    told.set_item("name", finding.name)?;
    told.set_item("what", finding.what)?;
    told.set_item("lacks", finding.lacks)?;
    Ok(told)
}

#[pymodule]
fn _memlane(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<region::Region>()?;
    module.add_class::<tensor::Tensor>()?;
    module.add_class::<stream::Stream>()?;
    module.add_class::<records::Records>()?;
    module.add_class::<listener::Listener>()?;
    module.add_function(wrap_pyfunction!(listener::listen, module)?)?;
    module.add_function(wrap_pyfunction!(listener::connect, module)?)?;
    module.add_function(wrap_pyfunction!(listener::adopt, module)?)?;
    module.add_function(wrap_pyfunction!(probe, module)?)?;
    Ok(())
}
