//! The edits as a device of the Container Device Interface: `docker run --device memlane.dev/lane=on`.
//!
//! Source of the format: the CDI specification, `SPEC.md` of github.com/cncf-tags/container-device-interface. Version 0.5.0 is
//! the newest that podman 4.3 knows; mounts and variables are in all.

use serde::Serialize;

use super::Edits;

/// The kind of device; with `=on` it is what users write after `--device`.
const KIND: &str = "memlane.dev/lane";

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    cdi_version: &'static str,
    kind: &'static str,
    devices: [Device; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Device {
    name: &'static str,
    container_edits: ContainerEdits,
}

#[derive(Serialize)]
struct ContainerEdits {
    env: Vec<String>,
    mounts: Vec<BindMount>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct BindMount {
    host_path: String,
    container_path: String,
    options: [&'static str; 5],
}

/// The file's text.
pub(crate) fn text(edits: &Edits) -> serde_json::Result<String> {
    let variable = |(name, value): &(&str, String)| format!("{name}={value}");
    let spec = Spec {
        cdi_version: "0.5.0",
        kind: KIND,
        devices: [Device {
            name: "on",
            container_edits: ContainerEdits {
                env: edits.variables.iter().map(variable).collect(),
                mounts: edits.mounts.iter().map(bind_mount).collect(),
            },
        }],
    };
    serde_json::to_string_pretty(&spec).map(|text| text + "\n")
}

fn bind_mount(mount: &memlane_inject::edits::Mount) -> BindMount {
    BindMount {
        host_path: mount.host.display().to_string(),
        container_path: mount.seen_at.display().to_string(),
        options: ["ro", "nosuid", "nodev", "rbind", "rslave"],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inject::Place;
    use std::path::Path;

    #[test]
    fn a_device_brings_the_library_and_the_domain() {
        let edits = Edits::new(
            Place::Container,
            Path::new("/usr/lib/memlane/inject"),
            Path::new("/run/memlane/default"),
        );
        let spec: serde_json::Value = serde_json::from_str(&text(&edits).unwrap()).unwrap();
        assert_eq!(spec["cdiVersion"], "0.5.0");
        assert_eq!(spec["kind"], "memlane.dev/lane");
        let device = &spec["devices"][0];
        assert_eq!(device["name"], "on");
        let edits = &device["containerEdits"];
        assert_eq!(
            edits["env"][0],
            "LD_PRELOAD=/opt/memlane/$LIB/libmemlane_preload.so"
        );
        assert_eq!(edits["mounts"][1]["containerPath"], "/run/memlane/default");
        assert_eq!(edits["mounts"][0]["options"][0], "ro");
    }
}
