//! Copies of a client's certificates, for mappings that outlive the container whose files those are.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often the files are looked at.
const LOOK: Duration = Duration::from_secs(2);
/// What `memlane map --tls` reads. The certificate comes after its key: who sees a new one finds both.
const FILES: [&str; 4] = [
    "ca-cert.pem",
    "client-key.pem",
    "client-cert.pem",
    "ca-crl.pem",
];

/// The bytes of each file; `None`: it is not there.
type Contents = [Option<Vec<u8>>; FILES.len()];

/// A folder whose files are those of another one.
pub struct Copies {
    from: PathBuf,
    to: PathBuf,
    copied: Contents,
}

impl Copies {
    /// Copies the files of `from` to the folder `to`, which only its owner can read.
    ///
    /// # Errors
    /// They cannot be read or written. Only a list of revoked certificates may be missing.
    pub fn make(from: PathBuf, to: PathBuf) -> io::Result<Copies> {
        DirBuilder::new().recursive(true).mode(0o700).create(&to)?;
        let copied = contents(&from)?;
        write(&copied, &to)?;
        Ok(Copies { from, to, copied })
    }

    /// Copies them again whenever they have changed, for ever.
    pub async fn keep(mut self) {
        let mut said = None;
        loop {
            tokio::time::sleep(LOOK).await;
            let failed = self.look().err().map(|error| error.to_string());
            if let Some(why) = &failed
                && failed != said
            {
                eprintln!("memlane-csi: certificates for mappings are not renewed: {why}");
            }
            said = failed;
        }
    }

    fn look(&mut self) -> io::Result<()> {
        let now = contents(&self.from)?;
        if now != self.copied {
            write(&now, &self.to)?;
            self.copied = now;
        }
        Ok(())
    }
}

fn contents(folder: &Path) -> io::Result<Contents> {
    let mut all = Contents::default();
    for (name, content) in FILES.into_iter().zip(&mut all) {
        let file = folder.join(name);
        *content = match fs::read(&file) {
            Ok(bytes) => Some(bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound && name == "ca-crl.pem" => None,
            Err(error) => return Err(at(&file, &error)),
        };
    }
    Ok(all)
}

/// Writes each file in one step.
fn write(all: &Contents, folder: &Path) -> io::Result<()> {
    for (name, content) in FILES.into_iter().zip(all) {
        let (file, new) = (folder.join(name), folder.join(format!(".{name}.new")));
        let done = match content {
            Some(bytes) => write_file(&new, bytes).and_then(|()| fs::rename(&new, &file)),
            None => match fs::remove_file(&file) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                removed => removed,
            },
        };
        done.map_err(|error| at(&file, &error))?;
    }
    Ok(())
}

fn write_file(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = File::options();
    let options = options.write(true).create(true).truncate(true).mode(0o600);
    options.open(file)?.write_all(bytes)
}

fn at(file: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn copies_follow_their_source_and_only_their_owner_reads_them() {
        let dir = std::env::temp_dir().join(format!("memlane-copies-{}", std::process::id()));
        let (from, to) = (dir.join("from"), dir.join("state/tls"));
        fs::create_dir_all(&from).expect("a folder");
        assert!(
            Copies::make(from.clone(), to.clone()).is_err(),
            "nothing there"
        );
        for name in &FILES[..3] {
            fs::write(from.join(name), name).expect("written");
        }
        let mut copies = Copies::make(from.clone(), to.clone()).expect("copied");
        let read = |name: &str| fs::read_to_string(to.join(name)).ok();
        assert_eq!(read("client-key.pem").as_deref(), Some("client-key.pem"));
        assert_eq!(read("ca-crl.pem"), None);
        let mode = |file: &Path| fs::metadata(file).expect("there").permissions().mode() & 0o777;
        assert_eq!(
            (mode(&to), mode(&to.join("client-key.pem"))),
            (0o700, 0o600)
        );
        fs::write(from.join("ca-cert.pem"), "another").expect("written");
        fs::write(from.join("ca-crl.pem"), "revoked").expect("written");
        copies.look().expect("copied");
        assert_eq!(read("ca-cert.pem").as_deref(), Some("another"));
        assert_eq!(read("ca-crl.pem").as_deref(), Some("revoked"));
        // What is gone at the source is gone here, too, but for what every mapping needs.
        fs::remove_file(from.join("ca-crl.pem")).expect("removed");
        copies.look().expect("copied");
        assert_eq!(read("ca-crl.pem"), None);
        fs::remove_file(from.join("ca-cert.pem")).expect("removed");
        assert!(copies.look().is_err());
        assert_eq!(read("ca-cert.pem").as_deref(), Some("another"));
        fs::remove_dir_all(&dir).expect("removed");
    }
}
