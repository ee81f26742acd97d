//! The question that every process with a control socket understands.

use std::time::Duration;

use memlane_observe::control::Question;
use serde::{Deserialize, Serialize};

/// What a process is asked for.
#[derive(Serialize, Deserialize, Debug)]
#[serde(tag = "verb", rename_all = "kebab-case")]
pub(crate) enum Look {
    /// Everything about the process.
    Describe,
}

impl Question for Look {
    fn is_read_only(&self) -> bool {
        true
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs(1)
    }
}
