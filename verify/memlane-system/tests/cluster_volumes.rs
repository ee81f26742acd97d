//! Volumes of memlane in a cluster: a claim becomes a volume by the chart's StorageClass and Kubernetes's own sidecars, the
//! kubelet has it mounted, and it goes with its claim.
//!
//! Needs `target/cluster` (`./dev test-cluster`), memlane-webhook, memlane-csi, runc, FUSE, loop devices and root.

use std::path::PathBuf;
use std::time::Duration;

use memlane_system::blocks::skip;
use memlane_system::cluster::{
    CONTROL_PLANE, ControlPlane, Image, Installed, NODE, Node, SIDECARS, has,
};
use memlane_system::containers::root::{Root, found};
use memlane_system::csi;

const LIMIT: Duration = Duration::from_secs(120);
const SHELL: &str = "localhost/shell:test";

/// A cluster with memlane's volumes, which lie in its folder `volumes`.
fn cluster() -> Option<(Installed, PathBuf)> {
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
    for sidecar in SIDECARS {
        let root = Root::new(&node.folder().join(sidecar));
        root.put(&memlane_system::cluster::program(sidecar));
        let (name, program) = (sidecar_image(sidecar), format!("/bin/{sidecar}"));
        let image = Image {
            name: &name,
            command: &[&program],
            ..Image::default()
        };
        node.import(&root, image);
    }
    let root = Root::new(&node.folder().join("shell"));
    for program in ["sh", "sha256sum", "head", "df", "tail", "sync", "sleep"] {
        root.put(&found(program));
    }
    let image = Image {
        name: SHELL,
        ..Image::default()
    };
    node.import(&root, image);
    let volumes = node.folder().join("volumes");
    let settings = [
        "volumes.enabled=true".to_owned(),
        // There is no systemd here that would keep mappings.
        "volumes.onHost=false".to_owned(),
        format!("volumes.store.hostPath={}", volumes.display()),
        format!("volumes.store.address={}", Node::ADDRESS),
        "volumes.store.insecure=true".to_owned(),
        format!(
            "volumes.provisionerImage={}",
            sidecar_image("csi-provisioner")
        ),
        format!("volumes.attacherImage={}", sidecar_image("csi-attacher")),
        format!("volumes.resizerImage={}", sidecar_image("csi-resizer")),
        "volumes.parameters.csi\\.storage\\.k8s\\.io/fstype=xfs".to_owned(),
    ];
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    let installed = Installed::on(node, &settings);
    let waited = [
        "rollout",
        "status",
        "-n",
        "memlane",
        "statefulset/memlane-store",
        "--timeout=120s",
    ];
    if let Err(why) = installed.node().plane().ask(&waited) {
        panic!("{why}\n{}", installed.what_is_wrong());
    }
    Some((installed, volumes))
}

fn sidecar_image(name: &str) -> String {
    format!("localhost/{name}:test")
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

/// Runs a script in a pod with the claim at `/tmp`; what it says.
fn runs(plane: &ControlPlane, name: &str, script: &str) -> String {
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
    let phase = "jsonpath={.status.phase}";
    let phase = ["get", "pod", name, "-n", "shop", "-o", phase];
    plane.wait_until("the pod", LIMIT, &phase, |said| {
        said == "Succeeded" || said == "Failed"
    });
    let said = plane.say(&["logs", name, "-n", "shop"]);
    assert_eq!(plane.say(&phase), "Succeeded", "{said}");
    plane.say(&["delete", "pod", name, "-n", "shop", "--timeout=60s"]);
    said
}

#[test]
fn a_claim_becomes_a_volume_that_keeps_what_pods_write_grows_and_goes() {
    let Some((installed, volumes)) = cluster() else {
        return;
    };
    let plane = installed.node().plane();
    plane.namespace("shop", &[]);
    plane.apply(&claim("320Mi")).expect("a claim");
    let sum = runs(
        plane,
        "writer",
        "set -e; head -c 20000000 /dev/urandom >/tmp/a; sync; sha256sum /tmp/a",
    );
    // The next pod finds it, after the volume was unmapped and mapped again.
    assert_eq!(runs(plane, "reader", "sha256sum /tmp/a"), sum);
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
    assert_eq!(runs(plane, "last", "sha256sum /tmp/a"), sum);
    // The claim goes, and the volume with it.
    plane.say(&[
        "delete",
        "persistentvolumeclaim",
        "data",
        "-n",
        "shop",
        "--timeout=60s",
    ]);
    plane.wait_until(
        "the volume to go",
        LIMIT,
        &["get", "persistentvolumes", "-o", "name"],
        |said| said.is_empty(),
    );
    let left = std::fs::read_dir(volumes.join("volumes")).expect("the store's folder");
    assert_eq!(left.count(), 0);
}
