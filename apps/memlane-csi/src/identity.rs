//! The service *Identity*: which driver this is, and whether it is ready.

use tonic::{Request, Response, Status};

use crate::proto::identity_server::Identity as Called;
use crate::proto::plugin_capability::service::Type;
use crate::proto::plugin_capability::{self, Service, VolumeExpansion, volume_expansion};
use crate::proto::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest,
    GetPluginInfoResponse, PluginCapability, ProbeRequest, ProbeResponse,
};

/// The service *Identity*.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The plugin offers the service *Controller*.
    pub controller: bool,
    /// Volumes may be reachable from some nodes only.
    pub topology: bool,
}

#[tonic::async_trait]
impl Called for Identity {
    async fn get_plugin_info(
        &self,
        _request: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse {
            name: crate::DRIVER.to_owned(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            ..GetPluginInfoResponse::default()
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _request: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let service = |offered: Type| {
            plugin_capability::Type::Service(Service {
                r#type: offered.into(),
            })
        };
        let mut offered = Vec::new();
        if self.controller {
            offered.push(service(Type::ControllerService));
        }
        if self.topology {
            offered.push(service(Type::VolumeAccessibilityConstraints));
        }
        offered.push(plugin_capability::Type::VolumeExpansion(VolumeExpansion {
            r#type: volume_expansion::Type::Online.into(),
        }));
        let capabilities = offered.into_iter().map(|offered| PluginCapability {
            r#type: Some(offered),
        });
        Ok(Response::new(GetPluginCapabilitiesResponse {
            capabilities: capabilities.collect(),
        }))
    }

    async fn probe(
        &self,
        _request: Request<ProbeRequest>,
    ) -> Result<Response<ProbeResponse>, Status> {
        Ok(Response::new(ProbeResponse { ready: Some(true) }))
    }
}
