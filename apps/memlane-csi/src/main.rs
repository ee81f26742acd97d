//! `memlane-csi`: the plugin's roles.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, Parser, Subcommand};
use memlane_csi::controller::{Local, Settings};
use memlane_csi::endpoint::{self, Endpoint, EndpointError};
use memlane_csi::identity::Identity;
use memlane_csi::metrics::Metrics;
use memlane_csi::node::{self, Lanes, Memlane, Node, Shared};
use memlane_csi::proto::controller_server::ControllerServer;
use memlane_csi::proto::identity_server::IdentityServer;
use memlane_csi::proto::node_server::NodeServer;
use memlane_csi::store::{Files, Server, Store};
use memlane_csi::volume_id::{node_id, store_name};
use tokio::signal::unix::{SignalKind, signal};
use tokio_stream::wrappers::UnixListenerStream;

/// Exit codes, as docs/exit-codes.md has them.
mod exit {
    pub(crate) const FAILED: u8 = 1;
    /// Another plugin is at work: "the peer refused".
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
    /// Make volumes in a folder of this machine, publish them to nodes, and remove them
    Controller(ControllerArgs),
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
    /// Run memlane on the host, where this plugin is in a container with the host's process ids: each mapping gets a scope of
    /// its own from systemd, so that it outlives the container
    #[arg(long)]
    on_host: bool,
    /// Folder with the library, as memlane agent install lays it out
    #[arg(long, value_name = "DIR", default_value = "/var/lib/memlane/inject")]
    inject: PathBuf,
    /// Folder with a folder for each domain, in which memlane agent listens
    #[arg(long, value_name = "DIR", default_value = "/run/memlane")]
    domains: PathBuf,
    /// A domain that several namespaces share, and which; can be repeated
    #[arg(long = "shared-domain", value_name = "NAME=NAMESPACE,…")]
    shared: Vec<Shared>,
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
            let taken = matches!(error.downcast_ref(), Some(EndpointError::Taken(_)));
            ExitCode::from(if taken { exit::REFUSED } else { exit::FAILED })
        }
    }
}

async fn run(role: Role) -> anyhow::Result<()> {
    match role {
        Role::Controller(args) => {
            let endpoint = Endpoint::listen(&args.common.endpoint)?;
            let metrics = Arc::new(Metrics::default());
            let controller = controller(&args.common, &args.store, None, &metrics)?;
            serve(&args.common, endpoint, metrics, Some(controller), None).await
        }
        Role::Node(args) => {
            let endpoint = Endpoint::listen(&args.common.endpoint)?;
            let metrics = Arc::new(Metrics::default());
            let node = node(&args.common, args.node, &metrics)?;
            serve(&args.common, endpoint, metrics, None, Some(node)).await
        }
        Role::Single(args) => {
            let endpoint = Endpoint::listen(&args.common.endpoint)?;
            let metrics = Arc::new(Metrics::default());
            let own = own_id(&args.node)?;
            let controller = controller(&args.common, &args.store, Some(own), &metrics)?;
            let node = node(&args.common, args.node, &metrics)?;
            serve(
                &args.common,
                endpoint,
                metrics,
                Some(controller),
                Some(node),
            )
            .await
        }
    }
}

fn controller(
    common: &Common,
    args: &StoreArgs,
    only_node: Option<String>,
    metrics: &Arc<Metrics>,
) -> anyhow::Result<Local> {
    let server = Server {
        memlane: common.memlane.clone(),
        name: args.server.clone(),
    };
    let backing = Box::new(Files::new(&args.root));
    let store = Store::open(&args.store_name, &args.root, backing, server)?;
    let settings = Settings {
        serves: args.serves.clone(),
        only_node,
        topology: topology(common),
    };
    Ok(Local::new(store, settings, Arc::clone(metrics)))
}

fn topology(common: &Common) -> HashMap<String, String> {
    common.topology.iter().cloned().collect()
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

fn node(common: &Common, args: OfNode, metrics: &Arc<Metrics>) -> anyhow::Result<node::Service> {
    let id = own_id(&args)?;
    let words = |words: &str| match args.on_host {
        true => words.split(' ').map(str::to_owned).collect(),
        false => Vec::new(),
    };
    let memlane = Memlane {
        command: common.memlane.clone(),
        through: words("nsenter --target 1 --mount --uts --ipc --net --pid --"),
        apart: words("systemd-run --quiet --scope --collect --slice=memlane --"),
        tls: args.tls,
    };
    let lanes = Lanes {
        tree: args.inject,
        domains: args.domains,
        shared: args.shared,
    };
    let node = Arc::new(Node::new(id, topology(common), memlane, lanes));
    Ok(node::Service::new(node, Arc::clone(metrics)))
}

/// Answers calls until SIGTERM or SIGINT. Mappings stay.
async fn serve(
    common: &Common,
    endpoint: Endpoint,
    metrics: Arc<Metrics>,
    controller: Option<Local>,
    node: Option<node::Service>,
) -> anyhow::Result<()> {
    if let Some(at) = common.metrics {
        metrics.serve(at).await?;
    }
    let identity = Identity {
        controller: controller.is_some(),
        topology: !common.topology.is_empty(),
    };
    eprintln!("memlane-csi: listening at {}", common.endpoint.display());
    tonic::transport::Server::builder()
        .add_service(IdentityServer::new(identity))
        .add_optional_service(controller.map(ControllerServer::new))
        .add_optional_service(node.map(NodeServer::new))
        .serve_with_incoming_shutdown(UnixListenerStream::new(endpoint.listener), ended())
        .await?;
    Ok(())
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
