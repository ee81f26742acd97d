//! What md wrote at the beginning of a copy: its superblock, version 1.2 (`include/uapi/linux/raid/md_p.h`).
//!
//! It is read here, not by `mdadm --examine`, whose text for people says in words what is needed as numbers.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Where the superblock lies, in bytes.
const PLACE: usize = 4096;
const MAGIC: u32 = 0xa92b_4efc;
/// The length without the roles.
const FIXED: usize = 256;
/// Most devices of which roles are told.
const MOST: usize = (4096 - FIXED) / 2;
/// The device is being made up to date.
const RECOVERING: u32 = 2;
/// What is read of a device that has no superblock: more than what md keeps there, so that it reaches into the data.
const BEGINNING: usize = 5 << 20;
/// What is read first, with the superblock in it.
const HEAD: usize = 2 * PLACE;
/// Reads past the page cache begin at multiples of this in memory.
const ALIGNMENT: usize = 4096;

/// What lies at the beginning of a copy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Beginning {
    /// Zeros.
    Blank,
    /// A superblock.
    Member(Superblock),
    /// Something else.
    Strange,
}

/// What a copy says of itself and of the other one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Superblock {
    /// The mirror's identity.
    pub(super) uuid: [u8; 16],
    /// Grows with each change of what is in the mirror.
    pub(super) events: u64,
    /// This copy is up to date, as far as it knows.
    pub(super) is_complete: bool,
    /// It says of another copy that that one is up to date, too.
    pub(super) has_other: bool,
}

impl Superblock {
    /// Whether the other copy was left behind: nothing newer than this copy can be there.
    pub(super) fn is_ahead(&self) -> bool {
        self.is_complete && !self.has_other
    }
}

impl Beginning {
    /// Reads the beginning of a device, past the page cache: md writes past it, too.
    ///
    /// # Errors
    /// The device cannot be read.
    pub(super) fn read(device: &Path) -> io::Result<Beginning> {
        let direct = i32::try_from(rustix::fs::OFlags::DIRECT.bits()).unwrap_or(0);
        let mut file = File::options()
            .read(true)
            .custom_flags(direct)
            .open(device)?;
        let mut memory = vec![0; BEGINNING + ALIGNMENT];
        let begin = memory.as_ptr().align_offset(ALIGNMENT);
        let bytes = &mut memory[begin..begin + BEGINNING];
        file.read_exact(&mut bytes[..HEAD])?;
        if let known @ Beginning::Member(_) = Beginning::of(&bytes[..HEAD]) {
            return Ok(known);
        }
        file.read_exact(&mut bytes[HEAD..])?;
        Ok(Beginning::of(bytes))
    }

    fn of(bytes: &[u8]) -> Beginning {
        match parse(&bytes[PLACE..]) {
            Some(superblock) => Beginning::Member(superblock),
            None if bytes.iter().all(|byte| *byte == 0) => Beginning::Blank,
            None => Beginning::Strange,
        }
    }
}

/// Reads a superblock. `None`: it is none, or its sum is wrong.
fn parse(bytes: &[u8]) -> Option<Superblock> {
    let (magic, version) = (u32_at(bytes, 0)?, u32_at(bytes, 4)?);
    let devices = usize::try_from(u32_at(bytes, 220)?).ok()?;
    if magic != MAGIC
        || version != 1
        || devices > MOST
        || sum(bytes, devices)? != u32_at(bytes, 216)?
    {
        return None;
    }
    let wanted = u32_at(bytes, 92)?;
    let own = usize::try_from(u32_at(bytes, 160)?).ok()?;
    let is_active = |device: usize| {
        let role = bytes.get(FIXED + 2 * device..)?.first_chunk()?;
        Some(u32::from(u16::from_le_bytes(*role)) < wanted)
    };
    let active: Vec<usize> = (0..devices)
        .filter(|device| is_active(*device) == Some(true))
        .collect();
    let is_recovering = u32_at(bytes, 8)? & RECOVERING != 0;
    Some(Superblock {
        uuid: *bytes.get(16..)?.first_chunk()?,
        events: u64::from_le_bytes(*bytes.get(200..)?.first_chunk()?),
        is_complete: active.contains(&own) && !is_recovering,
        has_other: active.iter().any(|device| *device != own),
    })
}

fn u32_at(bytes: &[u8], place: usize) -> Option<u32> {
    let bytes = bytes.get(place..)?.first_chunk()?;
    Some(u32::from_le_bytes(*bytes))
}

/// The sum of a superblock, as `calc_sb_1_csum` of the kernel makes it.
fn sum(bytes: &[u8], devices: usize) -> Option<u32> {
    let all = bytes.get(..FIXED + 2 * devices)?;
    let words = all.chunks(4).enumerate().map(|(number, word)| match word {
        // The sum itself counts as zero.
        _ if number == 216 / 4 => 0,
        [a, b, c, d] => u64::from(u32::from_le_bytes([*a, *b, *c, *d])),
        [a, b] => u64::from(u16::from_le_bytes([*a, *b])),
        _ => 0,
    });
    let sum: u64 = words.sum();
    u32::try_from(((sum & 0xffff_ffff) + (sum >> 32)) & 0xffff_ffff).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A superblock of a mirror of two, as device `own` has it. `roles`: 0 and 1 are places in the mirror.
    fn written(own: u32, features: u32, events: u64, roles: &[u16]) -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        let mut put =
            |place: usize, word: &[u8]| bytes[place..place + word.len()].copy_from_slice(word);
        put(0, &MAGIC.to_le_bytes());
        put(4, &1_u32.to_le_bytes());
        put(8, &features.to_le_bytes());
        put(16, &[7; 16]);
        put(92, &2_u32.to_le_bytes());
        put(160, &own.to_le_bytes());
        put(200, &events.to_le_bytes());
        put(220, &u32::try_from(roles.len()).expect("few").to_le_bytes());
        for (number, role) in roles.iter().enumerate() {
            put(FIXED + 2 * number, &role.to_le_bytes());
        }
        let sum = sum(&bytes, roles.len()).expect("long enough");
        bytes[216..220].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    const FAULTY: u16 = 0xfffe;
    const SPARE: u16 = 0xffff;

    #[test]
    fn a_copy_is_ahead_only_if_it_is_complete_and_says_that_the_other_is_not() {
        let ahead = |own, features, roles: &[u16]| {
            parse(&written(own, features, 3, roles))
                .expect("a superblock")
                .is_ahead()
        };
        assert!(!ahead(0, 1, &[0, 1]), "both are up to date");
        assert!(ahead(0, 1, &[0, FAULTY]));
        assert!(ahead(0, 1, &[0, SPARE]));
        // A third device that took the place of the second one.
        assert!(ahead(2, 1, &[SPARE, SPARE, 1]));
        assert!(!ahead(2, 1, &[0, FAULTY, 1]));
        // It is itself not up to date.
        assert!(!ahead(1, 1 | RECOVERING, &[SPARE, 1]));
        assert!(!ahead(1, 1, &[0, SPARE]));
        assert!(!ahead(1, 1, &[SPARE, SPARE]));
    }

    #[test]
    fn a_beginning_is_blank_a_member_or_strange() {
        let mut bytes = vec![0; 1 << 16];
        assert_eq!(Beginning::of(&bytes), Beginning::Blank);
        bytes[PLACE..PLACE + 4096].copy_from_slice(&written(1, 1, 9, &[0, 1]));
        let Beginning::Member(read) = Beginning::of(&bytes) else {
            panic!("a member");
        };
        assert_eq!((read.events, read.uuid), (9, [7; 16]));
        // One bit has changed.
        bytes[PLACE + 200] ^= 1;
        assert_eq!(Beginning::of(&bytes), Beginning::Strange);
        let mut other = vec![0; 1 << 16];
        other[1080] = 0x53;
        assert_eq!(Beginning::of(&other), Beginning::Strange);
    }

    proptest! {
        #[test]
        fn whatever_lies_there_is_read_without_a_crash(
            devices in any::<u32>(), own in any::<u32>(), cut in 0..4096usize
        ) {
            let mut bytes = written(0, 1, 1, &[0, 1]);
            bytes[220..224].copy_from_slice(&devices.to_le_bytes());
            bytes[160..164].copy_from_slice(&own.to_le_bytes());
            let _ = parse(&bytes);
            let _ = parse(&bytes[..cut]);
        }
    }
}
