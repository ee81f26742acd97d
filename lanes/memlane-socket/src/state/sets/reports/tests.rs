//! Tests of what the kernel's silence about a set says of a connection.

use super::*;

/// A connection's registrations, of which one is in a set, for input.
struct Scene {
    regs: Box<Regs>,
    set: Box<Ep>,
    other: Box<Ep>,
}

fn new_set() -> Box<Ep> {
    // SAFETY: zeros are valid for all of its fields, which are atomics.
    let set: Box<Ep> = unsafe { Box::new(core::mem::zeroed()) };
    set.reset(7);
    set
}

impl Scene {
    fn new() -> Scene {
        // SAFETY: zeros are valid for all of its fields, which are atomics and null pointers.
        let regs: Box<Regs> = unsafe { Box::new(core::mem::zeroed()) };
        regs.reset(0);
        let scene = Scene {
            regs,
            set: new_set(),
            other: new_set(),
        };
        scene.enter(&scene.set);
        scene
    }

    fn enter(&self, set: &Ep) -> &Reg {
        let reg = self.regs.claim(set).expect("a free one");
        reg.events.store(IN, Ordering::Relaxed);
        reg
    }

    fn reg(&self) -> &Reg {
        &self.regs.own()[0]
    }

    fn report(&self) -> Option<u64> {
        last_asked(&self.regs).map(|asked| asked.report)
    }
}

#[test]
fn each_report_has_a_number_of_its_own_and_so_has_each_set() {
    let scene = Scene::new();
    let first = scene.report().expect("a report");
    assert_eq!(scene.report(), Some(first), "nothing has happened");
    count_report(&scene.set);
    let second = scene.report().expect("a report");
    count_report(&scene.other);
    assert_eq!(scene.report(), Some(second), "that was another set");
    scene.set.reset(7);
    let of_a_new_set = scene.report().expect("a report");
    let other = scene.other.report.load(Ordering::Relaxed);
    let all = [first, second, of_a_new_set, other];
    let different: std::collections::BTreeSet<u64> = all.into();
    assert_eq!(different.len(), all.len(), "{all:?}");
}

#[test]
fn the_kernel_s_silence_says_nothing_of_a_connection_in_no_set_or_in_two() {
    let scene = Scene::new();
    assert!(scene.report().is_some());
    scene.enter(&scene.other);
    assert_eq!(scene.report(), None, "it is in two sets");
    for reg in scene.regs.own() {
        reg.ep.store(core::ptr::null_mut(), Ordering::Relaxed);
    }
    assert_eq!(scene.report(), None, "it is in no set");
}

#[test]
fn the_kernel_s_silence_says_nothing_if_it_does_not_tell_this_process_of_input() {
    let scene = Scene::new();
    let wanted = &scene.reg().events;
    for events in [0, OUT, IN | ONESHOT, IN | EXCLUSIVE] {
        wanted.store(events, Ordering::Relaxed);
        assert_eq!(scene.report(), None, "{events:#x}");
    }
    for events in [IN, IN | OUT, IN | ET] {
        wanted.store(events, Ordering::Relaxed);
        assert!(scene.report().is_some(), "{events:#x}");
    }
    for bit in [REG_DIRTY, REG_ABSENT] {
        mark(scene.reg(), bit);
        assert_eq!(scene.report(), None, "the kernel does not know a change");
        unmark(scene.reg(), bit);
    }
    scene.set.inherited.store(1, Ordering::Relaxed);
    assert_eq!(scene.report(), None, "the set is another process's, too");
}

#[test]
fn a_question_is_recent_for_a_while() {
    let asked = Asked {
        report: 1,
        at: 5000,
    };
    assert!(asked.is_within(10, 5000), "just now");
    assert!(asked.is_within(10, 5009));
    assert!(!asked.is_within(10, 5010));
    assert!(!asked.is_within(10, 4999), "another CPU's clock is behind");
}
