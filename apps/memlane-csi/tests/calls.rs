//! Calls with missing, contradictory and hostile fields, and a plugin that is started twice. No root is needed.

mod common;

use std::collections::HashMap;

use common::{Life, Running, World, capability};
use memlane_csi::proto::volume_capability::access_mode::Mode;
use memlane_csi::proto::{
    CapacityRange, ControllerPublishVolumeRequest, CreateVolumeRequest, DeleteVolumeRequest,
    ListVolumesRequest, NodePublishVolumeRequest, NodeStageVolumeRequest,
    NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest,
};
use tonic::Code;

async fn world(label: &str) -> World {
    let mut world = World::new(label);
    world.plug_in(&[]).await;
    world
}

#[tokio::test]
async fn a_volume_that_cannot_be_made_is_refused_with_the_reason() {
    let world = world("hostile").await;
    let life = Life::new(&world, "a");
    let good = life.create_request();
    let parameter = |name: &str, value: &str| HashMap::from([(name.to_owned(), value.to_owned())]);
    let sized = |required_bytes, limit_bytes| CapacityRange {
        required_bytes,
        limit_bytes,
    };
    let wrong: Vec<(&str, Code, CreateVolumeRequest)> = vec![
        (
            "name is missing",
            Code::InvalidArgument,
            CreateVolumeRequest {
                name: String::new(),
                ..good.clone()
            },
        ),
        (
            "128",
            Code::InvalidArgument,
            CreateVolumeRequest {
                name: "x".repeat(1 << 20),
                ..good.clone()
            },
        ),
        (
            "control",
            Code::InvalidArgument,
            CreateVolumeRequest {
                name: "a\nb\u{1b}[2J".into(),
                ..good.clone()
            },
        ),
        (
            "volume_capabilities",
            Code::InvalidArgument,
            CreateVolumeRequest {
                volume_capabilities: vec![],
                ..good.clone()
            },
        ),
        (
            "one node that writes",
            Code::InvalidArgument,
            CreateVolumeRequest {
                volume_capabilities: vec![capability(Mode::MultiNodeMultiWriter, true)],
                ..good.clone()
            },
        ),
        (
            "negative",
            Code::InvalidArgument,
            CreateVolumeRequest {
                capacity_range: Some(sized(-1, 0)),
                ..good.clone()
            },
        ),
        (
            "or more",
            Code::InvalidArgument,
            CreateVolumeRequest {
                capacity_range: Some(sized(9, 8)),
                ..good.clone()
            },
        ),
        (
            "capacity_range",
            Code::OutOfRange,
            CreateVolumeRequest {
                capacity_range: Some(sized(i64::MAX, 0)),
                ..good.clone()
            },
        ),
        (
            "unknown",
            Code::InvalidArgument,
            CreateVolumeRequest {
                parameters: parameter("path", "/etc"),
                ..good.clone()
            },
        ),
        (
            "replicas",
            Code::InvalidArgument,
            CreateVolumeRequest {
                parameters: parameter("replicas", "2"),
                ..good.clone()
            },
        ),
        (
            "mutable_parameters",
            Code::InvalidArgument,
            CreateVolumeRequest {
                mutable_parameters: parameter("a", "b"),
                ..good.clone()
            },
        ),
    ];
    let mut client = world.controller().await.expect("a plugin");
    for (said, code, request) in wrong {
        let why = client.create_volume(request).await.expect_err(said);
        assert_eq!(why.code(), code, "{why}");
        assert!(why.message().contains(said), "{said}: {why}");
        assert!(why.message().len() < 400, "{}", why.message().len());
    }
    // A name that looks like a path is only a name.
    let path = CreateVolumeRequest {
        name: "../../etc/passwd".into(),
        ..good.clone()
    };
    let made = client.create_volume(path).await.expect("made").into_inner();
    let id = made.volume.expect("a volume").volume_id;
    assert!(!id.contains(['/', '.']), "{id}");
    assert_eq!(common::names(&world.root().join("volumes")).len(), 1);
}

#[tokio::test]
async fn a_name_that_exists_with_another_wish_is_a_contradiction() {
    let world = world("contrary").await;
    let mut life = Life::new(&world, "a");
    life.create(&world).await.expect("made");
    let first = life.id.clone();
    life.create(&world).await.expect("the same");
    assert_eq!(life.id, first);
    let mut client = world.controller().await.expect("a plugin");
    let mut larger = life.create_request();
    larger.capacity_range = Some(CapacityRange {
        required_bytes: 2 * common::SIZE,
        limit_bytes: 0,
    });
    let mut other = life.create_request();
    other.parameters = HashMap::from([("frontend".to_owned(), "loop".to_owned())]);
    for wish in [larger, other] {
        let why = client
            .create_volume(wish)
            .await
            .expect_err("a contradiction");
        assert_eq!(why.code(), Code::AlreadyExists, "{why}");
    }
}

#[tokio::test]
async fn identifiers_and_paths_that_lead_elsewhere_touch_nothing() {
    let world = world("paths").await;
    let mut life = Life::new(&world, "a");
    life.create(&world).await.expect("made");
    let mut controller = world.controller().await.expect("a plugin");
    for id in [
        "",
        "../volumes/v-a",
        "v-a/../../x@s",
        "a\0b",
        &"v".repeat(100_000),
    ] {
        let request = DeleteVolumeRequest {
            volume_id: id.into(),
            ..Default::default()
        };
        let why = controller
            .delete_volume(request)
            .await
            .expect_err("hostile");
        assert_eq!(why.code(), Code::InvalidArgument, "{why}");
    }
    let mut node = world.node().await.expect("a plugin");
    for place in ["", "relative", "/a/../etc", "/a\nb"] {
        let stage = NodeStageVolumeRequest {
            volume_id: life.id.clone(),
            staging_target_path: place.into(),
            volume_capability: Some(life.capability.clone()),
            ..Default::default()
        };
        let publish = NodePublishVolumeRequest {
            volume_id: life.id.clone(),
            staging_target_path: "/staging".into(),
            target_path: place.into(),
            volume_capability: Some(life.capability.clone()),
            ..Default::default()
        };
        let unpublish = NodeUnpublishVolumeRequest {
            volume_id: life.id.clone(),
            target_path: place.into(),
        };
        let unstage = NodeUnstageVolumeRequest {
            volume_id: life.id.clone(),
            staging_target_path: place.into(),
        };
        let codes = [
            node.node_stage_volume(stage)
                .await
                .expect_err("hostile")
                .code(),
            node.node_publish_volume(publish)
                .await
                .expect_err("hostile")
                .code(),
            node.node_unpublish_volume(unpublish)
                .await
                .expect_err("hostile")
                .code(),
            node.node_unstage_volume(unstage)
                .await
                .expect_err("hostile")
                .code(),
        ];
        assert_eq!(codes, [Code::InvalidArgument; 4], "{place:?}");
    }
    assert_eq!(common::names(&world.root().join("volumes")), ["v-a"]);
}

#[tokio::test]
async fn a_call_never_unmounts_what_is_not_its_volume() {
    let world = world("others").await;
    let mut life = Life::new(&world, "a");
    life.create(&world).await.expect("made");
    let mut node = world.node().await.expect("a plugin");
    for place in ["/proc", "/"] {
        let unpublish = NodeUnpublishVolumeRequest {
            volume_id: life.id.clone(),
            target_path: place.into(),
        };
        let why = node
            .node_unpublish_volume(unpublish)
            .await
            .expect_err("not ours");
        assert_eq!(why.code(), Code::FailedPrecondition, "{why}");
        let unstage = NodeUnstageVolumeRequest {
            volume_id: life.id.clone(),
            staging_target_path: place.into(),
        };
        let why = node
            .node_unstage_volume(unstage)
            .await
            .expect_err("not ours");
        assert_eq!(why.code(), Code::FailedPrecondition, "{why}");
    }
}

#[tokio::test]
async fn two_nodes_that_want_one_volume_are_told_who_has_it() {
    let mut world = World::new("twonodes");
    let mut command = world.command();
    let words: Vec<_> = command.get_args().map(std::ffi::OsStr::to_owned).collect();
    // A controller knows no nodes: it believes the orchestrator.
    command = std::process::Command::new(command.get_program());
    command.arg("controller");
    let kept = words
        .iter()
        .skip(1)
        .filter(|word| *word != "--node-id" && *word != "n1");
    command.args(kept);
    let _plugin = Running::start(&mut command);
    let mut life = Life::new(&world, "a");
    while life.create(&world).await.is_err() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    life.attach(&world).await.expect("the first");
    life.attach(&world).await.expect("again");
    let mut second = life.clone();
    second.node = "n2".into();
    let why = second.attach(&world).await.expect_err("the first has it");
    assert_eq!(why.code(), Code::FailedPrecondition, "{why}");
    assert!(why.message().contains("n1"), "{why}");
    let why = life.delete(&world).await.expect_err("in use");
    assert_eq!(why.code(), Code::FailedPrecondition, "{why}");
    for node in ["", "a b", "../n1", "n.1"] {
        let request = ControllerPublishVolumeRequest {
            volume_id: life.id.clone(),
            node_id: node.into(),
            volume_capability: Some(life.capability.clone()),
            ..Default::default()
        };
        let mut client = world.controller().await.expect("a plugin");
        let why = client
            .controller_publish_volume(request)
            .await
            .expect_err("no node");
        assert!(
            matches!(why.code(), Code::InvalidArgument | Code::NotFound),
            "{why}"
        );
    }
    life.detach(&world).await.expect("taken");
    second.attach(&world).await.expect("free");
    // Readers share.
    second.detach(&world).await.expect("taken");
    for life in [&mut life, &mut second] {
        life.capability = capability(Mode::MultiNodeReaderOnly, false);
        life.attach(&world).await.expect("a reader");
    }
    world.kill_plugin();
}

#[tokio::test]
async fn a_list_goes_on_where_it_ended_also_if_that_volume_is_gone() {
    let world = world("pages").await;
    let mut client = world.controller().await.expect("a plugin");
    for name in ["a", "b", "c", "d", "e"] {
        Life::new(&world, name).create(&world).await.expect("made");
    }
    let mut seen = Vec::new();
    let mut starting_token = String::new();
    loop {
        let request = ListVolumesRequest {
            max_entries: 2,
            starting_token,
        };
        let page = client
            .list_volumes(request)
            .await
            .expect("a page")
            .into_inner();
        assert!(page.entries.len() <= 2);
        let ids = page.entries.into_iter().filter_map(|entry| entry.volume);
        seen.extend(ids.map(|volume| volume.volume_id));
        starting_token = page.next_token;
        if starting_token.is_empty() {
            break;
        }
        let request = DeleteVolumeRequest {
            volume_id: starting_token.clone(),
            ..Default::default()
        };
        client.delete_volume(request).await.expect("removed");
    }
    let keys: Vec<&str> = seen.iter().filter_map(|id| id.split('@').next()).collect();
    assert_eq!(keys, ["v-a", "v-b", "v-c", "v-d", "v-e"]);
    let request = ListVolumesRequest {
        max_entries: -1,
        ..Default::default()
    };
    let why = client.list_volumes(request).await.expect_err("negative");
    assert_eq!(why.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn a_plugin_that_is_started_twice_says_so() {
    let world = world("twice").await;
    let second = world.command().output().expect("runs");
    assert_eq!(second.status.code(), Some(4), "{second:?}");
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(said.contains("another memlane-csi listens at"), "{said}");
    // At another socket, but in the same folder.
    let mut elsewhere = world.command();
    elsewhere
        .arg("--endpoint")
        .arg(world.dir().join("other.sock"));
    let mut words: Vec<_> = elsewhere
        .get_args()
        .map(std::ffi::OsStr::to_owned)
        .collect();
    let at = words
        .iter()
        .position(|word| word == "--endpoint")
        .expect("there");
    words.drain(at..at + 2);
    let mut elsewhere = std::process::Command::new(elsewhere.get_program());
    let second = elsewhere.args(words).output().expect("runs");
    assert_eq!(second.status.code(), Some(4), "{second:?}");
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(said.contains("works on the store"), "{said}");
    // The first one still answers.
    Life::new(&world, "a").create(&world).await.expect("made");
}
