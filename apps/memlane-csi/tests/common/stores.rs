//! Stores that listen by TLS, an authority for their certificates, and a controller that asks them.
// Each test program uses some of it.
#![allow(dead_code)]

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType,
};

use super::{Running, Server, World};

/// An authority, and the folders of who has a certificate of it.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
    dir: PathBuf,
}

impl Authority {
    pub(crate) fn new(dir: &Path) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate").pem();
        Authority {
            issuer: Issuer::new(params, key),
            certificate,
            dir: dir.to_owned(),
        }
    }

    fn issue(
        &self,
        folder: &str,
        who: &str,
        name: SanType,
        usage: ExtendedKeyUsagePurpose,
    ) -> PathBuf {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.subject_alt_names = vec![name];
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("signed");
        let folder = self.dir.join(folder);
        fs::create_dir_all(&folder).expect("a folder");
        let write = |name: String, text: &str| fs::write(folder.join(name), text).expect("written");
        write(format!("{who}-cert.pem"), &certificate.pem());
        write(format!("{who}-key.pem"), &key.serialize_pem());
        write("ca-cert.pem".into(), &self.certificate);
        folder
    }

    pub(crate) fn server(&self, folder: &str) -> PathBuf {
        let here = SanType::IpAddress("127.0.0.1".parse().expect("an address"));
        self.issue(folder, "server", here, ExtendedKeyUsagePurpose::ServerAuth)
    }

    pub(crate) fn client(&self, folder: &str, uri: &str) -> PathBuf {
        let uri = SanType::URI(uri.try_into().expect("a name"));
        self.issue(folder, "client", uri, ExtendedKeyUsagePurpose::ClientAuth)
    }
}

/// A store that listens at a port, and its folder.
pub(crate) struct Store {
    pub(crate) name: &'static str,
    port: u16,
    pub(crate) root: PathBuf,
    pub(crate) running: Option<Running>,
    tls: PathBuf,
    place: String,
    /// Where nodes reach its server, and what that server is called.
    pub(crate) serves: String,
    pub(crate) server: Option<String>,
}

impl Store {
    /// A store of which nobody uses a volume, at a place.
    pub(crate) fn new(name: &'static str, dir: &Path, tls: &Path, place: &str) -> Store {
        let mut store = Store::prepare(name, dir, tls, place);
        store.start();
        store
    }

    /// A store with a server.
    pub(crate) fn with_server(
        name: &'static str,
        dir: &Path,
        tls: &Path,
        server: &Server,
    ) -> Store {
        let mut store = Store::prepare(name, dir, tls, "x");
        store.serves = server.listens();
        store.server = Some(server.name.clone());
        store.start();
        store
    }

    fn prepare(name: &'static str, dir: &Path, tls: &Path, place: &str) -> Store {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
        let root = dir.join(name);
        fs::create_dir_all(&root).expect("a folder");
        Store {
            name,
            port: port.expect("a free port").port(),
            root,
            running: None,
            tls: tls.to_owned(),
            place: format!("zone={place}"),
            serves: "192.0.2.1".to_owned(),
            server: None,
        }
    }

    pub(crate) fn start(&mut self) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_memlane-csi"));
        command
            .args(["store", "--listen", &format!("127.0.0.1:{}", self.port)])
            .args(["--store-name", self.name, "--serves", &self.serves])
            .args(self.server.iter().map(|name| format!("--server={name}")))
            .args(["--topology", &self.place])
            .arg("--memlane")
            .arg(super::memlane())
            .arg("--root")
            .arg(&self.root)
            .arg("--tls")
            .arg(&self.tls);
        self.running = Some(Running::start(&mut command));
        let begin = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(begin.elapsed() < Duration::from_secs(30));
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn flag(&self) -> String {
        format!("--store={}=https://127.0.0.1:{}", self.name, self.port)
    }

    pub(crate) fn volumes(&self) -> usize {
        super::names(&self.root.join("volumes")).len()
    }
}

/// A controller of these stores at the world's socket.
pub(crate) async fn controller(world: &World, tls: &Path, stores: &[&Store]) -> Running {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memlane-csi"));
    command
        .args(["controller", "--endpoint"])
        .arg(world.socket())
        .arg("--tls")
        .arg(tls)
        .args(stores.iter().map(|store| store.flag()))
        .stderr(Stdio::inherit());
    let running = Running::start(&mut command);
    let begin = Instant::now();
    while world.controller().await.is_err() {
        assert!(begin.elapsed() < Duration::from_secs(30));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    running
}
