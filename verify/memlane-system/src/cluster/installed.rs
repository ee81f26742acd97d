//! memlane in a cluster with a node, installed by its chart: everything runs in pods, from one image.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::image::Image;
use super::node::Node;
use super::program;
use crate::blocks::{has, must};
use crate::containers::root::{Root, copy, found};
use crate::harness::{Built, find_csi, find_webhook};

/// How long the pods of memlane may take until they are ready.
const LIMIT: Duration = Duration::from_secs(120);
/// Where the programs that it became lie in the image.
const BESIDE: &str = "usr/libexec/memlane";

/// A cluster with memlane in it.
#[derive(Debug)]
pub struct Installed {
    node: Node,
}

impl Installed {
    /// Starts a cluster, and installs memlane in it as the guide *Kubernetes* says, with further settings of the chart.
    ///
    /// # Panics
    /// If its pods do not become ready.
    pub fn start(label: &str, settings: &[&str]) -> Installed {
        Installed::on(Node::start(label), settings)
    }

    /// Installs memlane in a cluster.
    ///
    /// # Panics
    /// If its pods do not become ready.
    pub fn on(node: Node, settings: &[&str]) -> Installed {
        let installed = Installed::prepared(node);
        installed.install(settings);
        installed
    }

    /// A cluster that has memlane's image, as if it came from a registry, and nothing else of it.
    ///
    /// # Panics
    /// If containerd does not take it.
    pub fn with_image(node: Node) -> Installed {
        let installed = Installed { node };
        installed.bring_image();
        installed
    }

    /// A cluster that has memlane's image and its namespace, and nothing of it runs.
    ///
    /// # Panics
    /// If one of them is not taken.
    pub fn prepared(node: Node) -> Installed {
        let installed = Installed::with_image(node);
        let plane = installed.node.plane();
        plane.say(&["create", "namespace", "memlane"]);
        let privileged = "pod-security.kubernetes.io/enforce=privileged";
        plane.say(&["label", "namespace", "memlane", privileged]);
        installed
    }

    /// Installs the chart there.
    ///
    /// # Panics
    /// If its pods do not become ready.
    pub fn install(&self, settings: &[&str]) {
        must(self.helm("install", settings));
        self.wait_until_ready();
    }

    /// The cluster.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// The cluster, to be changed.
    pub fn node_mut(&mut self) -> &mut Node {
        &mut self.node
    }

    /// Settings of the chart that this node needs: its image, and where it has its folders.
    pub fn own_settings(&self) -> Vec<String> {
        let folder = |name: &str| self.node.folder().join(name).display().to_string();
        vec![
            format!("image.repository={IMAGE}"),
            "image.pullPolicy=Never".to_owned(),
            format!("node.kubeletDir={}", self.node.kubelet_folder().display()),
            format!("node.stateDir={}", folder("state")),
            format!("node.runDir={}", folder("run")),
            format!("node.containerdDir={}", folder("containerd-state")),
            format!("node.nriDir={}", self.node.nri_folder().display()),
        ]
    }

    /// A command of helm about this installation: `install`, `upgrade`.
    pub fn helm(&self, verb: &str, settings: &[&str]) -> Command {
        let folder = |name: &str| self.node.folder().join(name).display().to_string();
        let own = self.own_settings();
        let mut command = Command::new(program("helm"));
        command.arg("--kubeconfig").arg(self.node.plane().admin());
        command.env("HELM_CACHE_HOME", folder("helm"));
        command.args([verb, "memlane", "--namespace", "memlane"]);
        command.arg(source().join("packaging/kubernetes/chart"));
        for setting in own
            .iter()
            .map(String::as_str)
            .chain(settings.iter().copied())
        {
            command.args(["--set", setting]);
        }
        command
    }

    /// Takes memlane out of the cluster again, and waits until its pods are gone.
    ///
    /// # Panics
    /// If they do not go.
    pub fn uninstall(&self) {
        let mut helm = Command::new(program("helm"));
        helm.arg("--kubeconfig").arg(self.node.plane().admin());
        helm.args(["uninstall", "memlane", "--namespace", "memlane", "--wait"]);
        must(helm);
        let gone = ["delete", "namespace", "memlane", "--timeout=90s"];
        self.node.plane().say(&gone);
    }

    /// Waits until all pods of memlane are ready.
    ///
    /// # Panics
    /// If they do not become ready.
    pub fn wait_until_ready(&self) {
        let plane = self.node.plane();
        let seconds = format!("--timeout={}s", LIMIT.as_secs());
        for workload in &WORKLOADS[..2] {
            let waited = plane.ask(&["rollout", "status", "-n", "memlane", workload, &seconds]);
            if let Err(why) = waited {
                panic!("{why}\n{}", self.what_is_wrong());
            }
        }
    }

    /// What the exporter on the node shows to Prometheus.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn metrics(&self) -> String {
        let plane = self.node.plane();
        let of_the_node = ["-l", "app.kubernetes.io/name=memlane-node", "-o", "name"];
        let pod = plane.say(&[&["get", "pods", "-n", "memlane"], &of_the_node[..]].concat());
        let pod = pod.trim().trim_start_matches("pod/");
        let page = format!("/api/v1/namespaces/memlane/pods/{pod}:9469/proxy/metrics");
        plane.say(&["get", "--raw", &page])
    }

    /// What `memlane` says in the container `exporter` of the node's pod, which sees all programs of the node.
    ///
    /// # Panics
    /// If it fails.
    pub fn on_the_node(&self, words: &[&str]) -> String {
        let exec = ["exec", "-n", "memlane", WORKLOADS[0], "-c", "exporter"];
        let memlane = [&["--", "memlane"], words].concat();
        self.node.plane().say(&[&exec[..], &memlane].concat())
    }

    /// The process id of the node plugin.
    ///
    /// # Panics
    /// If it does not run.
    pub fn node_plugin(&self) -> i64 {
        let socket = self.node.kubelet_folder().join("plugins/csi.memlane.dev");
        let socket = socket.display().to_string();
        let is_it = |pid: &i64| {
            let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let command = String::from_utf8_lossy(&command);
            command.contains("memlane-csi") && command.contains(&socket)
        };
        let all = std::fs::read_dir("/proc").expect("processes").flatten();
        let mut pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.find(is_it).expect("the node plugin runs")
    }

    /// Where the node has a folder for each domain.
    pub fn domains(&self) -> PathBuf {
        self.node.folder().join("run")
    }

    /// What its pods say.
    pub fn what_is_wrong(&self) -> String {
        let plane = self.node.plane();
        let unusual = "--field-selector=type!=Normal";
        let mut told = vec![
            plane.ask(&["get", "pods", "--all-namespaces"]),
            plane.ask(&["get", "events", "--all-namespaces", unusual]),
        ];
        for workload in WORKLOADS {
            let logs = ["logs", "-n", "memlane", workload, "--all-containers"];
            told.push(plane.ask(&[&logs[..], &["--tail=20"]].concat()));
        }
        let told = told.into_iter().map(|said| said.unwrap_or_else(|why| why));
        told.collect::<Vec<_>>().join("\n")
    }

    /// The image of `packaging/kubernetes/Containerfile`, with what it needs of the packages.
    fn bring_image(&self) {
        let folder = self.node.folder().join("memlane-root");
        let root = Root::new(&folder);
        let built = Built::find();
        let memlane = built.memlane.expect("`cargo build --release` first");
        let mut install = Command::new("sh");
        install.arg(source().join("packaging/install.sh"));
        install.args(["install", "--prefix", "/usr"]);
        install.arg("--destdir").arg(root.path());
        install
            .arg("--built")
            .arg(memlane.parent().expect("a folder"));
        must(install);
        let webhook = find_webhook().expect("`cargo build --release -p memlane-webhook` first");
        for beside in [webhook, find_csi()] {
            let name = beside.file_name().expect("a program");
            copy(&beside, &root.path().join(BESIDE).join(name));
            root.put_libraries_of(&beside);
        }
        root.put_libraries_of(&memlane);
        for tool in TOOLS.into_iter().filter(|tool| has(tool)) {
            root.put(&found(tool));
        }
        let name = format!("{IMAGE}:{}", version(&memlane));
        let image = Image {
            name: &name,
            environment: &["PATH=/usr/bin:/bin"],
            command: &["/usr/bin/memlane"],
        };
        self.node.import(&root, image);
    }
}

/// What volumes are made and mounted with.
const TOOLS: [&str; 13] = [
    "install",
    "mount",
    "umount",
    "blkid",
    "losetup",
    "fusermount3",
    "mkfs.ext4",
    "fsck.ext4",
    "dumpe2fs",
    "resize2fs",
    "mkfs.xfs",
    "xfs_growfs",
    "xfs_repair",
];
/// What runs in its namespace; stores and their controller only with volumes.
const WORKLOADS: [&str; 4] = [
    "daemonset/memlane-node",
    "deployment/memlane-webhook",
    "statefulset/memlane-store-s1",
    "deployment/memlane-controller",
];
const IMAGE: &str = "localhost/memlane";

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn version(memlane: &Path) -> String {
    let mut command = Command::new(memlane);
    command.arg("--version");
    let said = must(command);
    said.trim().trim_start_matches("memlane ").to_owned()
}
