//! DLPack, both ways: what NumPy, PyTorch, JAX and others pass tensors to one another with.
//!
//! The structures are those of `dlpack.h` 1.0 (and the older, unversioned one that consumers get who name no version).
//! A capsule owns its structure until a consumer has renamed it; from then on the consumer calls the deleter, from
//! whatever thread. The deleter touches nothing of Python's.

use crate::dtype::{Dtype, strides_of};
use crate::memory::{CPU, Memory};
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};
use std::ffi::{CStr, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

/// `DLPACK_FLAG_BITMASK_IS_COPIED`.
const IS_COPIED: u64 = 2;
/// What we speak: 1.0.
const VERSION: (u32, u32) = (1, 0);

const LEGACY: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";

/// `DLDevice`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Device {
    kind: i32,
    id: i32,
}

/// `DLDataType`.
#[repr(C)]
#[derive(Clone, Copy)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

/// `DLTensor`.
#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: Device,
    ndim: i32,
    dtype: DataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
struct Managed {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct ManagedVersioned {
    version: (u32, u32),
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    flags: u64,
    tensor: Tensor,
}

/// The offsets of `dlpack.h` on 64-bit machines.
const _: () = {
    assert!(size_of::<Tensor>() == 48 && size_of::<Managed>() == 64);
    assert!(core::mem::offset_of!(Tensor, ndim) == 16);
    assert!(core::mem::offset_of!(Tensor, shape) == 24);
    assert!(core::mem::offset_of!(Tensor, byte_offset) == 40);
    assert!(core::mem::offset_of!(Managed, deleter) == 56);
    assert!(core::mem::offset_of!(ManagedVersioned, context) == 8);
    assert!(core::mem::offset_of!(ManagedVersioned, flags) == 24);
    assert!(core::mem::offset_of!(ManagedVersioned, tensor) == 32);
    assert!(size_of::<ManagedVersioned>() == 80);
};

/// A tensor as others see it: its memory, and how it is read.
#[derive(Clone)]
pub(crate) struct Exported {
    pub(crate) memory: Arc<Memory>,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<i64>,
    pub(crate) copied: bool,
}

/// One structure, with all that it points to.
struct Export<M> {
    managed: M,
    shape: Vec<i64>,
    strides: Vec<i64>,
    _memory: Arc<Memory>,
}

trait Kind: Sized {
    const NAME: &'static CStr;
    fn new(tensor: Tensor, copied: bool) -> Self;
    fn set(&mut self, context: *mut c_void, shape: *mut i64, strides: *mut i64);
    fn delete(this: NonNull<Self>);
    fn context(&self) -> *mut c_void;
}

impl Kind for Managed {
    const NAME: &'static CStr = LEGACY;

    fn new(tensor: Tensor, _: bool) -> Managed {
        Managed {
            tensor,
            context: std::ptr::null_mut(),
            deleter: Some(delete::<Managed>),
        }
    }

    fn set(&mut self, context: *mut c_void, shape: *mut i64, strides: *mut i64) {
        self.context = context;
        self.tensor.shape = shape;
        self.tensor.strides = strides;
    }

    fn delete(this: NonNull<Managed>) {
        // SAFETY: a structure that its owner gives up; the deleter is its own.
        unsafe { this.as_ref().deleter.map(|delete| delete(this.as_ptr())) };
    }

    fn context(&self) -> *mut c_void {
        self.context
    }
}

impl Kind for ManagedVersioned {
    const NAME: &'static CStr = VERSIONED;

    fn new(tensor: Tensor, copied: bool) -> ManagedVersioned {
        ManagedVersioned {
            version: VERSION,
            context: std::ptr::null_mut(),
            deleter: Some(delete::<ManagedVersioned>),
            flags: if copied { IS_COPIED } else { 0 },
            tensor,
        }
    }

    fn set(&mut self, context: *mut c_void, shape: *mut i64, strides: *mut i64) {
        self.context = context;
        self.tensor.shape = shape;
        self.tensor.strides = strides;
    }

    fn delete(this: NonNull<ManagedVersioned>) {
        // SAFETY: as above.
        unsafe { this.as_ref().deleter.map(|delete| delete(this.as_ptr())) };
    }

    fn context(&self) -> *mut c_void {
        self.context
    }
}

/// What consumers call when they have done with it.
unsafe extern "C" fn delete<M: Kind>(managed: *mut M) {
    if managed.is_null() {
        return;
    }
    // SAFETY: one of ours, by `export`, whose context is the box that it lies in; called once, as DLPack demands.
    unsafe { drop(Box::from_raw((*managed).context().cast::<Export<M>>())) };
}

/// The end of a capsule: if nobody has taken what is in it, it ends here.
unsafe extern "C" fn forget<M: Kind>(capsule: *mut ffi::PyObject) {
    // SAFETY: a capsule, whose name is asked for before its pointer.
    let managed = unsafe {
        match ffi::PyCapsule_IsValid(capsule, M::NAME.as_ptr()) {
            0 => return,
            _ => ffi::PyCapsule_GetPointer(capsule, M::NAME.as_ptr()),
        }
    };
    if let Some(managed) = NonNull::new(managed.cast::<M>()) {
        M::delete(managed);
    }
}

/// A capsule for a consumer that knows versions from 1 on, or for an older one.
pub(crate) fn capsule<'py>(
    py: Python<'py>,
    tensor: &Exported,
    versioned: bool,
) -> PyResult<Bound<'py, PyCapsule>> {
    match versioned {
        true => export::<ManagedVersioned>(py, tensor),
        false => export::<Managed>(py, tensor),
    }
}

fn export<'py, M: Kind>(py: Python<'py>, tensor: &Exported) -> PyResult<Bound<'py, PyCapsule>> {
    let shape = tensor.shape.clone();
    let data = match tensor.memory.bytes() {
        0 => std::ptr::null_mut(),
        _ => tensor.memory.address(),
    };
    let described = Tensor {
        data: data.cast(),
        device: Device {
            kind: tensor.memory.device().0,
            id: tensor.memory.device().1,
        },
        ndim: i32::try_from(shape.len()).map_err(|_| PyValueError::new_err("dimensions"))?,
        dtype: DataType {
            code: tensor.dtype.code,
            bits: tensor.dtype.bits,
            lanes: 1,
        },
        shape: std::ptr::null_mut(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    };
    let strides = strides_of(&shape, 1);
    let export = Box::new(Export {
        managed: M::new(described, tensor.copied),
        shape,
        strides,
        _memory: Arc::clone(&tensor.memory),
    });
    let export = NonNull::from(Box::leak(export));
    // SAFETY: just made, and nobody else's; the vectors stay where they are as long as the box lives.
    let managed = unsafe {
        let whole = &mut *export.as_ptr();
        let (shape, strides) = (whole.shape.as_mut_ptr(), whole.strides.as_mut_ptr());
        whole.managed.set(export.as_ptr().cast(), shape, strides);
        NonNull::from(&mut whole.managed)
    };
    // SAFETY: the pointer is to a structure of the name's kind; `forget` frees that, if nobody has taken it.
    let capsule = unsafe {
        PyCapsule::new_with_pointer_and_destructor(py, managed.cast(), M::NAME, Some(forget::<M>))
    };
    capsule.inspect_err(|_| M::delete(managed))
}

/// The bytes of somebody else's tensor. They stay where they are as long as this lives: the capsule has them, and
/// nobody has taken them out of it.
pub(crate) struct Borrowed<'py> {
    pub(crate) address: *mut u8,
    pub(crate) bytes: usize,
    _capsule: Bound<'py, PyAny>,
}

/// By `__dlpack__`.
///
/// # Errors
/// It lies on a device, or not in one piece; whatever its producer says.
pub(crate) fn borrow<'py>(object: &Bound<'py, PyAny>) -> PyResult<Borrowed<'py>> {
    let py = object.py();
    let (kind, _): (i32, i32) = object.call_method0("__dlpack_device__")?.extract()?;
    if kind != CPU.0 {
        return Err(PyValueError::new_err(format!(
            "the tensor lies on a device (DLPack's number {kind}), and only host memory is sent: copy it there first (PyTorch: .cpu())"
        )));
    }
    let versions = PyDict::new(py);
    versions.set_item("max_version", VERSION)?;
    let capsule = match object.call_method("__dlpack__", (), Some(&versions)) {
        // It was made before there were versions.
        Err(error) if error.is_instance_of::<PyTypeError>(py) => {
            object.call_method0("__dlpack__")?
        }
        capsule => capsule?,
    };
    let (address, bytes) = look(&capsule)?;
    Ok(Borrowed {
        address,
        bytes,
        _capsule: capsule,
    })
}

fn look(capsule: &Bound<'_, PyAny>) -> PyResult<(*mut u8, usize)> {
    let raw = capsule.as_ptr();
    // SAFETY: the object is alive; its kind and its name are asked for before its pointer is believed, and a structure
    // of another version has only its beginning read.
    unsafe {
        if ffi::PyCapsule_IsValid(raw, VERSIONED.as_ptr()) == 1 {
            let managed = ffi::PyCapsule_GetPointer(raw, VERSIONED.as_ptr());
            let managed = managed.cast::<ManagedVersioned>();
            if (*managed).version.0 != VERSION.0 {
                return Err(PyBufferError::new_err("a DLPack version that is not 1"));
            }
            return contiguous(&(*managed).tensor);
        }
        if ffi::PyCapsule_IsValid(raw, LEGACY.as_ptr()) == 1 {
            let managed = ffi::PyCapsule_GetPointer(raw, LEGACY.as_ptr());
            return contiguous(&(*managed.cast::<Managed>()).tensor);
        }
    }
    Err(PyTypeError::new_err("__dlpack__ gave no DLPack capsule"))
}

/// Its bytes, if they lie in one piece.
///
/// # Safety
/// The tensor's shape and strides are as its producer says.
unsafe fn contiguous(tensor: &Tensor) -> PyResult<(*mut u8, usize)> {
    let strange = || PyBufferError::new_err("a DLPack tensor that cannot be");
    let ndim = usize::try_from(tensor.ndim).map_err(|_| strange())?;
    if tensor.device.kind != CPU.0 || (ndim > 0 && tensor.shape.is_null()) {
        return Err(strange());
    }
    let bits = usize::from(tensor.dtype.bits) * usize::from(tensor.dtype.lanes);
    let mut bytes = bits.div_ceil(8);
    let mut steps = 1;
    for at in (0..ndim).rev() {
        // SAFETY: of `ndim` lengths, as the producer promises; the strides likewise, if there are any.
        let (length, stride) = unsafe {
            let stride = (!tensor.strides.is_null()).then(|| *tensor.strides.add(at));
            (*tensor.shape.add(at), stride)
        };
        if length > 1 && stride.is_some_and(|stride| stride != steps) {
            return Err(PyValueError::new_err(
                "the tensor does not lie in one piece, row by row: send tensor.contiguous()",
            ));
        }
        steps = steps.checked_mul(length.max(1)).ok_or_else(strange)?;
        let length = usize::try_from(length).map_err(|_| strange())?;
        bytes = bytes.checked_mul(length).ok_or_else(strange)?;
    }
    if bytes == 0 {
        return Ok((std::ptr::null_mut(), 0));
    }
    let offset = usize::try_from(tensor.byte_offset).map_err(|_| strange())?;
    Ok((tensor.data.cast::<u8>().wrapping_add(offset), bytes))
}
