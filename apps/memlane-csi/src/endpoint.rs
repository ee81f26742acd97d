//! The unix socket at which the orchestrator calls. Only one plugin has it.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use tokio::net::UnixListener;

/// A socket that listens, and the lock that keeps a second plugin from taking it.
pub struct Endpoint {
    /// The socket.
    pub listener: UnixListener,
    _lock: File,
}

/// Why there is no socket.
#[derive(Debug)]
pub enum EndpointError {
    /// Another plugin has it.
    Taken(PathBuf),
    /// It cannot be made.
    Io(PathBuf, io::Error),
}

impl std::fmt::Display for EndpointError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            EndpointError::Taken(path) => {
                write!(f, "another memlane-csi listens at {}", path.display())
            }
            EndpointError::Io(path, error) => write!(f, "{}: {error}", path.display()),
        }
    }
}

impl std::error::Error for EndpointError {}

/// Reads an endpoint as the orchestrator's helpers write it: `unix:///PATH`, or a path.
///
/// # Errors
/// Says what is wrong.
pub fn path(text: &str) -> Result<PathBuf, String> {
    let path = text.strip_prefix("unix://").unwrap_or(text);
    match path.starts_with('/') {
        true => Ok(PathBuf::from(path)),
        false => Err("unix:///PATH is needed, or a path that begins with /".to_owned()),
    }
}

impl Endpoint {
    /// Listens at a path, in a folder that is made if it is not there. A socket that a killed plugin has left is replaced.
    ///
    /// # Errors
    /// Another plugin listens there, or something else is there.
    pub fn listen(path: &Path) -> Result<Endpoint, EndpointError> {
        let io = |error| EndpointError::Io(path.to_path_buf(), error);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(io)?;
        }
        let lock = File::create(lock_of(path)).map_err(io)?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(EndpointError::Taken(path.to_path_buf()));
        }
        if fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket()) {
            fs::remove_file(path).map_err(io)?;
        }
        let listener = UnixListener::bind(path).map_err(io)?;
        fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(io)?;
        Ok(Endpoint {
            listener,
            _lock: lock,
        })
    }
}

/// The file beside a socket that says who has it: a socket itself cannot be locked.
fn lock_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_second_plugin_is_told_and_a_dead_ones_socket_is_taken() {
        let folder = std::env::temp_dir().join(format!("memlane-csi-end-{}", std::process::id()));
        let at = folder.join("plugin/csi.sock");
        drop(Endpoint::listen(&at).expect("its folder is made"));
        fs::remove_file(&at).expect("removed");
        // The socket of a plugin that was killed.
        drop(std::os::unix::net::UnixListener::bind(&at).expect("a socket"));
        let first = Endpoint::listen(&at).expect("free");
        let second = Endpoint::listen(&at).err().expect("taken");
        assert!(matches!(second, EndpointError::Taken(_)), "{second}");
        drop(first);
        assert!(Endpoint::listen(&at).is_ok());
        fs::remove_file(&at).expect("removed");
        fs::write(&at, "somebody's").expect("a file");
        assert!(matches!(Endpoint::listen(&at), Err(EndpointError::Io(..))));
        fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn an_endpoint_is_a_path_or_a_unix_uri() {
        assert_eq!(
            path("unix:///csi/csi.sock"),
            Ok(PathBuf::from("/csi/csi.sock"))
        );
        assert_eq!(path("/csi.sock"), Ok(PathBuf::from("/csi.sock")));
        for wrong in ["", "csi.sock", "tcp://127.0.0.1:1", "unix://a"] {
            assert!(path(wrong).is_err(), "{wrong}");
        }
    }
}
