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
    /// So many bytes in the caller's buffer, behind what was put there before.
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
pub fn stretches(mut control: &[u8]) -> Result<Vec<Stretch>, Malformed> {
    let mut found = Vec::new();
    while let Some(header) = control.first_chunk::<HEADER>() {
        let (len, rest) = header.split_first_chunk::<8>().ok_or(Malformed)?;
        let len = usize::try_from(u64::from_ne_bytes(*len)).map_err(|_| Malformed)?;
        let level = i32::from_ne_bytes([rest[0], rest[1], rest[2], rest[3]]);
        let kind = i32::from_ne_bytes([rest[4], rest[5], rest[6], rest[7]]);
        let data = control.get(HEADER..len).ok_or(Malformed)?;
        if level == SOL_SOCKET && (kind == LINEAR || kind == DMABUF) {
            found.push(stretch(kind, data.first_chunk().ok_or(Malformed)?));
        }
        control = control.get(len.next_multiple_of(8)..).unwrap_or_default();
    }
    Ok(found)
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
            let _ = stretches(&bytes);
        }
    }
}
