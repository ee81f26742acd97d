//! Memory that payload can be put into: `memfd:`, `hugetlb:`, `udmabuf:`, `dmaheap:`, `cuda:`.
//!
//! | kind | memory | a dma-buf? | who has it |
//! |---|---|---|---|
//! | `memfd:64M` | pages of this process, shareable | no | every Linux |
//! | `hugetlb:64M` | huge pages from the administrator's pool | no | `vm.nr_hugepages` > 0 |
//! | `udmabuf:64M` | a memfd that devices can be given | yes | `/dev/udmabuf` (`CONFIG_UDMABUF`), 64 MiB at most by default |
//! | `dmaheap:system:64M` | an allocator of the kernel's for devices | yes | `/dev/dma_heap/NAME` |
//! | `cuda:0:64M` | a device's own | where its driver gives it | `libcuda.so.1`, a device |
//!
//! All of them but CUDA's are mapped: the CPU can put bytes there. A region of a dma-buf tells the kernel before and after
//! (`DMA_BUF_IOCTL_SYNC`).

mod carve;

use crate::error::{AccessError, RegionError};
use core::fmt;
use memlane_core::access::SharedBytes;
use memlane_sys::fd::Fd;
use memlane_sys::{Errno, mem};
use rustix::fs::{Mode, OFlags, open};
use rustix::ioctl::{Opcode, Setter, Updater, ioctl, opcode};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::str::FromStr;

/// What a region is made of, and how long it is: `udmabuf:64M`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Spec {
    /// Of what.
    pub kind: RegionKind,
    /// Bytes; whole pages are taken.
    pub bytes: usize,
}

/// What a region is made of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RegionKind {
    /// A memfd.
    Memfd,
    /// A memfd of huge pages.
    Hugetlb,
    /// A memfd as a dma-buf.
    Udmabuf,
    /// From the kernel's heap of this name.
    DmaHeap(String),
    /// Memory of NVIDIA's device of this number.
    Cuda(u32),
}

impl fmt::Display for RegionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RegionKind::Memfd => f.write_str("memfd"),
            RegionKind::Hugetlb => f.write_str("hugetlb"),
            RegionKind::Udmabuf => f.write_str("udmabuf"),
            RegionKind::DmaHeap(name) => write!(f, "dmaheap:{name}"),
            RegionKind::Cuda(number) => write!(f, "cuda:{number}"),
        }
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind, self.bytes)
    }
}

impl FromStr for Spec {
    type Err = RegionError;

    fn from_str(text: &str) -> Result<Spec, RegionError> {
        let wrong = || RegionError::Name(text.to_owned());
        let (kind, bytes) = text.rsplit_once(':').ok_or_else(wrong)?;
        let kind = match kind.split_once(':') {
            None if kind == "memfd" => RegionKind::Memfd,
            None if kind == "hugetlb" => RegionKind::Hugetlb,
            None if kind == "udmabuf" => RegionKind::Udmabuf,
            Some(("dmaheap", name)) if is_heap_name(name) => RegionKind::DmaHeap(name.to_owned()),
            Some(("cuda", number)) => RegionKind::Cuda(device_number(number).ok_or_else(wrong)?),
            _ => return Err(wrong()),
        };
        let bytes = size(bytes).ok_or_else(wrong)?;
        Ok(Spec { kind, bytes })
    }
}

/// A name that stays in its directory.
fn is_heap_name(name: &str) -> bool {
    let plain = |c: u8| c.is_ascii_alphanumeric() || b"_-,@".contains(&c);
    !name.is_empty() && name.len() <= 64 && name.bytes().all(plain)
}

/// Digits alone: `+1` is no number of a device.
fn device_number(text: &str) -> Option<u32> {
    let digits = text.bytes().all(|c| c.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}

/// Reads a size such as `65536`, `64K` or `1G`; not 0.
fn size(text: &str) -> Option<usize> {
    let bytes = usize::try_from(memlane_core::size::parse(text).ok()?).ok()?;
    // Addresses end at 2^46.
    (1..=1 << 46).contains(&bytes).then_some(bytes)
}

/// Memory for payload, mapped once. Unmapped and given back when dropped.
#[derive(Debug)]
pub struct DeviceRegion {
    kind: RegionKind,
    base: NonNull<u8>,
    /// Bytes that are mapped there: all, or none.
    mapped: usize,
    len: usize,
    memory: Option<Fd>,
    dma_buf: Option<OwnedFd>,
    #[cfg(feature = "cuda")]
    cuda: Option<crate::cuda::Memory>,
}

// SAFETY: an address range, which is reached through SharedBytes only.
unsafe impl Send for DeviceRegion {}
// SAFETY: as above.
unsafe impl Sync for DeviceRegion {}

/// Bytes of a huge page that sizes are rounded up to (the default on x86-64 and on arm64 with 4 KiB pages).
const HUGE: usize = 2 << 20;

impl DeviceRegion {
    /// Makes one.
    ///
    /// # Errors
    /// [`RegionError::Missing`]: this machine has no such memory; [`RegionError::Kernel`]: it has, and refuses.
    pub fn create(spec: &Spec) -> Result<DeviceRegion, RegionError> {
        let len = spec.bytes.next_multiple_of(mem::PAGE);
        match &spec.kind {
            RegionKind::Memfd => of_memfd(spec, len, false),
            RegionKind::Hugetlb => of_memfd(spec, spec.bytes.next_multiple_of(HUGE), true),
            RegionKind::Udmabuf => {
                let mut region = of_memfd(spec, len, false)?;
                let memory = region.memory.as_ref().map_or(-1, Fd::raw);
                region.dma_buf = Some(udmabuf(memory, len)?);
                Ok(region)
            }
            RegionKind::DmaHeap(name) => of_heap(spec, name, len),
            #[cfg(feature = "cuda")]
            RegionKind::Cuda(number) => {
                let driver = crate::cuda::Driver::find()?;
                let memory = crate::cuda::Memory::new(driver, *number, spec.bytes)?;
                Ok(DeviceRegion::of_cuda(memory))
            }
            #[cfg(not(feature = "cuda"))]
            RegionKind::Cuda(_) => Err(RegionError::Missing(
                "this memlane was built without the feature cuda".into(),
            )),
        }
    }

    /// A region that is memory of a CUDA device.
    #[cfg(feature = "cuda")]
    pub fn of_cuda(memory: crate::cuda::Memory) -> DeviceRegion {
        DeviceRegion {
            kind: RegionKind::Cuda(memory.number()),
            base: NonNull::dangling(),
            mapped: 0,
            len: memory.len(),
            memory: None,
            // Without, everything but the kernel's own path works.
            dma_buf: memory.dma_buf().ok(),
            cuda: Some(memory),
        }
    }

    /// The device's memory that it is, if it is one of CUDA's.
    #[cfg(feature = "cuda")]
    pub fn cuda(&self) -> Option<&crate::cuda::Memory> {
        self.cuda.as_ref()
    }

    /// Can the CPU reach it?
    pub fn is_mapped(&self) -> bool {
        self.mapped > 0
    }

    /// Over a memory file that somebody else has made, of `len` bytes and sealed against another size: a server's chunks,
    /// say. `as_dma_buf`: like [`RegionKind::Udmabuf`], for devices.
    ///
    /// # Errors
    /// EPERM: it could change its size; EINVAL: it has another one; EOPNOTSUPP: huge pages. As [`create`](Self::create).
    pub fn over(memory: Fd, len: usize, as_dma_buf: bool) -> Result<DeviceRegion, RegionError> {
        let refused = |what| move |errno| RegionError::Kernel(what, errno);
        memlane_core::region::Region::vet(&memory, len).map_err(refused("memory file"))?;
        let dma_buf = as_dma_buf.then(|| udmabuf(memory.raw(), len)).transpose()?;
        let base = mem::map_shared(memory.raw(), 0, len, true).map_err(refused("mapping"))?;
        let kind = if as_dma_buf {
            RegionKind::Udmabuf
        } else {
            RegionKind::Memfd
        };
        let spec = Spec { kind, bytes: len };
        Ok(mapped_region(&spec, base, len, memory, dma_buf))
    }

    /// What it is made of.
    pub fn kind(&self) -> &RegionKind {
        &self.kind
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The descriptor that devices are given, if it is a dma-buf.
    pub fn dma_buf(&self) -> Option<BorrowedFd<'_>> {
        self.dma_buf.as_ref().map(AsFd::as_fd)
    }

    /// A dma-buf of its first `bytes` alone, for an interface to write to; `None`: this kind is whole or none.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn dma_buf_of(&self, bytes: usize) -> Result<Option<OwnedFd>, RegionError> {
        match self.kind {
            RegionKind::Udmabuf if bytes <= self.len => {
                let memory = self.memory.as_ref().map_or(-1, Fd::raw);
                udmabuf(memory, bytes).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// What it is mapped from, to be mapped again elsewhere: the dma-buf, or else the memory file. `None`: CUDA's, whose
    /// driver gave none.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        let memory = self.memory.as_ref().map(Fd::raw);
        // SAFETY: open for as long as the region is.
        let memory = memory.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) });
        self.dma_buf().or(memory)
    }

    /// All of it, or nothing, if it is not mapped. Who writes there tells the kernel, by [`cpu`](Self::cpu).
    pub fn bytes(&self) -> SharedBytes {
        // SAFETY: mapped as long as `self` is; its users are bound to it by their owner.
        unsafe { SharedBytes::new(self.base, self.mapped) }
    }

    /// Has `work` reach the region by the CPU: before and after it, the kernel is told, if it is a dma-buf.
    ///
    /// # Errors
    /// The kernel's; `work` may have run. EOPNOTSUPP: it is not mapped.
    pub fn cpu<T>(&self, access: Access, work: impl FnOnce(SharedBytes) -> T) -> Result<T, Errno> {
        if !self.is_mapped() {
            return Err(Errno::NOTSUP);
        }
        self.sync(access as u64)?;
        let done = work(self.bytes());
        self.sync(access as u64 | SYNC_END)?;
        Ok(done)
    }

    fn sync(&self, flags: u64) -> Result<(), Errno> {
        let Some(dma_buf) = &self.dma_buf else {
            return Ok(());
        };
        // SAFETY: the kernel reads a `struct dma_buf_sync`, which is one u64.
        unsafe { ioctl(dma_buf, Setter::<SYNC, u64>::new(flags)) }.map_err(errno)
    }

    /// Copies bytes out of it.
    ///
    /// # Errors
    /// Beyond its end; the kernel's.
    pub fn read(&self, at: u64, into: &mut [u8]) -> Result<(), AccessError> {
        #[cfg(feature = "cuda")]
        if let Some(memory) = &self.cuda {
            return memory.read(at, into);
        }
        let at = usize::try_from(at).map_err(|_| AccessError::Outside)?;
        let copied = self.cpu(Access::Read, |bytes| {
            // SAFETY: `into` is ours for its whole length.
            unsafe { bytes.copy_out(at, into.as_mut_ptr(), into.len()) }
        });
        match copied.map_err(AccessError::Device)? {
            true => Ok(()),
            false => Err(AccessError::Outside),
        }
    }

    /// Copies bytes into it that others may write, too.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn write_shared(&self, at: u64, from: &SharedBytes) -> Result<(), AccessError> {
        // SAFETY: a window is readable for its whole length.
        unsafe { self.write_from(at, from.as_ptr(), from.len()) }
    }

    /// Copies bytes into it.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn write(&self, at: u64, from: &[u8]) -> Result<(), AccessError> {
        // SAFETY: `from` is readable for its whole length.
        unsafe { self.write_from(at, from.as_ptr(), from.len()) }
    }

    /// # Safety
    /// `from` is readable for `len` bytes.
    unsafe fn write_from(&self, at: u64, from: *const u8, len: usize) -> Result<(), AccessError> {
        #[cfg(feature = "cuda")]
        if let Some(memory) = &self.cuda {
            // SAFETY: the caller's promise.
            return unsafe { memory.write(at, from, len) };
        }
        let at = usize::try_from(at).map_err(|_| AccessError::Outside)?;
        // SAFETY: the caller's promise.
        let copied = self.cpu(Access::Write, |bytes| unsafe {
            bytes.copy_in(at, from, len)
        });
        match copied.map_err(AccessError::Device)? {
            true => Ok(()),
            false => Err(AccessError::Outside),
        }
    }
}

impl Drop for DeviceRegion {
    fn drop(&mut self) {
        if self.mapped > 0 {
            // SAFETY: the whole mapping, made in `create`; nobody has a window on it any more.
            unsafe { mem::unmap(self.base, self.mapped) };
        }
    }
}

/// What the CPU does (`DMA_BUF_SYNC_READ`, `_WRITE` of `linux/dma-buf.h`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum Access {
    /// It reads.
    Read = 1,
    /// It writes.
    Write = 2,
}

/// `DMA_BUF_SYNC_END`; its beginning is no bit.
const SYNC_END: u64 = 4;
/// `DMA_BUF_IOCTL_SYNC`.
const SYNC: Opcode = opcode::write::<u64>(b'b', 0);

/// `struct udmabuf_create` of `linux/udmabuf.h`.
#[repr(C)]
struct UdmabufCreate {
    memfd: u32,
    flags: u32,
    offset: u64,
    size: u64,
}

/// `UDMABUF_CREATE`; `UDMABUF_FLAGS_CLOEXEC`.
const UDMABUF_CREATE: Opcode = opcode::write::<UdmabufCreate>(b'u', 0x42);
const UDMABUF_CLOEXEC: u32 = 1;

/// `struct dma_heap_allocation_data` of `linux/dma-heap.h`.
#[repr(C)]
struct HeapAllocation {
    len: u64,
    fd: u32,
    fd_flags: u32,
    heap_flags: u64,
}

/// `DMA_HEAP_IOCTL_ALLOC`.
const HEAP_ALLOC: Opcode = opcode::read_write::<HeapAllocation>(b'H', 0);

fn errno(error: rustix::io::Errno) -> Errno {
    Errno(error.raw_os_error())
}

fn of_memfd(spec: &Spec, len: usize, huge: bool) -> Result<DeviceRegion, RegionError> {
    let refused = |what| move |errno| RegionError::Kernel(what, errno);
    let memory = mem::memfd(c"memlane-device", len, huge).map_err(refused("memfd"))?;
    // A udmabuf wants F_SEAL_SHRINK and no F_SEAL_WRITE.
    mem::add_seals(memory.raw(), mem::SEALS_FIXED).map_err(refused("seals"))?;
    let mapped = mem::map_shared(memory.raw(), 0, len, true);
    let base = mapped.map_err(|errno| match huge {
        true => RegionError::Missing(format!(
            "hugetlb: no {} huge pages are free ({errno}): sysctl vm.nr_hugepages=N",
            len / HUGE
        )),
        false => RegionError::Kernel("mapping", errno),
    })?;
    Ok(mapped_region(spec, base, len, memory, None))
}

fn udmabuf(memory: i32, len: usize) -> Result<OwnedFd, RegionError> {
    let device = open_device("/dev/udmabuf", "modprobe udmabuf (CONFIG_UDMABUF)")?;
    let request = UdmabufCreate {
        // Not negative: it is open.
        memfd: memory.unsigned_abs(),
        flags: UDMABUF_CLOEXEC,
        offset: 0,
        size: len as u64,
    };
    let create = Create {
        request,
        opcode: UDMABUF_CREATE,
    };
    // SAFETY: the kernel reads a `struct udmabuf_create` and answers with a descriptor.
    unsafe { ioctl(&device, create) }.map_err(|error| match error {
        rustix::io::Errno::INVAL => RegionError::Missing(format!(
            "udmabuf: {len} bytes are refused: /sys/module/udmabuf/parameters/size_limit_mb says how many MiB there may be"
        )),
        error => RegionError::Kernel("UDMABUF_CREATE", errno(error)),
    })
}

fn of_heap(spec: &Spec, name: &str, len: usize) -> Result<DeviceRegion, RegionError> {
    let path = format!("/dev/dma_heap/{name}");
    let device = open_device(&path, "ls /dev/dma_heap shows which there are")?;
    // The system's heap takes what it is asked for, and has the kernel end processes to find it.
    if let Some(there) = available().filter(|there| len > *there) {
        return Err(RegionError::Missing(format!(
            "dmaheap: {len} bytes are more than this machine has available ({there}, MemAvailable of /proc/meminfo)"
        )));
    }
    let mut request = HeapAllocation {
        len: len as u64,
        fd: 0,
        fd_flags: (OFlags::RDWR | OFlags::CLOEXEC).bits(),
        heap_flags: 0,
    };
    // SAFETY: the kernel reads and writes a `struct dma_heap_allocation_data`, which this is.
    let done = unsafe { ioctl(&device, Updater::<HEAP_ALLOC, _>::new(&mut request)) };
    done.map_err(|error| RegionError::Kernel("DMA_HEAP_IOCTL_ALLOC", errno(error)))?;
    let fd =
        i32::try_from(request.fd).map_err(|_| RegionError::Kernel("dma-heap", Errno::INVAL))?;
    // SAFETY: the kernel has just made this descriptor for us.
    let dma_buf = unsafe { OwnedFd::from_raw_fd(fd) };
    let refused = |errno| RegionError::Kernel("dma-buf", errno);
    let base = mem::map_shared(fd, 0, len, true).map_err(refused)?;
    let kept = dma_buf.try_clone();
    let kept = kept.map_err(|error| refused(Errno(error.raw_os_error().unwrap_or(0))));
    let kept = kept.inspect_err(|_| {
        // SAFETY: the mapping from above, of which nobody knows.
        unsafe { mem::unmap(base, len) };
    })?;
    Ok(mapped_region(spec, base, len, owned(dma_buf), Some(kept)))
}

/// Of a mapping of `len` bytes at `base`, which becomes the region's.
fn mapped_region(
    spec: &Spec,
    base: NonNull<u8>,
    len: usize,
    memory: Fd,
    dma_buf: Option<OwnedFd>,
) -> DeviceRegion {
    DeviceRegion {
        kind: spec.kind.clone(),
        base,
        mapped: len,
        len,
        memory: Some(memory),
        dma_buf,
        #[cfg(feature = "cuda")]
        cuda: None,
    }
}

/// Bytes that may be allocated without others being pushed out.
fn available() -> Option<usize> {
    let told = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = told
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: usize = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

fn owned(fd: OwnedFd) -> Fd {
    use std::os::fd::IntoRawFd;
    // SAFETY: ours alone, given up by its owner here.
    unsafe { Fd::from_raw(fd.into_raw_fd()) }
}

fn open_device(path: &str, advice: &str) -> Result<OwnedFd, RegionError> {
    let opened = open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    opened.map_err(|error| match error {
        rustix::io::Errno::NOENT | rustix::io::Errno::NODEV | rustix::io::Errno::NXIO => {
            RegionError::Missing(format!("there is no {path}: {advice}"))
        }
        rustix::io::Errno::ACCESS | rustix::io::Errno::PERM => RegionError::Missing(format!(
            "{path} may not be opened: it takes root, or its group"
        )),
        error => RegionError::Kernel("device", errno(error)),
    })
}

/// An ioctl whose answer is a descriptor.
struct Create {
    request: UdmabufCreate,
    opcode: Opcode,
}

// SAFETY: the kernel reads `request`, of the type that `opcode` has the size of, and makes a descriptor.
unsafe impl rustix::ioctl::Ioctl for Create {
    type Output = OwnedFd;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        self.opcode
    }

    fn as_ptr(&mut self) -> *mut core::ffi::c_void {
        (&raw mut self.request).cast()
    }

    unsafe fn output_from_ptr(
        out: rustix::ioctl::IoctlOutput,
        _: *mut core::ffi::c_void,
    ) -> rustix::io::Result<OwnedFd> {
        // SAFETY: an answer that is no error is a new descriptor.
        Ok(unsafe { OwnedFd::from_raw_fd(out) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_read_as_written() {
        let read = |text: &str| text.parse::<Spec>();
        let spec = |kind, bytes| Ok(Spec { kind, bytes });
        assert_eq!(read("memfd:64M"), spec(RegionKind::Memfd, 64 << 20));
        assert_eq!(read("udmabuf:4096"), spec(RegionKind::Udmabuf, 4096));
        let heap = RegionKind::DmaHeap("linux,cma".into());
        assert_eq!(read("dmaheap:linux,cma:1G"), spec(heap, 1 << 30));
        assert_eq!(read("cuda:1:64M"), spec(RegionKind::Cuda(1), 64 << 20));
        for wrong in [
            "",
            "memfd",
            "memfd:",
            "memfd:0",
            "memfd:-1",
            "memfd:1X",
            "memfd:99999999G",
            "x:1",
            "dmaheap:1M",
            "dmaheap::1M",
            "dmaheap:../x:1M",
            "memfd:a:1M",
            "memfd:1MM",
            "memfd:µ",
            "cuda:1M",
            "cuda::1M",
            "cuda:+1:1M",
            "cuda:4294967296:1M",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_available_is_read() {
        let there = available().expect("a kernel tells it");
        assert!(there > 1 << 20, "{there}");
    }

    /// Numbers from `linux/udmabuf.h`, `linux/dma-heap.h`, `linux/dma-buf.h`, as x86-64 and arm64 compile them.
    #[test]
    fn requests_are_the_kernel_s() {
        assert_eq!(UDMABUF_CREATE, 0x4018_7542);
        assert_eq!(HEAP_ALLOC, 0xc018_4800);
        assert_eq!(SYNC, 0x4008_6200);
    }

    #[test]
    fn what_is_written_is_there_and_nothing_beyond_the_end_is() {
        let region = DeviceRegion::create(&"memfd:5000".parse().unwrap()).unwrap();
        assert_eq!(region.len(), 8192);
        region.write(8190, b"ab").unwrap();
        let mut seen = [0; 2];
        region.read(8190, &mut seen).unwrap();
        assert_eq!(&seen, b"ab");
        assert_eq!(region.read(8191, &mut seen), Err(AccessError::Outside));
        assert_eq!(region.write(u64::MAX, b"a"), Err(AccessError::Outside));
    }

    #[test]
    fn memory_of_others_is_taken_as_it_is_if_it_stays_so() {
        let theirs = DeviceRegion::create(&"memfd:64K".parse().unwrap()).unwrap();
        let file = |region: &DeviceRegion| {
            let own = region.descriptor().unwrap().try_clone_to_owned().unwrap();
            owned(own)
        };
        let ours = DeviceRegion::over(file(&theirs), 64 << 10, false).unwrap();
        theirs.write(5000, b"seen").unwrap();
        let mut seen = [0; 4];
        ours.read(5000, &mut seen).unwrap();
        assert_eq!(&seen, b"seen");
        let longer = DeviceRegion::over(file(&theirs), 128 << 10, false);
        assert!(matches!(longer, Err(RegionError::Kernel(_, Errno::INVAL))));
        let loose = mem::memfd(c"loose", 64 << 10, false).unwrap();
        let refused = DeviceRegion::over(loose, 64 << 10, false);
        assert!(matches!(refused, Err(RegionError::Kernel(_, Errno(1)))));
    }

    /// Here or not: a region, or a sentence that says what to do.
    #[test]
    fn what_a_machine_lacks_is_said() {
        for text in [
            "udmabuf:1M",
            "dmaheap:system:1M",
            "dmaheap:no-such-heap:1M",
            "hugetlb:2M",
        ] {
            match DeviceRegion::create(&text.parse().unwrap()) {
                Ok(region) => region.write(0, b"here").unwrap(),
                Err(RegionError::Missing(why)) => assert!(why.len() > 20, "{text}: {why}"),
                Err(other) => panic!("{text}: {other}"),
            }
        }
    }
}
