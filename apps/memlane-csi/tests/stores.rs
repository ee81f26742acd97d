//! A controller that asks stores of other machines, over TLS. No root is needed.

mod common;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use common::stores::{Authority, Store, controller};
use common::{Life, World};
use memlane_csi::proto::{
    CreateSnapshotRequest, DeleteSnapshotRequest, GetCapacityRequest, ListSnapshotsRequest,
    ListVolumesRequest,
};
use tonic::Code;

#[tokio::test]
async fn volumes_are_made_in_one_store_and_found_there_by_every_later_call() {
    let world = World::new("stores");
    let authority = Authority::new(world.dir());
    let tls = authority.server("server");
    let mut a = Store::new("a", world.dir(), &tls, "x");
    let b = Store::new("b", world.dir(), &tls, "y");
    let trusted = authority.client("controller", "memlane:store/*");
    let _controller = controller(&world, &trusted, &[&a, &b]).await;
    let mut client = world.controller().await.expect("a plugin");

    let mut life = Life::new(&world, "one");
    life.create(&world).await.expect("made");
    let first = life.id.clone();
    life.create(&world).await.expect("the same");
    assert_eq!(life.id, first);
    assert_eq!(a.volumes() + b.volumes(), 1, "made twice");
    life.attach(&world).await.expect("published");
    assert_eq!(life.publish_context["memlane.dev/servers"], "192.0.2.1");
    life.detach(&world).await.expect("taken");

    // A place in which only one of them is.
    for (name, zone, store) in [("in-x", "x", "a"), ("in-y", "y", "b"), ("in-y2", "y", "b")] {
        let life = Life::new(&world, name);
        let mut request = life.create_request();
        let segments = [("zone".to_owned(), zone.to_owned())].into();
        request.accessibility_requirements = Some(memlane_csi::proto::TopologyRequirement {
            requisite: vec![memlane_csi::proto::Topology { segments }],
            preferred: Vec::new(),
        });
        let made = client
            .create_volume(request)
            .await
            .expect("made")
            .into_inner();
        let volume = made.volume.expect("a volume");
        assert!(
            volume.volume_id.ends_with(&format!("@{store}")),
            "{volume:?}"
        );
        assert_eq!(volume.accessible_topology[0].segments["zone"], zone);
    }

    let (mut seen, mut starting_token) = (0, String::new());
    loop {
        let request = ListVolumesRequest {
            max_entries: 1,
            starting_token,
        };
        let page = client
            .list_volumes(request)
            .await
            .expect("a page")
            .into_inner();
        seen += page.entries.len();
        starting_token = page.next_token;
        if starting_token.is_empty() {
            break;
        }
    }
    assert_eq!(seen, 4);

    let taken = client
        .create_snapshot(CreateSnapshotRequest {
            source_volume_id: first.clone(),
            name: "snap".into(),
            ..Default::default()
        })
        .await;
    let snapshot = taken.expect("taken").into_inner().snapshot.expect("one");
    let request = ListSnapshotsRequest {
        source_volume_id: first,
        ..Default::default()
    };
    let listed = client
        .list_snapshots(request)
        .await
        .expect("a list")
        .into_inner();
    assert_eq!(listed.entries.len(), 1);
    let snapshot_id = snapshot.snapshot_id;
    let request = DeleteSnapshotRequest {
        snapshot_id,
        ..Default::default()
    };
    client.delete_snapshot(request).await.expect("removed");
    let room = client.get_capacity(GetCapacityRequest::default()).await;
    assert!(room.expect("told").into_inner().available_capacity > 0);

    // Without one of them it cannot be known whether the volume is there: nothing is made twice.
    a.running = None;
    let mut new = Life::new(&world, "new");
    let why = new.create(&world).await.expect_err("a store is away");
    assert_eq!(why.code(), Code::Unavailable, "{why}");
    assert!(why.message().contains("store a"), "{why}");
    a.start();
    let begin = Instant::now();
    while let Err(why) = new.create(&world).await {
        assert!(begin.elapsed() < Duration::from_secs(30), "{why}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    new.delete(&world).await.expect("removed");
    life.delete(&world).await.expect("removed");
}

#[tokio::test]
async fn a_certificate_that_does_not_name_the_store_opens_nothing() {
    let world = World::new("strangers");
    let authority = Authority::new(world.dir());
    let a = Store::new("a", world.dir(), &authority.server("server"), "x");
    let cases = [
        // A node's certificate, as memlane map has it.
        ("node", "memlane:session/*"),
        ("other", "memlane:store/b"),
    ];
    for (folder, uri) in cases {
        let tls = authority.client(folder, uri);
        let mut running = controller(&world, &tls, &[&a]).await;
        let why = Life::new(&world, "v")
            .create(&world)
            .await
            .expect_err("a stranger");
        assert_eq!(why.code(), Code::PermissionDenied, "{why}");
        running.kill();
    }
    // One of another authority.
    let other = world.dir().join("elsewhere");
    fs::create_dir_all(&other).expect("a folder");
    let tls = Authority::new(&other).client("client", "memlane:store/*");
    let _running = controller(&world, &tls, &[&a]).await;
    let why = Life::new(&world, "v")
        .create(&world)
        .await
        .expect_err("a stranger");
    assert_eq!(why.code(), Code::Unavailable, "{why}");
    assert_eq!(a.volumes(), 0);
}

/// Puts the files of a folder in the place of those of another.
fn renew(folder: &Path, from: &Path) {
    for file in common::names(from) {
        let new = folder.join(format!("{file}.new"));
        fs::copy(from.join(&file), &new).expect("copied");
        fs::rename(new, folder.join(file)).expect("in place");
    }
}

#[tokio::test]
async fn renewed_certificates_take_effect_without_a_restart_of_either_end() {
    let world = World::new("renewed");
    let authority = Authority::new(world.dir());
    let (of_store, of_controller) = (
        authority.server("server"),
        authority.client("controller", "memlane:store/*"),
    );
    let mut a = Store::new("a", world.dir(), &of_store, "x");
    let mut first = controller(&world, &of_controller, &[&a]).await;
    let mut life = Life::new(&world, "one");
    life.create(&world).await.expect("made");

    // Everything is of another authority now. Files that do not fit each other change nothing.
    let elsewhere = world.dir().join("elsewhere");
    fs::create_dir_all(&elsewhere).expect("a folder");
    let other = Authority::new(&elsewhere);
    let server = other.server("server");
    fs::copy(
        server.join("server-key.pem"),
        of_store.join("server-key.pem"),
    )
    .expect("copied");
    first.kill();
    let mut second = controller(&world, &of_controller, &[&a]).await;
    life.create(&world).await.expect("as it was");
    // The store shows and believes the new ones: a controller that begins now has nothing else.
    renew(&of_store, &server);
    let new = other.client("controller", "memlane:store/*");
    second.kill();
    let _third = controller(&world, &new, &[&a]).await;
    life.create(&world).await.expect("the store has read them");

    // And so does the controller: it goes back to the first authority with a store that was started with that.
    renew(&new, &authority.client("again", "memlane:store/*"));
    renew(&of_store, &authority.server("another"));
    a.running = None;
    a.start();
    let begin = Instant::now();
    while let Err(why) = life.create(&world).await {
        assert!(begin.elapsed() < Duration::from_secs(30), "{why}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
