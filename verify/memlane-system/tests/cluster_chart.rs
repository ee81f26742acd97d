//! The chart, as helm renders it, and the manifest beside it.
//!
//! Needs `target/cluster` (`./dev test-cluster`).

use std::path::{Path, PathBuf};
use std::process::Command;

use memlane_system::cluster::{CONTROL_PLANE, ControlPlane, has, manifest, program};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// What helm makes of the chart with these settings, or what it says.
fn rendered(settings: &[&str]) -> Result<String, String> {
    let mut command = Command::new(program("helm"));
    command
        .current_dir(root())
        .args(["template", "memlane", "packaging/kubernetes/chart"]);
    command.arg("--namespace=memlane");
    command.args(settings.iter().map(|setting| format!("--set={setting}")));
    let done = command.output().expect("helm");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("a text");
    match done.status.success() {
        true => Ok(text(done.stdout)),
        false => Err(text(done.stderr)),
    }
}

/// Settings with which the chart is used.
const SETTINGS: [&[&str]; 4] = [
    &[],
    &[
        "webhook.tlsSecret=their-tls",
        "webhook.annotations.cert-manager\\.io/inject-ca-from=memlane/their",
    ],
    &[
        "sharedDomains.front={shop,cart}",
        "node.seLinuxOptions.type=spc_t",
        "imagePullSecrets[0].name=ours",
        "keepImagePreload=true",
    ],
    &[
        "volumes.enabled=true",
        "volumes.store.address=192.0.2.1",
        "volumes.store.tlsSecret=store",
        "volumes.clientTlsSecret=node",
    ],
];

#[test]
fn the_manifest_is_what_the_chart_says() {
    if !has("chart", &["helm"]) {
        return;
    }
    let checked = Command::new("sh")
        .arg(root().join("packaging/kubernetes/render.sh"))
        .arg("--check")
        .env("HELM", program("helm"))
        .output()
        .expect("sh");
    let difference = String::from_utf8_lossy(&checked.stdout);
    assert!(
        checked.status.success(),
        "packaging/kubernetes/render.sh writes it anew:\n{difference}"
    );
}

#[test]
fn an_api_server_accepts_whatever_the_chart_is_set_to() {
    if !has("chart-accepted", &[CONTROL_PLANE, &["helm"]].concat()) {
        return;
    }
    let plane = ControlPlane::start("chart");
    let said = plane.apply(&manifest()).expect("accepted");
    assert!(!said.contains("Warning"), "{said}");
    let file = plane.folder().join("rendered.yaml");
    let name = file.display().to_string();
    for settings in SETTINGS {
        std::fs::write(&file, rendered(settings).expect("rendered")).expect("written");
        let apply = [
            "apply",
            "--dry-run=server",
            "--validate=strict",
            "--filename",
            &name,
        ];
        plane
            .ask(&apply)
            .unwrap_or_else(|why| panic!("{settings:?}: {why}"));
    }
}

#[test]
fn settings_that_would_leave_volumes_open_to_everybody_are_refused() {
    if !has("chart-refused", &["helm"]) {
        return;
    }
    let refused = |settings: &[&str]| rendered(settings).expect_err("refused");
    assert!(refused(&["volumes.enabled=true"]).contains("volumes.store.address is needed"));
    let open = ["volumes.enabled=true", "volumes.store.address=192.0.2.1"];
    assert!(refused(&open).contains("volumes.store.tlsSecret is needed"));
}

#[test]
fn with_a_certificate_of_others_the_webhook_has_no_rights_and_no_token() {
    if !has("chart-rights", &["helm"]) {
        return;
    }
    let text = rendered(SETTINGS[1]).expect("rendered");
    assert!(!text.contains("kind: ClusterRole"), "{text}");
    assert!(!text.contains("automountServiceAccountToken: true"));
    assert!(
        text.contains("--tls=/tls")
            && text.contains("cert-manager.io/inject-ca-from: memlane/their")
    );
}
