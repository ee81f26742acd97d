//! What all verbs share that keep running: readiness and signals, and an endpoint for Prometheus.

pub(crate) mod metrics;
pub(crate) mod service;
