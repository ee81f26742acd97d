//! containerd and kubelet, which run pods on this machine, and the controllers that make and place pods.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::FlockOperation;

use super::control_plane::{ControlPlane, Token};
use super::image::{Image, archive};
use super::pod_network::{self, BRIDGE, SUBNET, delete_link};
use super::{NODE_NAME, program};
use crate::blocks::{has, must};
use crate::containers::root::Root;
use crate::harness::{Running, TempDir, free_port, is_root};

/// How long the node may take until it is ready.
const LIMIT: Duration = Duration::from_secs(120);
/// Where Debian's package containernetworking-plugins lies.
const CNI: &str = "/usr/lib/cni";
/// What holds a pod's namespaces.
const PAUSE: &str = "localhost/pause:test";

/// An address of this machine that pods reach, too: of a bridge without ports. One test at a time has it.
#[derive(Debug)]
struct Address {
    _lock: File,
}

impl Address {
    const LINK: &'static str = "memlane-node";
    const IP: &'static str = "10.244.6.1";
    const SECOND: &'static str = "10.244.6.2";

    fn make() -> Address {
        let lock = File::create(std::env::temp_dir().join("memlane-test-node.lock"));
        let lock = lock.expect("a file to lock");
        rustix::fs::flock(&lock, FlockOperation::LockExclusive).expect("locked");
        // What a killed test has left behind.
        delete_link(Address::LINK);
        pod_network::clear();
        ip(&["link", "add", Address::LINK, "type", "bridge"]);
        for address in [Address::IP, Address::SECOND] {
            let network = format!("{address}/24");
            ip(&["address", "add", &network, "dev", Address::LINK]);
        }
        ip(&["link", "set", Address::LINK, "up"]);
        Address { _lock: lock }
    }
}

impl Drop for Address {
    fn drop(&mut self) {
        delete_link(Address::LINK);
    }
}

/// A control plane and a node of it, with the controllers. It ends, with its pods, when it is dropped.
#[derive(Debug)]
pub struct Node {
    // In the order in which they end.
    kubelet: Running,
    _others: Vec<Running>,
    containerd: Option<Running>,
    plane: ControlPlane,
    dir: TempDir,
    _address: Address,
}

impl Node {
    /// Its address.
    pub const ADDRESS: &'static str = Address::IP;
    /// Another one, for what cannot share the first one's ports.
    pub const SECOND_ADDRESS: &'static str = Address::SECOND;

    /// What is missing here for a node, beside [`super::NODE`].
    pub fn obstacle() -> Option<String> {
        let missing = ["runc", "iptables", "nft", "cc"]
            .into_iter()
            .find(|name| !has(name));
        if let Some(name) = missing {
            return Some(format!("no {name}: ./dev install-tools"));
        }
        if !Path::new(CNI).join("bridge").is_file() {
            return Some(format!("no {CNI}: install containernetworking-plugins"));
        }
        (!is_root()).then(|| "not root".to_owned())
    }

    /// Starts one, and returns when it is ready.
    ///
    /// # Panics
    /// If it does not become ready.
    pub fn start(label: &str) -> Node {
        let address = Address::make();
        let plane = ControlPlane::start_at(label, Address::IP.parse().expect("an address"));
        let dir = TempDir::new(label);
        share_mounts_below(dir.path());
        let containerd = start_containerd(dir.path());
        let others = vec![
            start_controller_manager(&plane),
            start_scheduler(&plane),
            start_proxy(&plane, dir.path()),
        ];
        let kubelet = start_kubelet(&plane, dir.path());
        let mut node = Node {
            kubelet,
            _others: others,
            containerd: Some(containerd),
            plane,
            dir,
            _address: address,
        };
        node.give_pause();
        node.wait_until_ready();
        node
    }

    fn wait_until_ready(&self) {
        let ready = r#"{.status.conditions[?(@.type=="Ready")].status}"#;
        let output = format!("jsonpath={ready}");
        let args = ["get", "node", NODE_NAME, "--output", &output];
        self.plane
            .wait_until("the node", LIMIT, &args, |said| said == "True");
    }

    /// Its control plane.
    pub fn plane(&self) -> &ControlPlane {
        &self.plane
    }

    /// The kubelet's folder: pods, plugins and their volumes.
    pub fn kubelet_folder(&self) -> PathBuf {
        kubelet_folder(self.dir.path())
    }

    /// Where the socket of containerd's plugins is (NRI).
    pub fn nri_folder(&self) -> PathBuf {
        nri_folder(self.dir.path())
    }

    /// Ends containerd, and starts it again. Pods run on.
    ///
    /// # Panics
    /// If it does not come back.
    pub fn restart_containerd(&mut self) {
        self.containerd = None;
        self.containerd = Some(start_containerd(self.dir.path()));
        self.wait_until_ready();
    }

    /// A folder for what belongs to it.
    pub fn folder(&self) -> &Path {
        self.dir.path()
    }

    /// Brings an image of `root` to it.
    ///
    /// # Panics
    /// If containerd does not take it.
    pub fn import(&self, root: &Root, image: Image<'_>) {
        let packed = archive(root.path(), image, self.dir.path());
        let mut import = self.ctr(&["images", "import"]);
        import.arg(&packed);
        must(import);
        std::fs::remove_file(packed).expect("ours");
    }

    /// A command to containerd about the pods.
    fn ctr(&self, args: &[&str]) -> Command {
        let mut command = Command::new(program("ctr"));
        command.arg("--address").arg(socket(self.dir.path()));
        command.args(["--namespace", "k8s.io"]).args(args);
        command
    }

    /// Sleeps for ever, and takes in orphans: what the first process of a pod is for.
    fn give_pause(&mut self) {
        let folder = self.dir.path().join("pause-root");
        let root = Root::new(&folder);
        let source = folder.join("pause.c");
        let text = "#include <signal.h>\n#include <unistd.h>\n\
                    int main(void) { signal(SIGCHLD, SIG_IGN); for (;;) pause(); }\n";
        std::fs::write(&source, text).expect("written");
        let mut compile = Command::new("cc");
        compile.args(["-static", "-O1", "-o"]);
        compile.arg(root.path().join("bin/pause")).arg(&source);
        must(compile);
        let image = Image {
            name: PAUSE,
            command: &["/bin/pause"],
            ..Image::default()
        };
        self.import(&root, image);
    }

    fn kill_containers(&self) {
        let said = self.ctr(&["tasks", "list", "--quiet"]).output();
        let said = said.map(|done| done.stdout).unwrap_or_default();
        for id in String::from_utf8_lossy(&said).split_whitespace() {
            let removed = self
                .ctr(&["tasks", "delete", "--force", id])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
            drop(removed);
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kubelet.signal("KILL");
        self.kill_containers();
        self.containerd = None;
        unmount_below(self.dir.path());
        pod_network::clear();
    }
}

fn ip(args: &[&str]) {
    let mut command = Command::new("ip");
    command.args(args);
    must(command);
}

fn kubelet_folder(dir: &Path) -> PathBuf {
    dir.join("kubelet")
}

fn nri_folder(dir: &Path) -> PathBuf {
    dir.join("nri")
}

fn socket(dir: &Path) -> PathBuf {
    dir.join("containerd.sock")
}

/// What a plugin mounts in a pod must be seen by the kubelet: the folder's mounts are shared, as systemd makes all of a
/// machine's.
fn share_mounts_below(dir: &Path) {
    for args in [["--bind"].as_slice(), &["--make-rshared"]] {
        let mut mount = Command::new("mount");
        mount.args(args);
        if args == ["--bind"] {
            mount.arg(dir);
        }
        mount.arg(dir);
        must(mount);
    }
}

fn unmount_below(dir: &Path) {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = table.lines().filter_map(|line| line.split(' ').nth(4));
    let ours: Vec<&str> = points
        .filter(|point| Path::new(point).starts_with(dir))
        .collect();
    for point in ours.iter().rev() {
        let _ = Command::new("umount")
            .args(["--lazy", point])
            .stderr(Stdio::null())
            .status();
    }
}

fn start_containerd(dir: &Path) -> Running {
    let configuration = format!(
        r#"version = 3
root = '{dir}/containerd'
state = '{dir}/containerd-state'
[grpc]
  address = '{socket}'
[ttrpc]
  address = '{socket}.ttrpc'
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = '{PAUSE}'
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = 'io.containerd.runc.v2'
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      SystemdCgroup = false
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ['{CNI}']
    conf_dir = '{dir}/cni'
[plugins.'io.containerd.nri.v1.nri']
  socket_path = '{nri}/nri.sock'
  plugin_path = '{nri}/plugins'
  plugin_config_path = '{nri}/conf.d'
"#,
        dir = dir.display(),
        socket = socket(dir).display(),
        nri = nri_folder(dir).display(),
    );
    let network = format!(
        r#"{{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {{"type": "bridge", "bridge": "{BRIDGE}", "isGateway": true, "ipMasq": true, "hairpinMode": true,
    "ipam": {{"type": "host-local", "dataDir": "{dir}/addresses", "ranges": [[{{"subnet": "{SUBNET}"}}]],
      "routes": [{{"dst": "0.0.0.0/0"}}]}}}},
  {{"type": "portmap", "capabilities": {{"portMappings": true}}}}]}}
"#,
        dir = dir.display(),
    );
    std::fs::create_dir_all(dir.join("cni")).expect("a folder");
    std::fs::write(dir.join("cni/10-pods.conflist"), network).expect("written");
    let file = dir.join("containerd.toml");
    std::fs::write(&file, configuration).expect("written");
    let mut command = Command::new(program("containerd"));
    command
        .arg("--config")
        .arg(&file)
        .args(["--log-level", "warn"]);
    // It looks there for its shim.
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", super::folder().display()));
    let mut containerd = Running::start(command);
    let socket = socket(dir);
    containerd.wait_until(LIMIT, "containerd", || {
        std::os::unix::net::UnixStream::connect(&socket).is_ok()
    });
    containerd
}

fn start_kubelet(plane: &ControlPlane, dir: &Path) -> Running {
    let configuration = format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: {address}
port: {port}
healthzPort: 0
# The apiserver comes without a name: both listen at an address of this machine only, and end with the test.
authentication: {{anonymous: {{enabled: true}}, webhook: {{enabled: false}}}}
authorization: {{mode: AlwaysAllow}}
containerRuntimeEndpoint: unix://{socket}
cgroupDriver: cgroupfs
clusterDNS: [10.96.0.10]
failCgroupV1: false
failSwapOn: false
enforceNodeAllocatable: []
localStorageCapacityIsolation: false
# Whatever room this machine has must do.
evictionHard: {{memory.available: 0%, nodefs.available: 0%, imagefs.available: 0%, nodefs.inodesFree: 0%, imagefs.inodesFree: 0%}}
imageGCHighThresholdPercent: 100
podLogsDir: {dir}/logs
syncFrequency: 5s
fileCheckFrequency: 5s
volumePluginDir: {dir}/volume-plugins
",
        address = Address::IP,
        port = free_port(),
        socket = socket(dir).display(),
        dir = dir.display(),
    );
    let file = dir.join("kubelet.yaml");
    std::fs::write(&file, configuration).expect("written");
    let folder = kubelet_folder(dir).display().to_string();
    let options = [
        format!("--config={}", file.display()),
        format!("--root-dir={folder}"),
        format!("--cert-dir={folder}/pki"),
        format!("--hostname-override={}", NODE_NAME),
        format!("--node-ip={}", Address::IP),
    ];
    start(plane, "kubelet", Token::Node, &options)
}

fn start_controller_manager(plane: &ControlPlane) -> Running {
    let options = [
        format!(
            "--service-account-private-key-file={}",
            plane.service_account_key().display()
        ),
        format!(
            "--root-ca-file={}",
            plane.authority().certificate().display()
        ),
        "--use-service-account-credentials=true".to_owned(),
        "--node-monitor-period=2s".to_owned(),
    ];
    let options = [&options[..], &alone()].concat();
    start(
        plane,
        "kube-controller-manager",
        Token::Controllers,
        &options,
    )
}

fn start_scheduler(plane: &ControlPlane) -> Running {
    start(plane, "kube-scheduler", Token::Scheduler, &alone())
}

/// Options of a controller that has no other beside it.
fn alone() -> [String; 3] {
    [
        "--leader-elect=false".to_owned(),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--secure-port={}", free_port()),
    ]
}

/// It makes services' addresses lead to pods.
fn start_proxy(plane: &ControlPlane, dir: &Path) -> Running {
    let configuration = format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {{kubeconfig: {kubeconfig}}}
clusterCIDR: {SUBNET}
bindAddress: {address}
healthzBindAddress: 127.0.0.1:{healthz}
metricsBindAddress: 127.0.0.1:{metrics}
hostnameOverride: {name}
# The limits of the machine's connection tracking stay as they are.
conntrack: {{maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}}
",
        kubeconfig = plane.kubeconfig(Token::Proxy).display(),
        address = Address::IP,
        healthz = free_port(),
        metrics = free_port(),
        name = NODE_NAME,
    );
    let file = dir.join("kube-proxy.yaml");
    std::fs::write(&file, configuration).expect("written");
    let mut command = Command::new(program("kube-proxy"));
    command.arg("--config").arg(file);
    Running::start(command)
}

fn start(plane: &ControlPlane, name: &str, token: Token, options: &[String]) -> Running {
    let mut command = Command::new(program(name));
    command.arg("--kubeconfig").arg(plane.kubeconfig(token));
    command.args(options);
    Running::start(command)
}
