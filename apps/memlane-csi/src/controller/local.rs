//! The controller of one store of this machine.

use std::collections::HashMap;
use std::sync::Arc;

use prost_types::Timestamp;
use tonic::{Request, Response, Status};

use super::{health_is_asked_of_nodes, nothing_to_modify, offered};
use crate::capability::{Capability, Sharing};
use crate::metrics::Metrics;
use crate::node::{NAME, SERVERS};
use crate::parameters::{self, Parameters};
use crate::proto::controller_server::Controller;
use crate::proto::validate_volume_capabilities_response::Confirmed;
use crate::proto::volume_content_source::{self, SnapshotSource, VolumeSource};
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
    ListVolumesRequest, ListVolumesResponse, Snapshot, Topology, TopologyRequirement,
    ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse, Volume,
    VolumeContentSource, controller_get_volume_response, list_snapshots_response,
    list_volumes_response,
};
use crate::size::Range;
use crate::store::{self, Publication, Source, Store};
use crate::text::required;
use crate::volume_id::{Kind, SESSION_LIMIT, VolumeId, fits_session};

/// Most entries of a list that are given at once, if the orchestrator has no wish.
const PAGE: usize = 500;

/// What a controller of one store knows besides the store.
pub struct Settings {
    /// Where the store's server listens, as nodes reach it.
    pub serves: String,
    /// The only node there is, if that is known.
    pub only_node: Option<String>,
    /// Where the store is: volumes are reachable from nodes with these segments.
    pub topology: HashMap<String, String>,
}

/// The controller of one store.
#[derive(Clone)]
pub struct Local {
    inner: Arc<Inner>,
    metrics: Arc<Metrics>,
}

struct Inner {
    store: Store,
    settings: Settings,
}

impl Local {
    /// The controller of a store.
    #[must_use]
    pub fn new(store: Store, settings: Settings, metrics: Arc<Metrics>) -> Local {
        let inner = Arc::new(Inner { store, settings });
        Local { inner, metrics }
    }

    async fn run<T: Send + 'static>(
        &self,
        method: &'static str,
        work: impl FnOnce(&Inner) -> Result<T, Status> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let inner = Arc::clone(&self.inner);
        self.metrics.run(method, move || work(&inner)).await
    }
}

impl Inner {
    fn create(&self, request: &CreateVolumeRequest) -> Result<Volume, Status> {
        required("name", &request.name, crate::volume_id::NAME_LIMIT)?;
        Capability::read_all(&request.volume_capabilities)?;
        let range = Range::read(request.capacity_range.as_ref())?;
        let parameters = Parameters::read(&request.parameters)?;
        no_mutable(&request.mutable_parameters)?;
        if parameters.beside.as_deref() == Some(self.store.name()) {
            let why = "the other copy of a mirrored volume is in another store";
            return Err(Status::invalid_argument(why));
        }
        let source = source(request.volume_content_source.as_ref())?;
        self.is_within(request.accessibility_requirements.as_ref())?;
        let source = source.as_ref();
        let made = self
            .store
            .create(&request.name, range, &parameters, source)?;
        Ok(self.described(&made))
    }

    /// Whether a volume of this store is where it has to be.
    fn is_within(&self, wanted: Option<&TopologyRequirement>) -> Result<(), Status> {
        let requisite = wanted.map_or(&[][..], |wanted| &wanted.requisite);
        match requisite.is_empty() || requisite.iter().any(|one| self.is_at(one)) {
            true => Ok(()),
            false => Err(Status::resource_exhausted(format!(
                "store {} is in none of the wanted places",
                self.store.name()
            ))),
        }
    }

    fn is_at(&self, place: &Topology) -> bool {
        let own = &self.settings.topology;
        let mut segments = place.segments.iter();
        // A store that says nothing of its place is reachable from everywhere.
        own.is_empty() || segments.all(|(name, value)| own.get(name).is_none_or(|own| own == value))
    }

    /// A volume, as the orchestrator is told of it.
    fn described(&self, volume: &store::Volume) -> Volume {
        let segments = self.settings.topology.clone();
        let place = (!segments.is_empty()).then_some(Topology { segments });
        Volume {
            capacity_bytes: signed(volume.size),
            volume_id: volume.id.to_string(),
            volume_context: self.context(volume),
            content_source: volume.source.as_ref().map(content),
            accessible_topology: place.into_iter().collect(),
        }
    }

    /// What nodes are told. They may have to map the other copy of a mirrored volume while this store is away.
    fn context(&self, volume: &store::Volume) -> HashMap<String, String> {
        let mut context = volume.parameters.context();
        if volume.id.beside().is_some() {
            context.insert(SERVERS.to_owned(), self.settings.serves.clone());
        }
        context
    }

    fn volume_id(&self, text: &str) -> Result<Option<VolumeId>, Status> {
        self.own(VolumeId::parse(Kind::Volume, text)?)
    }

    /// Identifiers of other stores name nothing here.
    fn own(&self, id: Option<VolumeId>) -> Result<Option<VolumeId>, Status> {
        Ok(id.filter(|id| id.store() == self.store.name()))
    }

    fn existing(&self, text: &str) -> Result<VolumeId, Status> {
        let id = self.volume_id(text)?;
        id.ok_or_else(|| Status::not_found(format!("there is no volume {text:?} here")))
    }

    fn publish(
        &self,
        request: &ControllerPublishVolumeRequest,
    ) -> Result<ControllerPublishVolumeResponse, Status> {
        let id = self.volume_id(&request.volume_id)?;
        let node = required("node_id", &request.node_id, 256)?;
        let capability = Capability::read(request.volume_capability.as_ref())?;
        let id = id.ok_or_else(|| {
            Status::not_found(format!("there is no volume {:?} here", request.volume_id))
        })?;
        self.store.get(&id)?;
        self.is_node(node)?;
        if !fits_session(&id.session(node)) {
            let why = format!(
                "the names of node {node} and of the stores of volume {id} are too long together: {SESSION_LIMIT} bytes are the limit"
            );
            return Err(Status::invalid_argument(why));
        }
        let wanted = Publication {
            node: node.to_owned(),
            read_only: request.readonly || capability.read_only,
        };
        let shared = capability.sharing == Sharing::Readers;
        self.store.publish(&id, &wanted, shared)?;
        let publish_context = HashMap::from([
            (SERVERS.to_owned(), self.settings.serves.clone()),
            (NAME.to_owned(), wanted.name(&id)),
        ]);
        Ok(ControllerPublishVolumeResponse { publish_context })
    }

    /// A node's identifier is one that the node plugin gives.
    fn is_node(&self, node: &str) -> Result<(), Status> {
        let known = match &self.settings.only_node {
            Some(only) => only == node,
            None => crate::volume_id::node_id(node).as_deref() == Ok(node),
        };
        match known {
            true => Ok(()),
            false => Err(Status::not_found(format!("there is no node {node:?}"))),
        }
    }

    fn unpublish(&self, request: &ControllerUnpublishVolumeRequest) -> Result<(), Status> {
        let id = self.volume_id(&request.volume_id)?;
        let node = crate::text::optional("node_id", &request.node_id, 256)?;
        match id {
            Some(id) => self
                .store
                .unpublish(&id, (!node.is_empty()).then_some(node)),
            None => Ok(()),
        }
    }

    fn validate(
        &self,
        request: &ValidateVolumeCapabilitiesRequest,
    ) -> Result<ValidateVolumeCapabilitiesResponse, Status> {
        let id = self.volume_id(&request.volume_id)?;
        if request.volume_capabilities.is_empty() {
            return Err(Status::invalid_argument("volume_capabilities are missing"));
        }
        let missing = || Status::not_found(format!("there is no volume {:?}", request.volume_id));
        self.store.get(&id.ok_or_else(missing)?)?;
        let said = Capability::read_all(&request.volume_capabilities)
            .and_then(|_| Parameters::read(&request.parameters))
            .and_then(|_| no_mutable(&request.mutable_parameters));
        Ok(match said {
            Ok(()) => ValidateVolumeCapabilitiesResponse {
                confirmed: Some(Confirmed {
                    volume_context: request.volume_context.clone(),
                    volume_capabilities: request.volume_capabilities.clone(),
                    parameters: request.parameters.clone(),
                    ..Confirmed::default()
                }),
                message: String::new(),
            },
            Err(why) => ValidateVolumeCapabilitiesResponse {
                confirmed: None,
                message: why.message().to_owned(),
            },
        })
    }

    fn list(&self, request: &ListVolumesRequest) -> Result<ListVolumesResponse, Status> {
        let most = page(request.max_entries)?;
        let after = VolumeId::token(Kind::Volume, &request.starting_token)?;
        let (found, all) = self.store.list(after.as_ref(), most)?;
        let next_token = next(all, found.last().map(|last| &last.id));
        let entries = found.iter().map(|volume| {
            let published_node_ids = self.nodes(&volume.id)?;
            Ok(list_volumes_response::Entry {
                volume: Some(self.described(volume)),
                status: Some(list_volumes_response::VolumeStatus { published_node_ids }),
            })
        });
        Ok(ListVolumesResponse {
            entries: entries.collect::<Result<_, Status>>()?,
            next_token,
        })
    }

    fn nodes(&self, id: &VolumeId) -> Result<Vec<String>, Status> {
        let all = self.store.published(id)?.into_iter();
        Ok(all.map(|one| one.node).collect())
    }

    fn get(
        &self,
        request: &ControllerGetVolumeRequest,
    ) -> Result<ControllerGetVolumeResponse, Status> {
        let volume = self.store.named(&self.existing(&request.volume_id)?)?;
        let published_node_ids = self.nodes(&volume.id)?;
        Ok(ControllerGetVolumeResponse {
            volume: Some(self.described(&volume)),
            status: Some(controller_get_volume_response::VolumeStatus { published_node_ids }),
        })
    }

    fn expand(
        &self,
        request: &ControllerExpandVolumeRequest,
    ) -> Result<ControllerExpandVolumeResponse, Status> {
        let id = self.volume_id(&request.volume_id)?;
        if request.capacity_range.is_none() {
            return Err(Status::invalid_argument("capacity_range is missing"));
        }
        let range = Range::read(request.capacity_range.as_ref())?;
        let missing = || Status::not_found(format!("there is no volume {:?}", request.volume_id));
        let size = self.store.expand(&id.ok_or_else(missing)?, range)?;
        Ok(ControllerExpandVolumeResponse {
            capacity_bytes: signed(size),
            node_expansion_required: true,
        })
    }

    fn snapshot(&self, request: &CreateSnapshotRequest) -> Result<Snapshot, Status> {
        required("name", &request.name, crate::volume_id::NAME_LIMIT)?;
        let of = VolumeId::parse(Kind::Volume, &request.source_volume_id)?;
        parameters::of_snapshot(&request.parameters)?;
        let missing = || {
            let of = &request.source_volume_id;
            Status::not_found(format!("there is no volume {of:?} here"))
        };
        let of = of.ok_or_else(missing)?.to_string();
        Ok(self.shown(&self.store.snapshot(&request.name, &of)?))
    }

    fn shown(&self, snapshot: &store::Snapshot) -> Snapshot {
        Snapshot {
            size_bytes: signed(snapshot.size),
            snapshot_id: snapshot.id.to_string(),
            source_volume_id: snapshot.of.clone(),
            creation_time: Some(Timestamp {
                seconds: signed(snapshot.taken),
                nanos: 0,
            }),
            ready_to_use: true,
            ..Snapshot::default()
        }
    }

    fn delete_snapshot(&self, request: &DeleteSnapshotRequest) -> Result<(), Status> {
        let id = VolumeId::parse(Kind::Snapshot, &request.snapshot_id)?;
        match self.own(id)? {
            Some(id) => self.store.delete_snapshot(&id),
            None => Ok(()),
        }
    }

    fn get_snapshot(&self, request: &GetSnapshotRequest) -> Result<Snapshot, Status> {
        let text = &request.snapshot_id;
        let id = self.own(VolumeId::parse(Kind::Snapshot, text)?)?;
        let found = match id {
            Some(id) => self.store.find_snapshot(&id)?,
            None => None,
        };
        let found = found.map(|found| self.shown(&found));
        found.ok_or_else(|| Status::not_found(format!("there is no snapshot {text:?} here")))
    }

    fn list_snapshots(
        &self,
        request: &ListSnapshotsRequest,
    ) -> Result<ListSnapshotsResponse, Status> {
        let most = page(request.max_entries)?;
        let after = VolumeId::token(Kind::Snapshot, &request.starting_token)?;
        let (of, id) = (&request.source_volume_id, &request.snapshot_id);
        let wanted = |one: &store::Snapshot| {
            (of.is_empty() || one.of == *of) && (id.is_empty() || one.id.to_string() == *id)
        };
        let (found, all) = self.store.list_snapshots(after.as_ref(), most, wanted)?;
        let next_token = next(all, found.last().map(|last| &last.id));
        let entries = found.iter().map(|one| list_snapshots_response::Entry {
            snapshot: Some(self.shown(one)),
        });
        Ok(ListSnapshotsResponse {
            entries: entries.collect(),
            next_token,
        })
    }

    fn capacity(&self, request: &GetCapacityRequest) -> Result<GetCapacityResponse, Status> {
        for capability in &request.volume_capabilities {
            Capability::read(Some(capability))?;
        }
        Parameters::read(&request.parameters)?;
        let place = request.accessible_topology.as_ref();
        if place.is_some_and(|place| !self.is_at(place)) {
            return Ok(GetCapacityResponse::default());
        }
        let capacity = self.store.capacity()?;
        Ok(GetCapacityResponse {
            available_capacity: signed(capacity.available),
            maximum_volume_size: Some(signed(capacity.total)),
            minimum_volume_size: None,
        })
    }
}

fn source(source: Option<&VolumeContentSource>) -> Result<Option<Source>, Status> {
    let Some(source) = source else {
        return Ok(None);
    };
    let (kind, id) = match &source.r#type {
        Some(volume_content_source::Type::Volume(volume)) => (Kind::Volume, &volume.volume_id),
        Some(volume_content_source::Type::Snapshot(one)) => (Kind::Snapshot, &one.snapshot_id),
        None => {
            let why = "volume_content_source has no type";
            return Err(Status::invalid_argument(why));
        }
    };
    VolumeId::parse(kind, id)?;
    Ok(Some(match kind {
        Kind::Volume => Source::Volume(id.clone()),
        Kind::Snapshot => Source::Snapshot(id.clone()),
    }))
}

fn content(source: &Source) -> VolumeContentSource {
    VolumeContentSource {
        r#type: Some(match source.clone() {
            Source::Volume(volume_id) => {
                volume_content_source::Type::Volume(VolumeSource { volume_id })
            }
            Source::Snapshot(snapshot_id) => {
                volume_content_source::Type::Snapshot(SnapshotSource { snapshot_id })
            }
        }),
    }
}

fn no_mutable(given: &HashMap<String, String>) -> Result<(), Status> {
    match given.is_empty() {
        true => Ok(()),
        false => Err(Status::invalid_argument(
            "mutable_parameters: volumes have none",
        )),
    }
}

/// How many entries are wanted.
fn page(most: i32) -> Result<usize, Status> {
    match usize::try_from(most) {
        Ok(0) => Ok(PAGE),
        Ok(most) => Ok(most.min(PAGE)),
        Err(_) => Err(Status::invalid_argument("max_entries is negative")),
    }
}

/// The token of the next page: the list goes on behind the last entry of this one.
fn next(all: bool, last: Option<&VolumeId>) -> String {
    match last {
        Some(last) if !all => last.to_string(),
        _ => String::new(),
    }
}

fn signed(size: u64) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

#[tonic::async_trait]
impl Controller for Local {
    async fn create_volume(
        &self,
        request: Request<CreateVolumeRequest>,
    ) -> Result<Response<CreateVolumeResponse>, Status> {
        let request = request.into_inner();
        self.run("CreateVolume", move |inner| {
            let volume = Some(inner.create(&request)?);
            Ok(CreateVolumeResponse { volume })
        })
        .await
    }

    async fn delete_volume(
        &self,
        request: Request<DeleteVolumeRequest>,
    ) -> Result<Response<DeleteVolumeResponse>, Status> {
        let request = request.into_inner();
        self.run("DeleteVolume", move |inner| {
            if let Some(id) = inner.volume_id(&request.volume_id)? {
                inner.store.delete(&id)?;
            }
            Ok(DeleteVolumeResponse {})
        })
        .await
    }

    async fn controller_publish_volume(
        &self,
        request: Request<ControllerPublishVolumeRequest>,
    ) -> Result<Response<ControllerPublishVolumeResponse>, Status> {
        let request = request.into_inner();
        self.run("ControllerPublishVolume", move |inner| {
            inner.publish(&request)
        })
        .await
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<ControllerUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        self.run("ControllerUnpublishVolume", move |inner| {
            inner.unpublish(&request)?;
            Ok(ControllerUnpublishVolumeResponse {})
        })
        .await
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<ValidateVolumeCapabilitiesResponse>, Status> {
        let request = request.into_inner();
        self.run("ValidateVolumeCapabilities", move |inner| {
            inner.validate(&request)
        })
        .await
    }

    async fn list_volumes(
        &self,
        request: Request<ListVolumesRequest>,
    ) -> Result<Response<ListVolumesResponse>, Status> {
        let request = request.into_inner();
        self.run("ListVolumes", move |inner| inner.list(&request))
            .await
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
        let request = request.into_inner();
        self.run("GetCapacity", move |inner| inner.capacity(&request))
            .await
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
        let request = request.into_inner();
        self.run("CreateSnapshot", move |inner| {
            let snapshot = Some(inner.snapshot(&request)?);
            Ok(CreateSnapshotResponse { snapshot })
        })
        .await
    }

    async fn delete_snapshot(
        &self,
        request: Request<DeleteSnapshotRequest>,
    ) -> Result<Response<DeleteSnapshotResponse>, Status> {
        let request = request.into_inner();
        self.run("DeleteSnapshot", move |inner| {
            inner.delete_snapshot(&request)?;
            Ok(DeleteSnapshotResponse {})
        })
        .await
    }

    async fn list_snapshots(
        &self,
        request: Request<ListSnapshotsRequest>,
    ) -> Result<Response<ListSnapshotsResponse>, Status> {
        let request = request.into_inner();
        self.run("ListSnapshots", move |inner| inner.list_snapshots(&request))
            .await
    }

    async fn get_snapshot(
        &self,
        request: Request<GetSnapshotRequest>,
    ) -> Result<Response<GetSnapshotResponse>, Status> {
        let request = request.into_inner();
        self.run("GetSnapshot", move |inner| {
            let snapshot = Some(inner.get_snapshot(&request)?);
            Ok(GetSnapshotResponse { snapshot })
        })
        .await
    }

    async fn controller_expand_volume(
        &self,
        request: Request<ControllerExpandVolumeRequest>,
    ) -> Result<Response<ControllerExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        self.run("ControllerExpandVolume", move |inner| {
            inner.expand(&request)
        })
        .await
    }

    async fn controller_get_volume(
        &self,
        request: Request<ControllerGetVolumeRequest>,
    ) -> Result<Response<ControllerGetVolumeResponse>, Status> {
        let request = request.into_inner();
        self.run("ControllerGetVolume", move |inner| inner.get(&request))
            .await
    }

    async fn controller_modify_volume(
        &self,
        _request: Request<ControllerModifyVolumeRequest>,
    ) -> Result<Response<ControllerModifyVolumeResponse>, Status> {
        nothing_to_modify()
    }
}
