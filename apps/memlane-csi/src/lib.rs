//! Volumes of memlane for Kubernetes and other orchestrators: a plugin of the Container Storage Interface (CSI).
//!
//! An orchestrator calls the plugin by gRPC on a unix socket. The *controller* makes volumes where `memlane serve` serves
//! them, and says which node may use which volume. The *node* part maps a volume with `memlane map`, and mounts it where
//! the orchestrator wants it.
//!
//! Nothing is kept in a database. What exists is read from the store's folder, the table of mounts, and the list of mapped
//! volumes, so a call that is repeated after the plugin was killed finds what the first one did, and completes it.
//!
//! | module | what it does |
//! |---|---|
//! | [`volume_id`], [`capability`], [`parameters`], [`size`] | check what a call says; no side effects |
//! | [`store`] | volumes and snapshots in a folder, each step atomic |
//! | [`controller`] | the service *Controller*: one store, or several behind TLS |
//! | [`certificates`] | TLS between controllers and stores, and the certificates of mappings, renewed without a restart |
//! | [`node`] | the service *Node*: mappings, file systems and mounts |
//! | [`identity`] | the service *Identity* |
//! | [`endpoint`] | the unix socket, which only one plugin has |
//! | [`registration`] | how the kubelet gets to know the plugin |
//! | [`cluster`] | the API of Kubernetes, where the plugin may ask it |
//! | [`nri`] | the container runtime's plugin, which keeps what images preload |
//! | [`events`] | what happens to volumes, told to Kubernetes |
//! | [`metrics`] | counters for Prometheus |
//!
//! ```
//! use memlane_csi::volume_id::VolumeId;
//! let id = VolumeId::of_volume("pvc-1", "local")?;
//! assert_eq!(id.to_string(), "v-pvc-1@local");
//! # Ok::<(), tonic::Status>(())
//! ```
// tonic's Status is what every call of a service returns; a box around it would only be unpacked again.
#![allow(clippy::result_large_err)]

mod busy;
pub mod capability;
pub mod certificates;
pub mod cluster;
mod command;
pub mod controller;
pub mod endpoint;
pub mod events;
mod fault;
pub mod identity;
pub mod metrics;
pub mod node;
pub mod nri;
pub mod parameters;
pub mod proto;
pub mod registration;
pub mod size;
pub mod store;
pub mod text;
pub mod volume_id;

/// The name of this driver, as a StorageClass says it.
pub const DRIVER: &str = "csi.memlane.dev";
