//! `memlane-csi` with a server of its own, as tests of the plugin want it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::blocks::{has, memlane, must, skip};
use crate::cluster;
use crate::harness::{Running, TempDir, find_csi, is_root, run};

const LIMIT: Duration = Duration::from_secs(20);

/// What keeps volumes from being mapped and mounted on this machine; `None`: nothing.
pub fn missing() -> Option<String> {
    if !is_root() {
        return Some("not root".into());
    }
    for needed in ["/dev/fuse", "/dev/loop-control"] {
        if !Path::new(needed).exists() {
            return Some(format!("no {needed}"));
        }
    }
    for program in [
        "mkfs.ext4",
        "blkid",
        "mount",
        "umount",
        "fsck.ext4",
        "resize2fs",
    ] {
        if !has(program) {
            return Some(format!("no {program}"));
        }
    }
    None
}

/// The program csi-sanity, which is built if Go is here.
///
/// # Panics
/// If it cannot be built.
pub fn sanity() -> Option<PathBuf> {
    static BUILT: Once = Once::new();
    if !(has("go") || Path::new("/usr/local/go/bin/go").exists()) {
        skip("csi-sanity", "no go");
        return None;
    }
    BUILT.call_once(|| {
        let mut build = Command::new("sh");
        build.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("cluster/build.sh"));
        build.arg(cluster::folder()).arg("sanity");
        must(build);
    });
    Some(cluster::program("csi-sanity"))
}

/// A server and, at `csi.sock` in a temporary folder, a plugin that is controller and node. Both end with the value.
#[derive(Debug)]
pub struct Plugin {
    label: String,
    store: String,
    dir: TempDir,
    server: Option<Running>,
    plugin: Option<Running>,
    more: Vec<String>,
}

impl Plugin {
    /// Starts both. `label` names the server and the node, so no two tests may share it.
    ///
    /// # Panics
    /// If one of them does not start.
    pub fn start(label: &str, more: &[&str]) -> Plugin {
        let dir = TempDir::new(label);
        std::fs::create_dir(dir.path().join("root")).expect("a folder");
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let mut all = Plugin {
            store: format!("s{}-{number}", std::process::id()),
            label: format!("{label}-{}", std::process::id()),
            dir,
            server: None,
            plugin: None,
            more: more.iter().map(|word| (*word).to_owned()).collect(),
        };
        all.serve();
        all.plug_in();
        all
    }

    /// Its folder: `root` is the store's, `csi.sock` the plugin's socket.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The node's identifier.
    pub fn node(&self) -> &str {
        "n1"
    }

    fn root(&self) -> PathBuf {
        self.dir().join("root")
    }

    fn session(&self) -> String {
        format!("{}@{}", self.node(), self.store())
    }

    /// The store's name. Sessions are named after it, so each has another one.
    pub fn store(&self) -> &str {
        &self.store
    }

    /// Starts the server, after [`kill_server`](Plugin::kill_server).
    ///
    /// # Panics
    /// If it does not start.
    pub fn serve(&mut self) {
        let mut command = Command::new(memlane());
        command
            .args([
                "serve",
                "--namespace",
                "nodes/%SESSNAME%",
                "--name",
                &self.label,
            ])
            .args(["--listen", &format!("local:{}", self.label), "--root"])
            .arg(self.root());
        let mut server = Running::start(command);
        server.wait_until_said("serving", 1);
        self.server = Some(server);
    }

    /// Kills the server.
    pub fn kill_server(&mut self) {
        if let Some(server) = self.server.take() {
            server.signal("KILL");
        }
    }

    /// Starts the plugin, after [`kill`](Plugin::kill).
    ///
    /// # Panics
    /// If it does not start.
    pub fn plug_in(&mut self) {
        let mut plugin = Running::start(self.command());
        plugin.wait_until_said("listening", 1);
        self.plugin = Some(plugin);
    }

    /// The command of the plugin.
    pub fn command(&self) -> Command {
        let mut command = Command::new(find_csi());
        command
            .arg("single")
            .arg("--endpoint")
            .arg(self.dir().join("csi.sock"))
            .arg("--memlane")
            .arg(memlane())
            .args(["--serves", &format!("local:{}", self.label)])
            .args(["--server", &self.label, "--node-id", self.node()])
            .args(["--store-name", self.store()])
            .args(&self.more)
            .arg("--root")
            .arg(self.root());
        command
    }

    /// Kills the plugin.
    pub fn kill(&mut self) {
        if let Some(plugin) = self.plugin.take() {
            plugin.signal("KILL");
            let _ = plugin.finish(LIMIT);
        }
    }

    /// What the plugin has written to standard error.
    pub fn stderr(&self) -> String {
        self.plugin
            .as_ref()
            .map(Running::stderr)
            .unwrap_or_default()
    }

    /// Nothing is mounted, mapped or left in the store.
    ///
    /// # Panics
    /// If something is.
    pub fn must_be_clean(&self) {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("the mounts");
        let ours = self.dir().display().to_string();
        let left: Vec<&str> = mounts.lines().filter(|line| line.contains(&ours)).collect();
        assert!(left.is_empty(), "mounted: {left:?}");
        let mut list = Command::new(memlane());
        list.args(["vol", "ls", "--json"]);
        let mapped = run(list, LIMIT).stdout;
        assert!(
            !mapped.contains(&format!("\"{}\"", self.session())),
            "{mapped}"
        );
        for folder in ["volumes", "snapshots", "making", "gone"] {
            assert_eq!(
                names(&self.root().join(folder)),
                Vec::<String>::new(),
                "{folder}"
            );
        }
        let nodes = self.root().join("nodes");
        for node in names(&nodes) {
            assert_eq!(names(&nodes.join(&node)), Vec::<String>::new(), "{node}");
        }
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        self.kill();
        // What a failed test has left mounted and mapped.
        let ours = self.dir().display().to_string();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
        for point in points.filter(|point| point.starts_with(&ours)) {
            let _ = Command::new("umount").args(["-l", point]).status();
        }
        let mut show = Command::new(memlane());
        show.args(["session", "show", "--json", &self.session()]);
        let shown = run(show, LIMIT).stdout;
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap_or_default();
        for volume in shown["volumes"].as_array().into_iter().flatten() {
            let mut unmap = Command::new(memlane());
            let name = volume["volume"].as_str().unwrap_or_default();
            unmap.args([
                "vol",
                "unmap",
                "--force",
                "--session",
                &self.session(),
                name,
            ]);
            run(unmap, LIMIT);
        }
        self.kill_server();
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.collect()
}
