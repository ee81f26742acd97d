//! What is written beside a volume's data.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tonic::Status;

use super::failed;
use crate::parameters::Parameters;

const FILE: &str = "about.json";

/// What a volume or snapshot is a copy of, by identifier.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// A volume.
    Volume(String),
    /// A snapshot.
    Snapshot(String),
}

/// What was asked for when a volume or snapshot was made. Sizes are not here: the data says how large it is.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(super) struct About {
    /// The orchestrator's name for it.
    name: String,
    /// Seconds since 1970.
    pub(super) made: u64,
    pub(super) source: Option<Source>,
    #[serde(default)]
    pub(super) parameters: Parameters,
}

impl About {
    pub(super) fn of_volume(name: &str, parameters: &Parameters, source: Option<&Source>) -> About {
        About {
            name: name.to_owned(),
            made: now(),
            source: source.cloned(),
            parameters: parameters.clone(),
        }
    }

    pub(super) fn of_snapshot(name: &str, of: &str) -> About {
        let source = Source::Volume(of.to_owned());
        About::of_volume(name, &Parameters::default(), Some(&source))
    }

    pub(super) fn read(folder: &Path) -> Result<About, Status> {
        let file = folder.join(FILE);
        let text = fs::read(&file).map_err(|error| failed("reading", &file, &error))?;
        serde_json::from_slice(&text).map_err(|error| {
            let why = format!("{} is damaged: {error}", file.display());
            Status::data_loss(why)
        })
    }

    /// Writes it into a folder that nobody else sees yet.
    pub(super) fn write(&self, folder: &Path) -> Result<(), Status> {
        let file = folder.join(FILE);
        let text =
            serde_json::to_vec_pretty(self).map_err(|error| Status::internal(error.to_string()))?;
        fs::File::create(&file)
            .and_then(|mut written| {
                written.write_all(&text)?;
                written.sync_all()
            })
            .map_err(|error| failed("writing", &file, &error))
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
