//! A volume as a block device by the kernel's ublk driver: `/dev/ublkbN`, for root, without a socket in between.
//!
//! ```text
//!   /dev/ublkbN ── ublk_drv ══ io_uring (one for each queue) ══ Worker ── Queue ── Volume
//! ```
//!
//! If this process dies, the device stays (unless it was made without [`Options::recoverable`]): its requests wait
//! for a new process that [recovers](recover) it.
//!
//! The driver has changed a lot, and some kernels cannot be trusted with it: those are refused ([`kernels`]).

mod abi;
mod control;
mod error;
pub mod kernels;
mod queue;

use abi::{Basic, DeviceInfo, Discard, Parameters, attribute, feature};
use control::{ANY, Control};
pub use error::UblkError;
use error::refused;
use memlane_block::volume::{Info, Volume};
use memlane_wait::event::EventFd;
use queue::{QueueSignals, Worker};
use rustix::io::Errno;
use std::fmt;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// What the driver must be able to do; all of it since Linux 6.5.
const NEEDED: u64 = feature::USER_COPY | feature::CMD_IOCTL_ENCODE;
/// A thread's stack.
const STACK: usize = 256 * 1024;
/// The driver itself looks after a dead process every five seconds.
const TRIES: u32 = 150;
const BREATH: Duration = Duration::from_millis(100);
/// For the threads of a device that is gone to notice.
const PATIENCE: Duration = Duration::from_secs(10);

/// How to attach.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Queues, each with a thread: at least 1, at most 64.
    pub queues: u16,
    /// Requests of each queue at a time: at most 1024.
    pub depth: u16,
    /// Whose device it is; who [recovers](recover) it must name the same.
    pub name: String,
    /// Nothing can be written, whatever the volume allows.
    pub read_only: bool,
    /// The device outlives this process.
    pub recoverable: bool,
    /// Also with a kernel whose driver is known to be broken.
    pub any_kernel: bool,
}

impl Default for Options {
    fn default() -> Options {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Options {
            queues: u16::try_from(cpus.min(4)).unwrap_or(1),
            depth: 64,
            name: "memlane".into(),
            read_only: false,
            recoverable: true,
            any_kernel: false,
        }
    }
}

impl Options {
    /// What the driver keeps for us beside the device, so that it is found again: FNV-1a of the name.
    fn mark(&self) -> u64 {
        let bytes = b"memlane ublk ".iter().chain(self.name.as_bytes());
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        })
    }
}

/// Can there be ublk devices here?
///
/// # Errors
/// Why not.
pub fn probe() -> Result<(), UblkError> {
    driver(&Options::default()).map(drop)
}

/// The driver, and its features.
fn driver(options: &Options) -> Result<(Control, u64), UblkError> {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut control = Control::open()?;
    if let Some(how) = kernels::broken(&kernel).filter(|_| !options.any_kernel) {
        return Err(UblkError::Broken(kernel.trim().into(), how));
    }
    let features = control.features().map_err(|error| match error {
        Errno::PERM | Errno::ACCESS => UblkError::NotPermitted,
        _ => UblkError::TooOld,
    })?;
    match features & NEEDED == NEEDED {
        true => Ok((control, features)),
        false => Err(UblkError::TooOld),
    }
}

/// The device that was made with this name, if there is one: perhaps one to be [recovered](recover).
#[must_use]
pub fn left(name: &str) -> Option<u32> {
    let options = Options {
        name: name.into(),
        ..Options::default()
    };
    let (mut control, _) = driver(&options).ok()?;
    let devices = std::fs::read_dir("/sys/class/ublk-char").ok()?;
    let mut ids = devices.flatten().filter_map(|entry| {
        let file = entry.file_name();
        file.to_str()?.strip_prefix("ublkc")?.parse::<u32>().ok()
    });
    ids.find(|id| {
        control
            .info(*id)
            .is_ok_and(|info| info.ublksrv_flags == options.mark())
    })
}

/// Makes a block device of a volume.
///
/// # Errors
/// [`UblkError`].
pub fn attach(volume: Arc<dyn Volume>, options: &Options) -> Result<Attached, UblkError> {
    let (mut control, features) = driver(options)?;
    let parameters = parameters(&volume.info(), options.read_only)?;
    let mut flags = NEEDED | features & feature::UPDATE_SIZE;
    if options.recoverable {
        flags |= feature::USER_RECOVERY | feature::USER_RECOVERY_REISSUE;
    }
    let wanted = DeviceInfo {
        nr_hw_queues: options.queues.clamp(1, 64),
        queue_depth: options.depth.clamp(1, 1024),
        max_io_buf_bytes: parameters.basic.max_sectors * 512,
        dev_id: ANY,
        ublksrv_pid: process(),
        flags,
        ublksrv_flags: options.mark(),
        ..DeviceInfo::default()
    };
    let info = control.add(wanted).map_err(refused("add"))?;
    // From here on, what was made is unmade when it is dropped.
    let mut attached = Attached::new(control, volume, info);
    let id = info.dev_id;
    let control = &mut attached.control;
    control.set(id, parameters).map_err(refused("parameters"))?;
    attached.serve(&info)?;
    let control = &mut attached.control;
    let started = control.simple(abi::control::START_DEV, id, data(process()));
    started.map_err(refused("start"))?;
    attached.found()
}

/// Goes on with a device whose process has died; what waits in it is done with this volume.
///
/// # Errors
/// [`UblkError`].
pub fn recover(volume: Arc<dyn Volume>, id: u32, options: &Options) -> Result<Attached, UblkError> {
    let (mut control, _) = driver(options)?;
    let parameters = parameters(&volume.info(), options.read_only)?;
    let info = quiet(&mut control, id, options)?;
    if info.max_io_buf_bytes > parameters.basic.max_sectors * 512 {
        return Err(UblkError::Volume(
            "its requests are too large for this volume",
        ));
    }
    let mut attached = Attached::new(control, volume, info);
    // If this fails, the device still waits for a server.
    attached.is_over = true;
    attached.serve(&info)?;
    let control = &mut attached.control;
    let ended = control.simple(abi::control::END_USER_RECOVERY, id, data(process()));
    ended.map_err(refused("recover"))?;
    attached.is_over = false;
    attached.found()
}

/// Waits until the driver has seen that the device's process is gone, and begins its recovery.
fn quiet(control: &mut Control, id: u32, options: &Options) -> Result<DeviceInfo, UblkError> {
    for _ in 0..TRIES {
        let info = control.info(id).map_err(|_| UblkError::NotWaiting(id))?;
        let gone = !Path::new(&format!("/proc/{}", info.ublksrv_pid)).exists();
        if info.ublksrv_flags != options.mark() || !(gone || info.state == abi::QUIESCED) {
            break;
        }
        let begun = control.simple(abi::control::START_USER_RECOVERY, id, 0);
        match begun {
            Ok(()) => return Ok(info),
            Err(Errno::BUSY | Errno::INVAL) => std::thread::sleep(BREATH),
            Err(error) => return Err(refused("recover")(error)),
        }
    }
    Err(UblkError::NotWaiting(id))
}

fn process() -> i32 {
    i32::try_from(std::process::id()).unwrap_or(i32::MAX)
}

fn data(process: i32) -> u64 {
    u64::try_from(process).unwrap_or(0)
}

/// The description of the volume for the kernel. Each of the kernel's requests is one request of the volume.
fn parameters(info: &Info, read_only: bool) -> Result<Parameters, UblkError> {
    let page = u32::try_from(rustix::param::page_size()).unwrap_or(4096);
    if !info.block.is_power_of_two() || !(512..=page).contains(&info.block) {
        return Err(UblkError::Volume(
            "ublk devices have blocks of 512 bytes to a page",
        ));
    }
    if info.max_io < page {
        return Err(UblkError::Volume(
            "a volume that takes less than a page at once",
        ));
    }
    // At most what the driver takes (`UBLK_IO_BUF_BITS`).
    let most = info.max_io.min(16 << 20);
    let shift = |bytes: u32| u8::try_from(bytes.ilog2()).unwrap_or(9);
    let preferred = info.preferred.max(info.block).min(1 << 24);
    let physical = shift(preferred.min(page));
    let mut attrs = 0;
    if read_only || info.read_only {
        attrs |= attribute::READ_ONLY;
    }
    if info.cached {
        attrs |= attribute::VOLATILE_CACHE | attribute::FUA;
    }
    let basic = Basic {
        attrs,
        logical_bs_shift: shift(info.block),
        physical_bs_shift: physical,
        io_opt_shift: shift(preferred),
        io_min_shift: physical,
        max_sectors: (most - most % page) / 512,
        dev_sectors: info.size / u64::from(info.block) * u64::from(info.block) / 512,
        ..Basic::default()
    };
    let ranges = (info.max_trim - info.max_trim % info.block) / 512;
    let discard = Discard {
        discard_granularity: info.block,
        max_discard_sectors: if info.trim { ranges } else { 0 },
        max_write_zeroes_sectors: if info.zeroes { ranges } else { 0 },
        max_discard_segments: 1,
        ..Discard::default()
    };
    let types = match info.trim && ranges > 0 {
        true => abi::PARAM_BASIC | abi::PARAM_DISCARD,
        false => abi::PARAM_BASIC,
    };
    Ok(Parameters {
        len: u32::try_from(size_of::<Parameters>()).unwrap_or(0),
        types,
        basic,
        discard,
    })
}

/// A queue's thread.
struct Serving {
    told: Arc<QueueSignals>,
    /// Ends when the thread has let the device go; its volume may still be at work.
    ended: Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

impl Serving {
    /// Returns when it has asked the kernel for requests.
    fn start(
        volume: &Arc<dyn Volume>,
        device: &Arc<OwnedFd>,
        number: u16,
        depth: u16,
    ) -> io::Result<Serving> {
        let told = Arc::new(QueueSignals {
            event: EventFd::new()?,
            give_up: AtomicBool::new(false),
        });
        let (tell, started) = channel();
        let (end, ended) = channel::<()>();
        let (volume, device) = (Arc::clone(volume), Arc::clone(device));
        let heard = Arc::clone(&told);
        let serve = move || {
            let worker = volume
                .queue()
                .and_then(|queue| Worker::start(number, depth, device, heard, queue));
            let worker = match worker {
                Ok(worker) => worker,
                Err(error) => return drop(tell.send(Err(error))),
            };
            let _ = tell.send(Ok(()));
            let queue = worker.run();
            drop(end);
            drop(queue);
        };
        let thread = std::thread::Builder::new().name("memlane-ublk".into());
        let thread = thread.stack_size(STACK).spawn(serve)?;
        started.recv().map_err(io::Error::other)??;
        Ok(Serving {
            told,
            ended,
            thread: Some(thread),
        })
    }

    fn give_up(&self) {
        self.told.give_up.store(true, Ordering::SeqCst);
        self.told.event.signal();
    }
}

/// A volume that is a block device. Dropped, it is taken away, even from programs that have it open.
pub struct Attached {
    id: u32,
    path: PathBuf,
    control: Control,
    volume: Arc<dyn Volume>,
    queues: Vec<Serving>,
    flags: u64,
    is_over: bool,
}

impl fmt::Debug for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attached")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl Attached {
    fn new(control: Control, volume: Arc<dyn Volume>, info: DeviceInfo) -> Attached {
        Attached {
            id: info.dev_id,
            path: PathBuf::from(format!("/dev/ublkb{}", info.dev_id)),
            control,
            volume,
            queues: Vec::new(),
            flags: info.flags,
            is_over: false,
        }
    }

    /// Starts the threads.
    fn serve(&mut self, info: &DeviceInfo) -> Result<(), UblkError> {
        let path = PathBuf::from(format!("/dev/ublkc{}", self.id));
        let mut options = OpenOptions::new();
        let device = options.read(true).write(true).open(&path);
        let device = device.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => UblkError::NoFile(path),
            _ => UblkError::Kernel("open", error),
        })?;
        let device = Arc::new(OwnedFd::from(device));
        for number in 0..info.nr_hw_queues {
            let started = Serving::start(&self.volume, &device, number, info.queue_depth);
            self.queues.push(started.map_err(UblkError::Server)?);
        }
        Ok(())
    }

    /// The device's file must be there, or nobody could use it.
    fn found(self) -> Result<Attached, UblkError> {
        match std::fs::metadata(&self.path) {
            Ok(metadata) if metadata.file_type().is_block_device() => Ok(self),
            _ => Err(UblkError::NoFile(self.path.clone())),
        }
    }

    /// `/dev/ublkbN`.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// N.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The volume's size has changed: tells the kernel.
    ///
    /// # Errors
    /// [`UblkError::CannotResize`], or the kernel's.
    pub fn resized(&mut self) -> Result<(), UblkError> {
        if self.flags & feature::UPDATE_SIZE == 0 {
            return Err(UblkError::CannotResize);
        }
        let sectors = parameters(&self.volume.info(), false)?.basic.dev_sectors;
        let control = &mut self.control;
        let told = control.simple(abi::control::UPDATE_SIZE, self.id, sectors);
        told.map_err(refused("resize"))
    }

    /// Takes the device away. Orderly: when nobody has it mounted, and after a flush of all that was written.
    /// With `force`: at once; what is under way, and what those who have it open still want, ends with `EIO`.
    ///
    /// # Errors
    /// Why it stays: [`UblkError::InUse`], what was written could not be flushed, or the kernel refuses.
    pub fn detach(&mut self, force: bool) -> Result<(), UblkError> {
        if self.is_over {
            return Ok(());
        }
        let alone = match force {
            true => None,
            false => Some(self.alone()?),
        };
        if force {
            self.queues.iter().for_each(Serving::give_up);
        }
        let (control, id) = (&mut self.control, self.id);
        let stopped = control.simple(abi::control::STOP_DEV, id, 0);
        stopped.map_err(refused("stop"))?;
        drop(alone);
        self.is_over = true;
        for queue in &mut self.queues {
            let _ = queue.ended.recv_timeout(PATIENCE);
            if !force && let Some(thread) = queue.thread.take() {
                let _ = thread.join();
            }
        }
        self.remove()
    }

    /// Keeps others from mounting it while it goes, with everything flushed.
    fn alone(&self) -> Result<std::fs::File, UblkError> {
        let mut options = OpenOptions::new();
        let device = options.read(true).custom_flags(libc::O_EXCL);
        let device = device.open(&self.path).map_err(|error| {
            match error.raw_os_error() == Some(libc::EBUSY) {
                true => UblkError::InUse(self.path.clone()),
                false => UblkError::Kernel("open", error),
            }
        })?;
        let flushed = device.sync_all();
        flushed.map_err(|error| UblkError::Kernel("flush", error))?;
        Ok(device)
    }

    /// Its number is free again when nobody has it open any more; that is not waited for, where the kernel can.
    fn remove(&mut self) -> Result<(), UblkError> {
        let (control, id) = (&mut self.control, self.id);
        match control.simple(abi::control::DEL_DEV_ASYNC, id, 0) {
            // Linux before 6.9.
            Err(Errno::NOTSUP | Errno::INVAL) => control
                .simple(abi::control::DEL_DEV, id, 0)
                .map_err(refused("remove")),
            other => other.map_err(refused("remove")),
        }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let _ = self.detach(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memlane_block::volume::mem::MemVolume;

    fn of(change: impl FnOnce(&mut Info)) -> Result<Parameters, UblkError> {
        let mut info = MemVolume::new(1 << 20).unwrap().info();
        change(&mut info);
        parameters(&info, false)
    }

    #[test]
    fn a_volume_is_described_so_that_each_request_fits_it() {
        let parameters = of(|info| (info.max_io, info.max_trim) = (70_000, 3000)).unwrap();
        assert_eq!(parameters.basic.max_sectors, 69_632 / 512);
        assert_eq!(parameters.basic.dev_sectors, 2048);
        assert_eq!(parameters.discard.max_discard_sectors, 5);
        let never = of(|info| info.trim = false).unwrap();
        assert_eq!(never.types & abi::PARAM_DISCARD, 0);
    }

    #[test]
    fn a_volume_that_the_driver_cannot_show_is_refused() {
        assert!(of(|info| info.block = 65536).is_err());
        assert!(of(|info| info.block = 0).is_err());
        assert!(of(|info| info.max_io = 512).is_err());
    }

    #[test]
    fn devices_of_other_names_are_not_ours() {
        let named = |name: &str| Options {
            name: name.into(),
            ..Options::default()
        };
        assert_ne!(named("a").mark(), named("b").mark());
        assert_eq!(named("a").mark(), named("a").mark());
    }
}
