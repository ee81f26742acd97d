//! Is the peer there? Whatever shows that it hears us counts; only silence is asked about.

use super::Time;
use std::time::Duration;

/// When to ask, and when to stop hoping. At the defaults a dead peer is noticed after at most 1.6 s.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Heartbeat {
    /// Ask after so much silence, and again each time.
    pub interval: Duration,
    /// The peer is dead when a question was not answered for so long.
    pub patience: Duration,
}

impl Default for Heartbeat {
    fn default() -> Self {
        Heartbeat {
            interval: Duration::from_millis(400),
            patience: Duration::from_millis(1200),
        }
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
    /// The first question since the last sign.
    asked: Option<Time>,
}

impl Pulse {
    /// Alive now.
    #[must_use]
    pub fn new(now: Time) -> Self {
        Pulse {
            since: now,
            asked: None,
        }
    }

    /// The peer has shown that it hears us. Its own questions do not show that: a cut may go one way.
    pub fn sign(&mut self, now: Time) {
        *self = Self::new(now);
    }

    /// To be called at [`deadline`](Self::deadline) or later.
    pub fn check(&mut self, now: Time, config: &Heartbeat) -> Beat {
        if self
            .asked
            .is_some_and(|asked| now >= asked + config.patience)
        {
            return Beat::Dead;
        }
        if now < self.since + config.interval {
            return Beat::Quiet;
        }
        self.asked = self.asked.or(Some(now));
        self.since = now;
        Beat::Ask
    }

    /// When something is to be done if nothing comes.
    #[must_use]
    pub fn deadline(&self, config: &Heartbeat) -> Time {
        let ask = self.since + config.interval;
        self.asked
            .map_or(ask, |asked| ask.min(asked + config.patience))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(ms: u64) -> Time {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_peer_that_answers_nothing_is_dead_in_less_than_two_seconds() {
        let config = Heartbeat::default();
        let mut pulse = Pulse::new(after(0));
        let mut now = after(0);
        for _ in 0..20 {
            now = pulse.deadline(&config);
            if pulse.check(now, &config) == Beat::Dead {
                break;
            }
        }
        assert_eq!(now, after(1600));
    }

    #[test]
    fn any_sign_of_life_starts_over() {
        let config = Heartbeat::default();
        let mut pulse = Pulse::new(after(0));
        assert_eq!(pulse.check(after(400), &config), Beat::Ask);
        pulse.sign(after(1500));
        assert_eq!(pulse.check(after(1600), &config), Beat::Quiet);
        assert_eq!(pulse.check(after(1900), &config), Beat::Ask);
    }

    #[test]
    fn a_process_that_was_stopped_asks_before_it_despairs() {
        let config = Heartbeat::default();
        let mut pulse = Pulse::new(after(0));
        assert_eq!(pulse.check(after(60_000), &config), Beat::Ask);
    }
}
