//! The command `memlane-webhook`.
// Doc comments of clap's arguments are the text of --help: brackets in them are no links.
#![allow(rustdoc::broken_intra_doc_links, rustdoc::invalid_html_tags)]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;
use clap::error::ErrorKind;
use kube::Client;
use memlane_inject::Edits;
use memlane_webhook::certificate::Terms;
use memlane_webhook::keeper::{self, Keeper};
use memlane_webhook::server::{self, Shown, State};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing::info;

/// Put memlane into the pods of a Kubernetes cluster.
///
/// The API server asks this webhook about each new pod of a namespace with the label memlane.dev/lane=on. The webhook adds a
/// volume of the driver csi.memlane.dev, which brings memlane's library and the agent's socket, and the variables by which
/// programs find them. It never refuses a pod. docs/guides/kubernetes.md tells how to install it.
#[derive(Parser, Debug)]
#[command(name = "memlane-webhook", version)]
struct Args {
    /// Where API servers connect, by TLS
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "[::]:9443")]
    listen: SocketAddr,
    /// Where /healthz, /readyz and /metrics are, without TLS
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "[::]:9480")]
    status: SocketAddr,
    /// Take the certificate from tls.crt and tls.key in this folder, and again when they change. Without it, the webhook makes
    /// its own
    #[arg(long, value_name = "DIR")]
    tls: Option<PathBuf>,
    /// The Secret in which certificates that the webhook makes are kept
    #[arg(
        long,
        value_name = "NAME",
        default_value = "memlane-webhook-tls",
        conflicts_with = "tls"
    )]
    secret: String,
    /// The MutatingWebhookConfiguration in which the authority is written
    #[arg(
        long,
        value_name = "NAME",
        default_value = "memlane",
        conflicts_with = "tls"
    )]
    configuration: String,
    /// A name under which API servers call the webhook; may be repeated [default: memlane-webhook.NAMESPACE.svc]
    #[arg(long = "name", value_name = "NAME", conflicts_with = "tls")]
    names: Vec<String>,
    /// How long a certificate is valid; it is renewed after two thirds of it
    #[arg(long, value_name = "TIME", default_value = "90d", value_parser = time, conflicts_with = "tls")]
    life: Duration,
    /// Leave LD_PRELOAD to the node plugin, which completes it together with the container runtime (memlane csi node --nri): what
    /// images preload themselves is kept. Pods have no lane on nodes where it does not
    #[arg(long)]
    keep_image_preload: bool,
    /// After SIGTERM, go on for this long: API servers may not yet know that another replica is to be asked
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = time)]
    grace: Duration,
}

/// A time such as 30s, 5m, 12h or 90d.
fn time(text: &str) -> Result<Duration, String> {
    let units = [("s", 1), ("m", 60), ("h", 3_600), ("d", 86_400)];
    let wrong = || "expected a time such as 30s, 5m, 12h or 90d".to_owned();
    let of_unit = |(unit, seconds): (&str, u64)| Some((text.strip_suffix(unit)?, seconds));
    let (number, seconds) = units.into_iter().find_map(of_unit).ok_or_else(wrong)?;
    let number: u64 = number.parse().map_err(|_| wrong())?;
    match number.checked_mul(seconds) {
        // Ten years: an authority lives forty times as long.
        Some(time) if (1..=3_650 * 86_400).contains(&time) => Ok(Duration::from_secs(time)),
        _ => Err("expected a time between 1s and 3650d".to_owned()),
    }
}

/// Exit codes, as in docs/exit-codes.md.
const FAILED: u8 = 1;
const USAGE: u8 = 2;
const UNSUPPORTED: u8 = 3;

/// The process is in no cluster, and knows of none.
#[derive(Debug)]
struct NoCluster(String);

impl std::fmt::Display for NoCluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NoCluster {}

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            let is_asked = matches!(
                error.kind(),
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
            );
            let _ = error.print();
            return ExitCode::from(if is_asked { 0 } else { USAGE });
        }
    };
    tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_writer(std::io::stderr)
        .init();
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "ends");
            let is_nowhere = error.downcast_ref::<NoCluster>().is_some();
            ExitCode::from(if is_nowhere { UNSUPPORTED } else { FAILED })
        }
    }
}

#[tokio::main(worker_threads = 2)]
async fn run(args: Args) -> anyhow::Result<()> {
    // kube's client takes the process's provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut ends = [
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    ];
    let (over, end) = watch::channel(false);
    let edits = match args.keep_image_preload {
        true => Edits::of_a_lane_volume().completed_by_the_runtime(),
        false => Edits::of_a_lane_volume(),
    };
    let (shown, state) = (Arc::new(Shown::default()), Arc::new(State::new(edits)));
    let keeping = keeping(&args, &shown, &state).await?;
    let (reviews, status) = (listen(args.listen).await?, listen(args.status).await?);
    info!(
        version = env!("CARGO_PKG_VERSION"),
        listen = %reviews.local_addr()?,
        status = %status.local_addr()?,
        "begins"
    );
    let status = tokio::spawn(server::status(status, Arc::clone(&state), end.clone()));
    let reviews = tokio::spawn(server::reviews(reviews, shown, Arc::clone(&state), end));
    let [terminate, interrupt] = &mut ends;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    info!("is asked to end");
    keeping.abort();
    state.is_ready.store(false, Ordering::Release);
    tokio::time::sleep(args.grace).await;
    over.send_replace(true);
    status.await?;
    reviews.await?
}

/// The task that keeps the certificate.
async fn keeping(
    args: &Args,
    shown: &Arc<Shown>,
    state: &Arc<State>,
) -> anyhow::Result<tokio::task::JoinHandle<()>> {
    let (shown, state) = (Arc::clone(shown), Arc::clone(state));
    if let Some(folder) = args.tls.clone() {
        return Ok(tokio::spawn(async move {
            keeper::keep_files(&folder, &shown, &state).await;
        }));
    }
    let client = Client::try_default().await;
    let client = client.map_err(|e| NoCluster(format!("finds no cluster: {e}")))?;
    let namespace = client.default_namespace().to_owned();
    let terms = Terms {
        names: match args.names.is_empty() {
            true => vec![format!("memlane-webhook.{namespace}.svc")],
            false => args.names.clone(),
        },
        life: args.life,
    };
    let keeper = Keeper::new(
        &client,
        &namespace,
        &args.secret,
        &args.configuration,
        terms,
    );
    Ok(tokio::spawn(
        async move { keeper.keep(&shown, &state).await },
    ))
}

async fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let listening = TcpListener::bind(address).await;
    listening.with_context(|| format!("cannot listen at {address}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_flags_are_well_formed_and_a_time_has_a_unit() {
        Args::command().debug_assert();
        assert_eq!(time("90d"), Ok(Duration::from_secs(90 * 86_400)));
        for wrong in [
            "",
            "s",
            "90",
            "-1s",
            "0s",
            "1w",
            "99999999999999999999d",
            "4000d",
        ] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
    }
}
