//! NBD over TLS, with the clients that people have and certificates that openssl makes.
#![cfg(feature = "tls")]

mod nbd_support;

use memlane_block::volume::mem::MemVolume;
use memlane_block_frontends::nbd::TlsConfig;
use memlane_block_frontends::nbd::wire::{opt, rep};
use nbd_support::{Folder, Raw, Served, export, have, noise, ok, run};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

const SIZE: u64 = 8 << 20;

/// An authority with a server and a client, in files as QEMU names them.
fn authority(folder: &Path) {
    std::fs::create_dir_all(folder).unwrap();
    let file = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let key = [
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
    ];
    let (ca, ca_key) = (file("ca-cert.pem"), file("ca-key.pem"));
    let mut make = vec!["req", "-x509", "-days", "2", "-subj", "/CN=an authority"];
    make.extend(key);
    make.extend(["-keyout", &ca_key, "-out", &ca]);
    ok("openssl", &make);
    for (who, usage) in [("server", "serverAuth"), ("client", "clientAuth")] {
        let (cert, private) = (
            file(&format!("{who}-cert.pem")),
            file(&format!("{who}-key.pem")),
        );
        let request = file("request");
        let extensions = file("extensions");
        let text = format!("subjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage={usage}\n");
        std::fs::write(&extensions, text).unwrap();
        let subject = format!("/CN={who}");
        let mut ask = vec!["req", "-new", "-subj", &subject];
        ask.extend(key);
        ask.extend(["-keyout", &private, "-out", &request]);
        ok("openssl", &ask);
        ok(
            "openssl",
            &[
                "x509",
                "-req",
                "-days",
                "2",
                "-in",
                &request,
                "-CA",
                &ca,
                "-CAkey",
                &ca_key,
                "-CAcreateserial",
                "-extfile",
                &extensions,
                "-out",
                &cert,
            ],
        );
    }
}

struct Secure {
    served: Served,
    volume: MemVolume,
    ours: String,
    strangers: String,
    port: u16,
    _folder: Folder,
}

fn secure(change: impl FnOnce(&mut TlsConfig)) -> Option<Secure> {
    if !have("openssl") || !have("nbdinfo") || !have("nbdcopy") {
        return None;
    }
    let folder = Folder::new();
    for name in ["ours", "strangers"] {
        authority(&folder.file(name));
    }
    let mut tls = TlsConfig::folder(&folder.file("ours"));
    change(&mut tls);
    // A port that is free now, and that no outgoing connection takes, nor another test of this program, which would find the
    // same one free. The unix socket has no name that a certificate could have.
    static TESTS: AtomicU32 = AtomicU32::new(0);
    let place = std::process::id() + 101 * TESTS.fetch_add(1, Ordering::Relaxed);
    let first = 11_000 + u16::try_from(place % 10_000).unwrap();
    let port = (first..first + 1000)
        .find(|port| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .unwrap();
    let volume = MemVolume::late(SIZE, |_| {}).unwrap();
    let served = Served::with(vec![export("", volume.clone())], |config| {
        config.tls = Some(tls);
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
        config
            .listen
            .push(memlane_block_frontends::nbd::Listen::Tcp(address));
    });
    Some(Secure {
        served,
        volume,
        ours: folder.text("ours"),
        strangers: folder.text("strangers"),
        port,
        _folder: folder,
    })
}

impl Secure {
    fn uri(&self, certificates: &str) -> String {
        format!(
            "nbds://localhost:{}/?tls-certificates={certificates}",
            self.port
        )
    }
}

#[test]
fn libnbd_copies_an_image_in_and_out_over_mutual_tls() {
    let Some(secure) = secure(|_| {}) else {
        return;
    };
    let uri = secure.uri(&secure.ours);
    let info = ok("nbdinfo", &[&uri]);
    assert!(
        info.contains("with TLS, using structured packets"),
        "{info}"
    );
    let image = noise(usize::try_from(SIZE).unwrap(), 11);
    let (from, to) = (
        secure.served.folder.text("in"),
        secure.served.folder.text("out"),
    );
    std::fs::write(&from, &image).unwrap();
    ok("nbdcopy", &[&from, &uri]);
    ok("nbdcopy", &[&uri, &to]);
    assert!(std::fs::read(&to).unwrap() == image);
    let mut there = vec![0; image.len()];
    // SAFETY: the vector is as long as the volume.
    assert!(unsafe {
        secure
            .volume
            .bytes()
            .copy_out(0, there.as_mut_ptr(), there.len())
    });
    assert!(there == image);
}

#[test]
fn qemu_img_converts_over_mutual_tls() {
    let Some(secure) = secure(|_| {}) else {
        return;
    };
    if !have("qemu-img") {
        return;
    }
    let image = noise(usize::try_from(SIZE).unwrap(), 12);
    let from = secure.served.folder.text("in");
    std::fs::write(&from, &image).unwrap();
    let credentials = |folder: &str| format!("tls-creds-x509,id=t,endpoint=client,dir={folder}");
    let target = format!("driver=nbd,host=localhost,port={},tls-creds=t", secure.port);
    let ours = credentials(&secure.ours);
    ok(
        "qemu-img",
        &[
            "convert",
            "-n",
            "--object",
            &ours,
            "--target-image-opts",
            "-f",
            "raw",
            &from,
            &target,
        ],
    );
    let source = format!(
        "driver=raw,file.driver=nbd,file.host=localhost,file.port={},file.tls-creds=t",
        secure.port
    );
    let local = format!("driver=raw,file.driver=file,file.filename={from}");
    let same = ok(
        "qemu-img",
        &[
            "compare",
            "--object",
            &ours,
            "--image-opts",
            &local,
            &source,
        ],
    );
    assert!(same.contains("identical"), "{same}");
    let strangers = credentials(&secure.strangers);
    let no = run(
        "qemu-img",
        &["info", "--object", &strangers, "--image-opts", &source],
    );
    assert!(!no.status.success());
}

#[test]
fn a_client_of_another_authority_or_of_none_is_not_served() {
    let Some(secure) = secure(|_| {}) else {
        return;
    };
    // It believes our server, but its own certificate is of somebody else, or there is none.
    let mixed = secure.served.folder.file("mixed");
    std::fs::create_dir_all(&mixed).unwrap();
    let copy = |from: &str, name: &str| {
        std::fs::copy(Path::new(from).join(name), mixed.join(name)).unwrap();
    };
    copy(&secure.ours, "ca-cert.pem");
    let uri = secure.uri(mixed.to_str().unwrap());
    assert!(
        !run("nbdinfo", &["--size", &uri]).status.success(),
        "without a certificate"
    );
    copy(&secure.strangers, "client-cert.pem");
    copy(&secure.strangers, "client-key.pem");
    assert!(
        !run("nbdinfo", &["--size", &uri]).status.success(),
        "of a stranger"
    );
    copy(&secure.ours, "client-cert.pem");
    copy(&secure.ours, "client-key.pem");
    assert_eq!(ok("nbdinfo", &["--size", &uri]).trim(), "8388608");
    let wrong_server = secure.uri(&secure.strangers);
    assert!(!run("nbdinfo", &["--size", &wrong_server]).status.success());
    secure.served.until("counted", |s| s.failed_handshakes >= 3);
}

#[test]
fn without_tls_nothing_is_told_if_it_is_required_and_all_if_it_is_offered() {
    let Some(secure) = secure(|_| {}) else {
        return;
    };
    let plain = run("nbdinfo", &["--size", &secure.served.uri()]);
    assert!(!plain.status.success());
    drop(secure);
    let Some(secure) = self::secure(|tls| (tls.required, tls.client_authority) = (false, None))
    else {
        return;
    };
    assert_eq!(
        ok("nbdinfo", &["--size", &secure.served.uri()]).trim(),
        "8388608"
    );
    assert_eq!(
        ok("nbdinfo", &["--size", &secure.uri(&secure.ours)]).trim(),
        "8388608"
    );
}

#[test]
fn bytes_that_were_sent_before_tls_began_are_not_believed() {
    let Some(secure) = secure(|_| {}) else {
        return;
    };
    let mut raw = secure.served.connect();
    raw.greet();
    let mut both = Raw::option_header(opt::STARTTLS, 0);
    both.extend(Raw::option_header(opt::LIST, 0));
    raw.send(&both);
    assert_eq!(raw.option_replies(opt::STARTTLS)[0].0, rep::ACK);
    assert!(raw.is_closed());
    let mut raw = secure.served.connect();
    raw.greet();
    assert_eq!(raw.option(opt::STARTTLS, &[])[0].0, rep::ACK);
    raw.send(&noise(1000, 1));
    // Perhaps an alert, then nothing.
    while !raw.is_closed() {}
}

#[test]
fn certificates_that_cannot_be_read_are_named() {
    let folder = Folder::new();
    let mut config = memlane_block_frontends::nbd::ServerConfig::new(
        vec![],
        vec![export("", MemVolume::new(SIZE).unwrap())],
    );
    config.tls = Some(TlsConfig::folder(&folder.file("nowhere")));
    let Err(error) = memlane_block_frontends::nbd::Server::bind(config) else {
        panic!("it was accepted");
    };
    assert!(error.to_string().contains("ca-cert.pem"), "{error}");
}
