//! `memlane-csi`: the plugin's roles.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, Parser, Subcommand};
use memlane_csi::certificates::{Certificates, Copies};
use memlane_csi::cluster;
use memlane_csi::controller::{Address, Local, Settings, Several, may_ask};
use memlane_csi::endpoint::{self, Endpoint, EndpointError};
use memlane_csi::events::{self, Recorder};
use memlane_csi::identity::Identity;
use memlane_csi::metrics::Metrics;
use memlane_csi::node::{self, Lanes, Memlane, Node, Shared};
use memlane_csi::nri::Nri;
use memlane_csi::proto::controller_server::ControllerServer;
use memlane_csi::proto::identity_server::IdentityServer;
use memlane_csi::proto::node_server::NodeServer;
use memlane_csi::registration::{Registration, RegistrationError};
use memlane_csi::store::{Backing, Files, Pool, Server, Store, Taken, Thin};
use memlane_csi::volume_id::{node_id, store_name};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::service::RoutesBuilder;

/// Exit codes, as docs/exit-codes.md has them.
mod exit {
    pub(crate) const FAILED: u8 = 1;
    /// Another plugin is at work, or the kubelet wants none: "the peer refused".
    pub(crate) const REFUSED: u8 = 4;
}

/// Volumes of memlane for Kubernetes and other orchestrators, by the Container Storage Interface
#[derive(Parser)]
#[command(name = "memlane-csi", version)]
struct Cli {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Make volumes in the stores of other machines, or in a folder of this one; publish them to nodes, and remove them
    Controller(ControllerArgs),
    /// Make volumes in a folder of this machine for a controller on another one
    Store(OfStore),
    /// Map volumes on this node, and mount them for pods
    Node(NodeArgs),
    /// Be controller and node in one process, for a machine that stores and uses volumes
    Single(SingleArgs),
}

#[derive(Args)]
struct Common {
    /// Socket at which the orchestrator calls
    #[arg(long, value_name = "unix:///PATH", value_parser = endpoint::path)]
    endpoint: PathBuf,
    /// Serve metrics for Prometheus here
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
    /// The memlane command
    #[arg(long, value_name = "FILE", default_value = "memlane")]
    memlane: PathBuf,
    /// Where this machine is, as labels that nodes have: volumes are for nodes at the same place; can be repeated
    #[arg(long = "topology", value_name = "LABEL=VALUE", value_parser = label)]
    topology: Vec<(String, String)>,
}

#[derive(Args)]
struct StoreArgs {
    /// Folder with the volumes, which memlane serve --root DIR --namespace 'nodes/%SESSNAME%' serves
    #[arg(long, value_name = "DIR")]
    root: PathBuf,
    /// Make volumes as thin volumes in this pool of LVM instead of files; the server needs --devices, and the folder is still
    /// where it finds them
    #[arg(long, value_name = "VG/POOL")]
    lvm: Option<Pool>,
    /// Where that server listens, as nodes reach it: what memlane map takes as SERVER
    #[arg(long, value_name = "SERVER")]
    serves: String,
    /// Name of the store: a part of each volume's identifier, so it must stay
    #[arg(long, value_name = "NAME", default_value = "local", value_parser = store_name)]
    store_name: String,
    /// Name of that server, as memlane vol --server takes it
    #[arg(long, value_name = "NAME")]
    server: Option<String>,
}

#[derive(Args)]
struct ControllerArgs {
    #[command(flatten)]
    common: Common,
    /// A store on another machine, where memlane-csi store listens; can be repeated
    #[arg(
        long = "store",
        value_name = "NAME=https://HOST:PORT",
        requires = "tls",
        conflicts_with = "StoreArgs"
    )]
    stores: Vec<Address>,
    /// Certificates for these stores: client-cert.pem, client-key.pem and ca-cert.pem
    #[arg(long, value_name = "DIR")]
    tls: Option<PathBuf>,
    #[command(flatten)]
    store: Option<StoreArgs>,
}

#[derive(Args)]
struct OfStore {
    /// Where to listen
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    /// Certificates: server-cert.pem, server-key.pem and ca-cert.pem
    #[arg(long, value_name = "DIR")]
    tls: PathBuf,
    /// Serve metrics for Prometheus here
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
    /// The memlane command
    #[arg(long, value_name = "FILE", default_value = "memlane")]
    memlane: PathBuf,
    /// Where this machine is, as labels that nodes have: volumes are for nodes at the same place; can be repeated
    #[arg(long = "topology", value_name = "LABEL=VALUE", value_parser = label)]
    topology: Vec<(String, String)>,
    #[command(flatten)]
    store: StoreArgs,
}

#[derive(Args)]
struct OfNode {
    /// Identifier of this node [default: the host's name]
    #[arg(long, value_name = "NAME", value_parser = node_id)]
    node_id: Option<String>,
    /// Certificates for memlane map --tls
    #[arg(long, value_name = "DIR")]
    tls: Option<PathBuf>,
    /// Copy the files of this folder to that of --tls, and again whenever they change: mappings outlive a container's files
    #[arg(long, value_name = "DIR", requires = "tls")]
    tls_from: Option<PathBuf>,
    /// Run memlane on the host, where this plugin is in a container with the host's process ids: each mapping gets a scope of
    /// its own from systemd, so that it outlives the container
    #[arg(long)]
    on_host: bool,
    /// The kubelet's folder plugins_registry: let it know of this plugin, without a sidecar. It and the endpoint must have the
    /// paths here that they have on the host
    #[arg(long, value_name = "DIR")]
    registration: Option<PathBuf>,
    /// Tell by events of Kubernetes when a volume falls back, is lost or recovers, at the claim that it is for. The pod's token
    /// must allow to get persistentvolumes, and to create and patch events
    #[arg(long)]
    events: bool,
    /// A label of this node in Kubernetes that says where it is, as --topology does; can be repeated. The pod's token must allow to
    /// get nodes
    #[arg(long = "topology-label", value_name = "LABEL")]
    topology_labels: Vec<String>,
    /// Folder with the library, as memlane agent install lays it out
    #[arg(long, value_name = "DIR", default_value = "/var/lib/memlane/inject")]
    inject: PathBuf,
    /// Folder with a folder for each domain, in which memlane agent listens
    #[arg(long, value_name = "DIR", default_value = "/run/memlane")]
    domains: PathBuf,
    /// A domain that several namespaces share, and which; can be repeated
    #[arg(long = "shared-domain", value_name = "NAME=NAMESPACE,…")]
    shared: Vec<Shared>,
    /// Be a plugin of the container runtime at this socket, too: where memlane webhook --keep-image-preload has left LD_PRELOAD
    /// alone, add the library to what the image and the pod have there
    #[arg(long, value_name = "SOCKET")]
    nri: Option<PathBuf>,
}

#[derive(Args)]
struct NodeArgs {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    node: OfNode,
}

#[derive(Args)]
struct SingleArgs {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    node: OfNode,
}

fn label(text: &str) -> Result<(String, String), String> {
    let split = text.split_once('=');
    split
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .ok_or_else(|| "LABEL=VALUE is needed".to_owned())
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Cli::parse().role).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("memlane-csi: {error:#}");
            let refused = error.is::<Taken>()
                || error.is::<RegistrationError>()
                || matches!(error.downcast_ref(), Some(EndpointError::Taken(_)));
            ExitCode::from(if refused { exit::REFUSED } else { exit::FAILED })
        }
    }
}

async fn run(role: Role) -> anyhow::Result<()> {
    match role {
        Role::Controller(args) => run_controller(args).await,
        Role::Store(args) => run_store(args).await,
        Role::Node(args) => {
            let mut plugin = Plugin::new(&args.common, false)?;
            plugin.register(&args.common, &args.node)?;
            let node = node(&args.common, args.node, &plugin).await?;
            plugin.routes.add_service(NodeServer::new(node));
            plugin.serve(&args.common).await
        }
        Role::Single(args) => {
            let mut plugin = Plugin::new(&args.common, true)?;
            let only = Some(own_id(&args.node)?);
            let Common {
                memlane, topology, ..
            } = &args.common;
            let local = local(memlane, &args.store, topology, only, &plugin.metrics)?;
            plugin.routes.add_service(ControllerServer::new(local));
            plugin.register(&args.common, &args.node)?;
            let node = node(&args.common, args.node, &plugin).await?;
            plugin.routes.add_service(NodeServer::new(node));
            plugin.serve(&args.common).await
        }
    }
}

async fn run_controller(args: ControllerArgs) -> anyhow::Result<()> {
    let mut plugin = Plugin::new(&args.common, true)?;
    let metrics = Arc::clone(&plugin.metrics);
    let Common {
        memlane, topology, ..
    } = &args.common;
    match (&args.store, &args.tls) {
        (Some(store), _) => {
            let local = local(memlane, store, topology, None, &metrics)?;
            plugin.routes.add_service(ControllerServer::new(local));
        }
        (None, Some(tls)) if !args.stores.is_empty() => {
            let several = Several::new(&args.stores, &Certificates::of_client(tls)?, metrics)?;
            plugin.routes.add_service(ControllerServer::new(several));
        }
        _ => anyhow::bail!("--store is needed, or --root"),
    }
    plugin.serve(&args.common).await
}

/// Answers controllers on other machines.
async fn run_store(args: OfStore) -> anyhow::Result<()> {
    let metrics = Arc::new(Metrics::default());
    if let Some(at) = args.metrics {
        Arc::clone(&metrics).serve(at).await?;
    }
    let name = args.store.store_name.clone();
    let local = local(&args.memlane, &args.store, &args.topology, None, &metrics)?;
    let asked = ControllerServer::with_interceptor(local, move |request| may_ask(&name, request));
    let certificates = Certificates::of_server(&args.tls)?;
    let listener = TcpListener::bind(args.listen).await?;
    eprintln!("memlane-csi: listening at {}", listener.local_addr()?);
    tonic::transport::Server::builder()
        .add_service(asked)
        .serve_with_incoming_shutdown(certificates.incoming(listener), ended())
        .await?;
    Ok(())
}

fn local(
    memlane: &Path,
    args: &StoreArgs,
    topology: &[(String, String)],
    only_node: Option<String>,
    metrics: &Arc<Metrics>,
) -> anyhow::Result<Local> {
    let server = Server {
        memlane: memlane.to_owned(),
        name: args.server.clone(),
    };
    let backing: Box<dyn Backing> = match &args.lvm {
        Some(pool) => Box::new(Thin::new(pool.clone()).map_err(anyhow::Error::msg)?),
        None => Box::new(Files::new(&args.root)),
    };
    let store = Store::open(&args.store_name, &args.root, backing, server)?;
    let settings = Settings {
        serves: args.serves.clone(),
        only_node,
        topology: topology.iter().cloned().collect(),
    };
    Ok(Local::new(store, settings, Arc::clone(metrics)))
}

fn own_id(args: &OfNode) -> anyhow::Result<String> {
    match &args.node_id {
        Some(id) => Ok(id.clone()),
        None => {
            let host = rustix::system::uname();
            let host = host.nodename().to_string_lossy();
            node_id(&host).map_err(anyhow::Error::msg)
        }
    }
}

/// Where this node is, by flags and by its labels.
async fn place(
    common: &Common,
    args: &OfNode,
    id: &str,
) -> anyhow::Result<HashMap<String, String>> {
    let mut place: HashMap<String, String> = common.topology.iter().cloned().collect();
    if !args.topology_labels.is_empty() {
        // As the cluster knows it.
        let name = id.replace(':', ".");
        place.extend(cluster::labels(&cluster::client()?, &name, &args.topology_labels).await);
    }
    Ok(place)
}

async fn node(common: &Common, args: OfNode, plugin: &Plugin) -> anyhow::Result<node::Service> {
    let id = own_id(&args)?;
    let topology = place(common, &args, &id).await?;
    let words = |words: &str| match args.on_host {
        true => words.split(' ').map(str::to_owned).collect(),
        false => Vec::new(),
    };
    if let (Some(from), Some(to)) = (args.tls_from, &args.tls) {
        tokio::spawn(Copies::make(from, to.clone())?.keep());
    }
    let memlane = Memlane {
        command: common.memlane.clone(),
        through: words("nsenter --target 1 --mount --uts --ipc --net --pid --"),
        apart: words("systemd-run --quiet --scope --collect --slice=memlane --"),
        tls: args.tls,
    };
    let lanes = Lanes::new(args.inject, args.domains, args.shared);
    // What a plugin has left that was killed.
    lanes.tidy();
    let node = Arc::new(Node::new(id.clone(), topology, memlane, lanes));
    let shown = Arc::clone(&node);
    plugin
        .metrics
        .show(move |registry| shown.register_health(registry));
    tokio::spawn(Arc::clone(&node).watch_mirrors());
    if args.events {
        let recorder = Recorder::new(cluster::client()?, &id);
        tokio::spawn(events::tell(recorder, Arc::clone(&node)));
    }
    let runtime = plugin.nri.as_ref().map(Nri::known);
    Ok(node::Service::new(
        node,
        Arc::clone(&plugin.metrics),
        runtime,
    ))
}

/// What answers the orchestrator.
struct Plugin {
    endpoint: Endpoint,
    routes: RoutesBuilder,
    metrics: Arc<Metrics>,
    registration: Option<Registration>,
    nri: Option<Nri>,
}

impl Plugin {
    /// A plugin with the service *Identity*. `controller`: it also offers *Controller*.
    fn new(common: &Common, controller: bool) -> anyhow::Result<Plugin> {
        let mut plugin = Plugin {
            endpoint: Endpoint::listen(&common.endpoint)?,
            routes: RoutesBuilder::default(),
            metrics: Arc::new(Metrics::default()),
            registration: None,
            nri: None,
        };
        let identity = Identity {
            controller,
            topology: !common.topology.is_empty(),
        };
        plugin.routes.add_service(IdentityServer::new(identity));
        Ok(plugin)
    }

    /// Lets the kubelet and the container runtime know of the plugin, if that is wished.
    fn register(&mut self, common: &Common, node: &OfNode) -> anyhow::Result<()> {
        if let Some(folder) = &node.registration {
            self.registration = Some(Registration::listen(folder, &common.endpoint)?);
        }
        let metrics = &self.metrics;
        self.nri = node
            .nri
            .as_deref()
            .map(|at| Nri::new(at, Arc::clone(metrics)));
        Ok(())
    }

    /// Answers calls until SIGTERM or SIGINT, or until the kubelet refuses the plugin. Mappings stay.
    async fn serve(self, common: &Common) -> anyhow::Result<()> {
        if let Some(at) = common.metrics {
            self.metrics.serve(at).await?;
        }
        if let Some(nri) = self.nri {
            tokio::spawn(nri.serve());
        }
        eprintln!("memlane-csi: listening at {}", common.endpoint.display());
        let calls = tonic::transport::Server::builder()
            .add_routes(self.routes.routes())
            .serve_with_incoming_shutdown(UnixListenerStream::new(self.endpoint.listener), ended());
        tokio::select! {
            ended = calls => ended?,
            refused = registered(self.registration) => refused?,
        }
        Ok(())
    }
}

/// Ends only with an error.
async fn registered(registration: Option<Registration>) -> Result<(), RegistrationError> {
    match registration {
        Some(registration) => registration.serve().await,
        None => std::future::pending().await,
    }
}

async fn ended() {
    let (Ok(mut term), Ok(mut int)) = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    ) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
}
