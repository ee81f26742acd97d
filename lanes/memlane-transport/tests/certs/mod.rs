//! Authorities, and certificates of all sorts, in folders as programs have them.
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "each test program uses a part of it"
)]

use memlane_transport::io::tls::{ClientTls, ServerTls, TlsFiles};
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertificateRevocationListParams,
    CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose,
    RevokedCertParams, SanType, SerialNumber, date_time_ymd,
};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

static COUNT: AtomicU64 = AtomicU64::new(1);

/// A folder that goes with its owner.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Folder {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("memlane-certs-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).expect("a folder");
        Folder(folder)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.join(name), text).expect("a file");
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What a certificate says.
#[derive(Clone)]
pub struct Wish {
    pub names: Vec<String>,
    pub sessions: Vec<String>,
    pub years: (i32, i32),
    pub usage: ExtendedKeyUsagePurpose,
    pub serial: u64,
}

impl Wish {
    pub fn server() -> Wish {
        Wish {
            names: vec!["127.0.0.1".into(), "storage.example".into()],
            sessions: Vec::new(),
            years: (2020, 2090),
            usage: ExtendedKeyUsagePurpose::ServerAuth,
            serial: COUNT.fetch_add(1, Ordering::Relaxed),
        }
    }

    pub fn client(sessions: &[&str]) -> Wish {
        Wish {
            names: Vec::new(),
            sessions: sessions.iter().map(|name| (*name).to_owned()).collect(),
            usage: ExtendedKeyUsagePurpose::ClientAuth,
            ..Wish::server()
        }
    }
}

pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub fn new(name: &str) -> Authority {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("a key");
        Authority(CertifiedIssuer::self_signed(params, key).expect("an authority"))
    }

    fn sign(&self, wish: &Wish) -> (Certificate, KeyPair) {
        let mut params = CertificateParams::new(wish.names.clone()).expect("names");
        for session in &wish.sessions {
            let uri = format!("memlane:session/{session}");
            let uri = uri.as_str().try_into().expect("text");
            params.subject_alt_names.push(SanType::URI(uri));
        }
        let (from, to) = wish.years;
        params.not_before = date_time_ymd(from, 1, 1);
        params.not_after = date_time_ymd(to, 1, 1);
        params.extended_key_usages = vec![wish.usage.clone()];
        params.serial_number = Some(SerialNumber::from(wish.serial));
        let key = KeyPair::generate().expect("a key");
        let signed = params.signed_by(&key, &self.0).expect("signed");
        (signed, key)
    }

    /// A server's folder, which believes `clients`.
    pub fn server(&self, folder: &Path, wish: &Wish, clients: &Authority) {
        self.issue(folder, "server", wish);
        std::fs::write(folder.join("ca-cert.pem"), clients.0.pem()).expect("a file");
    }

    /// A client's folder, which believes `servers`.
    pub fn client(&self, folder: &Path, wish: &Wish, servers: &Authority) {
        self.issue(folder, "client", wish);
        std::fs::write(folder.join("ca-cert.pem"), servers.0.pem()).expect("a file");
    }

    fn issue(&self, folder: &Path, who: &str, wish: &Wish) {
        let (certificate, key) = self.sign(wish);
        std::fs::write(folder.join(format!("{who}-cert.pem")), certificate.pem()).expect("a file");
        std::fs::write(folder.join(format!("{who}-key.pem")), key.serialize_pem()).expect("a file");
    }

    /// Takes a certificate back, in a folder of who should know.
    pub fn revoke(&self, folder: &Path, serial: u64) {
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(2090, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: vec![RevokedCertParams {
                serial_number: SerialNumber::from(serial),
                revocation_time: date_time_ymd(2021, 1, 1),
                reason_code: None,
                invalidity_date: None,
            }],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = list.signed_by(&self.0).expect("a list");
        std::fs::write(folder.join("ca-crl.pem"), list.pem().expect("text")).expect("a file");
    }
}

/// Both ends' folders, of one authority.
pub struct Both {
    pub authority: Authority,
    pub server: Folder,
    pub client: Folder,
}

impl Both {
    pub fn new(server: &Wish, client: &Wish) -> Both {
        let both = Both {
            authority: Authority::new("an authority"),
            server: Folder::new(),
            client: Folder::new(),
        };
        let authority = &both.authority;
        authority.server(&both.server.0, server, authority);
        authority.client(&both.client.0, client, authority);
        both
    }

    pub fn good() -> Both {
        Both::new(&Wish::server(), &Wish::client(&["test"]))
    }

    pub fn server(&self) -> ServerTls {
        ServerTls::load(&TlsFiles::of_server(&self.server.0)).expect("a server's files")
    }

    pub fn client(&self) -> ClientTls {
        self.client_of(None)
    }

    pub fn client_of(&self, name: Option<&str>) -> ClientTls {
        ClientTls::load(&TlsFiles::of_client(&self.client.0), name).expect("a client's files")
    }
}
