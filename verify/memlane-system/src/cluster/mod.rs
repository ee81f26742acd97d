//! Kubernetes, as `cluster/build.sh` builds it from its modules: a control plane on this machine, and a node.
//!
//! - [`ControlPlane`]: etcd and kube-apiserver, and kubectl to talk to it.
//! - [`Webhook`]: memlane's manifest in a control plane, with the webhook as a process of this machine.
//! - [`Installed`]: memlane in a cluster with a node, everything in pods.
//! - [`Node`]: a control plane with what makes and places pods, and containerd and kubelet, which run them.

mod control_plane;
mod image;
mod installed;
mod node;
mod pod_network;
mod sidecars;
mod webhook;

use std::path::{Path, PathBuf};

pub use control_plane::{ControlPlane, Token};
pub use image::Image;
pub use installed::Installed;
pub use node::Node;
pub use sidecars::{bring_sidecars, sidecar_settings};
pub use webhook::{Replica, Webhook, manifest};

/// What a control plane consists of.
pub const CONTROL_PLANE: &[&str] = &["etcd", "kube-apiserver", "kubectl"];
/// What a node needs beside it.
pub const NODE: &[&str] = &[
    "containerd",
    "containerd-shim-runc-v2",
    "ctr",
    "kubelet",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
];

/// Kubernetes's own controllers of volumes.
pub const SIDECARS: &[&str] = &["csi-provisioner", "csi-attacher", "csi-resizer"];
/// The node's name.
pub const NODE_NAME: &str = "node";
/// The variable that may name the folder of the programs.
const FOLDER: &str = "MEMLANE_CLUSTER_PROGRAMS";

/// Where the programs are: in the folder `MEMLANE_CLUSTER_PROGRAMS`, or in `target/cluster`.
pub fn folder() -> PathBuf {
    let named = std::env::var_os(FOLDER).map(PathBuf::from);
    named.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/cluster"))
}

/// Where one of them lies, if it is here.
pub fn program(name: &str) -> PathBuf {
    folder().join(name)
}

/// Are these programs here? Says so if one is not. `./dev test-cluster` makes them.
///
/// # Panics
/// If one is not, and `MEMLANE_CLUSTER_PROGRAMS` says where they are.
pub fn has(test: &str, programs: &[&str]) -> bool {
    let Some(name) = programs.iter().find(|name| !program(name).is_file()) else {
        return true;
    };
    let text = format!("{test}: no {}", program(name).display());
    assert!(std::env::var_os(FOLDER).is_none(), "{text}");
    eprintln!("SKIPPED {text}: ./dev test-cluster");
    false
}
