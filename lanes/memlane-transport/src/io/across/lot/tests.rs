use super::super::memory::Holder;
use super::super::{Hold, SharedMemory};
use super::*;
use rustix::fs::{MemfdFlags, Mode, OFlags, ftruncate, memfd_create, open};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::atomic::AtomicUsize;

/// Memory with room for `pages` pages to lend.
fn file(pages: usize) -> OwnedFd {
    let file = memfd_create("memlane-test", MemfdFlags::CLOEXEC).expect("memory");
    ftruncate(&file, (MEMORY_AT + pages * PAGE) as u64).expect("memory");
    file
}

/// The same memory, as a machine has it.
fn at(file: &OwnedFd, machine: u64) -> Arc<SharedMemory> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let again = open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).expect("memory");
    let holder = Holder { machine, boot: 1 };
    Arc::new(SharedMemory::map(again, holder).expect("memory"))
}

fn server(file: &OwnedFd) -> Arc<Lot> {
    Lot::take(at(file, 1), PAGE).expect("nobody else's")
}

/// A server that began so long ago that nothing of the former one is under way.
fn later(file: &OwnedFd) -> Arc<Lot> {
    let mut lot = server(file);
    let began = Instant::now().checked_sub(GRACE).expect("a later time");
    Arc::get_mut(&mut lot).expect("nobody else's").began = began;
    lot
}

fn is_full(lot: &Arc<Lot>) -> bool {
    lot.lend(PAGE).err() == Some(Errno(libc::ENOSPC))
}

#[test]
fn extents_do_not_overlap_and_what_comes_back_is_lent_again() {
    let file = file(64);
    let lot = server(&file);
    let mut lent: Vec<Lent> = Vec::new();
    let mut state = 7_u64;
    for _ in 0..2000 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let number = usize::try_from(state >> 33).expect("it fits");
        match lot.lend(1 + number % (8 * PAGE)) {
            Ok(one) => lent.push(one),
            Err(full) => {
                assert_eq!(full, Errno(libc::ENOSPC));
                drop(lent.swap_remove(number % lent.len()));
            }
        }
        let range = |one: &Lent| one.at..one.at + one.bytes.len();
        let mut ranges: Vec<_> = lent.iter().map(range).collect();
        ranges.sort_by_key(|range| range.start);
        assert!(ranges.windows(2).all(|two| two[0].end <= two[1].start));
        assert!(
            ranges
                .iter()
                .all(|range| range.start >= MEMORY_AT && range.end <= lot.len())
        );
        assert_eq!(lot.used(), ranges.iter().map(ExactSizeIterator::len).sum());
    }
    lent.clear();
    assert_eq!(lot.used(), 0);
    drop(lot.lend(64 * PAGE).expect("all of it"));
}

#[test]
fn memory_that_is_lent_again_is_all_zeros() {
    let file = file(1);
    let lot = server(&file);
    for _ in 0..2 {
        let lent = lot.lend(PAGE).expect("memory");
        let mut bytes = [0xFF_u8; PAGE];
        // SAFETY: the array has a page.
        unsafe {
            assert!(lent.bytes().copy_out(0, bytes.as_mut_ptr(), PAGE));
            assert_eq!(bytes, [0; PAGE]);
            assert!(lent.bytes().copy_in(0, [0xAA_u8; PAGE].as_ptr(), PAGE));
        }
    }
}

#[test]
fn an_offer_is_taken_once_and_not_after_it_was_withdrawn() {
    let file = file(2);
    let (lot, guest) = (server(&file), at(&file, 2));
    let lent = lot.lend(PAGE).expect("memory");
    let place = lent.place().expect("a place");
    let hold = Hold::claim(&guest, place, PAGE).expect("an offer");
    assert!(Hold::claim(&at(&file, 3), place, PAGE).is_err());
    drop(lent);
    assert_eq!(lot.used(), PAGE, "the guest has it still");
    drop(hold);
    assert!(!lot.look());
    assert_eq!(lot.used(), 0);

    let lent = lot.lend(PAGE).expect("memory");
    let place = lent.place().expect("a place");
    drop(lent);
    assert!(
        Hold::claim(&guest, place, PAGE).is_err(),
        "it was withdrawn"
    );
    let next = lot.lend(PAGE).expect("memory");
    assert!(
        Hold::claim(&guest, place, PAGE).is_err(),
        "that was another"
    );
    let outside = Place {
        at: MEMORY_AT + PAGE,
        ..next.place().expect("a place")
    };
    assert!(Hold::claim(&guest, outside, 2 * PAGE).is_err());
}

/// One that is paused before its claim comes too late for the offer, and finds the extent another's.
#[test]
fn nobody_signs_for_what_another_has_claimed() {
    const ROUNDS: usize = 3000;
    let file = file(1);
    let lot = server(&file);
    let lent = lot.lend(PAGE).expect("memory");
    let guests = [2, 3].map(|machine| at(&file, machine));
    let barrier = std::sync::Barrier::new(2);
    let (place, wrong) = (Mutex::new(None), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for guest in &guests {
            let (lent, barrier, place, wrong) = (&lent, &barrier, &place, &wrong);
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    if barrier.wait().is_leader() {
                        *lock(place) = Some(lent.place().expect("a place"));
                    }
                    barrier.wait();
                    let place = lock(place).expect("told");
                    let hold = Hold::claim(guest, place, PAGE);
                    barrier.wait();
                    if hold.is_ok() {
                        let signed = guest.extent(place.number).machine.load(Acquire);
                        wrong.fetch_add(usize::from(signed != guest.me().holder.machine), Relaxed);
                    }
                    barrier.wait();
                }
            });
        }
    });
    assert_eq!(wrong.into_inner(), 0, "of {ROUNDS}");
}

#[test]
fn who_has_let_go_may_claim_anew_what_the_server_still_has() {
    let file = file(1);
    let (lot, guest) = (server(&file), at(&file, 2));
    let lent = lot.lend(PAGE).expect("memory");
    for _ in 0..2 {
        let place = lent.place().expect("a place");
        let hold = Hold::claim(&guest, place, PAGE).expect("an offer");
        assert_eq!(lent.place().expect("a place"), place, "it is held");
        assert!(!lent.is_departed());
        drop(hold);
    }
    let hold = Hold::claim(&guest, lent.place().expect("a place"), PAGE).expect("an offer");
    hold.departs();
    drop(hold);
    assert!(lent.is_departed());
}

#[test]
fn a_successor_waits_for_what_may_still_be_written() {
    let file = file(3);
    let guest = at(&file, 2);
    let (first, mut held) = (server(&file), None);
    let lent: Vec<Lent> = (0..3).map(|_| first.lend(PAGE).expect("memory")).collect();
    let place = |n: usize| lent[n].place().expect("a place");
    held.replace(Hold::claim(&guest, place(0), PAGE).expect("an offer"));
    // A guest that is stopped between its claim and its signature.
    guest.extent(place(1).number).claim.store(777, Relaxed);
    // The server is killed: nothing is given back.
    lent.into_iter().for_each(std::mem::forget);
    assert!(Lot::take(at(&file, 1), PAGE).is_err(), "it lives");
    flock(first.memory.file(), FlockOperation::Unlock).expect("as the kernel does");

    let second = server(&file);
    assert!(is_full(&second), "a disk may still be writing");
    drop(second);
    let second = later(&file);
    let free = second.lend(PAGE).expect("that which nobody had claimed");
    assert!(is_full(&second));
    drop(held);
    let freed = second
        .lend(PAGE)
        .expect("that which the guest has let go of");
    assert!(is_full(&second), "that which it holds without a signature");
    drop((free, freed, first));
}

#[test]
fn a_machine_clears_up_after_its_own_processes_and_nobody_else_s() {
    let file = file(1);
    let (lot, guest) = (server(&file), at(&file, 2));
    let lent = lot.lend(PAGE).expect("memory");
    let place = lent.place().expect("a place");
    let hold = Hold::claim(&guest, place, PAGE).expect("an offer");
    let extent = guest.extent(place.number);
    let is_held = || {
        let claim = extent.claim.load(Acquire);
        claim > DEPARTED
    };
    guest.sweep();
    assert!(is_held(), "it lives");
    // More than `/proc/sys/kernel/pid_max` can say.
    extent.process.store(1 << 31, Relaxed);
    let namespace = extent.namespace.swap(1, Relaxed);
    guest.sweep();
    assert!(is_held(), "it is of another namespace");
    extent.namespace.store(namespace, Relaxed);
    at(&file, 3).sweep();
    assert!(is_held(), "it is of another machine");
    guest.sweep();
    assert!(lent.is_departed());
    drop(hold);
    assert!(lent.is_departed(), "too late");
}
