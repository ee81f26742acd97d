//! Things with small numbers, which are used again.

/// A table of things.
#[derive(Debug)]
pub(super) struct Slab<T> {
    slots: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab {
            slots: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Slab<T> {
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number that the next thing gets.
    pub(super) fn next_key(&self) -> u32 {
        let new = || u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
        self.free.last().copied().unwrap_or_else(new)
    }

    pub(super) fn insert(&mut self, thing: T) -> u32 {
        let key = self.next_key();
        match self.free.pop() {
            Some(free) => self.slots[free as usize] = Some(thing),
            None => self.slots.push(Some(thing)),
        }
        key
    }

    pub(super) fn get_mut(&mut self, key: u32) -> Option<&mut T> {
        self.slots.get_mut(key as usize)?.as_mut()
    }

    pub(super) fn remove(&mut self, key: u32) -> Option<T> {
        let thing = self.slots.get_mut(key as usize)?.take()?;
        self.free.push(key);
        Some(thing)
    }
}
