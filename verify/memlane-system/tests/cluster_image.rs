//! The image for Kubernetes, made by its recipe, `packaging/kubernetes/Containerfile`: on a base that is made of Debian's
//! packages, as no registry is asked.
//!
//! Needs memlane-webhook, memlane-csi, podman, mmdebstrap, Debian's packages and root.

use std::path::{Path, PathBuf};
use std::process::Command;

use memlane_system::blocks::{has, must, skip};
use memlane_system::cluster;
use memlane_system::harness::{Built, TempDir, find_csi, find_webhook, is_root};

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn recipe() -> String {
    let file = source().join("packaging/kubernetes/Containerfile");
    std::fs::read_to_string(file).expect("the recipe")
}

/// The commands in the recipe's head.
fn commands(recipe: &str) -> Vec<&str> {
    let head = recipe.lines().take_while(|line| line.starts_with('#'));
    head.filter_map(|line| line.strip_prefix("#   ")).collect()
}

/// Are all programs of the image built, in one folder? `false`, loudly.
fn all_are_built(test: &str) -> bool {
    let memlane = Built::find().memlane.expect("memlane is built");
    let beside = |program: Option<PathBuf>| {
        program.is_some_and(|program| program.parent() == memlane.parent())
    };
    let all = beside(find_webhook()) && beside(Some(find_csi()));
    if !all {
        skip(
            test,
            "not beside memlane: cargo build --release -p memlane-webhook -p memlane-csi",
        );
    }
    all
}

/// The folder from which the image is built, as the recipe's head makes it.
fn context(dir: &Path) -> PathBuf {
    let context = dir.join("context");
    let built = Built::find().memlane.expect("memlane is built");
    let recipe = recipe();
    let install = commands(&recipe)
        .into_iter()
        .find(|line| line.starts_with("packaging/install.sh "));
    let install = install.expect("a command");
    let install = install
        .replace("target/kubernetes", &context.display().to_string())
        .replace(
            "target/release",
            &built.parent().expect("a folder").display().to_string(),
        );
    let mut command = Command::new("sh");
    command.current_dir(source()).args(["-c", &install]);
    command.env(
        "CARGO_TARGET_DIR",
        built.ancestors().nth(2).expect("a folder"),
    );
    must(command);
    context
}

/// What the recipe installs.
fn packages(recipe: &str) -> Vec<&str> {
    let line = recipe
        .lines()
        .find_map(|line| line.strip_prefix("ARG PACKAGES="));
    let line = line.expect("a list of packages").trim_matches('"');
    line.split(' ').collect()
}

#[test]
fn the_recipe_copies_what_its_head_makes_and_installs_packages_that_there_are() {
    let test = "the image's recipe";
    if !cluster::has(test, &["kubectl"]) || !all_are_built(test) {
        return;
    }
    let dir = TempDir::new("image");
    let (context, recipe) = (context(dir.path()), recipe());
    let copied = recipe.lines().filter_map(|line| line.strip_prefix("COPY "));
    for from in copied.filter_map(|line| line.split(' ').next()) {
        assert!(context.join(from).exists(), "{from}");
    }
    let begin = recipe
        .lines()
        .find_map(|line| line.strip_prefix("ENTRYPOINT [\"/"));
    let begin = begin.expect("an entry point").trim_end_matches("\"]");
    assert!(context.join("root").join(begin).is_file(), "{begin}");
    let build = commands(&recipe)
        .into_iter()
        .find(|line| line.starts_with("podman build "));
    let file = "--file packaging/kubernetes/Containerfile target/kubernetes";
    assert!(build.expect("a command").contains(file));
    if !has("apt-cache") {
        skip("the image's packages", "no apt-cache");
        return;
    }
    for package in packages(&recipe) {
        let mut show = Command::new("apt-cache");
        show.args(["show", "--no-all-versions", package]);
        let shown = show.output().expect("apt-cache");
        assert!(shown.status.success(), "no package {package}");
    }
}

/// podman with a store of its own.
struct Podman {
    dir: TempDir,
}

impl Podman {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("podman");
        command.arg("--root").arg(self.dir.path().join("root"));
        command.arg("--runroot").arg(self.dir.path().join("run"));
        command.args(["--storage-driver", "vfs", "--log-level", "error"]);
        command.args(arguments);
        command
    }

    /// What a command says in the image.
    fn says(&self, words: &[&str]) -> String {
        let run = ["run", "--rm", "--network", "none", "--entrypoint", ""];
        let limits = [
            "--ulimit",
            "nofile=1024:1024",
            "--ulimit",
            "nproc=1000:1000",
        ];
        must(self.command(&[&run[..], &limits, &[IMAGE], words].concat()))
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        // Layers may have files that only podman may remove.
        let _ = self.command(&["rmi", "--all", "--force"]).output();
    }
}

const BASE: &str = "localhost/base:test";
const IMAGE: &str = "localhost/memlane:test";

/// An archive of Debian's smallest system, made once. `None`: it cannot be made here.
fn base() -> Option<PathBuf> {
    let about = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = about
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="))?;
    let file = cluster::folder().join(format!("{name}.tar"));
    if !file.is_file() {
        let new = file.with_extension("new.tar");
        let mut make = Command::new("mmdebstrap");
        make.args(["--variant=apt", "--mode=root", name]).arg(&new);
        if !make.output().ok()?.status.success() {
            return None;
        }
        std::fs::rename(new, &file).expect("in place");
    }
    Some(file)
}

#[test]
fn the_image_is_built_and_has_the_programs_that_lanes_and_volumes_need() {
    let test = "the image";
    if !cluster::has(test, &["kubectl"]) || !all_are_built(test) {
        return;
    }
    let missing = ["podman", "mmdebstrap"].into_iter().find(|name| !has(name));
    if let Some(name) = missing {
        skip(test, &format!("no {name}: ./dev test-cluster installs it"));
        return;
    }
    if !is_root() {
        return skip(test, "not root");
    }
    let Some(base) = base() else {
        skip(test, "no base can be made of Debian's packages here");
        return;
    };
    let dir = TempDir::new("image-built");
    let context = context(dir.path());
    let podman = Podman {
        dir: TempDir::new("image-podman"),
    };
    must(podman.command(&["import", &base.display().to_string(), BASE]));
    let recipe = source().join("packaging/kubernetes/Containerfile");
    let mut build = podman.command(&["build", "--network", "host", "--tag", IMAGE]);
    build.args(["--build-arg", &format!("BASE={BASE}")]);
    must({
        build.arg("--file").arg(recipe).arg(context);
        build
    });
    for (words, start) in [
        (&["/usr/bin/memlane", "--version"][..], "memlane "),
        (
            &["/usr/bin/memlane", "webhook", "--version"],
            "memlane-webhook ",
        ),
        (&["/usr/bin/memlane", "csi", "--version"], "memlane-csi "),
    ] {
        let said = podman.says(words);
        assert!(said.starts_with(start), "{words:?}: {said}");
    }
    let missing = "for tool in \"$@\"; do command -v \"$tool\" >/dev/null || echo \"$tool\"; done";
    let missing = podman.says(&[&["sh", "-c", missing, "sh"][..], &TOOLS].concat());
    assert_eq!(missing, "", "not in the image");
}

/// What the plugin and the chart run.
const TOOLS: [&str; 16] = [
    "sh",
    "install",
    "mount",
    "umount",
    "nsenter",
    "blkid",
    "losetup",
    "mkfs.ext4",
    "fsck.ext4",
    "dumpe2fs",
    "resize2fs",
    "mkfs.xfs",
    "xfs_growfs",
    "xfs_repair",
    "lvm",
    "mdadm",
];
