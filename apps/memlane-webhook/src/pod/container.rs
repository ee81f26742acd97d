//! One container: a mount and two variables.

use std::fmt;

use memlane_inject::Edits;
use memlane_inject::edits::{IN_CONTAINER, PRELOAD};
use memlane_inject::preload::{Joined, join};
use serde_json::{Value, json};

use super::{VOLUME, append, list, mount};

/// Why a container is left alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Why {
    PreloadIsElsewhere,
    PreloadsMemlane,
    PlaceIsTaken,
    Malformed,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Why::PreloadIsElsewhere => "the value of LD_PRELOAD is not in the pod (valueFrom)",
            Why::PreloadsMemlane => "LD_PRELOAD names a library of memlane's already",
            Why::PlaceIsTaken => "something else is mounted at /opt/memlane, or around it",
            Why::Malformed => "it cannot be read",
        })
    }
}

/// The operations that put memlane into a container, which is at this place of the pod. None if it is in it.
pub(super) fn edit(container: &Value, at: &str, edits: &Edits) -> Result<Vec<Value>, Why> {
    if !container.is_object() {
        return Err(Why::Malformed);
    }
    let mut operations = add_mount(container, at)?;
    operations.extend(add_variables(container, at, edits)?);
    Ok(operations)
}

fn add_mount(container: &Value, at: &str) -> Result<Vec<Value>, Why> {
    let mounts = list(&container["volumeMounts"]).ok_or(Why::Malformed)?;
    let devices = list(&container["volumeDevices"]).ok_or(Why::Malformed)?;
    let is_ours = |m: &Value| m["name"] == VOLUME && m["mountPath"] == IN_CONTAINER;
    let others = mounts.iter().filter(|m| !is_ours(m));
    let paths = others
        .map(|m| &m["mountPath"])
        .chain(devices.iter().map(|d| &d["devicePath"]));
    for path in paths {
        if touches(path.as_str().ok_or(Why::Malformed)?) {
            return Err(Why::PlaceIsTaken);
        }
    }
    if mounts.iter().any(is_ours) {
        return Ok(Vec::new());
    }
    let whole = container["volumeMounts"].is_null();
    Ok(vec![append(&format!("{at}/volumeMounts"), whole, mount())])
}

/// Is one of the two paths, this one and ours, below the other? A runtime can make no directory for ours in a volume that is
/// read-only, and would not start the container.
fn touches(path: &str) -> bool {
    let parts = |path: &str| -> Vec<String> {
        let mut parts: Vec<String> = Vec::new();
        for part in path.split('/') {
            match part {
                "" | "." => {}
                ".." => drop(parts.pop()),
                part => parts.push(part.to_owned()),
            }
        }
        parts
    };
    let (theirs, ours) = (parts(path), parts(IN_CONTAINER));
    theirs.starts_with(&ours) || ours.starts_with(&theirs)
}

fn add_variables(container: &Value, at: &str, edits: &Edits) -> Result<Vec<Value>, Why> {
    let env = list(&container["env"]).ok_or(Why::Malformed)?;
    if !env.iter().all(Value::is_object) {
        return Err(Why::Malformed);
    }
    let mut operations = Vec::new();
    let mut whole = container["env"].is_null();
    for (name, value) in &edits.variables {
        // Of two with one name, the last one counts.
        match env.iter().rposition(|variable| variable["name"] == *name) {
            Some(n) if *name == PRELOAD => {
                operations.extend(add_to_preload(&env[n], &format!("{at}/env/{n}"), value)?);
            }
            // What else the container says itself stays.
            Some(_) => {}
            None => {
                let variable = json!({"name": name, "value": value});
                operations.push(append(&format!("{at}/env"), whole, variable));
                whole = false;
            }
        }
    }
    Ok(operations)
}

/// Our library after what the container preloads itself.
fn add_to_preload(variable: &Value, at: &str, library: &str) -> Result<Option<Value>, Why> {
    if !variable["valueFrom"].is_null() {
        return Err(Why::PreloadIsElsewhere);
    }
    let theirs = match &variable["value"] {
        Value::Null => "",
        Value::String(theirs) => theirs,
        _ => return Err(Why::Malformed),
    };
    match join(theirs, library) {
        Joined::Changed(both) => {
            let path = format!("{at}/value");
            Ok(Some(json!({"op": "add", "path": path, "value": both})))
        }
        Joined::Same => Ok(None),
        Joined::Other => Err(Why::PreloadsMemlane),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_around_ours_or_below_it_is_in_the_way_and_one_beside_it_is_not() {
        for taken in [
            "/opt/memlane",
            "/opt/memlane/",
            "/opt",
            "//opt/./x/..",
            "/opt/memlane/domain",
            "/",
        ] {
            assert!(touches(taken), "{taken}");
        }
        for free in ["/opt/memlane2", "/opt/other", "/data", "/memlane"] {
            assert!(!touches(free), "{free}");
        }
    }
}
