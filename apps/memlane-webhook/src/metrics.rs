//! What is counted, for Prometheus.

use std::sync::atomic::AtomicI64;

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Bounds of the times that answers take, in seconds.
const SECONDS: [f64; 8] = [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 1.0];

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct Status {
    status: u16,
}

/// What the webhook counts.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    reviews: Family<Outcome, Counter>,
    refusals: Family<Status, Counter>,
    seconds: Histogram,
    certificate_until: Gauge<i64, AtomicI64>,
    connections_refused: Counter,
}

impl Default for Metrics {
    fn default() -> Metrics {
        let metrics = Metrics {
            registry: Registry::with_prefix("memlane_webhook"),
            reviews: Family::default(),
            refusals: Family::default(),
            seconds: Histogram::new(SECONDS),
            certificate_until: Gauge::default(),
            connections_refused: Counter::default(),
        };
        metrics.registered()
    }
}

impl Metrics {
    fn registered(mut self) -> Metrics {
        let registry = &mut self.registry;
        registry.register(
            "reviews",
            "Pods that were looked at, by what became of them",
            self.reviews.clone(),
        );
        registry.register(
            "refusals",
            "Requests that are no reviews, by status of HTTP",
            self.refusals.clone(),
        );
        registry.register(
            "review_seconds",
            "How long an answer took",
            self.seconds.clone(),
        );
        registry.register(
            "certificate_until_seconds",
            "When the certificate that is shown ends, in seconds since 1970; 0: unknown",
            self.certificate_until.clone(),
        );
        registry.register(
            "connections_refused",
            "Connections that were closed because there were too many, or whose handshake failed",
            self.connections_refused.clone(),
        );
        self
    }

    /// A review was answered.
    pub fn reviewed(&self, outcome: &'static str, seconds: f64) {
        self.reviews.get_or_create(&Outcome { outcome }).inc();
        self.seconds.observe(seconds);
    }

    /// A request was no review.
    pub fn refused(&self, status: u16) {
        self.refusals.get_or_create(&Status { status }).inc();
    }

    /// A connection came to nothing.
    pub fn connection_refused(&self) {
        self.connections_refused.inc();
    }

    /// Another certificate is shown.
    pub fn certificate_ends(&self, at: u64) {
        self.certificate_until
            .set(i64::try_from(at).unwrap_or(i64::MAX));
    }

    /// The page.
    pub fn page(&self) -> String {
        let mut page = String::new();
        // Writing to a string does not fail.
        let _ = text::encode(&mut page, &self.registry);
        page
    }
}
