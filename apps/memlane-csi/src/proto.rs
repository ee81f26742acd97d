//! The messages and services of the Container Storage Interface, and in `registration` those of kubelets, made from the
//! files in `proto` by the build.

// Generated code.
#![allow(
    missing_docs,
    unreachable_pub,
    rustdoc::all,
    clippy::all,
    clippy::pedantic
)]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss
)]

tonic::include_proto!("csi.v1");

/// How kubelets get to know plugins: `proto/pluginregistration.proto`.
pub mod registration {
    tonic::include_proto!("pluginregistration");
}
