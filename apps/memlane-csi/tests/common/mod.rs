//! A plugin with a server of its own, and calls to it.
// Each test program uses some of it.
#![allow(dead_code)]

pub(crate) mod stores;

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use memlane_csi::proto::controller_client::ControllerClient;
use memlane_csi::proto::node_client::NodeClient;
use memlane_csi::proto::volume_capability::access_mode::Mode;
use memlane_csi::proto::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use memlane_csi::proto::{
    CapacityRange, ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest,
    CreateVolumeRequest, DeleteVolumeRequest, NodePublishVolumeRequest, NodeStageVolumeRequest,
    NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest, VolumeCapability,
};
use tonic::Status;
use tonic::transport::Channel;

pub(crate) const SIZE: i64 = 64 << 20;
const LIMIT: Duration = Duration::from_secs(30);

/// A test that cannot run here says so. `./dev test` repeats it.
pub(crate) fn skip(why: &str) {
    eprintln!("SKIPPED: {why}");
}

/// What keeps volumes from being mapped and mounted here.
pub(crate) fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("not root".into());
    }
    let needed = ["/dev/fuse", "/dev/loop-control"];
    let missing = needed.iter().find(|path| !Path::new(path).exists());
    if let Some(path) = missing {
        return Some(format!("no {path}"));
    }
    let tools = ["mkfs.ext4", "fsck.ext4", "resize2fs", "blkid"];
    let missing = tools.iter().find(|tool| !has(tool));
    missing.map(|tool| format!("no {tool}"))
}

/// Whether there is such a program. With `MEMLANE_TEST_REQUIRE_ALL=1` there must be.
pub(crate) fn has(program: &str) -> bool {
    let found = Command::new("sh")
        .args(["-c", &format!("command -v {program}")])
        .stdout(Stdio::null())
        .status();
    let found = found.is_ok_and(|status| status.success());
    let required = std::env::var_os("MEMLANE_TEST_REQUIRE_ALL").is_some_and(|value| value == "1");
    assert!(found || !required, "no {program}");
    found
}

/// The `memlane` command: `MEMLANE_BIN`, or what was built, release before debug.
pub(crate) fn memlane() -> PathBuf {
    if let Some(path) = std::env::var_os("MEMLANE_BIN") {
        return PathBuf::from(path);
    }
    let own = Path::new(env!("CARGO_BIN_EXE_memlane-csi"));
    let target = own.ancestors().nth(2).expect("a target folder");
    let built = ["release", "debug"].map(|profile| target.join(profile).join("memlane"));
    let found = built.into_iter().find(|path| path.is_file());
    found.expect("memlane: run `cargo build --release -p memlane`")
}

/// A child that ends with the value.
pub(crate) struct Running(Child);

impl Running {
    pub(crate) fn start(command: &mut Command) -> Running {
        Running(command.stdin(Stdio::null()).spawn().expect("starts"))
    }

    /// Starts it, and hears its first line.
    pub(crate) fn heard(command: &mut Command) -> (Running, String) {
        let mut running = Running::start(command.stdout(Stdio::piped()));
        let stdout = running.0.stdout.as_mut().expect("a pipe");
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        (running, line.trim_end().to_owned())
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }

    pub(crate) fn end(&mut self) -> ExitStatus {
        let begin = Instant::now();
        loop {
            if let Ok(Some(status)) = self.0.try_wait() {
                return status;
            }
            assert!(begin.elapsed() < LIMIT, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A server of a folder in which each session has its own part.
pub(crate) struct Server {
    pub(crate) name: String,
    root: PathBuf,
    running: Option<Running>,
}

impl Server {
    pub(crate) fn new(name: &str, root: &Path) -> Server {
        Server {
            name: name.to_owned(),
            root: root.to_owned(),
            running: None,
        }
    }

    /// Where it listens.
    pub(crate) fn listens(&self) -> String {
        format!("local:{}", self.name)
    }

    pub(crate) fn start(&mut self) {
        let said_in = self.root.with_extension("server");
        let log = std::fs::File::create(&said_in).expect("a file");
        let mut command = Command::new(memlane());
        command
            .args(["serve", "--namespace", "nodes/%SESSNAME%"])
            .args(["--name", &self.name])
            .args(["--listen", &self.listens(), "--root"])
            .arg(&self.root)
            .stderr(log);
        self.running = Some(Running::start(&mut command));
        let begin = Instant::now();
        let said = || std::fs::read_to_string(&said_in).unwrap_or_default();
        while !said().contains("serving") {
            assert!(begin.elapsed() < LIMIT, "{}", said());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn kill(&mut self) {
        self.running = None;
    }

    /// Sends it a signal, such as `STOP`: a server that is stopped is as silent as one whose machine is.
    pub(crate) fn signal(&self, signal: &str) {
        let process = self.running.as_ref().expect("it runs").0.id().to_string();
        let sent = Command::new("kill").args(["-s", signal, &process]).status();
        assert!(sent.is_ok_and(|status| status.success()));
    }
}

/// A server, and a plugin that is controller and node.
pub(crate) struct World {
    pub(crate) label: String,
    dir: PathBuf,
    server: Server,
    /// Where the node's plugin listens, if that is one of its own.
    pub(crate) node_socket: Option<PathBuf>,
    plugin: Option<Running>,
    /// More words for the plugin.
    pub(crate) more: Vec<String>,
}

impl World {
    pub(crate) fn new(label: &str) -> World {
        let label = format!("{label}-{}", std::process::id());
        let dir = std::env::temp_dir().join(format!("memlane-csi-{label}"));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(dir.join("root")).expect("a folder");
        share(&dir);
        World {
            server: Server::new(&label, &dir.join("root")),
            label,
            dir,
            node_socket: None,
            plugin: None,
            more: Vec::new(),
        }
    }

    /// With both running.
    pub(crate) async fn start(label: &str) -> World {
        let mut world = World::new(label);
        world.serve();
        world.plug_in(&[]).await;
        world
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.dir.join("root")
    }

    fn store(&self) -> String {
        self.label.chars().take(20).collect()
    }

    pub(crate) fn session(&self, node: &str) -> String {
        format!("{node}@{}", self.store())
    }

    pub(crate) fn servers(&self) -> String {
        self.server.listens()
    }

    pub(crate) fn serve(&mut self) {
        self.server.start();
    }

    pub(crate) fn kill_server(&mut self) {
        self.server.kill();
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.join("csi.sock")
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_memlane-csi"));
        command
            .args(["single", "--node-id", "n1", "--store-name", &self.store()])
            .args(["--serves", &self.servers(), "--server", &self.label])
            .args(&self.more)
            .arg("--memlane")
            .arg(memlane())
            .arg("--root")
            .arg(self.root())
            .arg("--endpoint")
            .arg(self.socket());
        command
    }

    /// Starts the plugin with these variables, and waits until it answers.
    pub(crate) async fn plug_in(&mut self, variables: &[(&str, &str)]) {
        let mut command = self.command();
        command.envs(variables.iter().copied());
        self.plugin = Some(Running::start(&mut command));
        let begin = Instant::now();
        while channel(&self.socket()).await.is_err() {
            assert!(begin.elapsed() < LIMIT, "the plugin does not answer");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) fn kill_plugin(&mut self) {
        self.plugin = None;
    }

    pub(crate) fn plugin_has_ended(&mut self) -> bool {
        self.plugin.as_mut().is_none_or(Running::has_ended)
    }

    pub(crate) async fn node(&self) -> Result<NodeClient<Channel>, Status> {
        let socket = self.node_socket.clone();
        let socket = socket.unwrap_or_else(|| self.socket());
        Ok(NodeClient::new(channel(&socket).await?))
    }

    pub(crate) async fn controller(&self) -> Result<ControllerClient<Channel>, Status> {
        Ok(ControllerClient::new(channel(&self.socket()).await?))
    }

    pub(crate) fn memlane(&self, words: &[&str]) -> String {
        let said = Command::new(memlane())
            .args(words)
            .output()
            .expect("memlane");
        String::from_utf8_lossy(&said.stdout).into_owned()
    }

    /// The process behind the volumes of a node.
    pub(crate) fn mapping_process(&self, node: &str) -> Option<u32> {
        self.session_process(&self.session(node))
    }

    pub(crate) fn session_process(&self, session: &str) -> Option<u32> {
        let said = self.memlane(&["session", "show", "--json", session]);
        let shown: serde_json::Value = serde_json::from_str(&said).ok()?;
        u32::try_from(shown["pid"].as_u64()?).ok()
    }

    /// Mounts of this world.
    pub(crate) fn mounts(&self) -> Vec<String> {
        let table = std::fs::read_to_string("/proc/self/mountinfo").expect("the mounts");
        let ours = self.dir.display().to_string();
        let points = table.lines().filter_map(|line| line.split(' ').nth(4));
        let points = points.filter(|point| point.starts_with(&ours) && *point != ours);
        points.map(str::to_owned).collect()
    }

    pub(crate) fn is_mapped(&self, node: &str) -> bool {
        let session = format!("\"{}\"", self.session(node));
        self.memlane(&["vol", "ls", "--json"]).contains(&session)
    }

    /// Nothing is mounted, mapped or left in the store.
    pub(crate) fn must_be_clean(&self) {
        assert_eq!(self.mounts(), Vec::<String>::new());
        assert!(!self.is_mapped("n1"), "mapped");
        for folder in ["volumes", "snapshots", "making", "gone"] {
            let left = names(&self.root().join(folder));
            assert!(left.is_empty(), "{folder}: {left:?}");
        }
        let nodes = self.root().join("nodes");
        for node in names(&nodes) {
            let left = names(&nodes.join(&node));
            assert!(left.is_empty(), "{node}: {left:?}");
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.kill_plugin();
        for point in self.mounts() {
            let _ = Command::new("umount").args(["-l", &point]).status();
        }
        if let Some(process) = self.mapping_process("n1") {
            let process = process.to_string();
            let _ = Command::new("kill").args(["-9", &process]).status();
        }
        self.kill_server();
        let _ = Command::new(memlane()).args(["vol", "prune"]).output();
        let _ = Command::new("umount").arg(&self.dir).output();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Makes a folder a shared mount, as a kubelet's is: other tests' mount namespaces hear of unmounts in it. Root only.
fn share(folder: &Path) {
    for how in ["--bind", "--make-shared"] {
        let mut command = Command::new("mount");
        command.arg(how).arg(folder);
        if how == "--bind" {
            command.arg(folder);
        }
        let _ = command.output();
    }
}

pub(crate) fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.collect()
}

async fn channel(socket: &Path) -> Result<Channel, Status> {
    let uri = format!("unix://{}", socket.display());
    let endpoint = tonic::transport::Endpoint::from_shared(uri).expect("an address");
    let connected = endpoint.connect().await;
    connected.map_err(|error| Status::unavailable(error.to_string()))
}

pub(crate) fn capability(mode: Mode, block: bool) -> VolumeCapability {
    VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(match block {
            true => AccessType::Block(BlockVolume {}),
            false => AccessType::Mount(MountVolume::default()),
        }),
    }
}

/// A volume, and the calls of its life.
#[derive(Clone)]
pub(crate) struct Life {
    pub(crate) name: String,
    pub(crate) node: String,
    pub(crate) id: String,
    pub(crate) parameters: HashMap<String, String>,
    pub(crate) capability: VolumeCapability,
    pub(crate) staging: PathBuf,
    pub(crate) target: PathBuf,
    pub(crate) publish_context: HashMap<String, String>,
    pub(crate) volume_context: HashMap<String, String>,
}

impl Life {
    pub(crate) fn new(world: &World, name: &str) -> Life {
        let staging = world.dir().join(format!("{name}.staging"));
        std::fs::create_dir_all(&staging).expect("a folder");
        Life {
            name: name.to_owned(),
            node: "n1".to_owned(),
            id: String::new(),
            parameters: HashMap::new(),
            capability: capability(Mode::SingleNodeWriter, false),
            staging,
            target: world.dir().join(format!("{name}.target")),
            publish_context: HashMap::new(),
            volume_context: HashMap::new(),
        }
    }

    pub(crate) fn create_request(&self) -> CreateVolumeRequest {
        CreateVolumeRequest {
            name: self.name.clone(),
            capacity_range: Some(CapacityRange {
                required_bytes: SIZE,
                limit_bytes: 0,
            }),
            volume_capabilities: vec![self.capability.clone()],
            ..CreateVolumeRequest::default()
        }
    }

    pub(crate) async fn create(&mut self, world: &World) -> Result<(), Status> {
        let mut client = world.controller().await?;
        let request = CreateVolumeRequest {
            parameters: self.parameters.clone(),
            ..self.create_request()
        };
        let said = client.create_volume(request).await?;
        let volume = said.into_inner().volume.expect("a volume");
        self.id = volume.volume_id;
        self.volume_context = volume.volume_context;
        Ok(())
    }

    pub(crate) async fn attach(&mut self, world: &World) -> Result<(), Status> {
        let mut client = world.controller().await?;
        let request = ControllerPublishVolumeRequest {
            volume_id: self.id.clone(),
            node_id: self.node.clone(),
            volume_capability: Some(self.capability.clone()),
            volume_context: self.volume_context.clone(),
            ..ControllerPublishVolumeRequest::default()
        };
        let said = client.controller_publish_volume(request).await?;
        self.publish_context = said.into_inner().publish_context;
        Ok(())
    }

    pub(crate) async fn stage(&self, world: &World) -> Result<(), Status> {
        let request = NodeStageVolumeRequest {
            volume_id: self.id.clone(),
            publish_context: self.publish_context.clone(),
            staging_target_path: self.staging.display().to_string(),
            volume_capability: Some(self.capability.clone()),
            volume_context: self.volume_context.clone(),
            ..NodeStageVolumeRequest::default()
        };
        world.node().await?.node_stage_volume(request).await?;
        Ok(())
    }

    pub(crate) fn publish_request(&self) -> NodePublishVolumeRequest {
        NodePublishVolumeRequest {
            volume_id: self.id.clone(),
            publish_context: self.publish_context.clone(),
            staging_target_path: self.staging.display().to_string(),
            target_path: self.target.display().to_string(),
            volume_capability: Some(self.capability.clone()),
            volume_context: self.volume_context.clone(),
            ..NodePublishVolumeRequest::default()
        }
    }

    pub(crate) async fn publish(&self, world: &World) -> Result<(), Status> {
        let request = self.publish_request();
        world.node().await?.node_publish_volume(request).await?;
        Ok(())
    }

    pub(crate) async fn unpublish(&self, world: &World) -> Result<(), Status> {
        let request = NodeUnpublishVolumeRequest {
            volume_id: self.id.clone(),
            target_path: self.target.display().to_string(),
        };
        world.node().await?.node_unpublish_volume(request).await?;
        Ok(())
    }

    pub(crate) async fn unstage(&self, world: &World) -> Result<(), Status> {
        let request = NodeUnstageVolumeRequest {
            volume_id: self.id.clone(),
            staging_target_path: self.staging.display().to_string(),
        };
        world.node().await?.node_unstage_volume(request).await?;
        Ok(())
    }

    pub(crate) async fn detach(&self, world: &World) -> Result<(), Status> {
        let mut client = world.controller().await?;
        let request = ControllerUnpublishVolumeRequest {
            volume_id: self.id.clone(),
            node_id: self.node.clone(),
            ..ControllerUnpublishVolumeRequest::default()
        };
        client.controller_unpublish_volume(request).await?;
        Ok(())
    }

    pub(crate) async fn delete(&self, world: &World) -> Result<(), Status> {
        let mut client = world.controller().await?;
        let volume_id = self.id.clone();
        let request = DeleteVolumeRequest {
            volume_id,
            ..DeleteVolumeRequest::default()
        };
        client.delete_volume(request).await?;
        Ok(())
    }

    /// One call of the life by number: the calls up to a pod that uses the volume.
    pub(crate) async fn up(&mut self, step: usize, world: &World) -> Result<(), Status> {
        match step {
            0 => self.create(world).await,
            1 => self.attach(world).await,
            2 => self.stage(world).await,
            _ => self.publish(world).await,
        }
    }

    /// One call of the life by number: the calls from a pod that has ended.
    pub(crate) async fn down(&self, step: usize, world: &World) -> Result<(), Status> {
        match step {
            0 => self.unpublish(world).await,
            1 => self.unstage(world).await,
            2 => self.detach(world).await,
            _ => self.delete(world).await,
        }
    }

    pub(crate) async fn all_up(&mut self, world: &World) -> Result<(), Status> {
        for step in 0..4 {
            self.up(step, world).await?;
        }
        Ok(())
    }

    pub(crate) async fn all_down(&self, world: &World) -> Result<(), Status> {
        for step in 0..4 {
            self.down(step, world).await?;
        }
        Ok(())
    }
}
