//! The webhook, asked by a real API server, registered and with the rights as the manifest says.
//!
//! Needs `target/cluster` (`./dev test-cluster`) and memlane-webhook.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use memlane_system::cluster::{Replica, Webhook};
use serde_json::{Value, json};

/// A pod that is allowed everywhere, with these labels.
fn pod(namespace: &str, name: &str, labels: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"securityContext": {"runAsNonRoot": true, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{"name": "main", "image": "example/main:1",
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}]}})
}

/// Has the pod the volume, and each container of this list the mount and the variables?
fn has_lane(pod: &Value, list: &str) -> bool {
    let any = |list: &Value, is: &dyn Fn(&Value) -> bool| {
        list.as_array().is_some_and(|l| l.iter().any(is))
    };
    let volume = any(&pod["spec"]["volumes"], &|v| {
        v["csi"]["driver"] == "csi.memlane.dev"
    });
    let containers = pod["spec"][list].as_array().expect("containers");
    volume
        && containers.iter().all(|container| {
            any(&container["volumeMounts"], &|m| {
                m["mountPath"] == "/opt/memlane"
            }) && any(&container["env"], &|v| {
                v["name"] == "LD_PRELOAD" && v["value"] == "/opt/memlane/$LIB/libmemlane_preload.so"
            })
        })
}

/// The domain that the pod's volume asks for.
fn domain(pod: &Value) -> &Value {
    let volumes = pod["spec"]["volumes"].as_array().expect("volumes");
    let lane = volumes
        .iter()
        .find(|v| v["name"] == "memlane-lane")
        .expect("a lane");
    &lane["csi"]["volumeAttributes"]["memlane.dev/domain"]
}

#[test]
fn pods_come_out_as_their_labels_and_their_namespaces_say() {
    let Some(webhook) = Webhook::start("labels", "90d") else {
        return;
    };
    let plane = &webhook.plane;
    plane.namespace("on", &["memlane.dev/lane=on"]);
    plane.namespace("off", &["memlane.dev/lane=off"]);
    plane.namespace("silent", &[]);
    let (on, off) = (
        json!({"memlane.dev/lane": "on"}),
        json!({"memlane.dev/lane": "off"}),
    );
    for (namespace, labels, wanted) in [
        ("on", json!({}), true),
        ("on", on.clone(), true),
        ("on", off.clone(), false),
        ("silent", json!({}), false),
        ("silent", on.clone(), true),
        ("silent", off, false),
        ("off", json!({}), false),
        ("off", on.clone(), false),
        ("kube-system", on, false),
    ] {
        if namespace == "kube-system" {
            let account = [
                "create",
                "serviceaccount",
                "default",
                "--namespace",
                namespace,
            ];
            let _ = plane.ask(&account);
        }
        webhook.make(&pod(namespace, "pod", labels.clone()));
        let stored = webhook.pod(namespace, "pod");
        assert_eq!(
            has_lane(&stored, "containers"),
            wanted,
            "{namespace} {labels}"
        );
        if wanted {
            assert_eq!(domain(&stored), namespace);
        }
        plane.say(&[
            "delete",
            "pod",
            "pod",
            "--namespace",
            namespace,
            "--force",
            "--grace-period=0",
        ]);
    }
    // What is neither is told to the pod's author.
    let said = webhook.make(&pod("on", "neither", json!({"memlane.dev/lane": "yes"})));
    assert!(
        said.contains("Warning: the label memlane.dev/lane is \"yes\""),
        "{said}"
    );
    assert!(!has_lane(&webhook.pod("on", "neither"), "containers"));
    // A dry run is answered as it would be.
    let dry = [
        "run",
        "dry",
        "--image=x",
        "--namespace=on",
        "--dry-run=server",
        "--output=json",
    ];
    let dry: Value = serde_json::from_str(&plane.say(&dry)).expect("JSON");
    assert!(has_lane(&dry, "containers"));
}

#[test]
fn where_pods_are_restricted_and_in_every_kind_of_container_there_are_lanes() {
    let Some(webhook) = Webhook::start("kinds", "90d") else {
        return;
    };
    let restricted = "pod-security.kubernetes.io/enforce=restricted";
    webhook
        .plane
        .namespace("shop", &["memlane.dev/lane=on", restricted]);
    let mut made = pod("shop", "cart", json!({}));
    made["metadata"]["annotations"] = json!({"memlane.dev/domain": "front"});
    let mut beside = made["spec"]["containers"][0].clone();
    beside["env"] = json!([{"name": "LD_PRELOAD", "value": "/usr/lib/libjemalloc.so.2"}]);
    beside["name"] = json!("own");
    let mut before = made["spec"]["containers"][0].clone();
    before["name"] = json!("before");
    let mut sidecar = before.clone();
    sidecar["name"] = json!("sidecar");
    sidecar["restartPolicy"] = json!("Always");
    made["spec"]["initContainers"] = json!([before, sidecar]);
    made["spec"]["containers"]
        .as_array_mut()
        .expect("a list")
        .push(beside);
    let said = webhook.make(&made);
    assert!(!said.contains("Warning"), "{said}");
    let stored = webhook.pod("shop", "cart");
    assert!(has_lane(&stored, "initContainers"), "{stored:#}");
    let own = &stored["spec"]["containers"][1]["env"][0];
    assert_eq!(
        own["value"],
        "/usr/lib/libjemalloc.so.2:/opt/memlane/$LIB/libmemlane_preload.so"
    );
    assert_eq!(domain(&stored), "front");
    // kubectl debug, twice: what is there cannot be changed.
    for _ in 0..2 {
        let debug = [
            "debug",
            "cart",
            "--namespace=shop",
            "--image=x",
            "--profile=restricted",
            "--attach=false",
        ];
        webhook.plane.say(&debug);
    }
    let stored = webhook.pod("shop", "cart");
    assert_eq!(
        stored["spec"]["ephemeralContainers"]
            .as_array()
            .map(Vec::len),
        Some(2)
    );
    assert!(has_lane(&stored, "ephemeralContainers"), "{stored:#}");
}

#[test]
fn without_the_webhook_pods_are_made_all_the_same_and_soon() {
    let Some(mut webhook) = Webhook::start("gone", "90d") else {
        return;
    };
    webhook.plane.namespace("shop", &["memlane.dev/lane=on"]);
    webhook.asked.process.signal("KILL");
    webhook.make(&pod("shop", "without", json!({})));
    assert!(!has_lane(&webhook.pod("shop", "without"), "containers"));
    webhook.restart();
    // One that is stopped takes connections and answers nothing.
    webhook.asked.process.signal("STOP");
    let begin = Instant::now();
    webhook.make(&pod("shop", "slow", json!({})));
    assert!(
        begin.elapsed() < Duration::from_secs(10),
        "{:?}",
        begin.elapsed()
    );
    assert!(!has_lane(&webhook.pod("shop", "slow"), "containers"));
    webhook.asked.process.signal("CONT");
    webhook.make(&pod("shop", "with", json!({})));
    assert!(has_lane(&webhook.pod("shop", "with"), "containers"));
}

/// When the certificates end that a replica has shown, in the order in which it showed them.
fn shown(replica: &Replica) -> Vec<u64> {
    let log = replica.process.stderr();
    let lines = log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let ends = lines.filter(|line| line["message"] == "shows a certificate");
    ends.filter_map(|line| line["until"].as_u64()).collect()
}

#[test]
fn certificates_are_renewed_while_pods_are_made_and_replicas_show_the_same() {
    let Some(webhook) = Webhook::start("renewed", "9s") else {
        return;
    };
    webhook.plane.namespace("shop", &["memlane.dev/lane=on"]);
    let another = webhook.another();
    let end = Instant::now() + Duration::from_secs(25);
    let mut made = 0;
    while Instant::now() < end {
        let name = format!("pod-{made}");
        webhook.make(&pod("shop", &name, json!({})));
        assert!(
            has_lane(&webhook.pod("shop", &name), "containers"),
            "{}",
            webhook.asked.process.stderr()
        );
        made += 1;
    }
    let [one, other] = [&webhook.asked, &another].map(shown);
    assert!(one.len() >= 4, "{one:?}");
    // The last one may be on its way to the other.
    let all: BTreeSet<u64> = one.iter().chain(&other).copied().collect();
    assert!(
        all.len() <= one.len().min(other.len()) + 1,
        "{one:?} {other:?}"
    );
    eprintln!("{made} pods, {} certificates", one.len());
}

#[test]
fn the_webhook_has_the_rights_that_it_needs_and_no_others() {
    let Some(webhook) = Webhook::start("rights", "90d") else {
        return;
    };
    let may = |verb: &str, what: &str| {
        let who = "--as=system:serviceaccount:memlane:memlane-webhook";
        let said = webhook
            .plane
            .kubectl(&["auth", "can-i", verb, what, who, "--namespace=memlane"])
            .output();
        String::from_utf8_lossy(&said.expect("kubectl").stdout).trim() == "yes"
    };
    assert!(may("update", "secrets/memlane-webhook-tls"));
    for (verb, what) in [
        ("get", "secrets/other"),
        ("list", "secrets"),
        ("create", "secrets"),
        ("list", "pods"),
        ("patch", "mutatingwebhookconfigurations/other"),
        ("delete", "mutatingwebhookconfigurations/memlane"),
    ] {
        assert!(!may(verb, what), "{verb} {what}");
    }
}

#[test]
fn an_upgrade_changes_neither_the_certificate_nor_what_api_servers_know_of_it() {
    let Some(webhook) = Webhook::start("upgrade", "90d") else {
        return;
    };
    let seen = || {
        let secret = webhook
            .plane
            .get(&["secret", "memlane-webhook-tls", "--namespace=memlane"]);
        let configuration = webhook
            .plane
            .get(&["mutatingwebhookconfiguration", "memlane"]);
        let hooks = configuration["webhooks"]
            .as_array()
            .expect("webhooks")
            .clone();
        let known: Vec<Value> = hooks
            .iter()
            .map(|w| w["clientConfig"]["caBundle"].clone())
            .collect();
        (secret["data"].clone(), known)
    };
    let before = seen();
    assert!(before.0["tls.crt"].is_string() && before.1.iter().all(Value::is_string));
    let said = webhook
        .plane
        .apply(&webhook.manifest())
        .expect("applied again");
    assert!(
        said.contains("secret/memlane-webhook-tls unchanged"),
        "{said}"
    );
    assert_eq!(seen(), before);
}
