//! Regions, as Python has them: bound to chunks once a stream wants them.

use crate::errors;
use crate::source::Source;
use memlane_devmem::DeviceRegion;
use memlane_devmem::engine::chunks::{CHUNK_MAX, CHUNK_MIN};
use memlane_devmem::error::AccessError;
use memlane_devmem::io::Binding;
use memlane_devmem::region::{Access, Spec};
use memlane_wait::mutex::lock;
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::sync::{Arc, Mutex, MutexGuard};

/// Memory that payload is received into: ``"memfd:64M"``, ``"hugetlb:64M"``, ``"udmabuf:64M"``, ``"dmaheap:NAME:64M"``.
///
/// Streams share it. It is cut into chunks when the first stream, or :func:`listen`, is given it; a tensor lies in one chunk.
/// It lives as long as anything received into it.
///
/// >>> import memlane
/// >>> region = memlane.Region("memfd:64K")
/// >>> len(region)
/// 65536
/// >>> region.write(5, b"here")
/// >>> region.read(4, 6)
/// b'\x00here\x00'
#[pyclass(frozen, module = "memlane", weakref)]
pub(crate) struct Region {
    kind: String,
    state: Mutex<State>,
}

enum State {
    Whole(DeviceRegion),
    Cut(Arc<Binding>),
    /// Cutting it failed: it is gone.
    Gone,
}

impl State {
    fn region(&self) -> PyResult<&DeviceRegion> {
        match self {
            State::Whole(region) => Ok(region),
            State::Cut(binding) => Ok(binding.region()),
            State::Gone => Err(errors::RegionError::new_err("the region is gone")),
        }
    }
}

/// Chunks of a region whose user did not say how large: so that there are 16 or more.
fn chunk_for(bytes: usize) -> u32 {
    let sixteenth = u32::try_from(bytes / 16).unwrap_or(u32::MAX).max(1);
    let power = 1 << (31 - sixteenth.leading_zeros());
    u32::clamp(power, CHUNK_MIN, CHUNK_MAX)
}

impl Region {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Chunks of it.
    pub(crate) fn cut(&self, chunk: Option<u32>) -> PyResult<Arc<Binding>> {
        let mut state = self.state();
        if let State::Cut(binding) = &*state {
            let has = binding.counts().chunk;
            return match chunk {
                Some(other) if other != has => Err(PyValueError::new_err(format!(
                    "the region has chunks of {has} bytes already, not of {other}"
                ))),
                _ => Ok(Arc::clone(binding)),
            };
        }
        let bytes = state.region()?.len();
        let chunk = chunk.unwrap_or_else(|| chunk_for(bytes));
        // Before it is given away: a size that is none must not cost the region.
        let fits = usize::try_from(chunk).is_ok_and(|chunk| chunk <= bytes);
        if !chunk.is_power_of_two() || !(CHUNK_MIN..=CHUNK_MAX).contains(&chunk) || !fits {
            let wrong = memlane_devmem::error::RegionError::Chunk(chunk);
            return Err(errors::region(&wrong));
        }
        let State::Whole(region) = std::mem::replace(&mut *state, State::Gone) else {
            return Err(errors::RegionError::new_err("the region is gone"));
        };
        let binding = Binding::new(region, chunk).map_err(|error| errors::region(&error))?;
        *state = State::Cut(Arc::clone(&binding));
        Ok(binding)
    }
}

#[pymethods]
impl Region {
    #[new]
    pub(crate) fn new(py: Python<'_>, spec: &str) -> PyResult<Region> {
        let spec: Spec = spec.parse().map_err(|error| errors::region(&error))?;
        let made = py.detach(|| DeviceRegion::create(&spec));
        let region = made.map_err(|error| errors::region(&error))?;
        Ok(Region {
            kind: spec.kind.to_string(),
            state: Mutex::new(State::Whole(region)),
        })
    }

    /// What it is made of: ``"memfd"``, ``"udmabuf"`` …
    #[getter]
    pub(crate) fn kind(&self) -> &str {
        &self.kind
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(self.state().region()?.len())
    }

    /// Bytes of a chunk, how many there are, and how many are free: {"chunk", "chunks", "free"}. All 0 before it is cut.
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counts = py.detach(|| match &*self.state() {
            State::Cut(binding) => {
                let counts = binding.counts();
                [counts.chunk, counts.chunks, counts.free]
            }
            _ => [0; 3],
        });
        let told = PyDict::new(py);
        for (name, count) in ["chunk", "chunks", "free"].into_iter().zip(counts) {
            told.set_item(name, count)?;
        }
        Ok(told)
    }

    /// Copies bytes out of it.
    fn read<'py>(
        &self,
        py: Python<'py>,
        offset: u64,
        length: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let state = self.state();
        let region = state.region()?;
        // Looked at before the bytes are allocated.
        let end = usize::try_from(offset)
            .ok()
            .and_then(|at| at.checked_add(length));
        if end.is_none_or(|end| end > region.len()) {
            return Err(PyIndexError::new_err("beyond the end of the region"));
        }
        PyBytes::new_with(py, length, |into| {
            let read = region.read(offset, into);
            read.map_err(|error| errors::access(&error))
        })
    }

    /// Copies bytes into it: those of any object with the buffer protocol or DLPack, in one piece.
    fn write(&self, offset: u64, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let source = Source::of(data)?;
        let state = self.state();
        let region = state.region()?;
        let at = usize::try_from(offset).unwrap_or(usize::MAX);
        let (from, len) = source.bytes();
        let written = region.cpu(Access::Write, |bytes| {
            // SAFETY: `source` holds `len` bytes in place. They may be the region's own (a tensor): the copy is one that
            // the compiler cannot look into, and what overlaps is mixed up and nothing worse.
            unsafe { bytes.copy_in(at, from, len) }
        });
        match written.map_err(errors::kernel)? {
            true => Ok(()),
            false => Err(errors::access(&AccessError::Outside)),
        }
    }

    fn __repr__(&self) -> PyResult<String> {
        Ok(format!(
            "<memlane.Region {}:{}>",
            self.kind,
            self.__len__()?
        ))
    }
}
