//! Frames of the packet lane that can be told apart.

use crate::random::Random;
use memlane_packet::{Frame, Gso, GsoKind, Meta};

/// A frame whose bytes and metadata follow from its number. It has at least 8 bytes.
///
/// # Panics
/// If `len` is less than 8.
pub fn frame(number: u64, len: usize) -> (Vec<u8>, Meta) {
    let mut random = Random(number + 1);
    let mut bytes: Vec<u8> = (0..len).map(|_| random.next().to_le_bytes()[3]).collect();
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    let gso = match number % 5 {
        0 => Some(GsoKind::Tcp4),
        1 => Some(GsoKind::Tcp6),
        _ => None,
    };
    let meta = Meta {
        csum_blank: number.is_multiple_of(2),
        data_validated: number.is_multiple_of(3),
        gso: gso.map(|kind| Gso { kind, size: 1448 }),
    };
    (bytes, meta)
}

/// A private copy of a frame that was lent.
///
/// # Panics
/// If the lengths of its parts do not add up to its own.
pub fn copied(frame: &Frame<'_>) -> (Vec<u8>, Meta) {
    let mut bytes = vec![0; frame.len()];
    assert_eq!(frame.copy_out(0, &mut bytes), bytes.len());
    let parts: usize = frame.parts().map(|part| part.len()).sum();
    assert_eq!(parts, frame.len());
    (bytes, frame.meta())
}
