//! What sessions and servers show to Prometheus.

use prometheus_client::registry::Registry;

use super::documents::{Server, Session};
pub(super) use crate::metrics::serve;
use crate::metrics::{counters, gauges, labels};

/// What a session shows.
pub(super) fn of_session(session: &Session) -> Registry {
    let mut registry = Registry::with_prefix("memlane");
    let path = |p: &super::documents::Path, more: &[(&str, &str)]| {
        labels(&[("session", &session.name), ("path", &p.path)], more)
    };
    let paths = &session.paths;
    let directions = |of: fn(&super::documents::Path) -> [u64; 2]| {
        paths.iter().flat_map(move |p| {
            ["read", "write"]
                .into_iter()
                .zip(of(p))
                .map(move |(direction, value)| (path(p, &[("direction", direction)]), value))
        })
    };
    counters(
        &mut registry,
        "path_requests",
        "Requests carried",
        directions(|p| [p.reads, p.writes]),
    );
    counters(
        &mut registry,
        "path_bytes",
        "Bytes carried",
        directions(|p| [p.read_bytes, p.written_bytes]),
    );
    let each =
        |of: fn(&super::documents::Path) -> u64| paths.iter().map(move |p| (path(p, &[]), of(p)));
    counters(
        &mut registry,
        "path_failed_over",
        "Requests sent again by another path",
        each(|p| p.failed_over),
    );
    counters(
        &mut registry,
        "path_reconnects",
        "Times that it came up again",
        each(|p| p.reconnects),
    );
    gauges(
        &mut registry,
        "path_up",
        "1 if it is up",
        each(|p| u64::from(p.state == "connected")),
    );
    gauges(
        &mut registry,
        "path_inflight",
        "Requests under way",
        each(|p| u64::from(p.inflight)),
    );

    let volume = |v: &super::documents::Volume| {
        labels(&[("session", &session.name), ("volume", &v.volume)], &[])
    };
    let volumes = &session.volumes;
    let each =
        |of: fn(&super::documents::Volume) -> u64| volumes.iter().map(move |v| (volume(v), of(v)));
    gauges(
        &mut registry,
        "volume_size_bytes",
        "Its size",
        each(|v| v.size),
    );
    gauges(
        &mut registry,
        "volume_ok",
        "1 if it is usable",
        each(|v| u64::from(v.state == "ok")),
    );
    counters(
        &mut registry,
        "volume_errors",
        "Requests that ended with an error",
        each(|v| v.counters.errors),
    );
    counters(
        &mut registry,
        "volume_replays",
        "Requests sent again after a restart of the server",
        each(|v| v.counters.replays),
    );
    registry
}

/// What a server shows.
pub(super) fn of_server(server: &Server) -> Registry {
    let mut registry = Registry::with_prefix("memlane_server");
    let client = |c: &super::documents::Client, more: &[(&str, &str)]| {
        labels(&[("session", &c.session)], more)
    };
    let sessions = &server.sessions;
    counters(
        &mut registry,
        "requests",
        "Requests executed",
        sessions.iter().map(|c| (client(c, &[]), c.executed)),
    );
    counters(
        &mut registry,
        "replays",
        "Second copies recognised",
        sessions.iter().map(|c| (client(c, &[]), c.replays)),
    );
    let paths = |c: &super::documents::Client| c.paths.len() as u64;
    gauges(
        &mut registry,
        "paths",
        "Paths that are up",
        sessions.iter().map(|c| (client(c, &[]), paths(c))),
    );
    let volume = |v: &super::documents::Open| labels(&[("volume", &v.volume)], &[]);
    gauges(
        &mut registry,
        "volume_size_bytes",
        "Its size",
        server.volumes.iter().map(|v| (volume(v), v.size)),
    );
    registry
}
