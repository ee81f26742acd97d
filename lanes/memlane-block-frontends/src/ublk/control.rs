//! `/dev/ublk-control`: devices are made, started, stopped and removed there, by commands of `io_uring`.

use super::abi::{ControlCommand, DeviceInfo, Parameters, control};
use super::error::UblkError;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;

/// For a new device: whichever number is free.
pub(super) const ANY: u32 = u32::MAX;

pub(super) struct Control {
    device: File,
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
}

impl Control {
    pub(super) fn open() -> Result<Control, UblkError> {
        let mut options = OpenOptions::new();
        let device = options.read(true).write(true).open("/dev/ublk-control");
        let device = device.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => UblkError::NoDriver,
            io::ErrorKind::PermissionDenied => UblkError::NotPermitted,
            _ => UblkError::Kernel("/dev/ublk-control", error),
        })?;
        let ring = IoUring::builder().dontfork().build(4);
        Ok(Control {
            device,
            ring: ring.map_err(UblkError::NoRing)?,
        })
    }

    /// Has a command done, and waits for it.
    fn ask(&mut self, number: u32, command: ControlCommand) -> Result<(), Errno> {
        let mut bytes = [0; 80];
        bytes[..4].copy_from_slice(&command.dev_id.to_ne_bytes());
        bytes[4..6].copy_from_slice(&command.queue_id.to_ne_bytes());
        bytes[6..8].copy_from_slice(&command.len.to_ne_bytes());
        bytes[8..16].copy_from_slice(&command.addr.to_ne_bytes());
        bytes[16..24].copy_from_slice(&command.data.to_ne_bytes());
        let entry = opcode::UringCmd80::new(types::Fd(self.device.as_raw_fd()), number)
            .cmd(bytes)
            .build();
        // SAFETY: `command.addr`, if any, is memory of our callers, who wait here until the kernel is done with it:
        // there is no way out before its result.
        unsafe { self.ring.submission().push(&entry) }.map_err(|_| Errno::BUSY)?;
        loop {
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                // Nothing was taken: the address is not used.
                Err(error) => return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
            }
            if let Some(done) = self.ring.completion().next() {
                return match done.result() {
                    error @ -4095..0 => Err(Errno::from_raw_os_error(-error)),
                    _ => Ok(()),
                };
            }
        }
    }

    /// A command with a number.
    pub(super) fn simple(&mut self, number: u32, device: u32, data: u64) -> Result<(), Errno> {
        let command = ControlCommand {
            dev_id: device,
            queue_id: u16::MAX,
            data,
            ..ControlCommand::default()
        };
        self.ask(number, command)
    }

    /// A command with a structure, which the kernel may write.
    fn with<T: Copy>(&mut self, number: u32, device: u32, value: &mut T) -> Result<(), Errno> {
        let command = ControlCommand {
            dev_id: device,
            queue_id: u16::MAX,
            len: u16::try_from(size_of::<T>()).unwrap_or(u16::MAX),
            addr: std::ptr::from_mut(value).expose_provenance() as u64,
            ..ControlCommand::default()
        };
        self.ask(number, command)
    }

    /// `UBLK_F_*` that the driver knows.
    pub(super) fn features(&mut self) -> Result<u64, Errno> {
        let mut features = 0_u64;
        self.with(control::GET_FEATURES, ANY, &mut features)?;
        Ok(features)
    }

    /// Makes a device; what it has become.
    pub(super) fn add(&mut self, mut wanted: DeviceInfo) -> Result<DeviceInfo, Errno> {
        self.with(control::ADD_DEV, wanted.dev_id, &mut wanted)?;
        Ok(wanted)
    }

    pub(super) fn info(&mut self, device: u32) -> Result<DeviceInfo, Errno> {
        let mut info = DeviceInfo::default();
        self.with(control::GET_DEV_INFO, device, &mut info)?;
        Ok(info)
    }

    pub(super) fn set(&mut self, device: u32, mut parameters: Parameters) -> Result<(), Errno> {
        self.with(control::SET_PARAMS, device, &mut parameters)
    }
}
