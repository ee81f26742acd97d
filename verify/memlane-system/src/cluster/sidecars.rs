//! Kubernetes's own controllers of volumes, as images of a node.

use super::image::Image;
use super::node::Node;
use super::{SIDECARS, program};
use crate::containers::root::Root;

fn image(name: &str) -> String {
    format!("localhost/{name}:test")
}

/// Brings them to a node.
///
/// # Panics
/// If one is not built, or containerd does not take it.
pub fn bring_sidecars(node: &Node) {
    for name in SIDECARS {
        let root = Root::new(&node.folder().join(name));
        root.put(&program(name));
        let (image, command) = (image(name), format!("/bin/{name}"));
        node.import(
            &root,
            Image {
                name: &image,
                command: &[&command],
                ..Image::default()
            },
        );
    }
}

/// Settings of the chart that name them.
pub fn sidecar_settings() -> [String; 3] {
    ["provisioner", "attacher", "resizer"]
        .map(|role| format!("volumes.{role}Image={}", image(&format!("csi-{role}"))))
}
