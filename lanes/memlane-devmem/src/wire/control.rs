//! What the kernel tells of device memory beside the bytes of a stream, and how it is told that they are done with.
//!
//! Numbers: `include/uapi/asm-generic/socket.h`, `include/linux/socket.h`; structures: `include/uapi/linux/uio.h`;
//! meaning: `Documentation/networking/devmem.rst`. All as of 6.12 (receive) and 6.16 (send).

use crate::engine::{Fragment, Range};

/// `MSG_SOCK_DEVMEM`: who receives without it gets EFAULT where there is device memory.
pub const MSG_SOCK_DEVMEM: i32 = 0x200_0000;
/// `SCM_DEVMEM_LINEAR`: bytes that are in the caller's own buffer, as header split had failed.
pub const LINEAR: i32 = 78;
/// `SCM_DEVMEM_DMABUF`: bytes in device memory; when sending: which memory the offsets are in.
pub const DMABUF: i32 = 79;
/// `SO_DEVMEM_DONTNEED`: an array of [`Range`]s.
pub const DONTNEED: i32 = 80;
/// `SOL_SOCKET`.
pub const SOL_SOCKET: i32 = 1;
/// `struct cmsghdr` on 64-bit machines: length, level, type.
const HEADER: usize = 16;
/// `struct dmabuf_cmsg`: offset u64; size, token, dma-buf, flags u32.
const CMSG: usize = 24;

/// One stretch of a receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stretch {
    /// This many bytes in the caller's buffer, behind what was put there before.
    Linear(u32),
    /// Bytes in device memory.
    Device {
        /// Where, and the token.
        fragment: Fragment,
        /// Which binding's memory (`dmabuf_id`).
        binding: u32,
    },
}

/// What a control buffer says of device memory, in the order of the stream. Other messages are passed over.
///
/// # Errors
/// A message of a kind that we know has fewer bytes than it must have: what came cannot be told apart.
pub fn stretches(control: &[u8]) -> Result<Vec<Stretch>, Malformed> {
    let mut found = Vec::new();
    each(control, |level, kind, data| {
        if level == SOL_SOCKET && (kind == LINEAR || kind == DMABUF) {
            found.push(stretch(kind, data.first_chunk().ok_or(Malformed)?));
        }
        Ok(())
    })?;
    Ok(found)
}

/// Each control message: level, kind, data.
fn each(
    mut control: &[u8],
    mut told: impl FnMut(i32, i32, &[u8]) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    while let Some(header) = control.first_chunk::<HEADER>() {
        let (len, rest) = header.split_first_chunk::<8>().ok_or(Malformed)?;
        let len = usize::try_from(u64::from_ne_bytes(*len)).map_err(|_| Malformed)?;
        let level = i32::from_ne_bytes([rest[0], rest[1], rest[2], rest[3]]);
        let kind = i32::from_ne_bytes([rest[4], rest[5], rest[6], rest[7]]);
        let data = control.get(HEADER..len).ok_or(Malformed)?;
        told(level, kind, data)?;
        control = control.get(len.next_multiple_of(8)..).unwrap_or_default();
    }
    Ok(())
}

/// `MSG_ERRQUEUE`, `MSG_ZEROCOPY`: where sends without a copy are told to be over.
pub const MSG_ERRQUEUE: i32 = 0x2000;
/// `MSG_ZEROCOPY`: send without a copy (linux/socket.h).
pub const MSG_ZEROCOPY: i32 = 0x400_0000;
/// `SO_ZEROCOPY`.
pub const ZEROCOPY: i32 = 60;
/// `IP_RECVERR` of `SOL_IP`, `IPV6_RECVERR` of `SOL_IPV6`.
const ERRORS: [(i32, i32); 2] = [(0, 11), (41, 25)];
/// `SO_EE_ORIGIN_ZEROCOPY`, `SO_EE_CODE_ZEROCOPY_COPIED`.
const OF_ZEROCOPY: u8 = 5;
const COPIED: u8 = 1;
/// `struct sock_extended_err` of `linux/errqueue.h`: errno u32; origin, type, code, pad u8; info, data u32.
const ERROR: usize = 16;

/// Sends that are over, by their numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Over {
    /// The first (`ee_info`).
    pub first: u32,
    /// The last (`ee_data`).
    pub last: u32,
    /// The kernel had copied the bytes all the same.
    pub copied: bool,
}

/// What a control buffer of the error queue says of sends without a copy. Other errors are passed over.
///
/// # Errors
/// As [`stretches`].
pub fn over(control: &[u8]) -> Result<Vec<Over>, Malformed> {
    let mut found = Vec::new();
    each(control, |level, kind, data| {
        if !ERRORS.contains(&(level, kind)) {
            return Ok(());
        }
        let error: &[u8; ERROR] = data.first_chunk().ok_or(Malformed)?;
        let word = |at: usize| {
            u32::from_ne_bytes([error[at], error[at + 1], error[at + 2], error[at + 3]])
        };
        if word(0) == 0 && error[4] == OF_ZEROCOPY {
            found.push(Over {
                first: word(8),
                last: word(12),
                copied: error[6] & COPIED != 0,
            });
        }
        Ok(())
    })?;
    Ok(found)
}

/// The control message that says which binding's memory the bytes of a send are in: `SCM_DEVMEM_DMABUF` with its number.
pub fn sent_from(binding: u32) -> [u64; 3] {
    let kinds = [SOL_SOCKET, DMABUF].map(i32::to_ne_bytes).concat();
    let mut second = [0; 8];
    second.copy_from_slice(&kinds);
    let mut third = [0; 8];
    third[..4].copy_from_slice(&binding.to_ne_bytes());
    let len = (HEADER + size_of::<u32>()) as u64;
    [len, u64::from_ne_bytes(second), u64::from_ne_bytes(third)]
}

fn stretch(kind: i32, data: &[u8; CMSG]) -> Stretch {
    let word = |at: usize| u32::from_ne_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]]);
    let mut offset = [0; 8];
    offset.copy_from_slice(&data[..8]);
    match kind {
        LINEAR => Stretch::Linear(word(8)),
        _ => Stretch::Device {
            fragment: Fragment {
                offset: u64::from_ne_bytes(offset),
                len: word(8),
                token: word(12),
            },
            binding: word(16),
        },
    }
}

/// A control buffer makes no sense.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed;

/// The value of [`DONTNEED`]: `struct dmabuf_token`s.
pub fn dont_need(ranges: &[Range]) -> Vec<u8> {
    let words = ranges.iter().flat_map(|range| [range.start, range.count]);
    words.flat_map(u32::to_ne_bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(level: i32, kind: i32, data: &[u8]) -> Vec<u8> {
        let len = (HEADER + data.len()) as u64;
        let mut bytes = len.to_ne_bytes().to_vec();
        bytes.extend(level.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(data);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes
    }

    fn of(offset: u64, rest: [u32; 4]) -> Vec<u8> {
        let mut bytes = offset.to_ne_bytes().to_vec();
        bytes.extend(rest.iter().flat_map(|word| word.to_ne_bytes()));
        bytes
    }

    #[test]
    fn what_the_kernel_tells_is_read_in_order() {
        let control = [
            message(SOL_SOCKET, LINEAR, &of(0, [100, 0, 0, 0])),
            message(SOL_SOCKET, 29, &[0; 16]),
            message(SOL_SOCKET, DMABUF, &of(0x1_0000_2000, [4096, 7, 3, 0])),
        ];
        let fragment = Fragment {
            offset: 0x1_0000_2000,
            len: 4096,
            token: 7,
        };
        let device = Stretch::Device {
            fragment,
            binding: 3,
        };
        let found = stretches(&control.concat());
        assert_eq!(found, Ok(vec![Stretch::Linear(100), device]));
    }

    #[test]
    fn a_message_that_is_cut_off_is_no_message() {
        let whole = message(SOL_SOCKET, DMABUF, &of(0, [1, 2, 3, 0]));
        assert_eq!(stretches(&whole[..whole.len() - 8]), Err(Malformed));
        let short = message(SOL_SOCKET, DMABUF, &[0; 20]);
        assert_eq!(stretches(&short), Err(Malformed));
        let mut zero = whole;
        zero[..8].copy_from_slice(&0_u64.to_ne_bytes());
        assert_eq!(stretches(&zero), Err(Malformed));
    }

    /// `struct sock_extended_err`.
    fn error(origin: u8, code: u8, [errno, info, data]: [u32; 3]) -> Vec<u8> {
        let mut bytes = errno.to_ne_bytes().to_vec();
        bytes.extend([origin, 0, code, 0]);
        bytes.extend([info, data].into_iter().flat_map(u32::to_ne_bytes));
        bytes
    }

    #[test]
    fn sends_that_are_over_are_told_from_other_errors() {
        let control = [
            message(41, 25, &error(OF_ZEROCOPY, 0, [0, 3, 9])),
            message(0, 11, &error(2, 1, [111, 4, 4])),
            message(0, 11, &error(OF_ZEROCOPY, 1, [0, u32::MAX, 0])),
        ];
        let over = |first, last, copied| Over {
            first,
            last,
            copied,
        };
        let expected = vec![over(3, 9, false), over(u32::MAX, 0, true)];
        assert_eq!(super::over(&control.concat()), Ok(expected));
        let short = message(0, 11, &[0; 8]);
        assert_eq!(super::over(&short), Err(Malformed));
    }

    #[test]
    fn a_send_names_its_binding_as_the_kernel_reads_it() {
        let words = sent_from(77);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        assert_eq!(bytes, message(SOL_SOCKET, DMABUF, &77_u32.to_ne_bytes()));
        assert_eq!(words[0], 20);
    }

    #[test]
    fn ranges_are_laid_out_as_the_kernel_wants_them() {
        let bytes = dont_need(&[Range { start: 5, count: 2 }, Range { start: 9, count: 1 }]);
        let words: Vec<u32> = bytes
            .chunks(4)
            .map(|word| u32::from_ne_bytes(word.try_into().unwrap()))
            .collect();
        assert_eq!(words, [5, 2, 9, 1]);
    }

    proptest! {
        #[test]
        fn whatever_comes_is_read_or_refused(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..200),
            len in 0_u64..64,
            kind in 77..81_i32,
        ) {
            if let Some(header) = bytes.first_chunk_mut::<HEADER>() {
                header[..8].copy_from_slice(&len.to_ne_bytes());
                header[8..12].copy_from_slice(&SOL_SOCKET.to_ne_bytes());
                header[12..].copy_from_slice(&kind.to_ne_bytes());
            }
            let _ = (stretches(&bytes), over(&bytes));
        }
    }
}
