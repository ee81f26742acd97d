//! Mirrored volumes on a node: servers that are lost in the middle of writes, copies that come back, plugins that are killed.
//! The kernel must have md; memlane-system runs this program in a guest that has.

mod common;

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use common::stores::{Authority, Store, controller};
use common::{Life, Running, SIZE, Server, World, capability, has, missing, skip};
use memlane_csi::proto::volume_capability::access_mode::Mode;
use memlane_csi::proto::{
    CapacityRange, ControllerExpandVolumeRequest, NodeExpandVolumeRequest,
    NodeGetVolumeHealthRequest,
};
use tonic::Code;

/// Bytes that md keeps before the data of each copy.
const BEFORE: u64 = 4 << 20;
const PAGE: usize = 4096;
const MIB: usize = 1 << 20;
/// Emulated machines are slow; servers are given up after seconds.
const LIMIT: Duration = Duration::from_secs(90);

fn cannot() -> Option<String> {
    if let Some(why) = missing() {
        return Some(why);
    }
    if !Path::new("/proc/mdstat").exists() {
        return Some("no md in this kernel".to_owned());
    }
    (!has("mdadm")).then(|| "no mdadm".to_owned())
}

/// One of the two storage nodes.
struct Side {
    server: Server,
    store: Store,
}

impl Side {
    fn kill(&mut self) {
        self.server.kill();
        self.store.running = None;
    }

    fn start(&mut self) {
        self.server.start();
        self.store.start();
    }

    /// The copy of a volume, without what md keeps in it.
    fn copy(&self, key: &str) -> Vec<u8> {
        let data = self.store.root.join("volumes").join(key).join("data");
        let copy = fs::read(data).expect("a copy");
        copy[usize::try_from(BEFORE).expect("small")..].to_vec()
    }
}

/// Two storage nodes, a controller, and a node that uses their volumes.
struct Pair {
    world: World,
    a: Side,
    b: Side,
    metrics: SocketAddr,
    plugin: Option<Running>,
    _controller: Running,
}

impl Pair {
    async fn start(label: &str) -> Pair {
        let mut world = World::new(label);
        world.node_socket = Some(world.dir().join("node.sock"));
        let authority = Authority::new(world.dir());
        let tls = authority.server("server");
        let side = |name: &'static str| {
            let root = world.dir().join(name);
            fs::create_dir_all(&root).expect("a folder");
            let mut server = Server::new(&format!("{}-{name}", world.label), &root);
            server.start();
            let store = Store::with_server(name, world.dir(), &tls, &server);
            Side { server, store }
        };
        let (a, b) = (side("a"), side("b"));
        let trusted = authority.client("controller", "memlane:store/*");
        let _controller = controller(&world, &trusted, &[&a.store, &b.store]).await;
        let free = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
        let mut pair = Pair {
            world,
            a,
            b,
            metrics: free.expect("a free port"),
            plugin: None,
            _controller,
        };
        pair.plug_in(&[]).await;
        pair
    }

    /// Starts the node's plugin with these variables.
    async fn plug_in(&mut self, variables: &[(&str, &str)]) {
        self.plugin = None;
        let mut command = Command::new(env!("CARGO_BIN_EXE_memlane-csi"));
        command
            .args(["node", "--node-id", "n1", "--endpoint"])
            .arg(self.world.node_socket.as_ref().expect("a socket"))
            .args(["--metrics", &self.metrics.to_string(), "--memlane"])
            .arg(common::memlane())
            .envs(variables.iter().copied());
        self.plugin = Some(Running::start(&mut command));
        let begin = Instant::now();
        while self.world.node().await.is_err() {
            assert!(begin.elapsed() < LIMIT, "the plugin does not answer");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[cfg(feature = "faults")]
    fn plugin_has_ended(&mut self) -> bool {
        self.plugin.as_mut().is_none_or(Running::has_ended)
    }

    fn life(&self, name: &str) -> Life {
        let mut life = Life::new(&self.world, name);
        life.parameters = [("replicas".to_owned(), "2".to_owned())].into();
        life
    }

    /// A volume that a pod uses.
    async fn up(&self, name: &str, block: bool) -> Life {
        let mut life = self.life(name);
        life.capability = capability(Mode::SingleNodeWriter, block);
        life.all_up(&self.world).await.expect("a volume");
        life
    }

    async fn health(&self, life: &Life) -> Vec<String> {
        let request = NodeGetVolumeHealthRequest {
            volume_id: life.id.clone(),
            ..NodeGetVolumeHealthRequest::default()
        };
        let mut node = self.world.node().await.expect("a plugin");
        let said = node.node_get_volume_health(request).await.expect("told");
        let health = said.into_inner().volume_health.expect("health");
        let all = health.health_statuses.into_iter();
        all.map(|one| one.reason).collect()
    }

    /// Waits until a volume has this trouble, or none.
    async fn waits_for(&self, life: &Life, trouble: Option<&str>) {
        let begin = Instant::now();
        loop {
            let said = self.health(life).await;
            let is_so = match trouble {
                Some(trouble) => said.iter().any(|one| one == trouble),
                None => said.is_empty(),
            };
            if is_so {
                return;
            }
            assert!(begin.elapsed() < LIMIT, "{trouble:?} is wanted: {said:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// A number of the metrics page.
    fn metric(&self, begins: &str) -> Option<u64> {
        let mut stream = TcpStream::connect(self.metrics).expect("it listens");
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\n\r\n")
            .expect("asked");
        let mut page = String::new();
        stream.read_to_string(&mut page).expect("a page");
        let line = page.lines().find(|line| line.starts_with(begins))?;
        line.rsplit(' ').next()?.parse().ok()
    }

    /// The device of a copy.
    fn device_of(&self, session: &str) -> PathBuf {
        let said = self.world.memlane(&["vol", "ls", "--json"]);
        let shown: serde_json::Value = serde_json::from_str(&said).expect("a document");
        let all = shown["mapped"].as_array().expect("a list");
        let one = all
            .iter()
            .find(|one| one["session"] == session)
            .expect("a mapping");
        one["shown_as"].as_str().expect("a path").into()
    }

    fn must_be_clean(&self) {
        assert_eq!(self.world.mounts(), Vec::<String>::new());
        let said = self.world.memlane(&["vol", "ls", "--json"]);
        assert!(!said.contains("n1@"), "{said}");
        let arrays = fs::read_to_string("/proc/mdstat").expect("a table");
        let is_array = |line: &str| line.starts_with("md");
        assert!(!arrays.lines().any(is_array), "{arrays}");
        for side in [&self.a, &self.b] {
            assert_eq!(side.store.volumes(), 0);
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.plugin = None;
        for point in self.world.mounts() {
            let _ = Command::new("umount").args(["-l", &point]).status();
        }
        let _ = Command::new("mdadm").args(["--stop", "--scan"]).output();
        for session in ["n1@a@b", "n1@b@a"] {
            if let Some(process) = self.world.session_process(session) {
                let process = process.to_string();
                let _ = Command::new("kill").args(["-9", &process]).status();
            }
        }
    }
}

/// Bytes that were written to a device.
fn written(device: &Path) -> u64 {
    let number = fs::metadata(device).expect("a device").rdev();
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let stat = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).expect("counts");
    let sectors = stat.split_whitespace().nth(6).expect("sectors written");
    sectors.parse::<u64>().expect("a number") * 512
}

fn write(file: &Path, text: &str) {
    fs::write(file, text).expect("written");
    let synced = File::open(file).and_then(|file| file.sync_all());
    synced.expect("on the disk");
}

/// A device, and what was written to it.
struct Content {
    device: File,
    bytes: Vec<u8>,
    seed: u64,
}

impl Content {
    fn fill(device: &Path) -> Content {
        let device = File::options()
            .read(true)
            .write(true)
            .open(device)
            .expect("a device");
        let mut content = Content {
            device,
            bytes: vec![0; usize::try_from(SIZE).expect("small")],
            seed: 7,
        };
        for piece in 0..content.bytes.len() / MIB {
            let byte = content.random().to_le_bytes()[0];
            content.write(piece * MIB, &vec![byte; MIB]);
        }
        content.device.sync_all().expect("on the disk");
        content
    }

    fn random(&mut self) -> u64 {
        self.seed = self
            .seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        self.seed >> 24
    }

    fn write(&mut self, place: usize, bytes: &[u8]) {
        let at = u64::try_from(place).expect("small");
        self.device.write_all_at(bytes, at).expect("written");
        self.bytes[place..place + bytes.len()].copy_from_slice(bytes);
    }

    /// Writes some pages of one MiB, each of which must last. Returns how long the slowest took.
    fn change(&mut self, piece: usize) -> Duration {
        let mut slowest = Duration::ZERO;
        for _ in 0..20 {
            let page = usize::try_from(self.random()).expect("64 bits") % (MIB / PAGE);
            let byte = self.random().to_le_bytes()[0];
            let begin = Instant::now();
            self.write(piece * MIB + page * PAGE, &[byte; PAGE]);
            self.device.sync_all().expect("on the disk");
            slowest = slowest.max(begin.elapsed());
        }
        slowest
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_go_on_without_a_server_that_is_silent_and_only_what_changed_is_copied_to_it() {
    if let Some(why) = cannot() {
        return skip(&why);
    }
    let pair = Pair::start("silent").await;
    let life = pair.up("a", true).await;
    let mut content = Content::fill(&life.target);
    assert_eq!(pair.health(&life).await, Vec::<String>::new());
    let copies = |state: &str| {
        let line = format!(
            "memlane_csi_volume_copies{{volume=\"{}\",state=\"{state}\"}}",
            life.id
        );
        pair.metric(&line)
    };
    assert_eq!((copies("in_sync"), copies("wanted")), (Some(2), Some(2)));

    let device = pair.device_of("n1@b@a");
    pair.b.server.signal("STOP");
    let slowest = content.change(3);
    eprintln!("the slowest write took {slowest:?}");
    assert!(slowest < Duration::from_secs(20), "{slowest:?}");
    assert!(
        content.change(40) < Duration::from_secs(5),
        "the copy was given up"
    );
    pair.waits_for(&life, Some("CopyMissing")).await;
    assert_eq!(copies("in_sync"), Some(1));

    let before = written(&device);
    pair.b.server.signal("CONT");
    content.change(50);
    pair.waits_for(&life, None).await;
    assert_eq!(copies("in_sync"), Some(2));
    let again = pair.device_of("n1@b@a");
    let copied = written(&again) - if again == device { before } else { 0 };
    eprintln!("{copied} bytes were copied");
    assert!(
        (1..24 << 20).contains(&copied),
        "{copied} of {SIZE} bytes were copied"
    );

    let mut read = vec![0; content.bytes.len()];
    content.device.read_exact_at(&mut read, 0).expect("read");
    assert!(read == content.bytes, "other bytes than were written");
    let bytes = std::mem::take(&mut content.bytes);
    drop(content);
    for step in 0..3 {
        life.down(step, &pair.world).await.expect("over");
    }
    for side in [&pair.a, &pair.b] {
        let copy = side.copy("v-a");
        assert!(copy[..bytes.len()] == bytes, "store {}", side.store.name);
    }
    life.delete(&pair.world).await.expect("removed");
    pair.must_be_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_was_left_behind_waits_for_the_newer_one_whatever_comes_back_first() {
    if let Some(why) = cannot() {
        return skip(&why);
    }
    let mut pair = Pair::start("behind").await;
    let mut life = pair.up("a", false).await;
    let file = life.target.join("hello");
    write(&file, "first");
    pair.b.kill();
    write(&file, "second");
    for step in 0..3 {
        life.down(step, &pair.world).await.expect("over");
    }

    // The older copy alone.
    pair.a.kill();
    pair.b.start();
    insist(&mut life, &pair, 1).await;
    let why = life.stage(&pair.world).await.expect_err("it may be old");
    assert_eq!(why.code(), Code::Unavailable, "{why}");
    assert!(why.message().contains("waits until both"), "{why}");
    let said = pair.world.memlane(&["vol", "ls", "--json"]);
    assert!(!said.contains("n1@"), "it was left mapped: {said}");

    // The newer copy alone.
    pair.b.kill();
    pair.a.start();
    for step in 1..4 {
        insist(&mut life, &pair, step).await;
    }
    assert_eq!(fs::read_to_string(&file).expect("there"), "second");
    assert!(pair.health(&life).await.contains(&"CopyMissing".to_owned()));
    write(&file, "third");

    // Both: what an orchestrator repeats brings them together.
    pair.b.start();
    insist(&mut life, &pair, 1).await;
    life.publish(&pair.world).await.expect("published");
    pair.waits_for(&life, None).await;
    for step in 0..3 {
        life.down(step, &pair.world).await.expect("over");
    }

    // Now neither says that it is ahead, so neither is used alone.
    for is_a in [true, false] {
        let away = if is_a { &mut pair.a } else { &mut pair.b };
        away.kill();
        insist(&mut life, &pair, 1).await;
        let why = life.stage(&pair.world).await.expect_err("nobody knows");
        assert_eq!(why.code(), Code::Unavailable, "{why}");
        life.detach(&pair.world).await.expect("taken");
        let away = if is_a { &mut pair.a } else { &mut pair.b };
        away.start();
    }

    // Somebody who knows that the other copy is lost says so at the store.
    pair.b.kill();
    use_alone(&pair.a.store.root.join("volumes/v-a/data"));
    for step in 1..4 {
        insist(&mut life, &pair, step).await;
    }
    assert_eq!(fs::read_to_string(&file).expect("there"), "third");
    pair.b.start();
    insist(&mut life, &pair, 1).await;
    life.publish(&pair.world).await.expect("published");
    pair.waits_for(&life, None).await;
    life.all_down(&pair.world).await.expect("over");
    pair.must_be_clean();
}

/// What the guide says to do with a copy whose other copy never comes back.
fn use_alone(data: &Path) {
    let script = format!(
        "set -e; device=$(losetup -f); losetup $device {}\n\
         mdadm --assemble --run --config=none /dev/md/alone $device\n\
         dd if=/dev/md/alone of=/dev/md/alone bs=4096 count=1 conv=notrunc,fsync\n\
         mdadm --stop /dev/md/alone; losetup -d $device",
        data.display()
    );
    let said = Command::new("sh").args(["-c", &script]).output();
    let said = said.expect("a shell");
    assert!(said.status.success(), "{said:?}");
}

/// Repeats a call of the way up until the stores that were started are reached.
async fn insist(life: &mut Life, pair: &Pair, step: usize) {
    let begin = Instant::now();
    while let Err(why) = life.up(step, &pair.world).await {
        assert!(begin.elapsed() < LIMIT, "{step}: {why}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_is_killed_while_a_copy_is_away_looks_after_the_mirror_when_it_is_back() {
    if let Some(why) = cannot() {
        return skip(&why);
    }
    let mut pair = Pair::start("killed").await;
    let life = pair.up("a", false).await;
    let file = life.target.join("hello");
    // Without a plugin, md gives the copy up by itself.
    pair.plugin = None;
    pair.b.server.signal("STOP");
    let begin = Instant::now();
    write(&file, "bytes");
    assert!(begin.elapsed() < LIMIT, "{:?}", begin.elapsed());
    pair.plug_in(&[]).await;
    pair.waits_for(&life, Some("CopyMissing")).await;
    pair.b.server.signal("CONT");
    // No call asks for it.
    pair.waits_for(&life, None).await;
    assert_eq!(fs::read_to_string(&file).expect("there"), "bytes");
    life.all_down(&pair.world).await.expect("over");
    pair.must_be_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mirrored_volume_grows_while_it_is_used() {
    if let Some(why) = cannot() {
        return skip(&why);
    }
    let pair = Pair::start("grows").await;
    let life = pair.up("a", false).await;
    write(&life.target.join("hello"), "bytes");
    let range = Some(CapacityRange {
        required_bytes: 2 * SIZE,
        limit_bytes: 0,
    });
    let request = ControllerExpandVolumeRequest {
        volume_id: life.id.clone(),
        capacity_range: range,
        ..ControllerExpandVolumeRequest::default()
    };
    let mut controller = pair.world.controller().await.expect("a plugin");
    let grown = controller.controller_expand_volume(request).await;
    assert_eq!(grown.expect("grown").into_inner().capacity_bytes, 2 * SIZE);
    let request = NodeExpandVolumeRequest {
        volume_id: life.id.clone(),
        volume_path: life.target.display().to_string(),
        capacity_range: range,
        ..NodeExpandVolumeRequest::default()
    };
    let mut node = pair.world.node().await.expect("a plugin");
    node.node_expand_volume(request.clone())
        .await
        .expect("grown");
    node.node_expand_volume(request).await.expect("the same");
    let stat = rustix::fs::statvfs(&life.target).expect("told");
    let total = i64::try_from(stat.f_blocks * stat.f_frsize).expect("small");
    assert!(total > SIZE * 3 / 2, "{total}");
    let read = fs::read_to_string(life.target.join("hello"));
    assert_eq!(read.expect("there"), "bytes");
    pair.waits_for(&life, None).await;
    life.all_down(&pair.world).await.expect("over");
    pair.must_be_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_lost_a_mirrored_volume_cannot_write_and_gets_it_back_whole() {
    if let Some(why) = cannot() {
        return skip(&why);
    }
    let pair = Pair::start("fence").await;
    let mut life = pair.up("a", true).await;
    let device = File::options()
        .write(true)
        .open(&life.target)
        .expect("a device");
    let write = |byte: u8| {
        let done = device.write_all_at(&[byte; PAGE], 0);
        done.and_then(|()| device.sync_all())
    };
    write(1).expect("it is ours");
    life.detach(&pair.world).await.expect("taken");
    write(2).expect_err("it is not ours any more");
    pair.waits_for(&life, Some("Lost")).await;
    drop(device);
    life.attach(&pair.world).await.expect("published");
    life.publish(&pair.world).await.expect("mended");
    pair.waits_for(&life, None).await;
    let read = fs::read(&life.target).expect("a device");
    assert!(read[..PAGE].iter().all(|byte| *byte == 1));
    life.all_down(&pair.world).await.expect("over");
    pair.must_be_clean();
}

/// Points between two steps at which the node's plugin can be made to end.
#[cfg(feature = "faults")]
const POINTS: [&str; 10] = [
    "stage: copies mapped",
    "stage: mirror made",
    "stage: mirror started",
    "stage: mapped",
    "stage: formatted",
    "stage: mounted",
    "publish: mounted",
    "unpublish: unmounted",
    "unstage: unmounted",
    "unstage: mirror stopped",
];

#[cfg(feature = "faults")]
#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_is_killed_at_any_step_loses_no_mirror_and_leaves_none() {
    if let Some(why) = cannot() {
        return skip(&why);
    }
    let mut pair = Pair::start("steps").await;
    for (number, point) in POINTS.iter().enumerate() {
        pair.plug_in(&[("MEMLANE_CSI_DIES_AT", point)]).await;
        let mut life = pair.life(&format!("k{number}"));
        let mut ends = 0;
        for step in 0..4 {
            ends += repeat(&mut pair, &mut life, true, step).await;
        }
        let file = life.target.join("hello");
        write(&file, "bytes");
        // The pod is moved.
        for (up, step) in [(false, 0), (false, 1), (true, 2), (true, 3)] {
            ends += repeat(&mut pair, &mut life, up, step).await;
        }
        assert_eq!(fs::read_to_string(&file).expect("there"), "bytes");
        pair.waits_for(&life, None).await;
        for step in 0..4 {
            ends += repeat(&mut pair, &mut life, false, step).await;
        }
        assert_eq!(ends, 1, "{point}: the plugin was to end there, once");
        pair.must_be_clean();
    }
}

/// Calls until the call succeeds. Returns how often the plugin had to be started again.
#[cfg(feature = "faults")]
async fn repeat(pair: &mut Pair, life: &mut Life, up: bool, step: usize) -> usize {
    let mut ends = 0;
    for _ in 0..20 {
        let said = match up {
            true => life.up(step, &pair.world).await,
            false => life.down(step, &pair.world).await,
        };
        let Err(why) = said else { return ends };
        eprintln!("tried again: {why}");
        tokio::time::sleep(Duration::from_millis(100)).await;
        if pair.plugin_has_ended() {
            ends += 1;
            pair.plug_in(&[]).await;
        }
    }
    panic!("step {step} does not succeed");
}
