//! What all verbs share that keep running: readiness and signals, the question about themselves, and an endpoint for Prometheus.

pub(crate) mod describe;
pub(crate) mod metrics;
pub(crate) mod service;
