//! Is the peer there? Whatever shows that it hears us counts; only silence is asked about.
//!
//! Silence is counted from question to question, and only while this process ran and could get an answer: a process
//! that was stopped, or had to wait for a CPU, asks once more before it gives up.

use super::Time;
use std::time::Duration;

/// When to ask, and when to stop hoping. At the defaults a dead peer is noticed 0.8 s after its last sign.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Heartbeat {
    /// Ask after so much silence, and again each time.
    pub interval: Duration,
    /// The peer is dead when a question was not answered for so long.
    pub patience: Duration,
}

impl Default for Heartbeat {
    /// 0.2 s and 0.6 s: what goes by a dead path is on another one within a second. A peer that was only busy for
    /// so long costs a reconnect, and requests that are recognised when they come again.
    fn default() -> Self {
        Heartbeat::within(Duration::from_millis(800))
    }
}

impl Heartbeat {
    /// Notices a dead peer `limit` after its last sign.
    #[must_use]
    pub fn within(limit: Duration) -> Heartbeat {
        let interval = limit / 4;
        Heartbeat {
            interval,
            patience: limit.saturating_sub(interval),
        }
    }

    /// The factor by which it is slower.
    #[must_use]
    pub fn times(&self, factor: u32) -> Heartbeat {
        Heartbeat {
            interval: self.interval.saturating_mul(factor),
            patience: self.patience.saturating_mul(factor),
        }
    }

    /// What a server takes by default: 4 s. Its clients look for other paths themselves; it only tidies up.
    #[must_use]
    pub fn of_servers() -> Heartbeat {
        Heartbeat::within(Duration::from_secs(4))
    }
}

/// What is to be done now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Beat {
    /// Nothing.
    Quiet,
    /// Send a heartbeat.
    Ask,
    /// Give up.
    Dead,
}

/// One path's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pulse {
    /// The last sign, or the last question.
    since: Time,
    /// Time without an answer since the first question since the last sign; `None`: nothing was asked.
    unanswered: Option<Duration>,
    /// The last question came late, and the time before it was not counted. Not twice in a row: on a machine that
    /// is always late, dead peers are to be noticed, too.
    excused: bool,
}

impl Pulse {
    /// Alive now.
    #[must_use]
    pub fn new(now: Time) -> Self {
        Pulse {
            since: now,
            unanswered: None,
            excused: false,
        }
    }

    /// The peer has shown that it hears us. Its own questions do not show that: a cut may go one way.
    pub fn sign(&mut self, now: Time) {
        *self = Self::new(now);
    }

    /// To be called at [`deadline`](Self::deadline) or later, after what has come was read.
    pub fn check(&mut self, now: Time, config: &Heartbeat) -> Beat {
        let due = self.deadline(config);
        if now < due {
            return Beat::Quiet;
        }
        let counted = due.saturating_sub(self.since);
        let late = now.saturating_sub(due) > config.interval / 2;
        self.since = now;
        // With the first question nothing is counted.
        self.excused = late && !self.excused && self.unanswered.is_some();
        self.unanswered = Some(match self.unanswered {
            None => Duration::ZERO,
            Some(before) if self.excused => before,
            Some(before) => before + counted,
        });
        match self.unanswered {
            Some(time) if time >= config.patience => Beat::Dead,
            _ => Beat::Ask,
        }
    }

    /// When something is to be done if nothing comes.
    #[must_use]
    pub fn deadline(&self, config: &Heartbeat) -> Time {
        let left = self
            .unanswered
            .map(|time| config.patience.saturating_sub(time));
        self.since + left.map_or(config.interval, |left| left.min(config.interval))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(ms: u64) -> Time {
        Duration::from_millis(ms)
    }

    /// When a peer that never answers is given up, if each deadline is noticed `late`.
    fn given_up(config: &Heartbeat, late: Duration) -> Time {
        let mut pulse = Pulse::new(after(0));
        for _ in 0..100 {
            let now = pulse.deadline(config) + late;
            if pulse.check(now, config) == Beat::Dead {
                return now;
            }
        }
        panic!("never");
    }

    #[test]
    fn a_peer_that_answers_nothing_is_dead_in_less_than_a_second() {
        let config = Heartbeat::default();
        assert_eq!(given_up(&config, after(0)), after(800));
        for limit in [100, 801, 4000] {
            let config = Heartbeat::within(after(limit));
            assert_eq!(given_up(&config, after(0)), after(limit));
        }
    }

    #[test]
    fn any_sign_of_life_starts_over() {
        let config = Heartbeat::default();
        let mut pulse = Pulse::new(after(0));
        assert_eq!(pulse.check(after(200), &config), Beat::Ask);
        pulse.sign(after(750));
        assert_eq!(pulse.check(after(800), &config), Beat::Quiet);
        assert_eq!(pulse.check(after(950), &config), Beat::Ask);
    }

    #[test]
    fn who_was_away_asks_again_before_he_despairs() {
        let config = Heartbeat::default();
        // Nothing was asked; everything but the last question was.
        for asked in [0, 1, 3] {
            let mut pulse = Pulse::new(after(0));
            for n in 1..=asked {
                assert_eq!(pulse.check(after(200 * n), &config), Beat::Ask);
            }
            assert_eq!(pulse.check(after(60_000), &config), Beat::Ask, "{asked}");
            // There is time for an answer, as after any question.
            assert_eq!(pulse.check(after(60_199), &config), Beat::Quiet, "{asked}");
            assert_ne!(pulse.check(after(60_200), &config), Beat::Quiet, "{asked}");
        }
    }

    #[test]
    fn time_away_does_not_count_and_time_here_does() {
        let config = Heartbeat::default();
        let mut pulse = Pulse::new(after(0));
        for (now, beat) in [
            (200, Beat::Ask),
            (400, Beat::Ask),
            (600, Beat::Ask),
            // A stop of a minute, when 0.4 s of silence were counted.
            (60_600, Beat::Ask),
            (60_800, Beat::Dead),
        ] {
            assert_eq!(pulse.check(after(now), &config), beat, "{now}");
        }
    }

    #[test]
    fn who_is_always_late_gives_up_nevertheless() {
        let config = Heartbeat::default();
        let dead = given_up(&config, after(150));
        assert!(dead > after(800) && dead < after(2500), "{dead:?}");
    }
}
