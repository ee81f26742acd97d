//! What the admission webhook reads: reviews of an API server, with pods in them that anybody may write.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use memlane_inject::edits::Edits;
use memlane_webhook::pod::Outcome;
use memlane_webhook::review::{self, Answer};
use serde_json::{Value, json};

/// Longest message of a refusal: it repeats only a little of what a stranger sent.
const MESSAGE: usize = 1024;

/// A review: refused in few words; or the request's pod is allowed, and the patch applies to it, and once is enough.
pub fn admission_review(bytes: &[u8]) -> bool {
    let edits = Edits::of_a_lane_volume();
    let by_runtime = edits.clone().completed_by_the_runtime();
    let whole = by_edits(bytes, &edits);
    assert_eq!(whole, by_edits(bytes, &by_runtime));
    whole
}

fn by_edits(bytes: &[u8], edits: &Edits) -> bool {
    let answer = match review::answer(bytes, edits) {
        Ok(answer) => answer,
        Err(refusal) => {
            assert_eq!(refusal.status, 400);
            assert!(refusal.message.len() < MESSAGE, "{}", refusal.message);
            return false;
        }
    };
    let mut asked: Value = serde_json::from_slice(bytes).expect("it was read");
    let response = &answer.review["response"];
    assert_eq!(response["uid"], asked["request"]["uid"]);
    assert_eq!(response["allowed"], true, "a pod was refused");
    let Some(patch) = patch_of(&answer) else {
        return true;
    };
    let object = &mut asked["request"]["object"];
    json_patch::patch(object, &patch).expect("a patch that applies");
    // Another webhook changed something, and this one is asked once more. An ephemeral container of before is none of its own.
    if asked["request"]["operation"] == "CREATE" {
        let again = review::answer(asked.to_string().as_bytes(), edits).expect("as before");
        assert!(
            !matches!(again.outcome, Outcome::Edited { .. }),
            "edited twice: {:?}",
            again.outcome
        );
    }
    true
}

/// The patch, as the API server reads it.
fn patch_of(answer: &Answer) -> Option<json_patch::Patch> {
    let patch = answer.review["response"].get("patch")?;
    let bytes = STANDARD.decode(patch.as_str().expect("a text"));
    let patch = serde_json::from_slice(&bytes.expect("base64"));
    Some(patch.expect("operations"))
}

/// Reviews that are right.
pub(crate) fn reviews() -> Vec<(&'static str, Vec<u8>)> {
    let container = |name: &str| json!({"name": name, "image": "a"});
    let plain = json!({"metadata": {"name": "a"}, "spec": {"containers": [container("a")]}});
    let full = json!({
        "metadata": {
            "generateName": "a-",
            "labels": {"memlane.dev/lane": "on"},
            "annotations": {"memlane.dev/domain": "front"},
        },
        "spec": {
            "initContainers": [{"name": "i", "restartPolicy": "Always"}],
            "containers": [
                {"name": "a", "env": [{"name": "LD_PRELOAD", "value": "/a.so"}]},
                {"name": "b", "volumeMounts": [{"name": "v", "mountPath": "/opt"}]},
            ],
            "volumes": [{"name": "v", "emptyDir": {}}],
        },
    });
    let mut debugged = full.clone();
    debugged["spec"]["volumes"] =
        json!([{"name": "memlane-lane", "csi": {"driver": "csi.memlane.dev"}}]);
    let before = debugged.clone();
    debugged["spec"]["ephemeralContainers"] = json!([container("d")]);
    let debug =
        json!({"operation": "UPDATE", "subResource": "ephemeralcontainers", "oldObject": before});
    let deployment =
        json!({"resource": {"group": "apps", "version": "v1", "resource": "deployments"}});
    vec![
        ("plain", review_of(&plain, &json!({}))),
        ("full", review_of(&full, &json!({"dryRun": true}))),
        ("debug", review_of(&debugged, &debug)),
        ("deployment", review_of(&plain, &deployment)),
    ]
}

/// A review of a pod that is made, but for these fields.
fn review_of(object: &Value, other: &Value) -> Vec<u8> {
    let mut request = json!({
        "uid": "1",
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "namespace": "shop",
        "operation": "CREATE",
        "object": object,
    });
    for (name, value) in other.as_object().into_iter().flatten() {
        request[name] = value.clone();
    }
    let review =
        json!({"apiVersion": review::VERSION, "kind": "AdmissionReview", "request": request});
    review.to_string().into_bytes()
}
