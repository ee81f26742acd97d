//! Kubernetes, as `cluster/build.sh` builds it from its modules: a control plane on this machine, and a node.
//!
//! - [`ControlPlane`]: etcd and kube-apiserver, and kubectl to talk to it.
//! - [`Node`]: containerd and kubelet, which run pods, and the controllers that make and place them.

mod control_plane;
mod node;

use std::path::{Path, PathBuf};

use crate::blocks::skip;

pub use control_plane::{ControlPlane, Token};
pub use node::Node;

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
];

/// Where the programs are: in the folder `MEMLANE_CLUSTER_PROGRAMS`, or in `target/cluster`.
pub fn folder() -> PathBuf {
    let named = std::env::var_os("MEMLANE_CLUSTER_PROGRAMS").map(PathBuf::from);
    named.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/cluster"))
}

/// Where one of them lies, if it is here.
pub fn program(name: &str) -> PathBuf {
    folder().join(name)
}

/// Are these programs here? Skips `test`, loudly, if one is not.
///
/// # Panics
/// If one is not, where everything is said to be there.
pub fn has(test: &str, programs: &[&str]) -> bool {
    match programs.iter().find(|name| !program(name).is_file()) {
        None => true,
        Some(name) => {
            let missing = program(name).display().to_string();
            skip(test, &format!("no {missing}: ./dev test-cluster"));
            false
        }
    }
}
