//! The service, by which the node's functions are called.

use std::sync::Arc;
use std::time::Duration;

use tonic::{Request, Response, Status};

use super::Node;
use super::lane::is_lane;
use crate::metrics::Metrics;
use crate::nri::Known;
use crate::proto::node_server::Node as Called;
use crate::proto::node_service_capability::Rpc;
use crate::proto::node_service_capability::rpc::Type;
use crate::proto::{
    NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesRequest,
    NodeGetCapabilitiesResponse, NodeGetInfoRequest, NodeGetInfoResponse,
    NodeGetStorageHealthRequest, NodeGetStorageHealthResponse, NodeGetVolumeHealthRequest,
    NodeGetVolumeHealthResponse, NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse,
    NodePublishVolumeRequest, NodePublishVolumeResponse, NodeServiceCapability,
    NodeStageVolumeRequest, NodeStageVolumeResponse, NodeUnpublishVolumeRequest,
    NodeUnpublishVolumeResponse, NodeUnstageVolumeRequest, NodeUnstageVolumeResponse, Topology,
    node_service_capability,
};

/// What this node offers.
const OFFERED: [Type; 5] = [
    Type::StageUnstageVolume,
    Type::GetVolumeStats,
    Type::ExpandVolume,
    Type::SingleNodeMultiWriter,
    Type::GetVolumeHealth,
];

/// How long a pod with a lane waits for the container runtime to know the plugin: then its containers are made, and the runtime
/// should ask the plugin about them.
const PATIENCE: Duration = Duration::from_secs(2);

/// The service *Node*.
#[derive(Clone)]
pub struct Service {
    node: Arc<Node>,
    metrics: Arc<Metrics>,
    runtime: Option<Known>,
}

impl Service {
    /// The service of a node, and of its plugin of the container runtime, if it has one.
    #[must_use]
    pub fn new(node: Arc<Node>, metrics: Arc<Metrics>, runtime: Option<Known>) -> Service {
        Service {
            node,
            metrics,
            runtime,
        }
    }

    async fn run<T: Send + 'static>(
        &self,
        method: &'static str,
        work: impl FnOnce(&Node) -> Result<T, Status> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let node = Arc::clone(&self.node);
        self.metrics.run(method, move || work(&node)).await
    }
}

#[tonic::async_trait]
impl Called for Service {
    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Result<Response<NodeStageVolumeResponse>, Status> {
        let request = request.into_inner();
        self.run("NodeStageVolume", move |node| {
            node.stage(&request)?;
            Ok(NodeStageVolumeResponse {})
        })
        .await
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Result<Response<NodeUnstageVolumeResponse>, Status> {
        let request = request.into_inner();
        self.run("NodeUnstageVolume", move |node| {
            node.unstage(&request)?;
            Ok(NodeUnstageVolumeResponse {})
        })
        .await
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        let request = request.into_inner();
        if let Some(runtime) = &self.runtime
            && is_lane(&request.volume_context)
        {
            runtime.decided(PATIENCE).await;
        }
        self.run("NodePublishVolume", move |node| {
            node.publish(&request)?;
            Ok(NodePublishVolumeResponse {})
        })
        .await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        self.run("NodeUnpublishVolume", move |node| {
            node.unpublish(&request)?;
            Ok(NodeUnpublishVolumeResponse {})
        })
        .await
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        let request = request.into_inner();
        self.run("NodeGetVolumeStats", move |node| {
            let usage = node.stats(&request)?;
            Ok(NodeGetVolumeStatsResponse { usage })
        })
        .await
    }

    async fn node_get_volume_health(
        &self,
        request: Request<NodeGetVolumeHealthRequest>,
    ) -> Result<Response<NodeGetVolumeHealthResponse>, Status> {
        let request = request.into_inner();
        self.run("NodeGetVolumeHealth", move |node| {
            let volume_health = Some(node.health(&request.volume_id)?);
            Ok(NodeGetVolumeHealthResponse { volume_health })
        })
        .await
    }

    async fn node_get_storage_health(
        &self,
        _request: Request<NodeGetStorageHealthRequest>,
    ) -> Result<Response<NodeGetStorageHealthResponse>, Status> {
        Err(Status::unimplemented("NodeGetStorageHealth is not offered"))
    }

    async fn node_expand_volume(
        &self,
        request: Request<NodeExpandVolumeRequest>,
    ) -> Result<Response<NodeExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        self.run("NodeExpandVolume", move |node| {
            let capacity_bytes = super::calls::signed(node.expand(&request)?);
            Ok(NodeExpandVolumeResponse { capacity_bytes })
        })
        .await
    }

    async fn node_get_capabilities(
        &self,
        _request: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        let capability = |offered: Type| NodeServiceCapability {
            r#type: Some(node_service_capability::Type::Rpc(Rpc {
                r#type: offered.into(),
            })),
        };
        let capabilities = OFFERED.map(capability).to_vec();
        Ok(Response::new(NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_info(
        &self,
        _request: Request<NodeGetInfoRequest>,
    ) -> Result<Response<NodeGetInfoResponse>, Status> {
        let segments = self.node.topology.clone();
        let accessible_topology = (!segments.is_empty()).then_some(Topology { segments });
        Ok(Response::new(NodeGetInfoResponse {
            node_id: self.node.id.clone(),
            // As many as the orchestrator wants.
            max_volumes_per_node: 0,
            accessible_topology,
        }))
    }
}
