//! The controller of several stores, each on its own machine.
//!
//! A volume's identifier says in which store it is, so a call goes to that store and nowhere else. A new volume goes to the
//! store with the most room. Before that, every store that it could be in is asked whether it has a volume of this name: a
//! call that was cut short may have made it, and a second one elsewhere would be one too many.
//!
//! A mirrored volume is in two stores: calls about it are in [`mirror`].

mod mirror;
mod pages;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::ClientConfig;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

use self::pages::{Page, is_first_copy};
use super::{health_is_asked_of_nodes, nothing_to_modify, offered};
use crate::certificates::Certificates;
use crate::metrics::Metrics;
use crate::parameters;
use crate::proto::controller_client::ControllerClient;
use crate::proto::controller_server::Controller;
use crate::proto::list_volumes_response::Entry;
use crate::proto::volume_content_source::Type as Source;
use crate::proto::{
    ControllerExpandVolumeRequest, ControllerExpandVolumeResponse,
    ControllerGetCapabilitiesRequest, ControllerGetCapabilitiesResponse,
    ControllerGetVolumeHealthRequest, ControllerGetVolumeHealthResponse,
    ControllerGetVolumeRequest, ControllerGetVolumeResponse, ControllerListVolumeHealthRequest,
    ControllerListVolumeHealthResponse, ControllerModifyVolumeRequest,
    ControllerModifyVolumeResponse, ControllerPublishVolumeRequest,
    ControllerPublishVolumeResponse, ControllerUnpublishVolumeRequest,
    ControllerUnpublishVolumeResponse, CreateSnapshotRequest, CreateSnapshotResponse,
    CreateVolumeRequest, CreateVolumeResponse, DeleteSnapshotRequest, DeleteSnapshotResponse,
    DeleteVolumeRequest, DeleteVolumeResponse, GetCapacityRequest, GetCapacityResponse,
    GetSnapshotRequest, GetSnapshotResponse, ListSnapshotsRequest, ListSnapshotsResponse,
    ListVolumesRequest, ListVolumesResponse, ValidateVolumeCapabilitiesRequest,
    ValidateVolumeCapabilitiesResponse, Volume,
};
use crate::volume_id::{Kind, VolumeId, store_name};

/// How long a store may take to answer: a copy without shared blocks takes its time.
const PATIENCE: Duration = Duration::from_secs(300);

/// A store, and where it is reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Address {
    name: String,
    uri: String,
}

impl std::str::FromStr for Address {
    type Err = String;

    /// Reads `NAME=https://HOST:PORT`.
    fn from_str(text: &str) -> Result<Address, String> {
        let (name, uri) = text.split_once('=').unwrap_or((text, ""));
        match uri.starts_with("https://") {
            true => Ok(Address {
                name: store_name(name)?,
                uri: uri.to_owned(),
            }),
            false => Err("NAME=https://HOST:PORT is needed".to_owned()),
        }
    }
}

type Client = ControllerClient<Channel>;

/// The controller of several stores.
#[derive(Clone)]
pub struct Several {
    stores: Arc<BTreeMap<String, Client>>,
    metrics: Arc<Metrics>,
}

impl Several {
    /// A controller that asks these stores. They need not be there yet.
    ///
    /// # Errors
    /// An address is none, or two stores have one name.
    pub fn new(
        addresses: &[Address],
        tls: &Arc<Certificates<ClientConfig>>,
        metrics: Arc<Metrics>,
    ) -> anyhow::Result<Several> {
        let mut stores = BTreeMap::new();
        for Address { name, uri } in addresses {
            let client = ControllerClient::new(tls.channel(uri, PATIENCE)?);
            if stores.insert(name.clone(), client).is_some() {
                anyhow::bail!("two stores are called {name:?}");
            }
        }
        let stores = Arc::new(stores);
        Ok(Several { stores, metrics })
    }

    /// Where a volume or snapshot is.
    fn find(&self, kind: Kind, text: &str) -> Result<Place<'_>, Status> {
        let Some(id) = VolumeId::parse(kind, text)? else {
            return Ok(Place::Nowhere);
        };
        if id.beside().is_some() {
            let known = id.copies().iter().all(|copy| self.has_store(copy.store()));
            return Ok(match known && id == id.whole() {
                true => Place::Two(id),
                false => Place::Nowhere,
            });
        }
        Ok(match self.stores.get_key_value(id.store()) {
            Some((name, client)) => Place::One(name, client.clone()),
            None => Place::Nowhere,
        })
    }

    fn has_store(&self, name: &str) -> bool {
        self.stores.contains_key(name)
    }

    /// The store of the source of a new volume.
    fn source(&self, kind: Kind, text: &str) -> Result<&str, Status> {
        match self.find(kind, text)? {
            Place::One(name, _) => Ok(name),
            Place::Two(_) => Err(no_copies_of()),
            Place::Nowhere => nothing(text),
        }
    }

    async fn get(
        &self,
        request: &ControllerGetVolumeRequest,
    ) -> Result<ControllerGetVolumeResponse, Status> {
        let text = &request.volume_id;
        let (name, mut client) = match self.find(Kind::Volume, text)? {
            Place::Nowhere => return nothing(text),
            Place::Two(id) => return self.get_mirror(&id).await,
            Place::One(name, client) => (name, client),
        };
        let said = client.controller_get_volume(request.clone()).await;
        let said = said.map_err(|why| of_store(name, why))?.into_inner();
        match said.volume.as_ref().map(|volume| &volume.volume_id) {
            Some(id) if id == text => Ok(said),
            // The store has a copy of a mirrored volume by this name.
            _ => nothing(text),
        }
    }

    async fn create(&self, request: &CreateVolumeRequest) -> Result<CreateVolumeResponse, Status> {
        if parameters::is_mirrored(&request.parameters)? {
            return self.create_mirror(request).await;
        }
        let mut last = None;
        for name in self.candidates(request).await? {
            match self.create_in(&name, request).await {
                // Full, or in none of the wanted places: the next one.
                Err(why) if why.code() == Code::ResourceExhausted => last = Some(why),
                said => return said,
            }
        }
        Err(last.unwrap_or_else(|| Status::resource_exhausted("there is no store")))
    }

    async fn create_in(
        &self,
        name: &str,
        request: &CreateVolumeRequest,
    ) -> Result<CreateVolumeResponse, Status> {
        let mut client = self.stores[name].clone();
        let said = client.create_volume(request.clone()).await;
        said.map(Response::into_inner)
            .map_err(|why| of_store(name, why))
    }

    /// The stores in which a volume can be made, best first: alone the one that has it, or its source; otherwise all, the
    /// one with the most room first.
    async fn candidates(&self, request: &CreateVolumeRequest) -> Result<Vec<String>, Status> {
        let source = request.volume_content_source.as_ref();
        if let Some(source) = source.and_then(|source| source.r#type.as_ref()) {
            let name = match source {
                Source::Volume(one) => self.source(Kind::Volume, &one.volume_id)?,
                Source::Snapshot(one) => self.source(Kind::Snapshot, &one.snapshot_id)?,
            };
            return Ok(vec![name.to_owned()]);
        }
        let mut by_room = Vec::new();
        for (name, client) in self.stores.iter() {
            if self.named(name, client, &request.name).await?.is_some() {
                return Ok(vec![name.clone()]);
            }
            let room = self
                .room(name, client, &GetCapacityRequest::default())
                .await?;
            by_room.push((room.available_capacity, name.clone()));
        }
        by_room.sort();
        Ok(by_room.into_iter().rev().map(|(_, name)| name).collect())
    }

    /// The volume of this name in a store, which may be the copy of a mirrored one.
    async fn named(
        &self,
        name: &str,
        client: &Client,
        volume: &str,
    ) -> Result<Option<Volume>, Status> {
        let volume_id = VolumeId::of_volume(volume, name)?.to_string();
        let asked = ControllerGetVolumeRequest { volume_id };
        match client.clone().controller_get_volume(asked).await {
            Ok(said) => Ok(said.into_inner().volume),
            Err(why) if why.code() == Code::NotFound => Ok(None),
            Err(why) => Err(of_store(name, why)),
        }
    }

    async fn room(
        &self,
        name: &str,
        client: &Client,
        request: &GetCapacityRequest,
    ) -> Result<GetCapacityResponse, Status> {
        let said = client.clone().get_capacity(request.clone()).await;
        said.map(Response::into_inner)
            .map_err(|why| of_store(name, why))
    }

    /// The most room that one store has, or that two have for a mirrored volume.
    async fn capacity(&self, request: &GetCapacityRequest) -> Result<GetCapacityResponse, Status> {
        if parameters::is_mirrored(&request.parameters)? {
            return self.capacity_for_mirror(request).await;
        }
        let mut best = GetCapacityResponse::default();
        for (name, client) in self.stores.iter() {
            let room = self.room(name, client, request).await?;
            if room.available_capacity >= best.available_capacity {
                best = room;
            }
        }
        Ok(best)
    }

    async fn list(&self, request: &ListVolumesRequest) -> Result<ListVolumesResponse, Status> {
        let ask = |mut client: Client, max_entries, starting_token| async move {
            let page = ListVolumesRequest {
                max_entries,
                starting_token,
            };
            let said = client.list_volumes(page).await?.into_inner();
            let id = |entry: &Entry| entry.volume.as_ref().map(|one| one.volume_id.clone());
            Ok(Page {
                last: said.entries.last().and_then(id).unwrap_or_default(),
                next: said.next_token,
                // Each mirrored volume is listed once.
                entries: said
                    .entries
                    .into_iter()
                    .filter(|entry| id(entry).is_some_and(|id| is_first_copy(&id)))
                    .collect(),
            })
        };
        let (most, token) = (request.max_entries, &request.starting_token);
        let (listed, next_token) = self.pages(Kind::Volume, most, token, ask).await?;
        let mut entries = Vec::new();
        for entry in listed {
            entries.extend(self.whole(entry).await?);
        }
        Ok(ListVolumesResponse {
            entries,
            next_token,
        })
    }

    /// Snapshots of one volume, or with one identifier, are in one store alone.
    async fn list_snapshots(
        &self,
        request: &ListSnapshotsRequest,
    ) -> Result<ListSnapshotsResponse, Status> {
        let only = match (&request.snapshot_id, &request.source_volume_id) {
            (id, _) if !id.is_empty() => Some(self.find(Kind::Snapshot, id)?),
            (_, of) if !of.is_empty() => Some(self.find(Kind::Volume, of)?),
            _ => None,
        };
        match only {
            None => {}
            Some(Place::One(name, mut client)) => {
                let said = client.list_snapshots(request.clone()).await;
                return said
                    .map(Response::into_inner)
                    .map_err(|why| of_store(name, why));
            }
            Some(_) => return Ok(ListSnapshotsResponse::default()),
        }
        let ask = |mut client: Client, max_entries, starting_token| async move {
            let page = ListSnapshotsRequest {
                max_entries,
                starting_token,
                ..ListSnapshotsRequest::default()
            };
            let said = client.list_snapshots(page).await?.into_inner();
            let last = said.entries.last().and_then(|last| last.snapshot.as_ref());
            Ok(Page {
                last: last
                    .map(|last| last.snapshot_id.clone())
                    .unwrap_or_default(),
                next: said.next_token,
                entries: said.entries,
            })
        };
        let (most, token) = (request.max_entries, &request.starting_token);
        let (entries, next_token) = self.pages(Kind::Snapshot, most, token, ask).await?;
        Ok(ListSnapshotsResponse {
            entries,
            next_token,
        })
    }

    fn count<T>(
        &self,
        method: &'static str,
        begin: Instant,
        result: Result<T, Status>,
    ) -> Result<Response<T>, Status> {
        self.metrics.count(method, begin, &result);
        result.map(Response::new)
    }
}

/// An error with the store's name. What only means that the store was not reached is to be tried again.
fn of_store(name: &str, why: Status) -> Status {
    let code = match why.code() {
        Code::Unknown | Code::Cancelled => Code::Unavailable,
        code => code,
    };
    Status::new(code, format!("store {name}: {}", why.message()))
}

/// Where a volume or snapshot is.
enum Place<'a> {
    /// In no store: nothing has this identifier.
    Nowhere,
    /// In this store.
    One(&'a str, Client),
    /// In two stores: a mirrored volume.
    Two(VolumeId),
}

/// A call that goes to the store that an identifier names. `$else` is the answer where no store is meant; `$mirror` answers
/// for a mirrored volume.
macro_rules! forward {
    ($self:ident, $method:literal, $call:ident, $request:ident, $kind:expr, $id:ident, $else:expr, $mirror:ident) => {{
        let begin = Instant::now();
        let request = $request.into_inner();
        let result = match $self.find($kind, &request.$id) {
            Err(why) => Err(why),
            Ok(Place::Nowhere) => $else(&request.$id),
            Ok(Place::Two(id)) => $self.$mirror(&id, &request).await,
            Ok(Place::One(name, mut client)) => match client.$call(request).await {
                Ok(said) => Ok(said.into_inner()),
                Err(why) => Err(of_store(name, why)),
            },
        };
        $self.count($method, begin, result)
    }};
}

/// The answer to whoever wants a snapshot or a clone of a mirrored volume.
fn no_copies_of() -> Status {
    Status::invalid_argument(
        "mirrored volumes have no snapshots and no clones, and begin empty: a store does not know whether its copy is up to date",
    )
}

fn nothing<T>(id: &str) -> Result<T, Status> {
    Err(Status::not_found(format!("no store has {id:?}")))
}

#[tonic::async_trait]
impl Controller for Several {
    async fn create_volume(
        &self,
        request: Request<CreateVolumeRequest>,
    ) -> Result<Response<CreateVolumeResponse>, Status> {
        let begin = Instant::now();
        let result = self.create(&request.into_inner()).await;
        self.count("CreateVolume", begin, result)
    }

    async fn delete_volume(
        &self,
        request: Request<DeleteVolumeRequest>,
    ) -> Result<Response<DeleteVolumeResponse>, Status> {
        let gone = |_: &str| Ok(DeleteVolumeResponse {});
        forward!(
            self,
            "DeleteVolume",
            delete_volume,
            request,
            Kind::Volume,
            volume_id,
            gone,
            delete_mirror
        )
    }

    async fn controller_publish_volume(
        &self,
        request: Request<ControllerPublishVolumeRequest>,
    ) -> Result<Response<ControllerPublishVolumeResponse>, Status> {
        forward!(
            self,
            "ControllerPublishVolume",
            controller_publish_volume,
            request,
            Kind::Volume,
            volume_id,
            nothing,
            publish_mirror
        )
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<ControllerUnpublishVolumeResponse>, Status> {
        let gone = |_: &str| Ok(ControllerUnpublishVolumeResponse {});
        forward!(
            self,
            "ControllerUnpublishVolume",
            controller_unpublish_volume,
            request,
            Kind::Volume,
            volume_id,
            gone,
            unpublish_mirror
        )
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<ValidateVolumeCapabilitiesResponse>, Status> {
        forward!(
            self,
            "ValidateVolumeCapabilities",
            validate_volume_capabilities,
            request,
            Kind::Volume,
            volume_id,
            nothing,
            validate_mirror
        )
    }

    async fn list_volumes(
        &self,
        request: Request<ListVolumesRequest>,
    ) -> Result<Response<ListVolumesResponse>, Status> {
        let begin = Instant::now();
        let result = self.list(&request.into_inner()).await;
        self.count("ListVolumes", begin, result)
    }

    async fn controller_list_volume_health(
        &self,
        _request: Request<ControllerListVolumeHealthRequest>,
    ) -> Result<Response<ControllerListVolumeHealthResponse>, Status> {
        health_is_asked_of_nodes()
    }

    async fn controller_get_volume_health(
        &self,
        _request: Request<ControllerGetVolumeHealthRequest>,
    ) -> Result<Response<ControllerGetVolumeHealthResponse>, Status> {
        health_is_asked_of_nodes()
    }

    async fn get_capacity(
        &self,
        request: Request<GetCapacityRequest>,
    ) -> Result<Response<GetCapacityResponse>, Status> {
        let begin = Instant::now();
        let result = self.capacity(&request.into_inner()).await;
        self.count("GetCapacity", begin, result)
    }

    async fn controller_get_capabilities(
        &self,
        _request: Request<ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<ControllerGetCapabilitiesResponse>, Status> {
        Ok(Response::new(offered()))
    }

    async fn create_snapshot(
        &self,
        request: Request<CreateSnapshotRequest>,
    ) -> Result<Response<CreateSnapshotResponse>, Status> {
        forward!(
            self,
            "CreateSnapshot",
            create_snapshot,
            request,
            Kind::Volume,
            source_volume_id,
            nothing,
            snapshot_of_mirror
        )
    }

    async fn delete_snapshot(
        &self,
        request: Request<DeleteSnapshotRequest>,
    ) -> Result<Response<DeleteSnapshotResponse>, Status> {
        let gone = |_: &str| Ok(DeleteSnapshotResponse {});
        forward!(
            self,
            "DeleteSnapshot",
            delete_snapshot,
            request,
            Kind::Snapshot,
            snapshot_id,
            gone,
            no_such_snapshot
        )
    }

    async fn list_snapshots(
        &self,
        request: Request<ListSnapshotsRequest>,
    ) -> Result<Response<ListSnapshotsResponse>, Status> {
        let begin = Instant::now();
        let result = self.list_snapshots(&request.into_inner()).await;
        self.count("ListSnapshots", begin, result)
    }

    async fn get_snapshot(
        &self,
        request: Request<GetSnapshotRequest>,
    ) -> Result<Response<GetSnapshotResponse>, Status> {
        forward!(
            self,
            "GetSnapshot",
            get_snapshot,
            request,
            Kind::Snapshot,
            snapshot_id,
            nothing,
            no_such_snapshot
        )
    }

    async fn controller_expand_volume(
        &self,
        request: Request<ControllerExpandVolumeRequest>,
    ) -> Result<Response<ControllerExpandVolumeResponse>, Status> {
        forward!(
            self,
            "ControllerExpandVolume",
            controller_expand_volume,
            request,
            Kind::Volume,
            volume_id,
            nothing,
            expand_mirror
        )
    }

    async fn controller_get_volume(
        &self,
        request: Request<ControllerGetVolumeRequest>,
    ) -> Result<Response<ControllerGetVolumeResponse>, Status> {
        let begin = Instant::now();
        let result = self.get(&request.into_inner()).await;
        self.count("ControllerGetVolume", begin, result)
    }

    async fn controller_modify_volume(
        &self,
        _request: Request<ControllerModifyVolumeRequest>,
    ) -> Result<Response<ControllerModifyVolumeResponse>, Status> {
        nothing_to_modify()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_named_and_reached_by_tls_only() {
        let read = "a-1=https://192.0.2.1:9811".parse::<Address>();
        assert!(read.is_ok(), "{read:?}");
        for wrong in ["", "a", "a=", "a=http://x", "a.b=https://x", "=https://x"] {
            assert!(wrong.parse::<Address>().is_err(), "{wrong}");
        }
    }
}
