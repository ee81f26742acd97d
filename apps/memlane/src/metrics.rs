//! A Prometheus endpoint: `GET /metrics`. What is shown there is said by each verb.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// How long a client may take to ask, and to listen: others wait meanwhile.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longest head of a request.
const LONGEST: usize = 8192;

pub(crate) type Labels = Vec<(String, String)>;
/// One value with its labels.
pub(crate) type Value = (Labels, u64);

/// Listens; each request gets what `page` gives at that moment.
pub(crate) fn serve(
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

/// Labels that all values of a thing have, and those of one.
pub(crate) fn labels(these: &[(&str, &str)], more: &[(&str, &str)]) -> Labels {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    these.iter().chain(more).map(owned).collect()
}

/// A family of what only grows.
pub(crate) fn counters(
    registry: &mut Registry,
    name: &str,
    help: &str,
    values: impl Iterator<Item = Value>,
) {
    let family = Family::<Labels, Counter>::default();
    for (labels, value) in values {
        family.get_or_create(&labels).inc_by(value);
    }
    registry.register(name, help, family);
}

/// A family of what goes up and down.
pub(crate) fn gauges(
    registry: &mut Registry,
    name: &str,
    help: &str,
    values: impl Iterator<Item = Value>,
) {
    let family = Family::<Labels, Gauge<u64, AtomicU64>>::default();
    for (labels, value) in values {
        family.get_or_create(&labels).set(value);
    }
    registry.register(name, help, family);
}
