//! Pods that the webhook made, run: two of them, in two networks, with a lane between them.
//!
//! podman plays Kubernetes' pods and knows no CSI driver. So the test puts a folder of the host in the place of the inline
//! volume, with the same content: the library's tree, and the agent's domain in it. All else is as the API server stored it.
//!
//! Needs `target/cluster` (`./dev test-cluster`), memlane-webhook, podman, runc, netavark, iptables, redis and root.

use std::path::{Path, PathBuf};
use std::process::Command;

use memlane_system::blocks::{must, skip};
use memlane_system::cluster::Webhook;
use memlane_system::containers::{Engine, upgraded};
use serde_json::{Value, json};

/// A folder with what a lane volume has. Unmounted when dropped.
struct LaneVolume(PathBuf);

impl LaneVolume {
    fn new(engine: &mut Engine) -> LaneVolume {
        let folder = engine.file("lane");
        let run = |program: &str, arguments: &[&str]| {
            let mut command = Command::new(program);
            command.args(arguments);
            must(command);
        };
        let (tree, domain) = (engine.library(), engine.agent().directory());
        let at = folder.display().to_string();
        run("cp", &["--archive", &tree, &at]);
        let inside = folder.join("domain").display().to_string();
        std::fs::create_dir(&inside).expect("made");
        run("mount", &["--bind", &domain, &inside]);
        LaneVolume(folder)
    }
}

impl Drop for LaneVolume {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.join("domain")).status();
    }
}

/// A pod of one container.
fn pod(name: &str, image: &str, command: &[&str]) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"restartPolicy": "OnFailure", "automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": image, "command": command, "imagePullPolicy": "Never",
                "env": [{"name": "MEMLANE_STATS_ON_EXIT", "value": "1"}]}]}})
}

/// Has the webhook's API server make a pod, and podman play it. The file that was played.
fn play(webhook: &Webhook, engine: &Engine, volume: &Path, pod: &Value) -> Result<String, String> {
    let name = pod["metadata"]["name"].as_str().expect("a name");
    webhook.make(pod);
    let mut stored = webhook.pod("shop", name);
    let volumes = stored["spec"]["volumes"].as_array_mut().expect("volumes");
    assert_eq!(volumes.len(), 1, "the lane's, and no other");
    assert_eq!(volumes[0]["csi"]["driver"], "csi.memlane.dev");
    volumes[0] =
        json!({"name": volumes[0]["name"], "hostPath": {"path": volume, "type": "Directory"}});
    // kubectl notes what it has applied; podman takes no long annotations.
    stored["metadata"]["annotations"] = json!({});
    let file = engine.file(&format!("{name}.json")).display().to_string();
    std::fs::write(&file, stored.to_string()).expect("written");
    engine.podman(&["play", "kube", "--network", "podman", &file])?;
    Ok(file)
}

/// The address of a pod.
fn address(engine: &Engine, pod: &str) -> Result<String, String> {
    let infra = engine.podman(&["pod", "inspect", "--format", "{{.InfraContainerID}}", pod])?;
    let format = "{{.NetworkSettings.Networks.podman.IPAddress}}";
    engine.podman(&["inspect", "--format", format, &infra])
}

#[test]
fn two_pods_that_the_webhook_made_have_lanes_between_their_networks() {
    let Some(webhook) = Webhook::start("played", "90d") else {
        return;
    };
    let mut engine = match Engine::start("memlane-test-played") {
        Ok(engine) => engine,
        // A machine may have podman and yet forbid what containers need.
        Err(why) if why.contains("runs no container") => return eprintln!("SKIPPED played: {why}"),
        Err(why) => return skip("played", &why),
    };
    webhook.plane.namespace("shop", &["memlane.dev/lane=on"]);
    let volume = LaneVolume::new(&mut engine);
    let (image, name) = (engine.image(), engine.name().to_owned());
    let (server, client) = (format!("{name}-server"), format!("{name}-client"));
    let serve = ["/bin/redis-server", "--protected-mode", "no", "--save", ""];
    let served = play(&webhook, &engine, &volume.0, &pod(&server, &image, &serve));
    let asked = served.clone().and_then(|_| {
        let to = address(&engine, &server)?;
        let ask = [
            "/bin/redis-benchmark",
            "-h",
            &to,
            "-t",
            "get",
            "-n",
            "40000",
            "-c",
            "4",
            "-q",
        ];
        play(&webhook, &engine, &volume.0, &pod(&client, &image, &ask))
    });
    let said = asked
        .clone()
        .and_then(|_| engine.said_at_the_end(&format!("{client}-main")));
    let said = said.map_err(|why| {
        let log = engine.podman_all(&["logs", &format!("{server}-main")]);
        format!("{why}\nthe server: {log:?}")
    });
    for file in [asked, served].iter().flatten() {
        let _ = engine.podman(&["play", "kube", "--down", file]);
    }
    drop(volume);
    let said = said.expect("the pods run");
    assert!(upgraded(&said) >= 4, "{said}");
}
