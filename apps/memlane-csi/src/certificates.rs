//! Certificates that are renewed while the plugin runs: files that changed are read again, and nothing is restarted.
//!
//! Folders have the files that `memlane serve --tls` and `memlane map --tls` take. Connections that exist stay as they are;
//! those that begin later show and believe the new certificates. If the files do not fit each other, the old ones stay in use.

mod copies;

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use memlane_transport::io::tls::TlsFiles;
use rustls::pki_types::ServerName;
use rustls::version::TLS13;
use rustls::{ClientConfig, ServerConfig};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint, Uri};

pub use copies::Copies;

/// What gRPC is called in TLS (ALPN).
const PROTOCOL: &[u8] = b"h2";
/// How long the other end may take until both have shown their certificates.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// How often a store that says nothing is asked whether it is there, and how long that may take.
const ALIVE: Duration = Duration::from_secs(5);
/// How long to wait when no descriptor is left for a connection.
const PAUSE: Duration = Duration::from_millis(100);

/// Which file lies somewhere, and when it was written.
type Mark = Option<(u64, u64, i64, i64)>;

fn marks(files: &TlsFiles) -> Vec<Mark> {
    let all = [
        Some(&files.certificate),
        Some(&files.key),
        files.authority.as_ref(),
        files.revoked.as_ref(),
    ];
    let of = |file: &PathBuf| {
        let found = std::fs::metadata(file).ok()?;
        Some((found.dev(), found.ino(), found.mtime(), found.mtime_nsec()))
    };
    all.into_iter().map(|file| file.and_then(of)).collect()
}

/// The certificates of one end, for connections that begin now.
pub struct Certificates<C> {
    files: Box<dyn Fn() -> TlsFiles + Send + Sync>,
    read: fn(&TlsFiles) -> io::Result<C>,
    held: Mutex<Held<C>>,
}

struct Held<C> {
    config: Arc<C>,
    /// Of the files that were read last.
    marks: Vec<Mark>,
}

impl<C> Certificates<C> {
    fn of(
        folder: &Path,
        files: fn(&Path) -> TlsFiles,
        read: fn(&TlsFiles) -> io::Result<C>,
    ) -> io::Result<Arc<Certificates<C>>> {
        let folder = folder.to_owned();
        let files = Box::new(move || files(&folder));
        let first = files();
        // Before they are read: what is written meanwhile is read once more.
        let marks = marks(&first);
        let config = Arc::new(read(&first)?);
        Ok(Arc::new(Certificates {
            files,
            read,
            held: Mutex::new(Held { config, marks }),
        }))
    }

    /// What a connection that begins now shows and believes.
    fn current(&self) -> Arc<C> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let files = (self.files)();
        let marks = marks(&files);
        if marks != held.marks {
            match (self.read)(&files) {
                Ok(config) => held.config = Arc::new(config),
                Err(error) => eprintln!(
                    "memlane-csi: the new certificates are not used, but those from before: {error}"
                ),
            }
            held.marks = marks;
        }
        Arc::clone(&held.config)
    }
}

impl Certificates<ServerConfig> {
    /// A store's: `server-cert.pem`, `server-key.pem`, `ca-cert.pem` and perhaps `ca-crl.pem` in a folder.
    ///
    /// # Errors
    /// A file cannot be read, or is not what it should be.
    pub fn of_server(folder: &Path) -> io::Result<Arc<Certificates<ServerConfig>>> {
        Certificates::of(folder, TlsFiles::of_server, |files| {
            let mut config = files.server(&[&TLS13])?;
            config.alpn_protocols = vec![PROTOCOL.to_vec()];
            Ok(config)
        })
    }

    /// The connections of clients that have shown a certificate of the authority.
    pub fn incoming(
        self: Arc<Self>,
        listener: TcpListener,
    ) -> ReceiverStream<io::Result<server::TlsStream<TcpStream>>> {
        let (taken, incoming) = mpsc::channel(1);
        tokio::spawn(async move {
            while !taken.is_closed() {
                let Ok((stream, _)) = listener.accept().await else {
                    tokio::time::sleep(PAUSE).await;
                    continue;
                };
                let (acceptor, taken) = (TlsAcceptor::from(self.current()), taken.clone());
                tokio::spawn(async move {
                    // A stranger's handshake is nobody's business.
                    let _ = stream.set_nodelay(true);
                    let handshake = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream));
                    if let Ok(Ok(stream)) = handshake.await {
                        let _ = taken.send(Ok(stream)).await;
                    }
                });
            }
        });
        ReceiverStream::new(incoming)
    }
}

impl Certificates<ClientConfig> {
    /// A controller's: `client-cert.pem`, `client-key.pem`, `ca-cert.pem` and perhaps `ca-crl.pem` in a folder.
    ///
    /// # Errors
    /// A file cannot be read, or is not what it should be.
    pub fn of_client(folder: &Path) -> io::Result<Arc<Certificates<ClientConfig>>> {
        Certificates::of(folder, TlsFiles::of_client, |files| {
            let mut config = files.client(&[&TLS13])?;
            config.alpn_protocols = vec![PROTOCOL.to_vec()];
            Ok(config)
        })
    }

    /// A channel to `https://HOST:PORT`, which connects when it is used, and again when the connection was lost.
    ///
    /// # Errors
    /// That is no such address.
    pub fn channel(self: &Arc<Self>, uri: &str, patience: Duration) -> anyhow::Result<Channel> {
        let asked: Uri = uri.parse()?;
        let Some(authority) = asked.authority() else {
            anyhow::bail!("{uri:?} has no host");
        };
        let place = Place {
            host: authority.host().trim_matches(['[', ']']).to_owned(),
            port: authority.port_u16().unwrap_or(443),
        };
        // The transport would do TLS itself for https, with the certificates of its start.
        let endpoint = Endpoint::from_shared(format!("http://{authority}"))?
            .origin(asked.clone())
            .http2_keep_alive_interval(ALIVE)
            .keep_alive_timeout(ALIVE)
            .timeout(patience);
        let tls = Arc::clone(self);
        Ok(
            endpoint.connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
                let (config, place) = (tls.current(), place.clone());
                async move {
                    let connected = tokio::time::timeout(HANDSHAKE, place.connect(config)).await;
                    connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
                }
            })),
        )
    }
}

/// Where a store listens.
#[derive(Clone)]
struct Place {
    host: String,
    port: u16,
}

impl Place {
    async fn connect(
        self,
        config: Arc<ClientConfig>,
    ) -> io::Result<TokioIo<client::TlsStream<TcpStream>>> {
        let name = ServerName::try_from(self.host.clone())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        stream.set_nodelay(true)?;
        let stream = TlsConnector::from(config).connect(name, stream).await?;
        Ok(TokioIo::new(stream))
    }
}
