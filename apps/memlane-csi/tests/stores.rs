//! A controller that asks stores of other machines, over TLS. No root is needed.

mod common;

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Life, Running, World};
use memlane_csi::proto::{
    CreateSnapshotRequest, DeleteSnapshotRequest, GetCapacityRequest, ListSnapshotsRequest,
    ListVolumesRequest,
};
use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType,
};
use tonic::Code;

/// An authority, and the folders of who has a certificate of it.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
    dir: PathBuf,
}

impl Authority {
    fn new(dir: &Path) -> Authority {
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

    fn server(&self) -> PathBuf {
        let here = SanType::IpAddress("127.0.0.1".parse().expect("an address"));
        self.issue(
            "server",
            "server",
            here,
            ExtendedKeyUsagePurpose::ServerAuth,
        )
    }

    fn client(&self, folder: &str, uri: &str) -> PathBuf {
        let uri = SanType::URI(uri.try_into().expect("a name"));
        self.issue(folder, "client", uri, ExtendedKeyUsagePurpose::ClientAuth)
    }
}

/// A store that listens at a port, and its folder.
struct Store {
    name: &'static str,
    port: u16,
    root: PathBuf,
    running: Option<Running>,
    tls: PathBuf,
    place: String,
}

impl Store {
    fn new(name: &'static str, dir: &Path, tls: &Path, place: &str) -> Store {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
        let root = dir.join(name);
        fs::create_dir_all(&root).expect("a folder");
        let mut store = Store {
            name,
            port: port.expect("a free port").port(),
            root,
            running: None,
            tls: tls.to_owned(),
            place: format!("zone={place}"),
        };
        store.start();
        store
    }

    fn start(&mut self) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_memlane-csi"));
        command
            .args(["store", "--listen", &format!("127.0.0.1:{}", self.port)])
            .args(["--store-name", self.name, "--serves", "192.0.2.1"])
            .args(["--topology", &self.place])
            .arg("--memlane")
            .arg(common::memlane())
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

    fn flag(&self) -> String {
        format!("--store={}=https://127.0.0.1:{}", self.name, self.port)
    }

    fn volumes(&self) -> usize {
        common::names(&self.root.join("volumes")).len()
    }
}

/// A controller of these stores at the world's socket.
async fn controller(world: &World, tls: &Path, stores: &[&Store]) -> Running {
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

#[tokio::test]
async fn volumes_are_made_in_one_store_and_found_there_by_every_later_call() {
    let world = World::new("stores");
    let authority = Authority::new(world.dir());
    let tls = authority.server();
    let mut a = Store::new("a", world.dir(), &tls, "x");
    let b = Store::new("b", world.dir(), &tls, "y");
    let trusted = authority.client("controller", "memlane:store/*");
    let _controller = controller(&world, &trusted, &[&a, &b]).await;
    let mut client = world.controller().await.expect("a plugin");

    let mut life = Life::new(&world, "one");
    life.create(&world).await.expect("made");
    let first = life.id.clone();
    life.create(&world).await.expect("the same");
    assert_eq!(life.id, first);
    assert_eq!(a.volumes() + b.volumes(), 1, "made twice");
    life.attach(&world).await.expect("published");
    assert_eq!(life.publish_context["memlane.dev/servers"], "192.0.2.1");
    life.detach(&world).await.expect("taken");

    // A place in which only one of them is.
    for (name, zone, store) in [("in-x", "x", "a"), ("in-y", "y", "b"), ("in-y2", "y", "b")] {
        let life = Life::new(&world, name);
        let mut request = life.create_request();
        let segments = [("zone".to_owned(), zone.to_owned())].into();
        request.accessibility_requirements = Some(memlane_csi::proto::TopologyRequirement {
            requisite: vec![memlane_csi::proto::Topology { segments }],
            preferred: Vec::new(),
        });
        let made = client
            .create_volume(request)
            .await
            .expect("made")
            .into_inner();
        let volume = made.volume.expect("a volume");
        assert!(
            volume.volume_id.ends_with(&format!("@{store}")),
            "{volume:?}"
        );
        assert_eq!(volume.accessible_topology[0].segments["zone"], zone);
    }

    let (mut seen, mut starting_token) = (0, String::new());
    loop {
        let request = ListVolumesRequest {
            max_entries: 1,
            starting_token,
        };
        let page = client
            .list_volumes(request)
            .await
            .expect("a page")
            .into_inner();
        seen += page.entries.len();
        starting_token = page.next_token;
        if starting_token.is_empty() {
            break;
        }
    }
    assert_eq!(seen, 4);

    let taken = client
        .create_snapshot(CreateSnapshotRequest {
            source_volume_id: first.clone(),
            name: "snap".into(),
            ..Default::default()
        })
        .await;
    let snapshot = taken.expect("taken").into_inner().snapshot.expect("one");
    let request = ListSnapshotsRequest {
        source_volume_id: first,
        ..Default::default()
    };
    let listed = client
        .list_snapshots(request)
        .await
        .expect("a list")
        .into_inner();
    assert_eq!(listed.entries.len(), 1);
    let snapshot_id = snapshot.snapshot_id;
    let request = DeleteSnapshotRequest {
        snapshot_id,
        ..Default::default()
    };
    client.delete_snapshot(request).await.expect("removed");
    let room = client.get_capacity(GetCapacityRequest::default()).await;
    assert!(room.expect("told").into_inner().available_capacity > 0);

    // Without one of them it cannot be known whether the volume is there: nothing is made twice.
    a.running = None;
    let mut new = Life::new(&world, "new");
    let why = new.create(&world).await.expect_err("a store is away");
    assert_eq!(why.code(), Code::Unavailable, "{why}");
    assert!(why.message().contains("store a"), "{why}");
    a.start();
    let begin = Instant::now();
    while let Err(why) = new.create(&world).await {
        assert!(begin.elapsed() < Duration::from_secs(30), "{why}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    new.delete(&world).await.expect("removed");
    life.delete(&world).await.expect("removed");
}

#[tokio::test]
async fn a_certificate_that_does_not_name_the_store_opens_nothing() {
    let world = World::new("strangers");
    let authority = Authority::new(world.dir());
    let a = Store::new("a", world.dir(), &authority.server(), "x");
    let cases = [
        // A node's certificate, as memlane map has it.
        ("node", "memlane:session/*"),
        ("other", "memlane:store/b"),
    ];
    for (folder, uri) in cases {
        let tls = authority.client(folder, uri);
        let mut running = controller(&world, &tls, &[&a]).await;
        let why = Life::new(&world, "v")
            .create(&world)
            .await
            .expect_err("a stranger");
        assert_eq!(why.code(), Code::PermissionDenied, "{why}");
        running.kill();
    }
    // One of another authority.
    let other = world.dir().join("elsewhere");
    fs::create_dir_all(&other).expect("a folder");
    let tls = Authority::new(&other).client("client", "memlane:store/*");
    let _running = controller(&world, &tls, &[&a]).await;
    let why = Life::new(&world, "v")
        .create(&world)
        .await
        .expect_err("a stranger");
    assert_eq!(why.code(), Code::Unavailable, "{why}");
    assert_eq!(a.volumes(), 0);
}
