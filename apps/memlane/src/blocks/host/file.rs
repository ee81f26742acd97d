//! A file or block device of this machine, shown without a server: `memlane map file:PATH`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use memlane_block::client::Changes;
use memlane_block::volume::local::{LocalVolume, Options};

use super::{Events, Host};
use crate::blocks::mapping::{self, Mapping};
use crate::blocks::requests::Request;
use crate::blocks::spec::{Access, FileSpec, MapSpec};
use crate::blocks::{documents, frontend};
use crate::cli::exit::{Exit, fail};

/// How often the file's size is looked at; [`LocalVolume`] looks no more often.
const LOOK: Duration = Duration::from_secs(1);
/// What a file of this machine is called, as a server and as a volume: `file:PATH`.
const PREFIX: &str = "file:";
/// Letters of a file's own name that the name of its process has.
const MOST_LETTERS: usize = 32;

/// The path of `file:PATH`, complete; `None`: it is a server's address, or the name of a served volume.
pub(in crate::blocks) fn path_of(server: &str) -> Option<anyhow::Result<PathBuf>> {
    let path = server.strip_prefix(PREFIX)?;
    let path = std::path::absolute(path).with_context(|| format!("{server:?} names no file"));
    Some(path)
}

/// What the volume of a file is called.
pub(in crate::blocks) fn volume_name(path: &Path) -> String {
    format!("{PREFIX}{}", path.display())
}

/// What the process behind a file is called: its name, and what tells apart files of one name.
pub(in crate::blocks) fn process_name(path: &Path) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let letters = base_name(path);
    let letters: String = letters.chars().map(plain).take(MOST_LETTERS).collect();
    let hash = frontend::hash(&path.to_string_lossy());
    format!("{PREFIX}{letters}-{hash:016x}")
}

fn base_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// The process behind a mapped file.
pub(in crate::blocks) struct FileHost {
    spec: FileSpec,
    mapping: Option<Mapping<LocalVolume>>,
    events: Events,
    changes: Arc<Changes>,
    /// Since when nothing is mapped.
    idle: Instant,
    /// The first mapping failed.
    ends_at_once: bool,
}

impl FileHost {
    pub(in crate::blocks) fn new(spec: FileSpec) -> anyhow::Result<FileHost> {
        memlane_block::store::allow_mappings();
        Ok(FileHost {
            spec,
            mapping: None,
            events: Events::default(),
            changes: Arc::new(Changes::new()?),
            idle: Instant::now(),
            ends_at_once: false,
        })
    }

    fn open(&self, access: Access) -> anyhow::Result<LocalVolume> {
        let options = Options {
            read_only: access == Access::Ro,
            ..Options::default()
        };
        let path = &self.spec.path;
        LocalVolume::open(path, options).map_err(|error| {
            let path = path.display();
            let text = match error.raw_os_error() {
                Some(libc::EBUSY) => format!(
                    "{path} is in use: another process of memlane writes to it (`memlane vol ls`), or it is mounted"
                ),
                Some(libc::EINVAL) => format!("{path} is neither a regular file nor a block device"),
                _ => format!("{path}: {error}"),
            };
            fail(Exit::Failed, text)
        })
    }

    fn mapped(&mut self, volume: &str) -> anyhow::Result<&mut Mapping<LocalVolume>> {
        let mapping = self.mapping.as_mut();
        mapping.with_context(|| format!("{volume:?} is not mapped"))
    }

    fn unmap(&mut self, volume: &str, force: bool) -> anyhow::Result<String> {
        self.mapped(volume)?.shown.end(force)?;
        self.mapping = None;
        self.idle = Instant::now();
        self.changes.signal();
        self.events.note(format!("{volume} unmapped"));
        Ok(format!("{volume} is not mapped any more"))
    }

    fn resize(&mut self, volume: &str, size: u64) -> anyhow::Result<String> {
        let mapping = self.mapped(volume)?;
        if mapping.spec.access == Access::Ro {
            let text = format!("{volume} is mapped read-only: its size cannot change here");
            return Err(fail(Exit::Failed, text));
        }
        let resized = mapping.volume.resize(size);
        resized.with_context(|| format!("cannot resize {volume}"))?;
        self.look();
        Ok(format!("{volume} has {size} bytes now"))
    }
}

impl Host for FileHost {
    fn map(&mut self, spec: MapSpec) -> anyhow::Result<String> {
        if self.mapping.is_some() {
            return Err(mapping::is_mapped(&spec.volume));
        }
        mapping::check_frontend(&spec)?;
        let volume = Arc::new(self.open(spec.access)?);
        let name = base_name(&self.spec.path);
        let mapping = Mapping::show(volume, &name, &self.spec.name, spec)?;
        let place = mapping.shown.place();
        let text = format!("{} mapped as {place}", mapping.spec.volume);
        self.events.note(text);
        self.mapping = Some(mapping);
        Ok(place)
    }

    fn obey(&mut self, request: Request) -> anyhow::Result<serde_json::Value> {
        match request {
            Request::Describe => Ok(serde_json::to_value(self.describe())?),
            Request::Map { spec, .. } => {
                let mapped = self.map(spec);
                self.ends_at_once = mapped.is_err() && self.mapping.is_none();
                // The watch thread begins to look at its size.
                self.changes.signal();
                mapped.map(Into::into)
            }
            // Only a process in the background does, and it answers this itself.
            Request::GiveWay => Ok(false.into()),
            Request::Unmap { volume, force } => self.unmap(&volume, force).map(Into::into),
            Request::Resize { volume, size } => self.resize(&volume, size).map(Into::into),
            Request::Remap { volume } => {
                let text = format!("{volume} has no server where it could be opened again");
                Err(fail(Exit::Usage, text))
            }
            Request::AddPath { .. } | Request::RemovePath { .. } | Request::Release { .. } => {
                let path = self.spec.path.display();
                let text =
                    format!("{path} is mapped without a server: it has no session and no paths");
                Err(fail(Exit::Usage, text))
            }
        }
    }

    fn describe(&self) -> documents::Session {
        let name = &self.spec.name;
        let mapping = self.mapping.iter();
        documents::Session {
            direct: true,
            volumes: mapping.map(|mapping| mapping.document(name)).collect(),
            events: self.events.list(),
            ..documents::Session::new(name)
        }
    }

    fn look(&mut self) {
        let news = self.mapping.as_mut().map(Mapping::look);
        for text in news.into_iter().flatten() {
            self.events.note(text);
        }
    }

    fn looks_every(&self) -> Option<Duration> {
        self.mapping.is_some().then_some(LOOK)
    }

    fn changes(&self) -> Arc<Changes> {
        Arc::clone(&self.changes)
    }

    fn idle_since(&self) -> Option<Instant> {
        self.mapping.is_none().then_some(self.idle)
    }

    fn ends_at_once(&self) -> bool {
        self.ends_at_once
    }

    fn close(&mut self) -> anyhow::Result<()> {
        match self.mapping.take() {
            Some(mut mapping) => mapping.shown.end(true),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_told_from_a_server_and_its_name_is_complete() {
        assert!(path_of("local").is_none() && path_of("192.0.2.1").is_none());
        let path = path_of("file:/srv/disk").expect("a file").expect("a path");
        assert_eq!(volume_name(&path), "file:/srv/disk");
        let relative = path_of("file:disk").expect("a file").expect("a path");
        assert!(relative.is_absolute() && relative.ends_with("disk"));
        assert!(path_of("file:").expect("a file").is_err());
    }

    #[test]
    fn files_of_one_name_have_processes_of_different_names() {
        let long = format!("/a/{}", "x.y".repeat(80));
        let names = ["/a/disk.raw", "/b/disk.raw", &long].map(|path| process_name(Path::new(path)));
        assert!(names[0].starts_with("file:disk-raw-"), "{}", names[0]);
        assert!(names[0] != names[1] && names.iter().all(|name| name.len() < 64));
    }
}
