//! How much of its time the machine has spent, by `/proc/stat`.
//!
//! A thread notes the idle time every now and then while a load runs. When the load has ended, the share of a stretch that
//! lies within the load is known: fio says when it ends, and how long it has run, but not when it began.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;

/// Between two notes: each takes some 20 µs.
const EVERY: Duration = Duration::from_millis(20);
/// fio's first thread looks ten times a second whether its jobs have ended, and then prints.
const AFTERWARDS: Duration = Duration::from_millis(200);
/// `USER_HZ`, in which the kernel tells times.
const TICKS: f64 = 100.0;

/// A time, and the ticks for which the machine was idle until then.
type Note = (Instant, u64);

/// Watches the machine.
pub(super) struct Idle {
    over: Arc<AtomicBool>,
    watcher: JoinHandle<anyhow::Result<Vec<Note>>>,
}

impl Idle {
    /// Begins.
    pub(super) fn watch() -> Idle {
        let over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&over);
        let watcher = std::thread::spawn(move || {
            let mut notes = Vec::new();
            while !ends.load(Ordering::Relaxed) {
                notes.push((Instant::now(), idle_ticks()?));
                std::thread::sleep(EVERY);
            }
            Ok(notes)
        });
        Idle { over, watcher }
    }

    /// A load of this many seconds has just ended: which share of its time was spent, from 0 to 1.
    ///
    /// # Errors
    /// It was too short.
    pub(super) fn busy(self, seconds: f64) -> anyhow::Result<f64> {
        let end = Instant::now();
        self.over.store(true, Ordering::Relaxed);
        let notes = self.watcher.join();
        let notes = notes.map_err(|_| anyhow::anyhow!("the watcher ended badly"))??;
        let load = Duration::from_secs_f64(seconds);
        busy_before(&notes, end, load).context("the load was too short to see what it costs")
    }
}

/// The share that was spent in the part of a load that surely was one.
fn busy_before(notes: &[Note], end: Instant, load: Duration) -> Option<f64> {
    let until = end.checked_sub(AFTERWARDS)?;
    let since = end.checked_sub(load)?;
    let within = |note: &&Note| note.0 >= since && note.0 <= until;
    let first = notes.iter().find(within)?;
    let last = notes.iter().rev().find(within)?;
    let time = (last.0 - first.0).as_secs_f64();
    #[allow(clippy::cast_precision_loss)] // 2^53 ticks are three million years
    let idle = last.1.saturating_sub(first.1) as f64 / TICKS;
    (time > 0.0).then(|| (1.0 - idle / time).clamp(0.0, 1.0))
}

fn idle_ticks() -> anyhow::Result<u64> {
    let text = std::fs::read_to_string("/proc/stat")?;
    idle_in(&text).context("/proc/stat says nothing of idle time")
}

/// Idle, and idle while something waits for a disk.
fn idle_in(stat: &str) -> Option<u64> {
    let line = stat.lines().find(|line| line.starts_with("cpu "))?;
    let mut fields = line.split_whitespace().skip(4);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_is_two_fields_of_the_first_line() {
        let stat = "cpu  14 1 450 2551 9 0 18 0 0 0\ncpu0 14 1 450 1 1 0 18 0 0 0\n";
        assert_eq!(idle_in(stat), Some(2560));
        assert_eq!(idle_in("cpu0 1 2 3 4 5\n"), None);
        assert!(idle_ticks().is_ok());
    }

    #[test]
    fn only_what_lies_within_the_load_counts() {
        let begin = Instant::now();
        let at = |millis| begin + Duration::from_millis(millis);
        // Idle before the load and after it; half of the time within.
        let notes: Vec<Note> = (0..100)
            .map(|n: u64| {
                let millis = n * 20;
                let idle = match millis {
                    0..500 => millis / 10,
                    500..1500 => 50 + (millis - 500) / 20,
                    _ => 100 + (millis - 1500) / 10,
                };
                (at(millis), idle)
            })
            .collect();
        let seconds = Duration::from_secs(1);
        let busy = busy_before(&notes, at(1600), seconds).expect("a share");
        assert!((busy - 0.5).abs() < 0.03, "{busy}");
        let short = Duration::from_millis(150);
        assert_eq!(busy_before(&notes, at(1600), short), None);
    }
}
