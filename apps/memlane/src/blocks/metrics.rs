//! A Prometheus endpoint: `GET /metrics`.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::documents::{Server, Session};

/// How long a client may take to ask, and to listen: others wait meanwhile.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longest head of a request.
const LONGEST: usize = 8192;

type Labels = Vec<(String, String)>;
/// One value with its labels.
type Value = (Labels, u64);

/// Listens; each request gets what `page` gives at that moment.
pub(super) fn serve(
    at: SocketAddr,
    page: impl Fn() -> Registry + Send + 'static,
) -> io::Result<()> {
    let listener = TcpListener::bind(at)?;
    std::thread::Builder::new()
        .name("metrics".into())
        .spawn(move || {
            for stream in listener.incoming().flatten() {
                let _ = answer(stream, &page);
            }
        })?;
    Ok(())
}

fn answer(mut stream: TcpStream, page: &impl Fn() -> Registry) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let request = request(&mut stream)?;
    let (status, body) = match request.starts_with(b"GET /metrics") {
        true => ("200 OK", text(&page())),
        false => ("404 Not Found", "try /metrics\n".into()),
    };
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

/// A request's head: all of it, however it comes, or as much as there is room or time for.
fn request(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let (mut head, mut some) = (Vec::new(), [0; 1024]);
    let until = Instant::now() + PATIENCE;
    while head.len() < LONGEST && !head.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
        let left = until.saturating_duration_since(Instant::now());
        // A time limit of nothing would be none.
        stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        match stream.read(&mut some)? {
            0 => break,
            n => head.extend_from_slice(&some[..n]),
        }
    }
    Ok(head)
}

fn text(registry: &Registry) -> String {
    let mut text = String::new();
    // A String takes everything.
    let _ = encode(&mut text, registry);
    text
}

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

fn labels(these: &[(&str, &str)], more: &[(&str, &str)]) -> Labels {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    these.iter().chain(more).map(owned).collect()
}

fn counters(registry: &mut Registry, name: &str, help: &str, values: impl Iterator<Item = Value>) {
    let family = Family::<Labels, Counter>::default();
    for (labels, value) in values {
        family.get_or_create(&labels).inc_by(value);
    }
    registry.register(name, help, family);
}

fn gauges(registry: &mut Registry, name: &str, help: &str, values: impl Iterator<Item = Value>) {
    let family = Family::<Labels, Gauge<u64, AtomicU64>>::default();
    for (labels, value) in values {
        family.get_or_create(&labels).set(value);
    }
    registry.register(name, help, family);
}
