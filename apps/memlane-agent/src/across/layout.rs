//! Where things lie in a region that several machines share. `docs/formats/ivshmem.md` has the same as a table.
//!
//! | word | written by | read by | ordering |
//! |---|---|---|---|
//! | [`Head`] | whoever finds a region of zeros, the same values whoever it is | all | `magic` last, release/acquire |
//! | [`Participant`] | the agent whose place it is; `epoch` also by one that claims it | all | `epoch` by compare and exchange |
//! | [`Extent::receiver`] | the receiver's agent | all | compare and exchange: who wins has the extent |
//! | [`Extent::sender`] | the sender's agent, while it uses the extent; before and after that, the receiver's | both | compare and exchange |
//! | `bond`, `receiver_pid`, `receiver_since` | the receiver's agent, before it tells of the extent | both agents | before `sender` becomes 0 |
//! | `sender_bond`, `sender_pid`, `sender_since` | the sender's agent | the two agents, after a restart | after `sender` |
//! | [`Ring::sent`] | the sending agent | the receiving agent | release/acquire: the message below it is complete |
//! | [`Ring::taken`] | the receiving agent | the sending agent | release/acquire: the place below it may be used again |
//!
//! Each participant can physically write all of it, at any time. So every word is read once and then checked, and an agent
//! that needs to know what it has done itself looks at its own memory, not here.

use core::sync::atomic::AtomicU64;
use memlane_core::layout::{RING_MIN, chunk_len};

/// "MLACROSS", little endian: what a region of memlane's begins with.
pub const MAGIC: u64 = u64::from_le_bytes(*b"MLACROSS");
/// The version of everything in this file.
pub const VERSION: u64 = 1;
/// The most machines that take part.
pub const MACHINES: usize = 32;
/// The most extents of a region.
pub const EXTENTS: usize = 1024;
/// Messages that a ring holds.
pub const MESSAGES: usize = 16;
/// 64-bit words of a message.
pub const MESSAGE_WORDS: usize = 64;
/// Bytes of a machine's name that others see.
pub const NAME_LEN: usize = 64;

/// Offset of the first [`Participant`].
pub const PARTICIPANTS_AT: usize = 4096;
/// Offset of the first [`Extent`].
pub const EXTENTS_AT: usize = PARTICIPANTS_AT + MACHINES * size_of::<Participant>();
/// Offset of the first [`Ring`]: that of messages from machine `f` to machine `t` is number `f × 32 + t`.
pub const RINGS_AT: usize = EXTENTS_AT + EXTENTS * size_of::<Extent>();
/// Offset of the first extent's memory.
pub const MEMORY_AT: usize =
    (RINGS_AT + MACHINES * MACHINES * size_of::<Ring>()).next_multiple_of(GRAIN);
/// An extent's length is a multiple of this many bytes.
pub const GRAIN: usize = 65_536;
/// The smallest region, in bytes: two extents of the smallest rings, one for each of two processes.
pub const REGION_LEAST: usize = MEMORY_AT + 2 * extent_len(RING_MIN);

/// Rings are as large as leaves room for this many extents, which serve half as many pairs of processes …
const EXTENTS_WANTED: usize = 16;
/// … and no larger than this, in bytes.
const RING_MOST: usize = 256 * 1024;

/// What a region begins with. The rest of its page is zero.
#[repr(C)]
pub struct Head {
    /// [`MAGIC`], once the others are there.
    pub magic: AtomicU64,
    /// [`VERSION`].
    pub version: AtomicU64,
    /// Bytes of the region.
    pub len: AtomicU64,
}

/// A machine that takes part.
#[repr(C, align(128))]
pub struct Participant {
    /// A random number of the agent's that runs there; 0: the place is free.
    pub epoch: AtomicU64,
    /// Grows about ten times a second while the agent runs.
    pub heartbeat: AtomicU64,
    /// Which machine it is, whenever it was booted; both 0: nobody yet.
    pub machine: [AtomicU64; 2],
    /// Names this boot of the machine, in 56 bits; not 0.
    pub boot: AtomicU64,
    /// The machine's name for people, padded with zeros.
    pub name: [AtomicU64; NAME_LEN / 8],
}

/// Memory for one direction of a pair of processes.
#[repr(C, align(128))]
pub struct Extent {
    /// The machine whose process receives here, as [`holder`] writes it; 0: the extent is free.
    pub receiver: AtomicU64,
    /// The machine whose process writes here, as [`holder`] writes it; or [`NOT_TAKEN`], [`LET_GO`].
    pub sender: AtomicU64,
    /// The receiver's name for its bond with the sender: what the sending process knows the receiving one by.
    pub bond: AtomicU64,
    /// The sender's name for it: what the receiving process knows the sending one by.
    pub sender_bond: AtomicU64,
    /// The receiving process, by its number at its machine …
    pub receiver_pid: AtomicU64,
    /// … and the time at which it started, in its kernel's ticks.
    pub receiver_since: AtomicU64,
    /// The sending process, by its number at its machine; 0: none has been told of the extent.
    pub sender_pid: AtomicU64,
    /// When the sending process started, in its kernel's ticks.
    pub sender_since: AtomicU64,
}

/// [`Extent::sender`]: no sender has come yet.
pub const NOT_TAKEN: u64 = 0;
/// [`Extent::sender`]: the sender will not write here any more.
pub const LET_GO: u64 = 1;

/// Messages from one machine to another.
#[repr(C, align(128))]
pub struct Ring {
    /// Messages ever sent.
    pub sent: Line,
    /// Messages ever taken.
    pub taken: Line,
    /// Message `n` lies at `n % MESSAGES`.
    pub messages: [[AtomicU64; MESSAGE_WORDS]; MESSAGES],
}

/// A word with 64 bytes to itself: one machine writes it, and another reads it.
#[repr(C, align(64))]
pub struct Line(pub AtomicU64);

/// How a machine is named in an extent: its place, and its boot.
pub const fn holder(place: usize, boot: u64) -> u64 {
    (place as u64 + 1) << 56 | boot & BOOT_BITS
}

/// The bits of a boot's name.
pub const BOOT_BITS: u64 = (1 << 56) - 1;

/// The place of the machine that such a word names, and its boot. `None`: it names none.
pub fn held_by(word: u64) -> Option<(usize, u64)> {
    let place = usize::try_from(word >> 56).ok()?.checked_sub(1)?;
    (place < MACHINES).then_some((place, word & BOOT_BITS))
}

/// Bytes of an extent whose rings have `ring_size` bytes each.
pub const fn extent_len(ring_size: usize) -> usize {
    chunk_len(ring_size).next_multiple_of(GRAIN)
}

/// How a region's memory is divided: that follows from its length alone, so that nobody can write another division there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Division {
    /// The size of each ring, in bytes.
    pub ring_size: usize,
    /// Extents.
    pub extents: usize,
}

impl Division {
    /// How a region of `region_len` bytes is divided. `None`: it is too small.
    pub fn of(region_len: usize) -> Option<Division> {
        let memory = region_len.checked_sub(MEMORY_AT)?;
        let fits = |&ring_size: &usize| memory / extent_len(ring_size) >= EXTENTS_WANTED;
        let sizes = core::iter::successors(Some(RING_MOST), |size| Some(size / 2));
        let mut sizes = sizes.take_while(|&size| size >= RING_MIN);
        let ring_size = sizes.find(fits).unwrap_or(RING_MIN);
        let extents = (memory / extent_len(ring_size)).min(EXTENTS);
        (extents >= 2).then_some(Division { ring_size, extents })
    }

    /// Where an extent begins in the region.
    pub fn at(&self, extent: usize) -> usize {
        MEMORY_AT + extent * extent_len(self.ring_size)
    }
}

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<Participant>() == 128);
    assert!(offset_of!(Participant, machine) == 16);
    assert!(offset_of!(Participant, boot) == 32);
    assert!(offset_of!(Participant, name) == 40);
    assert!(size_of::<Extent>() == 128);
    assert!(offset_of!(Extent, sender) == 8);
    assert!(offset_of!(Extent, bond) == 16);
    assert!(offset_of!(Extent, receiver_pid) == 32);
    assert!(offset_of!(Extent, sender_pid) == 48);
    assert!(size_of::<Ring>() == 128 + MESSAGES * MESSAGE_WORDS * 8);
    assert!(offset_of!(Ring, taken) == 64);
    assert!(offset_of!(Ring, messages) == 128);
    assert!(EXTENTS_AT == 0x2000);
    assert!(RINGS_AT == 0x2_2000);
    assert!(MEMORY_AT == 0x85_0000);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixty_four_mebibytes_serve_eight_pairs_of_processes_and_larger_regions_have_larger_rings() {
        let of = |mebibytes: usize| Division::of(mebibytes << 20).map(|d| (d.ring_size, d.extents));
        assert_eq!(of(8), None);
        assert_eq!(of(16), Some((16_384, 6)));
        assert_eq!(of(64), Some((32_768, 26)));
        assert_eq!(of(256), Some((131_072, 30)));
        assert_eq!(of(1024), Some((262_144, 62)));
        assert_eq!(of(1 << 20), Some((262_144, EXTENTS)));
        assert!(Division::of(REGION_LEAST).is_some());
        assert!(Division::of(REGION_LEAST - 1).is_none());
    }

    #[test]
    fn no_extent_reaches_over_the_end_of_its_region() {
        for len in [REGION_LEAST, 16 << 20, 100_003 * 4096, 64 << 20, 3 << 30] {
            let division = Division::of(len).unwrap();
            let end = division.at(division.extents - 1) + extent_len(division.ring_size);
            assert!(end <= len, "{len}");
            assert!(division.at(1).is_multiple_of(GRAIN));
        }
    }

    #[test]
    fn what_names_a_machine_is_read_back_and_anything_else_names_none() {
        assert_eq!(held_by(holder(31, 7)), Some((31, 7)));
        for nobody in [NOT_TAKEN, LET_GO, 33 << 56, u64::MAX] {
            assert_eq!(held_by(nobody), None);
        }
    }

    #[test]
    fn the_page_about_regions_tells_the_real_offsets() {
        use core::mem::offset_of;
        let page = include_str!("../../../../docs/formats/ivshmem.md");
        let tells = |row: String| assert!(page.lines().any(|line| line.starts_with(&row)), "{row}");
        for (at, what) in [
            (
                PARTICIPANTS_AT,
                format!("{MACHINES} × {} | machines", size_of::<Participant>()),
            ),
            (
                EXTENTS_AT,
                format!("{EXTENTS} × {} | extents", size_of::<Extent>()),
            ),
            (
                RINGS_AT,
                format!("{} × {} | rings", MACHINES * MACHINES, size_of::<Ring>()),
            ),
            (MEMORY_AT, "| memory".to_owned()),
        ] {
            tells(format!("| {at:#x} | {what}"));
        }
        for (at, len, field) in [
            (offset_of!(Head, version), 8, "version"),
            (offset_of!(Head, len), 8, "bytes of the region"),
            (offset_of!(Participant, epoch), 8, "epoch"),
            (offset_of!(Participant, heartbeat), 8, "heartbeat"),
            (offset_of!(Participant, machine), 16, "which machine"),
            (offset_of!(Participant, boot), 8, "which boot"),
            (offset_of!(Participant, name), NAME_LEN, "its name"),
            (offset_of!(Extent, receiver), 8, "receiver"),
            (offset_of!(Extent, sender), 8, "sender"),
            (offset_of!(Extent, bond), 8, "the receiver's name"),
            (offset_of!(Extent, sender_bond), 8, "the sender's name"),
            (
                offset_of!(Extent, receiver_pid),
                16,
                "the receiving process",
            ),
            (offset_of!(Extent, sender_pid), 16, "the sending process"),
        ] {
            tells(format!("| {at} | {len} | {field}"));
        }
        for mebibytes in [16, 64, 256, 1024] {
            let division = Division::of(mebibytes << 20).unwrap();
            let size = match mebibytes {
                1024 => "1 GiB".to_owned(),
                some => format!("{some} MiB"),
            };
            let Division { ring_size, extents } = division;
            let (ring, pairs) = (ring_size >> 10, extents / 2);
            tells(format!("| {size} | {ring} KiB | {extents} | {pairs} |"));
        }
    }
}
