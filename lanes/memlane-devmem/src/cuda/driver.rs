//! The driver's library, and the functions of it that we call.
//!
//! Names, types and numbers: CUDA's driver API (`cuda.h`); handles are pointers that we never look behind, and so
//! `usize` here.

use super::refused::Refused;
use crate::error::RegionError;
use core::ffi::{c_char, c_int, c_uint, c_void};
use libloading::Library;
use std::sync::OnceLock;

/// `Err` for what is not 0.
fn done(result: c_int) -> Result<(), Refused> {
    match result {
        0 => Ok(()),
        other => Err(Refused(other)),
    }
}

/// The library's name.
pub const LIBRARY: &str = "libcuda.so.1";
/// The oldest driver (`cuDriverGetVersion`): CUDA 11.0.
pub const OLDEST: c_int = 11_000;

macro_rules! functions {
    ($($field:ident = $name:literal ($($arg:ty),*);)*) => {
        /// What we call.
        #[derive(Debug)]
        struct Functions {
            $($field: unsafe extern "C" fn($($arg),*) -> c_int,)*
        }

        impl Functions {
            fn of(library: &Library) -> Result<Functions, RegionError> {
                Ok(Functions {
                    $(
                        // SAFETY: the types are those of `cuda.h`, and the library is never closed.
                        $field: unsafe { *library.get($name).map_err(|_| lacks($name))? },
                    )*
                })
            }
        }
    };
}

functions! {
    init = "cuInit" (c_uint);
    version = "cuDriverGetVersion" (*mut c_int);
    count = "cuDeviceGetCount" (*mut c_int);
    device = "cuDeviceGet" (*mut c_int, c_int);
    name = "cuDeviceGetName" (*mut c_char, c_int, c_int);
    attribute = "cuDeviceGetAttribute" (*mut c_int, c_int, c_int);
    retain = "cuDevicePrimaryCtxRetain" (*mut usize, c_int);
    release = "cuDevicePrimaryCtxRelease_v2" (c_int);
    push = "cuCtxPushCurrent_v2" (usize);
    pop = "cuCtxPopCurrent_v2" (*mut usize);
    alloc = "cuMemAlloc_v2" (*mut u64, usize);
    free = "cuMemFree_v2" (u64);
    to_device = "cuMemcpyHtoD_v2" (u64, *const c_void, usize);
    from_device = "cuMemcpyDtoH_v2" (*mut c_void, u64, usize);
    to_device_async = "cuMemcpyHtoDAsync_v2" (u64, *const c_void, usize, usize);
    within_device_async = "cuMemcpyDtoDAsync_v2" (u64, u64, usize, usize);
    stream_create = "cuStreamCreate" (*mut usize, c_uint);
    stream_wait = "cuStreamSynchronize" (usize);
    stream_destroy = "cuStreamDestroy_v2" (usize);
    event_create = "cuEventCreate" (*mut usize, c_uint);
    event_record = "cuEventRecord" (usize, usize);
    event_wait = "cuEventSynchronize" (usize);
    event_destroy = "cuEventDestroy_v2" (usize);
    register = "cuMemHostRegister_v2" (*mut c_void, usize, c_uint);
    unregister = "cuMemHostUnregister" (*mut c_void);
}

fn lacks(name: &str) -> RegionError {
    RegionError::Missing(format!(
        "{LIBRARY} has no {name}: install a newer driver of NVIDIA's (CUDA 11.0 or later)"
    ))
}

/// `cuMemGetHandleForAddressRange` (CUDA 11.7): descriptor, address, bytes, kind, flags.
type Export = unsafe extern "C" fn(*mut c_void, u64, usize, c_int, u64) -> c_int;

/// The library, open until the process ends: drivers do not like to be closed.
#[derive(Debug)]
pub struct Driver {
    functions: Functions,
    export: Option<Export>,
    count: c_int,
}

impl Driver {
    /// This machine's, looked for once.
    ///
    /// # Errors
    /// [`RegionError::Missing`]: there is none that can be used, and why.
    pub fn find() -> Result<&'static Driver, RegionError> {
        static FOUND: OnceLock<Result<&'static Driver, RegionError>> = OnceLock::new();
        FOUND.get_or_init(|| Driver::open(LIBRARY)).clone()
    }

    /// That of this name, or at this place; for good.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub fn open(library: &str) -> Result<&'static Driver, RegionError> {
        // SAFETY: what the driver's library does when it is loaded is the administrator's affair, as for each library.
        let opened = unsafe { Library::new(library) };
        let opened = opened.map_err(|why| {
            let said =
                core::error::Error::source(&why).map_or(String::new(), |why| format!(": {why}"));
            RegionError::Missing(format!(
                "no CUDA: {LIBRARY}, NVIDIA's driver, cannot be loaded{said}"
            ))
        })?;
        // Never closed, also if it cannot be used: it may have started threads.
        let opened = Box::leak(Box::new(opened));
        let functions = Functions::of(opened)?;
        // SAFETY: as of the other functions.
        let export = unsafe { opened.get("cuMemGetHandleForAddressRange") };
        let mut driver = Driver {
            export: export.ok().map(|export| *export),
            functions,
            count: 0,
        };
        driver.start()?;
        Ok(Box::leak(Box::new(driver)))
    }

    fn start(&mut self) -> Result<(), RegionError> {
        let missing = |what: &str| {
            let what = what.to_owned();
            move |why: Refused| RegionError::Missing(format!("no CUDA: {what}: {why}"))
        };
        let mut version = 0;
        // SAFETY: it writes one int.
        done(unsafe { (self.functions.version)(&raw mut version) })
            .map_err(missing("the driver does not say its version"))?;
        if version < OLDEST {
            return Err(RegionError::Missing(format!(
                "no CUDA: the driver knows CUDA {}.{}, and 11.0 is the oldest that can be used",
                version / 1000,
                version % 1000 / 10
            )));
        }
        // SAFETY: no flags are defined.
        done(unsafe { (self.functions.init)(0) })
            .map_err(missing("the driver is there, and does not start"))?;
        // SAFETY: it writes one int.
        done(unsafe { (self.functions.count)(&raw mut self.count) })
            .map_err(missing("the driver does not count its devices"))
    }

    /// Devices that there are.
    pub fn count(&self) -> u32 {
        self.count.try_into().unwrap_or(0)
    }

    /// A device, and what may be done with it.
    ///
    /// # Errors
    /// [`RegionError::Missing`]: there is none of this number.
    pub(super) fn context(&'static self, number: u32) -> Result<Context, RegionError> {
        let device = c_int::try_from(number).ok().filter(|n| *n < self.count);
        let device = device.ok_or_else(|| {
            RegionError::Missing(match self.count {
                ..=0 => "no CUDA: the driver is there, and has no device".into(),
                1 => format!("there is no cuda:{number}: this machine has cuda:0 alone"),
                count => format!(
                    "there is no cuda:{number}: this machine has cuda:0 to cuda:{}",
                    count - 1
                ),
            })
        })?;
        let failed = |what| move |why| RegionError::Device(format!("cuda:{number}: {what}: {why}"));
        let (mut handle, mut context) = (0, 0);
        // SAFETY: it writes one int.
        done(unsafe { (self.functions.device)(&raw mut handle, device) })
            .map_err(failed("cuDeviceGet"))?;
        // The context that all of a process share, PyTorch's too.
        // SAFETY: it writes one handle, which is given back once.
        done(unsafe { (self.functions.retain)(&raw mut context, handle) })
            .map_err(failed("cuDevicePrimaryCtxRetain"))?;
        Ok(Context {
            driver: self,
            device: handle,
            context,
        })
    }
}

/// `CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED`.
const DMA_BUF_SUPPORTED: c_int = 124;
/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`.
const DMA_BUF_FD: c_int = 1;
/// `CU_STREAM_NON_BLOCKING`: it does not wait for the default stream.
const NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING`: whoever waits sleeps.
const EVENT_FLAGS: c_uint = 1 | 2;
/// `CU_MEMHOSTREGISTER_PORTABLE`: for all contexts.
const PORTABLE: c_uint = 1;

/// A device's primary context: all that is done with its memory is done there. Any thread may.
#[derive(Debug)]
pub(super) struct Context {
    driver: &'static Driver,
    device: c_int,
    context: usize,
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once in `Driver::context`.
        unsafe { (self.driver.functions.release)(self.device) };
    }
}

impl Context {
    /// Calls with this context as the thread's, and puts back the one that it had.
    fn within<T>(&self, work: impl FnOnce(&Functions) -> Result<T, Refused>) -> Result<T, Refused> {
        let functions = &self.driver.functions;
        // SAFETY: a context that we hold.
        done(unsafe { (functions.push)(self.context) })?;
        let worked = work(functions);
        let mut ours = 0;
        // SAFETY: it writes one handle: the one that was pushed above.
        let popped = done(unsafe { (functions.pop)(&raw mut ours) });
        worked.and_then(|worked| popped.map(|()| worked))
    }

    /// As people call the device.
    pub(super) fn name(&self) -> String {
        let mut name = [0_u8; 128];
        let len = c_int::try_from(name.len()).unwrap_or(0);
        // SAFETY: it writes at most `len` bytes, with a 0 at the end.
        let told =
            unsafe { (self.driver.functions.name)(name.as_mut_ptr().cast(), len, self.device) };
        let len = name.iter().position(|c| *c == 0).unwrap_or(name.len());
        match told {
            0 => String::from_utf8_lossy(&name[..len]).into_owned(),
            _ => String::new(),
        }
    }

    /// Allocates.
    pub(super) fn alloc(&self, bytes: usize) -> Result<u64, Refused> {
        let mut at = 0;
        // SAFETY: it writes one address.
        self.within(|cuda| done(unsafe { (cuda.alloc)(&raw mut at, bytes) }))?;
        Ok(at)
    }

    /// # Safety
    /// From [`alloc`](Self::alloc), and nobody uses it any more.
    pub(super) unsafe fn free(&self, at: u64) {
        // SAFETY: the caller's promise.
        let _ = self.within(|cuda| done(unsafe { (cuda.free)(at) }));
    }

    /// # Safety
    /// `from` is readable, and `to` is memory of this device, for `len` bytes.
    pub(super) unsafe fn write(&self, to: u64, from: *const u8, len: usize) -> Result<(), Refused> {
        // SAFETY: the caller's promise.
        self.within(|cuda| done(unsafe { (cuda.to_device)(to, from.cast(), len) }))
    }

    /// # Safety
    /// `into` is writable, and `from` is memory of this device, for `len` bytes.
    pub(super) unsafe fn read(&self, from: u64, into: *mut u8, len: usize) -> Result<(), Refused> {
        // SAFETY: the caller's promise.
        self.within(|cuda| done(unsafe { (cuda.from_device)(into.cast(), from, len) }))
    }

    /// Copies within the device (to, from, bytes of each), and returns when all are done. What other queues of the device
    /// have to do does not hold them up.
    ///
    /// # Safety
    /// Each `from` and each `to` is memory of this device, for its bytes.
    pub(super) unsafe fn copy(
        &self,
        mut copies: impl Iterator<Item = (u64, u64, usize)>,
    ) -> Result<(), Refused> {
        let stream = self.stream()?;
        let begun = self.within(|cuda| {
            copies.try_for_each(|(to, from, len)| {
                // SAFETY: the caller's promise; the queue is ours and lives.
                done(unsafe { (cuda.within_device_async)(to, from, len, stream) })
            })
        });
        let all_done = self.drain(stream);
        // SAFETY: made above, and not used again.
        unsafe { self.close_stream(stream) };
        begun.and(all_done)
    }

    /// A descriptor that other devices' drivers can be given; `Err`: why there is none.
    pub(super) fn export(&self, at: u64, bytes: usize) -> Result<c_int, String> {
        let mut can = 0;
        // SAFETY: it writes one int.
        let told = unsafe {
            (self.driver.functions.attribute)(&raw mut can, DMA_BUF_SUPPORTED, self.device)
        };
        let export = self
            .driver
            .export
            .ok_or("the driver is older than CUDA 11.7")?;
        if told != 0 || can == 0 {
            return Err(
                "the driver gives its memory to nobody: it takes the open kernel modules".into(),
            );
        }
        let mut fd: c_int = -1;
        // SAFETY: it writes one int; the range is memory of ours.
        let made = self
            .within(|_| done(unsafe { export((&raw mut fd).cast(), at, bytes, DMA_BUF_FD, 0) }));
        made.map_err(|why| format!("cuMemGetHandleForAddressRange: {why}"))?;
        Ok(fd)
    }

    /// A queue for copies.
    pub(super) fn stream(&self) -> Result<usize, Refused> {
        let mut stream = 0;
        // SAFETY: it writes one handle.
        self.within(|cuda| done(unsafe { (cuda.stream_create)(&raw mut stream, NON_BLOCKING) }))?;
        Ok(stream)
    }

    /// Waits until all is done that was begun there.
    pub(super) fn drain(&self, stream: usize) -> Result<(), Refused> {
        // SAFETY: a stream from `stream`, which lives.
        self.within(|cuda| done(unsafe { (cuda.stream_wait)(stream) }))
    }

    /// # Safety
    /// From [`stream`](Self::stream), and not used again.
    pub(super) unsafe fn close_stream(&self, stream: usize) {
        // SAFETY: the caller's promise.
        let _ = self.within(|cuda| done(unsafe { (cuda.stream_destroy)(stream) }));
    }

    /// Begins copies, in order, and says by an event when the last one is done.
    ///
    /// # Safety
    /// Each `from` stays readable and as it is until then, and each `to` is memory of this device, for its bytes.
    pub(super) unsafe fn begin(
        &self,
        stream: usize,
        copies: impl Iterator<Item = (u64, *const u8, usize)>,
    ) -> Result<usize, Refused> {
        self.within(|cuda| {
            for (to, from, len) in copies {
                // SAFETY: the caller's promise.
                done(unsafe { (cuda.to_device_async)(to, from.cast(), len, stream) })?;
            }
            let mut event = 0;
            // SAFETY: it writes one handle.
            done(unsafe { (cuda.event_create)(&raw mut event, EVENT_FLAGS) })?;
            // SAFETY: both are ours and live; an event that is not taken is destroyed.
            let recorded = done(unsafe { (cuda.event_record)(event, stream) });
            recorded.inspect_err(|_| {
                // SAFETY: as above.
                unsafe { (cuda.event_destroy)(event) };
            })?;
            Ok(event)
        })
    }

    /// Sleeps until an event of [`begin`](Self::begin) has come.
    pub(super) fn wait(&self, event: usize) -> Result<(), Refused> {
        // SAFETY: an event that lives.
        self.within(|cuda| done(unsafe { (cuda.event_wait)(event) }))
    }

    /// # Safety
    /// From [`begin`](Self::begin), and not used again.
    pub(super) unsafe fn forget(&self, event: usize) {
        // SAFETY: the caller's promise.
        let _ = self.within(|cuda| done(unsafe { (cuda.event_destroy)(event) }));
    }

    /// Tells the driver of host memory that stays where it is, so that the device fetches from there by itself.
    ///
    /// # Safety
    /// A mapping that lives until [`unregister`](Self::unregister).
    pub(super) unsafe fn register(&self, at: *mut u8, len: usize) -> Result<(), Refused> {
        // SAFETY: the caller's promise.
        self.within(|cuda| done(unsafe { (cuda.register)(at.cast(), len, PORTABLE) }))
    }

    /// # Safety
    /// What was registered, once; no copy from there is under way.
    pub(super) unsafe fn unregister(&self, at: *mut u8) {
        // SAFETY: the caller's promise.
        let _ = self.within(|cuda| done(unsafe { (cuda.unregister)(at.cast()) }));
    }
}
