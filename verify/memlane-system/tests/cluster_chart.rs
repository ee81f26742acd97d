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
const SETTINGS: [&[&str]; 5] = [
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
        "volumes.stores[0].name=s1",
        "volumes.stores[0].address=192.0.2.1",
        "volumes.stores[0].tlsSecret=store",
        "volumes.clientTlsSecret=node",
    ],
    &[
        "volumes.enabled=true",
        "volumes.onHost=false",
        "volumes.stores[0].name=s1",
        "volumes.stores[0].address=192.0.2.1",
        "volumes.stores[0].tlsSecret=store",
        "volumes.stores[0].topology.topology\\.kubernetes\\.io/zone=a",
        "volumes.stores[0].nodeSelector.kubernetes\\.io/hostname=storage1",
        "volumes.stores[1].name=s2",
        "volumes.stores[1].address=2001:db8::1",
        "volumes.stores[1].tlsSecret=store",
        "volumes.stores[1].topology.topology\\.kubernetes\\.io/zone=b",
        "volumes.controllerTlsSecret=controller",
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
    let refused = |settings: &[&str]| {
        let all = [&["volumes.enabled=true"], settings].concat();
        rendered(&all).expect_err("refused")
    };
    let (name, address) = ("volumes.stores[0].name=s1", "volumes.stores[0].address=::1");
    assert!(refused(&[]).contains("volumes.stores is empty"));
    assert!(refused(&[address]).contains("each store needs a name"));
    assert!(refused(&[name]).contains("the address of s1 is missing"));
    assert!(refused(&[name, address]).contains("the tlsSecret of s1 is missing"));
    // Of several, each is asked by whoever shows a certificate.
    let open = "volumes.insecure=true";
    rendered(&["volumes.enabled=true", name, address, open]).expect("one may be open");
    let second = ["volumes.stores[1].name=s2", "volumes.stores[1].address=::2"];
    let several = [&[name, address, open][..], &second].concat();
    assert!(refused(&several).contains("volumes.controllerTlsSecret"));
    let tls = [
        "volumes.stores[0].tlsSecret=s1",
        "volumes.controllerTlsSecret=controller",
        "volumes.stores[1].name=s1",
    ];
    let same = [&[name, address][..], &tls].concat();
    assert!(refused(&same).contains("two of them are called s1"));
}

#[test]
fn each_store_has_its_own_server_and_the_controller_asks_all_of_them() {
    if !has("chart-stores", &["helm"]) {
        return;
    }
    let one = rendered(SETTINGS[3]).expect("rendered");
    assert_eq!(one.matches("kind: StatefulSet").count(), 1);
    assert!(one.contains("--root=/volumes") && one.contains("--store-name=s1"));
    assert!(!one.contains("--store="), "{one}");
    let two = rendered(SETTINGS[4]).expect("rendered");
    assert_eq!(two.matches("kind: StatefulSet").count(), 2);
    for flag in [
        "--store=s1=https://192.0.2.1:9811",
        "--store=s2=https://[2001:db8::1]:9811",
        "--listen=[2001:db8::1]:9811",
        "--topology=topology.kubernetes.io/zone=b",
        "--topology-label=topology.kubernetes.io/zone",
    ] {
        assert!(two.contains(flag), "{flag}\n{two}");
    }
    // The plugin takes volumes from lost nodes by its server's name.
    for flag in ["--name=memlane-store-s2", "--server=memlane-store-s2"] {
        assert!(two.contains(flag), "{flag}\n{two}");
    }
    // A volume's identifier has the store's name, so a second store changes nothing for those that exist.
    assert!(two.contains("--store-name=s1"));
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
