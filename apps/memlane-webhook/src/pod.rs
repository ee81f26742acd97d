//! What is added to a pod: a volume, and in each container a mount and two variables. [`memlane_inject`] says which.
//!
//! A pod is JSON here and no structure, so that fields of versions that this program does not know stay. Whatever looks wrong is
//! left alone, with a warning that `kubectl` shows to the pod's author: memlane never breaks a pod.

mod container;

use memlane_inject::Edits;
use memlane_inject::edits::IN_CONTAINER;
use serde_json::{Value, json};

use crate::review::shortened;
use container::Why;

/// The label of namespaces and pods: `on` or `off`.
pub const LABEL: &str = "memlane.dev/lane";
/// The annotation that names a domain, and the attribute by which the CSI driver is told it.
pub const DOMAIN: &str = "memlane.dev/domain";
/// The CSI driver that makes lane volumes.
pub const DRIVER: &str = "csi.memlane.dev";
/// The name of the volume in a pod.
pub const VOLUME: &str = "memlane-lane";
/// The longest label of a host name, and so of a domain (RFC 1123).
const LABEL_LENGTH: usize = 63;
/// Warnings of one pod. API servers cut long lists.
const WARNINGS: usize = 8;
/// kubelet's mark on pods that it tells the API server about, and that nobody can edit.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// What is done to a pod.
#[derive(Clone, Copy, Debug)]
pub enum Asked<'a> {
    /// It is made.
    Create,
    /// Ephemeral containers are added to it; those of the pod as it was cannot be changed.
    Debug {
        /// The pod as it was.
        before: &'a Value,
    },
}

/// What became of a pod.
#[derive(Clone, PartialEq, Debug)]
pub enum Outcome {
    /// It gets this JSON patch.
    Edited {
        /// Operations of the patch.
        patch: Vec<Value>,
        /// What is left alone in it, and why.
        warnings: Vec<String>,
    },
    /// It has everything, or nobody wants it edited.
    NothingToDo,
    /// It is not edited, and its author is told why.
    LeftAlone {
        /// Why.
        warnings: Vec<String>,
    },
}

impl Outcome {
    pub(crate) fn left_alone(why: impl Into<String>) -> Outcome {
        Outcome::LeftAlone {
            warnings: vec![why.into()],
        }
    }

    /// What the pod's author is told.
    pub fn warnings(&self) -> &[String] {
        match self {
            Outcome::Edited { warnings, .. } | Outcome::LeftAlone { warnings } => warnings,
            Outcome::NothingToDo => &[],
        }
    }

    /// The word for it in logs and metrics.
    pub fn word(&self) -> &'static str {
        match self {
            Outcome::Edited { .. } => "edited",
            Outcome::NothingToDo => "nothing_to_do",
            Outcome::LeftAlone { .. } => "left_alone",
        }
    }
}

/// What is to be done to a pod of this namespace so that its containers have these edits.
pub fn edit(pod: &Value, namespace: Option<&str>, asked: &Asked<'_>, edits: &Edits) -> Outcome {
    match wish(pod, namespace) {
        Wish::Lane(domain) => match add_lane(pod, domain.as_deref(), asked, edits) {
            Ok(outcome) => outcome,
            Err(why) => Outcome::left_alone(why),
        },
        Wish::Nothing => Outcome::NothingToDo,
        Wish::Unclear(why) => Outcome::left_alone(why),
    }
}

/// What a pod says about itself.
enum Wish {
    /// It is to have a lane, in this domain.
    Lane(Option<String>),
    Nothing,
    Unclear(String),
}

fn wish(pod: &Value, namespace: Option<&str>) -> Wish {
    let (labels, annotations) = (&pod["metadata"]["labels"], &pod["metadata"]["annotations"]);
    match labels[LABEL].as_str() {
        Some("off") => return Wish::Nothing,
        Some("on") | None => {}
        Some(other) => {
            return Wish::Unclear(format!(
                "the label {LABEL} is \"{}\", which is neither on nor off: memlane leaves the pod alone",
                shortened(other)
            ));
        }
    }
    if runs_windows(&pod["spec"]) || !annotations[MIRROR].is_null() {
        return Wish::Nothing;
    }
    // The runtime would have to map the users of the volume's mounts, which not every kernel can; the pod would not start.
    if pod["spec"]["hostUsers"] == false {
        return Wish::Unclear(
            "the pod has users of its own (hostUsers: false), with which lanes have not been tried: memlane leaves the pod alone"
                .to_owned(),
        );
    }
    match annotations[DOMAIN].as_str() {
        Some(domain) if !is_domain(domain) => Wish::Unclear(format!(
            "the annotation {DOMAIN} is \"{}\", which is no name of a domain: memlane leaves the pod alone",
            shortened(domain)
        )),
        domain => Wish::Lane(domain.or(namespace).map(str::to_owned)),
    }
}

fn runs_windows(spec: &Value) -> bool {
    spec["os"]["name"] == "windows" || spec["nodeSelector"]["kubernetes.io/os"] == "windows"
}

/// A name like that of a namespace.
fn is_domain(name: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=LABEL_LENGTH).contains(&name.len())
        && name.bytes().all(inner)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

/// The edits; `Err` says why there can be none.
fn add_lane(
    pod: &Value,
    domain: Option<&str>,
    asked: &Asked<'_>,
    edits: &Edits,
) -> Result<Outcome, String> {
    let has_volume = has_lane_volume(pod)?;
    let (mut patch, mut warnings) = (Vec::new(), Vec::new());
    for (at, container) in containers(pod, asked)? {
        match container::edit(container, &at, edits) {
            Ok(operations) => patch.extend(operations),
            Err(why) => warnings.push(about(container, why)),
        }
    }
    match asked {
        // Volumes cannot be added to a pod that exists.
        Asked::Debug { .. } if !has_volume => return Ok(Outcome::NothingToDo),
        Asked::Create if !has_volume && !patch.is_empty() => {
            let whole = pod["spec"]["volumes"].is_null();
            let volume = lane_volume(domain);
            patch.insert(0, append("/spec/volumes", whole, volume));
        }
        _ => {}
    }
    shorten(&mut warnings);
    Ok(match (patch.is_empty(), warnings.is_empty()) {
        (false, _) => Outcome::Edited { patch, warnings },
        (true, true) => Outcome::NothingToDo,
        (true, false) => Outcome::LeftAlone { warnings },
    })
}

/// Has the pod been edited before? `Err`: something else has the volume's name.
fn has_lane_volume(pod: &Value) -> Result<bool, String> {
    let volumes = list(&pod["spec"]["volumes"]).ok_or_else(malformed)?;
    match volumes.iter().find(|volume| volume["name"] == VOLUME) {
        None => Ok(false),
        Some(volume) if volume["csi"]["driver"] == DRIVER => Ok(true),
        Some(_) => Err(format!(
            "the pod has a volume {VOLUME} of its own: memlane leaves the pod alone"
        )),
    }
}

fn lane_volume(domain: Option<&str>) -> Value {
    let mut source = json!({"driver": DRIVER, "readOnly": true});
    if let Some(domain) = domain {
        source["volumeAttributes"] = json!({DOMAIN: domain});
    }
    json!({"name": VOLUME, "csi": source})
}

/// The containers that can be edited, and where each of them is.
fn containers<'a>(pod: &'a Value, asked: &Asked<'_>) -> Result<Vec<(String, &'a Value)>, String> {
    let of = |list_name: &'static str| -> Result<Vec<(String, &'a Value)>, String> {
        let containers = list(&pod["spec"][list_name]).ok_or_else(malformed)?;
        let numbered = containers.iter().enumerate();
        Ok(numbered
            .map(|(n, container)| (format!("/spec/{list_name}/{n}"), container))
            .collect())
    };
    match asked {
        Asked::Create => Ok([of("initContainers")?, of("containers")?].concat()),
        Asked::Debug { before } => {
            let was = list(&before["spec"]["ephemeralContainers"]).ok_or_else(malformed)?;
            let is_new = |container: &Value| was.iter().all(|w| w["name"] != container["name"]);
            let mut all = of("ephemeralContainers")?;
            all.retain(|(_, container)| is_new(container));
            Ok(all)
        }
    }
}

fn about(container: &Value, why: Why) -> String {
    let name = container["name"].as_str().unwrap_or_default();
    format!(
        "container {}: {why}; memlane leaves it alone",
        shortened(name)
    )
}

fn shorten(warnings: &mut Vec<String>) {
    if warnings.len() > WARNINGS {
        let more = warnings.len() - WARNINGS + 1;
        warnings.truncate(WARNINGS - 1);
        warnings.push(format!("memlane leaves {more} more containers alone"));
    }
}

/// A list that may be missing. `None`: it is something else.
fn list(value: &Value) -> Option<&[Value]> {
    match value {
        Value::Null => Some(&[]),
        Value::Array(items) => Some(items),
        _ => None,
    }
}

fn malformed() -> String {
    "memlane cannot read this pod, and leaves it alone".to_owned()
}

/// The operation that appends to a list, or makes the `whole` list where there is none (RFC 6902, `add`).
fn append(list: &str, whole: bool, item: Value) -> Value {
    match whole {
        true => json!({"op": "add", "path": list, "value": [item]}),
        false => json!({"op": "add", "path": format!("{list}/-"), "value": item}),
    }
}

/// Where a container sees the volume.
fn mount() -> Value {
    json!({"name": VOLUME, "mountPath": IN_CONTAINER, "readOnly": true})
}
