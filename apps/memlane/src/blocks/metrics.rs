//! What sessions and servers show to Prometheus.

use prometheus_client::registry::Registry;

use super::documents::{Client, Path, Server, Session, SharedMemory, Volume};
pub(super) use crate::daemon::metrics::serve;
use crate::daemon::metrics::{Labels, Value, counters, gauges, labels};

/// What sessions show, told apart by their names.
pub(crate) fn of_sessions(sessions: &[Session]) -> Registry {
    let mut registry = Registry::with_prefix("memlane");
    let directions = |of: fn(&Path) -> [u64; 2]| {
        paths(sessions).flat_map(move |(session, path)| {
            let both = ["read", "write"].into_iter().zip(of(path));
            both.map(move |(way, value)| (of_path(session, path, &[("direction", way)]), value))
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
    let each = |of: fn(&Path) -> u64| {
        paths(sessions).map(move |(session, path)| (of_path(session, path, &[]), of(path)))
    };
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
    volumes(&mut registry, sessions);
    registry
}

fn paths(sessions: &[Session]) -> impl Iterator<Item = (&Session, &Path)> {
    let all = sessions.iter();
    all.flat_map(|session| session.paths.iter().map(move |path| (session, path)))
}

fn of_path(session: &Session, path: &Path, more: &[(&str, &str)]) -> Labels {
    labels(&[("session", &session.name), ("path", &path.path)], more)
}

fn volumes(registry: &mut Registry, sessions: &[Session]) {
    let of_volume = |session: &Session, volume: &Volume| {
        let both = [
            ("session", session.name.as_str()),
            ("volume", volume.volume.as_str()),
        ];
        labels(&both, &[])
    };
    let each = |of: fn(&Volume) -> u64| {
        sessions.iter().flat_map(move |session| {
            let all = session.volumes.iter();
            all.map(move |volume| (of_volume(session, volume), of(volume)))
        })
    };
    gauges(registry, "volume_size_bytes", "Its size", each(|v| v.size));
    gauges(
        registry,
        "volume_ok",
        "1 if it is usable",
        each(|v| u64::from(v.state == "ok")),
    );
    counters(
        registry,
        "volume_errors",
        "Requests that ended with an error",
        each(|v| v.counters.errors),
    );
    counters(
        registry,
        "volume_replays",
        "Requests sent again after a restart of the server",
        each(|v| v.counters.replays),
    );
}

/// What servers show, told apart by their names.
pub(crate) fn of_servers(servers: &[Server]) -> Registry {
    let mut registry = Registry::with_prefix("memlane_server");
    let each = |of: fn(&Client) -> u64| {
        servers.iter().flat_map(move |server| {
            let clients = server.sessions.iter();
            clients.map(move |client| -> Value {
                let both = [
                    ("server", server.name.as_str()),
                    ("session", client.session.as_str()),
                ];
                (labels(&both, &[]), of(client))
            })
        })
    };
    counters(
        &mut registry,
        "requests",
        "Requests executed",
        each(|c| c.executed),
    );
    counters(
        &mut registry,
        "replays",
        "Second copies recognised",
        each(|c| c.replays),
    );
    gauges(
        &mut registry,
        "paths",
        "Paths that are up",
        each(|c| c.paths.len() as u64),
    );
    let shared = |of: fn(&SharedMemory) -> u64| {
        servers.iter().filter_map(move |server| -> Option<Value> {
            let name = labels(&[("server", server.name.as_str())], &[]);
            Some((name, of(server.shared_memory.as_ref()?)))
        })
    };
    gauges(
        &mut registry,
        "shared_memory_bytes",
        "Memory that other machines have, too",
        shared(|memory| memory.size),
    );
    gauges(
        &mut registry,
        "shared_memory_used_bytes",
        "What sessions have of it, or clients that have not let go yet",
        shared(|memory| memory.used),
    );
    let sizes = servers.iter().flat_map(|server| {
        let volumes = server.volumes.iter();
        volumes.map(move |volume| {
            let both = [
                ("server", server.name.as_str()),
                ("volume", volume.volume.as_str()),
            ];
            (labels(&both, &[]), volume.size)
        })
    });
    gauges(&mut registry, "volume_size_bytes", "Its size", sizes);
    registry
}
