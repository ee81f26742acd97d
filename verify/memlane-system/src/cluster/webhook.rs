//! memlane in a control plane: its manifest, and its webhook as a process of this machine.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{CONTROL_PLANE, ControlPlane, has};
use crate::blocks::skip;
use crate::harness::{Running, find_webhook, free_port};

/// The namespace of the manifest.
const NAMESPACE: &str = "memlane";
/// How long a webhook may take until API servers can ask it.
const LIMIT: Duration = Duration::from_secs(60);

/// The manifest that users apply.
///
/// # Panics
/// If it is not there.
pub fn manifest() -> String {
    let file =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/kubernetes/memlane.yaml");
    std::fs::read_to_string(file).expect("packaging/kubernetes/memlane.yaml")
}

/// The manifest with another address of the webhook. The API server of the tests reaches no service: nobody routes their
/// addresses.
fn manifest_for(port: u16) -> String {
    let service = "    clientConfig:\n      service:\n        name: memlane-webhook\n        namespace: memlane\n        \
        path: /mutate\n        port: 443\n";
    let url = format!("    clientConfig:\n      url: https://127.0.0.1:{port}/mutate\n");
    let text = manifest();
    assert_eq!(text.matches(service).count(), 2, "two webhooks");
    text.replace(service, &url)
}

/// A process of the webhook.
#[derive(Debug)]
pub struct Replica {
    /// The process.
    pub process: Running,
    /// Where it answers API servers.
    pub port: u16,
    /// Where its metrics are.
    pub status: u16,
}

/// A control plane in which the manifest was applied. The pods of the manifest do not run, as there is no node; the webhook is a
/// process, with the rights that the manifest gives its service account and no others.
#[derive(Debug)]
pub struct Webhook {
    /// The control plane.
    pub plane: ControlPlane,
    /// The replica that API servers ask.
    pub asked: Replica,
    life: String,
}

impl Webhook {
    /// Starts all that. Its certificates are valid for `life`. `None`, and a word on standard error, where there can be none.
    ///
    /// # Panics
    /// If something fails.
    pub fn start(label: &str, life: &str) -> Option<Webhook> {
        if !has(label, CONTROL_PLANE) {
            return None;
        }
        if find_webhook().is_none() {
            skip(
                label,
                "no memlane-webhook: cargo build --release -p memlane-webhook",
            );
            return None;
        }
        let plane = ControlPlane::start(label);
        let port = free_port();
        let applied = plane.apply(&manifest_for(port));
        let said = applied.expect("the manifest is accepted");
        assert!(!said.contains("Warning"), "{said}");
        let token = [
            "create",
            "token",
            "memlane-webhook",
            "--namespace",
            NAMESPACE,
        ];
        let token = plane.say(&token);
        write_kubeconfig(&plane, token.trim());
        let asked = replica(&plane, life, port);
        let webhook = Webhook {
            plane,
            asked,
            life: life.to_owned(),
        };
        webhook.is_ready(&webhook.asked);
        Some(webhook)
    }

    /// Another replica, which API servers do not ask.
    pub fn another(&self) -> Replica {
        let replica = replica(&self.plane, &self.life, free_port());
        self.is_ready(&replica);
        replica
    }

    /// Starts the replica again that API servers ask.
    pub fn restart(&mut self) {
        self.asked = replica(&self.plane, &self.life, self.asked.port);
        self.is_ready(&self.asked);
    }

    /// The manifest as it was applied.
    pub fn manifest(&self) -> String {
        manifest_for(self.asked.port)
    }

    /// Makes a pod; what kubectl says, with warnings.
    ///
    /// # Panics
    /// If it is refused.
    #[track_caller]
    pub fn make(&self, pod: &Value) -> String {
        let made = self.plane.apply(&pod.to_string());
        made.expect("the pod is accepted")
    }

    /// A pod that was made, as it is stored.
    pub fn pod(&self, namespace: &str, name: &str) -> Value {
        self.plane.get(&["pod", name, "--namespace", namespace])
    }

    /// Waits until a replica is ready and the API server has heard of its authority.
    fn is_ready(&self, replica: &Replica) {
        let end = Instant::now() + LIMIT;
        let at = format!("http://127.0.0.1:{}/readyz", replica.status);
        while get(&at).is_none_or(|page| page != "ok\n") {
            assert!(
                Instant::now() < end,
                "not ready: {}",
                replica.process.stderr()
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// A page, if it is answered with 200.
fn get(url: &str) -> Option<String> {
    let done = Command::new("curl")
        .args(["--silent", "--fail", "--max-time", "5", url])
        .output()
        .expect("curl");
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    done.status.success().then_some(text)
}

fn replica(plane: &ControlPlane, life: &str, port: u16) -> Replica {
    let status = free_port();
    let mut command = Command::new(find_webhook().expect("it was there"));
    command.env("KUBECONFIG", plane.folder().join("webhook.kubeconfig"));
    command.args(["--listen", &format!("127.0.0.1:{port}")]);
    command.args(["--status", &format!("127.0.0.1:{status}")]);
    command.args(["--name", "127.0.0.1", "--life", life, "--grace", "1s"]);
    Replica {
        process: Running::start(command),
        port,
        status,
    }
}

fn write_kubeconfig(plane: &ControlPlane, token: &str) {
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: test\n\
         clusters: [{{name: test, cluster: {{server: '{}', certificate-authority: '{}'}}}}]\n\
         users: [{{name: test, user: {{token: {token}}}}}]\n\
         contexts: [{{name: test, context: {{cluster: test, user: test, namespace: {NAMESPACE}}}}}]\n",
        plane.url(),
        plane.authority().certificate().display(),
    );
    std::fs::write(plane.folder().join("webhook.kubeconfig"), text).expect("written");
}
