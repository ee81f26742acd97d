//! Kubernetes, built from its modules.

use memlane_system::cluster::{CONTROL_PLANE, ControlPlane, has};

#[test]
fn a_control_plane_answers() {
    if !has("control plane", CONTROL_PLANE) {
        return;
    }
    let plane = ControlPlane::start("cluster");
    plane.namespace("shop", &["memlane.dev/lane=on"]);
    let namespace = plane.get(&["namespace", "shop"]);
    assert_eq!(namespace["metadata"]["labels"]["memlane.dev/lane"], "on");
}
