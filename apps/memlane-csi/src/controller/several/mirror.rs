//! Mirrored volumes: two stores have a copy each.
//!
//! A store that cannot be reached keeps no volume from being published to a node or taken from it, as long as the other store
//! does what is asked. That is safe because of what a node does with one copy: it uses it alone only if that copy itself says
//! that the other one was left behind (`node::mirror`).
//!
//! A publication counts only if all stores that can be reached have it. One that only some have is what a store kept that was
//! away when the volume was taken from the node.

use std::collections::{BTreeSet, HashMap};

use tonic::{Code, Status};

use super::{Client, Several, no_copies_of, nothing, of_store};
use crate::capability::{Capability, Sharing};
use crate::node::{NAME, SERVERS, servers_of};
use crate::parameters;
use crate::proto::controller_get_volume_response::VolumeStatus;
use crate::proto::list_volumes_response::{self, Entry};
use crate::proto::volume_capability::AccessMode;
use crate::proto::volume_capability::access_mode::Mode;
use crate::proto::{
    CapacityRange, ControllerExpandVolumeRequest, ControllerExpandVolumeResponse,
    ControllerGetVolumeRequest, ControllerGetVolumeResponse, ControllerPublishVolumeRequest,
    ControllerPublishVolumeResponse, ControllerUnpublishVolumeRequest,
    ControllerUnpublishVolumeResponse, CreateSnapshotRequest, CreateSnapshotResponse,
    CreateVolumeRequest, CreateVolumeResponse, DeleteVolumeRequest, DeleteVolumeResponse,
    GetCapacityRequest, GetCapacityResponse, Topology, ValidateVolumeCapabilitiesRequest,
    ValidateVolumeCapabilitiesResponse, Volume, VolumeCapability,
};
use crate::size::MIRROR;
use crate::text::required;
use crate::volume_id::{Kind, VolumeId};

/// A copy that was found in its store.
struct Found {
    id: VolumeId,
    client: Client,
    volume: Volume,
    nodes: BTreeSet<String>,
}

/// What matters of a store when a place for a new volume is looked for.
struct Candidate {
    name: String,
    room: i64,
    /// In which of the wanted places it is.
    places: Vec<bool>,
}

impl Several {
    /// Makes both copies, or completes what a call made that was cut short.
    pub(super) async fn create_mirror(
        &self,
        request: &CreateVolumeRequest,
    ) -> Result<CreateVolumeResponse, Status> {
        if request.volume_content_source.is_some() {
            return Err(no_copies_of());
        }
        one_node(&request.volume_capabilities)?;
        let mut last = None;
        for pair in self.pairs(request).await? {
            match self.create_pair(&pair, request).await {
                // One of them is full: the next two.
                Err(why) if why.code() == Code::ResourceExhausted => last = Some(why),
                Err(why) => return Err(why),
                Ok(volume) => {
                    let volume = Some(volume);
                    return Ok(CreateVolumeResponse { volume });
                }
            }
        }
        Err(last.unwrap_or_else(|| {
            Status::resource_exhausted("a mirrored volume needs two stores, one in a wanted place")
        }))
    }

    /// Pairs of stores in which the volume can be made, best first: alone the pair that has it; otherwise first those at
    /// different places, then those with the most room.
    async fn pairs(&self, request: &CreateVolumeRequest) -> Result<Vec<[String; 2]>, Status> {
        let mut all = Vec::new();
        for (name, client) in self.stores.iter() {
            if let Some(volume) = self.named(name, client, &request.name).await? {
                let id = VolumeId::parse(Kind::Volume, &volume.volume_id)?;
                let pair = id.and_then(|id| pair(&id));
                return pair.map(|pair| vec![pair]).ok_or_else(|| {
                    let id = &volume.volume_id;
                    Status::already_exists(format!("volume {id} exists, and is not mirrored"))
                });
            }
            all.push(self.candidate(name, client, request).await?);
        }
        Ok(best_pairs(&all))
    }

    async fn candidate(
        &self,
        name: &str,
        client: &Client,
        request: &CreateVolumeRequest,
    ) -> Result<Candidate, Status> {
        let asked = GetCapacityRequest::default();
        let room = self.room(name, client, &asked).await?.available_capacity;
        let wanted = request.accessibility_requirements.as_ref();
        let mut places = Vec::new();
        for place in wanted.map_or(&[][..], |wanted| &wanted.requisite) {
            places.push(self.room_at(name, client, place).await? > 0);
        }
        Ok(Candidate {
            name: name.to_owned(),
            room,
            places,
        })
    }

    /// How much room a store has for volumes of a place: none, if it is elsewhere.
    async fn room_at(&self, name: &str, client: &Client, place: &Topology) -> Result<i64, Status> {
        let asked = GetCapacityRequest {
            accessible_topology: Some(place.clone()),
            ..GetCapacityRequest::default()
        };
        let said = self.room(name, client, &asked).await?;
        Ok(said.available_capacity)
    }

    async fn create_pair(
        &self,
        [first, second]: &[String; 2],
        request: &CreateVolumeRequest,
    ) -> Result<Volume, Status> {
        let one = self.create_copy(first, second, request).await?;
        match self.create_copy(second, first, request).await {
            Err(why) if why.code() == Code::ResourceExhausted => {
                self.delete_copy(first, one.volume_id).await?;
                Err(why)
            }
            other => joined(one, other?),
        }
    }

    async fn create_copy(
        &self,
        name: &str,
        beside: &str,
        request: &CreateVolumeRequest,
    ) -> Result<Volume, Status> {
        let asked = CreateVolumeRequest {
            name: request.name.clone(),
            capacity_range: with_mirror(request.capacity_range.as_ref())?,
            volume_capabilities: request.volume_capabilities.clone(),
            parameters: parameters::of_copy(&request.parameters, Some(beside)),
            mutable_parameters: request.mutable_parameters.clone(),
            ..CreateVolumeRequest::default()
        };
        self.create_in(name, &asked)
            .await?
            .volume
            .ok_or_else(|| of_store(name, Status::internal("it made nothing")))
    }

    /// The room for a mirrored volume: what the best two stores both have, one of which is at the wanted place.
    pub(super) async fn capacity_for_mirror(
        &self,
        request: &GetCapacityRequest,
    ) -> Result<GetCapacityResponse, Status> {
        let mut all = Vec::new();
        for (name, client) in self.stores.iter() {
            let asked = GetCapacityRequest::default();
            let room = self.room(name, client, &asked).await?.available_capacity;
            let places = match &request.accessible_topology {
                Some(place) => vec![self.room_at(name, client, place).await? > 0],
                None => Vec::new(),
            };
            all.push(Candidate {
                name: name.clone(),
                room,
                places,
            });
        }
        let room = |pair: &[String; 2]| {
            let both = all.iter().filter(|one| pair.contains(&one.name));
            both.map(|one| one.room).min().unwrap_or(0)
        };
        let best = best_pairs(&all).iter().map(room).max().unwrap_or(0);
        let available_capacity = (best - signed(MIRROR)).max(0);
        Ok(GetCapacityResponse {
            available_capacity,
            maximum_volume_size: Some(available_capacity),
            minimum_volume_size: None,
        })
    }

    /// The copies that are in stores which can be reached; an error, if that is none, or if one of them is not there.
    async fn reachable(&self, id: &VolumeId) -> Result<Vec<Found>, Status> {
        let (mut found, mut away) = (Vec::new(), Vec::new());
        for copy in id.copies() {
            match self.get_copy(&copy).await {
                Ok(copy) => found.push(copy),
                Err(why) if why.code() == Code::Unavailable => away.push(why),
                Err(why) => return Err(why),
            }
        }
        match (found.is_empty(), away.pop()) {
            (true, Some(why)) => Err(why),
            _ => Ok(found),
        }
    }

    async fn get_copy(&self, id: &VolumeId) -> Result<Found, Status> {
        let mut client = self.stores[id.store()].clone();
        let asked = ControllerGetVolumeRequest {
            volume_id: id.to_string(),
        };
        let said = client.controller_get_volume(asked).await;
        let said = said.map_err(|why| of_store(id.store(), why))?.into_inner();
        let volume = said.volume.unwrap_or_default();
        if volume.volume_id != id.to_string() {
            return nothing(&id.to_string());
        }
        let nodes = said.status.map(|status| status.published_node_ids);
        Ok(Found {
            id: id.clone(),
            client,
            volume,
            nodes: nodes.into_iter().flatten().collect(),
        })
    }

    pub(super) async fn get_mirror(
        &self,
        id: &VolumeId,
    ) -> Result<ControllerGetVolumeResponse, Status> {
        let found = self.reachable(id).await?;
        let published_node_ids = published(&found).into_iter().collect();
        Ok(ControllerGetVolumeResponse {
            volume: all_joined(found)?,
            status: Some(VolumeStatus { published_node_ids }),
        })
    }

    /// A mirrored volume of a list, with what the other store says of it. `None`: a copy is missing, so the volume is not
    /// complete, or is being removed.
    pub(super) async fn whole(&self, entry: Entry) -> Result<Option<Entry>, Status> {
        let named = entry.volume.as_ref().map_or("", |one| &one.volume_id);
        let id = VolumeId::parse(Kind::Volume, named)?;
        let Some(id) = id.filter(|id| id.beside().is_some_and(|one| self.has_store(one))) else {
            return Ok(Some(entry));
        };
        let mut found = Vec::new();
        for copy in id.copies() {
            match self.get_copy(&copy).await {
                Ok(copy) => found.push(copy),
                Err(why) if why.code() == Code::NotFound => return Ok(None),
                Err(why) => return Err(why),
            }
        }
        let published_node_ids = published(&found).into_iter().collect();
        Ok(Some(Entry {
            volume: all_joined(found)?,
            status: Some(list_volumes_response::VolumeStatus { published_node_ids }),
        }))
    }

    pub(super) async fn publish_mirror(
        &self,
        id: &VolumeId,
        request: &ControllerPublishVolumeRequest,
    ) -> Result<ControllerPublishVolumeResponse, Status> {
        let node = required("node_id", &request.node_id, 256)?;
        let capability = request.volume_capability.as_ref();
        Capability::read(capability)?;
        one_node(capability.map_or(&[], std::slice::from_ref))?;
        let mut found = self.reachable(id).await?;
        let counted = published(&found);
        for copy in &mut found {
            for stale in copy.nodes.difference(&counted).filter(|one| *one != node) {
                self.unpublish_copy(&copy.id, stale).await?;
            }
        }
        let mut publish_context = HashMap::new();
        for copy in &mut found {
            let asked = ControllerPublishVolumeRequest {
                volume_id: copy.id.to_string(),
                node_id: node.to_owned(),
                volume_capability: capability.map(for_writing),
                ..ControllerPublishVolumeRequest::default()
            };
            let said = copy.client.controller_publish_volume(asked).await;
            let said = said.map_err(|why| of_store(copy.id.store(), why))?;
            let mut told = said.into_inner().publish_context;
            let servers = told.remove(SERVERS);
            publish_context.extend(servers.map(|all| (servers_of(copy.id.store()), all)));
            publish_context.extend(told.remove_entry(NAME));
        }
        Ok(ControllerPublishVolumeResponse { publish_context })
    }

    /// Takes the volume from a node, or from all, at each store that can be reached, of which there must be one.
    pub(super) async fn unpublish_mirror(
        &self,
        id: &VolumeId,
        request: &ControllerUnpublishVolumeRequest,
    ) -> Result<ControllerUnpublishVolumeResponse, Status> {
        let mut away = Vec::new();
        for copy in id.copies() {
            match self.unpublish_copy(&copy, &request.node_id).await {
                Err(why) if why.code() == Code::Unavailable => away.push(why),
                said => said?,
            }
        }
        match away.pop() {
            Some(why) if away.len() + 1 == id.copies().len() => Err(why),
            _ => Ok(ControllerUnpublishVolumeResponse {}),
        }
    }

    /// `node` is empty: from all nodes.
    async fn unpublish_copy(&self, id: &VolumeId, node: &str) -> Result<(), Status> {
        let mut client = self.stores[id.store()].clone();
        let asked = ControllerUnpublishVolumeRequest {
            volume_id: id.to_string(),
            node_id: node.to_owned(),
            ..ControllerUnpublishVolumeRequest::default()
        };
        let said = client.controller_unpublish_volume(asked).await;
        said.map(drop).map_err(|why| of_store(id.store(), why))
    }

    /// Removes both copies. If a store is away, the call is to be repeated.
    pub(super) async fn delete_mirror(
        &self,
        id: &VolumeId,
        _request: &DeleteVolumeRequest,
    ) -> Result<DeleteVolumeResponse, Status> {
        let mut found = Vec::new();
        for copy in id.copies() {
            match self.get_copy(&copy).await {
                Ok(copy) => found.push(copy),
                Err(why) if why.code() == Code::NotFound => {}
                Err(why) => return Err(why),
            }
        }
        if let Some(node) = published(&found).first() {
            let why = format!("volume {id} is published to node {node}");
            return Err(Status::failed_precondition(why));
        }
        for copy in &found {
            self.unpublish_copy(&copy.id, "").await?;
            self.delete_copy(copy.id.store(), copy.id.to_string())
                .await?;
        }
        Ok(DeleteVolumeResponse {})
    }

    async fn delete_copy(&self, name: &str, volume_id: String) -> Result<(), Status> {
        let asked = DeleteVolumeRequest {
            volume_id,
            ..DeleteVolumeRequest::default()
        };
        let said = self.stores[name].clone().delete_volume(asked).await;
        said.map(drop).map_err(|why| of_store(name, why))
    }

    pub(super) async fn validate_mirror(
        &self,
        id: &VolumeId,
        request: &ValidateVolumeCapabilitiesRequest,
    ) -> Result<ValidateVolumeCapabilitiesResponse, Status> {
        let mut found = self.reachable(id).await?;
        let mut asked = request.clone();
        asked.volume_id = found[0].id.to_string();
        asked.parameters = parameters::of_copy(&request.parameters, None);
        let client = &mut found[0].client;
        let said = client.validate_volume_capabilities(asked).await;
        let mut said = said
            .map_err(|why| of_store(found[0].id.store(), why))?
            .into_inner();
        if let Some(confirmed) = &mut said.confirmed {
            confirmed.parameters.clone_from(&request.parameters);
        }
        if let Err(why) = one_node(&request.volume_capabilities) {
            why.message().clone_into(&mut said.message);
            said.confirmed = None;
        }
        Ok(said)
    }

    /// Makes both copies larger. The node makes the mirror larger when it sees both.
    pub(super) async fn expand_mirror(
        &self,
        id: &VolumeId,
        request: &ControllerExpandVolumeRequest,
    ) -> Result<ControllerExpandVolumeResponse, Status> {
        let mut least = i64::MAX;
        for copy in id.copies() {
            let mut client = self.stores[copy.store()].clone();
            let asked = ControllerExpandVolumeRequest {
                volume_id: copy.to_string(),
                capacity_range: with_mirror(request.capacity_range.as_ref())?,
                ..ControllerExpandVolumeRequest::default()
            };
            let said = client.controller_expand_volume(asked).await;
            let said = said.map_err(|why| of_store(copy.store(), why))?;
            least = least.min(said.into_inner().capacity_bytes);
        }
        Ok(ControllerExpandVolumeResponse {
            capacity_bytes: least - signed(MIRROR),
            node_expansion_required: true,
        })
    }

    pub(super) async fn snapshot_of_mirror(
        &self,
        _id: &VolumeId,
        _request: &CreateSnapshotRequest,
    ) -> Result<CreateSnapshotResponse, Status> {
        Err(no_copies_of())
    }

    /// Snapshots are not mirrored.
    pub(super) async fn no_such_snapshot<T, R>(
        &self,
        id: &VolumeId,
        _request: &T,
    ) -> Result<R, Status> {
        nothing(&id.to_string())
    }
}

fn pair(id: &VolumeId) -> Option<[String; 2]> {
    let names = [id.store().to_owned(), id.beside()?.to_owned()];
    let [a, b] = &names;
    Some(if a < b { names } else { [b.clone(), a.clone()] })
}

fn best_pairs(all: &[Candidate]) -> Vec<[String; 2]> {
    let mut pairs = Vec::new();
    for (number, a) in all.iter().enumerate() {
        for b in &all[number + 1..] {
            let both = || a.places.iter().zip(&b.places);
            if !a.places.is_empty() && !both().any(|(a, b)| *a || *b) {
                continue;
            }
            let apart = both().any(|(a, b)| a != b);
            pairs.push((apart, a.room.min(b.room), [a.name.clone(), b.name.clone()]));
        }
    }
    pairs.sort_by(|a, b| b.cmp(a));
    pairs.into_iter().map(|(_, _, pair)| pair).collect()
}

/// The nodes to which all of these copies are published.
fn published(found: &[Found]) -> BTreeSet<String> {
    let mut all = found.iter().map(|one| one.nodes.clone());
    let first = all.next().unwrap_or_default();
    all.fold(first, |known, nodes| &known & &nodes)
}

/// A volume, of what both stores say of their copies.
fn joined(one: Volume, other: Volume) -> Result<Volume, Status> {
    let mut context = one.volume_context.clone();
    context.remove(SERVERS);
    let mut whole = String::new();
    for volume in [&one, &other] {
        let id = VolumeId::parse(Kind::Volume, &volume.volume_id)?;
        let id =
            id.ok_or_else(|| Status::internal("a store gave its copy a strange identifier"))?;
        let servers = volume.volume_context.get(SERVERS).cloned();
        context.extend(servers.map(|all| (servers_of(id.store()), all)));
        whole = id.whole().to_string();
    }
    Ok(Volume {
        capacity_bytes: one.capacity_bytes.min(other.capacity_bytes) - signed(MIRROR),
        volume_id: whole,
        volume_context: context,
        content_source: None,
        accessible_topology: both_places(one.accessible_topology, other.accessible_topology),
    })
}

/// Nodes near one of the stores are near the volume. A store that does not say where it is is near all nodes.
fn both_places(one: Vec<Topology>, other: Vec<Topology>) -> Vec<Topology> {
    if one.is_empty() || other.is_empty() {
        return Vec::new();
    }
    let mut all = [one, other].concat();
    all.dedup();
    all
}

/// The same, of the copies that were found.
fn all_joined(found: Vec<Found>) -> Result<Option<Volume>, Status> {
    let mut all = found.into_iter().map(|one| one.volume);
    let Some(one) = all.next() else {
        return Ok(None);
    };
    let other = all.next().unwrap_or_else(|| one.clone());
    joined(one, other).map(Some)
}

/// The sizes of a copy, in whose beginning md keeps what it knows.
fn with_mirror(range: Option<&CapacityRange>) -> Result<Option<CapacityRange>, Status> {
    let more = |bytes: i64| match bytes {
        0 => Ok(0),
        _ => bytes
            .checked_add(signed(MIRROR))
            .ok_or_else(|| Status::out_of_range("capacity_range is too large")),
    };
    range
        .map(|range| {
            Ok(CapacityRange {
                required_bytes: more(range.required_bytes)?,
                limit_bytes: more(range.limit_bytes)?,
            })
        })
        .transpose()
}

/// md writes to both copies, also for a reader.
fn for_writing(capability: &VolumeCapability) -> VolumeCapability {
    let mode = Mode::SingleNodeWriter.into();
    VolumeCapability {
        access_mode: Some(AccessMode { mode }),
        ..capability.clone()
    }
}

fn one_node(capabilities: &[VolumeCapability]) -> Result<(), Status> {
    for capability in capabilities {
        if Capability::read(Some(capability))?.sharing == Sharing::Readers {
            let why = "a mirrored volume is for one node, also for reading";
            return Err(Status::invalid_argument(why));
        }
    }
    Ok(())
}

fn signed(size: u64) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}
