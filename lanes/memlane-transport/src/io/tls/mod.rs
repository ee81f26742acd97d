//! TLS between machines: both ends show a certificate, and believe those of one authority.
//!
//! A server's certificate is for the name or address by which clients reach it. A client's says which sessions it may
//! have: a URI among its alternative names, `memlane:session/NAME`, for each; a star at the end stands for any rest.
//! Version 1.3 only, and no resumption: each connection's certificates are looked at.

#[cfg(test)]
#[path = "../../../tests/certs/mod.rs"]
pub(super) mod certs;
mod records;

pub(super) use records::Tls;

use crate::error::{CertificateFault, TlsError};
use memlane_wait::mutex::{read, write};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, IpAddr as PkiIp, PrivateKeyDer, ServerName,
};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{
    AlertDescription, CertificateError, Error, RootCertStore, SupportedProtocolVersion, version,
};
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};

/// What both ends must say that they speak (ALPN), so that a connection that was meant for another service of the same
/// authority is none.
const PROTOCOL: &[u8] = b"memlane/1";
/// What comes before a session's name in a certificate's URI.
const SESSION: &str = "memlane:session/";

/// One end's files, all PEM. As QEMU and nbdkit name them, one folder has them all.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsFiles {
    /// Our certificate, with those between it and the authority.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The authorities of the other end's certificates. `None`: nobody is asked for one (servers only).
    pub authority: Option<PathBuf>,
    /// Certificates that are not believed any more.
    pub revoked: Option<PathBuf>,
}

impl TlsFiles {
    /// A server's: `server-cert.pem`, `server-key.pem`, `ca-cert.pem` and perhaps `ca-crl.pem`.
    #[must_use]
    pub fn of_server(folder: &Path) -> TlsFiles {
        TlsFiles::of(folder, "server")
    }

    /// A client's: `client-cert.pem`, `client-key.pem`, `ca-cert.pem` and perhaps `ca-crl.pem`.
    #[must_use]
    pub fn of_client(folder: &Path) -> TlsFiles {
        TlsFiles::of(folder, "client")
    }

    fn of(folder: &Path, who: &str) -> TlsFiles {
        let revoked = folder.join("ca-crl.pem");
        TlsFiles {
            certificate: folder.join(format!("{who}-cert.pem")),
            key: folder.join(format!("{who}-key.pem")),
            authority: Some(folder.join("ca-cert.pem")),
            revoked: revoked.exists().then_some(revoked),
        }
    }

    /// What rustls wants of a server, for any protocol over these versions.
    ///
    /// # Errors
    /// `InvalidInput`: a file cannot be read, or has not what it should; it is named.
    pub fn server(
        &self,
        versions: &[&'static SupportedProtocolVersion],
    ) -> io::Result<rustls::ServerConfig> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions)
            .map_err(io::Error::other)?;
        let builder = match &self.authority {
            None => builder.with_no_client_auth(),
            Some(file) => {
                let verifier = WebPkiClientVerifier::builder_with_provider(roots(file)?, provider)
                    .with_crls(self.revocations()?)
                    .build()
                    .map_err(|e| wrong(file, e))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder
            .with_single_cert(certificates(&self.certificate)?, self.private()?)
            .map_err(|e| wrong(&self.certificate, e))?;
        // A resumed session would not be asked for its certificate again.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }

    /// What rustls wants of a client, for any protocol over these versions. Each connection shows its certificate: none is
    /// resumed.
    ///
    /// # Errors
    /// `InvalidInput`: a file cannot be read, or has not what it should; it is named.
    pub fn client(
        &self,
        versions: &[&'static SupportedProtocolVersion],
    ) -> io::Result<rustls::ClientConfig> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let Some(file) = &self.authority else {
            return Err(wrong(&self.certificate, "no authority beside it"));
        };
        let verifier =
            WebPkiServerVerifier::builder_with_provider(roots(file)?, Arc::clone(&provider))
                .with_crls(self.revocations()?)
                .build()
                .map_err(|e| wrong(file, e))?;
        let mut config = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .map_err(io::Error::other)?
            .with_webpki_verifier(verifier)
            .with_client_auth_cert(certificates(&self.certificate)?, self.private()?)
            .map_err(|e| wrong(&self.certificate, e))?;
        config.resumption = Resumption::disabled();
        Ok(config)
    }

    fn private(&self) -> io::Result<PrivateKeyDer<'static>> {
        PrivateKeyDer::from_pem_file(&self.key).map_err(|e| wrong(&self.key, e))
    }

    fn revocations(&self) -> io::Result<Vec<CertificateRevocationListDer<'static>>> {
        let Some(file) = &self.revoked else {
            return Ok(Vec::new());
        };
        let lists =
            CertificateRevocationListDer::pem_file_iter(file).map_err(|e| wrong(file, e))?;
        lists
            .collect::<Result<Vec<_>, _>>()
            .map_err(|e| wrong(file, e))
    }
}

fn roots(file: &Path) -> io::Result<Arc<RootCertStore>> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file)? {
        roots.add(certificate).map_err(|e| wrong(file, e))?;
    }
    Ok(Arc::new(roots))
}

fn certificates(file: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let all = CertificateDer::pem_file_iter(file).map_err(|e| wrong(file, e))?;
    let all = all
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| wrong(file, e))?;
    match all.is_empty() {
        true => Err(wrong(file, "no certificate in it")),
        false => Ok(all),
    }
}

fn wrong(file: &Path, why: impl std::fmt::Display) -> io::Error {
    let text = format!("{}: {why}", file.display());
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

/// How a server proves who it is, and whom it believes. Copies are one: what one loads, all have.
#[derive(Clone, Debug)]
pub struct ServerTls(Arc<RwLock<Arc<rustls::ServerConfig>>>);

impl ServerTls {
    /// Reads the files.
    ///
    /// # Errors
    /// Reads the files like [`TlsFiles::server`]. A missing authority is an error too: every session must have shown a
    /// certificate.
    pub fn load(files: &TlsFiles) -> io::Result<ServerTls> {
        Ok(ServerTls(Arc::new(RwLock::new(ServerTls::read(files)?))))
    }

    /// Reads them again, for connections that come from now on.
    ///
    /// # Errors
    /// As [`load`](Self::load); then all is as it was.
    pub fn reload(&self, files: &TlsFiles) -> io::Result<()> {
        let config = ServerTls::read(files)?;
        *write(&self.0) = config;
        Ok(())
    }

    fn read(files: &TlsFiles) -> io::Result<Arc<rustls::ServerConfig>> {
        if files.authority.is_none() {
            return Err(wrong(
                &files.certificate,
                "no authority of clients beside it",
            ));
        }
        let mut config = files.server(&[&version::TLS13])?;
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        Ok(Arc::new(config))
    }

    fn config(&self) -> Arc<rustls::ServerConfig> {
        Arc::clone(&read(&self.0))
    }
}

/// How a client proves who it is, and which server it believes. Copies are one, as of [`ServerTls`].
#[derive(Clone, Debug)]
pub struct ClientTls {
    config: Arc<RwLock<Arc<rustls::ClientConfig>>>,
    name: Option<ServerName<'static>>,
}

impl ClientTls {
    /// Reads the files. The server's certificate must be for `name`; `None`: for the address of each path.
    ///
    /// # Errors
    /// `InvalidInput`: a file cannot be read, or has not what it should, and is named; `name` is none.
    pub fn load(files: &TlsFiles, name: Option<&str>) -> io::Result<ClientTls> {
        let named = |name: &str| {
            ServerName::try_from(name.to_owned()).map_err(|_| {
                let text = format!("{name:?} is not a name that a certificate can have");
                io::Error::new(io::ErrorKind::InvalidInput, text)
            })
        };
        Ok(ClientTls {
            config: Arc::new(RwLock::new(ClientTls::read(files)?)),
            name: name.map(named).transpose()?,
        })
    }

    /// Reads them again, for connections that are made from now on.
    ///
    /// # Errors
    /// As [`load`](Self::load); then all is as it was.
    pub fn reload(&self, files: &TlsFiles) -> io::Result<()> {
        let config = ClientTls::read(files)?;
        *write(&self.config) = config;
        Ok(())
    }

    fn read(files: &TlsFiles) -> io::Result<Arc<rustls::ClientConfig>> {
        let mut config = files.client(&[&version::TLS13])?;
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        Ok(Arc::new(config))
    }

    fn config(&self) -> Arc<rustls::ClientConfig> {
        Arc::clone(&read(&self.config))
    }

    fn name(&self, address: IpAddr) -> ServerName<'static> {
        match &self.name {
            Some(name) => name.clone(),
            None => ServerName::IpAddress(PkiIp::from(address)),
        }
    }
}

/// The sessions that a certificate names.
fn sessions(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok(parsed) = webpki::EndEntityCert::try_from(certificate) else {
        return Vec::new();
    };
    let names = parsed.valid_uri_names();
    let names = names.filter_map(|uri| uri.strip_prefix(SESSION));
    names.map(str::to_owned).collect()
}

/// Does a certificate's name stand for this session's? Letter by letter, but for a star at its end.
#[must_use]
pub fn stands_for(certified: &str, session: &str) -> bool {
    match certified.strip_suffix('*') {
        Some(beginning) => session.starts_with(beginning),
        None => certified == session,
    }
}

fn fault(error: &Error) -> TlsError {
    use CertificateError as C;
    use CertificateFault as F;
    match error {
        Error::NoCertificatesPresented => TlsError::Theirs(F::Missing),
        Error::InvalidCertificate(what) => TlsError::Theirs(match what {
            C::Expired | C::ExpiredContext { .. } => F::Expired,
            C::NotValidYet | C::NotValidYetContext { .. } => F::Expired,
            C::UnknownIssuer | C::BadSignature => F::UnknownIssuer,
            C::NotValidForName | C::NotValidForNameContext { .. } => F::WrongName,
            C::Revoked => F::Revoked,
            C::InvalidPurpose | C::InvalidPurposeContext { .. } => F::Purpose,
            _ => F::Bad,
        }),
        Error::AlertReceived(alert) => of_alert(*alert),
        Error::NoApplicationProtocol | Error::PeerIncompatible(_) => TlsError::NothingInCommon,
        _ => TlsError::Broken,
    }
}

/// What the other end has to say (RFC 8446, 6.2).
fn of_alert(alert: AlertDescription) -> TlsError {
    use AlertDescription as A;
    use CertificateFault as F;
    match alert {
        A::CertificateRequired | A::NoCertificate => TlsError::Ours(F::Missing),
        A::CertificateExpired => TlsError::Ours(F::Expired),
        // Of two authorities of one name, the wrong one's key does not fit the signature.
        A::UnknownCA | A::DecryptError => TlsError::Ours(F::UnknownIssuer),
        A::CertificateRevoked => TlsError::Ours(F::Revoked),
        A::UnsupportedCertificate => TlsError::Ours(F::Purpose),
        A::BadCertificate | A::CertificateUnknown | A::AccessDenied => TlsError::Ours(F::Bad),
        A::ProtocolVersion | A::HandshakeFailure | A::NoApplicationProtocol => {
            TlsError::NothingInCommon
        }
        A::CloseNotify | A::UserCanceled => TlsError::Ended,
        _ => TlsError::Broken,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certified_name_is_compared_letter_by_letter_and_a_star_only_counts_at_the_end() {
        for (certified, session, yes) in [
            ("a", "a", true),
            ("a", "A", false),
            ("a", "ab", false),
            ("a*", "ab", true),
            ("a*", "a", true),
            ("a*", "ba", false),
            ("*", "anything", true),
            ("a*b", "axb", false),
            ("a*b", "a*b", true),
            ("", "a", false),
            ("a%2A", "a*", false),
        ] {
            assert_eq!(stands_for(certified, session), yes, "{certified} {session}");
        }
    }
}
