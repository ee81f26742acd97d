//! Volumes on this machine: kills at random moments, mappings that die, nodes that want the same volume.

mod common;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{Life, Running, World, capability, has, missing, skip};
use memlane_csi::proto::volume_capability::access_mode::Mode;
use memlane_csi::proto::volume_capability::{AccessType, MountVolume};
use memlane_csi::proto::volume_content_source::{self, SnapshotSource, VolumeSource};
use memlane_csi::proto::{
    CapacityRange, ControllerExpandVolumeRequest, CreateSnapshotRequest, DeleteSnapshotRequest,
    NodeExpandVolumeRequest, NodeGetVolumeHealthRequest, NodeGetVolumeStatsRequest,
    VolumeContentSource,
};
use tonic::Code;

/// What is wrong with a volume, by the reasons that the plugin gives.
async fn health(world: &World, life: &Life) -> Vec<String> {
    let request = NodeGetVolumeHealthRequest {
        volume_id: life.id.clone(),
        ..NodeGetVolumeHealthRequest::default()
    };
    let mut node = world.node().await.expect("a plugin");
    let said = node.node_get_volume_health(request).await.expect("told");
    let health = said.into_inner().volume_health.expect("health");
    let all = health.health_statuses.into_iter();
    all.map(|one| one.reason).collect()
}

/// Whether this process has CAP_SYS_RESOURCE (24), which the kernel asks for.
fn may_grow_ext4() -> bool {
    let status = fs::read_to_string("/proc/self/status").expect("own status");
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & (1 << 24) != 0)
}

fn kill(process: u32) {
    let killed = Command::new("kill")
        .args(["-9", &process.to_string()])
        .status();
    assert!(killed.is_ok_and(|status| status.success()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_outlives_plugins_that_are_killed_at_random_moments() {
    if let Some(why) = missing() {
        return skip(&why);
    }
    let mut world = World::start("random").await;
    let mut life = Life::new(&world, "a");
    let (begin, mut rounds, mut moment) = (Instant::now(), 0, 7_u64);
    while rounds < 4 || begin.elapsed() < Duration::from_secs(4) {
        rounds += 1;
        for (up, step) in (0..4).map(|s| (true, s)).chain((0..4).map(|s| (false, s))) {
            loop {
                // From no time at all to what the longest call takes.
                moment = moment
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let after = Duration::from_millis(moment >> 57);
                let call = async {
                    match up {
                        true => life.up(step, &world).await,
                        false => life.down(step, &world).await,
                    }
                };
                if let Ok(Ok(())) = tokio::time::timeout(after, call).await {
                    break;
                }
                world.kill_plugin();
                world.plug_in(&[]).await;
                let said = match up {
                    true => life.up(step, &world).await,
                    false => life.down(step, &world).await,
                };
                match said {
                    Ok(()) => break,
                    // What the killed plugin has started (mkfs, memlane) still works on it.
                    Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                }
                assert!(begin.elapsed() < Duration::from_secs(100), "{up} {step}");
            }
        }
        world.must_be_clean();
    }
}

#[tokio::test]
async fn a_mapping_that_was_killed_is_said_and_mended_by_the_next_call() {
    if let Some(why) = missing() {
        return skip(&why);
    }
    let world = World::start("mapdies").await;
    let mut life = Life::new(&world, "a");
    life.all_up(&world).await.expect("a volume");
    let file = life.target.join("hello");
    fs::write(&file, "bytes").expect("written");
    fs::File::open(&file)
        .and_then(|file| file.sync_all())
        .expect("on the disk");
    assert_eq!(health(&world, &life).await, Vec::<String>::new());
    kill(world.mapping_process("n1").expect("a process"));
    assert_eq!(health(&world, &life).await, ["NotMapped"]);
    life.publish(&world).await.expect("mended");
    assert_eq!(fs::read_to_string(&file).expect("there"), "bytes");
    assert_eq!(health(&world, &life).await, Vec::<String>::new());
    // It dies again, and the pod ends.
    let process = world.mapping_process("n1").expect("a process");
    kill(process);
    life.all_down(&world).await.expect("over");
    world.must_be_clean();
    let left = format!("memlane-loop-{process}-");
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("the mounts");
    assert!(!mounts.contains(&left), "{mounts}");
}

#[tokio::test]
async fn a_server_that_is_away_is_said() {
    if let Some(why) = missing() {
        return skip(&why);
    }
    let mut world = World::start("away").await;
    let mut life = Life::new(&world, "a");
    life.all_up(&world).await.expect("a volume");
    world.kill_server();
    let begin = Instant::now();
    while health(&world, &life)
        .await
        .last()
        .is_none_or(|last| last != "ServerUnreachable")
    {
        assert!(begin.elapsed() < Duration::from_secs(20));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    world.serve();
    while !health(&world, &life).await.is_empty() {
        assert!(begin.elapsed() < Duration::from_secs(40));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    life.all_down(&world).await.expect("over");
    world.must_be_clean();
}

#[tokio::test]
async fn a_volume_for_one_pod_has_no_second_place_and_a_reader_cannot_write() {
    if let Some(why) = missing() {
        return skip(&why);
    }
    let world = World::start("onepod").await;
    let mut life = Life::new(&world, "a");
    life.capability = capability(Mode::SingleNodeSingleWriter, false);
    life.all_up(&world).await.expect("a volume");
    let mut second = life.clone();
    second.target = world.dir().join("second");
    let why = second.publish(&world).await.expect_err("one pod has it");
    assert_eq!(why.code(), Code::FailedPrecondition, "{why}");
    assert!(!second.target.exists(), "left behind");
    life.unpublish(&world).await.expect("over");
    let mut node = world.node().await.expect("a plugin");
    let mut request = second.publish_request();
    request.readonly = true;
    node.node_publish_volume(request).await.expect("free again");
    let wrong = fs::write(second.target.join("x"), "x").expect_err("read only");
    assert_eq!(wrong.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    second.all_down(&world).await.expect("over");
    world.must_be_clean();
}

#[tokio::test]
async fn a_volume_grows_while_it_is_used_and_its_copy_is_as_it_was() {
    if let Some(why) = missing() {
        return skip(&why);
    }
    let world = World::start("grows").await;
    let mut life = Life::new(&world, "a");
    life.all_up(&world).await.expect("a volume");
    fs::write(life.target.join("hello"), "before").expect("written");
    let range = Some(CapacityRange {
        required_bytes: 2 * common::SIZE,
        limit_bytes: 0,
    });
    let mut controller = world.controller().await.expect("a plugin");
    let request = ControllerExpandVolumeRequest {
        volume_id: life.id.clone(),
        capacity_range: range,
        ..ControllerExpandVolumeRequest::default()
    };
    let said = controller.controller_expand_volume(request).await;
    assert_eq!(
        said.expect("grown").into_inner().capacity_bytes,
        2 * common::SIZE
    );
    let mut node = world.node().await.expect("a plugin");
    let volume_path = life.target.display().to_string();
    let request = NodeExpandVolumeRequest {
        volume_id: life.id.clone(),
        volume_path: volume_path.clone(),
        capacity_range: range,
        ..NodeExpandVolumeRequest::default()
    };
    let grown = node.node_expand_volume(request).await;
    match may_grow_ext4() {
        true => drop(grown.expect("grown")),
        false => skip("no CAP_SYS_RESOURCE, without which a mounted ext4 is not grown"),
    }
    let request = NodeGetVolumeStatsRequest {
        volume_id: life.id.clone(),
        volume_path,
        ..NodeGetVolumeStatsRequest::default()
    };
    let said = node.node_get_volume_stats(request).await.expect("told");
    let total = said.into_inner().usage[0].total;
    assert!(!may_grow_ext4() || total > common::SIZE * 3 / 2, "{total}");
    // In use, a volume is copied only where the file system can share blocks.
    let snapshot = CreateSnapshotRequest {
        source_volume_id: life.id.clone(),
        name: "snap".to_owned(),
        ..CreateSnapshotRequest::default()
    };
    let in_use = controller.create_snapshot(snapshot.clone()).await;
    if let Err(why) = &in_use {
        assert_eq!(why.code(), Code::FailedPrecondition, "{why}");
    }
    for step in 0..3 {
        life.down(step, &world).await.expect("over");
    }
    let taken = controller.create_snapshot(snapshot).await.expect("taken");
    let snapshot_id = taken.into_inner().snapshot.expect("one").snapshot_id;
    let mut copy = Life::new(&world, "b");
    let mut request = copy.create_request();
    request.capacity_range = Some(CapacityRange {
        required_bytes: 3 * common::SIZE,
        limit_bytes: 0,
    });
    request.volume_content_source = Some(VolumeContentSource {
        r#type: Some(volume_content_source::Type::Snapshot(SnapshotSource {
            snapshot_id: snapshot_id.clone(),
        })),
    });
    let made = controller.create_volume(request).await.expect("made");
    copy.id = made.into_inner().volume.expect("one").volume_id;
    for step in 1..4 {
        copy.up(step, &world).await.expect("used");
    }
    let read = fs::read_to_string(copy.target.join("hello"));
    if in_use.is_err() {
        assert_eq!(read.expect("there"), "before");
    }
    let stat = rustix::fs::statvfs(&copy.target).expect("told");
    let total = i64::try_from(stat.f_blocks * stat.f_frsize).expect("small");
    assert!(
        total > common::SIZE * 5 / 2,
        "the copy's file system grew: {total}"
    );
    copy.all_down(&world).await.expect("over");
    let gone = DeleteSnapshotRequest {
        snapshot_id,
        ..DeleteSnapshotRequest::default()
    };
    controller.delete_snapshot(gone).await.expect("removed");
    life.delete(&world).await.expect("removed");
    world.must_be_clean();
}

#[tokio::test]
async fn a_node_that_lost_a_volume_cannot_write_to_it_any_more() {
    if let Some(why) = missing() {
        return skip(&why);
    }
    // A controller for many nodes, of which this test is one and the plugin another.
    let world = World::start("fence").await;
    let mut life = Life::new(&world, "a");
    life.capability = capability(Mode::SingleNodeWriter, true);
    life.all_up(&world).await.expect("a volume");
    let kind = fs::metadata(&life.target).expect("there").file_type();
    assert!(kind.is_block_device());
    let device = fs::OpenOptions::new().write(true).open(&life.target);
    let device = device.expect("a device");
    let write = || {
        use std::os::unix::fs::FileExt as _;
        device
            .write_all_at(&[1; 4096], 0)
            .and_then(|()| device.sync_all())
    };
    write().expect("it is ours");
    // The orchestrator gives the node up without a word to it.
    life.detach(&world).await.expect("taken");
    write().expect_err("it is not ours any more");
    assert_eq!(
        health(&world, &life).await.first().map(String::as_str),
        Some("Lost")
    );
    drop(device);
    // It changes its mind: the node gets the volume back, whole.
    life.attach(&world).await.expect("published");
    life.publish(&world).await.expect("mended");
    assert_eq!(health(&world, &life).await, Vec::<String>::new());
    let read = fs::read(&life.target).expect("a device");
    assert!(read[..4096].iter().all(|byte| *byte == 1));
    for step in [0, 1, 2] {
        life.down(step, &world).await.expect("over");
    }
    life.delete(&world).await.expect("removed");
    world.must_be_clean();
}

/// Takes the loop device of this number as soon as it is free. Gives it back when dropped.
struct TakesLoop {
    device: PathBuf,
    over: Arc<AtomicBool>,
    taking: Option<std::thread::JoinHandle<bool>>,
}

impl TakesLoop {
    fn start(number: u32, file: &Path) -> TakesLoop {
        fs::write(file, vec![2; 1 << 20]).expect("written");
        let device = PathBuf::from(format!("/dev/loop{number}"));
        let over = Arc::new(AtomicBool::new(false));
        let mut attach = Command::new("losetup");
        attach.args([device.as_path(), file]);
        attach.stderr(std::process::Stdio::null());
        let ended = Arc::clone(&over);
        let taking = std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                if attach.status().expect("losetup").success() {
                    return true;
                }
            }
            false
        });
        TakesLoop {
            device,
            over,
            taking: Some(taking),
        }
    }
}

impl Drop for TakesLoop {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let taken = self
            .taking
            .take()
            .is_some_and(|it| it.join().is_ok_and(|it| it));
        if taken {
            let _ = Command::new("losetup").arg("-d").arg(&self.device).status();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_volume_comes_back_though_the_number_of_its_old_device_is_anothers() {
    if let Some(why) = missing() {
        return skip(&why);
    }
    let world = World::start("number").await;
    let mut life = Life::new(&world, "a");
    life.capability = capability(Mode::SingleNodeWriter, true);
    life.all_up(&world).await.expect("a volume");
    let device = fs::OpenOptions::new().write(true).open(&life.target);
    let mut device = device.expect("a device");
    device.write_all(&[1; 4096]).expect("written");
    device.sync_all().expect("on the disk");
    drop(device);
    for killed in [false, true] {
        let number = fs::metadata(&life.target).expect("there").rdev();
        if rustix::fs::major(number) != 7 {
            return skip("another frontend than loop devices");
        }
        let other = TakesLoop::start(rustix::fs::minor(number), &world.dir().join("other"));
        match killed {
            true => kill(world.mapping_process("n1").expect("a process")),
            false => {
                life.detach(&world).await.expect("taken");
                life.attach(&world).await.expect("published");
            }
        }
        life.publish(&world).await.expect("mended");
        let read = fs::read(&life.target).expect("a device");
        assert!(read[..4096].iter().all(|byte| *byte == 1), "{killed}");
        drop(other);
    }
    for step in [0, 1, 2] {
        life.down(step, &world).await.expect("over");
    }
    life.delete(&world).await.expect("removed");
    world.must_be_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_fio_wrote_is_there_while_plugin_and_server_are_killed() {
    if let Some(why) = missing() {
        return skip(&why);
    }
    if !has("fio") {
        return skip("no fio");
    }
    let mut world = World::start("fio").await;
    let mut life = Life::new(&world, "a");
    life.all_up(&world).await.expect("a volume");
    let mut fio = Command::new("fio");
    fio.args([
        "--name=verify",
        "--ioengine=psync",
        "--rw=randrw",
        "--bs=4k",
        "--size=16m",
    ])
    .args([
        "--verify=crc32c",
        "--verify_fatal=1",
        "--verify_backlog=64",
        "--direct=1",
    ])
    .args([
        "--verify_state_save=0",
        "--time_based",
        "--runtime=6",
        "--minimal",
    ])
    .arg(format!("--directory={}", life.target.display()))
    .stdout(std::process::Stdio::null());
    let mut fio = Running::start(&mut fio);
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(700)).await;
        world.kill_plugin();
        world.kill_server();
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(!fio.has_ended(), "fio ended early");
        world.serve();
        world.plug_in(&[]).await;
        // What an orchestrator does when it finds a plugin again.
        life.stage(&world).await.expect("staged");
        life.publish(&world).await.expect("published");
    }
    assert!(fio.end().success(), "fio found other bytes than it wrote");
    life.all_down(&world).await.expect("over");
    world.must_be_clean();
}

/// A process with copies of all mounts. Mounts propagate to it, but not those of `kept`.
fn namespace(kept: Option<&Path>) -> Running {
    let keep = kept.map_or("true".to_owned(), |it| {
        format!("mount --make-rprivate {}", it.display())
    });
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "slave", "sh", "-c"]);
    command.arg(format!("{keep} && echo there && exec sleep 60"));
    let (running, said) = Running::heard(&mut command);
    assert_eq!(said, "there");
    running
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_another_mount_namespace_has_mounted_stays_and_the_error_names_its_process() {
    if let Some(why) = missing() {
        return skip(&why);
    }
    let world = World::start("elsewhere").await;
    let mut life = Life::new(&world, "a");
    life.all_up(&world).await.expect("a volume");
    let holder = namespace(Some(world.dir()));
    life.unpublish(&world).await.expect("unmounted here");
    let error = life.unstage(&world).await.expect_err("mounted there");
    let names = format!("process {} (sleep)", holder.id());
    assert_eq!(error.code(), tonic::Code::Unavailable, "{error}");
    assert!(error.message().contains(&names), "{error}");
    drop(holder);
    // What an orchestrator does until it succeeds.
    life.unstage(&world).await.expect("unmounted everywhere");
    life.detach(&world).await.expect("taken");
    life.delete(&world).await.expect("removed");
    world.must_be_clean();
}

/// Mounts under a kubelet's folder propagate: the mount of the folder is shared.
#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_to_which_unmounts_propagate_does_not_hold_up_a_volume() {
    if let Some(why) = missing() {
        return skip(&why);
    }
    let world = World::start("propagates").await;
    let mut life = Life::new(&world, "a");
    life.all_up(&world).await.expect("a volume");
    let other = namespace(None);
    let begin = Instant::now();
    life.all_down(&world).await.expect("over");
    assert!(begin.elapsed() < Duration::from_secs(30));
    world.must_be_clean();
    drop(other);
}

#[tokio::test]
async fn a_pod_gets_the_library_and_the_domain_of_its_namespace_and_can_write_neither() {
    if let Some(why) = missing() {
        return skip(&why);
    }
    let mut world = World::new("lane");
    let (tree, domains) = (world.dir().join("tree"), world.dir().join("domains"));
    fs::create_dir_all(tree.join("lib64")).expect("a folder");
    fs::write(tree.join("lib64/library.so"), "library").expect("written");
    world.more = vec![
        format!("--inject={}", tree.display()),
        format!("--domains={}", domains.display()),
        "--shared-domain=mesh=shop".to_owned(),
    ];
    world.plug_in(&[]).await;
    let mut life = Life::new(&world, "lane");
    life.id = "csi-0123456789abcdef".to_owned();
    let target = life.target.clone();
    let context = |namespace: &str, domain: Option<&str>| {
        let mut all = HashMap::from([
            ("csi.storage.k8s.io/ephemeral".to_owned(), "true".to_owned()),
            (
                "csi.storage.k8s.io/pod.namespace".to_owned(),
                namespace.to_owned(),
            ),
        ]);
        all.extend(domain.map(|domain| ("memlane.dev/domain".to_owned(), domain.to_owned())));
        all
    };
    life.volume_context = context("evil", Some("shop"));
    let why = life.publish(&world).await.expect_err("not its domain");
    assert_eq!(why.code(), Code::PermissionDenied, "{why}");
    assert!(!target.exists(), "left behind");
    for (domain, folder) in [(None, "shop"), (Some("mesh"), "@mesh")] {
        life.volume_context = context("shop", domain);
        for _ in 0..2 {
            life.publish(&world).await.expect("published");
        }
        let read = fs::read_to_string(target.join("lib64/library.so"));
        assert_eq!(read.expect("the library"), "library");
        // An agent that starts later appears.
        fs::write(domains.join(folder).join("agent.sock"), "agent").expect("written");
        assert!(target.join("domain/agent.sock").exists());
        for place in ["x", "tree/x", "domain/x", "lib64/x"] {
            let wrong = fs::write(target.join(place), "x").expect_err(place);
            assert_eq!(
                wrong.kind(),
                std::io::ErrorKind::ReadOnlyFilesystem,
                "{place}"
            );
        }
        for _ in 0..2 {
            life.unpublish(&world).await.expect("over");
        }
        assert!(!target.exists());
        assert!(tree.join("lib64/library.so").exists());
    }
    assert_eq!(world.mounts(), Vec::<String>::new());
}

/// Lets the plugin have a library, and a folder of domains.
fn domains_of(world: &mut World) -> PathBuf {
    let (tree, domains) = (world.dir().join("tree"), world.dir().join("domains"));
    for folder in [&tree, &domains] {
        fs::create_dir_all(folder).expect("a folder");
    }
    world.more = vec![
        format!("--inject={}", tree.display()),
        format!("--domains={}", domains.display()),
    ];
    domains
}

/// A pod's lane volume.
fn with_lane(world: &World, pod: &str, namespace: &str) -> Life {
    let mut life = Life::new(world, pod);
    life.id = format!("csi-{pod}");
    life.target = world.dir().join(pod);
    let said = [
        ("csi.storage.k8s.io/ephemeral", "true"),
        ("csi.storage.k8s.io/pod.namespace", namespace),
    ];
    let said = said.map(|(name, value)| (name.to_owned(), value.to_owned()));
    life.volume_context = HashMap::from(said);
    life
}

#[tokio::test]
async fn the_folder_of_a_domain_goes_with_its_last_pod_if_the_plugin_has_made_it() {
    if let Some(why) = missing() {
        return skip(&why);
    }
    let mut world = World::new("lane-domains");
    let domains = domains_of(&mut world);
    for somebody_s in ["bank", "default"] {
        fs::create_dir_all(domains.join(somebody_s)).expect("a folder");
    }
    world.plug_in(&[]).await;
    let pod = |name, namespace| with_lane(&world, name, namespace);
    let (first, second, other) = (pod("a", "shop"), pod("b", "shop"), pod("c", "bank"));
    for life in [&first, &second, &other] {
        life.publish(&world).await.expect("published");
    }
    let shop = domains.join("shop");
    fs::write(shop.join("agent.sock"), "agent").expect("written");
    first.unpublish(&world).await.expect("over");
    assert!(
        first.target != second.target && shop.is_dir(),
        "a pod uses it"
    );
    fs::write(shop.join("somebody's"), "").expect("written");
    second.unpublish(&world).await.expect("over");
    assert!(shop.join("agent.sock").exists(), "somebody uses it");
    fs::remove_file(shop.join("somebody's")).expect("removed");
    other.unpublish(&world).await.expect("over");
    let left = fs::read_dir(&domains).expect("a folder").flatten();
    let mut left: Vec<_> = left.map(|entry| entry.file_name()).collect();
    left.sort();
    assert_eq!(left, ["bank", "default"]);
    // The next pod finds a new one.
    second.publish(&world).await.expect("published");
    assert!(second.target.join("domain").is_dir() && shop.is_dir());
    second.unpublish(&world).await.expect("over");
    assert_eq!(world.mounts(), Vec::<String>::new());
}

/// Pods of one namespace come and go at once: none finds a folder that is no longer the agent's.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_comes_while_the_last_one_goes_has_the_folder_that_the_agent_serves() {
    if let Some(why) = missing() {
        return skip(&why);
    }
    let mut world = World::new("lane-race");
    let domains = domains_of(&mut world);
    world.plug_in(&[]).await;
    let come_and_go = async |name: &str| {
        let life = with_lane(&world, name, "shop");
        for _ in 0..8 {
            life.publish(&world).await.expect("published");
            let number = |path: &Path| fs::metadata(path).map(|file| file.ino()).ok();
            let (seen, served) = (life.target.join("domain"), domains.join("shop"));
            assert_eq!(
                number(&seen),
                number(&served),
                "another folder than the agent's"
            );
            assert!(number(&seen).is_some());
            life.unpublish(&world).await.expect("over");
        }
    };
    tokio::join!(come_and_go("a"), come_and_go("b"), come_and_go("c"));
    assert_eq!(world.mounts(), Vec::<String>::new());
    assert!(!domains.join("shop").exists());
}

/// A store whose file system shares blocks; it is unmounted with the value.
struct SharesBlocks(std::path::PathBuf);

impl SharesBlocks {
    fn mount_at(world: &World) -> SharesBlocks {
        let (image, root) = (world.dir().join("xfs.image"), world.root());
        let file = fs::File::create(&image).expect("a file");
        file.set_len(1 << 30).expect("its size");
        must("mkfs.xfs", &[OsStr::new("-q"), image.as_os_str()]);
        let words = ["-o", "loop"].map(OsStr::new);
        must(
            "mount",
            &[words[0], words[1], image.as_os_str(), root.as_os_str()],
        );
        SharesBlocks(root)
    }
}

impl Drop for SharesBlocks {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn must(program: &str, words: &[&OsStr]) {
    let said = Command::new(program).args(words).output().expect(program);
    assert!(said.status.success(), "{program}: {said:?}");
}

#[tokio::test]
async fn a_snapshot_of_a_volume_in_use_shares_its_blocks_and_is_as_it_was_at_that_moment() {
    if let Some(why) = missing() {
        return skip(&why);
    }
    if !has("mkfs.xfs") {
        return skip("no mkfs.xfs");
    }
    let mut world = World::new("shares");
    let shares = SharesBlocks::mount_at(&world);
    world.serve();
    world.plug_in(&[]).await;
    let mut life = Life::new(&world, "a");
    life.all_up(&world).await.expect("a volume");
    let file = life.target.join("hello");
    fs::write(&file, "before").expect("written");
    fs::File::open(&file)
        .and_then(|file| file.sync_all())
        .expect("on the disk");
    let mut controller = world.controller().await.expect("a plugin");
    let snapshot = CreateSnapshotRequest {
        source_volume_id: life.id.clone(),
        name: "snap".to_owned(),
        ..CreateSnapshotRequest::default()
    };
    let taken = controller.create_snapshot(snapshot).await.expect("taken");
    let snapshot_id = taken.into_inner().snapshot.expect("one").snapshot_id;
    fs::write(&file, "after").expect("written");
    let mut copy = Life::new(&world, "b");
    let mut request = copy.create_request();
    request.volume_content_source = Some(VolumeContentSource {
        r#type: Some(volume_content_source::Type::Snapshot(SnapshotSource {
            snapshot_id: snapshot_id.clone(),
        })),
    });
    let made = controller.create_volume(request).await.expect("made");
    copy.id = made.into_inner().volume.expect("one").volume_id;
    for step in 1..4 {
        copy.up(step, &world).await.expect("used");
    }
    let read = fs::read_to_string(copy.target.join("hello"));
    assert_eq!(read.expect("there"), "before");
    assert_eq!(fs::read_to_string(&file).expect("there"), "after");
    copy.all_down(&world).await.expect("over");
    life.all_down(&world).await.expect("over");
    let gone = DeleteSnapshotRequest {
        snapshot_id,
        ..DeleteSnapshotRequest::default()
    };
    controller.delete_snapshot(gone).await.expect("removed");
    world.kill_plugin();
    world.kill_server();
    drop(shares);
    world.must_be_clean();
}

#[tokio::test]
async fn an_xfs_grows_while_it_is_used_and_a_clone_is_mounted_beside_its_source() {
    if let Some(why) = missing() {
        return skip(&why);
    }
    if !has("mkfs.xfs") {
        return skip("no mkfs.xfs");
    }
    // The least that mkfs.xfs makes.
    const LEAST: i64 = 300 << 20;
    let world = World::start("xfs").await;
    let range = |required_bytes| {
        Some(CapacityRange {
            required_bytes,
            limit_bytes: 0,
        })
    };
    let mut controller = world.controller().await.expect("a plugin");
    let mut life = Life::new(&world, "a");
    life.capability.access_type = Some(AccessType::Mount(MountVolume {
        fs_type: "xfs".to_owned(),
        mount_flags: vec!["noatime".to_owned()],
        ..MountVolume::default()
    }));
    let mut request = life.create_request();
    request.capacity_range = range(LEAST);
    let made = controller.create_volume(request).await.expect("made");
    life.id = made.into_inner().volume.expect("one").volume_id;
    for step in 1..4 {
        life.up(step, &world).await.expect("used");
    }
    fs::write(life.target.join("hello"), "bytes").expect("written");
    let table = fs::read_to_string("/proc/self/mountinfo").expect("the mounts");
    let own = life.staging.display().to_string();
    let line = table.lines().find(|line| line.contains(&own));
    assert!(line.is_some_and(|line| line.contains("noatime") && line.contains("xfs")));
    let request = ControllerExpandVolumeRequest {
        volume_id: life.id.clone(),
        capacity_range: range(2 * LEAST),
        ..ControllerExpandVolumeRequest::default()
    };
    controller
        .controller_expand_volume(request)
        .await
        .expect("grown");
    let request = NodeExpandVolumeRequest {
        volume_id: life.id.clone(),
        volume_path: life.target.display().to_string(),
        capacity_range: range(2 * LEAST),
        ..NodeExpandVolumeRequest::default()
    };
    let mut node = world.node().await.expect("a plugin");
    node.node_expand_volume(request).await.expect("grown");
    let stat = rustix::fs::statvfs(&life.target).expect("told");
    let total = i64::try_from(stat.f_blocks * stat.f_frsize).expect("small");
    assert!(total > LEAST * 3 / 2, "{total}");
    for step in 0..3 {
        life.down(step, &world).await.expect("over");
    }
    let mut clone = Life::new(&world, "b");
    clone.capability = life.capability.clone();
    let mut request = clone.create_request();
    request.capacity_range = range(3 * LEAST);
    request.volume_content_source = Some(VolumeContentSource {
        r#type: Some(volume_content_source::Type::Volume(VolumeSource {
            volume_id: life.id.clone(),
        })),
    });
    let made = controller.create_volume(request).await.expect("made");
    clone.id = made.into_inner().volume.expect("one").volume_id;
    for life in [&mut life, &mut clone] {
        for step in 1..4 {
            life.up(step, &world).await.expect("used");
        }
        let read = fs::read_to_string(life.target.join("hello"));
        assert_eq!(read.expect("there"), "bytes");
    }
    let stat = rustix::fs::statvfs(&clone.target).expect("told");
    let total = i64::try_from(stat.f_blocks * stat.f_frsize).expect("small");
    assert!(
        total > LEAST * 5 / 2,
        "the clone's file system grew: {total}"
    );
    for life in [&life, &clone] {
        life.all_down(&world).await.expect("over");
    }
    world.must_be_clean();
}
