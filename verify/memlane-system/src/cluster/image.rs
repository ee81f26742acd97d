//! Images for a node without a registry: an archive, as `docker save` writes it, of a folder.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::blocks::must;

/// What is said of an image beside its files.
#[derive(Clone, Copy, Debug, Default)]
pub struct Image<'a> {
    /// Its name, with a registry's and a tag: `localhost/redis:test`.
    pub name: &'a str,
    /// What it sets, as `NAME=value`; `PATH` is `/bin`, unless it is set here.
    pub environment: &'a [&'a str],
    /// What runs if a pod names no command; its arguments come behind.
    pub command: &'a [&'a str],
}

/// Packs the folder `root` as an image; the archive, in the folder `into`.
///
/// # Panics
/// If tar fails or there is no room.
pub(super) fn archive(root: &Path, image: Image<'_>, into: &Path) -> PathBuf {
    let work = into.join("image");
    std::fs::create_dir_all(&work).expect("a folder");
    let layer = work.join("layer.tar");
    let mut packed = Command::new("tar");
    packed.arg("-C").arg(root).arg("-cf").arg(&layer).arg(".");
    must(packed);
    let digest = sha256(&layer);
    let environment = [&["PATH=/bin"], image.environment].concat();
    let config = json!({
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": environment, "Entrypoint": image.command},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]},
    });
    let manifest =
        json!([{"Config": "config.json", "RepoTags": [image.name], "Layers": ["layer.tar"]}]);
    for (file, content) in [("config.json", config), ("manifest.json", manifest)] {
        std::fs::write(work.join(file), content.to_string()).expect("written");
    }
    let file = image
        .name
        .rsplit('/')
        .next()
        .expect("a name")
        .replace(':', "-");
    let archive = into.join(format!("{file}.tar"));
    let mut packed = Command::new("tar");
    packed.arg("-C").arg(&work).arg("-cf").arg(&archive);
    packed.args(["manifest.json", "config.json", "layer.tar"]);
    must(packed);
    std::fs::remove_dir_all(&work).expect("ours");
    archive
}

fn sha256(file: &Path) -> String {
    let mut command = Command::new("sha256sum");
    command.arg(file);
    let said = must(command);
    said.split_whitespace().next().expect("a sum").to_owned()
}
