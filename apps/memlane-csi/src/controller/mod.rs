//! The service *Controller*: volumes are made, published to nodes, grown, copied and removed.
//!
//! [`Local`] works on a [store](crate::store) of this machine. [`Several`] asks the `Local` of each of several machines by the
//! same service, over TLS.

mod authority;
mod local;
mod several;

pub use authority::may_ask;
pub use local::{Local, Settings};
pub use several::{Address, Several};

use tonic::Status;

use crate::proto::controller_service_capability::rpc::Type;
use crate::proto::controller_service_capability::{self, Rpc};
use crate::proto::{ControllerGetCapabilitiesResponse, ControllerServiceCapability};

/// What controllers offer.
const OFFERED: [Type; 13] = [
    Type::CreateDeleteVolume,
    Type::PublishUnpublishVolume,
    Type::ListVolumes,
    Type::GetCapacity,
    Type::CreateDeleteSnapshot,
    Type::ListSnapshots,
    Type::CloneVolume,
    Type::PublishReadonly,
    Type::ExpandVolume,
    Type::ListVolumesPublishedNodes,
    Type::GetVolume,
    Type::SingleNodeMultiWriter,
    Type::GetSnapshot,
];

/// Whether a volume is well is seen where it is used.
fn health_is_asked_of_nodes<T>() -> Result<T, Status> {
    let why = "controllers do not offer the health of volumes: ask the nodes";
    Err(Status::unimplemented(why))
}

/// Volumes have no parameters that change.
fn nothing_to_modify<T>() -> Result<T, Status> {
    let why = "ControllerModifyVolume is not offered";
    Err(Status::unimplemented(why))
}

fn offered() -> ControllerGetCapabilitiesResponse {
    let capability = |offered: Type| ControllerServiceCapability {
        r#type: Some(controller_service_capability::Type::Rpc(Rpc {
            r#type: offered.into(),
        })),
    };
    ControllerGetCapabilitiesResponse {
        capabilities: OFFERED.map(capability).to_vec(),
    }
}
