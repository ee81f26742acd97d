//! `memlane serve`: gives out the volumes below a folder.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use memlane_block::server::{self, OpenerView, Shared, VolumeView};
use memlane_core::region::{Pages, Region};
use memlane_observe::control::{self, Role};
use memlane_transport::engine::pulse::Heartbeat;
use memlane_transport::engine::server::Config;
use memlane_transport::io::tls::ServerTls;
use memlane_transport::io::{
    self, Address, Inherited, LOCAL, PORT, ServedPath, Server, ServerConfig, SessionInfo,
    SharedMemoryError,
};
use memlane_transport::port::Identity;
use memlane_transport::wire::Geometry;

use super::mapping::failure_text;
use super::requests::Request;
use super::spec::Memory;
use super::tls::{self, Renewal};
use super::{across, documents, metrics, spec};
use crate::cli::device::{Device, TRUST};
use crate::cli::exit::{Exit, fail};
use crate::cli::out;
use crate::cli::values::size;
use crate::daemon::service;

/// Room for a request's header in a chunk, in bytes: a page, as `MAX_HDR_SIZE` of mainline RTRS.
const HEADER: u32 = 4096;

/// Serve volumes: the files, or block devices, below a folder
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Folder with the volumes; clients cannot reach anything outside it
    #[arg(long, value_name = "DIR")]
    root: PathBuf,
    /// Listen here: tcp://ADDRESS[:PORT], rdma://ADDRESS[:PORT], local or local:NAME; can be repeated [default: the sockets of the service manager,
    /// or local and tcp://127.0.0.1:1234]
    #[arg(long, value_name = "WHERE")]
    listen: Vec<Address>,
    /// Require TLS and a client certificate on TCP; DIR has server-cert.pem, server-key.pem, ca-cert.pem and optionally
    /// ca-crl.pem
    #[arg(long, value_name = "DIR", value_parser = tls::folder)]
    tls: Option<PathBuf>,
    /// Listen beyond this machine without --tls: nothing is encrypted, and a client may use any session's name
    #[arg(long, conflicts_with = "tls")]
    insecure: bool,
    /// Give each session its own folder below the root; %SESSNAME% stands for the session's name
    #[arg(long, value_name = "TEMPLATE")]
    namespace: Option<String>,
    /// Most requests that a session may have in flight
    #[arg(long, default_value_t = 512, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    queue_depth: u16,
    /// Memory for each request
    #[arg(long, default_value = "128k", value_name = "SIZE", value_parser = size)]
    chunk: u64,
    /// What to make each session's memory of. Clients of this machine map plain pages only: with hugetlb, their data goes by the socket
    #[arg(long, value_enum, default_value_t = Memory::Plain)]
    memory: Memory,
    /// File of memory that virtual machines have as an ivshmem device: clients there may use paths ivshmem://HOST. Every machine that has
    /// the memory can read and write all of it
    #[arg(long, value_name = "ivshmem:PATH")]
    device: Option<Device>,
    /// Number of threads; each session stays on one thread
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: u16,
    /// Drop a client's path after this time without a sign of life, from 40ms to 10m
    #[arg(long, default_value = "4s", value_parser = spec::heartbeat, value_name = "TIME")]
    heartbeat: Duration,
    /// Serve block devices below the root, too
    #[arg(long)]
    devices: bool,
    /// Serve volumes with names like mem:1G and null:1G, for tests and measurements
    #[arg(long)]
    test_volumes: bool,
    /// Which clients of this machine get the memory of a volume itself, if it is in memory (files of a tmpfs, mem:SIZE): they read and
    /// write it without asking. Without a value: user
    #[arg(long, value_enum, default_value_t = Lend::Auto, num_args = 0..=1, default_missing_value = "user", value_name = "WHO")]
    lend: Lend,
    /// Name of this server for memlane vol
    #[arg(long, default_value = LOCAL)]
    name: String,
    /// Print one JSON document with the addresses when the server listens
    #[arg(long)]
    json: bool,
    /// Serve metrics for Prometheus here
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<std::net::SocketAddr>,
}

/// `--lend`.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Lend {
    /// Those that may trace this process, as root may: they could change its memory anyway
    Auto,
    /// All that run as the same user, or as root
    User,
    /// None: all reads and writes go through this process
    Never,
}

impl Lend {
    fn to_whom(self) -> server::Lend {
        match self {
            Lend::Auto => server::Lend::ToTracers,
            Lend::User => server::Lend::ToUser,
            Lend::Never => server::Lend::Never,
        }
    }
}

impl Args {
    pub(crate) fn json(&self) -> bool {
        self.json
    }
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let inherited = service::sockets()?;
    let listen = places(&args, &inherited)?;
    let geometry = geometry(&args)?;
    let pages = args.memory.pages();
    can_have_a_session(&geometry, pages)?;
    let control = control::Listener::bind(Role::Server, &args.name).map_err(|_| {
        let text = format!(
            "another server of this user has the name {:?}: choose another --name",
            args.name
        );
        fail(Exit::Failed, text)
    })?;
    memlane_block::store::allow_mappings();
    let shared = Shared::new(server::ServerConfig {
        namespace: args.namespace.clone(),
        devices: args.devices,
        test_volumes: args.test_volumes,
        lend: args.lend.to_whom(),
        max_io: geometry.max_io(),
        ..server::ServerConfig::new(args.root.clone())
    })
    .with_context(|| format!("cannot serve {}", args.root.display()))?;
    let mut born = [0; 8];
    std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut born)?;
    let mut config = ServerConfig::new(
        listen.clone(),
        Config::new(geometry, u64::from_le_bytes(born)),
    );
    config.workers = usize::from(args.threads);
    config.inherited = inherited;
    config.pages = pages;
    config.shares = args.device.as_ref().map(across::share).transpose()?;
    config.engine.heartbeat = Heartbeat::within(args.heartbeat);
    let renewal = match &args.tls {
        None => None,
        Some(folder) => {
            let (tls, renewal) = tls::server(folder)?;
            config.tls = Some(tls.clone());
            Some((tls, renewal))
        }
    };
    let served = Arc::clone(&shared);
    let server = io::serve(config, move |_| served.service());
    let server = server.map_err(|error| cannot_serve(error, &listen, args.device.as_ref()))?;
    let running = Arc::new(Running {
        name: args.name,
        root: args.root.display().to_string(),
        geometry,
        server,
        shared,
        device: args.device,
    });
    if let Some(at) = args.metrics {
        let running = Arc::clone(&running);
        metrics::serve(at, move || metrics::of_servers(&[running.describe()]))
            .with_context(|| format!("metrics at {at}"))?;
    }
    let obeyed = Arc::clone(&running);
    std::thread::Builder::new()
        .name("control".into())
        .spawn(move || {
            control.serve(move |request| crate::cli::exit::reply(obeyed.obey(request)))
        })?;
    if let Some((tls, renewal)) = renewal {
        renew(tls, renewal)?;
    }
    let end = service::bell_of_the_end()?;
    running.say_hello(args.json)?;
    service::ready();
    service::wait_for_the_end(&end)?;
    running.server.stop();
    Ok(())
}

/// Why a server does not start.
fn cannot_serve(
    error: std::io::Error,
    listen: &[Address],
    device: Option<&Device>,
) -> anyhow::Error {
    let is_of_memory = error
        .get_ref()
        .is_some_and(|inner| inner.is::<SharedMemoryError>());
    let what = match device {
        Some(device) if is_of_memory => format!("cannot share {device}"),
        _ => {
            let all: Vec<String> = listen.iter().map(ToString::to_string).collect();
            format!("cannot listen at {}", all.join(", "))
        }
    };
    anyhow::Error::from(error).context(what)
}

/// Starts a thread that reads certificates again when they have changed.
fn renew(tls: ServerTls, mut renewal: Renewal) -> anyhow::Result<()> {
    let name = std::thread::Builder::new().name("certificates".into());
    name.spawn(move || {
        loop {
            std::thread::sleep(tls::LOOK);
            match renewal.due().map(|files| tls.reload(&files)) {
                None => {}
                Some(Ok(())) => out::warn("new certificates are in use"),
                Some(Err(error)) => {
                    out::warn(&format!("the old certificates stay in use: {error}"));
                }
            }
        }
    })?;
    Ok(())
}

/// The addresses to listen at, in addition to inherited sockets.
fn places(args: &Args, inherited: &[Inherited]) -> anyhow::Result<Vec<Address>> {
    let open = args.tls.is_none() && !args.insecure;
    let mut listen = args.listen.clone();
    if listen.is_empty() && inherited.is_empty() {
        listen.push(Address::local(LOCAL));
        // Who comes by TCP could say any session's name.
        if !(open && args.namespace.is_some()) {
            listen.push(Address::Tcp(([127, 0, 0, 1], PORT).into()));
        }
    }
    if let Some(place) = listen
        .iter()
        .find(|place| matches!(place, Address::Ivshmem(_)))
    {
        return Err(fail(
            Exit::Usage,
            format!(
                "{place} is a path of clients, which come by TCP: --listen tcp://ADDRESS, and name the memory by --device"
            ),
        ));
    }
    let all = || inherited.iter().map(Inherited::address).chain(&listen);
    if let Some(place) = all().find(is_rdma).filter(|_| !args.insecure) {
        return Err(fail(
            Exit::Usage,
            format!(
                "clients of {place} do not prove who they are, and nothing is encrypted: use --insecure if you trust the network"
            ),
        ));
    }
    let tcp = |place: &&Address| matches!(place, Address::Tcp(_));
    let beyond = |place: &&Address| matches!(place, Address::Tcp(at) if !at.ip().is_loopback());
    if let Some(place) = all().find(beyond).filter(|_| open) {
        return Err(fail(
            Exit::Usage,
            format!(
                "other machines can reach {place}, and clients would not have to prove who they are: \
                 use --tls DIR, or --insecure if you trust the network"
            ),
        ));
    }
    match all().find(tcp) {
        Some(place) if open && args.namespace.is_some() => Err(fail(
            Exit::Usage,
            format!(
                "any client of {place} could use any session's name, and so get any folder of \
                 --namespace: use --tls DIR, or --insecure if you trust everyone who can reach it"
            ),
        )),
        _ => Ok(listen),
    }
}

fn is_rdma(place: &&Address) -> bool {
    matches!(place, Address::Rdma(_))
}

fn geometry(args: &Args) -> anyhow::Result<Geometry> {
    let chunk = u32::try_from(args.chunk).unwrap_or(u32::MAX);
    Geometry::new(args.queue_depth, chunk, HEADER).map_err(|error| {
        let text = format!(
            "--queue-depth {} --chunk {}: {error}",
            args.queue_depth, args.chunk
        );
        fail(Exit::Usage, text)
    })
}

/// A server that could not have a single session is not started.
fn can_have_a_session(geometry: &Geometry, pages: Pages) -> anyhow::Result<()> {
    let len = io::chunks_len(geometry);
    let made = (pages == Pages::Huge).then(|| Region::create_of(c"memlane-trial", len, pages));
    let Some(Err(errno)) = made else {
        return Ok(());
    };
    let text = format!(
        "--memory hugetlb: too few huge pages are free ({errno}): each session needs {}: \
         sysctl vm.nr_hugepages=N, or a smaller --queue-depth",
        pages.huge_for(len)
    );
    Err(fail(Exit::Unsupported, text))
}

/// The document of `serve --json`.
#[derive(serde::Serialize)]
struct Hello<'a> {
    schema: &'static str,
    name: &'a str,
    root: &'a str,
    addresses: Vec<String>,
}

struct Running {
    name: String,
    root: String,
    geometry: Geometry,
    server: Server,
    shared: Arc<Shared>,
    /// Memory that other machines have, too.
    device: Option<Device>,
}

impl Running {
    /// The text for people, and for scripts that wait until the server listens.
    fn say_hello(&self, json: bool) -> anyhow::Result<()> {
        let all: Vec<String> = self
            .server
            .addresses()
            .iter()
            .map(ToString::to_string)
            .collect();
        out::warn(&format!("serving {} at {}", self.root, all.join(", ")));
        if let Some(memory) = self.shared_memory() {
            let (device, size) = (&memory.device, memory.size >> 20);
            out::warn(&format!(
                "sharing {device} ({size} MiB) with other machines: {TRUST}"
            ));
        }
        if json {
            out::print(&out::json(&Hello {
                schema: "memlane.serve/1",
                name: &self.name,
                root: &self.root,
                addresses: all,
            })?)?;
        }
        Ok(())
    }

    fn obey(&self, request: Request) -> anyhow::Result<serde_json::Value> {
        match request {
            Request::Describe => Ok(serde_json::to_value(self.describe())?),
            Request::Resize { volume, size } => {
                self.shared
                    .resize(&volume, size)
                    .with_context(|| format!("cannot resize {volume}"))?;
                Ok(format!("{volume} has {size} bytes now").into())
            }
            Request::Release { volume, session } => {
                match self.shared.force_close(&volume, &session) {
                    0 => Err(anyhow::anyhow!(
                        "no session {session:?} has {volume:?} open"
                    )),
                    _ => Ok(format!("{volume} was taken from {session}").into()),
                }
            }
            _ => Err(fail(
                Exit::Usage,
                "a server does not take this request: send it to a process of memlane map",
            )),
        }
    }

    fn shared_memory(&self) -> Option<documents::SharedMemory> {
        let used = self.server.shared_memory()?;
        Some(documents::SharedMemory {
            device: self.device.as_ref()?.to_string(),
            size: used.size as u64,
            used: used.used as u64,
        })
    }

    fn describe(&self) -> documents::Server {
        documents::Server {
            schema: "memlane.server/1".into(),
            name: self.name.clone(),
            pid: std::process::id(),
            root: self.root.clone(),
            listen: self
                .server
                .addresses()
                .iter()
                .map(ToString::to_string)
                .collect(),
            queue_depth: u32::from(self.geometry.depth()),
            max_io: self.geometry.max_io(),
            shared_memory: self.shared_memory(),
            sessions: self.server.sessions().iter().map(client).collect(),
            volumes: self.shared.snapshot().volumes.iter().map(open).collect(),
        }
    }
}

fn client(session: &SessionInfo) -> documents::Client {
    documents::Client {
        session: session.name.clone().unwrap_or_default(),
        identity: session.paths.first().map(identity).unwrap_or_default(),
        paths: session.paths.iter().map(|path| path.peer.clone()).collect(),
        executed: session.stats.begun,
        replays: session.stats.joined + session.stats.answered,
    }
}

fn open(volume: &VolumeView) -> documents::Open {
    let failure = volume
        .openers
        .iter()
        .filter_map(|opener| opener.failure.as_ref())
        .max_by_key(|f| f.when);
    documents::Open {
        volume: volume.name.clone(),
        size: volume.size,
        opened_by: volume.openers.iter().map(opened_by).collect(),
        last_error: failure.map(failure_text),
    }
}

fn opened_by(opener: &OpenerView) -> String {
    let lent = if opener.lent { ", lent" } else { "" };
    format!("{} ({}{lent})", opener.session, who(&opener.who))
}

fn identity(path: &ServedPath) -> String {
    who(&path.who)
}

fn who(identity: &Identity) -> String {
    match identity {
        Identity::Local { uid, pid } => format!("user {uid}, process {pid}"),
        Identity::Certificate(names) if names.is_empty() => "a certificate".into(),
        Identity::Certificate(names) => format!("a certificate for {}", names.join(", ")),
        Identity::Unknown => "unknown".into(),
    }
}
