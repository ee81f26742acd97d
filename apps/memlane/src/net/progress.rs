//! A line on the terminal that changes while frames go, and lines of text that do not collide with it.

use std::io::IsTerminal as _;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::args::{Job, Kind};
use super::documents::{End, Process};
use super::watched::Watched;
use crate::cli::out;

/// How often it changes.
const EVERY: Duration = Duration::from_secs(1);

/// Draws until it is dropped.
#[derive(Debug)]
pub(super) struct Progress(Option<(Sender<()>, JoinHandle<()>)>);

impl Progress {
    /// Of a generator or a sink, if a person looks.
    pub(super) fn start(job: &Job, watched: &Arc<Watched>) -> anyhow::Result<Progress> {
        let moves = matches!(job.kind, Kind::Gen | Kind::Sink);
        if !moves || !std::io::stderr().is_terminal() {
            return Ok(Progress(None));
        }
        let (end, ended) = channel();
        let (watched, kind) = (Arc::clone(watched), job.kind);
        let thread = std::thread::Builder::new().name("progress".into());
        let thread = thread.spawn(move || {
            let mut before = (Instant::now(), Moved::default());
            while ended.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                let process = watched.describe();
                let now = (Instant::now(), Moved::of(kind, &process));
                let seconds = now.0.duration_since(before.0).as_secs_f64();
                let text = line(kind, &process, rate(&before.1, &now.1, seconds));
                out::draw(&text);
                before = now;
            }
        })?;
        Ok(Progress(Some((end, thread))))
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.0.take() {
            drop(end);
            let _ = thread.join();
            out::clear();
        }
    }
}

/// How far it has come.
#[derive(Clone, Copy, Default, Debug)]
struct Moved {
    frames: u64,
    bytes: u64,
}

/// The end that is the verb's own.
fn own(kind: Kind, process: &Process) -> Option<&End> {
    process.ends.get(usize::from(kind == Kind::Sink))
}

impl Moved {
    fn of(kind: Kind, process: &Process) -> Moved {
        let counts = own(kind, process).map(|end| end.counts);
        let counts = counts.unwrap_or_default();
        match kind {
            Kind::Sink => Moved {
                frames: counts.sent,
                bytes: counts.sent_bytes,
            },
            _ => Moved {
                frames: counts.received,
                bytes: counts.received_bytes,
            },
        }
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a rate, of which three digits are shown"
)]
fn rate(before: &Moved, now: &Moved, seconds: f64) -> String {
    let each = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds.max(1e-3);
    let frames = each(now.frames, before.frames);
    let bits = 8.0 * each(now.bytes, before.bytes);
    format!("{}frames/s, {}bit/s", short(frames), short(bits))
}

/// Three digits and a unit: `1.25 M`.
pub(super) fn short(number: f64) -> String {
    let units = [(1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")];
    let (size, unit) = units
        .into_iter()
        .find(|(size, _)| number >= *size)
        .unwrap_or((1.0, ""));
    let scaled = number / size;
    let digits = match scaled {
        n if n >= 100.0 => 0,
        n if n >= 10.0 => 1,
        _ => 2,
    };
    format!("{scaled:.digits$} {unit}")
}

fn line(kind: Kind, process: &Process, rate: String) -> String {
    if let Some(whom) = &process.waiting_for {
        return format!("{}: waiting for {whom}", kind.word());
    }
    let Some(end) = own(kind, process) else {
        return rate;
    };
    let seen = match &end.verdict {
        Some(seen) => format!(
            "{} good, {} missing, {} twice, {} changed",
            seen.good, seen.missing, seen.twice, seen.changed
        ),
        None => format!("{} frames", end.counts.received),
    };
    format!("{}: {rate}; {seen}", kind.word())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        for (number, text) in [
            (0.0, "0.00 "),
            (7.0, "7.00 "),
            (999.0, "999 "),
            (1000.0, "1.00 k"),
            (12_345.0, "12.3 k"),
            (1.25e6, "1.25 M"),
            (6.4e11, "640 G"),
        ] {
            assert_eq!(short(number), text);
        }
    }

    #[test]
    fn a_rate_is_what_came_since_the_last_look() {
        let at = |frames| Moved {
            frames,
            bytes: 100 * frames,
        };
        assert_eq!(
            rate(&at(1000), &at(3000), 2.0),
            "1.00 kframes/s, 800 kbit/s"
        );
    }
}
