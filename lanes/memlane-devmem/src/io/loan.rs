//! Chunks for payload that does not come by a stream: a block device's, an interface's of user space.

use super::Binding;
use std::sync::Arc;

/// A chunk of a region that somebody fills himself. Free again when dropped, by whomever.
#[derive(Debug)]
pub struct Loan {
    binding: Arc<Binding>,
    chunk: u32,
}

impl Binding {
    /// A chunk that nobody has; `None`: there is none until something comes back.
    pub fn lend(self: &Arc<Binding>) -> Option<Loan> {
        let chunk = self.pool().chunks.take()?;
        let binding = Arc::clone(self);
        Some(Loan { binding, chunk })
    }
}

impl Loan {
    /// Where it begins, in bytes from the region's beginning.
    pub fn offset(&self) -> u64 {
        self.binding.pool().chunks.offset(self.chunk)
    }

    /// Its bytes.
    pub fn len(&self) -> u32 {
        self.binding.pool().chunks.size()
    }

    /// Never.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The region that it is of.
    pub fn binding(&self) -> &Arc<Binding> {
        &self.binding
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.binding.pool().chunks.give(self.chunk);
        self.binding.tell();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DeviceRegion;
    use std::collections::BTreeSet;

    #[test]
    fn loans_are_all_of_a_region_s_chunks_and_come_back_from_any_thread() {
        let region = DeviceRegion::create(&"memfd:64K".parse().unwrap()).unwrap();
        let binding = Binding::new(region, 4096).unwrap();
        let loans: Vec<_> = std::iter::from_fn(|| binding.lend()).collect();
        let places: BTreeSet<_> = loans.iter().map(Loan::offset).collect();
        assert_eq!(places, (0..16).map(|n| n * 4096).collect());
        assert!(loans.iter().all(|loan| loan.len() == 4096));
        assert_eq!(binding.counts().free, 0);
        std::thread::spawn(move || drop(loans)).join().unwrap();
        assert_eq!(binding.counts().free, 16);
    }
}
