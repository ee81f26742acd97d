//! Messages of ttrpc and of NRI: of each, the fields that are needed here.
//!
//! Sources: `request.proto` of github.com/containerd/ttrpc 1.2, and `pkg/api/api.proto` of github.com/containerd/nri 0.12. Fields
//! and calls that later versions add are skipped, as protocol buffers skip what they do not know.

use prost::Message;

/// The service of a plugin, which the runtime calls.
pub(super) const PLUGIN: &str = "nri.pkg.api.v1alpha1.Plugin";
/// The service of the runtime, which a plugin calls.
pub(super) const RUNTIME: &str = "nri.pkg.api.v1alpha1.Runtime";
/// The event `CREATE_CONTAINER`, as a bit of a subscription.
pub(super) const CREATE_CONTAINER: i32 = 1 << 3;
/// Before the name of something that is to be removed.
pub(super) const REMOVED: char = '-';

/// A call of ttrpc.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Request {
    #[prost(string, tag = "1")]
    pub(super) service: String,
    #[prost(string, tag = "2")]
    pub(super) method: String,
    #[prost(bytes = "vec", tag = "3")]
    pub(super) payload: Vec<u8>,
}

/// What a call returns.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Response {
    #[prost(message, optional, tag = "1")]
    pub(super) status: Option<Status>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) payload: Vec<u8>,
}

/// How a call ended, with the codes of gRPC.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Status {
    #[prost(int32, tag = "1")]
    pub(super) code: i32,
    #[prost(string, tag = "2")]
    pub(super) message: String,
}

/// The first call of a plugin.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RegisterPlugin {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    /// Two digits: plugins are called in this order.
    #[prost(string, tag = "2")]
    pub(super) index: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ConfigureResponse {
    #[prost(int32, tag = "2")]
    pub(super) events: i32,
}

/// The containers that there are, of which nothing is wanted. A long list comes in several calls.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Synchronize {
    #[prost(bool, tag = "3")]
    pub(super) more: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SynchronizeResponse {
    #[prost(bool, tag = "2")]
    pub(super) more: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct CreateContainer {
    #[prost(message, optional, tag = "2")]
    pub(super) container: Option<Container>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Container {
    /// As `NAME=value`: what the image sets and what the pod sets.
    #[prost(string, repeated, tag = "8")]
    pub(super) env: Vec<String>,
    #[prost(message, repeated, tag = "9")]
    pub(super) mounts: Vec<Mount>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Mount {
    #[prost(string, tag = "1")]
    pub(super) destination: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct CreateContainerResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) adjust: Option<Adjustment>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Adjustment {
    #[prost(message, repeated, tag = "4")]
    pub(super) env: Vec<Variable>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Variable {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) value: String,
}
