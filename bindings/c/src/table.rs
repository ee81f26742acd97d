//! Handles. To C they are pointers to something opaque; they are numbers of a table here, and each call looks them up.
//! So NULL, a number that is none, one of another kind and one that was destroyed before are told apart from good ones.
//!
//! ```text
//! handle   odd (no address of anything) │ generation: 39 bits │ place: 24 bits │ 1
//! ```

use crate::fault::{Code, Fault, Result};
use memlane_wait::mutex;
use std::any::Any;
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Something that has handles. Each type says so in its own file.
pub(crate) trait Held: Any + Send + Sync {
    /// What messages call it: the name of its type in C.
    const NAME: &str;
}

/// What a handle stands for.
type Object = Arc<dyn Any + Send + Sync>;

#[derive(Debug)]
struct TableSlot {
    generation: usize,
    object: Option<Object>,
}

#[derive(Debug)]
struct Table {
    places: Vec<TableSlot>,
    free: Vec<usize>,
}

static TABLE: RwLock<Table> = RwLock::new(Table {
    places: Vec::new(),
    free: Vec::new(),
});

const PLACE_BITS: u32 = 24;

fn read() -> RwLockReadGuard<'static, Table> {
    mutex::read(&TABLE)
}

fn write() -> RwLockWriteGuard<'static, Table> {
    mutex::write(&TABLE)
}

fn handle(generation: usize, place: usize) -> usize {
    (generation << PLACE_BITS | place) << 1 | 1
}

/// A handle for it.
pub(crate) fn insert<T: Held>(held: Arc<T>) -> Result<usize> {
    let object: Option<Object> = Some(held);
    let mut table = write();
    if let Some(at) = table.free.pop() {
        let place = &mut table.places[at];
        place.object = object;
        return Ok(handle(place.generation, at));
    }
    let at = table.places.len();
    if at >> PLACE_BITS != 0 {
        return Err(Fault::new(Code::TooMany, "too many handles are open"));
    }
    table.places.push(TableSlot {
        generation: 0,
        object,
    });
    Ok(handle(0, at))
}

impl Table {
    fn find<T: Held>(&self, number: usize) -> Option<(usize, Arc<T>)> {
        let at = number >> 1 & ((1 << PLACE_BITS) - 1);
        let place = self.places.get(at)?;
        let same = number == handle(place.generation, at);
        let object = place.object.as_ref().filter(|_| same)?;
        Some((at, Arc::clone(object).downcast().ok()?))
    }
}

fn no_such<T: Held>(number: usize) -> Fault {
    let words = match number {
        0 => format!("NULL instead of a {}", T::NAME),
        _ => format!("no {} has this handle: destroyed already?", T::NAME),
    };
    Fault::new(Code::Handle, words)
}

/// What a handle stands for.
pub(crate) fn get<T: Held>(number: usize) -> Result<Arc<T>> {
    let found = read().find(number).map(|(_, held)| held);
    found.ok_or_else(|| no_such::<T>(number))
}

/// The handle is none from now on. What it stood for ends when nobody uses it any more.
pub(crate) fn remove<T: Held>(number: usize) -> Result<Arc<T>> {
    let mut table = write();
    let (at, held) = table.find(number).ok_or_else(|| no_such::<T>(number))?;
    let place = &mut table.places[at];
    place.generation += 1;
    place.object = None;
    table.free.push(at);
    Ok(held)
}

#[cfg(test)]
mod tests {
    use super::*;
    use memlane_devmem::io::{Binding, Owned};
    use std::net::TcpListener;

    fn listener() -> Arc<TcpListener> {
        Arc::new(TcpListener::bind("127.0.0.1:0").unwrap())
    }

    #[test]
    fn a_handle_is_good_once_and_for_its_kind_alone() {
        let one = insert(listener()).unwrap();
        assert_eq!(one & 1, 1, "no address");
        assert!(get::<TcpListener>(one).is_ok());
        assert!(get::<Binding>(one).is_err(), "another kind");
        assert!(remove::<Owned>(one).is_err(), "another kind");
        assert!(remove::<TcpListener>(one).is_ok());
        assert!(remove::<TcpListener>(one).is_err(), "twice");
        let two = insert(listener()).unwrap();
        assert_ne!(one, two, "its place, and not its handle");
        assert!(get::<TcpListener>(one).is_err());
        for strange in [0, 2, two ^ 1, two ^ 1 << 60, usize::MAX] {
            assert!(get::<TcpListener>(strange).is_err(), "{strange:#x}");
        }
        remove::<TcpListener>(two).unwrap();
    }
}
