//! Real containers: podman with runc, its bridge and its published ports. The lane opens between them, by the same device that
//! `memlane agent install` writes.
//!
//! Needs podman, runc, netavark, iptables, redis and root.

use std::time::{Duration, Instant};

use memlane_system::blocks::skip;
use memlane_system::containers::{Engine, Lane, upgraded};
use memlane_system::harness::{Built, free_port, plain_only};
use memlane_system::musl;
use memlane_system::real::Story;
use memlane_system::real::lang::GoBuild;
use serde_json::Value;

/// `None`, and a word on standard error, where there can be none.
fn engine(test: &'static str) -> Option<Engine> {
    if plain_only() {
        return None;
    }
    let engine = Engine::start(&format!("memlane-test-{test}"));
    // A machine may have podman and yet forbid what containers need.
    let says = |why: String| match why.contains("runs no container") {
        true => eprintln!("SKIPPED {test}: {why}"),
        false => skip(test, &why),
    };
    engine.map_err(says).ok()
}

#[test]
fn two_containers_on_a_bridge_get_lanes() {
    let Some(engine) = engine("bridge") else {
        return;
    };
    let server = engine.server(Lane::On, &[]);
    server.is_up();
    assert!(engine.talks(&[], &server.address(), "6379") >= 4);
}

/// As those of Alpine.
#[test]
fn containers_with_musl_get_lanes_to_each_other_and_to_one_with_glibc() {
    if !musl::has(&["redis-cli", "redis-benchmark", "redis-server"]) {
        return;
    }
    let Some(engine) = engine("musl") else {
        return;
    };
    let glibc = engine.server(Lane::On, &[]);
    glibc.is_up();
    engine.turn_to_musl();
    assert!(engine.talks(&[], &glibc.address(), "6379") >= 4);
    drop(glibc);
    let server = engine.server(Lane::On, &[]);
    server.is_up();
    assert!(engine.talks(&[], &server.address(), "6379") >= 4);
}

#[test]
fn behind_a_published_port_two_containers_get_lanes() {
    let Some(engine) = engine("published") else {
        return;
    };
    let port = free_port().to_string();
    let server = engine.server(Lane::On, &["--publish", &format!("{port}:6379")]);
    server.is_up();
    assert!(engine.talks(&[], &engine.gateway(), &port) >= 4);
}

#[test]
fn restricted_containers_of_two_users_get_lanes() {
    let Some(engine) = engine("restricted") else {
        return;
    };
    let restricted = |user| {
        [
            "--user",
            user,
            "--read-only",
            "--cap-drop",
            "all",
            "--security-opt",
            "no-new-privileges",
        ]
    };
    let server = engine.server(Lane::On, &restricted("1001"));
    server.is_up();
    let got = engine.talks(&restricted("1002"), &server.address(), "6379");
    assert!(got >= 4);
}

#[test]
fn two_containers_that_share_a_network_get_lanes_without_an_agent() {
    let Some(mut engine) = engine("shared") else {
        return;
    };
    engine.agent().kill();
    let server = engine.server(Lane::On, &[]);
    server.is_up();
    let network = format!("container:{}", engine.name());
    assert!(engine.talks(&["--network", &network], "127.0.0.1", "6379") >= 4);
}

#[test]
fn two_containers_in_user_namespaces_of_their_own_get_lanes() {
    let Some(engine) = engine("users") else {
        return;
    };
    // The engine, which is root, has made the user namespaces that own their networks.
    let mapped = ["--uidmap", "0:100000:5000", "--gidmap", "0:100000:5000"];
    let server = engine.server(Lane::On, &mapped);
    server.is_up();
    let other = ["--uidmap", "0:200000:5000", "--gidmap", "0:200000:5000"];
    assert!(engine.talks(&other, &server.address(), "6379") >= 4);
}

/// Restricted as Kubernetes calls it, in one pod: an own user each, nothing writable, no capabilities.
#[test]
fn two_restricted_containers_of_a_pod_get_lanes_without_an_agent() {
    let Some(engine) = engine("pod") else {
        return;
    };
    let (image, pod) = (engine.image(), format!("{}-pod", engine.name()));
    let container = |name: &str, user: u32, command: &str| {
        format!(
            r#"
  - name: {name}
    image: {image}
    command: {command}
    env: [{{name: LD_PRELOAD, value: '/opt/memlane/$LIB/libmemlane_preload.so'}}, {{name: MEMLANE_DOMAIN, value: 'off'}},
      {{name: MEMLANE_STATS_ON_EXIT, value: '1'}}]
    volumeMounts: [{{name: memlane, mountPath: /opt/memlane, readOnly: true}}]
    securityContext: {{runAsUser: {user}, readOnlyRootFilesystem: true, allowPrivilegeEscalation: false,
      capabilities: {{drop: [ALL]}}, seccompProfile: {{type: RuntimeDefault}}}}"#
        )
    };
    let server = r#"["/bin/redis-server", "--protected-mode", "no", "--save", ""]"#;
    let client = r#"["/bin/redis-benchmark", "-t", "get", "-n", "40000", "-c", "4", "-q"]"#;
    let text = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {pod}}}\nspec:\n  restartPolicy: OnFailure\n  volumes:\n  \
         - {{name: memlane, hostPath: {{path: '{}', type: Directory}}}}\n  containers:{}{}\n",
        engine.library(),
        container("server", 1001, server),
        container("client", 1002, client),
    );
    let file = engine.file("pod.yaml");
    std::fs::write(&file, text).expect("written");
    let file = file.display().to_string();
    let played = engine.podman(&["play", "kube", &file]);
    let outcome = played.and_then(|_| engine.said_at_the_end(&format!("{pod}-client")));
    let outcome = outcome.map_err(|said| {
        let server = engine.podman_all(&["logs", &format!("{pod}-server")]);
        let all = engine.podman(&["ps", "-a", "--pod"]);
        format!("{said}\nthe server: {server:?}\n{all:?}")
    });
    let _ = engine.podman(&["play", "kube", "--down", &file]);
    let said = outcome.expect("the pod runs");
    assert!(upgraded(&said) >= 4, "{said}");
}

#[test]
fn with_nothing_writable_and_the_default_filter_of_calls_containers_get_lanes() {
    let Some(engine) = engine("readonly") else {
        return;
    };
    let options = ["--read-only", "--read-only-tmpfs=false"];
    let server = engine.server(Lane::On, &options);
    server.is_up();
    let pid = engine.podman(&["inspect", "--format", "{{.State.Pid}}", engine.name()]);
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid.expect("a number")));
    assert!(status.expect("it runs").contains("Seccomp:\t2"));
    assert!(engine.talks(&options, &server.address(), "6379") >= 4);
}

/// It ends by a call of its own, so only its peer tells of the lane.
#[test]
fn a_go_program_gets_lanes_with_nothing_writable_and_the_default_filter_of_calls() {
    let Some(story) = Story::new("go-contained", &["go"]) else {
        return;
    };
    let Some(engine) = engine("go") else {
        return;
    };
    let program = GoBuild::USUAL.build(&story, &["many.go"], "many");
    engine.put(&program);
    let server = engine.server(Lane::On, &["--env", "MEMLANE_STATS_ON_EXIT=1"]);
    server.is_up();
    let said = engine.runs_beside_the_server(Lane::On, &[], &["/bin/many", "redis", "6379"]);
    assert_eq!(said, "done\n");
    engine
        .podman(&["stop", "--time", "10", engine.name()])
        .expect("it ends");
    let said = engine.podman_all(&["logs", engine.name()]);
    assert!(upgraded(&said.expect("it has run")) > 0);
}

#[test]
fn ss_on_the_host_names_the_containers_at_both_ends() {
    let Some(engine) = engine("named") else {
        return;
    };
    let server = engine.server(Lane::On, &[]);
    server.is_up();
    let address = server.address();
    let args = [
        "-h",
        &address,
        "-t",
        "get",
        "-n",
        "100000000",
        "-c",
        "2",
        "-q",
    ];
    let mut client = engine.client(Lane::On, &[], &args);
    let (here, there) = (
        engine.name().to_owned(),
        format!("{}-client", engine.name()),
    );
    let end = Instant::now() + Duration::from_secs(20);
    let rows = loop {
        let rows = lanes(&here);
        if rows.len() >= 2 || Instant::now() > end {
            break rows;
        }
        std::thread::sleep(Duration::from_millis(200));
    };
    let _ = engine.podman(&["kill", &there]);
    let _ = client.wait();
    assert!(rows.len() >= 2, "{rows:?}");
    for row in &rows {
        assert_eq!(row["container"]["engine"], "podman", "{row}");
        assert_eq!(row["peer_container"]["name"], there.as_str(), "{row}");
    }
}

/// The connections on the memory lane of processes in this container, as `memlane ss` shows them.
fn lanes(container: &str) -> Vec<Value> {
    let memlane = Built::find()
        .memlane
        .expect("`cargo build --release` first");
    let said = std::process::Command::new(memlane)
        .args(["ss", "--json"])
        .output();
    let said: Value = serde_json::from_slice(&said.expect("it runs").stdout).expect("JSON");
    let all = said["connections"].as_array().cloned().unwrap_or_default();
    let here = |row: &Value| row["mode"] == "memlane" && row["container"]["name"] == container;
    all.into_iter().filter(here).collect()
}

/// The image is made and run as its recipe says, but upon a base that is at hand.
#[test]
fn an_agent_in_a_container_introduces_two_others() {
    let Some(mut engine) = engine("agent") else {
        return;
    };
    engine.agent().kill();
    let (base, image) = (engine.image(), format!("localhost/{}-agent", engine.name()));
    let context = engine.file("image");
    install_into(&context.join("root"));
    let recipe = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../packaging/agent.Containerfile"
    );
    let context = context.display().to_string();
    let base = format!("BASE={base}");
    let build = [
        "build",
        "--tag",
        &image,
        "--build-arg",
        &base,
        "--file",
        recipe,
        &context,
    ];
    engine.podman(&build).expect("built");
    let (name, domain) = (
        format!("{}-agent", engine.name()),
        engine.agent().directory(),
    );
    let shared = format!("{domain}:{domain}");
    let run = [
        &[
            "run",
            "--detach",
            "--name",
            &name,
            "--pid",
            "host",
            "--network",
            "none",
        ][..],
        &[
            "--read-only",
            "--cap-drop",
            "all",
            "--cap-add",
            "BPF",
            "--cap-add",
            "PERFMON",
        ],
        &["--security-opt", "seccomp=unconfined"],
        &["--volume", &shared, &image, &domain],
    ];
    let started = engine.podman(&run.concat());
    let outcome = started.map(|_| {
        let server = engine.server(Lane::On, &[]);
        server.is_up();
        engine.talks(&[], &server.address(), "6379")
    });
    let said = engine.podman_all(&["logs", &name]);
    let _ = engine.podman(&["rm", "--force", "--time", "0", &name]);
    let _ = engine.podman(&["rmi", "--force", &image]);
    assert!(outcome.is_ok_and(|lanes| lanes >= 4), "{said:?}");
}

/// What was built, as `packaging/install.sh` installs it, below `root`.
fn install_into(root: &std::path::Path) {
    let built = Built::find();
    let folder = built.preload.parent().expect("a folder");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/install.sh");
    let done = std::process::Command::new("sh")
        .args([script, "install", "--prefix", "/usr", "--destdir"])
        .arg(root)
        .arg("--built")
        .arg(folder)
        .stdout(std::process::Stdio::null())
        .status();
    assert!(done.is_ok_and(|status| status.success()));
}
