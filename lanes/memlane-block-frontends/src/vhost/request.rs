//! What a guest asks for, read out of its descriptors: copied once, then checked.
//!
//! Numbers and layouts: Virtual I/O Device (VIRTIO) 1.2, 5.2.6 "Device Operation" of block devices. The frame of a
//! request may be cut into descriptors at any place (2.7.4); only the order "what we read, what we write" is fixed.

use memlane_block::volume::{Flags, Info, Op};
use memlane_core::access::SharedBytes;
use memlane_virtio::chain::Piece;
use memlane_virtio::memory::each_window;
use vm_memory::{Address as _, Bytes as _, GuestAddress, GuestMemoryMmap};

/// Bytes of `struct virtio_blk_req` before the data: type, reserved, sector.
const HEADER: u32 = 16;
/// Bytes of `struct virtio_blk_discard_write_zeroes`: sector, number of sectors, flags.
const SEGMENT: u32 = 16;
/// Bytes that `VIRTIO_BLK_T_GET_ID` fills.
pub(super) const ID_LEN: usize = 20;
/// The unit of every sector number.
pub(super) const SECTOR: u64 = 512;
/// The most descriptors of one request; the guest sees a smaller limit (`seg_max`).
const MAX_DESCRIPTORS: usize = 1024;
/// The most ranges of one discard or write-zeroes; the guest sees this limit.
pub(super) const MAX_RANGES: u32 = 16;

const T_IN: u32 = 0;
const T_OUT: u32 = 1;
const T_FLUSH: u32 = 4;
const T_GET_ID: u32 = 8;
const T_DISCARD: u32 = 11;
const T_WRITE_ZEROES: u32 = 13;
const FLAG_UNMAP: u32 = 1;

pub(super) const S_OK: u8 = 0;
pub(super) const S_IOERR: u8 = 1;
pub(super) const S_UNSUPP: u8 = 2;

/// What is to be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum What {
    /// Data between the volume and the pieces.
    Data {
        op: Op,
        at: u64,
        len: u64,
    },
    Flush,
    Id,
    /// Each: where, how many bytes.
    Ranges {
        op: Op,
        flags: Flags,
        each: Vec<(u64, u64)>,
    },
    /// Nothing: the answer is there.
    Refused(u8),
}

/// A request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Request {
    pub(super) what: What,
    /// Where the data is, or goes.
    pub(super) pieces: Vec<Piece>,
    /// The address of the status byte; `None`: the guest gets no status.
    pub(super) status: Option<GuestAddress>,
}

/// Reads a request. `whole`: does the list of descriptors end where it says so?
pub(super) fn parse(
    memory: &GuestMemoryMmap,
    descriptors: impl Iterator<Item = Piece>,
    whole: impl FnOnce() -> bool,
    info: &Info,
) -> Request {
    let mut pieces: Vec<Piece> = descriptors.take(MAX_DESCRIPTORS + 1).collect();
    let ordered = pieces.is_sorted_by_key(|piece| piece.writable);
    if pieces.len() > MAX_DESCRIPTORS || !ordered || !whole() {
        return Request::refused(S_IOERR, None);
    }
    let mut writes = pieces.split_off(pieces.partition_point(|piece| !piece.writable));
    let mut reads = pieces;
    let Some(status) = take_last(&mut writes) else {
        return Request::refused(S_IOERR, None);
    };
    let refused = |how| Request::refused(how, Some(status));
    let Some(header) = take_first::<{ HEADER as usize }>(memory, &mut reads) else {
        return refused(S_IOERR);
    };
    let kind = u32::from_le_bytes(header[..4].try_into().unwrap_or_default());
    let sector = u64::from_le_bytes(header[8..].try_into().unwrap_or_default());
    let data = |op, pieces: Vec<Piece>| match bytes_of(sector, total(&pieces), info) {
        Some((at, len)) => Request {
            what: What::Data { op, at, len },
            pieces,
            status: Some(status),
        },
        None => refused(S_IOERR),
    };
    match kind {
        T_IN => data(Op::Read, writes),
        T_OUT if info.read_only => refused(S_IOERR),
        T_OUT => data(Op::Write, reads),
        T_FLUSH => Request::new(What::Flush, status),
        T_GET_ID => Request {
            what: What::Id,
            pieces: writes,
            status: Some(status),
        },
        T_DISCARD if info.trim => ranges(memory, reads, status, info, Op::Trim),
        T_WRITE_ZEROES if info.zeroes => ranges(memory, reads, status, info, Op::WriteZeroes),
        _ => refused(S_UNSUPP),
    }
}

impl Request {
    fn new(what: What, status: GuestAddress) -> Request {
        Request {
            what,
            pieces: Vec::new(),
            status: Some(status),
        }
    }

    fn refused(how: u8, status: Option<GuestAddress>) -> Request {
        Request {
            what: What::Refused(how),
            pieces: Vec::new(),
            status,
        }
    }
}

/// Discard or write-zeroes.
fn ranges(
    memory: &GuestMemoryMmap,
    mut reads: Vec<Piece>,
    status: GuestAddress,
    info: &Info,
    op: Op,
) -> Request {
    let refused = |how| Request::refused(how, Some(status));
    let len = total(&reads);
    let count = len / u64::from(SEGMENT);
    let fits =
        len.is_multiple_of(u64::from(SEGMENT)) && (1..=u64::from(MAX_RANGES)).contains(&count);
    if info.read_only || !fits {
        return refused(S_IOERR);
    }
    let mut each = Vec::new();
    let mut unmap = None;
    for _ in 0..count {
        let Some(segment) = take_first::<{ SEGMENT as usize }>(memory, &mut reads) else {
            return refused(S_IOERR);
        };
        let sector = u64::from_le_bytes(segment[..8].try_into().unwrap_or_default());
        let sectors = u32::from_le_bytes(segment[8..12].try_into().unwrap_or_default());
        let flags = u32::from_le_bytes(segment[12..].try_into().unwrap_or_default());
        let known = if op == Op::Trim { 0 } else { FLAG_UNMAP };
        // One request is done one way: segments that differ in the flag are more than any driver sends.
        if flags & !known != 0 || *unmap.get_or_insert(flags) != flags {
            return refused(S_UNSUPP);
        }
        match bytes_of(sector, u64::from(sectors) * SECTOR, info) {
            Some(range) => each.push(range),
            None => return refused(S_IOERR),
        }
    }
    let keep = op == Op::WriteZeroes && unmap == Some(0);
    let flags = if keep { Flags::NO_HOLE } else { Flags::NONE };
    Request::new(What::Ranges { op, flags, each }, status)
}

/// Where these sectors are, if the volume has them.
fn bytes_of(sector: u64, len: u64, info: &Info) -> Option<(u64, u64)> {
    let block = u64::from(info.block);
    let at = sector.checked_mul(SECTOR)?;
    let inside = at.checked_add(len)? <= info.size;
    (inside && len > 0 && at.is_multiple_of(block) && len.is_multiple_of(block))
        .then_some((at, len))
}

fn total(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|piece| u64::from(piece.len)).sum()
}

/// Takes the last byte away.
fn take_last(pieces: &mut Vec<Piece>) -> Option<GuestAddress> {
    while pieces.last().is_some_and(|piece| piece.len == 0) {
        pieces.pop();
    }
    let last = pieces.last_mut()?;
    last.len -= 1;
    last.at.checked_add(u64::from(last.len))
}

/// Takes the first bytes away, and reads them.
fn take_first<const N: usize>(
    memory: &GuestMemoryMmap,
    pieces: &mut Vec<Piece>,
) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    let (mut have, mut empty) = (0, 0);
    for piece in pieces.iter_mut() {
        let n = (N - have).min(piece.len as usize);
        memory
            .read_slice(&mut bytes[have..have + n], piece.at)
            .ok()?;
        let taken = u32::try_from(n).ok()?;
        piece.at = piece.at.checked_add(u64::from(taken))?;
        piece.len -= taken;
        have += n;
        if piece.len > 0 || have == N {
            break;
        }
        empty += 1;
    }
    pieces.drain(..empty);
    (have == N).then_some(bytes)
}

/// Copies `window.len()` bytes between it and the pieces' bytes from `from` on; `false` if they are not all there.
pub(super) fn transfer(
    memory: &GuestMemoryMmap,
    pieces: &[Piece],
    from: u64,
    window: SharedBytes,
    to_guest: bool,
) -> bool {
    let (mut skip, mut at) = (from, 0);
    for piece in pieces {
        let len = u64::from(piece.len);
        if skip >= len {
            skip -= len;
            continue;
        }
        let n = usize::try_from(len - skip)
            .unwrap_or(usize::MAX)
            .min(window.len() - at);
        let Some(start) = piece.at.checked_add(skip) else {
            return false;
        };
        skip = 0;
        let copied = each_window(memory, start, n, |guest| {
            // SAFETY: the guest's window is so long; the copy is one that the compiler does not look into.
            let copied = unsafe {
                if to_guest {
                    window.copy_out(at, guest.as_ptr(), guest.len())
                } else {
                    window.copy_in(at, guest.as_ptr(), guest.len())
                }
            };
            at += guest.len();
            copied
        });
        if !copied {
            return false;
        }
        if at == window.len() {
            break;
        }
    }
    at == window.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use memlane_block::volume::Volume as _;
    use memlane_block::volume::mem::MemVolume;

    const STATUS: u64 = 0x8000;

    fn memory() -> GuestMemoryMmap {
        GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 0x10000)]).unwrap()
    }

    fn info() -> Info {
        MemVolume::new(1 << 20).unwrap().info()
    }

    fn piece(at: u64, len: u32, writable: bool) -> Piece {
        Piece {
            at: GuestAddress(at),
            len,
            writable,
        }
    }

    fn header(memory: &GuestMemoryMmap, kind: u32, sector: u64) {
        memory.write_obj(kind, GuestAddress(0)).unwrap();
        memory.write_obj(sector, GuestAddress(8)).unwrap();
    }

    fn asked(memory: &GuestMemoryMmap, pieces: &[Piece]) -> Request {
        parse(memory, pieces.iter().copied(), || true, &info())
    }

    #[test]
    fn a_frame_that_is_cut_anywhere_says_the_same() {
        let memory = memory();
        header(&memory, T_OUT, 3);
        let whole = [piece(0, 16 + 1024, false), piece(STATUS, 1, true)];
        let cut = [
            piece(0, 0, false),
            piece(0, 5, false),
            piece(5, 12, false),
            piece(17, 1023, false),
            piece(STATUS, 1, true),
            piece(0, 0, true),
        ];
        let (whole, cut) = (asked(&memory, &whole), asked(&memory, &cut));
        let wanted = What::Data {
            op: Op::Write,
            at: 1536,
            len: 1024,
        };
        assert_eq!(
            (&whole.what, whole.status),
            (&wanted, Some(GuestAddress(STATUS)))
        );
        assert_eq!((&cut.what, cut.status), (&wanted, whole.status));
        assert_eq!(total(&cut.pieces), 1024);
    }

    #[test]
    fn what_is_outside_unordered_or_not_whole_is_refused() {
        let memory = memory();
        let status = piece(STATUS, 1, true);
        let data = piece(0x1000, 512, true);
        let head = piece(0, 16, false);
        let refused = |pieces: &[Piece]| match asked(&memory, pieces).what {
            What::Refused(how) => Some(how),
            _ => None,
        };
        header(&memory, T_IN, 2048);
        assert_eq!(
            refused(&[head, data, status]),
            Some(S_IOERR),
            "behind the end"
        );
        header(&memory, T_IN, u64::MAX);
        assert_eq!(refused(&[head, data, status]), Some(S_IOERR));
        header(&memory, T_IN, 0);
        assert_eq!(refused(&[head, data, status]), None);
        assert_eq!(refused(&[status, head]), Some(S_IOERR));
        assert_eq!(refused(&[head]), Some(S_IOERR));
        assert_eq!(refused(&[piece(0, 15, false), data, status]), Some(S_IOERR));
        assert_eq!(
            refused(&[piece(1 << 40, 16, false), data, status]),
            Some(S_IOERR)
        );
        assert_eq!(
            refused(&[head, piece(0x1000, 513, true), status]),
            Some(S_IOERR)
        );
        assert_eq!(refused(&vec![head; 2000]), Some(S_IOERR));
        let cut = parse(&memory, [head, data, status].into_iter(), || false, &info());
        assert_eq!(cut.what, What::Refused(S_IOERR));
        header(&memory, 77, 0);
        assert_eq!(refused(&[head, data, status]), Some(S_UNSUPP));
    }

    #[test]
    fn ranges_are_counted_and_their_flags_known() {
        let memory = memory();
        let status = piece(STATUS, 1, true);
        let pieces = |count: u32| {
            [
                piece(0, 16, false),
                piece(0x1000, 16 * count, false),
                status,
            ]
        };
        let segment = |number: u64, sector: u64, sectors: u32, flags: u32| {
            let at = GuestAddress(0x1000 + number * 16);
            memory.write_obj(sector, at).unwrap();
            memory.write_obj(sectors, at.unchecked_add(8)).unwrap();
            memory.write_obj(flags, at.unchecked_add(12)).unwrap();
        };
        header(&memory, T_WRITE_ZEROES, 0);
        segment(0, 8, 8, 0);
        segment(1, 2040, 8, 0);
        let wanted = What::Ranges {
            op: Op::WriteZeroes,
            flags: Flags::NO_HOLE,
            each: vec![(4096, 4096), (1_044_480, 4096)],
        };
        assert_eq!(asked(&memory, &pieces(2)).what, wanted);
        segment(1, 2041, 8, 0);
        assert_eq!(asked(&memory, &pieces(2)).what, What::Refused(S_IOERR));
        segment(1, 0, 8, 1);
        assert_eq!(asked(&memory, &pieces(2)).what, What::Refused(S_UNSUPP));
        assert_eq!(asked(&memory, &pieces(0)).what, What::Refused(S_IOERR));
        assert_eq!(asked(&memory, &pieces(17)).what, What::Refused(S_IOERR));
        header(&memory, T_DISCARD, 0);
        segment(0, 0, 8, 1);
        assert_eq!(asked(&memory, &pieces(1)).what, What::Refused(S_UNSUPP));
    }
}
