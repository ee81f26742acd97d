//! Debian's kernels, unpacked, and which modules need which.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::tools::{read, run};

/// An unpacked kernel, and a busybox for it.
#[derive(Clone, Debug)]
pub struct Kernel {
    image: PathBuf,
    /// `lib/modules/VERSION`.
    modules: PathBuf,
    /// Files of modules that take the place of those.
    others: Vec<PathBuf>,
    busybox: PathBuf,
}

impl Kernel {
    /// The kernel that `package` is, or depends on; fetched unless it is there from an earlier run.
    ///
    /// # Errors
    /// What is missing, to be told when the test is skipped.
    pub fn of_package(package: &str) -> Result<Kernel, String> {
        let concrete = concrete(package)?;
        Kernel::in_folders(
            &unpacked(&cache(), &concrete)?,
            &files_of("busybox-static")?,
        )
    }

    /// The same, without the network: only if it is there from an earlier run.
    ///
    /// # Errors
    /// What is missing, to be told when the test is skipped.
    pub fn of_cache(package: &str) -> Result<Kernel, String> {
        let there = |name: &str| {
            let folder = cache().join(name);
            let complete = folder.join("complete").exists();
            let missing = || format!("{} is not there: ./dev test-kernels", folder.display());
            complete.then_some(folder.clone()).ok_or_else(missing)
        };
        Kernel::in_folders(&there(&concrete(package)?)?, &there("busybox-static")?)
    }

    /// Its version, as `uname -r` says it: `6.12.117+deb12-amd64`.
    #[must_use]
    pub fn release(&self) -> String {
        let folder = self.modules.file_name().unwrap_or_default();
        folder.to_string_lossy().into_owned()
    }

    /// The same kernel with a module of somebody else's, which takes the place of its own of that name.
    #[must_use]
    pub fn with_module(mut self, file: &Path) -> Kernel {
        self.others.push(file.to_owned());
        self
    }

    pub(crate) fn image(&self) -> &Path {
        &self.image
    }

    pub(crate) fn busybox(&self) -> &Path {
        &self.busybox
    }

    /// Modules and what they need, in the order of their loading.
    pub(crate) fn loaded(&self, names: &[String]) -> Result<Vec<(String, PathBuf)>, String> {
        let mut there = BTreeMap::new();
        collect(&self.modules, &mut there);
        for file in &self.others {
            there.insert(plain(&file.to_string_lossy()), file.clone());
        }
        let builtin = std::fs::read_to_string(self.modules.join("modules.builtin"));
        let builtin: BTreeSet<String> = builtin.unwrap_or_default().lines().map(plain).collect();
        let mut order = Vec::new();
        for name in names {
            visit(&plain(name), &there, &builtin, &mut order)?;
        }
        Ok(order)
    }

    fn in_folders(kernel: &Path, busybox: &Path) -> Result<Kernel, String> {
        let busybox = busybox.join("bin/busybox");
        let image = only(&kernel.join("boot"), "vmlinuz-")?;
        let modules = [kernel.join("lib/modules"), kernel.join("usr/lib/modules")];
        let found = modules.iter().find_map(|folder| only(folder, "").ok());
        Ok(Kernel {
            image,
            modules: found.ok_or("no modules in the package")?,
            others: Vec::new(),
            busybox,
        })
    }
}

/// The files of one of Debian's packages, which need not be installed; fetched unless they are there from an earlier run.
///
/// # Errors
/// What is missing, to be told when the test is skipped.
pub fn files_of(package: &str) -> Result<PathBuf, String> {
    unpacked(&cache(), package)
}

fn cache() -> PathBuf {
    std::env::var_os("MEMLANE_GUEST_CACHE")
        .map_or_else(|| std::env::temp_dir().join("memlane-guest"), PathBuf::from)
}

/// `linux-image-amd64` is only a name for the newest one.
fn concrete(package: &str) -> Result<String, String> {
    let said = run(Command::new("apt-cache").args(["depends", package]))?;
    let needed = said
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "));
    let mut kernels = needed.filter(|name| name.starts_with("linux-image-"));
    Ok(kernels.next().unwrap_or(package).to_owned())
}

/// A package's files, in a folder of its own.
fn unpacked(cache: &Path, package: &str) -> Result<PathBuf, String> {
    let folder = cache.join(package);
    if folder.join("complete").exists() {
        return Ok(folder);
    }
    // Somebody else may be doing the same: each in a place of its own, and the first one counts.
    let own = cache.join(format!("{package}.{}", std::process::id()));
    std::fs::create_dir_all(&own).map_err(|error| error.to_string())?;
    run(Command::new("apt-get")
        .args(["download", package])
        .current_dir(&own))?;
    let archive = only(&own, package)?;
    let tree = own.join("tree");
    run(Command::new("dpkg-deb").arg("-x").args([&archive, &tree]))?;
    std::fs::write(tree.join("complete"), "").map_err(|error| error.to_string())?;
    if std::fs::rename(&tree, &folder).is_err() && !folder.join("complete").exists() {
        return Err(format!("{} cannot be made", folder.display()));
    }
    let _ = std::fs::remove_dir_all(&own);
    Ok(folder)
}

fn only(folder: &Path, prefix: &str) -> Result<PathBuf, String> {
    let entries = std::fs::read_dir(folder).map_err(|error| error.to_string())?;
    let mut names = entries.flatten().map(|entry| entry.path());
    let found = names.find(|path| {
        let name = path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        name.is_some_and(|name| name.starts_with(prefix))
    });
    found.ok_or_else(|| format!("no {prefix}* in {}", folder.display()))
}

/// `kernel/drivers/block/virtio-blk.ko.xz` → `virtio_blk`.
fn plain(path: &str) -> String {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.split(".ko").next().unwrap_or(name).replace('-', "_")
}

fn collect(folder: &Path, into: &mut BTreeMap<String, PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            collect(&path, into);
        } else if entry.file_name().to_string_lossy().contains(".ko") {
            into.insert(plain(&entry.file_name().to_string_lossy()), path);
        }
    }
}

fn visit(
    name: &str,
    there: &BTreeMap<String, PathBuf>,
    builtin: &BTreeSet<String>,
    order: &mut Vec<(String, PathBuf)>,
) -> Result<(), String> {
    if builtin.contains(name) || order.iter().any(|(known, _)| known == name) {
        return Ok(());
    }
    let path = there.get(name).ok_or_else(|| format!("no module {name}"))?;
    for needed in needs(&module(path)?) {
        visit(&needed, there, builtin, order)?;
    }
    order.push((name.to_owned(), path.clone()));
    Ok(())
}

/// What a module says of itself, in its section `.modinfo`: `depends=a,b`.
fn needs(module: &[u8]) -> Vec<String> {
    let key = b"\0depends=";
    let Some(at) = module.windows(key.len()).position(|bytes| bytes == key) else {
        return Vec::new();
    };
    let list = module[at + key.len()..].split(|byte| *byte == 0).next();
    let list = String::from_utf8_lossy(list.unwrap_or_default()).into_owned();
    let names = list.split(',').filter(|name| !name.is_empty());
    names.map(plain).collect()
}

/// A module's bytes, unpacked.
pub(crate) fn module(path: &Path) -> Result<Vec<u8>, String> {
    let tool = match path.extension().and_then(|kind| kind.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        _ => return read(path),
    };
    let output = Command::new(tool).arg("-dc").arg(path).output();
    let output = output.map_err(|error| format!("{tool}: {error}"))?;
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_has_one_name_whatever_its_file_is_called() {
        for path in ["kernel/net/virtio-net.ko.xz", "virtio_net.ko", "virtio-net"] {
            assert_eq!(plain(path), "virtio_net");
        }
    }

    #[test]
    fn a_module_says_what_it_needs() {
        let module = b"\x7fELF\0license=GPL\0depends=ib_core,crc-t10dif\0name=smc\0";
        assert_eq!(needs(module), ["ib_core", "crc_t10dif"]);
        assert!(needs(b"\0depends=\0").is_empty() && needs(b"").is_empty());
    }

    #[test]
    fn what_is_needed_is_loaded_first_and_what_is_built_in_is_not() {
        let folder = std::env::temp_dir().join(format!("memlane-modules-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let there = |name: &str, needs: &str| {
            let file = folder.join(format!("{name}.ko"));
            std::fs::write(&file, format!("\0depends={needs}\0")).expect("a file");
            (name.to_owned(), file)
        };
        let all = [
            there("smc", "ib_core,dibs"),
            there("ib_core", "sunrpc"),
            there("dibs", ""),
        ];
        let (all, builtin) = (all.into(), ["sunrpc".to_owned()].into());
        let mut order = Vec::new();
        let done = visit("smc", &all, &builtin, &mut order);
        let missing = visit("rxe", &all, &builtin, &mut order);
        let _ = std::fs::remove_dir_all(&folder);
        assert_eq!((done, missing), (Ok(()), Err("no module rxe".into())));
        let order: Vec<&str> = order.iter().map(|(name, _)| &**name).collect();
        assert_eq!(order, ["ib_core", "dibs", "smc"]);
    }
}
