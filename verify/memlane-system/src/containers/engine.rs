//! podman with runc, as an administrator uses it: real containers with redis in them, the device that `memlane agent install`
//! writes, and an agent.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::blocks::has;
use crate::containers::Agent;
use crate::containers::root::{Root, copy, found};
use crate::harness::{Built, TempDir, is_root};
use crate::musl;

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

/// Programs that it needs, and those that are put into the containers.
const NEEDED: [&str; 6] = [
    "podman",
    "runc",
    "redis-server",
    "redis-benchmark",
    "iptables",
    "ldd",
];
const INSIDE: [&str; 3] = ["redis-server", "redis-benchmark", "redis-cli"];

/// Whether a container has the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lane {
    /// It has: its programs run with the library.
    On,
    /// It has not.
    Off,
}

/// podman with a configuration of its own, a root file system with redis, and an agent.
#[derive(Debug)]
pub struct Engine {
    dir: TempDir,
    agent: Agent,
    device: PathBuf,
    name: String,
}

impl Engine {
    /// Sets one up; its containers' names begin with `label`. `Err` says why there can be none here.
    ///
    /// # Errors
    /// If a program is missing, this is not root, or a first container does not run.
    ///
    /// # Panics
    /// If its files cannot be written.
    pub fn start(label: &str) -> Result<Engine, String> {
        if let Some(missing) = NEEDED.into_iter().find(|name| !has(name)) {
            return Err(format!("no {missing}: ./dev install-tools"));
        }
        if !is_root() {
            return Err("not root".to_owned());
        }
        let agent = Agent::start(label)?;
        let dir = TempDir::new(label);
        std::fs::write(dir.path().join("containers.conf"), CONFIGURATION).expect("written");
        let name = format!("{label}-{}", std::process::id());
        let mut engine = Engine {
            device: PathBuf::from(format!("/etc/cdi/memlane-{name}.json")),
            dir,
            agent,
            name,
        };
        engine.make_root();
        engine.make_device();
        let root = engine.root();
        let probe = [
            "run",
            "--rm",
            "--rootfs",
            &root,
            "/bin/redis-cli",
            "--version",
        ];
        match engine.podman(&probe) {
            Ok(_) => Ok(engine),
            Err(why) => Err(format!("podman runs no container here: {why}")),
        }
    }

    /// What the names of its containers begin with.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its agent.
    pub fn agent(&mut self) -> &mut Agent {
        &mut self.agent
    }

    /// The directory that is the containers' root.
    pub fn root(&self) -> String {
        self.dir.path().join("root").display().to_string()
    }

    /// redis, and the libraries that it and the agent want; nothing else is in the image.
    fn make_root(&self) {
        let root = self.image_root();
        // Where the device is mounted: root of a user namespace may not make folders here.
        let domain = self.agent.directory();
        for mounted_at in ["opt/memlane", &domain[1..]] {
            root.folder(mounted_at);
        }
        for folder in [
            self.dir.path(),
            Path::new(&domain).parent().expect("a folder"),
        ] {
            let readable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(folder, readable).expect("ours");
        }
        for program in INSIDE {
            root.put(&found(program));
        }
        let memlane = Built::find()
            .memlane
            .expect("`cargo build --release` first");
        root.put_libraries_of(&memlane);
    }

    fn image_root(&self) -> Root {
        Root::new(&self.dir.path().join("root"))
    }

    /// Puts another program into the containers' `/bin`, and what it is linked with.
    ///
    /// # Panics
    /// If it cannot be copied.
    pub fn put(&self, program: &Path) {
        self.image_root().put(program);
    }

    /// Runs a command in another container, in the server's network and with nothing writable; what it says on either channel.
    ///
    /// # Panics
    /// If podman is not there.
    pub fn runs_beside_the_server(&self, lane: Lane, options: &[&str], command: &[&str]) -> String {
        let nothing_writable = ["--rm", "--read-only", "--read-only-tmpfs=false"];
        self.beside_the_server(lane, &[&nothing_writable, options].concat(), command)
    }

    /// Runs a command in another container, in the server's network; what podman says on either channel.
    ///
    /// # Panics
    /// If podman is not there.
    pub fn beside_the_server(&self, lane: Lane, options: &[&str], command: &[&str]) -> String {
        let (device, root) = (self.device_of(lane), self.root());
        let network = format!("--network=container:{}", self.name);
        let args = [
            &["run", "--env", "MEMLANE_STATS_ON_EXIT=1", &network],
            &device.iter().map(String::as_str).collect::<Vec<_>>()[..],
            options,
            &["--rootfs", &root],
            command,
        ];
        self.podman_all(&args.concat()).expect("podman")
    }

    /// Puts programs that are linked with musl into the containers' root, and takes glibc away. What runs goes on.
    ///
    /// # Panics
    /// If they have not been built: see [`musl::has`].
    pub fn turn_to_musl(&self) {
        let root = self.dir.path().join("root");
        for folder in ["lib", "lib64", "usr"] {
            let _ = std::fs::remove_dir_all(root.join(folder));
        }
        for program in INSIDE {
            let place = root.join("bin").join(program);
            std::fs::remove_file(&place).expect("glibc's");
            copy(&musl::program(program), &place);
        }
        let loader = format!("lib/ld-musl-{}.so.1", std::env::consts::ARCH);
        copy(&Path::new("/").join(&loader), &root.join(&loader));
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
            .output();
        assert!(done.is_ok_and(|done| done.status.success()));
        let spec = std::fs::read_to_string(destdir.join("etc/cdi/memlane.json")).expect("a device");
        let tree = self.library();
        let spec = spec
            .replace("memlane.dev/lane", &format!("memlane.dev/{}", self.name))
            .replace("/var/lib/memlane/inject", &tree);
        std::fs::create_dir_all("/etc/cdi").expect("a folder");
        std::fs::write(&self.device, spec).expect("written");
    }

    /// Where `memlane agent install` has laid out the library for containers.
    pub fn library(&self) -> String {
        let tree = self.dir.path().join("host/var/lib/memlane/inject");
        tree.display().to_string()
    }

    /// A path for a file of the test's.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Makes an image of the containers' root; its name.
    ///
    /// # Panics
    /// If tar or podman fail.
    pub fn image(&self) -> String {
        let (tar, name) = (self.file("root.tar"), format!("localhost/{}", self.name));
        let tar = tar.display().to_string();
        let packed = Command::new("tar")
            .args(["-C", &self.root(), "-cf", &tar, "."])
            .status();
        assert!(packed.is_ok_and(|status| status.success()), "tar");
        self.podman(&["import", "--quiet", &tar, &name])
            .expect("imported");
        name
    }

    /// Runs podman; what it says.
    ///
    /// # Errors
    /// What podman says on standard error.
    pub fn podman(&self, args: &[&str]) -> Result<String, String> {
        let done = self.command(args).output().map_err(|e| e.to_string())?;
        match done.status.success() {
            true => Ok(String::from_utf8_lossy(&done.stdout).trim().to_owned()),
            false => Err(String::from_utf8_lossy(&done.stderr).into_owned()),
        }
    }

    /// Runs podman; what it says on either channel.
    ///
    /// # Errors
    /// If podman cannot be run.
    pub fn podman_all(&self, args: &[&str]) -> Result<String, String> {
        let done = self.command(args).output().map_err(|e| e.to_string())?;
        let both = [done.stdout, done.stderr].concat();
        Ok(String::from_utf8_lossy(&both).into_owned())
    }

    /// What redis-benchmark in a container has said when it has ended well. One that was quicker than its server waits for
    /// ever, with memlane or without: it is started again.
    ///
    /// # Errors
    /// What it has said if it does not end well.
    pub fn said_at_the_end(&self, container: &str) -> Result<String, String> {
        let end = Instant::now() + Duration::from_secs(30);
        let mut too_early = 0;
        loop {
            let said = self.podman_all(&["logs", container])?;
            if said.contains("memlane: pid") && said.contains("GET: ") {
                return Ok(said);
            }
            if Instant::now() > end {
                return Err(said);
            }
            let refused = said.matches("Connection refused").count();
            if refused > too_early {
                too_early = refused;
                self.podman(&["restart", "--time", "0", container])?;
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("podman");
        command.args(args);
        command.env("CONTAINERS_CONF", self.dir.path().join("containers.conf"));
        command
    }

    /// redis in a container, with more options of podman; `lane`: with the device.
    ///
    /// # Panics
    /// If podman does not run it.
    pub fn server(&self, lane: Lane, options: &[&str]) -> Server<'_> {
        let (device, root) = (self.device_of(lane), self.root());
        let args = [
            &["run", "--detach", "--name", &self.name],
            &device.iter().map(String::as_str).collect::<Vec<_>>()[..],
            options,
            &["--rootfs", &root, "/bin/redis-server"],
            &["--protected-mode", "no", "--save", ""],
        ]
        .concat();
        self.podman(&args).expect("a container");
        Server(self)
    }

    /// The bridge's own address, at which the server's published ports are reached.
    ///
    /// # Panics
    /// If podman does not know: the server must run.
    pub fn gateway(&self) -> String {
        let format = "{{.NetworkSettings.Gateway}}";
        let address = self.podman(&["inspect", "--format", format, &self.name]);
        address.expect("an address")
    }

    /// The options of podman by which a container gets the device.
    fn device_of(&self, lane: Lane) -> Vec<String> {
        match lane {
            Lane::Off => Vec::new(),
            Lane::On => vec![format!("--device=memlane.dev/{}=on", self.name)],
        }
    }

    /// redis-benchmark in another container, until its lanes are open: how many of its connections got one.
    ///
    /// # Panics
    /// If it fails.
    pub fn talks(&self, options: &[&str], to: &str, port: &str) -> u64 {
        let args = [
            "-h", to, "-p", port, "-t", "get", "-n", "40000", "-c", "4", "-q",
        ];
        let client = self.client(Lane::On, options, &args);
        let done = client.wait_with_output().expect("podman");
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.success(), "{said}");
        eprintln!("{said}");
        upgraded(&said)
    }

    /// redis-benchmark with these arguments in another container, `NAME-client`, with more options of podman.
    ///
    /// # Panics
    /// If podman is not there.
    pub fn client(&self, lane: Lane, options: &[&str], args: &[&str]) -> Child {
        let (device, root) = (self.device_of(lane), self.root());
        let (variable, name) = ("MEMLANE_STATS_ON_EXIT=1", format!("{}-client", self.name));
        let args = [
            &["run", "--rm", "--name", &name, "--env", variable],
            &device.iter().map(String::as_str).collect::<Vec<_>>()[..],
            options,
            &["--rootfs", &root, "/bin/redis-benchmark"],
            args,
        ]
        .concat();
        let mut command = self.command(&args);
        let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        piped.spawn().expect("podman")
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // The image, if there is one, goes with its containers.
        let image = format!("localhost/{}", self.name);
        let _ = self.podman(&["rmi", "--force", &image]);
        let _ = std::fs::remove_file(&self.device);
    }
}

/// redis in a container, which is removed when this is dropped.
#[derive(Debug)]
pub struct Server<'a>(&'a Engine);

impl Server<'_> {
    /// Its address on the bridge.
    ///
    /// # Panics
    /// If podman does not know.
    pub fn address(&self) -> String {
        let format = "{{.NetworkSettings.IPAddress}}";
        let address = self
            .0
            .podman(&["inspect", "--format", format, &self.0.name]);
        address.expect("an address")
    }

    /// Returns when it answers.
    ///
    /// # Panics
    /// If it does not within 20 seconds.
    pub fn is_up(&self) {
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
///
/// # Panics
/// If there is none.
pub fn upgraded(said: &str) -> u64 {
    let line = said.lines().rfind(|line| line.starts_with("memlane: pid"));
    let line = line.unwrap_or_else(|| panic!("no summary: {said}"));
    let words: Vec<&str> = line.split_whitespace().collect();
    let at = words.iter().position(|word| word.starts_with("upgraded"));
    let number = at.and_then(|at| words.get(at - 1)?.parse().ok());
    number.unwrap_or_else(|| panic!("{line}"))
}
