//! Which container a process is in, by the name that its engine gave it.
//!
//! The container's id is in the path of the process's control group, which every engine makes for each container. Its name is
//! in the engine's own files, which usually only root may read; without them, the name is the beginning of the id.
//! A process in no container may be in a network namespace with a name (`ip netns`); that name serves as well.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::printable::printable;
use crate::processes::pids;

/// Characters of an id that are shown where there is no name, as engines show it.
const SHORT: usize = 12;
/// Characters of an id of docker, podman, containerd and CRI-O.
const ID: usize = 64;
/// Longest file of an engine that is read, in bytes.
const LONGEST: u64 = 1 << 20;

/// A container, or a network namespace with a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Container {
    /// What made it: `docker`, `podman`, `containerd`, `cri-o`, `kubernetes`, `lxc`, `nspawn`, `container` if only the form of
    /// its id is known, or `netns`.
    pub engine: &'static str,
    /// Its id; of a network namespace, the inode.
    pub id: String,
    /// Its name, printable. In a pod: `NAMESPACE/POD/CONTAINER`.
    pub name: String,
}

/// Finds containers, and remembers what it has found.
#[derive(Debug)]
pub struct Containers {
    root: PathBuf,
    /// The one that this program is in.
    own: Option<Container>,
    names: HashMap<String, String>,
    /// Ids and names of podman's containers, from the command lines of those monitors that are believed.
    monitored: Option<HashMap<String, String>>,
    /// Inodes and names of network namespaces.
    networks: Option<HashMap<u64, String>>,
}

impl Default for Containers {
    fn default() -> Containers {
        let mut containers = Containers::below(Path::new("/"));
        containers.own = containers.of(std::process::id());
        containers
    }
}

impl Containers {
    /// Reads the files of engines below `root`.
    fn below(root: &Path) -> Containers {
        Containers {
            root: root.to_owned(),
            own: None,
            names: HashMap::new(),
            monitored: None,
            networks: None,
        }
    }

    /// The container of process `pid`. `None`: it is in none, or in the same as this program, or this program may not see it.
    pub fn of(&mut self, pid: u32) -> Option<Container> {
        let groups = fs::read(format!("/proc/{pid}/cgroup")).ok()?;
        let groups = String::from_utf8_lossy(&groups);
        let found = match groups.lines().find_map(in_group) {
            Some((engine, id)) => Some(self.named(engine, id)),
            None => self.network_of(pid),
        };
        found.filter(|found| Some(found) != self.own.as_ref())
    }

    fn named(&mut self, engine: &'static str, id: String) -> Container {
        if let Some(name) = self.names.get(&id) {
            let name = name.clone();
            return Container { engine, id, name };
        }
        let told = match engine {
            "lxc" | "nspawn" => Some(id.clone()),
            _ => self
                .told_by_docker(&id)
                .or_else(|| self.told_by_containerd(&id))
                .or_else(|| self.monitored().get(&id).cloned()),
        };
        let name = told.unwrap_or_else(|| id.chars().take(SHORT).collect());
        let name = printable(name.as_bytes());
        self.names.insert(id.clone(), name.clone());
        Container { engine, id, name }
    }

    fn told_by_docker(&self, id: &str) -> Option<String> {
        #[derive(Deserialize)]
        struct Config {
            #[serde(rename = "Name")]
            name: String,
        }
        let file = format!("var/lib/docker/containers/{id}/config.v2.json");
        let config: Config = parsed(&self.root.join(file))?;
        Some(config.name.trim_start_matches('/').to_owned()).filter(|name| !name.is_empty())
    }

    /// The annotations that containerd's CRI plugin gives to a container of a pod.
    fn told_by_containerd(&self, id: &str) -> Option<String> {
        #[derive(Deserialize)]
        struct Config {
            annotations: HashMap<String, String>,
        }
        let tasks = self
            .root
            .join("run/containerd/io.containerd.runtime.v2.task");
        let of_a_namespace = |namespace: fs::DirEntry| {
            let config: Config = parsed(&namespace.path().join(id).join("config.json"))?;
            let told = |what: &str| config.annotations.get(&format!("io.kubernetes.cri.{what}"));
            let pod = [told("sandbox-namespace")?, told("sandbox-name")?];
            let whole = pod.into_iter().chain(told("container-name"));
            Some(whole.map(String::as_str).collect::<Vec<_>>().join("/"))
        };
        fs::read_dir(tasks).ok()?.flatten().find_map(of_a_namespace)
    }

    fn monitored(&mut self) -> &HashMap<String, String> {
        self.monitored.get_or_insert_with(|| {
            let command = |pid| fs::read(format!("/proc/{pid}/cmdline")).ok();
            let all = pids().unwrap_or_default().into_iter();
            let believed = all.filter(|&pid| is_believed(pid));
            let monitored = believed.filter_map(|pid| monitors(&command(pid)?));
            monitored.collect()
        })
    }

    fn network_of(&mut self, pid: u32) -> Option<Container> {
        let root = &self.root;
        let named = self.networks.get_or_insert_with(|| {
            let names = fs::read_dir(root.join("run/netns")).into_iter().flatten();
            let inode = |name: fs::DirEntry| {
                let inode = fs::metadata(name.path()).ok()?.ino();
                Some((inode, printable(name.file_name().as_encoded_bytes())))
            };
            names.flatten().filter_map(inode).collect()
        });
        if named.is_empty() {
            return None;
        }
        let inode = fs::metadata(format!("/proc/{pid}/ns/net")).ok()?.ino();
        let name = named.get(&inode)?.clone();
        Some(Container {
            engine: "netns",
            id: inode.to_string(),
            name,
        })
    }
}

/// A JSON file of an engine.
fn parsed<T: for<'a> Deserialize<'a>>(file: &Path) -> Option<T> {
    let short = fs::metadata(file).is_ok_and(|file| file.is_file() && file.len() <= LONGEST);
    let text = short.then(|| fs::read(file).ok())??;
    serde_json::from_slice(&text).ok()
}

/// The engine and the id in a line of `/proc/PID/cgroup`, `NUMBER:CONTROLLERS:PATH`.
fn in_group(line: &str) -> Option<(&'static str, String)> {
    let path = line.splitn(3, ':').nth(2)?;
    let parts: Vec<&str> = path.split('/').collect();
    let with_parent = |i: usize| in_part(parts[i], i.checked_sub(1).map_or("", |up| parts[up]));
    let (engine, id) = (0..parts.len()).rev().find_map(with_parent)?;
    match engine {
        "container" if path.contains("/kubepods") => Some(("kubernetes", id)),
        _ => Some((engine, id)),
    }
}

/// The engine and the id in one part of a control group's path.
fn in_part(part: &str, parent: &str) -> Option<(&'static str, String)> {
    let (name, is_scope) = match part.strip_suffix(".scope") {
        Some(name) => (name, true),
        None => (part.strip_suffix(".service").unwrap_or(part), false),
    };
    if let Some(machine) = name.strip_prefix("systemd-nspawn@") {
        return Some(("nspawn", machine.to_owned()));
    }
    if let Some(machine) = name.strip_prefix("machine-").filter(|_| is_scope) {
        return Some(("nspawn", machine.replace("\\x2d", "-")));
    }
    if let Some(container) = name.strip_prefix("lxc.payload.") {
        return Some(("lxc", container.to_owned()));
    }
    if parent == "lxc" && !name.is_empty() {
        return Some(("lxc", name.to_owned()));
    }
    let (before, id) = name.split_at_checked(name.len().checked_sub(ID)?)?;
    if !id.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let engine = match (before, parent) {
        ("docker-", _) | ("", "docker") => "docker",
        ("libpod-", _) | ("", "libpod_parent") => "podman",
        ("cri-containerd-", _) => "containerd",
        ("crio-", _) => "cri-o",
        ("", _) => "container",
        // libpod-conmon-ID and the like: who watches a container is not in it.
        _ => return None,
    };
    Some((engine, id.to_owned()))
}

/// May process `pid` name containers? Any user can start a program by the name of `conmon`, so only processes of root and of
/// this program's own user may.
fn is_believed(pid: u32) -> bool {
    let status = fs::read(format!("/proc/{pid}/status")).unwrap_or_default();
    let own = rustix::process::geteuid().as_raw();
    has_only_ids(&String::from_utf8_lossy(&status), &[0, own])
}

/// Are all user ids in a `/proc/PID/status` (real, effective, saved, of the file system) among these? The effective one alone
/// says too little: any user can start a program that has root's setuid bit, with any command line.
fn has_only_ids(status: &str, these: &[u32]) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let is_one = |id: &str| id.parse().is_ok_and(|id| these.contains(&id));
    line.is_some_and(|ids| ids.split_whitespace().all(is_one))
}

/// The id and the name of the container that a process with this command line watches, if it is podman's `conmon`.
fn monitors(command: &[u8]) -> Option<(String, String)> {
    let words: Vec<&[u8]> = command.split(|byte| *byte == 0).collect();
    let program = words.first()?.rsplit(|byte| *byte == b'/').next()?;
    let after = |flag: &[u8]| {
        let at = words.iter().position(|word| *word == flag)?;
        Some(String::from_utf8_lossy(words.get(at + 1)?).into_owned())
    };
    (program == b"conmon").then_some(())?;
    Some((after(b"-c")?, after(b"-n")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn found(path: &str) -> Option<(&'static str, String)> {
        in_group(&format!("0::{}", path.replace("ID", HEX)))
    }

    #[test]
    fn every_engine_s_control_group_is_known() {
        let of = |engine| Some((engine, HEX.to_owned()));
        for (path, expected) in [
            ("/system.slice/docker-ID.scope", of("docker")),
            ("/docker/ID", of("docker")),
            ("/docker/ID/a/program/s/own", of("docker")),
            ("/machine.slice/libpod-ID.scope/container", of("podman")),
            ("/libpod_parent/libpod-ID", of("podman")),
            ("/libpod_parent/libpod-conmon-ID", None),
            (
                "/kubepods.slice/kubepods-pod1.slice/cri-containerd-ID.scope",
                of("containerd"),
            ),
            ("/kubepods/burstable/pod1-2/ID", of("kubernetes")),
            (
                "/kubepods.slice/kubepods-pod1.slice/crio-ID.scope",
                of("cri-o"),
            ),
            ("/elsewhere/ID", of("container")),
            ("/lxc/web", Some(("lxc", "web".into()))),
            (
                "/lxc.payload.web/system.slice/x.service",
                Some(("lxc", "web".into())),
            ),
            (
                "/machine.slice/systemd-nspawn@web.service/payload/init.scope",
                Some(("nspawn", "web".into())),
            ),
            (
                "/machine.slice/machine-web\\x2d1.scope",
                Some(("nspawn", "web-1".into())),
            ),
            ("/", None),
            ("/../../x", None),
            ("/user.slice/user-1000.slice/session-4.scope", None),
            ("/system.slice/nginx.service", None),
        ] {
            assert_eq!(found(path), expected, "{path}");
        }
        assert_eq!(in_group("no colons"), None);
    }

    #[test]
    fn names_come_from_the_files_of_the_engines() {
        let dir = std::env::temp_dir().join(format!("memlane-containers-{}", std::process::id()));
        let put = |path: &str, text: &str| {
            let file = dir.join(path.replace("ID", HEX));
            fs::create_dir_all(file.parent().expect("a folder")).expect("made");
            fs::write(file, text).expect("written");
        };
        let named = |engine| Containers::below(&dir).named(engine, HEX.to_owned()).name;
        assert_eq!(named("docker"), HEX[..SHORT]);
        put("var/lib/docker/containers/ID/config.v2.json", "{");
        assert_eq!(named("docker"), HEX[..SHORT]);
        put(
            "run/containerd/io.containerd.runtime.v2.task/k8s.io/ID/config.json",
            r#"{"annotations":{"io.kubernetes.cri.sandbox-namespace":"shop",
                "io.kubernetes.cri.sandbox-name":"cache-0","io.kubernetes.cri.container-name":"redis"}}"#,
        );
        assert_eq!(named("kubernetes"), "shop/cache-0/redis");
        put(
            "var/lib/docker/containers/ID/config.v2.json",
            r#"{"ID":"x","Name":"/ca\u001bche"}"#,
        );
        assert_eq!(named("docker"), "ca?che");
        fs::remove_dir_all(dir).expect("ours");
    }

    #[test]
    fn podman_s_monitor_knows_the_name() {
        let command = b"/usr/bin/conmon\0--api-version\x001\0-c\0abc\0-u\0abc\0-r\0/usr/sbin/runc\0-n\0cache\0";
        assert_eq!(monitors(command), Some(("abc".into(), "cache".into())));
        assert_eq!(monitors(b"/bin/sh\0-c\0abc\0-n\0cache\0"), None);
        assert_eq!(monitors(b"/usr/bin/conmon\0-c\0abc\0"), None);
        assert_eq!(monitors(b""), None);
    }

    #[test]
    fn all_four_ids_of_a_monitor_must_be_believed() {
        let ids =
            |ids: &str| has_only_ids(&format!("Name:\tconmon\nUid:\t{ids}\nGid:\t7\n"), &[0, 7]);
        assert!(ids("0\t0\t0\t0"));
        assert!(ids("7\t7\t7\t7"));
        assert!(!ids("8\t8\t8\t8"));
        assert!(!ids("8\t0\t0\t0"), "a program with the setuid bit");
        assert!(!has_only_ids("", &[0]), "no such process");
    }

    /// A shell that looks like the monitor of a container whose id is [`FORGED`]. Killed when dropped.
    struct Forger(std::process::Child);

    const FORGED: &str = "read forever";

    impl Forger {
        fn start(shell: &Path, user: u32) -> Forger {
            use std::os::unix::process::CommandExt as _;
            let mut command = std::process::Command::new(shell);
            command.arg0("/usr/bin/conmon");
            command.args(["-c", FORGED, "-n", "forged"]);
            command.stdin(std::process::Stdio::piped()).uid(user);
            Forger(command.spawn().expect("a shell"))
        }
    }

    impl Drop for Forger {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn is_named(id: &str) -> bool {
        Containers::below(Path::new("/"))
            .monitored()
            .contains_key(id)
    }

    #[test]
    fn another_user_s_process_names_no_container() {
        const NOBODY: u32 = 65_534;
        let shell = Path::new("/bin/sh");
        let own = rustix::process::geteuid().as_raw();
        let forger = Forger::start(shell, own);
        assert!(is_named(FORGED), "one's own is believed");
        drop(forger);
        if own != 0 {
            eprintln!("SKIPPED another_user_s_process: not root");
            return;
        }
        let _forger = Forger::start(shell, NOBODY);
        assert!(!is_named(FORGED), "another user's is not");
    }

    #[test]
    fn one_s_own_container_is_not_shown() {
        let mut containers = Containers::default();
        assert_eq!(containers.of(std::process::id()), None);
        assert_eq!(containers.of(u32::MAX), None);
    }
}
