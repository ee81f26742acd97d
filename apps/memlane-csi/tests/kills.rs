//! The plugin killed between any two steps: the repeated call completes what the first one began, and nothing is left.

mod common;

use std::time::Duration;

use common::{Life, World, missing, skip};
use memlane_csi::proto::controller_client::ControllerClient;
use tonic::Status;

/// Every point at which the plugin can be made to end (`step` in the source).
const POINTS: [&str; 13] = [
    "make: folder made",
    "make: filled",
    "make: written",
    "make: moved",
    "stage: mapped",
    "stage: formatted",
    "stage: mounted",
    "publish: mounted",
    "unpublish: unmounted",
    "unstage: unmounted",
    "unpublish: name removed",
    "remove: moved",
    "remove: discarded",
];

/// Calls until the call succeeds; the plugin is started again each time it has ended. Returns how often that was.
async fn insist(world: &mut World, life: &mut Life, up: bool, step: usize) -> usize {
    let mut ends = 0;
    for _ in 0..20 {
        let said = match up {
            true => life.up(step, world).await,
            false => life.down(step, world).await,
        };
        let Err(why) = said else { return ends };
        tokio::time::sleep(Duration::from_millis(20)).await;
        if world.plugin_has_ended() {
            ends += 1;
            world.plug_in(&[]).await;
        } else {
            // mkfs of the killed plugin may still be at work.
            eprintln!("tried again: {why}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    panic!("step {step} does not succeed");
}

async fn live(world: &mut World, life: &mut Life) -> usize {
    let mut ends = 0;
    for step in 0..4 {
        ends += insist(world, life, true, step).await;
    }
    let file = life.target.join("hello");
    std::fs::write(&file, "bytes").expect("written");
    // The pod is moved: another life at the same place finds what the first one wrote.
    for step in 0..2 {
        ends += insist(world, life, false, step).await;
    }
    for step in 2..4 {
        ends += insist(world, life, true, step).await;
    }
    assert_eq!(std::fs::read_to_string(&file).expect("there"), "bytes");
    for step in 0..4 {
        ends += insist(world, life, false, step).await;
    }
    ends
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_is_killed_at_any_step_loses_nothing_and_leaves_nothing() {
    if let Some(why) = missing() {
        return skip(&why);
    }
    let mut world = World::new("kills");
    world.serve();
    for (number, point) in POINTS.iter().enumerate() {
        world.plug_in(&[("MEMLANE_CSI_DIES_AT", point)]).await;
        let mut life = Life::new(&world, &format!("k{number}"));
        let ends = live(&mut world, &mut life).await;
        assert_eq!(ends, 1, "{point}: the plugin was to end there, once");
        world.must_be_clean();
        world.kill_plugin();
    }
}

#[tokio::test]
async fn a_snapshot_that_was_cut_short_is_taken_by_the_next_call() {
    if let Some(why) = missing() {
        return skip(&why);
    }
    let mut world = World::new("snaps");
    world.serve();
    for (number, point) in POINTS[..4].iter().enumerate() {
        world.plug_in(&[]).await;
        let mut life = Life::new(&world, &format!("s{number}"));
        life.create(&world).await.expect("made");
        world.kill_plugin();
        world.plug_in(&[("MEMLANE_CSI_DIES_AT", point)]).await;
        let request = memlane_csi::proto::CreateSnapshotRequest {
            source_volume_id: life.id.clone(),
            name: format!("snap{number}"),
            ..Default::default()
        };
        let take = async |world: &World| {
            let mut client: ControllerClient<_> = world.controller().await?;
            let said = client.create_snapshot(request.clone()).await?;
            Ok::<_, Status>(said.into_inner().snapshot.expect("a snapshot"))
        };
        take(&world).await.expect_err("the plugin ends");
        world.plug_in(&[]).await;
        let first = take(&world).await.expect("taken");
        let again = take(&world).await.expect("the same");
        assert_eq!(first, again);
        let mut client = world.controller().await.expect("a plugin");
        let gone = memlane_csi::proto::DeleteSnapshotRequest {
            snapshot_id: first.snapshot_id,
            ..Default::default()
        };
        client.delete_snapshot(gone).await.expect("removed");
        life.delete(&world).await.expect("removed");
        world.must_be_clean();
        world.kill_plugin();
    }
}
