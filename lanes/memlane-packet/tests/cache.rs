//! The table of kept mappings against a model, and the series' own troubles one by one.

use memlane_core::access::SharedBytes;
use memlane_packet::engine::cache::{Cache, Found, MappingLease};
use memlane_packet::engine::grant::{Access, Extent, Grant, GrantError, Reach};
use memlane_packet::error::Detach;
use memlane_packet::layout::{GTF_ORDER_SHIFT, GTF_PERMIT_ACCESS, GTF_READONLY, GrantEntry, PAGE};
use memlane_sys::{Errno, Result};
use proptest::prelude::*;
use std::collections::HashMap;
use std::ptr::NonNull;

const PAGES: usize = 64;
const GRANTS: u32 = 48;

/// A front's memory of which we know what is mapped. A mapping's address is made up: nobody looks behind it.
#[derive(Default)]
struct Model {
    regions: Vec<Extent>,
    /// By the address that was given out.
    mapped: HashMap<usize, Grant>,
    next: usize,
    fails: bool,
}

impl Model {
    fn new() -> Model {
        Model {
            regions: [true, false]
                .map(|writable| Extent {
                    len: PAGES * PAGE,
                    writable,
                })
                .into(),
            next: 1,
            ..Model::default()
        }
    }
}

impl Reach for Model {
    fn regions(&self) -> &[Extent] {
        &self.regions
    }

    fn map(&mut self, grant: Grant, _: Access) -> Result<SharedBytes> {
        if self.fails {
            return Err(Errno(12));
        }
        let address = self.next * 0x10_0000;
        self.next += 1;
        self.mapped.insert(address, grant);
        let base = NonNull::new(address as *mut u8).expect("not zero");
        // SAFETY: nothing is ever copied through it.
        Ok(unsafe { SharedBytes::new(base, grant.len) })
    }

    fn unmap(&mut self, window: SharedBytes) {
        let was = self.mapped.remove(&(window.as_ptr() as usize));
        assert!(was.is_some(), "unmapped twice");
    }

    fn read(&mut self, _: Grant, _: usize, _: &mut [u8]) -> Result<()> {
        unreachable!("the table copies nothing")
    }

    fn write(&mut self, _: Grant, _: usize, _: &[u8]) -> Result<()> {
        unreachable!("the table copies nothing")
    }
}

fn entry(frame: u32) -> u64 {
    GrantEntry {
        flags: GTF_PERMIT_ACCESS,
        region: 0,
        frame,
    }
    .word()
}

#[derive(Clone, Debug)]
enum Step {
    LookUp { gref: u32, frame: u32, hold: bool },
    Release(usize),
    Sweep(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..GRANTS, 0..3_u32, any::<bool>()).prop_map(|(gref, frame, hold)| {
            // Mostly the same page, sometimes another: a reference that was granted anew.
            let frame = if frame == 0 { 1 } else { gref };
            Step::LookUp { gref, frame, hold }
        }),
        3 => any::<prop::sample::Index>().prop_map(|i| Step::Release(i.index(1000))),
        1 => (0..3000_u64).prop_map(Step::Sweep),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_lent_is_what_the_table_says_and_stays(
        cap in 0..40_u32, steps in prop::collection::vec(step(), 1..400),
    ) {
        let mut reach = Model::new();
        let mut cache = Cache::new(Access::Write, cap, GRANTS);
        let mut lent: Vec<(MappingLease, usize, Grant)> = Vec::new();
        let mut now = 0;
        for step in steps {
            match step {
                Step::LookUp { gref, frame, hold } => {
                    match cache.look_up(gref, entry(frame), &mut reach).unwrap() {
                        Found::Mapped(held, window) => {
                            let at = window.as_ptr() as usize;
                            let grant = reach.mapped.get(&at).copied();
                            let grant = grant.expect("it is mapped");
                            prop_assert_eq!(grant.at, frame as usize * PAGE);
                            if hold {
                                lent.push((held, at, grant));
                            } else {
                                cache.release(&held);
                            }
                        }
                        Found::Busy(grant) => {
                            prop_assert_eq!(grant.at, frame as usize * PAGE);
                            let counts = cache.counts();
                            prop_assert!(counts.mapped == u64::from(cap) || counts.in_use > 0);
                        }
                    }
                }
                Step::Release(at) if !lent.is_empty() => {
                    let (held, ..) = lent.swap_remove(at % lent.len());
                    cache.release(&held);
                }
                Step::Release(_) => {}
                Step::Sweep(time) => {
                    now += time;
                    cache.sweep(now, 1000, &mut reach);
                }
            }
            let counts = cache.counts();
            prop_assert_eq!(counts.mapped, reach.mapped.len() as u64);
            prop_assert!(counts.mapped <= u64::from(cap));
            prop_assert_eq!(counts.in_use, lent.len() as u64);
            for (_, at, grant) in &lent {
                prop_assert_eq!(reach.mapped.get(at), Some(grant), "a lent mapping went");
            }
        }
        cache.clear(&mut reach);
        prop_assert!(reach.mapped.is_empty());
    }
}

fn used(cache: &mut Cache, reach: &mut Model, gref: u32) -> bool {
    match cache
        .look_up(gref, entry(gref), reach)
        .expect("a good grant")
    {
        Found::Mapped(held, _) => {
            cache.release(&held);
            true
        }
        Found::Busy(_) => false,
    }
}

/// Weak spot (i) of the 2015 series: as many references used once as there are places blocked it for ever.
#[test]
fn references_that_are_used_once_do_not_keep_the_table_for_ever() {
    let (mut reach, mut cache) = (Model::new(), Cache::new(Access::Read, 8, GRANTS));
    assert!((0..8).all(|gref| used(&mut cache, &mut reach, gref)));
    let tries = (0..200).filter(|n| !used(&mut cache, &mut reach, 20 + n % 4));
    let copied = tries.count() as u64;
    assert!(copied <= cache.grace(), "{copied} copies");
    assert!((20..24).all(|gref| used(&mut cache, &mut reach, gref)));
    assert_eq!(cache.counts().evicted, 4);
}

/// Weak spot (ii): the same new reference twice in one batch was mapped twice, and the packet lost.
#[test]
fn a_reference_that_comes_twice_in_a_packet_is_mapped_once() {
    let (mut reach, mut cache) = (Model::new(), Cache::new(Access::Read, 8, GRANTS));
    let mut look = || {
        cache
            .look_up(3, entry(3), &mut reach)
            .expect("a good grant")
    };
    let (Found::Mapped(one, a), Found::Mapped(other, b)) = (look(), look()) else {
        panic!("there is room")
    };
    assert_eq!(a.as_ptr(), b.as_ptr());
    assert_eq!((cache.counts().mapped, cache.counts().in_use), (1, 2));
    cache.release(&one);
    cache.release(&other);
    assert_eq!((reach.mapped.len(), cache.counts().in_use), (1, 0));
}

#[test]
fn a_reference_that_was_granted_anew_is_mapped_anew() {
    let (mut reach, mut cache) = (Model::new(), Cache::new(Access::Read, 8, GRANTS));
    assert!(used(&mut cache, &mut reach, 3));
    let Found::Mapped(held, window) = cache.look_up(3, entry(9), &mut reach).unwrap() else {
        panic!("there is room")
    };
    assert_eq!(reach.mapped[&(window.as_ptr() as usize)].at, 9 * PAGE);
    assert_eq!((reach.mapped.len(), cache.counts().stale), (1, 1));
    // While it is lent it cannot go: the third page is copied.
    let third = cache.look_up(3, entry(10), &mut reach).unwrap();
    assert!(matches!(third, Found::Busy(grant) if grant.at == 10 * PAGE));
    cache.release(&held);
}

#[test]
fn a_grant_that_cannot_be_used_is_refused_by_its_reason() {
    let (mut reach, mut cache) = (Model::new(), Cache::new(Access::Write, 8, GRANTS));
    let grant = |flags: u16, region, frame| {
        GrantEntry {
            flags,
            region,
            frame,
        }
        .word()
    };
    let ok = GTF_PERMIT_ACCESS;
    let pages = u32::try_from(PAGES).unwrap();
    let cases = [
        (0, grant(0, 0, 0), GrantError::NotGranted),
        (0, grant(2, 0, 0), GrantError::NotGranted),
        (0, grant(ok | GTF_READONLY, 0, 0), GrantError::ReadOnly),
        (0, grant(ok | 5 << GTF_ORDER_SHIFT, 0, 0), GrantError::Order),
        (0, grant(ok, 1, 0), GrantError::ReadOnly),
        (0, grant(ok, 2, 0), GrantError::Outside),
        (0, grant(ok, 0, pages), GrantError::Outside),
        (
            0,
            grant(ok | 1 << GTF_ORDER_SHIFT, 0, pages - 1),
            GrantError::Outside,
        ),
        (0, grant(ok, 0, u32::MAX), GrantError::Outside),
        (GRANTS, grant(ok, 0, 0), GrantError::NoEntry),
        (u32::MAX, grant(ok, 0, 0), GrantError::NoEntry),
    ];
    for (gref, word, why) in cases {
        let refused = cache.look_up(gref, word, &mut reach).unwrap_err();
        assert_eq!(refused, Detach::Grant(gref, why));
    }
    assert!(
        cache
            .look_up(0, grant(ok, 0, pages - 1), &mut reach)
            .is_ok()
    );
    let mut readers = Cache::new(Access::Read, 8, GRANTS);
    assert!(
        readers
            .look_up(0, grant(ok | GTF_READONLY, 0, 0), &mut reach)
            .is_ok()
    );
}

#[test]
fn a_mapping_that_the_kernel_does_not_make_is_a_copy_and_the_table_stays_as_large_as_it_is() {
    let (mut reach, mut cache) = (Model::new(), Cache::new(Access::Read, 8, GRANTS));
    assert!((0..3).all(|gref| used(&mut cache, &mut reach, gref)));
    reach.fails = true;
    assert!(!used(&mut cache, &mut reach, 3));
    assert_eq!((cache.counts().mapped, cache.counts().busy), (3, 1));
    assert_eq!(cache.counts().max, 3);
    reach.fails = false;
    assert!(
        !used(&mut cache, &mut reach, 3),
        "it is not asked for again and again"
    );
    assert!((0..3).all(|gref| used(&mut cache, &mut reach, gref)));
    assert_eq!(reach.mapped.len(), 3);
}
