//! Joins two ends, and joins them again when the other process of a link has come back.

use std::sync::Arc;

use memlane_packet_ends::join::{Join, Over, Side, Terms, run_all};
use memlane_packet_ends::{End, EndError};

use super::args::{Job, Kind};
use super::attach::{AttachedLink, Attacher, Stops};
use super::documents::{End as EndDocument, Last};
use super::progress::Progress;
use super::watched::Watched;
use super::{metrics, stats};
use crate::cli::exit::{Exit, fail};
use crate::cli::out;
use crate::daemon::service;

/// Why it is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ending {
    Signal,
    /// That was all: of a count, of a file, of the time.
    Finished,
    /// And nobody waits for another.
    LinkGone,
}

/// Does the job; the exit code says what became of it.
pub(super) fn run(job: &Job) -> anyhow::Result<Exit> {
    let (watched, _name) = stats::show(job)?;
    if let Some(at) = job.metrics {
        metrics::serve(at, &watched)?;
    }
    let queues = [0, 1].map(|n| {
        let end = &job.ends[n];
        end.place.open(&end.label, job.queues)
    });
    let [a, b] = queues;
    let mut work = Work {
        job,
        stops: Stops::new(job.seconds)?,
        queues: [a?, b?],
        held: [None, None],
        links: [Attacher::open(job, 0)?, Attacher::open(job, 1)?],
        watched: &watched,
    };
    service::ready();
    let progress = Progress::start(job, &watched)?;
    let ending = work.serve();
    drop(progress);
    service::stopping();
    let ending = ending?;
    judge(job, &watched, ending)
}

struct Work<'a> {
    job: &'a Job,
    stops: Stops,
    /// Of both ends; those of a link as long as it is attached.
    queues: [Vec<Box<dyn End>>; 2],
    held: [Option<AttachedLink>; 2],
    links: [Option<Attacher<'a>>; 2],
    watched: &'a Watched,
}

impl Work<'_> {
    fn serve(&mut self) -> anyhow::Result<Ending> {
        let mut first = true;
        loop {
            if !self.attach(first)? {
                return Ok(self.stopped());
            }
            first = false;
            let Some((n, error)) = self.join()? else {
                return Ok(self.stopped());
            };
            let label = &self.job.ends[n].label;
            if !self.job.ends[n].place.is_link() {
                return match error {
                    EndError::Finished => Ok(Ending::Finished),
                    error => Err(fail(Exit::Failed, format!("{label}: {error}"))),
                };
            }
            let said = self.held[n].as_ref().and_then(AttachedLink::ended);
            let why = said.unwrap_or_else(|| error.to_string());
            self.watched.parted(n, &why);
            let next = match self.job.once {
                true => "",
                false => "; waiting for another",
            };
            out::note(&format!("{label}: {why}{next}"));
            // Before the link: they look at what it has mapped.
            self.queues[n].clear();
            if let (Some(held), EndError::Detached(why)) = (self.held[n].take(), &error) {
                held.close(why);
            }
            if self.job.once {
                return Ok(Ending::LinkGone);
            }
        }
    }

    fn stopped(&self) -> Ending {
        match self.stops.signalled() {
            true => Ending::Signal,
            false => Ending::Finished,
        }
    }

    /// Has each end that is a link be attached: both at first, later the one that has ended, while the other's frames
    /// wait for it. `false`: we are to stop.
    fn attach(&mut self, first: bool) -> anyhow::Result<bool> {
        let limit = self.job.wait.filter(|_| first);
        for n in [0, 1] {
            let Some(attacher) = self.links[n].as_ref().filter(|_| self.held[n].is_none()) else {
                continue;
            };
            self.watched.waits(&self.job.ends[n].place.awaited());
            let Some(mut held) = attacher.attach(&self.stops, first, limit)? else {
                return Ok(false);
            };
            self.queues[n] = std::mem::take(&mut held.queues);
            self.watched.attached(n, held.attached());
            self.held[n] = Some(held);
        }
        Ok(true)
    }

    /// Joins the ends' queues until one is over, which is told; `None`: we are to stop.
    fn join(&mut self) -> anyhow::Result<Option<(usize, EndError)>> {
        let terms = Terms {
            spin: self.job.spin,
            ..Terms::default()
        };
        let [a, b] = &mut self.queues;
        let mut joins = Vec::new();
        for (a, b) in a.drain(..).zip(b.drain(..)) {
            joins.push(Join::new(a, b, terms)?);
        }
        self.stops.start()?;
        let boards = [0, 1].map(|n| {
            joins
                .iter()
                .map(|join| Arc::clone(&join.boards()[n]))
                .collect()
        });
        self.watched.joined(boards);
        self.say_linked();
        let overs = run_all(&mut joins, &self.stops.all())?;
        for join in joins {
            let [left, right] = join.into_ends();
            self.queues[0].push(left);
            self.queues[1].push(right);
        }
        let ended = overs.into_iter().find_map(|over| match over {
            Over::Ended(Side::A, error) => Some((0, error)),
            Over::Ended(Side::B, error) => Some((1, error)),
            Over::Stopped => None,
        });
        Ok(ended)
    }

    fn say_linked(&self) {
        let how: String = self.held.iter().flatten().map(AttachedLink::how).collect();
        let [a, b] = &self.job.ends;
        out::note(&format!(
            "linked: {} and {}, {} queue(s){how}",
            a.label, b.label, self.job.queues
        ));
    }
}

/// Says what was counted, and whether that is what was asked for.
fn judge(job: &Job, watched: &Watched, ending: Ending) -> anyhow::Result<Exit> {
    let ends = watched.ends();
    if let Some(text) = unsent(job, &ends[0], ending) {
        return Err(fail(Exit::Failed, text));
    }
    let ok = (job.kind == Kind::Sink).then(|| all_came(job, &ends[1]));
    let (attaches, seconds) = watched.history();
    let last = Last {
        schema: job.kind.schema(),
        ok,
        seconds,
        attaches,
        ends: &ends,
    };
    let text = match job.json {
        true => out::json(&last)?,
        false => ends.iter().map(EndDocument::text).collect(),
    };
    out::print(&text)?;
    Ok(match ok {
        Some(false) => Exit::Lost,
        _ => Exit::Ok,
    })
}

/// What a generator still had when its link went.
fn unsent(job: &Job, generator: &EndDocument, ending: Ending) -> Option<String> {
    let sent = generator.counts.received;
    let short = job.kind == Kind::Gen && ending == Ending::LinkGone && sent < job.count;
    short.then(|| format!("the link went after {sent} of {} frames", job.count))
}

fn all_came(job: &Job, sink: &EndDocument) -> bool {
    let seen = sink.verdict.as_ref();
    seen.is_some_and(|seen| seen.is_fine() && seen.good >= job.count)
}
