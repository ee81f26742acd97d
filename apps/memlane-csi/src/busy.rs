//! Which volumes calls work on at this moment.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tonic::Status;

/// How often somebody who waits looks again.
const MOMENT: Duration = Duration::from_millis(5);

/// What calls work on, by identifier.
#[derive(Default)]
pub(crate) struct Busy(Mutex<HashSet<String>>);

impl Busy {
    /// Begins to work on something, until the value is dropped.
    pub(crate) fn begin(&self, id: &str) -> Result<Working<'_>, Status> {
        match self.lock().insert(id.to_owned()) {
            true => Ok(Working {
                busy: self,
                id: id.to_owned(),
            }),
            // The specification's answer: the orchestrator asks again.
            false => Err(Status::aborted(format!(
                "another call works on {id} at this moment"
            ))),
        }
    }

    /// The same for what others only do for a moment: it is waited for.
    pub(crate) fn wait(&self, id: &str, patience: Duration) -> Result<Working<'_>, Status> {
        let begin = Instant::now();
        loop {
            match self.begin(id) {
                Err(_) if begin.elapsed() < patience => std::thread::sleep(MOMENT),
                said => return said,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<String>> {
        // A set has no half-done states.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call's work on one volume or snapshot.
pub(crate) struct Working<'a> {
    busy: &'a Busy,
    id: String,
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.busy.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_call_for_the_same_volume_is_aborted_until_the_first_one_ends() {
        let busy = Busy::default();
        let first = busy.begin("a").expect("nobody works on it");
        let other = busy.begin("b").expect("nobody works on it");
        let error = busy.begin("a").err().expect("somebody works on it");
        assert_eq!(error.code(), tonic::Code::Aborted);
        let brief = Duration::from_millis(20);
        assert!(busy.wait("a", brief).is_err());
        drop((first, other));
        assert!(busy.wait("a", brief).is_ok() && busy.begin("a").is_ok());
    }
}
