//! Numbers and structures of the kernel's ublk driver.
//!
//! Source of everything here: `include/uapi/linux/ublk_cmd.h`, under the name that stands beside it; what the driver
//! does with it: `drivers/block/ublk_drv.c` and `Documentation/block/ublk.rst`.

/// `_IOC(dir, 'u', number, size)` of the kernel's `asm-generic/ioctl.h`.
const fn command(direction: u32, number: u32, size: u32) -> u32 {
    const UBLK: u32 = (b'u' as u32) << 8;
    direction << 30 | size << 16 | UBLK | number
}

/// Bytes of a [`ControlCommand`] and of an [`IoCommand`].
const CONTROL_LEN: u32 = 32;
const IO_LEN: u32 = 16;
const READ: u32 = 2;
const READ_WRITE: u32 = 3;

/// `UBLK_U_CMD_*`, `UBLK_CMD_*`: to `/dev/ublk-control`.
pub(super) mod control {
    use super::{CONTROL_LEN as SIZE, READ, READ_WRITE, command};
    pub(in crate::ublk) const GET_DEV_INFO: u32 = command(READ, 0x02, SIZE);
    pub(in crate::ublk) const ADD_DEV: u32 = command(READ_WRITE, 0x04, SIZE);
    pub(in crate::ublk) const DEL_DEV: u32 = command(READ_WRITE, 0x05, SIZE);
    pub(in crate::ublk) const START_DEV: u32 = command(READ_WRITE, 0x06, SIZE);
    pub(in crate::ublk) const STOP_DEV: u32 = command(READ_WRITE, 0x07, SIZE);
    pub(in crate::ublk) const SET_PARAMS: u32 = command(READ_WRITE, 0x08, SIZE);
    pub(in crate::ublk) const START_USER_RECOVERY: u32 = command(READ_WRITE, 0x10, SIZE);
    pub(in crate::ublk) const END_USER_RECOVERY: u32 = command(READ_WRITE, 0x11, SIZE);
    pub(in crate::ublk) const GET_FEATURES: u32 = command(READ, 0x13, SIZE);
    pub(in crate::ublk) const DEL_DEV_ASYNC: u32 = command(READ, 0x14, SIZE);
    pub(in crate::ublk) const UPDATE_SIZE: u32 = command(READ_WRITE, 0x15, SIZE);
}

/// `UBLK_U_IO_FETCH_REQ`: to `/dev/ublkcN`.
pub(super) const FETCH_REQ: u32 = command(READ_WRITE, 0x20, IO_LEN);
/// `UBLK_U_IO_COMMIT_AND_FETCH_REQ`.
pub(super) const COMMIT_AND_FETCH_REQ: u32 = command(READ_WRITE, 0x21, IO_LEN);
/// `UBLK_IO_RES_OK`.
pub(super) const RES_OK: i32 = 0;

/// `UBLK_F_*`: what a device, or the driver, can do.
pub(super) mod feature {
    pub(in crate::ublk) const USER_RECOVERY: u64 = 1 << 3;
    pub(in crate::ublk) const USER_RECOVERY_REISSUE: u64 = 1 << 4;
    pub(in crate::ublk) const CMD_IOCTL_ENCODE: u64 = 1 << 6;
    pub(in crate::ublk) const USER_COPY: u64 = 1 << 7;
    pub(in crate::ublk) const UPDATE_SIZE: u64 = 1 << 10;
}

/// `UBLK_S_DEV_QUIESCED`: its process is gone.
pub(super) const QUIESCED: u16 = 2;

/// `UBLK_IO_OP_*`.
pub(super) mod op {
    pub(in crate::ublk) const READ: u32 = 0;
    pub(in crate::ublk) const WRITE: u32 = 1;
    pub(in crate::ublk) const FLUSH: u32 = 2;
    pub(in crate::ublk) const DISCARD: u32 = 3;
    pub(in crate::ublk) const WRITE_ZEROES: u32 = 5;
}

/// `UBLK_IO_F_FUA`.
pub(super) const F_FUA: u32 = 1 << 13;
/// `UBLK_IO_F_NOUNMAP`.
pub(super) const F_NOUNMAP: u32 = 1 << 15;

/// `UBLK_ATTR_*`.
pub(super) mod attribute {
    pub(in crate::ublk) const READ_ONLY: u32 = 1;
    pub(in crate::ublk) const VOLATILE_CACHE: u32 = 4;
    pub(in crate::ublk) const FUA: u32 = 8;
}

/// `UBLK_PARAM_TYPE_BASIC`, `UBLK_PARAM_TYPE_DISCARD`.
pub(super) const PARAM_BASIC: u32 = 1;
pub(super) const PARAM_DISCARD: u32 = 2;

/// `UBLK_MAX_QUEUE_DEPTH`: where a queue's descriptors begin depends on it.
const MAX_QUEUE_DEPTH: u64 = 4096;

/// `struct ublksrv_ctrl_cmd`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct ControlCommand {
    pub(super) dev_id: u32,
    /// `u16::MAX`: not about one queue.
    pub(super) queue_id: u16,
    pub(super) len: u16,
    pub(super) addr: u64,
    pub(super) data: u64,
    pub(super) dev_path_len: u16,
    pub(super) pad: u16,
    pub(super) reserved: u32,
}

/// `struct ublksrv_ctrl_dev_info`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct DeviceInfo {
    pub(super) nr_hw_queues: u16,
    pub(super) queue_depth: u16,
    pub(super) state: u16,
    pub(super) pad0: u16,
    pub(super) max_io_buf_bytes: u32,
    pub(super) dev_id: u32,
    pub(super) ublksrv_pid: i32,
    pub(super) pad1: u32,
    pub(super) flags: u64,
    /// Ours: the driver only keeps it.
    pub(super) ublksrv_flags: u64,
    pub(super) owner_uid: u32,
    pub(super) owner_gid: u32,
    pub(super) reserved: [u64; 2],
}

/// `struct ublk_params`, as far as it is needed: the driver takes what `len` covers.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Parameters {
    pub(super) len: u32,
    pub(super) types: u32,
    pub(super) basic: Basic,
    pub(super) discard: Discard,
}

/// `struct ublk_param_basic`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Basic {
    pub(super) attrs: u32,
    pub(super) logical_bs_shift: u8,
    pub(super) physical_bs_shift: u8,
    pub(super) io_opt_shift: u8,
    pub(super) io_min_shift: u8,
    pub(super) max_sectors: u32,
    pub(super) chunk_sectors: u32,
    pub(super) dev_sectors: u64,
    pub(super) virt_boundary_mask: u64,
}

/// `struct ublk_param_discard`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Discard {
    pub(super) discard_alignment: u32,
    pub(super) discard_granularity: u32,
    pub(super) max_discard_sectors: u32,
    pub(super) max_write_zeroes_sectors: u32,
    pub(super) max_discard_segments: u16,
    pub(super) reserved0: u16,
}

/// `struct ublksrv_io_cmd`, as bytes; its address is unused with `UBLK_F_USER_COPY` and must be 0.
#[repr(C)]
pub(super) struct IoCommand {
    q_id: u16,
    tag: u16,
    result: i32,
    addr: u64,
}

impl IoCommand {
    pub(super) fn bytes(queue: u16, tag: u16, result: i32) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&queue.to_ne_bytes());
        bytes[2..4].copy_from_slice(&tag.to_ne_bytes());
        bytes[4..8].copy_from_slice(&result.to_ne_bytes());
        bytes
    }
}

/// `struct ublksrv_io_desc`: what the kernel wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Wanted {
    /// `UBLK_IO_OP_*`.
    pub(super) op: u32,
    /// `UBLK_IO_F_*`.
    pub(super) flags: u32,
    /// Bytes, like all lengths here.
    pub(super) at: u64,
    pub(super) len: u64,
}

/// Bytes of one.
pub(super) const WANTED_LEN: usize = 24;

impl Wanted {
    pub(super) fn decode(bytes: &[u8; WANTED_LEN]) -> Wanted {
        let word = |at: usize| {
            u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let mut start = [0; 8];
        start.copy_from_slice(&bytes[8..16]);
        Wanted {
            op: word(0) & 0xff,
            flags: word(0) & !0xff,
            at: u64::from_ne_bytes(start).saturating_mul(512),
            len: u64::from(word(4)) * 512,
        }
    }
}

/// Where the descriptors of a queue are mapped from (`UBLKSRV_CMD_BUF_OFFSET`, `ublk_max_cmd_buf_size`).
pub(super) fn descriptors_at(queue: u16, page: usize) -> u64 {
    let each = (MAX_QUEUE_DEPTH * WANTED_LEN as u64).next_multiple_of(page as u64);
    u64::from(queue) * each
}

/// Where the data of a request is read and written in `/dev/ublkcN` (`UBLKSRV_IO_BUF_OFFSET`, `UBLK_QID_OFF`,
/// `UBLK_TAG_OFF`).
pub(super) fn data_at(queue: u16, tag: u16) -> u64 {
    0x8000_0000 + (u64::from(queue) << 41 | u64::from(tag) << 25)
}

const _: () =
    assert!(size_of::<ControlCommand>() == CONTROL_LEN as usize && size_of::<DeviceInfo>() == 64);
const _: () = assert!(size_of::<Basic>() == 32 && size_of::<Discard>() == 20);
const _: () = assert!(size_of::<Parameters>() == 64 && size_of::<IoCommand>() == IO_LEN as usize);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_numbered_as_the_compiler_of_the_kernels_header_does() {
        // Printed by a C program with linux/ublk_cmd.h.
        assert_eq!(control::ADD_DEV, 0xc020_7504);
        assert_eq!(control::GET_FEATURES, 0x8020_7513);
        assert_eq!(FETCH_REQ, 0xc010_7520);
        assert_eq!(COMMIT_AND_FETCH_REQ, 0xc010_7521);
    }

    #[test]
    fn a_descriptor_is_read_as_the_kernel_writes_it() {
        let mut bytes = [0; WANTED_LEN];
        bytes[..4].copy_from_slice(&(op::WRITE | F_FUA).to_ne_bytes());
        bytes[4..8].copy_from_slice(&8_u32.to_ne_bytes());
        bytes[8..16].copy_from_slice(&3_u64.to_ne_bytes());
        let expected = Wanted {
            op: op::WRITE,
            flags: F_FUA,
            at: 1536,
            len: 4096,
        };
        assert_eq!(Wanted::decode(&bytes), expected);
    }
}
