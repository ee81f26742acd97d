//! etcd and kube-apiserver on this machine.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::program;
use crate::blocks::authority::Authority;
use crate::blocks::must;
use crate::harness::{Running, TempDir, free_port};

/// How long etcd and the apiserver may take until they answer: they share two CPUs with other tests.
const LIMIT: Duration = Duration::from_secs(120);

/// Who a caller of the apiserver is. Each has a token, and a kubeconfig with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    /// May do everything.
    Admin,
    /// The kubelet of [`super::NODE_NAME`].
    Node,
    /// kube-controller-manager.
    Controllers,
    /// kube-scheduler.
    Scheduler,
    /// kube-proxy.
    Proxy,
}

impl Token {
    const ALL: [Token; 5] = [
        Token::Admin,
        Token::Node,
        Token::Controllers,
        Token::Scheduler,
        Token::Proxy,
    ];

    /// The name by which Kubernetes' own rules know them, and the group.
    fn identity(self) -> (String, &'static str) {
        let named = |name: &str| name.to_owned();
        match self {
            Token::Admin => (named("admin"), "system:masters"),
            Token::Node => (format!("system:node:{}", super::NODE_NAME), "system:nodes"),
            Token::Controllers => (named("system:kube-controller-manager"), ""),
            Token::Scheduler => (named("system:kube-scheduler"), ""),
            Token::Proxy => (named("system:kube-proxy"), ""),
        }
    }

    fn file(self) -> String {
        format!("{self:?}.kubeconfig")
    }

    /// No secret: the apiserver listens at addresses of this machine only, and ends with the test.
    fn text(self) -> String {
        format!("token-of-{self:?}")
    }
}

/// A control plane without nodes. It ends when it is dropped.
#[derive(Debug)]
pub struct ControlPlane {
    apiserver: Running,
    _etcd: Running,
    authority: Authority,
    dir: TempDir,
    at: SocketAddr,
}

impl ControlPlane {
    /// Starts one at 127.0.0.1, and returns when it is ready.
    ///
    /// # Panics
    /// If it does not become ready.
    pub fn start(label: &str) -> ControlPlane {
        ControlPlane::start_at(label, IpAddr::V4(Ipv4Addr::LOCALHOST))
    }

    /// Starts one at an address of this machine, and returns when it is ready.
    ///
    /// # Panics
    /// If it does not become ready.
    pub fn start_at(label: &str, address: IpAddr) -> ControlPlane {
        let dir = TempDir::new(label);
        let authority = Authority::new(label);
        let names = format!("DNS:localhost,DNS:kubernetes.default.svc,IP:{address},IP:10.96.0.1");
        let served = authority.server("apiserver", &names);
        service_account_key(dir.path());
        write_tokens(dir.path());
        let (etcd, store) = start_etcd(dir.path());
        let at = SocketAddr::new(address, free_port());
        let apiserver = start_apiserver(dir.path(), &served, &store, at);
        let mut plane = ControlPlane {
            apiserver,
            _etcd: etcd,
            authority,
            dir,
            at,
        };
        plane.write_kubeconfigs();
        plane.wait_until_ready();
        plane
    }

    /// Its address.
    pub fn url(&self) -> String {
        format!("https://{}", self.at)
    }

    /// The authority that its certificate is of.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// A folder for what belongs to it.
    pub fn folder(&self) -> &Path {
        self.dir.path()
    }

    /// A kubeconfig that makes its user `token`.
    pub fn kubeconfig(&self, token: Token) -> PathBuf {
        self.dir.path().join(token.file())
    }

    /// The administrator's kubeconfig.
    pub fn admin(&self) -> PathBuf {
        self.kubeconfig(Token::Admin)
    }

    /// The key by which service accounts' tokens are signed.
    pub fn service_account_key(&self) -> PathBuf {
        self.dir.path().join("sa.key")
    }

    /// A kubectl command of the administrator.
    pub fn kubectl(&self, args: &[&str]) -> Command {
        let mut command = Command::new(program("kubectl"));
        command
            .arg("--kubeconfig")
            .arg(self.kubeconfig(Token::Admin));
        // What it knows of the API is kept here, and not in somebody's home.
        command
            .arg("--cache-dir")
            .arg(self.dir.path().join("cache"));
        command.args(args);
        command
    }

    /// What kubectl prints.
    ///
    /// # Panics
    /// If it fails.
    #[track_caller]
    pub fn say(&self, args: &[&str]) -> String {
        must(self.kubectl(args))
    }

    /// What kubectl prints, or what it says on standard error if it fails.
    ///
    /// # Errors
    /// If kubectl fails.
    ///
    /// # Panics
    /// If it cannot be run.
    pub fn ask(&self, args: &[&str]) -> Result<String, String> {
        let done = self.kubectl(args).output().expect("kubectl");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match done.status.success() {
            true => Ok(text(&done.stdout)),
            false => Err(text(&done.stderr)),
        }
    }

    /// An object, or a list of objects.
    ///
    /// # Panics
    /// If there is none.
    #[track_caller]
    pub fn get(&self, args: &[&str]) -> Value {
        let said = self.say(&[&["get", "--output", "json"], args].concat());
        serde_json::from_str(&said).expect("JSON")
    }

    /// Makes or changes the objects of a manifest. What kubectl says, on either channel.
    ///
    /// # Errors
    /// What it says if it fails.
    ///
    /// # Panics
    /// If it cannot be run.
    pub fn apply(&self, manifest: &str) -> Result<String, String> {
        let mut command = self.kubectl(&["apply", "--filename", "-"]);
        let piped = command.stdin(Stdio::piped());
        let piped = piped.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = piped.spawn().expect("kubectl");
        let mut stdin = child.stdin.take().expect("a pipe");
        stdin.write_all(manifest.as_bytes()).expect("written");
        drop(stdin);
        let done = child.wait_with_output().expect("kubectl");
        let both = [done.stdout, done.stderr].concat();
        let both = String::from_utf8_lossy(&both).into_owned();
        if done.status.success() {
            Ok(both)
        } else {
            Err(both)
        }
    }

    /// Makes a namespace in which pods can be made at once: with the service account that a controller would make, were
    /// there one.
    ///
    /// # Panics
    /// If it cannot be made.
    pub fn namespace(&self, name: &str, labels: &[&str]) {
        self.say(&["create", "namespace", name]);
        let account = ["create", "serviceaccount", "default", "--namespace", name];
        // A controller, if there is one, may be faster.
        if let Err(why) = self.ask(&account) {
            assert!(why.contains("already exists"), "{why}");
        }
        for label in labels {
            self.say(&["label", "namespace", name, label]);
        }
    }

    /// Waits until kubectl says something that `done` accepts.
    ///
    /// # Panics
    /// With what it said last, and the events of all pods, at `limit`.
    #[track_caller]
    pub fn wait_until(
        &self,
        what: &str,
        limit: Duration,
        args: &[&str],
        mut done: impl FnMut(&str) -> bool,
    ) {
        let end = Instant::now() + limit;
        loop {
            let said = self.ask(args);
            if said.as_deref().is_ok_and(&mut done) {
                return;
            }
            if Instant::now() > end {
                let shown = self.ask(&["get", "pods,events", "--all-namespaces"]);
                panic!(
                    "waiting for {what}: {said:?}\n{}",
                    shown.unwrap_or_else(|why| why)
                );
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn write_kubeconfigs(&self) {
        let certificate = self.authority.certificate();
        for token in Token::ALL {
            let text = format!(
                "apiVersion: v1\nkind: Config\ncurrent-context: test\n\
                 clusters: [{{name: test, cluster: {{server: '{}', certificate-authority: '{}'}}}}]\n\
                 users: [{{name: test, user: {{token: {}}}}}]\n\
                 contexts: [{{name: test, context: {{cluster: test, user: test}}}}]\n",
                self.url(),
                certificate.display(),
                token.text(),
            );
            std::fs::write(self.kubeconfig(token), text).expect("written");
        }
    }

    fn wait_until_ready(&mut self) {
        let ready = self.kubectl(&["get", "--raw", "/readyz"]);
        let account = self.kubectl(&["get", "namespace", "default"]);
        let mut checks = [ready, account];
        self.apiserver.wait_until(LIMIT, "the apiserver", || {
            let quiet = |check: &mut Command| {
                check.stdout(Stdio::null()).stderr(Stdio::null());
                check.status().is_ok_and(|status| status.success())
            };
            checks.iter_mut().all(quiet)
        });
    }
}

fn service_account_key(dir: &Path) {
    let mut command = Command::new("openssl");
    command.current_dir(dir);
    command.args(["genrsa", "-out", "sa.key", "2048"]);
    must(command);
}

fn write_tokens(dir: &Path) {
    let mut lines = String::new();
    for token in Token::ALL {
        let (user, groups) = token.identity();
        writeln!(lines, "{},{user},{user},\"{groups}\"", token.text()).expect("a string");
    }
    std::fs::write(dir.join("tokens.csv"), lines).expect("written");
}

/// An etcd, and where it listens.
fn start_etcd(dir: &Path) -> (Running, String) {
    let (port, peers) = (free_port(), free_port());
    let at = format!("http://127.0.0.1:{port}");
    let others = format!("http://127.0.0.1:{peers}");
    let mut command = Command::new(program("etcd"));
    command.arg("--data-dir").arg(dir.join("etcd"));
    command.args(["--listen-client-urls", &at, "--advertise-client-urls", &at]);
    command.args(["--listen-peer-urls", &others]);
    command.args(["--initial-advertise-peer-urls", &others]);
    command.args(["--initial-cluster", &format!("default={others}")]);
    // It keeps nothing that is worth a disk's time.
    command.args(["--unsafe-no-fsync", "--log-level", "warn"]);
    let mut etcd = Running::start(command);
    etcd.wait_for_port(port, LIMIT);
    (etcd, at)
}

fn start_apiserver(dir: &Path, served: &Path, store: &str, at: SocketAddr) -> Running {
    let path = |name: &str| dir.join(name).display().to_string();
    let certificate = |name: &str| served.join(name).display().to_string();
    let reconciler = if at.ip().is_loopback() {
        "none"
    } else {
        "lease"
    };
    let options = [
        ("etcd-servers", store.to_owned()),
        ("secure-port", at.port().to_string()),
        ("bind-address", at.ip().to_string()),
        ("advertise-address", at.ip().to_string()),
        ("tls-cert-file", certificate("server-cert.pem")),
        ("tls-private-key-file", certificate("server-key.pem")),
        ("token-auth-file", path("tokens.csv")),
        ("authorization-mode", "Node,RBAC".to_owned()),
        ("service-account-key-file", path("sa.key")),
        ("service-account-signing-key-file", path("sa.key")),
        (
            "service-account-issuer",
            "https://kubernetes.default.svc".to_owned(),
        ),
        ("service-cluster-ip-range", "10.96.0.0/16".to_owned()),
        ("allow-privileged", "true".to_owned()),
        ("kubelet-preferred-address-types", "InternalIP".to_owned()),
        // That of the service `kubernetes`, which may not be at 127.0.0.1.
        ("endpoint-reconciler-type", reconciler.to_owned()),
    ];
    let mut command = Command::new(program("kube-apiserver"));
    command.args(options.map(|(name, value)| format!("--{name}={value}")));
    Running::start(command)
}
