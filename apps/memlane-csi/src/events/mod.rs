//! Events of Kubernetes: what is wrong with a volume is told at the claim that it is for.
//!
//! The health of all volumes of the node is looked at regularly. When it changes, one event says so at the
//! PersistentVolumeClaim, or at the PersistentVolume where no claim has it. A claim outlives pods and is in their namespace, so
//! `kubectl describe` shows there what happened to a volume, whichever pod had it.

mod changes;
mod recorder;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tonic::Status;

use crate::node::Node;

pub use changes::{Change, Fault, Seen};
pub use recorder::Recorder;

/// How often volumes are looked at.
const LOOK: Duration = Duration::from_secs(5);

/// What is wrong with each volume, by identifier; nothing with those that are well.
pub type Faults = BTreeMap<String, Vec<Fault>>;

/// Tells of changes, for ever. What could not be told is told at the next look, if it is still so.
pub async fn tell(mut recorder: Recorder, node: Arc<Node>) {
    let mut seen = Seen::default();
    let mut said = None;
    loop {
        let looked = Arc::clone(&node);
        let failed = match tokio::task::spawn_blocking(move || faults(&looked)).await {
            Ok(Ok(now)) => tell_of(&mut recorder, &mut seen, now).await,
            Ok(Err(why)) => Some(why.message().to_owned()),
            Err(why) => Some(why.to_string()),
        };
        if let Some(why) = &failed
            && failed != said
        {
            eprintln!("memlane-csi: events are not told: {why}");
        }
        said = failed;
        tokio::time::sleep(LOOK).await;
    }
}

/// What is wrong with the volumes of a node: of each, first what keeps pods from their data.
fn faults(node: &Node) -> Result<Faults, Status> {
    let volumes = node.all_health()?.into_iter();
    let all = volumes.map(|mut health| {
        health.troubles.sort_by_key(|trouble| !trouble.inaccessible);
        let faults = health.troubles.into_iter().map(|trouble| Fault {
            reason: trouble.reason.name().to_owned(),
            message: trouble.message,
        });
        (health.volume, faults.collect())
    });
    Ok(all.collect())
}

/// Why some change could not be told, if one could not.
async fn tell_of(recorder: &mut Recorder, seen: &mut Seen, now: Faults) -> Option<String> {
    let mut failed = None;
    for change in seen.changes(&now) {
        match recorder.record(&change).await {
            Ok(()) => seen.is_told(&change.volume, &now),
            Err(why) => failed = Some(why.to_string()),
        }
    }
    seen.keep_only(&now);
    failed
}
