//! The page for Prometheus: calls that were answered, and on a node the health of its volumes.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tonic::{Code, Response, Status};

/// Most bytes of a question that are read.
const QUESTION: usize = 8 << 10;

/// What the names of all metrics begin with.
const PREFIX: &str = "memlane_csi";

type Labels = Vec<(&'static str, String)>;
/// Registers what is found out when somebody asks.
type Found = Box<dyn Fn(&mut Registry) + Send + Sync>;

/// What is counted, and what is found out when somebody asks.
pub struct Metrics {
    registry: Registry,
    found: OnceLock<Found>,
    calls: Family<Labels, Counter>,
    seconds: Family<Labels, Histogram>,
    containers: Family<Labels, Counter>,
    runtime_knows_plugin: Gauge,
}

impl Default for Metrics {
    fn default() -> Metrics {
        let mut registry = Registry::with_prefix(PREFIX);
        let calls = Family::<Labels, Counter>::default();
        registry.register("calls", "Calls answered", calls.clone());
        // From a millisecond to a minute and a half.
        let histogram = || Histogram::new(exponential_buckets(0.001, 3.0, 11));
        let seconds = Family::<Labels, Histogram>::new_with_constructor(histogram);
        let help = "Time that calls took";
        registry.register_with_unit("call_duration", help, Unit::Seconds, seconds.clone());
        let containers = Family::<Labels, Counter>::default();
        let help =
            "New containers that the container runtime has asked about, by what became of them";
        registry.register("containers", help, containers.clone());
        let runtime_knows_plugin = Gauge::default();
        let help = "1 while the container runtime asks about new containers";
        registry.register("runtime_knows_plugin", help, runtime_knows_plugin.clone());
        Metrics {
            registry,
            found: OnceLock::new(),
            calls,
            seconds,
            containers,
            runtime_knows_plugin,
        }
    }
}

impl Metrics {
    /// Does the work of a call where it may block, and counts it. Failed calls are said on stderr.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        method: &'static str,
        work: impl FnOnce() -> Result<T, Status> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let begin = Instant::now();
        let done = tokio::task::spawn_blocking(work).await;
        let result = done.unwrap_or_else(|error| Err(Status::internal(error.to_string())));
        self.count(method, begin, &result);
        result.map(Response::new)
    }

    /// Counts a call.
    pub(crate) fn count<T>(
        &self,
        method: &'static str,
        begin: Instant,
        result: &Result<T, Status>,
    ) {
        let code = match result {
            Ok(_) => Code::Ok,
            Err(status) => status.code(),
        };
        if let Err(status) = result {
            eprintln!("memlane-csi: {method}: {code:?}: {}", status.message());
        }
        let method = ("method", method.to_owned());
        let labels = vec![method.clone(), ("code", format!("{code:?}"))];
        self.calls.get_or_create(&labels).inc();
        let took = begin.elapsed().as_secs_f64();
        self.seconds.get_or_create(&vec![method]).observe(took);
    }

    /// Counts a container that the runtime makes.
    pub(crate) fn made_container(&self, outcome: &'static str) {
        let labels = vec![("outcome", outcome.to_owned())];
        self.containers.get_or_create(&labels).inc();
    }

    /// Says whether the runtime asks about containers.
    pub(crate) fn runtime_knows_plugin(&self, known: bool) {
        self.runtime_knows_plugin.set(known.into());
    }

    /// Shows also what this function registers, which is called for each page. The first one counts.
    pub fn show(&self, found: impl Fn(&mut Registry) + Send + Sync + 'static) {
        let _ = self.found.set(Box::new(found));
    }

    pub(crate) fn page(&self) -> String {
        let mut page = String::new();
        // A String takes everything.
        let _ = encode_registry(&mut page, &self.registry);
        if let Some(found) = self.found.get() {
            let mut registry = Registry::with_prefix(PREFIX);
            found(&mut registry);
            let _ = encode_registry(&mut page, &registry);
        }
        let _ = encode_eof(&mut page);
        page
    }

    /// Answers `GET /metrics` at this address until the process ends. Returns the address.
    ///
    /// # Errors
    /// The address cannot be had.
    pub async fn serve(self: Arc<Metrics>, at: SocketAddr) -> std::io::Result<SocketAddr> {
        let listener = TcpListener::bind(at).await?;
        let address = listener.local_addr()?;
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let metrics = Arc::clone(&self);
                let patience = std::time::Duration::from_secs(10);
                tokio::spawn(tokio::time::timeout(patience, answer(stream, metrics)));
            }
        });
        Ok(address)
    }
}

async fn answer(mut stream: TcpStream, metrics: Arc<Metrics>) -> std::io::Result<()> {
    let mut question = Vec::new();
    let mut piece = [0; 1024];
    while !question.windows(4).any(|end| end == b"\r\n\r\n") {
        let read = stream.read(&mut piece).await?;
        question.extend_from_slice(&piece[..read]);
        if read == 0 || question.len() > QUESTION {
            return Ok(());
        }
    }
    let (status, kind, body) = match question.starts_with(b"GET /metrics") {
        true => (
            "200 OK",
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
            tokio::task::spawn_blocking(move || metrics.page()).await?,
        ),
        false => ("404 Not Found", "text/plain", String::new()),
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_counted_with_its_code() {
        let metrics = Metrics::default();
        metrics.count("Probe", Instant::now(), &Ok(()));
        metrics.count::<()>("Probe", Instant::now(), &Err(Status::aborted("busy")));
        let page = metrics.page();
        for line in [
            "memlane_csi_calls_total{method=\"Probe\",code=\"Ok\"} 1",
            "memlane_csi_calls_total{method=\"Probe\",code=\"Aborted\"} 1",
            "memlane_csi_call_duration_seconds_count{method=\"Probe\"} 2",
        ] {
            assert!(page.contains(line), "{page}");
        }
    }

    #[tokio::test]
    async fn a_scraper_gets_the_page_and_everybody_else_nothing() {
        let metrics = Arc::new(Metrics::default());
        metrics.count("Probe", Instant::now(), &Ok(()));
        let at = SocketAddr::from(([127, 0, 0, 1], 0));
        let at = metrics.serve(at).await.expect("a port");
        let ask = async |question: &[u8]| {
            let mut stream = TcpStream::connect(at).await.expect("it listens");
            // A question that is too long is not read to its end.
            let _ = stream.write_all(question).await;
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer).await;
            String::from_utf8_lossy(&answer).into_owned()
        };
        let page = ask(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").await;
        assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
        assert!(page.contains("memlane_csi_calls_total"), "{page}");
        let other = ask(b"GET /etc/passwd HTTP/1.1\r\n\r\n").await;
        assert!(other.starts_with("HTTP/1.1 404"), "{other}");
        assert_eq!(ask(&[b'x'; 100_000]).await, "");
    }
}
