//! The guide *Kubernetes* and what *Volumes in Kubernetes* says of the chart, followed command by command, from a folder in
//! which nothing is but the repository.
//!
//! Needs `target/cluster` (`./dev test-cluster`), memlane-webhook, memlane-csi, redis, jq, runc, FUSE, loop devices, openssl
//! and root.

use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use memlane_system::blocks::authority::Authority;
use memlane_system::blocks::{has as has_program, must, skip};
use memlane_system::cluster::{
    CONTROL_PLANE, ControlPlane, Image, Installed, NODE, NODE_NAME, Node, SIDECARS, bring_sidecars,
    has, program, sidecar_settings,
};
use memlane_system::containers::root::{Root, found};
use memlane_system::containers::upgraded;
use memlane_system::csi;
use memlane_system::documents::{Block, blocks};
use memlane_system::harness::TempDir;

const LIMIT: Duration = Duration::from_secs(120);
const IMAGE: &str = "localhost/redis:test";

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The blocks of a guide that have not been followed yet.
struct Guide(Vec<Block>);

impl Guide {
    fn open(name: &str) -> Guide {
        let file = source().join("docs/guides").join(name);
        Guide(blocks(&std::fs::read_to_string(file).expect("a guide")))
    }

    /// The next block of a section.
    #[track_caller]
    fn next(&mut self, section: &str, language: &str) -> String {
        let is_it = |block: &Block| (block.section == section) && block.language == language;
        let at = self.0.iter().position(is_it);
        let at = at.unwrap_or_else(|| panic!("no block in {section:?} is left: {:?}", self.0));
        self.0.remove(at).text
    }
}

/// A user's shell in a folder of their own. Its kubectl and helm know the cluster, and helm also what is special about a node
/// of the tests.
struct Shell {
    dir: TempDir,
}

impl Shell {
    fn new(installed: &Installed) -> Shell {
        let shell = Shell {
            dir: TempDir::new("guide"),
        };
        let home = shell.dir.path().join("home");
        std::fs::create_dir_all(shell.bin()).expect("a folder");
        std::fs::create_dir_all(&home).expect("a folder");
        std::os::unix::fs::symlink(source().join("packaging"), home.join("packaging"))
            .expect("the repository");
        let kubeconfig = installed.node().plane().admin();
        let known = |name: &str| {
            let program = program(name);
            format!(
                "{} --kubeconfig {}",
                program.display(),
                kubeconfig.display()
            )
        };
        shell.write("kubectl", &format!("exec {} \"$@\"", known("kubectl")));
        let volumes = installed.node().folder().join("volumes");
        let settings = installed.own_settings();
        let special = [
            // There is no systemd here that would keep mappings.
            "volumes.onHost=false".to_owned(),
            format!("volumes.stores[0].hostPath={}", volumes.display()),
        ];
        let settings = settings
            .into_iter()
            .chain(special)
            .chain(sidecar_settings());
        let settings: String = settings.map(|one| format!(" --set '{one}'")).collect();
        let helm = known("helm");
        shell.write(
            "helm",
            &format!(
                "case $1 in install | upgrade) exec {helm} \"$@\"{settings} ;; *) exec {helm} \"$@\" ;; esac"
            ),
        );
        shell
    }

    fn bin(&self) -> PathBuf {
        self.dir.path().join("bin")
    }

    /// Where it is.
    fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    fn write(&self, name: &str, text: &str) {
        let file = self.bin().join(name);
        std::fs::write(&file, format!("#!/bin/sh\n{text}\n")).expect("written");
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).expect("ours");
    }

    /// Runs commands, each of which must do well; what they print.
    #[track_caller]
    fn run(&self, commands: &str) -> String {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("sh");
        command.current_dir(self.home()).args(["-euc", commands]);
        command.env("PATH", format!("{}:{path}", self.bin().display()));
        command.env("HELM_CACHE_HOME", self.dir.path().join("helm"));
        must(command)
    }
}

/// A cluster without memlane. `None`, and a word on standard error, where there can be none.
fn cluster() -> Option<Installed> {
    let test = "the guide Kubernetes";
    let programs = [CONTROL_PLANE, NODE, SIDECARS, &["helm"]];
    if !programs.iter().all(|programs| has(test, programs)) {
        return None;
    }
    let no_jq = || (!has_program("jq")).then(|| "no jq".to_owned());
    if let Some(why) = Node::obstacle().or_else(csi::missing).or_else(no_jq) {
        skip(test, &why);
        return None;
    }
    let node = Node::start("guide");
    bring_sidecars(&node);
    let root = Root::new(&node.folder().join("redis-root"));
    for program in ["redis-server", "redis-benchmark", "sh", "sha256sum"] {
        root.put(&found(program));
    }
    let image = Image {
        name: IMAGE,
        ..Image::default()
    };
    node.import(&root, image);
    Some(Installed::with_image(node))
}

/// The user's own: redis in the namespace `shop`, and a service.
fn shop(plane: &ControlPlane) {
    plane.namespace("shop", &[]);
    let manifest = format!(
        "
apiVersion: apps/v1
kind: Deployment
metadata: {{name: redis, namespace: shop}}
spec:
  replicas: 1
  selector: {{matchLabels: {{app: redis}}}}
  template:
    metadata: {{labels: {{app: redis}}}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        - name: redis
          image: {IMAGE}
          imagePullPolicy: Never
          command: [redis-server, --protected-mode, 'no', --save, '']
---
apiVersion: v1
kind: Service
metadata: {{name: redis, namespace: shop}}
spec: {{selector: {{app: redis}}, ports: [{{port: 6379}}]}}
"
    );
    plane.apply(&manifest).expect("a deployment");
}

/// A pod that runs a command to its end; what it says.
fn runs(plane: &ControlPlane, metadata: &str, name: &str, spec: &str) -> String {
    let manifest = format!(
        "
apiVersion: v1
kind: Pod
{metadata}  name: {name}
  namespace: shop
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
{spec}"
    );
    plane.apply(&manifest).expect("a pod");
    let phase = "jsonpath={.status.phase}";
    let phase = ["get", "pod", name, "-n", "shop", "-o", phase];
    plane.wait_until("the pod", LIMIT, &phase, |said| {
        assert_ne!(said, "Failed");
        said == "Succeeded"
    });
    let said = plane.say(&["logs", name, "-n", "shop"]);
    plane.say(&["delete", "pod", name, "-n", "shop", "--timeout=60s"]);
    said
}

/// The address of its service.
fn redis_address(plane: &ControlPlane) -> String {
    let address = "jsonpath={.spec.clusterIP}";
    plane.say(&["get", "service", "redis", "-n", "shop", "-o", address])
}

/// A client of redis.
fn client(plane: &ControlPlane, metadata: &str, name: &str) -> String {
    let address = redis_address(plane);
    let spec = format!(
        "  containers:
    - name: client
      image: {IMAGE}
      imagePullPolicy: Never
      command: [redis-benchmark, -h, {address}, -t, get, -n, '40000', -c, '4', -q]
      env: [{{name: MEMLANE_STATS_ON_EXIT, value: '1'}}]
"
    );
    runs(plane, metadata, name, &spec)
}

fn redis_is_ready(plane: &ControlPlane) {
    let waited = ["rollout", "status", "deployment/redis", "-n", "shop"];
    plane.say(&[&waited[..], &["--timeout=90s"]].concat());
    let pods = ["get", "pods", "-n", "shop", "-l", "app=redis", "-o", "name"];
    let address = format!("{}:6379", redis_address(plane));
    let address: SocketAddr = address.parse().expect("an address");
    let is_answered = || TcpStream::connect_timeout(&address, Duration::from_millis(300)).is_ok();
    // For a moment, the node's proxy still sends connections to the pod that was there before.
    let begin = Instant::now();
    let mut answers = 0;
    while answers < 20 {
        assert!(begin.elapsed() < LIMIT, "{}", plane.say(&pods));
        let is_alone = plane.say(&pods).lines().count() == 1;
        answers = if is_alone && is_answered() {
            answers + 1
        } else {
            0
        };
    }
}

#[test]
fn whoever_follows_the_guide_gets_lanes_and_volumes_and_loses_nothing_in_the_end() {
    let Some(installed) = cluster() else {
        return;
    };
    let plane = installed.node().plane();
    let (shell, mut guide) = (Shell::new(&installed), Guide::open("kubernetes.md"));
    shop(plane);
    redis_is_ready(plane);

    let install = guide.next("Install", "");
    shell.run(&install.replace("REGISTRY", "localhost"));
    installed.wait_until_ready();
    assert!(!client(plane, "metadata:\n", "before").contains("memlane"));
    // The first lines of the guide are what all the rest is for.
    shell.run(&guide.next("Kubernetes", ""));
    redis_is_ready(plane);
    let said = client(plane, "metadata:\n", "after");
    assert!(upgraded(&said) >= 4, "{said}");

    let seen = shell.run(&guide.next("See", ""));
    for shown in ["shop/redis-", "memlane_agent_", "\"outcome\":\"edited\""] {
        assert!(seen.contains(shown), "{shown}: {seen}");
    }

    shell.run(&guide.next("Domains: who may meet whom", ""));
    installed.wait_until_ready();
    let asks = guide.next("Domains: who may meet whom", "yaml");
    // It starts, so the domain is open to it; nobody else is in it.
    assert_eq!(upgraded(&client(plane, &asks, "front")), 0);

    volumes(&installed, &shell);

    shell.run(&guide.next("Remove", ""));
    redis_is_ready(plane);
    assert!(!client(plane, "metadata:\n", "last").contains("memlane"));
    let left = plane.ask(&["get", "namespace", "memlane"]);
    assert!(left.is_err(), "{left:?}");
    assert_eq!(guide.0, [], "nobody has followed these");
}

/// What the guide about volumes says of the chart.
fn volumes(installed: &Installed, shell: &Shell) {
    let plane = installed.node().plane();
    let mut guide = Guide::open("kubernetes-volumes.md");
    let here = |text: String| {
        text.replace("192.0.2.1", Node::ADDRESS)
            .replace("storage1", NODE_NAME)
    };
    let values = here(guide.next("With the chart", "yaml"));
    std::fs::write(shell.home().join("volumes.yaml"), values).expect("written");
    let authority = Authority::new("guide");
    let server = authority.server("server", &format!("IP:{}", Node::ADDRESS));
    let client = authority.client("client", "URI:memlane:session/*");
    let commands = guide.next("With the chart", "");
    let commands = commands
        .replace("/etc/memlane/server", &server.display().to_string())
        .replace("/etc/memlane/client", &client.display().to_string());
    shell.run(&commands);
    let store = [
        "rollout",
        "status",
        "-n",
        "memlane",
        "statefulset/memlane-store-s1",
    ];
    if let Err(why) = plane.ask(&[&store[..], &["--timeout=120s"]].concat()) {
        panic!("{why}\n{}", installed.what_is_wrong());
    }
    installed.wait_until_ready();
    let claim = "
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: shop}
spec:
  storageClassName: memlane
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 64Mi}}
";
    plane.apply(claim).expect("a claim");
    let pod = |script: &str| {
        format!(
            "  containers:
    - name: shell
      image: {IMAGE}
      imagePullPolicy: Never
      command: [sh, -c, '{script}']
      volumeMounts: [{{name: data, mountPath: /tmp}}]
  volumes: [{{name: data, persistentVolumeClaim: {{claimName: data}}}}]
"
        )
    };
    let write = pod("echo kept >/tmp/a && sha256sum /tmp/a");
    let sum = runs(plane, "metadata:\n", "writer", &write);
    let read = pod("sha256sum /tmp/a");
    assert_eq!(runs(plane, "metadata:\n", "reader", &read), sum);
    let delete = ["delete", "persistentvolumeclaim", "data", "-n", "shop"];
    plane.say(&[&delete[..], &["--timeout=60s"]].concat());
    let left = ["get", "persistentvolumes", "-o", "name"];
    plane.wait_until("the volume to go", LIMIT, &left, str::is_empty);
}
