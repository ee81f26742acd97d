//! Parameters of a StorageClass.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use tonic::Status;

use crate::text::optional;
use crate::volume_id::store_name;

/// What the orchestrator's own helpers add.
const OF_KUBERNETES: &str = "csi.storage.k8s.io/";
/// Most parameters that are looked at.
const MOST: usize = 64;
/// How many copies a volume has.
const REPLICAS: &str = "replicas";
/// What a controller of several stores tells a store about a volume that is mirrored: where the other copy is.
const BESIDE: &str = "memlane.dev/beside";
/// In the context of a volume: the frontend that its nodes use.
pub const FRONTEND: &str = "memlane.dev/frontend";

/// What a node shows a volume with.
#[derive(Serialize, Deserialize, Clone, Copy, Default, PartialEq, Eq, Debug)]
#[serde(rename_all = "kebab-case")]
pub enum Frontend {
    /// The best that the node has.
    #[default]
    Auto,
    /// The kernel's ublk driver.
    Ublk,
    /// The kernel's nbd driver.
    NbdKernel,
    /// A loop device over FUSE.
    Loop,
}

impl Frontend {
    const ALL: [Frontend; 4] = [
        Frontend::Auto,
        Frontend::Ublk,
        Frontend::NbdKernel,
        Frontend::Loop,
    ];

    /// Its name: for all but `auto`, as `memlane map --as` takes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Frontend::Auto => "auto",
            Frontend::Ublk => "ublk",
            Frontend::NbdKernel => "nbd-kernel",
            Frontend::Loop => "loop",
        }
    }

    fn read(text: &str) -> Result<Frontend, Status> {
        let known = Frontend::ALL.into_iter().find(|one| one.name() == text);
        known.ok_or_else(|| {
            let why = format!("frontend {text:?} is not one of auto, ublk, nbd-kernel and loop");
            Status::invalid_argument(why)
        })
    }

    /// Reads it from the context of a volume.
    ///
    /// # Errors
    /// `InvalidArgument`: there is no such frontend.
    pub fn of_context(context: &HashMap<String, String>) -> Result<Frontend, Status> {
        let said = context.get(FRONTEND);
        said.map_or(Ok(Frontend::Auto), |said| Frontend::read(said))
    }
}

/// The parameters of a volume.
#[derive(Serialize, Deserialize, Clone, Default, PartialEq, Eq, Debug)]
pub struct Parameters {
    /// What nodes show it with.
    pub frontend: Frontend,
    /// The store of its other copy, if it is mirrored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beside: Option<String>,
}

impl Parameters {
    /// Reads the parameters of a new volume.
    ///
    /// # Errors
    /// `InvalidArgument` names a parameter that is unknown or has a wrong value.
    pub fn read(given: &HashMap<String, String>) -> Result<Parameters, Status> {
        let mut read = Parameters::default();
        for (name, value) in sorted(given)? {
            match name {
                "frontend" => read.frontend = Frontend::read(value)?,
                REPLICAS if value == "1" => {}
                REPLICAS => {
                    let why = format!(
                        "replicas {value:?} is not offered by one store: a controller with two --store mirrors volumes"
                    );
                    return Err(Status::invalid_argument(why));
                }
                BESIDE => {
                    let store = store_name(value).map_err(Status::invalid_argument)?;
                    read.beside = Some(store);
                }
                _ => only_of_kubernetes(name)?,
            }
        }
        Ok(read)
    }

    /// What a node is told about the volume.
    #[must_use]
    pub fn context(&self) -> HashMap<String, String> {
        HashMap::from([(FRONTEND.to_owned(), self.frontend.name().to_owned())])
    }
}

/// Whether a volume with these parameters of a StorageClass is to be mirrored.
///
/// # Errors
/// `InvalidArgument`: neither one copy nor two are wanted, or the parameters say what only controllers say.
pub fn is_mirrored(given: &HashMap<String, String>) -> Result<bool, Status> {
    if given.contains_key(BESIDE) {
        let why = format!("parameter {BESIDE:?} is unknown");
        return Err(Status::invalid_argument(why));
    }
    match given.get(REPLICAS).map(String::as_str) {
        None | Some("1") => Ok(false),
        Some("2") => Ok(true),
        Some(_) => {
            let why = "replicas can be \"1\" or \"2\"";
            Err(Status::invalid_argument(why))
        }
    }
}

/// The same parameters for the store of one copy. `beside`: the store of the other one, if that has been chosen.
#[must_use]
pub fn of_copy(given: &HashMap<String, String>, beside: Option<&str>) -> HashMap<String, String> {
    let mut all = given.clone();
    all.remove(REPLICAS);
    all.extend(beside.map(|store| (BESIDE.to_owned(), store.to_owned())));
    all
}

/// Checks the parameters of a snapshot: there are none.
///
/// # Errors
/// `InvalidArgument` names the parameter.
pub fn of_snapshot(given: &HashMap<String, String>) -> Result<(), Status> {
    let mut names = sorted(given)?.into_iter().map(|(name, _)| name);
    names.try_for_each(only_of_kubernetes)
}

fn only_of_kubernetes(name: &str) -> Result<(), Status> {
    match name.starts_with(OF_KUBERNETES) {
        true => Ok(()),
        false => {
            let why = format!("parameter {name:?} is unknown");
            Err(Status::invalid_argument(why))
        }
    }
}

/// In a fixed order, so that the same mistake always gives the same message.
fn sorted(given: &HashMap<String, String>) -> Result<Vec<(&str, &str)>, Status> {
    if given.len() > MOST {
        let why = format!("more than {MOST} parameters");
        return Err(Status::invalid_argument(why));
    }
    let mut all = Vec::new();
    for (name, value) in given {
        optional("a parameter's name", name, 256)?;
        optional("a parameter's value", value, 1024)?;
        all.push((name.as_str(), value.as_str()));
    }
    all.sort_unstable();
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn given(name: &str, value: &str) -> HashMap<String, String> {
        HashMap::from([(name.to_owned(), value.to_owned())])
    }

    #[test]
    fn an_unknown_parameter_is_refused_by_its_name() {
        for (name, value) in [
            ("frontent", "loop"),
            ("frontend", "lop"),
            ("replicas", "2"),
            ("frontend", "a\u{7}"),
            ("", ""),
        ] {
            let error = Parameters::read(&given(name, value)).expect_err(name);
            assert_eq!(error.code(), tonic::Code::InvalidArgument);
        }
        let known = given("csi.storage.k8s.io/pvc/name", "x");
        assert_eq!(Parameters::read(&known).ok(), Some(Parameters::default()));
        assert!(of_snapshot(&given("frontend", "loop")).is_err());
    }

    #[test]
    fn a_mirrored_volume_has_two_copies_and_each_store_is_told_of_the_other() {
        let wish = given("replicas", "2");
        assert!(is_mirrored(&wish).expect("offered"));
        assert!(!is_mirrored(&given("replicas", "1")).expect("offered"));
        for (name, value) in [("replicas", "3"), ("replicas", ""), (BESIDE, "a")] {
            assert!(is_mirrored(&given(name, value)).is_err(), "{name} {value}");
        }
        let told = Parameters::read(&of_copy(&wish, Some("b"))).expect("known");
        assert_eq!(told.beside.as_deref(), Some("b"));
        assert!(Parameters::read(&given(BESIDE, "a/b")).is_err());
    }

    proptest! {
        #[test]
        fn what_a_node_is_told_is_what_was_asked(which in 0..4usize) {
            let frontend = Frontend::ALL[which];
            let read = Parameters::read(&given("frontend", frontend.name())).expect("known");
            prop_assert_eq!(Frontend::of_context(&read.context()).expect("known"), frontend);
        }
    }
}
