//! Kubernetes, built from its modules: what the other tests of it stand on.

use std::time::Duration;

use memlane_system::blocks::skip;
use memlane_system::cluster::{CONTROL_PLANE, ControlPlane, Image, NODE, Node, has};
use memlane_system::containers::root::{Root, found};

const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn a_control_plane_answers() {
    if !has("control plane", CONTROL_PLANE) {
        return;
    }
    let plane = ControlPlane::start("control-plane");
    plane.namespace("shop", &["memlane.dev/lane=on"]);
    let namespace = plane.get(&["namespace", "shop"]);
    assert_eq!(namespace["metadata"]["labels"]["memlane.dev/lane"], "on");
}

#[test]
fn pods_of_a_node_reach_each_other_by_services() {
    if !has("node", CONTROL_PLANE) || !has("node", NODE) {
        return;
    }
    if let Some(why) = Node::obstacle() {
        return skip("node", &why);
    }
    let node = Node::start("node");
    let plane = node.plane();
    let root = Root::new(&node.folder().join("redis-root"));
    for program in ["redis-server", "redis-cli"] {
        root.put(&found(program));
    }
    let image = Image {
        name: IMAGE,
        ..Image::default()
    };
    node.import(&root, image);
    plane.namespace("shop", &[]);
    let server = pod("server", "redis-server, --protected-mode, 'no', --save, ''");
    plane.apply(&server).expect("a pod");
    plane.apply(SERVICE).expect("a service");
    let up = ["get", "pod", "server", "-n", "shop"];
    plane.wait_until("the server", LIMIT, &up, |said| said.contains("Running"));
    let address = "jsonpath={.spec.clusterIP}";
    let address = plane.say(&["get", "service", "redis", "-n", "shop", "-o", address]);
    let client = pod("client", &format!("redis-cli, -h, {address}, ping"));
    plane.apply(&client).expect("a pod");
    let said = ["logs", "client", "-n", "shop"];
    plane.wait_until("the answer", LIMIT, &said, |said| said.trim() == "PONG");
}

const IMAGE: &str = "localhost/redis:test";
const SERVICE: &str = "
apiVersion: v1
kind: Service
metadata: {name: redis, namespace: shop}
spec: {selector: {app: server}, ports: [{port: 6379}]}
";

fn pod(name: &str, command: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: shop, labels: {{app: {name}}}}}
spec:
  restartPolicy: OnFailure
  containers: [{{name: redis, image: '{IMAGE}', imagePullPolicy: Never, command: [{command}]}}]
"
    )
}
