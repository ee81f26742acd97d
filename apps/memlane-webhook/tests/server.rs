//! The program itself, over TLS: what it answers, what it refuses, and how it ends.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::{Value, json};

/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(30);

/// An authority whose certificates the webhook shows, as cert-manager would put them into a folder.
struct Authority {
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("signed").der().clone();
        Authority {
            certificate,
            issuer: Issuer::new(params, key),
        }
    }

    /// Puts a new certificate into a folder. The key goes first, as if a reader came in between.
    fn write(&self, folder: &Path) {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(["localhost".to_owned()]).expect("a name");
        let certificate = params.signed_by(&key, &self.issuer).expect("signed");
        std::fs::write(folder.join("tls.key"), key.serialize_pem()).expect("written");
        std::fs::write(folder.join("tls.crt"), certificate.pem()).expect("written");
    }
}

/// The program with a folder of certificates. Killed when dropped.
struct Webhook {
    child: Child,
    folder: PathBuf,
    authority: Authority,
    tls: SocketAddr,
    status: SocketAddr,
}

fn free() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("bound")
}

impl Webhook {
    fn start(name: &str) -> Webhook {
        let folder =
            std::env::temp_dir().join(format!("memlane-webhook-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("made");
        let (authority, tls, status) = (Authority::new(), free(), free());
        authority.write(&folder);
        let child = Command::new(env!("CARGO_BIN_EXE_memlane-webhook"))
            .args([
                "--listen",
                &tls.to_string(),
                "--status",
                &status.to_string(),
            ])
            .args(["--grace", "1s", "--tls"])
            .arg(&folder)
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let webhook = Webhook {
            child,
            folder,
            authority,
            tls,
            status,
        };
        webhook.comes("ready", || {
            webhook.get("/readyz").starts_with("HTTP/1.1 200")
        });
        webhook
    }

    fn comes(&self, what: &str, so: impl Fn() -> bool) {
        let end = Instant::now() + LIMIT;
        while !so() {
            assert!(Instant::now() < end, "{what} does not come");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// A page without TLS; empty if nobody listens.
    fn get(&self, path: &str) -> String {
        let Ok(mut stream) = TcpStream::connect(self.status) else {
            return String::new();
        };
        let mut page = String::new();
        let _ = stream.write_all(
            format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes(),
        );
        let _ = stream.read_to_string(&mut page);
        page
    }

    fn connect(&self) -> StreamOwned<ClientConnection, TcpStream> {
        let mut roots = RootCertStore::empty();
        roots
            .add(self.authority.certificate.clone())
            .expect("an authority");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from("localhost").expect("a name");
        let tls = ClientConnection::new(Arc::new(config), name).expect("a client");
        let stream = TcpStream::connect(self.tls).expect("it listens");
        stream.set_read_timeout(Some(LIMIT)).expect("set");
        StreamOwned::new(tls, stream)
    }

    /// What is answered to these bytes of a request.
    fn says(&self, head: &str, body: &[u8]) -> String {
        let mut stream = self.connect();
        // Who is refused early is not read to the end.
        let _ = stream
            .write_all(head.as_bytes())
            .and_then(|()| stream.write_all(body));
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    fn post(&self, body: &[u8]) -> String {
        let head = format!(
            "POST /mutate?timeout=2s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        self.says(&head, body)
    }

    fn ended(&mut self) -> ExitStatus {
        let end = Instant::now() + LIMIT;
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status;
            }
            assert!(Instant::now() < end, "it does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The certificate that a new connection is shown.
    fn shown(&self) -> Vec<u8> {
        let mut stream = self.connect();
        let _ = stream.flush();
        let chain = stream.conn.peer_certificates().unwrap_or_default();
        chain.first().map(|c| c.to_vec()).unwrap_or_default()
    }
}

impl Drop for Webhook {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn review() -> Value {
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u", "operation": "CREATE", "namespace": "shop",
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "object": {"metadata": {"name": "cart"}, "spec": {"containers": [{"name": "cart"}]}}}})
}

#[test]
fn a_pod_is_answered_over_tls_and_counted() {
    let webhook = Webhook::start("answers");
    let answer = webhook.post(review().to_string().as_bytes());
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
    let review: Value = serde_json::from_str(body).expect("JSON");
    assert_eq!(review["response"]["allowed"], true);
    assert_eq!(review["response"]["patchType"], "JSONPatch");
    let page = webhook.get("/metrics");
    assert!(
        page.contains("memlane_webhook_reviews_total{outcome=\"edited\"} 1"),
        "{page}"
    );
    assert!(webhook.get("/healthz").starts_with("HTTP/1.1 200"));
}

#[test]
fn what_is_no_review_gets_a_status_that_says_so_and_the_next_one_is_answered() {
    let webhook = Webhook::start("refuses");
    let huge = vec![b' '; 9 << 20];
    for (answer, status) in [
        (webhook.post(b"{"), "400"),
        (webhook.post(b""), "400"),
        (webhook.post(&huge), "413"),
        (
            webhook.says(
                "GET /mutate HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
                b"",
            ),
            "405",
        ),
        (
            webhook.says(
                "GET /elsewhere HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
                b"",
            ),
            "404",
        ),
        (webhook.says("rubbish\r\n\r\n", b""), "400"),
    ] {
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{status}: {answer}"
        );
    }
    // No TLS at all, and a handshake that never ends.
    let mut plain = TcpStream::connect(webhook.tls).expect("it listens");
    plain
        .write_all(b"POST /mutate HTTP/1.1\r\n\r\n")
        .expect("sent");
    let _silent = TcpStream::connect(webhook.tls).expect("it listens");
    let answer = webhook.post(review().to_string().as_bytes());
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    let page = webhook.get("/metrics");
    assert!(
        page.contains("memlane_webhook_refusals_total{status=\"413\"} 1"),
        "{page}"
    );
}

#[test]
fn a_body_that_stops_coming_is_given_up_after_a_while() {
    let webhook = Webhook::start("slow");
    let head =
        "POST /mutate HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 100\r\n\r\n{";
    let begin = Instant::now();
    let answer = webhook.says(head, b"");
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(
        begin.elapsed() < Duration::from_secs(15),
        "{:?}",
        begin.elapsed()
    );
}

#[test]
fn files_of_a_certificate_are_read_again_when_they_change() {
    let webhook = Webhook::start("files");
    let before = webhook.shown();
    // What is no certificate changes nothing.
    std::fs::write(webhook.folder.join("tls.crt"), "rubbish").expect("written");
    std::thread::sleep(Duration::from_millis(1_500));
    assert_eq!(webhook.shown(), before);
    webhook.authority.write(&webhook.folder);
    webhook.comes("another certificate", || webhook.shown() != before);
}

#[test]
fn when_it_is_asked_to_end_it_is_not_ready_answers_still_and_then_ends_well() {
    let mut webhook = Webhook::start("ends");
    // A connection that an API server keeps.
    let mut kept = webhook.connect();
    kept.flush().expect("connected");
    let pid = webhook.child.id().to_string();
    let killed = Command::new("kill").args(["-TERM", &pid]).status();
    assert!(killed.is_ok_and(|status| status.success()));
    webhook.comes("the end", || {
        webhook.get("/readyz").starts_with("HTTP/1.1 503")
    });
    let answer = webhook.post(review().to_string().as_bytes());
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    assert_eq!(webhook.ended().code(), Some(0));
    let mut log = String::new();
    let mut stderr = webhook.child.stderr.take().expect("piped");
    stderr.read_to_string(&mut log).expect("text");
    let lines: Vec<Value> = log
        .lines()
        .map(|l| serde_json::from_str(l).expect("JSON"))
        .collect();
    let reviewed = lines
        .iter()
        .find(|line| line["message"] == "reviewed")
        .expect("logged");
    assert_eq!(reviewed["namespace"], "shop");
    assert_eq!(reviewed["pod"], "cart");
    assert_eq!(reviewed["outcome"], "edited");
}

#[test]
fn without_a_cluster_or_with_a_wrong_flag_the_exit_code_says_so() {
    let code = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_memlane-webhook"));
        command
            .args(arguments)
            .env_clear()
            .env("HOME", "/nonexistent");
        let done = command.output().expect("the program starts");
        (
            done.status.code(),
            String::from_utf8_lossy(&done.stderr).into_owned(),
        )
    };
    let (exit, said) = code(&["--listen", "127.0.0.1:0", "--status", "127.0.0.1:0"]);
    assert_eq!(exit, Some(3), "{said}");
    assert!(said.contains("finds no cluster"), "{said}");
    assert_eq!(code(&["--life", "1w"]).0, Some(2));
    assert_eq!(code(&["--help"]).0, Some(0));
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("bound").to_string();
    let (exit, said) = code(&["--tls", "/nonexistent", "--listen", &address]);
    assert_eq!(exit, Some(1), "{said}");
    assert!(said.contains("cannot listen"), "{said}");
}
