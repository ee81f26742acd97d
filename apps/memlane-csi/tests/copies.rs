//! Mirrored volumes as stores and their controller see them: two copies of each, published and removed while stores come and
//! go. No root is needed.

mod common;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::stores::{Authority, Store, controller};
use common::{Life, Running, World, capability};
use memlane_csi::proto::volume_capability::access_mode::Mode;
use memlane_csi::proto::volume_content_source::{self, VolumeSource};
use memlane_csi::proto::{
    CapacityRange, ControllerExpandVolumeRequest, ControllerGetVolumeRequest,
    CreateSnapshotRequest, CreateVolumeRequest, GetCapacityRequest, ListVolumesRequest, Topology,
    TopologyRequirement, Volume, VolumeContentSource,
};
use tonic::{Code, Status};

/// Three stores, two of which are in one zone.
struct Stores {
    world: World,
    all: [Store; 3],
    _controller: Running,
}

impl Stores {
    async fn start(label: &str) -> Stores {
        let world = World::new(label);
        let authority = Authority::new(world.dir());
        let tls = authority.server("server");
        let all = [("a", "x"), ("b", "x"), ("c", "y")]
            .map(|(name, zone)| Store::new(name, world.dir(), &tls, zone));
        let trusted = authority.client("controller", "memlane:store/*");
        let _controller = controller(&world, &trusted, &[&all[0], &all[1], &all[2]]).await;
        Stores {
            world,
            all,
            _controller,
        }
    }

    fn folders(&self, name: &str) -> Vec<PathBuf> {
        let folders = self
            .all
            .iter()
            .map(|store| store.root.join("volumes").join(name));
        folders.filter(|folder| folder.is_dir()).collect()
    }

    /// The nodes that have a name for the volume in a store.
    fn nodes(&self, store: usize, key: &str) -> Vec<String> {
        let nodes = self.all[store].root.join("nodes");
        let mut all = common::names(&nodes);
        all.retain(|node| nodes.join(node).join(key).exists());
        all
    }

    async fn list(&self) -> Vec<(String, Vec<String>)> {
        let mut client = self.world.controller().await.expect("a plugin");
        let (mut all, mut starting_token) = (Vec::new(), String::new());
        loop {
            let asked = ListVolumesRequest {
                max_entries: 1,
                starting_token,
            };
            let said = client
                .list_volumes(asked)
                .await
                .expect("a page")
                .into_inner();
            for entry in said.entries {
                let nodes = entry.status.expect("a status").published_node_ids;
                all.push((entry.volume.expect("a volume").volume_id, nodes));
            }
            starting_token = said.next_token;
            if starting_token.is_empty() {
                return all;
            }
        }
    }
}

fn mirrored(life: &Life) -> CreateVolumeRequest {
    CreateVolumeRequest {
        parameters: [("replicas".to_owned(), "2".to_owned())].into(),
        ..life.create_request()
    }
}

async fn create(world: &World, request: CreateVolumeRequest) -> Result<Volume, Status> {
    let mut client = world.controller().await?;
    let made = client.create_volume(request).await?.into_inner();
    Ok(made.volume.expect("a volume"))
}

/// Calls until the store that was started again is reached.
async fn insist<T>(call: impl AsyncFn() -> Result<T, Status>) -> T {
    let begin = Instant::now();
    loop {
        match call().await {
            Ok(done) => return done,
            Err(why) => assert!(begin.elapsed() < Duration::from_secs(30), "{why}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_mirrored_volume_is_in_two_stores_at_different_places_and_is_one_volume() {
    let mut stores = Stores::start("copies").await;
    let world = &stores.world;
    let mut life = Life::new(world, "one");
    let made = create(world, mirrored(&life)).await.expect("made");
    // Whatever is asked for fits beside what md keeps in each copy.
    assert_eq!(made.capacity_bytes, common::SIZE);
    assert_eq!(
        create(world, mirrored(&life)).await.expect("the same"),
        made
    );
    assert_eq!(stores.folders("v-one").len(), 2);
    for (store, name) in [("a", "a"), ("b", "b"), ("c", "c")] {
        let told = made
            .volume_context
            .contains_key(&format!("memlane.dev/servers.{store}"));
        assert_eq!(
            told,
            made.volume_id.contains(&format!("@{name}")),
            "{made:?}"
        );
    }
    // Another volume of that name is refused, mirrored or not.
    let why = create(world, life.create_request())
        .await
        .expect_err("mirrored");
    assert_eq!(why.code(), Code::AlreadyExists, "{why}");
    let plain = Life::new(world, "plain");
    create(world, plain.create_request()).await.expect("made");
    let why = create(world, mirrored(&plain))
        .await
        .expect_err("not mirrored");
    assert_eq!(why.code(), Code::AlreadyExists, "{why}");
    // A place where there are two stores: the second copy is elsewhere all the same.
    let apart = Life::new(world, "apart");
    let mut request = mirrored(&apart);
    let at = |zone: &str| Topology {
        segments: [("zone".to_owned(), zone.to_owned())].into(),
    };
    request.accessibility_requirements = Some(TopologyRequirement {
        requisite: vec![at("x"), at("y")],
        preferred: Vec::new(),
    });
    let apart = create(world, request).await.expect("made");
    assert!(apart.volume_id.ends_with("@c"), "{apart:?}");
    assert_eq!(apart.accessible_topology, [at("x"), at("y")]);

    life.id = made.volume_id.clone();
    life.attach(world).await.expect("published");
    assert_eq!(life.publish_context["memlane.dev/name"], "v-one");
    assert_eq!(life.publish_context.len(), 3, "{:?}", life.publish_context);
    let mut listed = stores.list().await;
    listed.sort();
    assert_eq!(listed.len(), 3, "{listed:?}");
    assert!(listed.contains(&(made.volume_id.clone(), vec!["n1".to_owned()])));
    let mut client = world.controller().await.expect("a plugin");
    // A copy's own name, and stores in the wrong order, name nothing.
    let id = &made.volume_id;
    let parts: Vec<&str> = id.split('@').collect();
    for other in [
        format!("{}@{}", parts[0], parts[1]),
        format!("{}@{}@{}", parts[0], parts[2], parts[1]),
    ] {
        let asked = ControllerGetVolumeRequest {
            volume_id: other.clone(),
        };
        let why = client.controller_get_volume(asked).await.expect_err(&other);
        assert_eq!(why.code(), Code::NotFound, "{why}");
    }
    let range = CapacityRange {
        required_bytes: 2 * common::SIZE,
        limit_bytes: 0,
    };
    let asked = ControllerExpandVolumeRequest {
        volume_id: id.clone(),
        capacity_range: Some(range),
        ..Default::default()
    };
    let grown = client.controller_expand_volume(asked).await.expect("grown");
    assert_eq!(grown.into_inner().capacity_bytes, 2 * common::SIZE);
    let asked = GetCapacityRequest {
        parameters: mirrored(&life).parameters,
        ..Default::default()
    };
    let room = client.get_capacity(asked).await.expect("told").into_inner();
    assert!(room.available_capacity > 0);

    let why = life.delete(world).await.expect_err("published");
    assert_eq!(why.code(), Code::FailedPrecondition, "{why}");
    life.detach(world).await.expect("taken");
    // Half of it is gone when a store dies; the repeated call removes the rest.
    let lost = stores
        .all
        .iter_mut()
        .rfind(|store| store.volumes() > 0 && id.ends_with(store.name));
    let lost = lost.expect("a store");
    lost.running = None;
    let why = life.delete(world).await.expect_err("a store is away");
    assert_eq!(why.code(), Code::Unavailable, "{why}");
    lost.start();
    insist(async || life.delete(&stores.world).await).await;
    life.delete(&stores.world).await.expect("gone");
    assert!(stores.folders("v-one").is_empty());
}

#[tokio::test]
async fn a_volume_that_was_made_in_one_store_when_the_controller_died_is_completed() {
    let stores = Stores::start("half").await;
    let world = &stores.world;
    let life = Life::new(world, "one");
    let made = create(world, mirrored(&life)).await.expect("made");
    let folders = stores.folders("v-one");
    for half in &folders {
        std::fs::remove_dir_all(half).expect("removed");
        // Until then it is no volume.
        assert!(stores.list().await.is_empty());
        let again = create(world, mirrored(&life)).await.expect("completed");
        assert_eq!(again, made);
        assert_eq!(stores.folders("v-one"), folders);
    }
}

#[tokio::test]
async fn what_a_mirrored_volume_cannot_do_is_refused_with_the_reason() {
    let stores = Stores::start("refused").await;
    let world = &stores.world;
    let mut life = Life::new(world, "one");
    life.id = create(world, mirrored(&life))
        .await
        .expect("made")
        .volume_id;
    let parameter = |name: &str, value: &str| CreateVolumeRequest {
        parameters: [(name.to_owned(), value.to_owned())].into(),
        ..Life::new(world, "wrong").create_request()
    };
    let clone = |request: CreateVolumeRequest, of: &str| CreateVolumeRequest {
        name: "wrong".to_owned(),
        volume_content_source: Some(VolumeContentSource {
            r#type: Some(volume_content_source::Type::Volume(VolumeSource {
                volume_id: of.to_owned(),
            })),
        }),
        ..request
    };
    let readers = CreateVolumeRequest {
        name: "wrong".to_owned(),
        volume_capabilities: vec![capability(Mode::MultiNodeReaderOnly, false)],
        ..mirrored(&life)
    };
    for (wrong, why) in [
        (parameter("replicas", "3"), "\"1\" or \"2\""),
        (parameter("memlane.dev/beside", "b"), "unknown"),
        (clone(life.create_request(), &life.id), "no clones"),
        (clone(mirrored(&life), &life.id), "no clones"),
        (readers, "one node"),
    ] {
        let said = create(world, wrong).await.expect_err(why);
        assert_eq!(said.code(), Code::InvalidArgument, "{said}");
        assert!(said.message().contains(why), "{said}");
    }
    let mut client = world.controller().await.expect("a plugin");
    let asked = CreateSnapshotRequest {
        source_volume_id: life.id.clone(),
        name: "snap".into(),
        ..Default::default()
    };
    let why = client.create_snapshot(asked).await.expect_err("refused");
    assert_eq!(why.code(), Code::InvalidArgument, "{why}");
    life.node = "n".repeat(62);
    life.attach(world)
        .await
        .expect_err("the session's name is too long");
    assert!(stores.folders("v-wrong").is_empty());
}

#[tokio::test]
async fn a_store_that_is_away_keeps_no_volume_from_moving_to_another_node() {
    let mut stores = Stores::start("moves").await;
    let mut life = Life::new(&stores.world, "one");
    life.id = create(&stores.world, mirrored(&life))
        .await
        .expect("made")
        .volume_id;
    let has = |one: &Store| life.id.split('@').any(|part| part == one.name);
    let both: Vec<usize> = (0..3).filter(|one| has(&stores.all[*one])).collect();
    let [near, far] = both[..] else {
        panic!("two stores: {both:?}")
    };
    life.attach(&stores.world).await.expect("published");
    let mut second = life.clone();
    second.node = "n2".to_owned();
    let why = second.attach(&stores.world).await.expect_err("n1 has it");
    assert_eq!(why.code(), Code::FailedPrecondition, "{why}");

    stores.all[far].running = None;
    let why = second.attach(&stores.world).await.expect_err("n1 has it");
    assert_eq!(why.code(), Code::FailedPrecondition, "{why}");
    life.detach(&stores.world)
        .await
        .expect("taken at one store");
    second
        .attach(&stores.world)
        .await
        .expect("published at one store");
    assert_eq!(stores.nodes(near, "v-one").len(), 1);
    assert!(
        stores.nodes(far, "v-one")[0].starts_with("n1@"),
        "a stale one"
    );

    // The store is back: nobody has the volume for good, so the orchestrator publishes it again, which ends the stale one.
    stores.all[far].start();
    let listed = insist(async || Ok(stores.list().await)).await;
    assert_eq!(listed, [(life.id.clone(), Vec::new())]);
    second
        .attach(&stores.world)
        .await
        .expect("published at both");
    let nodes = [near, far].map(|store| stores.nodes(store, "v-one"));
    assert!(
        nodes
            .iter()
            .all(|nodes| nodes.len() == 1 && nodes[0].starts_with("n2@")),
        "{nodes:?}"
    );
    assert_eq!(
        stores.list().await,
        [(life.id.clone(), vec!["n2".to_owned()])]
    );

    // With both away, nothing is known.
    stores.all[near].running = None;
    stores.all[far].running = None;
    for said in [
        second.detach(&stores.world).await,
        second.clone().attach(&stores.world).await,
    ] {
        assert_eq!(said.expect_err("both away").code(), Code::Unavailable);
    }
}
