//! Tests of registrations from the pool.

use super::*;

#[test]
fn registrations_that_are_given_back_are_used_again() {
    // SAFETY: zeros are valid for all of its fields, which are atomics; nothing looks at this set.
    let ep: Box<Ep> = unsafe { Box::new(core::mem::zeroed()) };
    let regs = Regs {
        own: [Reg::FREE; REGS],
        more: AtomicPtr::new(core::ptr::null_mut()),
    };
    for index in 0..2 * SPARE as u32 {
        regs.reset(index);
        let claimed: Vec<_> = (0..REGS + 3).filter_map(|_| regs.claim(&ep)).collect();
        assert_eq!(claimed.len(), REGS + 3);
        assert_eq!(regs.iter().count(), REGS + 3);
        let owners = claimed[REGS..].iter().map(|reg| owner_of(reg));
        assert!(owners.eq([Some(index as usize); 3]));
        assert!(claimed[..REGS].iter().all(|reg| owner_of(reg).is_none()));
    }
    regs.give_back();
}
