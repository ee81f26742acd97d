//! For `verify/fuzz`: extents, as a volume on another machine tells them.

use super::seek::Seek;
use memlane_block::volume::Info;

/// Bytes of the volume.
const SIZE: u64 = 1 << 33;

/// Eight bytes say where the search begins and what is looked for; the others are answers, each as long as it may be
/// (1024 bytes), one after another. True if something is found.
///
/// # Panics
/// The search does not lead on, or leads out of the volume.
#[must_use]
pub fn extents(bytes: &[u8]) -> bool {
    let Some((first, answers)) = bytes.split_at_checked(8) else {
        return false;
    };
    let first = u64::from_le_bytes(first.try_into().unwrap_or_default());
    let (hole, from) = (first & 1 != 0, (first >> 1) % SIZE);
    let info = Info {
        size: SIZE,
        block: 512,
        preferred: 4096,
        max_io: 65536,
        max_trim: 0,
        read_only: false,
        cached: false,
        trim: false,
        zeroes: false,
        extents: true,
    };
    let mut seek = Seek::new(hole, from, &info);
    for answer in answers.chunks(1024) {
        let (before, len) = seek.asks();
        assert!(len > 0 && before + u64::from(len) <= SIZE);
        if !seek.hears(answer) {
            break;
        }
        assert!(seek.asks().0 > before);
    }
    match seek.found() {
        Ok(at) => {
            let at = u64::try_from(at).expect("not negative");
            assert!((from..=SIZE).contains(&at));
            at < SIZE
        }
        Err(_) => false,
    }
}
