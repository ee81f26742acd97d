//! Fire: a second thread writes anything at any time, while the peer goes on with its work.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::{Heard, Socket};
use crate::blocks::Rng;

/// How long one attack goes on, if nobody notices it.
const ATTACK: Duration = Duration::from_millis(150);
/// How long attacks may take together.
const LIMIT: Duration = Duration::from_secs(180);

/// Runs `scribble` in a second thread and `work` in this one, both again and again, until the other side of `socket`
/// lets go or the time of one attack is over. Returns whether it let go.
pub fn attack(
    seed: u64,
    socket: &Socket,
    mut scribble: impl FnMut(&mut Rng) + Send,
    mut work: impl FnMut(),
) -> bool {
    let over = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut random = Rng(seed);
            while !over.load(Ordering::Relaxed) {
                scribble(&mut random);
            }
        });
        let end = Instant::now() + ATTACK;
        let mut let_go = false;
        while !let_go && Instant::now() < end {
            for _ in 0..20 {
                work();
            }
            let_go = !matches!(socket.hear(Duration::ZERO), Heard::Nothing);
        }
        over.store(true, Ordering::Relaxed);
        let_go
    })
}

/// Attacks with the seeds 1, 2, 3, … until there were `attacks` of them and more than `enough` were noticed.
///
/// How much is written within one attack, and read by the other side, depends on who gets a processor: on a loaded machine
/// more attacks are needed.
///
/// # Panics
/// If too few were noticed after three minutes.
pub fn until_noticed(attacks: u64, enough: u64, mut attack: impl FnMut(u64) -> bool) {
    let end = Instant::now() + LIMIT;
    let mut noticed = 0;
    for seed in 1.. {
        noticed += u64::from(attack(seed));
        if seed >= attacks && noticed > enough {
            return;
        }
        assert!(
            Instant::now() < end,
            "only {noticed} of {seed} attacks were noticed"
        );
    }
}
