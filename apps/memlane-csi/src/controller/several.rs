//! The controller of several stores, each on its own machine.
//!
//! A volume's identifier says in which store it is, so a call goes to that store and nowhere else. A new volume goes to the
//! store with the most room. Before that, every store that it could be in is asked whether it has a volume of this name: a
//! call that was cut short may have made it, and a second one elsewhere would be one too many.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tonic::transport::{Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Request, Response, Status};

use super::offered;
use crate::metrics::Metrics;
use crate::proto::controller_client::ControllerClient;
use crate::proto::controller_server::Controller;
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
    ValidateVolumeCapabilitiesResponse,
};
use crate::volume_id::{Kind, VolumeId, store_name};

/// How long a store may take to answer: a copy without shared blocks takes its time.
const PATIENCE: Duration = Duration::from_secs(300);
/// How long a store may take to let itself be connected to.
const CONNECT: Duration = Duration::from_secs(5);
/// Most entries of a list that are given at once, if the orchestrator has no wish.
const PAGE: i32 = 500;

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
        tls: &ClientTlsConfig,
        metrics: Arc<Metrics>,
    ) -> anyhow::Result<Several> {
        let mut stores = BTreeMap::new();
        for Address { name, uri } in addresses {
            let endpoint = Endpoint::from_shared(uri.clone())?
                .tls_config(tls.clone())?
                .connect_timeout(CONNECT)
                .timeout(PATIENCE);
            let client = ControllerClient::new(endpoint.connect_lazy());
            if stores.insert(name.clone(), client).is_some() {
                anyhow::bail!("two stores are called {name:?}");
            }
        }
        let stores = Arc::new(stores);
        Ok(Several { stores, metrics })
    }

    /// The store of a volume or snapshot; `None`: of an identifier that nothing has.
    fn of(&self, kind: Kind, text: &str) -> Result<Option<(&str, Client)>, Status> {
        let id = VolumeId::parse(kind, text)?;
        let found = id.and_then(|id| self.stores.get_key_value(id.store()));
        Ok(found.map(|(name, client)| (name.as_str(), client.clone())))
    }

    fn existing(&self, kind: Kind, text: &str) -> Result<(&str, Client), Status> {
        self.of(kind, text)?
            .ok_or_else(|| Status::not_found(format!("no store has {text:?}")))
    }

    async fn create(&self, request: &CreateVolumeRequest) -> Result<CreateVolumeResponse, Status> {
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
            let (name, _) = match source {
                Source::Volume(one) => self.existing(Kind::Volume, &one.volume_id)?,
                Source::Snapshot(one) => self.existing(Kind::Snapshot, &one.snapshot_id)?,
            };
            return Ok(vec![name.to_owned()]);
        }
        let mut by_room = Vec::new();
        for (name, client) in self.stores.iter() {
            if self.has(name, client, &request.name).await? {
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

    async fn has(&self, name: &str, client: &Client, volume: &str) -> Result<bool, Status> {
        let volume_id = VolumeId::of_volume(volume, name)?.to_string();
        let asked = ControllerGetVolumeRequest { volume_id };
        match client.clone().controller_get_volume(asked).await {
            Ok(_) => Ok(true),
            Err(why) if why.code() == Code::NotFound => Ok(false),
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

    /// The most room that one store has: a volume is never in two.
    async fn capacity(&self, request: &GetCapacityRequest) -> Result<GetCapacityResponse, Status> {
        let mut best = GetCapacityResponse::default();
        for (name, client) in self.stores.iter() {
            let room = self.room(name, client, request).await?;
            if room.available_capacity >= best.available_capacity {
                best = room;
            }
        }
        Ok(best)
    }

    /// Lists store after store, in the order of their names, from the one that the token names.
    async fn list(&self, request: &ListVolumesRequest) -> Result<ListVolumesResponse, Status> {
        let mut asked = first_page(request.max_entries)?;
        let mut found = ListVolumesResponse::default();
        let token = VolumeId::token(Kind::Volume, &request.starting_token)?;
        for (name, client) in self.from(token.as_ref()) {
            let of_this = token.as_ref().filter(|token| token.store() == name);
            let page = ListVolumesRequest {
                max_entries: asked,
                starting_token: of_this.map(VolumeId::to_string).unwrap_or_default(),
            };
            let said = client.clone().list_volumes(page).await;
            let said = said.map_err(|why| of_store(name, why))?.into_inner();
            asked -= i32::try_from(said.entries.len()).unwrap_or(asked);
            found.entries.extend(said.entries);
            found.next_token = said.next_token;
            if asked <= 0 || !found.next_token.is_empty() {
                break;
            }
        }
        let last = found.entries.last().and_then(|last| last.volume.as_ref());
        if asked <= 0 && found.next_token.is_empty() {
            found.next_token = self.more(last.map_or("", |last| &last.volume_id), Kind::Volume);
        }
        Ok(found)
    }

    /// Lists snapshots in the same way; of one volume, or one identifier, in its store alone.
    async fn list_snapshots(
        &self,
        request: &ListSnapshotsRequest,
    ) -> Result<ListSnapshotsResponse, Status> {
        let only = match (&request.snapshot_id, &request.source_volume_id) {
            (id, _) if !id.is_empty() => Some(self.of(Kind::Snapshot, id)?),
            (_, of) if !of.is_empty() => Some(self.of(Kind::Volume, of)?),
            _ => None,
        };
        match only {
            Some(None) => return Ok(ListSnapshotsResponse::default()),
            Some(Some((name, mut client))) => {
                let said = client.list_snapshots(request.clone()).await;
                return said
                    .map(Response::into_inner)
                    .map_err(|why| of_store(name, why));
            }
            None => {}
        }
        let mut asked = first_page(request.max_entries)?;
        let mut found = ListSnapshotsResponse::default();
        let token = VolumeId::token(Kind::Snapshot, &request.starting_token)?;
        for (name, client) in self.from(token.as_ref()) {
            let of_this = token.as_ref().filter(|token| token.store() == name);
            let page = ListSnapshotsRequest {
                max_entries: asked,
                starting_token: of_this.map(VolumeId::to_string).unwrap_or_default(),
                ..ListSnapshotsRequest::default()
            };
            let said = client.clone().list_snapshots(page).await;
            let said = said.map_err(|why| of_store(name, why))?.into_inner();
            asked -= i32::try_from(said.entries.len()).unwrap_or(asked);
            found.entries.extend(said.entries);
            found.next_token = said.next_token;
            if asked <= 0 || !found.next_token.is_empty() {
                break;
            }
        }
        let last = found.entries.last().and_then(|last| last.snapshot.as_ref());
        if asked <= 0 && found.next_token.is_empty() {
            found.next_token = self.more(last.map_or("", |last| &last.snapshot_id), Kind::Snapshot);
        }
        Ok(found)
    }

    /// The stores from the one that a token names on.
    fn from(&self, token: Option<&VolumeId>) -> impl Iterator<Item = (&str, &Client)> {
        let first = token.map_or("", VolumeId::store).to_owned();
        let all = self.stores.iter();
        all.map(|(name, client)| (name.as_str(), client))
            .filter(move |(name, _)| *name >= first.as_str())
    }

    /// The token behind the last entry of a store that has no more, if another store comes after it.
    fn more(&self, last: &str, kind: Kind) -> String {
        let id = VolumeId::parse(kind, last).ok().flatten();
        let has_next = id.is_some_and(|id| self.from(Some(&id)).nth(1).is_some());
        if has_next {
            last.to_owned()
        } else {
            String::new()
        }
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

fn first_page(most: i32) -> Result<i32, Status> {
    match most {
        0 => Ok(PAGE),
        1.. => Ok(most.min(PAGE)),
        _ => Err(Status::invalid_argument("max_entries is negative")),
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

/// A call that goes to the store that an identifier names. `$else` is the answer where no store is meant.
macro_rules! forward {
    ($self:ident, $method:literal, $call:ident, $request:ident, $kind:expr, $id:ident, $else:expr) => {{
        let begin = Instant::now();
        let request = $request.into_inner();
        let result = match $self.of($kind, &request.$id) {
            Err(why) => Err(why),
            Ok(None) => $else(&request.$id),
            Ok(Some((name, mut client))) => match client.$call(request).await {
                Ok(said) => Ok(said.into_inner()),
                Err(why) => Err(of_store(name, why)),
            },
        };
        $self.count($method, begin, result)
    }};
}

fn nothing<T>(id: &String) -> Result<T, Status> {
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
        let gone = |_: &String| Ok(DeleteVolumeResponse {});
        forward!(
            self,
            "DeleteVolume",
            delete_volume,
            request,
            Kind::Volume,
            volume_id,
            gone
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
            nothing
        )
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<ControllerUnpublishVolumeResponse>, Status> {
        let gone = |_: &String| Ok(ControllerUnpublishVolumeResponse {});
        forward!(
            self,
            "ControllerUnpublishVolume",
            controller_unpublish_volume,
            request,
            Kind::Volume,
            volume_id,
            gone
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
            nothing
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
        let why = "ControllerListVolumeHealth is not offered: ask the nodes";
        Err(Status::unimplemented(why))
    }

    async fn controller_get_volume_health(
        &self,
        _request: Request<ControllerGetVolumeHealthRequest>,
    ) -> Result<Response<ControllerGetVolumeHealthResponse>, Status> {
        let why = "ControllerGetVolumeHealth is not offered: ask the node";
        Err(Status::unimplemented(why))
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
            nothing
        )
    }

    async fn delete_snapshot(
        &self,
        request: Request<DeleteSnapshotRequest>,
    ) -> Result<Response<DeleteSnapshotResponse>, Status> {
        let gone = |_: &String| Ok(DeleteSnapshotResponse {});
        forward!(
            self,
            "DeleteSnapshot",
            delete_snapshot,
            request,
            Kind::Snapshot,
            snapshot_id,
            gone
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
            nothing
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
            nothing
        )
    }

    async fn controller_get_volume(
        &self,
        request: Request<ControllerGetVolumeRequest>,
    ) -> Result<Response<ControllerGetVolumeResponse>, Status> {
        forward!(
            self,
            "ControllerGetVolume",
            controller_get_volume,
            request,
            Kind::Volume,
            volume_id,
            nothing
        )
    }

    async fn controller_modify_volume(
        &self,
        _request: Request<ControllerModifyVolumeRequest>,
    ) -> Result<Response<ControllerModifyVolumeResponse>, Status> {
        Err(Status::unimplemented(
            "ControllerModifyVolume is not offered",
        ))
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
