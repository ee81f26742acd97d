//! Volumes of memlane in a cluster: a claim becomes a volume by the chart's StorageClass and Kubernetes's own sidecars, the
//! kubelet has it mounted, and it goes with its claim. All ends show certificates.
//!
//! Needs `target/cluster` (`./dev test-cluster`), memlane-webhook, memlane-csi, runc, FUSE, loop devices, openssl and root.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use memlane_system::blocks::authority::Authority;
use memlane_system::blocks::skip;
use memlane_system::cluster::{
    CONTROL_PLANE, ControlPlane, Image, Installed, NODE, NODE_NAME, Node, SIDECARS, bring_sidecars,
    has, sidecar_settings,
};
use memlane_system::containers::root::{Root, found};
use memlane_system::csi;

const LIMIT: Duration = Duration::from_secs(120);
const SHELL: &str = "localhost/shell:test";

/// A cluster in which memlane can be installed with volumes. `None`, and a word on standard error, where there can be none.
fn cluster() -> Option<Installed> {
    let test = "volumes in a cluster";
    let programs = [CONTROL_PLANE, NODE, SIDECARS, &["helm"]];
    if !programs.iter().all(|programs| has(test, programs)) {
        return None;
    }
    if let Some(why) = Node::obstacle().or_else(csi::missing) {
        skip(test, &why);
        return None;
    }
    let node = Node::start("claims");
    bring_sidecars(&node);
    let root = Root::new(&node.folder().join("shell"));
    for program in ["sh", "sha256sum", "head", "df", "tail", "sync", "sleep"] {
        root.put(&found(program));
    }
    let image = Image {
        name: SHELL,
        ..Image::default()
    };
    node.import(&root, image);
    Some(Installed::prepared(node))
}

/// A storage node: its name, its address, and more settings of it.
type Store<'a> = (&'a str, &'a str, &'a [&'a str]);

/// Installs the chart with these storage nodes, and waits until they are there.
fn install(installed: &Installed, stores: &[Store<'_>], more: &[&str]) {
    let mut settings = vec![
        "volumes.enabled=true".to_owned(),
        // There is no systemd here that would keep mappings.
        "volumes.onHost=false".to_owned(),
        "volumes.clientTlsSecret=memlane-node-tls".to_owned(),
        "volumes.parameters.csi\\.storage\\.k8s\\.io/fstype=xfs".to_owned(),
    ];
    settings.extend(sidecar_settings());
    for (number, (name, address, about)) in stores.iter().enumerate() {
        let own = [
            format!("name={name}"),
            format!("address={address}"),
            format!("hostPath={}", folder(installed, name).display()),
            format!("tlsSecret=memlane-store-{name}-tls"),
        ];
        let about = about.iter().map(|about| (*about).to_owned());
        let all = own.into_iter().chain(about);
        settings.extend(all.map(|one| format!("volumes.stores[{number}].{one}")));
    }
    settings.extend(more.iter().map(|one| (*one).to_owned()));
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    installed.install(&settings);
    for (name, ..) in stores {
        rolled_out(installed, &format!("statefulset/memlane-store-{name}"));
    }
}

fn rolled_out(installed: &Installed, workload: &str) {
    let waited = ["rollout", "status", "-n", "memlane", workload];
    let waited = [&waited[..], &["--timeout=120s"]].concat();
    if let Err(why) = installed.node().plane().ask(&waited) {
        panic!("{why}\n{}", installed.what_is_wrong());
    }
}

/// The folder of a store's volumes.
fn folder(installed: &Installed, store: &str) -> PathBuf {
    installed.node().folder().join("volumes").join(store)
}

fn volumes(installed: &Installed, store: &str) -> usize {
    let all = std::fs::read_dir(folder(installed, store).join("volumes"));
    all.expect("the store's folder").count()
}

/// Makes a secret of a folder, or changes it.
fn secret(plane: &ControlPlane, name: &str, folder: &Path) {
    let from = format!("--from-file={}", folder.display());
    let made = plane.say(&[
        "create",
        "secret",
        "generic",
        name,
        "--namespace=memlane",
        &from,
        "--dry-run=client",
        "--output=yaml",
    ]);
    plane.apply(&made).expect("a secret");
}

/// Certificates of this authority for a storage node and for all nodes that use it.
fn certify(plane: &ControlPlane, authority: &Authority, store: &str, address: &str) {
    let server = authority.server(store, &format!("IP:{address}"));
    secret(plane, &format!("memlane-store-{store}-tls"), &server);
    let node = authority.client("node", "URI:memlane:session/*");
    secret(plane, "memlane-node-tls", &node);
}

fn claim(size: &str) -> String {
    format!(
        "
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: data, namespace: shop}}
spec:
  storageClassName: memlane
  accessModes: [ReadWriteOncePod]
  resources: {{requests: {{storage: {size}}}}}
"
    )
}

/// Starts a script in a pod with the claim at `/tmp`.
fn starts(plane: &ControlPlane, name: &str, script: &str) {
    let pod = format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: shop}}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers:
    - name: shell
      image: {SHELL}
      imagePullPolicy: Never
      command: [sh, -c, '{script}']
      volumeMounts: [{{name: data, mountPath: /tmp}}]
  volumes: [{{name: data, persistentVolumeClaim: {{claimName: data}}}}]
"
    );
    plane.apply(&pod).expect("a pod");
}

fn delete_pod(plane: &ControlPlane, name: &str) {
    plane.say(&["delete", "pod", name, "-n", "shop", "--timeout=60s"]);
}

/// Runs a script in a pod with the claim at `/tmp`; what it says.
fn runs(plane: &ControlPlane, name: &str, script: &str) -> String {
    starts(plane, name, script);
    let phase = "jsonpath={.status.phase}";
    let phase = ["get", "pod", name, "-n", "shop", "-o", phase];
    plane.wait_until("the pod", LIMIT, &phase, |said| {
        said == "Succeeded" || said == "Failed"
    });
    let said = plane.say(&["logs", name, "-n", "shop"]);
    assert_eq!(plane.say(&phase), "Succeeded", "{said}");
    delete_pod(plane, name);
    said
}

/// The claim goes, and the volume with it.
fn release(plane: &ControlPlane) {
    let delete = ["delete", "persistentvolumeclaim", "data", "-n", "shop"];
    plane.say(&[&delete[..], &["--timeout=60s"]].concat());
    let left = ["get", "persistentvolumes", "-o", "name"];
    plane.wait_until("the volume to go", LIMIT, &left, str::is_empty);
}

const WRITE: &str = "set -e; head -c 20000000 /dev/urandom >/tmp/a; sync; sha256sum /tmp/a";
const READ: &str = "sha256sum /tmp/a";

#[test]
fn a_claim_becomes_a_volume_that_keeps_what_pods_write_grows_and_goes() {
    let Some(installed) = cluster() else {
        return;
    };
    let plane = installed.node().plane();
    let authority = Authority::new("volumes");
    certify(plane, &authority, "s1", Node::ADDRESS);
    install(&installed, &[("s1", Node::ADDRESS, &[])], &[]);
    plane.namespace("shop", &[]);
    plane.apply(&claim("320Mi")).expect("a claim");
    let sum = runs(plane, "writer", WRITE);
    // The next pod finds it, after the volume was unmapped and mapped again.
    assert_eq!(runs(plane, "reader", READ), sum);
    let size = |name: &str| -> u64 {
        let said = runs(plane, name, "df --output=size -B 1 /tmp | tail -n 1");
        said.trim().parse().expect("a size")
    };
    let before = size("before");
    plane.apply(&claim("640Mi")).expect("a larger claim");
    let of_volume = [
        "get",
        "persistentvolumes",
        "-o",
        "jsonpath={.items[0].spec.capacity.storage}",
    ];
    plane.wait_until("the volume to grow", LIMIT, &of_volume, |said| {
        said == "640Mi"
    });
    assert!(size("after") > before + (256 << 20));
    assert_eq!(runs(plane, "last", READ), sum);

    certificates_are_renewed(&installed);
    assert_eq!(runs(plane, "renewed", READ), sum);
    a_server_that_is_away_is_told_at_the_claim(&installed);
    release(plane);
    assert_eq!(volumes(&installed, "s1"), 0);
}

/// All secrets are replaced by those of another authority. Nothing is restarted.
fn certificates_are_renewed(installed: &Installed) {
    let plane = installed.node().plane();
    let containers = "jsonpath={.items[*].status.containerStatuses[*].containerID}";
    let containers = ["get", "pods", "-n", "memlane", "-o", containers];
    let before = plane.say(&containers);
    let other = Authority::new("renewed");
    certify(plane, &other, "s1", Node::ADDRESS);
    let new = std::fs::read(other.certificate()).expect("a certificate");
    let kept = installed.node().folder().join("state/tls/ca-cert.pem");
    let end = Instant::now() + LIMIT;
    while std::fs::read(&kept).expect("the node's copy") != new {
        assert!(Instant::now() < end, "{}", installed.what_is_wrong());
        std::thread::sleep(Duration::from_millis(200));
    }
    // A volume that is mapped from now on is mapped with the new ones, or not at all.
    assert_eq!(plane.say(&containers), before);
}

/// What was told at the claim, as words that are reasons.
const TOLD: [&str; 6] = [
    "get",
    "events.events.k8s.io",
    "-n",
    "shop",
    "-o",
    "jsonpath={range .items[?(@.reportingController==\"csi.memlane.dev\")]}{.type} {.reason} {.regarding.kind}/{.regarding.name}: {.note}{\"\\n\"}{end}",
];

fn a_server_that_is_away_is_told_at_the_claim(installed: &Installed) {
    let plane = installed.node().plane();
    starts(plane, "keeper", "while true; do sleep 1; done");
    let phase = "jsonpath={.status.phase}";
    let phase = ["get", "pod", "keeper", "-n", "shop", "-o", phase];
    plane.wait_until("the pod", LIMIT, &phase, |said| said == "Running");
    let scaled = |replicas: &str| {
        plane.say(&[
            "scale",
            "statefulset/memlane-store-s1",
            "-n",
            "memlane",
            replicas,
        ]);
    };
    scaled("--replicas=0");
    let away = "Warning ServerUnreachable PersistentVolumeClaim/data: ";
    plane.wait_until("an event", LIMIT, &TOLD, |said| said.contains(away));
    scaled("--replicas=1");
    let back = "Normal VolumeRecovered PersistentVolumeClaim/data: ";
    plane.wait_until("its end", LIMIT, &TOLD, |said| said.contains(back));
    // One event for each change, however often somebody has looked.
    let said = plane.say(&TOLD);
    assert_eq!(said.matches(away).count(), 1, "{said}");
    assert_eq!(said.matches(back).count(), 1, "{said}");
    rolled_out(installed, "statefulset/memlane-store-s1");
    delete_pod(plane, "keeper");
}

#[test]
fn of_several_stores_the_one_at_the_place_of_the_pod_gets_the_volume() {
    let Some(installed) = cluster() else {
        return;
    };
    let plane = installed.node().plane();
    plane.say(&["label", "node", NODE_NAME, "topology.kubernetes.io/zone=a"]);
    let authority = Authority::new("volumes");
    let stores: [Store<'_>; 2] = [
        (
            "s1",
            Node::ADDRESS,
            &["topology.topology\\.kubernetes\\.io/zone=a"],
        ),
        (
            "s2",
            Node::SECOND_ADDRESS,
            &["topology.topology\\.kubernetes\\.io/zone=b"],
        ),
    ];
    for (name, address, _) in stores {
        certify(plane, &authority, name, address);
    }
    let controller = authority.client("controller", "URI:memlane:store/*");
    secret(plane, "memlane-controller-tls", &controller);
    let more = ["volumes.controllerTlsSecret=memlane-controller-tls"];
    install(&installed, &stores, &more);
    rolled_out(&installed, "deployment/memlane-controller");
    plane.namespace("shop", &[]);
    plane.apply(&claim("320Mi")).expect("a claim");
    let sum = runs(plane, "writer", WRITE);
    assert_eq!(runs(plane, "reader", READ), sum);
    let number = |store| volumes(&installed, store);
    assert_eq!((number("s1"), number("s2")), (1, 0));
    both_stores_run_on(plane);
    let place = "jsonpath={.items[0].spec.nodeAffinity.required.nodeSelectorTerms[0].matchExpressions[0].values[0]}";
    let place = plane.say(&["get", "persistentvolumes", "-o", place]);
    assert_eq!(place, "a");
    release(plane);
    assert_eq!((number("s1"), number("s2")), (0, 0));
}

/// Nothing of one store is in the way of another one on the same machine.
fn both_stores_run_on(plane: &ControlPlane) {
    let restarts = "jsonpath={.items[*].status.containerStatuses[*].restartCount}";
    let stores = ["-l", "app.kubernetes.io/name=memlane-store", "-o", restarts];
    let said = plane.say(&[&["get", "pods", "-n", "memlane"], &stores[..]].concat());
    assert_eq!(said, "0 0 0 0");
}
