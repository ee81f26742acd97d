//! Certificates, made by openssl with the commands of `docs/guides/volumes.md`.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::must;
use crate::harness::TempDir;

/// An authority, and the folders of who has a certificate of it.
#[derive(Debug)]
pub struct Authority {
    dir: TempDir,
}

impl Authority {
    /// A new one.
    ///
    /// # Panics
    /// If openssl does not make it.
    pub fn new(label: &str) -> Authority {
        let dir = TempDir::new(label);
        let name = format!("/CN={label}");
        openssl(
            dir.path(),
            &[
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
                "-nodes",
                "-days",
                "3650",
                "-subj",
                &name,
                "-keyout",
                "ca-key.pem",
                "-out",
                "ca-cert.pem",
            ],
        );
        Authority { dir }
    }

    /// Its own certificate.
    pub fn certificate(&self) -> PathBuf {
        self.dir.path().join("ca-cert.pem")
    }

    /// A folder for a server with these names (`DNS:…`, `IP:…`).
    ///
    /// # Panics
    /// If openssl does not make it.
    pub fn server(&self, folder: &str, names: &str) -> PathBuf {
        self.issue(folder, "server", names)
    }

    /// A folder for a client with these sessions (`URI:memlane:session/…`).
    ///
    /// # Panics
    /// If openssl does not make it.
    pub fn client(&self, folder: &str, sessions: &str) -> PathBuf {
        self.issue(folder, "client", sessions)
    }

    fn issue(&self, folder: &str, who: &str, names: &str) -> PathBuf {
        let at = self.dir.path().join(folder);
        std::fs::create_dir_all(&at).expect("a folder");
        let (key, cert) = (format!("{who}-key.pem"), format!("{who}-cert.pem"));
        let subject = format!("/CN={who}");
        openssl(
            &at,
            &[
                "req",
                "-new",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
                "-nodes",
                "-subj",
                &subject,
                "-keyout",
                &key,
                "-out",
                "request.pem",
            ],
        );
        let extensions = format!("subjectAltName={names}\nextendedKeyUsage={who}Auth\n");
        std::fs::write(at.join("extensions"), extensions).expect("a file");
        openssl(
            &at,
            &[
                "x509",
                "-req",
                "-days",
                "825",
                "-in",
                "request.pem",
                "-extfile",
                "extensions",
                "-CA",
                "../ca-cert.pem",
                "-CAkey",
                "../ca-key.pem",
                "-CAcreateserial",
                "-out",
                &cert,
            ],
        );
        std::fs::copy(self.certificate(), at.join("ca-cert.pem")).expect("a copy");
        at
    }
}

fn openssl(at: &Path, args: &[&str]) {
    let mut command = Command::new("openssl");
    command.current_dir(at).args(args);
    must(command);
}
