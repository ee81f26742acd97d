//! Counts in the program's message headers (`msghdr`, `cmsghdr`), as its libc lays them out.
//!
//! glibc's are words, as the kernel's. musl's are half a word wide; the other half is padding, where anything may lie.

use core::sync::atomic::{AtomicBool, Ordering};

static PADDED: AtomicBool = AtomicBool::new(false);

/// Says whether half of each count is padding. To be called before the first message.
pub fn set_padded(padded: bool) {
    PADDED.store(padded, Ordering::Relaxed);
}

/// A count, read as a word, without its padding.
#[inline]
pub fn count(word: usize) -> usize {
    without_padding(word, PADDED.load(Ordering::Relaxed))
}

fn without_padding(word: usize, padded: bool) -> usize {
    match padded {
        true => word & 0xffff_ffff,
        false => word,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_in_the_padding_is_not_counted() {
        let junk = 0xdead_beef_0000_0003;
        assert_eq!(without_padding(junk, true), 3);
        assert_eq!(without_padding(junk, false), junk);
    }
}
