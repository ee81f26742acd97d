//! rdma-core's two libraries, and the functions of them that we call.

use crate::error::{VerbsError, text};
use crate::layout::{
    CmEvent, CmId, CompletionChannel, CompletionQueue, ConnectionParameters, Context, EventChannel,
    Handle, MemoryRegion, PairSettings, ProtectionDomain,
};
use core::ffi::{c_char, c_int, c_uint};
use libloading::Library;
use std::sync::OnceLock;

/// Their names.
pub const LIBRARIES: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];

macro_rules! functions {
    ($($library:literal { $($name:ident ($($arg:ty),*) $(-> $returns:ty)?;)* })*) => {
        /// What we call.
        #[derive(Debug)]
        #[allow(missing_docs, reason = "each has the name of the function, which rdma-core documents")]
        pub(crate) struct Functions {
            $($(pub(crate) $name: unsafe extern "C" fn($($arg),*) $(-> $returns)?,)*)*
        }

        impl Functions {
            fn load(libraries: &[&str; 2]) -> Result<Functions, VerbsError> {
                $(
                    let name: usize = $library;
                    let library = open(libraries[name])?;
                    $(
                        // SAFETY: the types are those of rdma-core's headers, and the library is never closed.
                        let $name = unsafe { library.get(concat!(stringify!($name), "\0")) };
                        let $name = *$name.map_err(|_| lacks(libraries[name], stringify!($name)))?;
                    )*
                )*
                Ok(Functions { $($($name,)*)* })
            }
        }
    };
}

functions! {
    0 {
        ibv_get_device_list(*mut c_int) -> *mut Handle;
        ibv_free_device_list(*mut Handle);
        ibv_get_device_name(Handle) -> *const c_char;
        ibv_alloc_pd(*mut Context) -> *mut ProtectionDomain;
        ibv_dealloc_pd(*mut ProtectionDomain) -> c_int;
        ibv_reg_mr_iova(*mut ProtectionDomain, Handle, usize, u64, c_int) -> *mut MemoryRegion;
        ibv_dereg_mr(*mut MemoryRegion) -> c_int;
        ibv_create_comp_channel(*mut Context) -> *mut CompletionChannel;
        ibv_destroy_comp_channel(*mut CompletionChannel) -> c_int;
        ibv_create_cq(*mut Context, c_int, Handle, *mut CompletionChannel, c_int) -> *mut CompletionQueue;
        ibv_destroy_cq(*mut CompletionQueue) -> c_int;
        ibv_get_cq_event(*mut CompletionChannel, *mut *mut CompletionQueue, *mut Handle) -> c_int;
        ibv_ack_cq_events(*mut CompletionQueue, c_uint);
    }
    1 {
        rdma_create_event_channel() -> *mut EventChannel;
        rdma_destroy_event_channel(*mut EventChannel);
        rdma_create_id(*mut EventChannel, *mut *mut CmId, Handle, c_int) -> c_int;
        rdma_destroy_id(*mut CmId) -> c_int;
        rdma_migrate_id(*mut CmId, *mut EventChannel) -> c_int;
        rdma_bind_addr(*mut CmId, *mut libc::sockaddr) -> c_int;
        rdma_listen(*mut CmId, c_int) -> c_int;
        rdma_resolve_addr(*mut CmId, *mut libc::sockaddr, *mut libc::sockaddr, c_int) -> c_int;
        rdma_resolve_route(*mut CmId, c_int) -> c_int;
        rdma_create_qp(*mut CmId, *mut ProtectionDomain, *mut PairSettings) -> c_int;
        rdma_destroy_qp(*mut CmId);
        rdma_connect(*mut CmId, *mut ConnectionParameters) -> c_int;
        rdma_accept(*mut CmId, *mut ConnectionParameters) -> c_int;
        rdma_reject(*mut CmId, *const u8, u8) -> c_int;
        rdma_disconnect(*mut CmId) -> c_int;
        rdma_get_cm_event(*mut EventChannel, *mut *mut CmEvent) -> c_int;
        rdma_ack_cm_event(*mut CmEvent) -> c_int;
        rdma_get_devices(*mut c_int) -> *mut Handle;
        rdma_free_devices(*mut Handle);
    }
}

/// `ibv_reg_dmabuf_mr`: what it registers is at an offset of a file, and so long.
pub(crate) type RegisterDmaBuf =
    unsafe extern "C" fn(*mut ProtectionDomain, u64, usize, u64, c_int, c_int) -> *mut MemoryRegion;

/// Never closed: providers register what runs when the process ends.
fn open(name: &str) -> Result<&'static Library, VerbsError> {
    // SAFETY: what the library does when it is loaded is the administrator's affair, as for each library.
    match unsafe { Library::new(name) } {
        Ok(library) => Ok(Box::leak(Box::new(library))),
        Err(_) => Err(VerbsError::Missing(format!(
            "no RDMA: {name} cannot be loaded: install rdma-core (Debian: libibverbs1, librdmacm1, ibverbs-providers)"
        ))),
    }
}

fn lacks(library: &str, name: &str) -> VerbsError {
    VerbsError::Missing(format!(
        "no RDMA: {library} has no {name}: install rdma-core 25 or later"
    ))
}

/// Both libraries, open until the process ends.
#[derive(Debug)]
pub struct Verbs {
    pub(crate) functions: Functions,
    /// Since rdma-core 34.
    pub(crate) register_dma_buf: Option<RegisterDmaBuf>,
}

impl Verbs {
    /// This machine's, looked for once.
    ///
    /// # Errors
    /// [`VerbsError::Missing`]: which library, or which function of it.
    pub fn find() -> Result<&'static Verbs, VerbsError> {
        static FOUND: OnceLock<Result<&'static Verbs, VerbsError>> = OnceLock::new();
        FOUND.get_or_init(|| Verbs::open(&LIBRARIES)).clone()
    }

    /// Those of these names, or at these places; for good.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub fn open(libraries: &[&str; 2]) -> Result<&'static Verbs, VerbsError> {
        let functions = Functions::load(libraries)?;
        // SAFETY: the type is that of rdma-core's header, and the library is never closed.
        let register_dma_buf = unsafe { open(libraries[0])?.get("ibv_reg_dmabuf_mr\0") };
        Ok(Box::leak(Box::new(Verbs {
            functions,
            register_dma_buf: register_dma_buf.ok().map(|found| *found),
        })))
    }

    /// Makes librdmacm close a device that is being taken away, once its last id is gone. Until then, the kernel waits if the
    /// device's driver cannot part from its users (rxe, siw).
    ///
    /// librdmacm looks which devices there are only for this list, and when it meets a new one. The list has a price: it
    /// opens all other devices. And it is not made where no device is left, so the last one is not closed.
    pub(crate) fn notice_removed_devices(&self) {
        // SAFETY: no count is wanted; the list is freed once.
        unsafe {
            let list = (self.functions.rdma_get_devices)(core::ptr::null_mut());
            if !list.is_null() {
                (self.functions.rdma_free_devices)(list);
            }
        }
    }

    /// The names of this machine's RDMA devices.
    ///
    /// # Errors
    /// The kernel does not tell, for example because `ib_uverbs` is not loaded.
    pub fn devices(&self) -> Result<Vec<String>, VerbsError> {
        let mut count = 0;
        // SAFETY: it writes one int.
        let list = unsafe { (self.functions.ibv_get_device_list)(&raw mut count) };
        if list.is_null() {
            return Err(VerbsError::last("ibv_get_device_list"));
        }
        let count = usize::try_from(count).unwrap_or(0);
        let name = |at: usize| {
            // SAFETY: the list has `count` entries, each a device until the list is freed.
            unsafe { text((self.functions.ibv_get_device_name)(*list.add(at))) }
        };
        let names = (0..count).map(name).collect();
        // SAFETY: the list is ours, and is freed once.
        unsafe { (self.functions.ibv_free_device_list)(list) };
        Ok(names)
    }
}
