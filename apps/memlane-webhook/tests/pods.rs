//! What the webhook makes of pods.
//!
//! `golden/NAME.json` is the request that the API server sends, less what is the same in all; `golden/NAME.answer.json` what is
//! said and changed. `MEMLANE_GOLDEN=write cargo test -p memlane-webhook --test pods` writes the answers anew: read the
//! difference before you commit it.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use memlane_inject::Edits;
use memlane_webhook::review::{self, Answer, Refusal};
use proptest::prelude::*;
use serde_json::{Value, json};

/// A whole review of a request, of which these fields are told.
fn review_of(request: &Value) -> Value {
    let mut whole = json!({
        "uid": "5e2f9a10-7c7b-4a55-9a0e-0f4bbd4bb3a1",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "namespace": "shop",
        "operation": "CREATE",
        "userInfo": {"username": "system:serviceaccount:kube-system:replicaset-controller"},
        "oldObject": null,
        "dryRun": false,
        "options": {"apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions"},
    });
    for (name, value) in request.as_object().expect("fields of a request") {
        whole[name] = value.clone();
    }
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": whole})
}

fn answer(body: &[u8]) -> Result<Answer, Refusal> {
    review::answer(body, &Edits::of_a_lane_volume())
}

/// What the API server gets: the response, with its patch as JSON.
fn response_to(request: &Value) -> Value {
    response_with(request, &Edits::of_a_lane_volume())
}

/// The same, where containers get these edits.
fn response_with(request: &Value, edits: &Edits) -> Value {
    let body = review_of(request).to_string();
    let answer = review::answer(body.as_bytes(), edits);
    let review = answer.expect("a review").review;
    assert_eq!(review["apiVersion"], "admission.k8s.io/v1");
    assert_eq!(review["kind"], "AdmissionReview");
    let mut response = review["response"].clone();
    assert_eq!(response["uid"], review_of(request)["request"]["uid"]);
    if let Some(patch) = response.get("patch").and_then(Value::as_str) {
        let patch = STANDARD.decode(patch).expect("base64");
        response["patch"] = serde_json::from_slice(&patch).expect("JSON");
    }
    response
}

/// The pod as it is stored in the end.
fn stored(request: &Value) -> Value {
    stored_with(request, &Edits::of_a_lane_volume())
}

/// The same, where containers get these edits.
fn stored_with(request: &Value, edits: &Edits) -> Value {
    let mut pod = request["object"].clone();
    let response = response_with(request, edits);
    if let Some(patch) = response.get("patch") {
        let patch: json_patch::Patch = serde_json::from_value(patch.clone()).expect("a patch");
        json_patch::patch(&mut pod, &patch).expect("a patch that applies");
    }
    pod
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn read(file: &Path) -> Value {
    let text = std::fs::read_to_string(file).expect("a text");
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display()))
}

#[test]
fn each_pod_comes_out_as_it_is_written_down() {
    let files = std::fs::read_dir(folder()).expect("golden files").flatten();
    let (mut cases, mut wrong) = (0, Vec::new());
    for file in files.map(|entry| entry.path()) {
        let name = file
            .file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        let Some(case) = name
            .strip_suffix(".json")
            .filter(|n| !n.ends_with(".answer"))
        else {
            continue;
        };
        cases += 1;
        let mut response = response_to(&read(&file));
        response.as_object_mut().expect("an object").remove("uid");
        let written = folder().join(format!("{case}.answer.json"));
        if std::env::var_os("MEMLANE_GOLDEN").is_some() {
            let text = serde_json::to_string_pretty(&response).expect("JSON") + "\n";
            std::fs::write(&written, text).expect("written");
        }
        if !written.exists() || read(&written) != response {
            wrong.push(format!("{case}: {response:#}"));
        }
    }
    assert!(cases >= 20, "only {cases} cases");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// As webhooks are called again when another one has changed the pod.
#[test]
fn a_pod_that_was_edited_is_not_edited_again() {
    for entry in std::fs::read_dir(folder()).expect("golden files").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(".answer.json") {
            continue;
        }
        let mut request = read(&entry.path());
        request["object"] = stored(&request);
        assert_eq!(response_to(&request).get("patch"), None, "{name}");
    }
}

/// What the image preloads is seen by the runtime only, and so are values from elsewhere.
#[test]
fn where_the_runtime_completes_the_list_the_pod_s_own_is_not_touched() {
    let from_elsewhere = json!({"configMapKeyRef": {"name": "m", "key": "k"}});
    let containers = json!([
        {"name": "without"},
        {"name": "own", "env": [{"name": "LD_PRELOAD", "value": "/a.so"}]},
        {"name": "elsewhere", "env": [{"name": "LD_PRELOAD", "valueFrom": from_elsewhere}]},
    ]);
    let request = json!({"object": {"spec": {"containers": containers}}});
    let edits = Edits::of_a_lane_volume().completed_by_the_runtime();
    assert_eq!(response_with(&request, &edits).get("warnings"), None);
    let pod = stored_with(&request, &edits);
    for (n, container) in containers.as_array().expect("a list").iter().enumerate() {
        let env = &pod["spec"]["containers"][n]["env"];
        let of = |env: &Value, name: &str| {
            let mut env = env.as_array().into_iter().flatten();
            env.find(|variable| variable["name"] == name).cloned()
        };
        assert_eq!(of(env, "LD_PRELOAD"), of(&container["env"], "LD_PRELOAD"));
        let wanted = of(env, "MEMLANE_PRELOAD").expect("set");
        assert_eq!(wanted["value"], edits.library());
    }
}

#[test]
fn each_of_a_hundred_containers_is_edited() {
    let container = |n: usize| match n % 3 {
        0 => json!({"name": format!("c{n}"), "image": "x"}),
        1 => {
            json!({"name": format!("c{n}"), "image": "x", "env": [{"name": "LD_PRELOAD", "value": "/a.so"}]})
        }
        _ => {
            json!({"name": format!("c{n}"), "image": "x", "volumeMounts": [{"name": "v", "mountPath": "/v"}]})
        }
    };
    let containers: Vec<Value> = (0..100).map(container).collect();
    let pod = stored(&json!({"object": {"spec": {"containers": containers}}}));
    for container in pod["spec"]["containers"].as_array().expect("containers") {
        let mounts = container["volumeMounts"].as_array().expect("mounts");
        assert!(
            mounts.iter().any(|m| m["mountPath"] == "/opt/memlane"),
            "{container}"
        );
        let env = container["env"].as_array().expect("variables");
        let preload = env.iter().find(|v| v["name"] == "LD_PRELOAD").expect("set");
        let value = preload["value"].as_str().expect("a value");
        assert!(
            value.ends_with("/opt/memlane/$LIB/libmemlane_preload.so"),
            "{value}"
        );
    }
}

#[test]
fn of_a_hundred_containers_that_are_left_alone_some_are_named_and_all_are_counted() {
    let container = |n: usize| json!({"name": format!("c{n}"), "volumeMounts": [{"name": "v", "mountPath": "/opt"}]});
    let containers: Vec<Value> = (0..100).map(container).collect();
    let response = response_to(&json!({"object": {"spec": {"containers": containers}}}));
    assert_eq!(response["allowed"], true);
    assert_eq!(response.get("patch"), None);
    let warnings = response["warnings"].as_array().expect("warnings");
    assert_eq!(warnings.len(), 8);
    assert_eq!(warnings[7], "memlane leaves 93 more containers alone");
}

#[test]
fn what_is_no_review_is_refused_and_the_reason_told() {
    let review = |version: &str| {
        let mut review = review_of(&json!({"object": {}}));
        review["apiVersion"] = json!(version);
        review.to_string()
    };
    let deep = format!(
        r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{}1{}}}"#,
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    let without_uid = r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"operation":"CREATE"}}"#;
    let of_another_kind = r#"{"apiVersion":"v1","kind":"Pod","request":{}}"#;
    for (body, because) in [
        (
            review("admission.k8s.io/v1beta1"),
            "not admission.k8s.io/v1beta1",
        ),
        (
            review("admission.k8s.io/v2"),
            "only admission.k8s.io/v1 is answered",
        ),
        (review("a\nb"), "not AdmissionReview of a\\nb"),
        (review(&"v".repeat(100_000)), "…"),
        (String::new(), "EOF"),
        ("{".into(), "EOF"),
        ("null".into(), "expected struct"),
        ("[]".into(), "no AdmissionReview"),
        ("{}".into(), "missing field"),
        ("\u{0}\u{1}".into(), "no AdmissionReview"),
        (deep, "recursion limit"),
        (without_uid.into(), "missing field `uid`"),
        (of_another_kind.into(), "not Pod of v1"),
    ] {
        let refused = answer(body.as_bytes()).expect_err(because);
        assert_eq!(refused.status, 400);
        assert!(refused.message.contains(because), "{}", refused.message);
        assert!(
            refused.message.len() < 400,
            "{} bytes",
            refused.message.len()
        );
    }
    let cut = &b"{\"apiVersion\":\"\xff"[..];
    assert_eq!(answer(cut).expect_err("no UTF-8").status, 400);
}

// --- whatever is in a pod -----------------------------------------------------

/// Any JSON.
fn any() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any_text().prop_map(Value::from),
        proptest::num::i64::ANY.prop_map(Value::from),
        proptest::bool::ANY.prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map(any_text(), inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Texts that mean something here, and others.
fn any_text() -> impl Strategy<Value = String> {
    let words = [
        "",
        "name",
        "value",
        "valueFrom",
        "LD_PRELOAD",
        "MEMLANE_DOMAIN",
        "/opt",
        "/opt/memlane",
        "/data",
        "memlane-lane",
        "mountPath",
        "csi",
        "csi.memlane.dev",
        "driver",
        "on",
        "off",
        "windows",
        "/a.so",
        "a/b~c",
    ];
    prop_oneof![
        4 => proptest::sample::select(words.to_vec()).prop_map(String::from),
        1 => "\\PC{0,8}",
    ]
}

/// A field that is mostly as it should be, often missing, and sometimes anything.
fn mostly(good: BoxedStrategy<Value>) -> impl Strategy<Value = Option<Value>> {
    prop_oneof![
        6 => good.prop_map(Some),
        3 => Just(None),
        1 => any().prop_map(Some),
    ]
}

fn object(fields: Vec<(&'static str, BoxedStrategy<Value>)>) -> BoxedStrategy<Value> {
    let (names, values): (Vec<_>, Vec<_>) = fields.into_iter().unzip();
    let values: Vec<_> = values.into_iter().map(mostly).collect();
    values
        .prop_map(move |values| {
            let there = names.iter().zip(values);
            let there = there.filter_map(|(name, value)| Some(((*name).to_owned(), value?)));
            Value::Object(there.collect())
        })
        .boxed()
}

fn list_of(item: BoxedStrategy<Value>) -> BoxedStrategy<Value> {
    let item = prop_oneof![9 => item, 1 => any()];
    proptest::collection::vec(item, 0..4)
        .prop_map(Value::from)
        .boxed()
}

fn text() -> BoxedStrategy<Value> {
    any_text().prop_map(Value::from).boxed()
}

fn container() -> BoxedStrategy<Value> {
    let preload = Just(Value::from("LD_PRELOAD"));
    let variable = object(vec![
        ("name", prop_oneof![preload, text()].boxed()),
        ("value", text()),
        ("valueFrom", any().boxed()),
    ]);
    let mount = object(vec![("name", text()), ("mountPath", text())]);
    object(vec![
        ("name", text()),
        ("env", list_of(variable)),
        ("volumeMounts", list_of(mount)),
        (
            "volumeDevices",
            list_of(object(vec![("devicePath", text())])),
        ),
        ("resources", any().boxed()),
    ])
}

fn pod() -> BoxedStrategy<Value> {
    let source = object(vec![("driver", text())]);
    let volume = object(vec![
        ("name", text()),
        ("csi", source),
        ("emptyDir", any().boxed()),
    ]);
    let spec = object(vec![
        ("containers", list_of(container())),
        ("initContainers", list_of(container())),
        ("ephemeralContainers", list_of(container())),
        ("volumes", list_of(volume)),
        ("hostNetwork", any().boxed()),
    ]);
    let labels = object(vec![("app", text()), ("memlane.dev/lane", text())]);
    let annotations = object(vec![("memlane.dev/domain", text())]);
    let metadata = object(vec![("labels", labels), ("annotations", annotations)]);
    object(vec![
        ("metadata", metadata),
        ("spec", spec),
        ("status", any().boxed()),
    ])
}

/// Is everything that was there still there? Lists may have become longer, and what a container preloads, too.
fn keeps(was: &Value, is: &Value) -> bool {
    match (was, is) {
        (Value::Null, _) => true,
        (Value::Object(was), Value::Object(is)) => {
            let preload = was.get("name").is_some_and(|name| name == "LD_PRELOAD");
            was.iter().all(|(name, value)| {
                is.get(name).is_some_and(|now| match (value, now) {
                    (Value::String(was), Value::String(now)) if preload && name == "value" => {
                        now.starts_with(was.as_str())
                    }
                    _ => keeps(value, now),
                })
            })
        }
        (Value::Array(was), Value::Array(is)) => {
            was.len() <= is.len() && was.iter().zip(is).all(|(was, is)| keeps(was, is))
        }
        (was, is) => was == is,
    }
}

fn requests() -> impl Strategy<Value = Value> {
    (pod(), pod(), proptest::bool::ANY).prop_map(|(pod, before, is_debug)| match is_debug {
        true => json!({"object": pod, "oldObject": before, "operation": "UPDATE", "subResource": "ephemeralcontainers"}),
        false => json!({"object": pod}),
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_a_pod_is_the_patch_applies_and_everything_is_still_there(request in requests()) {
        let after = stored(&request);
        prop_assert!(keeps(&request["object"], &after), "{after:#}");
        let mut again = request;
        again["object"] = after;
        prop_assert!(response_to(&again).get("patch").is_none());
    }

    #[test]
    fn whatever_bytes_come_there_is_an_answer(body in proptest::collection::vec(proptest::num::u8::ANY, 0..256)) {
        let _ = answer(&body);
    }

    #[test]
    fn whatever_json_comes_there_is_an_answer(object in any(), request in any()) {
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request});
        let _ = answer(review.to_string().as_bytes());
        let _ = answer(review_of(&json!({"object": object})).to_string().as_bytes());
    }
}
