//! A loop device over a file: a block device for those who are root and have no other (FUSE underneath).
//!
//! Numbers and structures: `include/uapi/linux/loop.h`; `LOOP_CONFIGURE` since Linux 5.8.
//!
//! The process that serves the file never keeps the device open. The last close of a device writes back what the kernel
//! has cached of it, and a process that dies closes its descriptors one by one: it would wait for the file that it served
//! itself, for ever. So nothing but `losetup`, a process of its own, opens the device once it is attached, and a device
//! whose process was killed stays, with errors, until `fuse::clear` removes it with the mount below it.

use crate::kernel_path;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl};
use std::ffi::c_void;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const LOOP_CONFIGURE: Opcode = 0x4C0A;
const LOOP_CTL_GET_FREE: Opcode = 0x4C82;
const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_DIRECT_IO: u32 = 16;
/// The number of tries: another process may take the free device first. After this many, something else is wrong.
const TRIES: usize = 64;

/// `struct loop_info64`.
#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    sizelimit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config`.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<LoopInfo>() == 232 && size_of::<LoopConfig>() == 304);

/// Why there is none.
#[derive(Debug)]
pub enum LoopError {
    /// Only root may have loop devices.
    NotRoot,
    /// The kernel has none (`/dev/loop-control`).
    NoLoop(io::Error),
    /// There is no `losetup` (util-linux).
    NoLosetup(io::Error),
    /// The file cannot be opened.
    File(PathBuf, io::Error),
    /// The device refuses.
    Device(PathBuf, io::Error),
}

impl fmt::Display for LoopError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoopError::NotRoot => f.write_str("loop devices are for root only"),
            LoopError::NoLoop(error) => write!(f, "/dev/loop-control: {error}"),
            LoopError::NoLosetup(error) => write!(f, "losetup: {error}: install util-linux"),
            LoopError::File(path, error) | LoopError::Device(path, error) => {
                write!(f, "{}: {error}", path.display())
            }
        }
    }
}

impl std::error::Error for LoopError {}

/// Can there be loop devices here?
///
/// # Errors
/// Why not.
pub fn probe() -> Result<(), LoopError> {
    let mut command = Command::new("losetup");
    command.arg("--version").stdin(Stdio::null());
    command.output().map_err(LoopError::NoLosetup)?;
    control().map(drop)
}

fn control() -> Result<File, LoopError> {
    let control = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/loop-control");
    control.map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => LoopError::NotRoot,
        _ => LoopError::NoLoop(error),
    })
}

/// A loop device that is ours. When it is dropped, it is detached, at once or when nobody else has it open any more.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    backing: PathBuf,
}

impl LoopDevice {
    /// One over `file`, with blocks of `block` bytes.
    ///
    /// # Errors
    /// [`LoopError`].
    pub fn attach(file: &Path, block: u32, read_only: bool) -> Result<LoopDevice, LoopError> {
        probe()?;
        let control = control()?;
        let backing = backing(file, read_only)?;
        let mut last = None;
        for _ in 0..TRIES {
            let path = free(&control)?;
            match configure(&path, &backing, block, read_only) {
                Ok(()) => {
                    let backing = kernel_path::of(file);
                    return Ok(LoopDevice { path, backing });
                }
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                    last = Some(LoopError::Device(path, error));
                }
                Err(error) => return Err(LoopError::Device(path, error)),
            }
        }
        Err(last.unwrap_or(LoopError::NotRoot))
    }

    /// `/dev/loopN`.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes over the file's new size.
    ///
    /// # Errors
    /// The kernel's.
    pub fn refresh(&self) -> io::Result<()> {
        // Before Linux 6.15 the driver takes the size that the kernel remembers for the file. `stat` renews it.
        std::fs::metadata(&self.backing)?;
        match is_over(&self.path, &self.backing) {
            true => losetup("-c", &self.path),
            false => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        // Somebody may have detached it, and its number may be another's.
        if is_over(&self.path, &self.backing) {
            let _ = losetup("-d", &self.path);
        }
    }
}

/// Detaches the loop devices over a file whose process is dead, by the name that the kernel's tables have.
#[cfg(feature = "fuse")]
pub(crate) fn clear(file: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir("/sys/block")? {
        let device = Path::new("/dev").join(entry?.file_name());
        if is_over(&device, file)
            && let Err(error) = losetup("-d", &device)
            // Another process may have detached it meanwhile.
            && is_over(&device, file)
        {
            return Err(error);
        }
    }
    Ok(())
}

/// Whether the kernel says that this is a loop device over `file`.
fn is_over(device: &Path, file: &Path) -> bool {
    let name = device.file_name().unwrap_or_default();
    let backing = Path::new("/sys/block").join(name).join("loop/backing_file");
    std::fs::read(backing)
        .is_ok_and(|said| said.strip_suffix(b"\n") == Some(file.as_os_str().as_bytes()))
}

/// Does something to a device in a process of its own.
fn losetup(what: &str, device: &Path) -> io::Result<()> {
    let mut command = Command::new("losetup");
    command.arg(what).arg(device).stdin(Stdio::null());
    let done = command.output()?;
    match done.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(
            String::from_utf8_lossy(&done.stderr).trim().to_owned(),
        )),
    }
}

/// Past the kernel's cache, if the file allows it: the device has a cache of its own.
fn backing(file: &Path, read_only: bool) -> Result<File, LoopError> {
    let open = |flags| {
        let mut options = OpenOptions::new();
        options.read(true).write(!read_only).custom_flags(flags);
        options.open(file)
    };
    open(libc::O_DIRECT)
        .or_else(|_| open(0))
        .map_err(|error| LoopError::File(file.to_owned(), error))
}

fn free(control: &File) -> Result<PathBuf, LoopError> {
    // SAFETY: takes no argument.
    let number = unsafe { call(control, LOOP_CTL_GET_FREE, std::ptr::null_mut()) };
    let number = number.map_err(LoopError::NoLoop)?;
    Ok(PathBuf::from(format!("/dev/loop{number}")))
}

fn configure(path: &Path, backing: &File, block: u32, read_only: bool) -> io::Result<()> {
    let device = OpenOptions::new().read(true).write(!read_only).open(path)?;
    let page = u32::try_from(rustix::param::page_size()).unwrap_or(4096);
    let mut flags = LO_FLAGS_DIRECT_IO;
    if read_only {
        flags |= LO_FLAGS_READ_ONLY;
    }
    let mut config = LoopConfig {
        fd: u32::try_from(backing.as_raw_fd()).map_err(io::Error::other)?,
        block_size: if block <= page { block } else { page },
        info: LoopInfo {
            flags,
            ..LoopInfo::NONE
        },
        reserved: [0; 8],
    };
    // SAFETY: the argument is the structure that the call wants; the kernel copies it before it returns.
    unsafe { call(&device, LOOP_CONFIGURE, (&raw mut config).cast()) }.map(drop)
}

impl LoopInfo {
    const NONE: LoopInfo = LoopInfo {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        sizelimit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags: 0,
        file_name: [0; 64],
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
    };
}

/// An ioctl whose answer is what it returns.
struct Call {
    opcode: Opcode,
    argument: *mut c_void,
}

// SAFETY: says of itself what `call` was told.
unsafe impl Ioctl for Call {
    type Output = i32;

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        self.opcode
    }

    fn as_ptr(&mut self) -> *mut c_void {
        self.argument
    }

    unsafe fn output_from_ptr(
        returned: IoctlOutput,
        _argument: *mut c_void,
    ) -> rustix::io::Result<i32> {
        Ok(returned)
    }
}

/// # Safety
/// `argument` is what `opcode` takes.
unsafe fn call(file: &File, opcode: Opcode, argument: *mut c_void) -> io::Result<i32> {
    // SAFETY: the caller's promise.
    Ok(unsafe { ioctl(file, Call { opcode, argument }) }?)
}
