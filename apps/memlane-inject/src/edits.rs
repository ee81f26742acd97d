//! What a program needs so that memlane is in it: mounts and variables.

use std::path::{Path, PathBuf};

use crate::tree::PRELOAD_IN_TREE;

/// Where a container finds the library.
pub const IN_CONTAINER: &str = "/opt/memlane";
/// Where the agent's domain lies in a lane volume, from the volume's root.
pub const DOMAIN_IN_VOLUME: &str = "domain";
/// The loader's list of libraries.
pub const PRELOAD: &str = "LD_PRELOAD";
/// What is to be preloaded, where the container runtime puts it into [`PRELOAD`], beside what the image has there.
pub const WANTED: &str = "MEMLANE_PRELOAD";
/// The directory of the agent's domain.
pub const DOMAIN: &str = "MEMLANE_DOMAIN";

/// A directory that is shown at the same or another place, for reading only.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mount {
    /// The directory on the host.
    pub host: PathBuf,
    /// Where the program sees it.
    pub seen_at: PathBuf,
}

/// What a program needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Edits {
    /// Directories that it must see.
    pub mounts: Vec<Mount>,
    /// Variables of its environment.
    pub variables: Vec<(&'static str, String)>,
}

/// Where the program runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// In a container, which sees nothing of the host that is not mounted.
    Container,
    /// On the host.
    Host,
}

impl Edits {
    /// What a program needs that finds the library's tree and the agent's domain at these places of the host.
    ///
    /// The path of the library has `$LIB` in it. glibc puts the name of its library directory there, so that a program of
    /// another word size does not find the library; musl does not, and finds a folder of this very name.
    pub fn new(place: Place, tree: &Path, domain: &Path) -> Edits {
        let mount = |host: &Path, seen_at: &Path| Mount {
            host: host.to_owned(),
            seen_at: seen_at.to_owned(),
        };
        let (root, mounts) = match place {
            Place::Container => (
                Path::new(IN_CONTAINER),
                vec![mount(tree, Path::new(IN_CONTAINER)), mount(domain, domain)],
            ),
            Place::Host => (tree, Vec::new()),
        };
        Edits {
            mounts,
            variables: variables(root, domain),
        }
    }

    /// What a container of a pod needs that has a lane volume at [`IN_CONTAINER`]: one volume with the library's tree at its
    /// root and the agent's domain below it.
    pub fn of_a_lane_volume() -> Edits {
        let root = Path::new(IN_CONTAINER);
        Edits {
            mounts: Vec::new(),
            variables: variables(root, &root.join(DOMAIN_IN_VOLUME)),
        }
    }

    /// The same for a container whose [`PRELOAD`] the container runtime completes: it has [`WANTED`] instead.
    #[must_use]
    pub fn completed_by_the_runtime(mut self) -> Edits {
        for (name, _) in self
            .variables
            .iter_mut()
            .filter(|(name, _)| *name == PRELOAD)
        {
            *name = WANTED;
        }
        self
    }

    /// The library to preload.
    pub fn library(&self) -> &str {
        let is_library = |(name, _): &&(&str, String)| [PRELOAD, WANTED].contains(name);
        let library = self.variables.iter().find(is_library);
        library.map_or("", |(_, library)| library)
    }
}

fn variables(root: &Path, domain: &Path) -> Vec<(&'static str, String)> {
    let library = root.join(PRELOAD_IN_TREE);
    vec![
        (PRELOAD, library.display().to_string()),
        (DOMAIN, domain.display().to_string()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_sees_the_library_and_the_domain_and_nothing_else_of_the_host() {
        let edits = Edits::new(
            Place::Container,
            Path::new("/usr/lib/memlane/inject"),
            Path::new("/run/memlane/shop"),
        );
        let seen: Vec<&Path> = edits.mounts.iter().map(|m| m.seen_at.as_path()).collect();
        assert_eq!(
            seen,
            [Path::new("/opt/memlane"), Path::new("/run/memlane/shop")]
        );
        assert_eq!(
            edits.variables[0].1,
            "/opt/memlane/$LIB/libmemlane_preload.so"
        );
    }

    #[test]
    fn a_service_of_the_host_needs_no_mounts() {
        let tree = Path::new("/usr/lib/memlane/inject");
        let edits = Edits::new(Place::Host, tree, Path::new("/run/memlane/default"));
        assert!(edits.mounts.is_empty());
        assert_eq!(
            edits.variables[0].1,
            "/usr/lib/memlane/inject/$LIB/libmemlane_preload.so"
        );
    }

    #[test]
    fn in_a_pod_one_volume_has_both_the_library_and_the_domain() {
        let edits = Edits::of_a_lane_volume();
        assert!(edits.mounts.is_empty());
        assert_eq!(edits.variables[1].1, "/opt/memlane/domain");
    }

    #[test]
    fn where_the_runtime_preloads_a_pod_does_not() {
        let edits = Edits::of_a_lane_volume().completed_by_the_runtime();
        let names: Vec<&str> = edits.variables.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, [WANTED, DOMAIN]);
        assert_eq!(edits.library(), Edits::of_a_lane_volume().library());
        assert!(edits.library().ends_with(".so"));
    }
}
