//! An AdmissionReview, answered.
//!
//! Source of the format: `k8s.io/api/admission/v1/types.go`. Nothing here waits, and nothing has an effect outside, so dry runs
//! are answered as all others.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use memlane_inject::Edits;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::pod::{self, Asked, Outcome};

/// The one version that is answered. API servers have known it since 1.16.
pub const VERSION: &str = "admission.k8s.io/v1";
/// The longest name of a version or operation that is repeated to whoever sent it.
const REPEATED: usize = 64;

/// A request that is no review, and the status of HTTP that says so.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The status.
    pub status: u16,
    /// Why.
    pub message: String,
}

/// What is sent back, and what to log of it.
#[derive(Clone, PartialEq, Debug)]
pub struct Answer {
    /// The AdmissionReview for the API server.
    pub review: Value,
    /// What became of the pod.
    pub outcome: Outcome,
    /// The namespace of the request; empty if it has none.
    pub namespace: String,
    /// The pod's name, or what the API server makes its name from.
    pub name: String,
    /// Nothing will be stored.
    pub dry_run: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review {
    api_version: String,
    kind: String,
    #[serde(default)]
    request: Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Request {
    uid: String,
    operation: String,
    resource: Resource,
    #[serde(default)]
    sub_resource: Option<String>,
    #[serde(default)]
    namespace: Option<String>,
    #[serde(default)]
    object: Value,
    #[serde(default)]
    old_object: Value,
    #[serde(default)]
    dry_run: Option<bool>,
}

#[derive(Deserialize)]
struct Resource {
    group: String,
    version: String,
    resource: String,
}

/// Answers a review. Pods are always allowed: memlane makes these edits to a pod, or leaves it alone.
///
/// # Errors
/// What is no AdmissionReview of [`VERSION`] about something.
pub fn answer(body: &[u8], edits: &Edits) -> Result<Answer, Refusal> {
    let review: Review = serde_json::from_slice(body)
        .map_err(|e| bad(format!("this is no AdmissionReview: {e}")))?;
    if review.kind != "AdmissionReview" || !review.api_version.starts_with("admission.k8s.io/") {
        return Err(bad(format!(
            "expected an AdmissionReview of {VERSION}, not {} of {}",
            shortened(&review.kind),
            shortened(&review.api_version)
        )));
    }
    if review.api_version != VERSION {
        return Err(bad(format!(
            "only {VERSION} is answered, not {}: name it alone in admissionReviewVersions",
            shortened(&review.api_version)
        )));
    }
    let request = Request::deserialize(review.request)
        .map_err(|e| bad(format!("the review has no request that can be read: {e}")))?;
    let outcome = judge(&request, edits);
    Ok(Answer {
        review: reply(&request.uid, &outcome),
        outcome,
        name: name_of(&request.object),
        namespace: request.namespace.unwrap_or_default(),
        dry_run: request.dry_run.unwrap_or(false),
    })
}

/// What becomes of the object of a request.
fn judge(request: &Request, edits: &Edits) -> Outcome {
    let Resource {
        group,
        version,
        resource,
    } = &request.resource;
    if (group.as_str(), version.as_str(), resource.as_str()) != ("", "v1", "pods") {
        return Outcome::left_alone(
            "memlane edits pods and nothing else; check the webhook's rules",
        );
    }
    let asked = match (request.operation.as_str(), request.sub_resource.as_deref()) {
        ("CREATE", None | Some("")) => Asked::Create,
        ("UPDATE", Some("ephemeralcontainers")) => Asked::Debug {
            before: &request.old_object,
        },
        // What matters to memlane cannot be changed in a pod that exists.
        _ => return Outcome::NothingToDo,
    };
    let namespace = request.namespace.as_deref();
    pod::edit(&request.object, namespace, &asked, edits)
}

fn reply(uid: &str, outcome: &Outcome) -> Value {
    let mut response = json!({"uid": uid, "allowed": true});
    if let Outcome::Edited { patch, .. } = outcome {
        response["patchType"] = json!("JSONPatch");
        response["patch"] = json!(STANDARD.encode(Value::from(patch.clone()).to_string()));
    }
    let warnings = outcome.warnings();
    if !warnings.is_empty() {
        response["warnings"] = json!(warnings);
    }
    json!({"apiVersion": VERSION, "kind": "AdmissionReview", "response": response})
}

fn name_of(object: &Value) -> String {
    let metadata = &object["metadata"];
    let name = metadata["name"]
        .as_str()
        .or(metadata["generateName"].as_str());
    shortened(name.unwrap_or_default())
}

fn bad(message: String) -> Refusal {
    Refusal {
        status: 400,
        message,
    }
}

/// Some text of a stranger's, on one line and not long.
pub(crate) fn shortened(text: &str) -> String {
    let mut short: String = text.chars().take(REPEATED).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short.escape_debug().to_string()
}
