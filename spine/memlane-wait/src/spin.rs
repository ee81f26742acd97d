//! How long a thread looks again before it sleeps: as long as that has paid lately.
//!
//! A hand-over between two cores that both look costs a fraction of a microsecond. Waking a thread that sleeps costs tens
//! of microseconds. But a thread that looks in vain takes a core from another one, perhaps from the one it waits for.
//!
//! One policy serves all lanes but one, with numbers of their own ([`Policy`]). The socket lane keeps its own
//! (`memlane-socket`, `spin`): it runs in other people's programs without `std`, counts in CPU ticks, keeps its state in
//! words that signal handlers read, and knows from the lane on which CPU the peer was last seen.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// From this time on a thread that may yield does so, once in [`YIELD_EVERY`] looks. Earlier it keeps its core: an answer
/// from another core comes sooner, and the scheduler should see both threads at work on cores of their own.
const YIELD_AFTER: Duration = Duration::from_micros(3);
const YIELD_EVERY: u32 = 4;
/// After this many waits in a row that ended only when the core was yielded, the other side runs on this core. From then
/// on the thread yields at once.
const SAME_CORE: u32 = 4;
/// Once in this many such waits the thread does not yield at once: the other side may have moved to another core.
const MOVED: u32 = 64;
/// A gap of this length between two looks means that another thread had the core. Yielding to such a thread costs a
/// slice of its time, while a thread that sleeps is let in as soon as it is woken.
const LOST_CORE: Duration = Duration::from_micros(200);
/// A thread that lost its core neither yields nor looks long for this many times the gap.
const PAUSE_AFTER_LOSS: u32 = 64;
/// After this many waits in a row whose turns found nothing, waits begin without turns …
const TURNS_IN_VAIN: u32 = 8;
/// … but for one in this many.
const TRY_TURNS_EVERY: u32 = 16;
/// A budget below this is no longer halved but becomes [`Policy::shortest`]: one look takes about as long.
const ONE_LOOK: Duration = Duration::from_micros(1);

/// The numbers by which a thread spins. [`Policy::default`] has those of a request that crosses to another process and
/// back, measured on the transport lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    /// Looks with which a wait begins, each behind an offer of the core. Where more threads want cores than there are, what
    /// is waited for is there when the turn comes round, and nobody needs to be woken; where there is a core for each, the
    /// offers take a microsecond or two. They cost the wait none of its time to look. Turns that find nothing in several
    /// waits in a row are left out of most later ones. Zero: none.
    pub turns: u32,
    /// The longest time to look: about twice what a wake-up costs. Zero: never look, also not in turns, always sleep.
    pub longest: Duration,
    /// Each wait in vain halves the time to look, down to this. Zero: after some waits in vain, sleep at once.
    pub shortest: Duration,
    /// Once in this many waits in vain in a row, look for `probe`: what is waited for may come faster by now.
    pub probe_every: u32,
    /// The time of such a trial, if `longest` is not shorter.
    pub probe: Duration,
    /// A sleep shorter than this had better been a look: after it the time to look is `longest` again. Zero: only what a
    /// look finds makes it longer.
    pub short_sleep: Duration,
    /// Pause instructions between two looks. More, where a look takes locks that the other side needs.
    pub pauses: u32,
    /// Whether to offer the core to other threads between looks.
    pub yields: bool,
    /// Whether all threads of this process whose policy says so leave one core of the machine to others: one thread
    /// more than that sleeps at once, or after its turns.
    pub leaves_a_core: bool,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            turns: 0,
            longest: Duration::from_micros(100),
            shortest: Duration::from_micros(4),
            probe_every: 64,
            probe: Duration::from_micros(50),
            short_sleep: Duration::ZERO,
            pauses: 1,
            yields: true,
            leaves_a_core: false,
        }
    }
}

/// Threads of this process that look now and whose policy leaves a core. Written and read by all of them; nothing is
/// published through it, so no order is needed.
static LOOKING: AtomicUsize = AtomicUsize::new(0);

fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    let count = || std::thread::available_parallelism().map_or(1, usize::from);
    *CORES.get_or_init(count)
}

/// What a thread has learnt about one thing it waits for again and again.
///
/// A wait consists of looks. After each look that found nothing the thread asks [`is_over`](Self::is_over) whether to
/// sleep; if not, it calls [`pause`](Self::pause) and looks again. When a look, or a sleep, has brought something, it
/// calls [`found`](Self::found).
///
/// ```
/// use memlane_wait::spin::{Policy, Spin};
/// # let (mut queue, mut sleeps) = (vec![1], 0);
/// # let mut sleep = || { sleeps += 1; vec![2] };
///
/// let mut spin = Spin::new(Policy::default());
/// let mut taken = Vec::new();
/// while taken.len() < 2 {
///     if let Some(job) = queue.pop() {
///         spin.found();
///         taken.push(job);
///     } else if spin.is_over() {
///         queue = sleep();
///     } else {
///         spin.pause();
///     }
/// }
/// assert_eq!((taken, sleeps), (vec![1, 2], 1));
/// ```
#[derive(Debug)]
pub struct Spin {
    policy: Policy,
    /// Waits in a row whose turns found nothing, or that had none.
    turned: u32,
    /// How long a wait looks by now.
    budget: Duration,
    /// Waits in vain, in a row.
    missed: u32,
    looks: u32,
    /// The core was offered since something was found last.
    offered: bool,
    /// How often in a row something was found only after the core had been offered.
    late: u32,
    /// Others want this core until then.
    crowded: Option<Instant>,
    /// The machine has one core: while this thread looks, the other side cannot work.
    one_core: bool,
    /// How many threads look in turns, this one among them.
    threads: u64,
    wait: Wait,
}

/// The wait that a thread is in.
#[derive(Clone, Copy, Debug)]
enum Wait {
    None,
    /// It takes `left` more turns, and then looks for at most `limit`.
    Turns {
        left: u32,
        limit: Duration,
    },
    Looking {
        start: Instant,
        limit: Duration,
        /// From the start to the last look.
        last: Duration,
        /// It is counted in [`LOOKING`].
        counted: bool,
    },
    /// It looked in vain, and sleeps.
    Asleep {
        start: Instant,
    },
}

impl Spin {
    /// One that has learnt nothing yet: it looks for as long as the policy allows.
    #[must_use]
    pub fn new(policy: Policy) -> Spin {
        Spin {
            policy,
            turned: 0,
            budget: policy.longest,
            missed: 0,
            looks: 0,
            offered: false,
            late: 0,
            crowded: None,
            one_core: cores() < 2,
            threads: 1,
            wait: Wait::None,
        }
    }

    /// Starts a wait of one of `threads` threads of this process that all look for the same things, in turns. If they are
    /// as many as the cores, each offers its core after each look; that it was away for long is then no loss.
    pub fn start_among(&mut self, threads: u64, limit: Duration) {
        self.threads = threads;
        self.start(limit);
    }

    /// Starts a wait that looks for at most `limit`, after its turns if the policy has some. A wait that is not started by this starts with the first
    /// [`is_over`](Self::is_over), without a limit.
    pub fn start(&mut self, limit: Duration) {
        self.stop();
        match self.takes_turns() {
            true => {
                let left = self.policy.turns;
                self.wait = Wait::Turns { left, limit };
            }
            false => {
                self.turned = self.turned.wrapping_add(1);
                self.look(limit);
            }
        }
    }

    /// Does the next wait begin with turns?
    fn takes_turns(&self) -> bool {
        let tries = self.turned % TRY_TURNS_EVERY == TRY_TURNS_EVERY - 1;
        let pays = self.turned < TURNS_IN_VAIN || tries;
        pays && self.policy.turns > 0 && !self.policy.longest.is_zero()
    }

    /// Looks for at most `limit`, without turns.
    fn look(&mut self, limit: Duration) {
        let budget = self.budget().min(limit);
        let counted = self.policy.leaves_a_core && !budget.is_zero();
        let free = !counted || LOOKING.fetch_add(1, Ordering::Relaxed) + 1 < cores();
        self.wait = Wait::Looking {
            start: Instant::now(),
            limit: if free { budget } else { Duration::ZERO },
            last: Duration::ZERO,
            counted,
        };
    }

    /// After a look that found nothing: is it time to sleep? Once it is, it stays so until [`found`](Self::found) or
    /// [`start`](Self::start): a thread that is woken for nothing sleeps again at once.
    pub fn is_over(&mut self) -> bool {
        if matches!(self.wait, Wait::None) {
            self.start(Duration::MAX);
        }
        match &mut self.wait {
            Wait::Turns { left: 0, limit } => {
                let limit = *limit;
                self.turned = self.turned.wrapping_add(1);
                self.look(limit);
            }
            Wait::Turns { left, .. } => {
                *left -= 1;
                return false;
            }
            _ => {}
        }
        let Wait::Looking { start, limit, .. } = self.wait else {
            return true;
        };
        let since = start.elapsed();
        if since < limit {
            self.looked(since);
            return false;
        }
        self.missed();
        self.wait = Wait::Asleep { start };
        true
    }

    /// A wait was in vain.
    fn missed(&mut self) {
        self.stop();
        self.missed = self.missed.wrapping_add(1);
        self.offered = false;
        let half = match self.budget / 2 {
            half if half < ONE_LOOK => Duration::ZERO,
            half => half,
        };
        self.budget = half.max(self.policy.shortest).min(self.policy.longest);
    }

    /// Between two looks: spends a moment, or offers the core to others.
    pub fn pause(&mut self) {
        let last = match self.wait {
            Wait::Turns { .. } => return std::thread::yield_now(),
            Wait::Looking { last, .. } => last,
            Wait::None | Wait::Asleep { .. } => return,
        };
        self.looks = self.looks.wrapping_add(1);
        let now = last > YIELD_AFTER && self.looks.is_multiple_of(YIELD_EVERY);
        let offers = self.crowded.is_none() && (now || self.shares_its_core());
        if self.policy.yields && (offers || self.fills_the_cores()) {
            self.offered = true;
            std::thread::yield_now();
        } else {
            (0..self.policy.pauses).for_each(|_| std::hint::spin_loop());
        }
    }

    /// A look, or the sleep after it, has brought something: the wait is over.
    pub fn found(&mut self) {
        match self.wait {
            Wait::None => return,
            Wait::Turns { .. } => self.turned = 0,
            Wait::Looking { start, .. } => self.found_after(start.elapsed()),
            Wait::Asleep { start } if start.elapsed() < self.policy.short_sleep => {
                self.missed = 0;
                self.budget = self.policy.longest;
            }
            Wait::Asleep { .. } => {}
        }
        self.stop();
    }

    /// A look found something, so long after the start of the wait.
    fn found_after(&mut self, gap: Duration) {
        self.looked(gap);
        self.missed = 0;
        self.late = match std::mem::take(&mut self.offered) {
            true => self.late.wrapping_add(1),
            false => 0,
        };
        self.budget = self.budget.max(gap * 2).min(self.policy.longest);
    }

    /// After [`found`](Self::found): what was found was made by threads that had this core meanwhile. So the core was not
    /// lost but lent, and is offered again.
    pub fn was_lent(&mut self) {
        self.crowded = None;
    }

    /// Whether this wait, or the next one if there is none, would look again, or sleep at once.
    #[must_use]
    pub fn would_look(&self) -> bool {
        let turns = match self.wait {
            Wait::None => self.takes_turns(),
            Wait::Turns { left, .. } => left > 0,
            Wait::Looking { .. } | Wait::Asleep { .. } => false,
        };
        turns || self.would_spin()
    }

    /// Whether it would do so without turns.
    fn would_spin(&self) -> bool {
        let busy = self.policy.leaves_a_core && LOOKING.load(Ordering::Relaxed) + 1 >= cores();
        let counted = matches!(self.wait, Wait::Looking { counted: true, .. });
        (counted || !busy) && !self.budget_after(self.missed).is_zero()
    }

    /// How long the next wait looks.
    fn budget(&mut self) -> Duration {
        if self.crowded.is_some_and(|until| Instant::now() >= until) {
            self.crowded = None;
        }
        match self.crowded.is_some() {
            true => self.policy.shortest.min(self.policy.longest),
            false => self.budget_after(self.missed),
        }
    }

    /// How long a wait looks after `missed` waits in vain.
    fn budget_after(&self, missed: u32) -> Duration {
        let Policy {
            probe_every, probe, ..
        } = self.policy;
        let probes = probe_every > 0 && missed % probe_every == probe_every - 1;
        match probes {
            _ if self.one_core => Duration::ZERO,
            true => self.budget.max(probe.min(self.policy.longest)),
            false => self.budget,
        }
    }

    /// A look, so long after the start of the wait.
    fn looked(&mut self, since: Duration) {
        if let Wait::Looking { last, .. } = &mut self.wait {
            let gap = since.saturating_sub(*last);
            *last = since;
            if gap >= LOST_CORE && self.threads == 1 {
                self.crowded = Instant::now().checked_add(gap * PAUSE_AFTER_LOSS);
            }
        }
    }

    /// For all that is known, the other side runs on this core.
    fn shares_its_core(&self) -> bool {
        self.late >= SAME_CORE && !self.late.is_multiple_of(MOVED)
    }

    /// Are there as many threads that take turns as there are cores?
    fn fills_the_cores(&self) -> bool {
        self.threads > 1 && usize::try_from(self.threads).is_ok_and(|threads| threads >= cores())
    }

    fn stop(&mut self) {
        if let Wait::Looking { counted: true, .. } = self.wait {
            LOOKING.fetch_sub(1, Ordering::Relaxed);
        }
        self.wait = Wait::None;
    }
}

impl Drop for Spin {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORTEST: Duration = Duration::from_micros(4);
    const LONGEST: Duration = Duration::from_micros(100);

    fn spin(policy: Policy) -> Spin {
        let mut spin = Spin::new(policy);
        spin.one_core = false;
        spin
    }

    /// A look that found nothing, so long after the start of the wait; then a pause.
    fn look(spin: &mut Spin, since: Duration) {
        if matches!(spin.wait, Wait::None) {
            spin.start(Duration::MAX);
        }
        spin.looked(since);
        spin.pause();
    }

    fn find(spin: &mut Spin, since: Duration) {
        spin.found_after(since);
        spin.stop();
    }

    #[test]
    fn a_thread_that_shares_its_core_with_the_other_side_yields_at_once() {
        let mut spin = spin(Policy::default());
        let (soon, later) = (Duration::from_micros(1), YIELD_AFTER * 2);
        let round = |spin: &mut Spin, there: bool| {
            look(spin, soon);
            let at_once = std::mem::take(&mut spin.offered);
            if !there {
                (0..YIELD_EVERY).for_each(|_| look(spin, later));
            }
            spin.offered |= at_once;
            find(spin, later);
            at_once
        };
        let offers: Vec<_> = (0..200).map(|_| round(&mut spin, false)).collect();
        assert_eq!(offers[..=4], [false, false, false, false, true]);
        assert_eq!(offers.iter().filter(|offer| !**offer).count(), 7);
        // The other side has moved to another core: it answers before this one is offered.
        let mut left = 0;
        while spin.late > 0 && left < 2 * MOVED {
            round(&mut spin, true);
            left += 1;
        }
        assert!(left <= MOVED && spin.late == 0, "{left}");
        assert!(!round(&mut spin, true));
    }

    #[test]
    fn a_thread_that_loses_its_core_for_long_does_not_yield_for_a_while() {
        let mut spin = spin(Policy::default());
        look(&mut spin, YIELD_AFTER * 2);
        look(&mut spin, YIELD_AFTER * 2 + LOST_CORE);
        assert_eq!(spin.budget(), SHORTEST);
        for _ in 0..3 * YIELD_EVERY {
            look(&mut spin, YIELD_AFTER * 2 + LOST_CORE);
        }
        assert!(!spin.offered);
        find(&mut spin, YIELD_AFTER * 2 + LOST_CORE);
        assert_eq!(spin.budget(), SHORTEST);
        std::thread::sleep(LOST_CORE * (PAUSE_AFTER_LOSS + 1));
        assert_eq!(spin.budget(), LONGEST);
        // Found by the first look, after the core was away.
        spin.start(Duration::MAX);
        find(&mut spin, LOST_CORE);
        assert_eq!(spin.budget(), SHORTEST);
    }

    #[test]
    fn a_thread_that_looks_in_vain_looks_less_and_now_and_then_tries_again() {
        let mut spin = spin(Policy::default());
        let Policy {
            probe, probe_every, ..
        } = spin.policy;
        let mut probes = 0;
        for _ in 0..3 * probe_every {
            spin.missed();
            probes += u32::from(spin.budget == SHORTEST && spin.budget() == probe);
        }
        assert_eq!((spin.budget, probes), (SHORTEST, 3));
        find(&mut spin, Duration::from_micros(15));
        assert_eq!(spin.budget(), Duration::from_micros(30));
    }

    #[test]
    fn without_a_shortest_look_a_thread_sleeps_at_once_after_some_in_vain() {
        let mut spin = spin(Policy {
            shortest: Duration::ZERO,
            probe_every: 16,
            short_sleep: Duration::from_secs(60),
            ..Policy::default()
        });
        let looks: Vec<bool> = (0..32)
            .map(|_| {
                let looks = spin.would_look();
                spin.missed();
                looks
            })
            .collect();
        let expected = |wait: usize| wait < 7 || wait % 16 == 15;
        assert_eq!(looks, (0..32).map(expected).collect::<Vec<_>>());
        // A short sleep brings the whole budget back.
        assert!(spin.is_over() && spin.is_over());
        spin.found();
        assert_eq!(spin.budget(), LONGEST);
    }

    /// One that begins its waits with turns, and then looks for a minute.
    fn with_turns(turns: u32) -> Spin {
        spin(Policy {
            turns,
            longest: Duration::from_secs(60),
            ..Policy::default()
        })
    }

    /// Looks until the turns of a wait are over; says how many there were.
    fn turns(spin: &mut Spin) -> u32 {
        let mut turns = 0;
        loop {
            let over = spin.is_over();
            if !matches!(spin.wait, Wait::Turns { .. }) {
                return turns;
            }
            assert!(!over, "turns are looks");
            turns += 1;
            spin.pause();
        }
    }

    #[test]
    fn a_wait_begins_with_turns_and_then_has_all_of_its_time_to_look() {
        let mut spin = with_turns(4);
        assert!(spin.would_look());
        assert_eq!(turns(&mut spin), 4);
        assert!(matches!(spin.wait, Wait::Looking { limit, .. } if limit.as_secs() == 60));
        // Without a core to spare, turns are all there is.
        spin.one_core = true;
        spin.found();
        assert!(spin.would_look() && turns(&mut spin) == 4);
        assert!(matches!(spin.wait, Wait::Asleep { .. }) && !spin.would_look());
        // After the last one, whoever can sleep in the call that looks may do so.
        spin.found();
        (0..4).for_each(|_| assert!(!spin.is_over() && spin.would_look() != turns_are_over(&spin)));
        assert!(turns_are_over(&spin) && spin.is_over());
    }

    fn turns_are_over(spin: &Spin) -> bool {
        matches!(spin.wait, Wait::Turns { left: 0, .. })
    }

    #[test]
    fn turns_in_vain_are_left_out_of_most_waits_until_one_finds_something() {
        let mut spin = with_turns(2);
        let wait = |spin: &mut Spin| {
            let (expected, had) = (spin.would_look(), turns(spin));
            assert!(expected);
            spin.found();
            had
        };
        let waits: Vec<u32> = (0..32).map(|_| wait(&mut spin)).collect();
        let expected = |n: u32| if n < 8 || n % 16 == 15 { 2 } else { 0 };
        assert_eq!(waits, (0..32).map(expected).collect::<Vec<_>>());
        // The next try's second turn finds something.
        while !spin.takes_turns() {
            wait(&mut spin);
        }
        assert!(!spin.is_over() && !spin.is_over());
        spin.found();
        assert_eq!((0..8).map(|_| wait(&mut spin)).sum::<u32>(), 16);
        assert_eq!(wait(&mut spin), 0);
    }

    #[test]
    fn a_policy_of_zero_never_looks() {
        let mut spin = spin(Policy {
            turns: 4,
            longest: Duration::ZERO,
            ..Policy::default()
        });
        for _ in 0..200 {
            assert!(!spin.would_look() && spin.is_over());
            spin.found();
        }
    }

    #[test]
    fn a_limit_ends_a_look_early() {
        let mut spin = spin(Policy::default());
        spin.start(Duration::ZERO);
        assert!(spin.is_over());
    }

    #[test]
    fn one_core_is_left_to_others() {
        let policy = Policy {
            leaves_a_core: true,
            longest: Duration::from_secs(60),
            ..Policy::default()
        };
        let mut all: Vec<Spin> = (0..cores()).map(|_| spin(policy)).collect();
        let sleeping = |all: &mut Vec<Spin>| {
            all.iter_mut()
                .filter_map(|s| s.is_over().then_some(()))
                .count()
        };
        assert_eq!(sleeping(&mut all), 1);
        assert!(!all.iter().last().expect("one").would_look());
        // The first gives its turn up, and the last one may look now.
        all[0].found();
        drop(all.remove(0));
        all.iter_mut().last().expect("one").found();
        assert_eq!(sleeping(&mut all), 0);
        drop(all);
        assert_eq!(LOOKING.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn threads_that_fill_the_cores_offer_theirs_after_each_look_and_do_not_lose_it() {
        let mut spin = spin(Policy::default());
        let many = u64::try_from(cores()).expect("a count") + 1;
        for (threads, offers) in [(many, true), (1, false)] {
            spin.start_among(threads, Duration::MAX);
            spin.looked(Duration::from_nanos(100));
            spin.pause();
            assert_eq!(std::mem::take(&mut spin.offered), offers, "{threads}");
            spin.looked(LOST_CORE * 2);
            assert_eq!(spin.crowded.is_none(), offers, "{threads}");
        }
        // It was not lost, either, if what was found needed it.
        spin.found();
        spin.was_lent();
        assert_eq!(spin.budget(), LONGEST);
    }
}
