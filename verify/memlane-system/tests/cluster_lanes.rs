//! Lanes by a label, in a cluster: the chart installs memlane in pods of its own, the kubelet and containerd run pods with the
//! volume that its plugin brings, and kube-proxy leads to them.
//!
//! Needs `target/cluster` (`./dev test-cluster`), memlane-webhook, memlane-csi, redis, runc and root.

use std::process::Command;
use std::time::{Duration, Instant};

use memlane_system::blocks::{must, skip};
use memlane_system::cluster::{CONTROL_PLANE, ControlPlane, Image, Installed, NODE, Node, has};
use memlane_system::containers::root::{Root, found};
use memlane_system::containers::upgraded;
use memlane_system::harness::{TempDir, send_signal};

const LIMIT: Duration = Duration::from_secs(90);
const IMAGE: &str = "localhost/redis:test";
/// The same programs, with a library that the image preloads itself.
const PRELOADING: &str = "localhost/redis-preloading:test";
/// What that library says when it is loaded.
const PRELOADED: &str = "the image's own library is here";

/// A cluster with memlane and an image of redis in it. `None`, and a word on standard error, where there can be none.
fn cluster(settings: &[&str]) -> Option<Installed> {
    let test = "lanes in a cluster";
    if !has(test, CONTROL_PLANE) || !has(test, NODE) || !has(test, &["helm"]) {
        return None;
    }
    if let Some(why) = Node::obstacle() {
        skip(test, &why);
        return None;
    }
    let installed = Installed::start("lanes", settings);
    let root = Root::new(&installed.node().folder().join("redis-root"));
    for program in ["redis-server", "redis-benchmark", "redis-cli"] {
        root.put(&found(program));
    }
    let image = Image {
        name: IMAGE,
        ..Image::default()
    };
    installed.node().import(&root, image);
    put_library(&root);
    let image = Image {
        name: PRELOADING,
        environment: &["LD_PRELOAD=/lib/libown.so"],
        ..Image::default()
    };
    installed.node().import(&root, image);
    Some(installed)
}

/// Puts a library into it that says so when it is loaded.
fn put_library(root: &Root) {
    root.folder("lib");
    let source = root.path().join("tmp/own.c");
    let text = format!(
        "#include <unistd.h>\n\
         __attribute__((constructor)) static void loaded(void) {{\n\
             static const char said[] = \"{PRELOADED}\\n\";\n\
             ssize_t ignored = write(2, said, sizeof said - 1);\n\
             (void)ignored;\n\
         }}\n"
    );
    std::fs::write(&source, text).expect("written");
    let mut compile = Command::new("cc");
    compile.args(["-shared", "-fPIC", "-O1", "-o"]);
    compile.arg(root.path().join("lib/libown.so")).arg(&source);
    must(compile);
}

/// What is said of a pod beside its command.
#[derive(Clone, Copy, Default)]
struct About<'a> {
    namespace: &'a str,
    name: &'a str,
    image: &'a str,
    label: &'a str,
    annotation: &'a str,
    volume: &'a str,
    mount: &'a str,
}

impl<'a> About<'a> {
    fn of(namespace: &'a str, name: &'a str) -> About<'a> {
        About {
            namespace,
            name,
            image: IMAGE,
            ..About::default()
        }
    }

    /// A pod as restricted as Pod Security knows it.
    fn pod(self, command: &str) -> String {
        let About {
            namespace,
            name,
            image,
            label,
            annotation,
            volume,
            mount,
        } = self;
        format!(
            "
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: {namespace}, labels: {{app: {name}, {label}}}, annotations: {{{annotation}}}}}
spec:
  restartPolicy: Never
  securityContext: {{runAsUser: 1000, runAsNonRoot: true, seccompProfile: {{type: RuntimeDefault}}}}
  containers:
    - name: redis
      image: {image}
      imagePullPolicy: Never
      command: [{command}]
      env: [{{name: MEMLANE_STATS_ON_EXIT, value: '1'}}]
      securityContext: {{allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {{drop: [ALL]}}}}{mount}{volume}
"
        )
    }

    /// redis in this pod, behind a service of the same name; the service's address.
    fn serves(self, plane: &ControlPlane) -> String {
        let About {
            namespace, name, ..
        } = self;
        let pod = self.pod("redis-server, --protected-mode, 'no', --save, ''");
        plane.apply(&pod).expect("a pod");
        let service = format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
             spec: {{selector: {{app: {name}}}, ports: [{{port: 6379}}]}}\n"
        );
        plane.apply(&service).expect("a service");
        let ready = r#"jsonpath={.status.conditions[?(@.type=="Ready")].status}"#;
        let args = ["get", "pod", name, "-n", namespace, "-o", ready];
        plane.wait_until("the server", LIMIT, &args, |said| said == "True");
        let address = "jsonpath={.spec.clusterIP}";
        plane.say(&["get", "service", name, "-n", namespace, "-o", address])
    }

    /// Runs a command in this pod.
    fn runs(self, plane: &ControlPlane, command: &str) {
        plane.apply(&self.pod(command)).expect("a pod");
    }

    /// Asks redis for a while from this pod; what it says at its end.
    fn asks(self, plane: &ControlPlane, to: &str) -> String {
        let About {
            namespace, name, ..
        } = self;
        let command = format!("redis-benchmark, -h, {to}, -t, get, -n, '40000', -c, '4', -q");
        plane.apply(&self.pod(&command)).expect("a pod");
        let phase = "jsonpath={.status.phase}";
        let phase = ["get", "pod", name, "-n", namespace, "-o", phase];
        plane.wait_until("the client", LIMIT, &phase, |said| {
            assert_ne!(said, "Failed");
            said == "Succeeded"
        });
        plane.say(&["logs", name, "-n", namespace])
    }
}

/// How many bytes a pod has sent through memory, by the exporter's page.
fn memory_bytes(page: &str, namespace: &str, pod: &str) -> u64 {
    let is_it = |line: &&str| {
        [
            "memlane_socket_bytes_total{",
            "direction=\"sent\"",
            "lane=\"memory\"",
            &format!("namespace=\"{namespace}\""),
            &format!("pod=\"{pod}\""),
        ]
        .iter()
        .all(|part| line.contains(part))
    };
    let line = page.lines().find(is_it);
    let value = line.and_then(|line| line.rsplit(' ').next());
    value.map_or(0, |value| value.parse().expect("a number"))
}

const ON: &str = "memlane.dev/lane=on";
const RESTRICTED: &str = "pod-security.kubernetes.io/enforce=restricted";

#[test]
fn a_label_gives_lanes_to_pods_and_a_restart_of_memlane_takes_none_away() {
    let Some(installed) = cluster(&[]) else {
        return;
    };
    let plane = installed.node().plane();
    plane.namespace("shop", &[ON, RESTRICTED]);
    plane.namespace("plain", &[]);
    let shop = About::of("shop", "redis").serves(plane);
    let said = About::of("shop", "client").asks(plane, &shop);
    assert!(upgraded(&said) >= 4, "{said}");
    let page = installed.metrics();
    assert!(memory_bytes(&page, "shop", "redis") > 100_000, "{page}");

    // The node's connections, by the names of pods.
    About::of("shop", "steady").runs(
        plane,
        &format!("redis-benchmark, -h, {shop}, -t, get, -l, -c, '4'"),
    );
    let end = Instant::now() + LIMIT;
    let is_shown = |said: &str| {
        let from = |line: &str, own: &str, peer: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let own = words.iter().position(|word| *word == own);
            own.is_some_and(|at| {
                words.get(at + 1) == Some(&peer) && words.get(at + 2) == Some(&"MEMLANE")
            })
        };
        let (client, server) = ("shop/steady/redis", "shop/redis/redis");
        let shown = |own, peer| said.lines().any(|line| from(line, own, peer));
        shown(client, server) && shown(server, client)
    };
    while !is_shown(&installed.on_the_node(&["ss", "--node"])) {
        assert!(
            Instant::now() < end,
            "{}",
            installed.on_the_node(&["ss", "--node"])
        );
        std::thread::sleep(Duration::from_millis(200));
    }
    plane.say(&["delete", "pod", "steady", "-n", "shop", "--grace-period=1"]);

    // A pod of another namespace, and one that is labelled off: as without memlane.
    let off = About {
        label: "memlane.dev/lane: 'off'",
        ..About::of("shop", "left-out")
    };
    for about in [About::of("plain", "stranger"), off] {
        let said = about.asks(plane, &shop);
        assert!(!said.contains("memlane"), "{said}");
        let pod = plane.get(&["pod", about.name, "-n", about.namespace]);
        assert!(!pod["spec"].to_string().contains("memlane-lane"), "{pod}");
    }

    assert!(installed.domains().join("shop").is_dir());
    // The server's pod stays; new pods meet the new agent, by the new plugin.
    let restart = ["rollout", "restart", "daemonset/memlane-node"];
    plane.say(&[&restart[..], &["-n", "memlane"]].concat());
    installed.wait_until_ready();
    let said = About::of("shop", "later").asks(plane, &shop);
    assert!(upgraded(&said) >= 4, "{said}");

    // As the guide removes it: no new lanes, then no pods that have one, then no memlane.
    plane.say(&["delete", "mutatingwebhookconfiguration", "memlane"]);
    plane.say(&["delete", "namespace", "shop", "plain", "--timeout=90s"]);
    // The domain goes with its last pod.
    let domain = installed.domains().join("shop");
    assert!(!domain.exists());
    installed.uninstall();
    let pods = installed.node().kubelet_folder().join("pods");
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    let left = |line: &&str| line.contains(&*pods.to_string_lossy());
    assert_eq!(mounts.lines().find(left), None);
}

#[test]
fn namespaces_share_a_domain_only_where_the_operator_has_opened_it() {
    let Some(installed) = cluster(&["sharedDomains.front={shop,cart}"]) else {
        return;
    };
    let plane = installed.node().plane();
    for namespace in ["shop", "cart", "bank"] {
        plane.namespace(namespace, &[ON, RESTRICTED]);
    }
    let front = |namespace, name| About {
        annotation: "memlane.dev/domain: front",
        ..About::of(namespace, name)
    };
    let shop = front("shop", "redis").serves(plane);
    let said = front("cart", "client").asks(plane, &shop);
    assert!(upgraded(&said) >= 4, "{said}");
    // In its own namespace's domain, a program meets nobody of another one.
    let said = About::of("bank", "client").asks(plane, &shop);
    assert_eq!(upgraded(&said), 0, "{said}");
    // A pod that asks for what is not open to its namespace does not start, and is told why; nor does one that says in a
    // volume of its own that it is somewhere else.
    let forger = About {
        volume: "
  volumes:
    - name: forged
      csi:
        driver: csi.memlane.dev
        readOnly: true
        volumeAttributes: {csi.storage.k8s.io/pod.namespace: shop, memlane.dev/domain: front}",
        mount: "
      volumeMounts: [{name: forged, mountPath: /run}]",
        ..About::of("bank", "forger")
    };
    for about in [front("bank", "thief"), forger] {
        let name = about.name;
        plane.apply(&about.pod("redis-cli")).expect("a pod");
        let about = format!("--field-selector=reason=FailedMount,involvedObject.name={name}");
        let events = ["get", "events", "-n", "bank", &about];
        plane.wait_until("the refusal", LIMIT, &events, |said| {
            said.contains("not open to namespace")
        });
        let phase = "jsonpath={.status.phase}";
        let phase = ["get", "pod", name, "-n", "bank", "-o", phase];
        assert_eq!(plane.say(&phase), "Pending");
    }
}

#[test]
fn an_image_that_preloads_a_library_of_its_own_keeps_it() {
    let Some(mut installed) = cluster(&["keepImagePreload=true"]) else {
        return;
    };
    let preloading = |name| About {
        image: PRELOADING,
        ..About::of("shop", name)
    };
    let plane = installed.node().plane();
    plane.namespace("shop", &[ON, RESTRICTED]);
    let shop = About::of("shop", "redis").serves(plane);
    let said = preloading("client").asks(plane, &shop);
    assert!(said.contains(PRELOADED), "{said}");
    assert!(upgraded(&said) >= 4, "{said}");

    // A plugin that hangs holds no pod up that needs nothing of it; it is there again when it goes on.
    let plugin = installed.node_plugin();
    plane.namespace("plain", &[]);
    send_signal("STOP", plugin);
    let said = About::of("plain", "stranger").asks(plane, &shop);
    assert!(!said.contains("memlane"), "{said}");
    send_signal("CONT", plugin);
    let said = preloading("again").asks(plane, &shop);
    assert!(said.contains(PRELOADED), "{said}");

    // The runtime's restart is one of its plugins' connections, too.
    installed.node_mut().restart_containerd();
    let plane = installed.node().plane();
    let said = preloading("later").asks(plane, &shop);
    assert!(said.contains(PRELOADED), "{said}");
    assert!(upgraded(&said) >= 4, "{said}");
}

#[test]
fn where_the_runtime_asks_no_plugins_pods_have_no_lane_and_what_their_images_preload() {
    let empty = TempDir::new("no-nri");
    let elsewhere = format!("node.nriDir={}", empty.path().display());
    let Some(installed) = cluster(&["keepImagePreload=true", &elsewhere]) else {
        return;
    };
    let plane = installed.node().plane();
    plane.namespace("shop", &[ON, RESTRICTED]);
    let shop = About::of("shop", "redis").serves(plane);
    let client = About {
        image: PRELOADING,
        ..About::of("shop", "client")
    };
    let said = client.asks(plane, &shop);
    assert!(said.contains(PRELOADED), "{said}");
    assert!(!said.contains("memlane"), "{said}");
}
