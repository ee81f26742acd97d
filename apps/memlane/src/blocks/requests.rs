//! What the verbs of volumes ask of the processes that serve and map.

use std::time::Duration;

use memlane_observe::control::Question;
use serde::{Deserialize, Serialize};

use super::spec::{MapSpec, Memory, PathSpec};
use super::tls::TlsSpec;
use crate::cli::device::Device;

/// How long a description may take: a process gives it at once, unless it is stopped or carries out a change.
const GLANCE: Duration = Duration::from_secs(10);
/// How long a change may take, beside the wait that it asks for itself.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is asked.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq)]
#[serde(tag = "verb", rename_all = "kebab-case")]
pub(crate) enum Request {
    /// Everything about it.
    Describe,
    /// Map one more volume, of the server at these paths.
    Map {
        spec: MapSpec,
        paths: Vec<PathSpec>,
        #[serde(default)]
        tls: Option<TlsSpec>,
        #[serde(default)]
        memory: Option<Memory>,
        #[serde(default)]
        device: Option<Device>,
        wait: Duration,
    },
    /// End, if no volume is mapped any more: somebody needs the name for something else. The reply says whether it does.
    GiveWay,
    /// End a mapping.
    Unmap { volume: String, force: bool },
    /// Open a volume on the server again, now.
    Remap { volume: String },
    /// Add a path.
    AddPath { path: PathSpec },
    /// Remove a path; `path` is its text in `session show`.
    RemovePath { path: String },
    /// Take a volume from a session that will not come back (servers).
    Release { volume: String, session: String },
    /// Change a volume's size (servers).
    Resize { volume: String, size: u64 },
}

impl Question for Request {
    fn is_read_only(&self) -> bool {
        *self == Request::Describe
    }

    fn timeout(&self) -> Duration {
        match self {
            Request::Describe => GLANCE,
            Request::Map { wait, .. } => PATIENCE.saturating_add(*wait),
            _ => PATIENCE,
        }
    }
}
