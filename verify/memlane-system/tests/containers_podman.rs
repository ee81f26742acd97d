//! Real containers: podman with runc, its bridge and its published ports. The lane opens between them, by the same device that
//! `memlane agent install` writes.
//!
//! Needs podman, runc, netavark, iptables, redis and root.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use memlane_system::blocks::{has, skip};
use memlane_system::containers::Agent;
use memlane_system::harness::{Built, TempDir, is_root, plain_only};

/// As an administrator would write it; limits that may be raised nowhere are those of the test machine.
const CONFIGURATION: &str = r#"
[network]
network_backend = "netavark"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "none"
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1000:1000"]
"#;

/// podman with a configuration of its own, a root file system with redis, and an agent.
struct Engine {
    dir: TempDir,
    agent: Agent,
    device: PathBuf,
    name: String,
}

impl Engine {
    /// `None`, and a word on standard error, where it cannot be.
    fn start(test: &'static str) -> Option<Engine> {
        if plain_only() {
            return None;
        }
        let needed = [
            "podman",
            "runc",
            "redis-server",
            "redis-benchmark",
            "iptables",
            "ldd",
        ];
        if let Some(missing) = needed.into_iter().find(|name| !has(name)) {
            skip(test, &format!("no {missing}: ./dev install-tools"));
            return None;
        }
        if !is_root() {
            skip(test, "not root");
            return None;
        }
        let agent = Agent::start(test).map_err(|why| skip(test, &why)).ok()?;
        let dir = TempDir::new(test);
        std::fs::write(dir.path().join("containers.conf"), CONFIGURATION).expect("written");
        let name = format!("memlane-test-{}-{test}", std::process::id());
        let mut engine = Engine {
            device: PathBuf::from(format!("/etc/cdi/{name}.json")),
            dir,
            agent,
            name,
        };
        engine.make_root();
        engine.make_device();
        let probe = engine.podman(&[
            "run",
            "--rm",
            "--rootfs",
            &engine.root(),
            "/bin/redis-cli",
            "--version",
        ]);
        match probe {
            Ok(_) => Some(engine),
            Err(why) => {
                eprintln!("SKIPPED {test}: podman runs no container here: {why}");
                None
            }
        }
    }

    fn root(&self) -> String {
        self.dir.path().join("root").display().to_string()
    }

    /// redis and the libraries that it wants; nothing else is in the image.
    fn make_root(&self) {
        let root = self.dir.path().join("root");
        for folder in ["bin", "tmp", "etc", "proc", "sys", "dev", "run", "opt"] {
            std::fs::create_dir_all(root.join(folder)).expect("a folder");
        }
        // Where the device is mounted: root of a user namespace may not make folders here.
        let domain = self.agent.directory();
        for mounted_at in ["opt/memlane", &domain[1..]] {
            std::fs::create_dir_all(root.join(mounted_at)).expect("a folder");
        }
        for folder in [
            self.dir.path(),
            Path::new(&domain).parent().expect("a folder"),
        ] {
            let readable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(folder, readable).expect("ours");
        }
        for program in ["redis-server", "redis-benchmark", "redis-cli"] {
            let path = found(program);
            copy(&path, &root.join("bin").join(program));
            let said = Command::new("ldd").arg(&path).output().expect("ldd");
            let said = String::from_utf8_lossy(&said.stdout).into_owned();
            for library in said.split_whitespace().filter(|word| word.starts_with('/')) {
                copy(Path::new(library), &root.join(&library[1..]));
            }
        }
    }

    /// The device that `memlane agent install` writes, by a name of the test's.
    fn make_device(&mut self) {
        let destdir = self.dir.path().join("host");
        let built = Built::find();
        let done = Command::new(built.memlane.expect("`cargo build --release` first"))
            .args([
                "agent",
                "install",
                "--domain",
                &self.agent.directory(),
                "--destdir",
            ])
            .arg(&destdir)
            .env("MEMLANE_PRELOAD", &built.preload)
            .status();
        assert!(done.is_ok_and(|status| status.success()));
        let spec = std::fs::read_to_string(destdir.join("etc/cdi/memlane.json")).expect("a device");
        let tree = destdir.join("var/lib/memlane/inject").display().to_string();
        let spec = spec
            .replace("memlane.dev/lane", &format!("memlane.dev/{}", self.name))
            .replace("/var/lib/memlane/inject", &tree);
        std::fs::create_dir_all("/etc/cdi").expect("a folder");
        std::fs::write(&self.device, spec).expect("written");
    }

    fn podman(&self, args: &[&str]) -> Result<String, String> {
        let done = Command::new("podman")
            .args(args)
            .env("CONTAINERS_CONF", self.dir.path().join("containers.conf"))
            .output()
            .map_err(|e| e.to_string())?;
        match done.status.success() {
            true => Ok(String::from_utf8_lossy(&done.stdout).trim().to_owned()),
            false => Err(String::from_utf8_lossy(&done.stderr).into_owned()),
        }
    }

    /// redis in a container, with more options of podman.
    fn server(&self, options: &[&str]) -> Server<'_> {
        let (device, root) = (format!("memlane.dev/{}=on", self.name), self.root());
        let args = [
            &["run", "--detach", "--name", &self.name, "--device", &device],
            options,
            &[
                "--rootfs",
                &root,
                "/bin/redis-server",
                "--protected-mode",
                "no",
                "--save",
                "",
            ],
        ]
        .concat();
        self.podman(&args).expect("a container");
        Server(self)
    }

    /// redis-benchmark in another container, until its lanes are open: how many of its connections got one.
    fn talks(&self, options: &[&str], to: &str, port: &str) -> u64 {
        let (device, root) = (format!("memlane.dev/{}=on", self.name), self.root());
        let (variable, name) = ("MEMLANE_STATS_ON_EXIT=1", format!("{}-client", self.name));
        let args = [
            &[
                "run", "--rm", "--name", &name, "--device", &device, "--env", variable,
            ],
            options,
            &["--rootfs", &root, "/bin/redis-benchmark"],
            &[
                "-h", to, "-p", port, "-t", "get", "-n", "40000", "-c", "4", "-q",
            ],
        ]
        .concat();
        let done = Command::new("podman")
            .args(&args)
            .env("CONTAINERS_CONF", self.dir.path().join("containers.conf"))
            .output()
            .expect("podman");
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.success(), "{said}");
        eprintln!("{said}");
        upgraded(&said)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.device);
    }
}

struct Server<'a>(&'a Engine);

impl Server<'_> {
    fn address(&self) -> String {
        let format = "{{.NetworkSettings.IPAddress}}";
        let address = self
            .0
            .podman(&["inspect", "--format", format, &self.0.name]);
        address.expect("an address")
    }

    fn gateway(&self) -> String {
        let format = "{{.NetworkSettings.Gateway}}";
        let address = self
            .0
            .podman(&["inspect", "--format", format, &self.0.name]);
        address.expect("an address")
    }

    fn is_up(&self) {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            let said = self
                .0
                .podman(&["exec", &self.0.name, "/bin/redis-cli", "ping"]);
            if said.as_deref() == Ok("PONG") {
                return;
            }
            assert!(Instant::now() < end, "{said:?}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        let _ = self
            .0
            .podman(&["rm", "--force", "--time", "0", &self.0.name]);
    }
}

/// What the summary says that a program writes at its end: "memlane: pid 1: 5 connections, 4 upgraded, …".
fn upgraded(said: &str) -> u64 {
    let line = said.lines().find(|line| line.starts_with("memlane: pid"));
    let line = line.unwrap_or_else(|| panic!("no summary: {said}"));
    let words: Vec<&str> = line.split_whitespace().collect();
    let at = words.iter().position(|word| word.starts_with("upgraded"));
    let number = at.and_then(|at| words.get(at - 1)?.parse().ok());
    number.unwrap_or_else(|| panic!("{line}"))
}

fn found(program: &str) -> PathBuf {
    let said = Command::new("sh")
        .args(["-c", &format!("command -v {program}")])
        .output();
    let said = said.expect("sh").stdout;
    PathBuf::from(String::from_utf8_lossy(&said).trim())
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to.parent().expect("a folder")).expect("a folder");
    std::fs::copy(from, to).expect("copied");
}

#[test]
fn two_containers_on_a_bridge_get_lanes() {
    let Some(engine) = Engine::start("bridge") else {
        return;
    };
    let server = engine.server(&[]);
    server.is_up();
    assert!(engine.talks(&[], &server.address(), "6379") >= 4);
}

#[test]
fn behind_a_published_port_two_containers_get_lanes() {
    let Some(engine) = Engine::start("published") else {
        return;
    };
    let port = (20_000 + std::process::id() % 20_000).to_string();
    let server = engine.server(&["--publish", &format!("{port}:6379")]);
    server.is_up();
    assert!(engine.talks(&[], &server.gateway(), &port) >= 4);
}

#[test]
fn restricted_containers_of_two_users_get_lanes() {
    let Some(engine) = Engine::start("restricted") else {
        return;
    };
    let restricted = |user| {
        [
            "--user",
            user,
            "--read-only",
            "--cap-drop",
            "all",
            "--security-opt",
            "no-new-privileges",
        ]
    };
    let server = engine.server(&restricted("1001"));
    server.is_up();
    let got = engine.talks(&restricted("1002"), &server.address(), "6379");
    assert!(got >= 4);
}

#[test]
fn two_containers_that_share_a_network_get_lanes_without_an_agent() {
    let Some(mut engine) = Engine::start("shared") else {
        return;
    };
    engine.agent.kill();
    let server = engine.server(&[]);
    server.is_up();
    let network = format!("container:{}", engine.name);
    assert!(engine.talks(&["--network", &network], "127.0.0.1", "6379") >= 4);
}

#[test]
fn two_containers_in_user_namespaces_of_their_own_get_lanes() {
    let Some(engine) = Engine::start("users") else {
        return;
    };
    // The engine, which is root, has made the user namespaces that own their networks.
    let mapped = ["--uidmap", "0:100000:5000", "--gidmap", "0:100000:5000"];
    let server = engine.server(&mapped);
    server.is_up();
    let other = ["--uidmap", "0:200000:5000", "--gidmap", "0:200000:5000"];
    assert!(engine.talks(&other, &server.address(), "6379") >= 4);
}
