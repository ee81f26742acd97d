//! Certificates: folders as QEMU and nbdkit have them, read when a process starts, and again when they change.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use memlane_transport::io::tls::{ClientTls, ServerTls, TlsFiles};
use serde::{Deserialize, Serialize};

use crate::cli::exit::{Exit, fail};

/// How often files are looked at.
pub(super) const LOOK: Duration = Duration::from_secs(2);

/// How a session's paths over TCP are encrypted.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub(crate) struct TlsSpec {
    /// With `ca-cert.pem`, `client-cert.pem`, `client-key.pem`; absolute.
    pub(crate) folder: PathBuf,
    /// The server's name; none: each path's address.
    pub(crate) name: Option<String>,
}

/// A folder as a flag names it, for a process that works elsewhere.
pub(super) fn folder(text: &str) -> Result<PathBuf, String> {
    let folder = std::path::absolute(text).map_err(|error| error.to_string())?;
    match folder.is_dir() {
        true => Ok(folder),
        false => Err("not a folder".into()),
    }
}

/// Loads a server's certificates. The error names a file that is missing or wrong.
pub(super) fn server(folder: &Path) -> anyhow::Result<(ServerTls, Renewal)> {
    let tls = ServerTls::load(&TlsFiles::of_server(folder)).map_err(unusable)?;
    Ok((tls, Renewal::new(folder, TlsFiles::of_server)))
}

/// Loads a client's certificates. The error names a file that is missing or wrong.
pub(super) fn client(spec: &TlsSpec) -> anyhow::Result<(ClientTls, Renewal)> {
    let files = TlsFiles::of_client(&spec.folder);
    let tls = ClientTls::load(&files, spec.name.as_deref()).map_err(unusable)?;
    Ok((tls, Renewal::new(&spec.folder, TlsFiles::of_client)))
}

fn unusable(error: std::io::Error) -> anyhow::Error {
    fail(Exit::Usage, format!("no TLS: {error}"))
}

/// Looks whether certificates were renewed.
pub(super) struct Renewal {
    folder: PathBuf,
    files: fn(&Path) -> TlsFiles,
    /// Files, and when they were written.
    seen: Vec<(PathBuf, Option<SystemTime>)>,
    next: Instant,
}

impl Renewal {
    fn new(folder: &Path, files: fn(&Path) -> TlsFiles) -> Renewal {
        Renewal {
            folder: folder.to_owned(),
            files,
            seen: times(&files(folder)),
            next: Instant::now() + LOOK,
        }
    }

    /// If they have changed since they were looked at: which to read. Looks now and then, however often it is asked.
    pub(super) fn due(&mut self) -> Option<TlsFiles> {
        let now = Instant::now();
        if now < self.next {
            return None;
        }
        self.next = now + LOOK;
        let files = (self.files)(&self.folder);
        let times = times(&files);
        let changed = times != self.seen;
        self.seen = times;
        changed.then_some(files)
    }
}

fn times(files: &TlsFiles) -> Vec<(PathBuf, Option<SystemTime>)> {
    let all = [Some(&files.certificate), Some(&files.key)];
    let all = all
        .into_iter()
        .chain([files.authority.as_ref(), files.revoked.as_ref()]);
    let written = |path: &PathBuf| {
        std::fs::metadata(path)
            .and_then(|file| file.modified())
            .ok()
    };
    all.flatten()
        .map(|path| (path.clone(), written(path)))
        .collect()
}
