//! HTTPS for the API server, and plain HTTP for probes and metrics.
//!
//! Whoever reaches the port may connect, so everything has a limit: connections, the time of a handshake, the time and size of a
//! request.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use memlane_inject::Edits;
use rustls::crypto::ring;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tracing::{info, warn};

use crate::metrics::Metrics;
use crate::review::{self, Refusal};

/// The longest review. An API server takes objects of 3 MiB, and a review of an update has two of them.
pub const BODY: usize = 8 << 20;
/// Connections at a time. API servers keep a few each.
const CONNECTIONS: usize = 256;
/// How long a handshake or a request's body may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a connection may be idle. API servers close theirs after 90 s, and should be the first.
const IDLE: Duration = Duration::from_secs(120);
/// After the end was asked for, requests that are being answered have this long.
const LAST_ANSWERS: Duration = Duration::from_secs(5);
/// Where reviews are sent.
pub const PATH: &str = "/mutate";

/// The certificate that is shown, which may be exchanged at any time.
#[derive(Debug, Default)]
pub struct Shown(RwLock<Option<Arc<CertifiedKey>>>);

impl Shown {
    /// Shows this one from the next connection on.
    pub fn show(&self, certificate: CertifiedKey) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(certificate));
    }
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// What all connections share.
#[derive(Debug)]
pub struct State {
    /// What containers get.
    pub edits: Edits,
    /// What is counted.
    pub metrics: Metrics,
    /// There is a certificate, and API servers were told its authority.
    pub is_ready: AtomicBool,
}

impl State {
    /// Nothing is counted yet, and there is no certificate.
    pub fn new(edits: Edits) -> State {
        State {
            edits,
            metrics: Metrics::default(),
            is_ready: AtomicBool::new(false),
        }
    }
}

type Answer = Response<Full<Bytes>>;

/// Answers reviews over TLS until `end` is true, and then those that have begun.
///
/// # Errors
/// If TLS cannot be set up.
pub async fn reviews(
    listener: TcpListener,
    shown: Arc<Shown>,
    state: Arc<State>,
    end: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    let provider = Arc::new(ring::default_provider());
    let mut tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(shown);
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let shared = Arc::clone(&state);
    serve(listener, state, end, move |stream, end| {
        let (acceptor, state) = (acceptor.clone(), Arc::clone(&shared));
        async move {
            match timeout(PATIENCE, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => {
                    converse(stream, end, move |r| answer(r, Arc::clone(&state))).await
                }
                _ => state.metrics.connection_refused(),
            }
        }
    })
    .await;
    Ok(())
}

/// Answers probes and Prometheus, without TLS, until `end` is true.
pub async fn status(listener: TcpListener, state: Arc<State>, end: watch::Receiver<bool>) {
    let shared = Arc::clone(&state);
    serve(listener, state, end, move |stream, end| {
        let state = Arc::clone(&shared);
        converse(stream, end, move |r| {
            let answer = page(r.uri().path(), &state);
            async move { answer }
        })
    })
    .await;
}

/// Takes connections until the end, and waits for those that there are.
async fn serve<F>(
    listener: TcpListener,
    state: Arc<State>,
    end: watch::Receiver<bool>,
    each: impl Fn(TcpStream, watch::Receiver<bool>) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    let mut is_over = pin!(over(end.clone()));
    loop {
        let accepted = tokio::select! {
            () = &mut is_over => break,
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, _)) = accepted else {
            // No descriptors: some may be closed soon.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let Ok(place) = Arc::clone(&room).try_acquire_owned() else {
            state.metrics.connection_refused();
            continue;
        };
        let connection = each(stream, end.clone());
        connections.spawn(async move {
            connection.await;
            drop(place);
        });
    }
    drop(listener);
    let _ = timeout(LAST_ANSWERS, async {
        while connections.join_next().await.is_some() {}
    })
    .await;
}

/// Waits until `end` is true, or nobody can make it so.
async fn over(mut end: watch::Receiver<bool>) {
    let _ = end.wait_for(|end| *end).await;
}

/// Answers the requests of one connection.
async fn converse<S, F>(
    stream: S,
    end: watch::Receiver<bool>,
    answer: impl Fn(Request<Incoming>) -> F,
) where
    S: AsyncRead + AsyncWrite + Unpin,
    F: Future<Output = Answer>,
{
    let service = service_fn(|request| {
        let answer = answer(request);
        async move { Ok::<Answer, std::convert::Infallible>(answer.await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(Some(IDLE))
        .max_buf_size(64 << 10)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => {}
        () = over(end) => {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }
}

/// Answers one request of an API server.
async fn answer(request: Request<Incoming>, state: Arc<State>) -> Answer {
    if request.uri().path() != PATH {
        return page(request.uri().path(), &state);
    }
    if request.method() != Method::POST {
        let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "send a review by POST\n");
        answer
            .headers_mut()
            .insert(ALLOW, hyper::header::HeaderValue::from_static("POST"));
        return answer;
    }
    let begin = Instant::now();
    let reviewed = match body(request.into_body()).await {
        Ok(body) => review::answer(&body, &state.edits),
        Err(refusal) => Err(refusal),
    };
    match reviewed {
        Ok(answer) => {
            let took = begin.elapsed();
            state
                .metrics
                .reviewed(answer.outcome.word(), took.as_secs_f64());
            info!(
                namespace = answer.namespace,
                pod = answer.name,
                outcome = answer.outcome.word(),
                warnings = answer.outcome.warnings().len(),
                dry_run = answer.dry_run,
                micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
                "reviewed"
            );
            let body = Full::from(answer.review.to_string());
            with_type(Response::new(body), "application/json")
        }
        Err(Refusal { status, message }) => {
            state.metrics.refused(status);
            warn!(status, message, "refused");
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST);
            text(status, &format!("{message}\n"))
        }
    }
}

/// The whole body, if it is neither too long nor too slow.
async fn body(body: Incoming) -> Result<Bytes, Refusal> {
    let refusal = |status: StatusCode, message: String| Refusal {
        status: status.as_u16(),
        message,
    };
    match timeout(PATIENCE, Limited::new(body, BODY).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(e)) if e.is::<LengthLimitError>() => Err(refusal(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("a review has at most {BODY} bytes"),
        )),
        Ok(Err(e)) => Err(refusal(
            StatusCode::BAD_REQUEST,
            format!("the body ended early: {e}"),
        )),
        Err(_) => Err(refusal(
            StatusCode::REQUEST_TIMEOUT,
            format!("the body did not come within {} s", PATIENCE.as_secs()),
        )),
    }
}

/// What is there to look at.
fn page(path: &str, state: &State) -> Answer {
    match path {
        "/healthz" => text(StatusCode::OK, "ok\n"),
        "/readyz" => match state.is_ready.load(Ordering::Acquire) {
            true => text(StatusCode::OK, "ok\n"),
            false => text(
                StatusCode::SERVICE_UNAVAILABLE,
                "not ready: no certificate, or about to end\n",
            ),
        },
        "/metrics" => with_type(
            Response::new(Full::from(state.metrics.page())),
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
        ),
        _ => text(StatusCode::NOT_FOUND, "nothing is here\n"),
    }
}

fn text(status: StatusCode, text: &str) -> Answer {
    let mut answer = with_type(
        Response::new(Full::from(text.to_owned())),
        "text/plain; charset=utf-8",
    );
    *answer.status_mut() = status;
    answer
}

fn with_type(mut answer: Answer, kind: &'static str) -> Answer {
    let kind = hyper::header::HeaderValue::from_static(kind);
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer
}
