//! A volume that is shown to programs, whatever is under it.

use std::sync::Arc;

use memlane_block::client::{RemoteVolume, Status};
use memlane_block::store::Failure;
use memlane_block::volume::Volume;
use memlane_block::volume::local::LocalVolume;
use memlane_block::volume::stats::VolumeStats;

use super::documents;
use super::frontend::{self, Shown};
use super::spec::MapSpec;
use crate::cli::exit::{Exit, fail};

/// What a mapping tells about the volume under it.
pub(super) trait Told: Volume + 'static {
    /// Whether this machine has it, without a server.
    const DIRECT: bool;

    /// What it has done.
    fn stats(&self) -> VolumeStats;

    /// `ok`, or why it is not.
    fn status(&self) -> String;

    /// The last request that this machine could not carry out.
    fn last_failure(&self) -> Option<Failure>;

    /// Does a server lend its memory?
    fn is_lent(&self) -> bool;
}

impl Told for RemoteVolume {
    const DIRECT: bool = false;

    fn stats(&self) -> VolumeStats {
        self.stats()
    }

    fn status(&self) -> String {
        match self.status() {
            Status::Open => "ok".into(),
            Status::Reopening(None) => "being opened again".into(),
            Status::Reopening(Some(why)) => format!("being opened again: {why}"),
            Status::Failed(why) => format!("failed: {why}"),
            Status::Closed => "closed".into(),
        }
    }

    fn last_failure(&self) -> Option<Failure> {
        None
    }

    fn is_lent(&self) -> bool {
        self.is_lent()
    }
}

impl Told for LocalVolume {
    const DIRECT: bool = true;

    fn stats(&self) -> VolumeStats {
        self.stats()
    }

    fn status(&self) -> String {
        "ok".into()
    }

    fn last_failure(&self) -> Option<Failure> {
        self.failure()
    }

    fn is_lent(&self) -> bool {
        false
    }
}

/// A shown volume.
pub(super) struct Mapping<V> {
    pub(super) spec: MapSpec,
    pub(super) volume: Arc<V>,
    pub(super) shown: Box<dyn Shown>,
    /// As it was at the last look.
    size: u64,
    status: String,
}

impl<V: Told> Mapping<V> {
    /// Shows `volume`, which programs see by `name`; `owner` is as [`frontend::show`] has it.
    pub(super) fn show(
        volume: Arc<V>,
        name: &str,
        owner: &str,
        spec: MapSpec,
    ) -> anyhow::Result<Mapping<V>> {
        let shared: Arc<dyn Volume> = Arc::clone(&volume) as _;
        let shown = frontend::show(shared, name, owner, &spec)?;
        Ok(Mapping {
            size: volume.info().size,
            status: volume.status(),
            spec,
            volume,
            shown,
        })
    }

    /// Notices a new size and a new status, and says them.
    pub(super) fn look(&mut self) -> Vec<String> {
        let name = &self.spec.volume;
        let (size, status) = (self.volume.info().size, self.volume.status());
        let mut news = Vec::new();
        if size != std::mem::replace(&mut self.size, size) {
            self.shown.resized();
            news.push(format!("{name} has {size} bytes now"));
        }
        if status != self.status {
            news.push(format!("{name}: {status}"));
            self.status = status;
        }
        news
    }

    pub(super) fn document(&self, session: &str) -> documents::Volume {
        let info = self.volume.info();
        documents::Volume {
            volume: self.spec.volume.clone(),
            session: session.to_owned(),
            direct: V::DIRECT,
            lent: self.volume.is_lent(),
            access: self.spec.access,
            frontend: self.spec.frontend.to_string(),
            shown_as: self.shown.place(),
            size: info.size,
            block: info.block,
            read_only: info.read_only,
            state: self.volume.status(),
            last_error: self.volume.last_failure().as_ref().map(failure_text),
            counters: self.volume.stats().into(),
        }
    }
}

/// The error of a volume that is shown already.
pub(super) fn is_mapped(volume: &str) -> anyhow::Error {
    let text = format!("{volume:?} is mapped already; `memlane vol show` says where");
    fail(Exit::Failed, text)
}

/// Refuses certificates for what is not an NBD export.
pub(super) fn check_frontend(spec: &MapSpec) -> anyhow::Result<()> {
    if spec.nbd_tls.is_none() || spec.frontend.is_nbd() {
        return Ok(());
    }
    let text = format!(
        "{} is not an NBD export: --nbd-tls means nothing to it",
        spec.frontend
    );
    Err(fail(Exit::Usage, text))
}

/// A failed request, for people.
pub(super) fn failure_text(failure: &Failure) -> String {
    let os = std::io::Error::from_raw_os_error(failure.errno.0);
    let why = failure.why.clone().unwrap_or_else(|| os.to_string());
    format!(
        "{:?} of {} bytes at {}: {why}",
        failure.op, failure.len, failure.at
    )
}
