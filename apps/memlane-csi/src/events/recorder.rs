//! Events, written to the API server.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume};
use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Error};
use serde_json::json;

use super::Change;
use crate::DRIVER;
use crate::volume_id::{Kind, VolumeId};

/// An event that comes again within this time is counted in the one that there is, as other recorders of Kubernetes do.
const SERIES: SignedDuration = SignedDuration::from_mins(6);

/// An event that exists.
struct Written {
    namespace: String,
    name: String,
    count: i32,
    at: Timestamp,
}

/// Writes events in the name of a node.
pub struct Recorder {
    client: Client,
    node: String,
    /// By volume and reason.
    written: HashMap<(String, String), Written>,
}

impl Recorder {
    /// One that has written nothing yet.
    #[must_use]
    pub fn new(client: Client, node: &str) -> Recorder {
        Recorder {
            client,
            node: node.to_owned(),
            written: HashMap::new(),
        }
    }

    /// Writes an event. A volume of which the cluster has no PersistentVolume is nobody's there, and nothing is written.
    ///
    /// # Errors
    /// The API server does not take it, or is away.
    pub async fn record(&mut self, change: &Change) -> Result<(), Error> {
        let now = Timestamp::now();
        self.written.retain(|_, event| event.at + SERIES > now);
        let key = (change.volume.clone(), change.reason.clone());
        if let Some(event) = self.written.get_mut(&key)
            && event.count_again(&self.client, &change.note, now).await?
        {
            return Ok(());
        }
        let Some(volume) = self.volume(&change.volume).await? else {
            return Ok(());
        };
        let event = event(change, &self.node, &volume, now);
        let (namespace, name) = (
            event.metadata.namespace.clone(),
            event.metadata.name.clone(),
        );
        let namespace = namespace.unwrap_or_default();
        let events: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
        events.create(&PostParams::default(), &event).await?;
        let written = Written {
            namespace,
            name: name.unwrap_or_default(),
            count: 1,
            at: now,
        };
        self.written.insert(key, written);
        Ok(())
    }

    /// The PersistentVolume of a volume: provisioners make volumes by its name, from which the identifier follows.
    async fn volume(&self, id: &str) -> Result<Option<PersistentVolume>, Error> {
        let parsed = VolumeId::parse(Kind::Volume, id).ok().flatten();
        let Some(name) = parsed.as_ref().and_then(|id| id.key().strip_prefix("v-")) else {
            return Ok(None);
        };
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let found = volumes.get_opt(name).await?;
        let is_this = |volume: &PersistentVolume| {
            let csi = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
            csi.is_some_and(|csi| csi.driver == DRIVER && csi.volume_handle == id)
        };
        Ok(found.filter(is_this))
    }
}

impl Written {
    /// Counts the event once more. `false`: it is there no longer.
    async fn count_again(
        &mut self,
        client: &Client,
        note: &str,
        now: Timestamp,
    ) -> Result<bool, Error> {
        let series = EventSeries {
            count: self.count.saturating_add(1),
            last_observed_time: MicroTime(now),
        };
        let patch = Patch::Merge(json!({"series": series, "note": note}));
        let events: Api<Event> = Api::namespaced(client.clone(), &self.namespace);
        match events
            .patch(&self.name, &PatchParams::default(), &patch)
            .await
        {
            Ok(_) => {
                self.count = series.count;
                self.at = now;
                Ok(true)
            }
            Err(Error::Api(status)) if status.code == 404 => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// The event at the claim of a volume; at the volume, if no claim has it.
fn event(change: &Change, node: &str, volume: &PersistentVolume, now: Timestamp) -> Event {
    let itself = ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("PersistentVolume".to_owned()),
        name: volume.metadata.name.clone(),
        uid: volume.metadata.uid.clone(),
        ..ObjectReference::default()
    };
    let claim = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.claim_ref.as_ref());
    let regarding = match claim {
        Some(claim) => ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("PersistentVolumeClaim".to_owned()),
            name: claim.name.clone(),
            namespace: claim.namespace.clone(),
            uid: claim.uid.clone(),
            ..ObjectReference::default()
        },
        None => itself.clone(),
    };
    let mut event = Event::default();
    // Names of events that are told at the same object differ by their time, as other recorders do it.
    let of = regarding.name.as_deref().unwrap_or_default();
    event.metadata.name = Some(format!("{of}.{:x}", now.as_nanosecond()));
    // Events about what is in no namespace are in this one.
    let namespace = regarding.namespace.clone();
    event.metadata.namespace = Some(namespace.unwrap_or_else(|| "default".to_owned()));
    event.event_time = Some(MicroTime(now));
    event.reporting_controller = Some(DRIVER.to_owned());
    event.reporting_instance = Some(node.to_owned());
    event.action = Some("Watch".to_owned());
    event.reason = Some(change.reason.clone());
    event.type_ = Some(
        if change.is_warning {
            "Warning"
        } else {
            "Normal"
        }
        .to_owned(),
    );
    event.note = Some(change.note.clone());
    event.related = claim.is_some().then_some(itself);
    event.regarding = Some(regarding);
    event
}
