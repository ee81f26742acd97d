//! Lane volumes: what puts memlane's library and the agent's socket into a pod.
//!
//! Such a volume is written in the pod itself (an *ephemeral inline volume*). Its target becomes a small tmpfs:
//!
//! ```text
//! TARGET/tree         the library's folder of this node, for reading only
//! TARGET/lib64, …     symbolic links into it, one for each of its entries
//! TARGET/domain       the folder of the pod's domain, in which the agent listens, for reading only
//! ```
//!
//! The domain's folder is made with the first pod that needs it, and removed after the last one ([`Lanes::tidy`]).
//!
//! Pods of one domain may be joined by memory, so the domain is the pod's namespace. A pod may ask for another one only if the
//! operator has opened it to the pod's namespace. The namespace is the kubelet's word, not the pod's.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

use tonic::Status;

use super::mounts;
use crate::text::is_plain;

/// In the context of a lane volume: the domain that the pod asks for.
const DOMAIN: &str = "memlane.dev/domain";
/// What the kubelet says of the pod, if the CSIDriver object has `podInfoOnMount`.
const NAMESPACE: &str = "csi.storage.k8s.io/pod.namespace";
/// What the kubelet says of an inline volume.
const EPHEMERAL: &str = "csi.storage.k8s.io/ephemeral";
/// The source of the mount of a lane volume.
pub(super) const SOURCE: &str = "memlane-lane";
/// The agent's socket in the folder of a domain.
const SOCKET: &str = "agent.sock";
/// In the folder of a domain: this plugin has made it, and may remove it. A folder that somebody else has made stays.
const MARK: &str = ".made-for-pods";
/// Before the name of a folder that is being removed: agents pass hidden folders over.
const GONE: &str = ".gone-";
/// Longest name of a namespace (RFC 1123), in bytes.
const NAME_LIMIT: usize = 63;

/// A domain that several namespaces share.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shared {
    name: String,
    namespaces: Vec<String>,
}

impl std::str::FromStr for Shared {
    type Err = String;

    /// Reads `NAME=NAMESPACE,NAMESPACE…`.
    fn from_str(text: &str) -> Result<Shared, String> {
        let (name, namespaces) = text.split_once('=').unwrap_or((text, ""));
        let namespaces: Vec<String> = namespaces.split(',').map(str::to_owned).collect();
        match is_name(name) && namespaces.iter().all(|one| is_name(one)) {
            true => Ok(Shared {
                name: name.to_owned(),
                namespaces,
            }),
            false => Err("NAME=NAMESPACE,NAMESPACE… is needed".to_owned()),
        }
    }
}

/// Where lane volumes come from.
#[derive(Debug)]
pub struct Lanes {
    /// The library's folder, as `memlane agent install` lays it out.
    pub tree: PathBuf,
    /// The folder with a folder for each domain, in which the agent listens.
    pub domains: PathBuf,
    /// Domains that several namespaces share.
    pub shared: Vec<Shared>,
    /// Held for writing by whoever looks for folders that nobody uses; for reading by whoever is about to use one.
    tidying: RwLock<()>,
}

/// Whether a call is about a lane volume.
pub(super) fn is_lane(context: &HashMap<String, String>) -> bool {
    context.get(EPHEMERAL).is_some_and(|said| said == "true")
}

fn is_name(text: &str) -> bool {
    let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.len() <= NAME_LIMIT
        && is_plain(text, "-")
        && !text.contains(|c: char| c.is_ascii_uppercase())
        && text.starts_with(edge)
        && text.ends_with(edge)
}

impl Lanes {
    /// Lane volumes of these folders.
    #[must_use]
    pub fn new(tree: PathBuf, domains: PathBuf, shared: Vec<Shared>) -> Lanes {
        Lanes {
            tree,
            domains,
            shared,
            tidying: RwLock::default(),
        }
    }

    /// The folder of a pod's domain.
    fn domain(&self, context: &HashMap<String, String>) -> Result<PathBuf, Status> {
        let namespace = context.get(NAMESPACE).map_or("", String::as_str);
        if !is_name(namespace) {
            return Err(Status::invalid_argument(format!(
                "{NAMESPACE} is {namespace:?}: the CSIDriver object needs podInfoOnMount: true"
            )));
        }
        let asked = context.get(DOMAIN).map_or(namespace, String::as_str);
        if asked == namespace {
            return Ok(self.domains.join(namespace));
        }
        let opened = |shared: &&Shared| {
            shared.name == asked && shared.namespaces.iter().any(|one| one == namespace)
        };
        match self.shared.iter().find(opened) {
            // No namespace begins with this sign, so none is taken for a shared domain.
            Some(shared) => Ok(self.domains.join(format!("@{}", shared.name))),
            None => Err(Status::permission_denied(format!(
                "domain {asked:?} is not open to namespace {namespace:?}: the node plugin's --shared-domain says which are"
            ))),
        }
    }

    /// Makes the volume, or completes what a call made that was cut short.
    pub(super) fn publish(
        &self,
        target: &Path,
        context: &HashMap<String, String>,
    ) -> Result<(), Status> {
        let domain = self.domain(context)?;
        if !self.tree.is_dir() {
            return Err(Status::failed_precondition(format!(
                "the library's folder {} is not there: has `memlane agent install` run on this node?",
                self.tree.display()
            )));
        }
        let _used = self.tidying.read().unwrap_or_else(PoisonError::into_inner);
        make_folder(&self.domains)?;
        make_domain(&domain)?;
        if is_complete(target)? {
            return Ok(());
        }
        mounts::unmount(target)?;
        make_folder(target)?;
        mounts::mount(
            "tmpfs",
            "size=64k,mode=0755,nosuid,nodev",
            Path::new(SOURCE),
            target,
        )?;
        for (name, from) in [("tree", &self.tree), ("domain", &domain)] {
            let place = target.join(name);
            make_folder(&place)?;
            mounts::bind(from, &place)?;
            mounts::set_read_only(&place, true)?;
        }
        self.link_entries(target)?;
        // The last step: a volume that can still be written is not complete.
        mounts::set_read_only(target, true)
    }

    /// Removes the folders of domains that no lane volume of this node shows any more, if this plugin has made them. What
    /// cannot be removed stays until the next time.
    pub fn tidy(&self) {
        let _alone = self.tidying.write().unwrap_or_else(PoisonError::into_inner);
        // Without the table of mounts, all of them may be used.
        let Ok(used) = used() else {
            return;
        };
        for entry in fs::read_dir(&self.domains).into_iter().flatten().flatten() {
            let folder = entry.path();
            let name = entry.file_name();
            let name = name.to_string_lossy();
            match name.strip_prefix(GONE) {
                Some(_) => empty(&folder),
                None if is_unused(&folder, &used) => {
                    let hidden = self.domains.join(format!("{GONE}{name}"));
                    // From here on, whoever needs the domain makes a new folder.
                    if fs::rename(&folder, &hidden).is_ok() {
                        empty(&hidden);
                    }
                }
                None => {}
            }
        }
    }

    fn link_entries(&self, target: &Path) -> Result<(), Status> {
        let fail = |error: io::Error| {
            Status::internal(format!(
                "the library's folder in {}: {error}",
                target.display()
            ))
        };
        for entry in fs::read_dir(&self.tree).map_err(fail)? {
            let name = entry.map_err(fail)?.file_name();
            symlink(Path::new("tree").join(&name), target.join(&name)).map_err(fail)?;
        }
        Ok(())
    }
}

fn is_complete(target: &Path) -> Result<bool, Status> {
    let by_place: BTreeMap<PathBuf, mounts::Mount> = mounts::all()?
        .into_iter()
        .map(|mount| (mount.point.clone(), mount))
        .collect();
    let read_only = |place: &Path| by_place.get(place).is_some_and(|mount| mount.read_only);
    Ok(read_only(target) && read_only(&target.join("tree")) && read_only(&target.join("domain")))
}

/// Which folders the lane volumes of this node show as their domains: device and inode.
fn used() -> Result<HashSet<(u64, u64)>, Status> {
    let volumes = mounts::all()?.into_iter();
    let volumes = volumes.filter(|mount| mount.source == SOURCE && mount.kind == "tmpfs");
    let domain = |volume: mounts::Mount| identity(&volume.point.join("domain"));
    Ok(volumes.filter_map(domain).collect())
}

fn identity(folder: &Path) -> Option<(u64, u64)> {
    let folder = fs::symlink_metadata(folder).ok()?;
    Some((folder.dev(), folder.ino()))
}

/// Whether this plugin has made the folder, nobody uses it, and there is nothing in it but what agent and plugin have made.
fn is_unused(folder: &Path, used: &HashSet<(u64, u64)>) -> bool {
    let Some(identity) = identity(folder) else {
        return false;
    };
    let is_known = |entry: io::Result<fs::DirEntry>| {
        entry.is_ok_and(|entry| [SOCKET, MARK].iter().any(|name| entry.file_name() == *name))
    };
    !used.contains(&identity)
        && folder.join(MARK).is_file()
        && fs::read_dir(folder).is_ok_and(|mut entries| entries.all(is_known))
}

/// Removes a folder of a domain, as far as it has nothing else in it.
fn empty(folder: &Path) {
    for name in [SOCKET, MARK] {
        let _ = fs::remove_file(folder.join(name));
    }
    let _ = fs::remove_dir(folder);
}

/// Makes the folder of a domain, if it is not there.
fn make_domain(folder: &Path) -> Result<(), Status> {
    let made = fs::DirBuilder::new().mode(0o755).create(folder);
    let marked = match made {
        Ok(()) => fs::write(folder.join(MARK), ""),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    };
    marked.map_err(|error| Status::internal(format!("making {}: {error}", folder.display())))
}

fn make_folder(folder: &Path) -> Result<(), Status> {
    let mut builder = fs::DirBuilder::new();
    let made = builder.recursive(true).mode(0o755).create(folder);
    made.map_err(|error| Status::internal(format!("making {}: {error}", folder.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    fn domain(namespace: &str, asked: Option<&str>) -> Result<PathBuf, Status> {
        let shared = vec!["mesh=shop,pay".parse().expect("a domain")];
        let lanes = Lanes::new(PathBuf::new(), PathBuf::from("/run/memlane"), shared);
        let mut context = HashMap::from([(NAMESPACE.to_owned(), namespace.to_owned())]);
        if let Some(asked) = asked {
            context.insert(DOMAIN.to_owned(), asked.to_owned());
        }
        lanes.domain(&context)
    }

    #[test]
    fn a_pod_gets_the_domain_of_its_namespace_or_a_shared_one_that_is_open_to_it() {
        let own = Path::new("/run/memlane/shop");
        assert_eq!(domain("shop", None).expect("its own"), own);
        assert_eq!(domain("shop", Some("shop")).expect("its own"), own);
        let shared = Path::new("/run/memlane/@mesh");
        assert_eq!(domain("pay", Some("mesh")).expect("open"), shared);
        for (namespace, asked) in [
            ("evil", "mesh"),
            ("evil", "shop"),
            ("shop", "@mesh"),
            ("shop", ".."),
        ] {
            let error = domain(namespace, Some(asked)).expect_err("not open");
            assert_eq!(error.code(), Code::PermissionDenied, "{namespace} {asked}");
        }
        // A namespace with the name of a shared domain has a folder of its own.
        assert_eq!(
            domain("mesh", None).expect("its own"),
            Path::new("/run/memlane/mesh")
        );
        for nobody in ["", "..", "a/b", "@mesh", "A", "a\n"] {
            let error = domain(nobody, None).expect_err("no namespace");
            assert_eq!(error.code(), Code::InvalidArgument, "{nobody:?}");
        }
    }

    #[test]
    fn a_shared_domain_is_read_with_its_namespaces() {
        for wrong in ["", "mesh", "mesh=", "a/b=c", "mesh=a,,b", "@mesh=a"] {
            assert!(wrong.parse::<Shared>().is_err(), "{wrong}");
        }
    }
}
