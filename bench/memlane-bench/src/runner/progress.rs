//! What a long run is doing, and how much is left.

use std::time::{Duration, Instant};

use crate::out;

/// Tells what is running, and how much is left.
pub(crate) struct Progress {
    begin: Instant,
    /// As it was estimated.
    total: f64,
    done: f64,
    silent: bool,
}

impl Progress {
    pub(crate) fn new(total: Duration) -> Progress {
        Progress {
            begin: Instant::now(),
            total: total.as_secs_f64().max(1.0),
            done: 0.0,
            silent: false,
        }
    }

    /// Tells nothing.
    pub(crate) fn silent() -> Progress {
        Progress {
            silent: true,
            ..Progress::new(Duration::ZERO)
        }
    }

    /// Something went wrong.
    pub(crate) fn warns(&self, what: &str) {
        if !self.silent {
            out::stderr(&format!("{what}\n"));
        }
    }

    /// There is more to do than was known.
    pub(crate) fn grows(&mut self, more: Duration) {
        self.total += more.as_secs_f64();
    }

    /// So much of the estimate is behind us.
    pub(crate) fn took(&mut self, estimate: f64, what: &str) {
        self.done = (self.done + estimate).min(self.total);
        self.tell(what);
    }

    fn tell(&self, what: &str) {
        if !self.silent {
            out::stderr(&format!("{} {what}\n", self.head()));
        }
    }

    fn head(&self) -> String {
        let share = self.done / self.total;
        let left = left(self.begin.elapsed().as_secs_f64(), self.done, self.total);
        format!("[{:3.0} %, {} left]", share * 100.0, minutes(left))
    }
}

/// Seconds: the estimate, corrected by how it went so far once there is something to go by.
fn left(elapsed: f64, done: f64, total: f64) -> f64 {
    let pace = match done {
        done if done < 10.0 => 1.0,
        _ => elapsed / done,
    };
    (total - done) * pace
}

/// For people.
pub(crate) fn minutes(seconds: f64) -> String {
    match seconds {
        s if s < 90.0 => format!("{s:.0} s"),
        s => format!("{:.0} min", s / 60.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_goes_by_the_estimate_first_and_by_experience_then() {
        assert_eq!(left(3.0, 2.0, 100.0), 98.0);
        assert_eq!(left(40.0, 20.0, 100.0), 160.0);
        assert_eq!(
            (minutes(80.0), minutes(610.0)),
            ("80 s".into(), "10 min".into())
        );
    }
}
