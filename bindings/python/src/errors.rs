//! What went wrong, as exceptions. The classes are Python's, in `memlane/_errors.py`; here is which one says what.

use memlane_devmem::error::{AccessError, ReceiveError, RegionError as Region};
use memlane_sys::Errno;
use pyo3::PyErr;
use pyo3::exceptions::{PyIndexError, PyMemoryError, PyValueError};

pyo3::import_exception!(memlane._errors, Error);
pyo3::import_exception!(memlane._errors, RegionError);
pyo3::import_exception!(memlane._errors, RegionMissing);
pyo3::import_exception!(memlane._errors, PathError);
pyo3::import_exception!(memlane._errors, NoRoom);
pyo3::import_exception!(memlane._errors, EndOfStream);
pyo3::import_exception!(memlane._errors, Closed);
pyo3::import_exception!(memlane._errors, Timeout);
pyo3::import_exception!(memlane._errors, PeerError);

/// ENOMEM.
pub(crate) const NO_MEMORY: Errno = Errno(rustix::io::Errno::NOMEM.raw_os_error());

pub(crate) fn region(error: &Region) -> PyErr {
    match error {
        Region::Missing(_) => RegionMissing::new_err(error.to_string()),
        Region::Kernel(what, errno) => RegionError::new_err(format!("{what}: {}", words(*errno))),
        Region::Chunk(_) => PyValueError::new_err(error.to_string()),
        _ => RegionError::new_err(error.to_string()),
    }
}

pub(crate) fn receive(error: &ReceiveError) -> PyErr {
    match error {
        ReceiveError::Kernel(errno) => kernel(*errno),
        ReceiveError::Unprepared(_) => PathError::new_err(error.to_string()),
        ReceiveError::NoRoom => NoRoom::new_err(error.to_string()),
        _ => Error::new_err(error.to_string()),
    }
}

pub(crate) fn access(error: &AccessError) -> PyErr {
    match error {
        AccessError::Device(NO_MEMORY) => PyMemoryError::new_err("no memory for a copy"),
        AccessError::Device(errno) => kernel(*errno),
        AccessError::Outside => PyIndexError::new_err("beyond the end of the region"),
        _ => Error::new_err(error.to_string()),
    }
}

/// The kernel's number and words.
pub(crate) fn kernel(errno: Errno) -> PyErr {
    PeerError::new_err((errno.0, words(errno)))
}

pub(crate) fn io(error: &std::io::Error, what: &str) -> PyErr {
    let number = error.raw_os_error().unwrap_or(0);
    PeerError::new_err((number, format!("{what}: {error}")))
}

pub(crate) fn closed() -> PyErr {
    Closed::new_err("the stream is closed")
}

/// Whoever was there before a fork still uses it.
pub(crate) fn forked() -> PyErr {
    Error::new_err(
        "this was made before a fork and belongs to the parent: make another one in this process",
    )
}

fn words(errno: Errno) -> String {
    std::io::Error::from_raw_os_error(errno.0).to_string()
}
