//! The Kubernetes cluster in one of whose pods this process is.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client, Config};

/// How long to wait after the API server did not answer.
const PAUSE: Duration = Duration::from_secs(2);

/// This process is in no pod that may talk to an API server.
#[derive(Debug)]
pub struct NoCluster(String);

impl fmt::Display for NoCluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no cluster can be asked: {}", self.0)
    }
}

impl std::error::Error for NoCluster {}

/// A client with the pod's token. Nothing is asked yet.
///
/// # Errors
/// This process is in no pod, or has no token.
pub fn client() -> Result<Client, NoCluster> {
    // kube's client takes the process's provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let config = Config::incluster().map_err(|error| NoCluster(error.to_string()))?;
    Client::try_from(config).map_err(|error| NoCluster(error.to_string()))
}

/// Those of these labels that a node has, with their values. Waits for the API server: a wrong answer about where a node is
/// would be believed until the plugin starts again.
pub async fn labels(client: &Client, node: &str, wanted: &[String]) -> HashMap<String, String> {
    let nodes: Api<Node> = Api::all(client.clone());
    let mut said = None;
    loop {
        match nodes.get(node).await {
            Ok(found) => {
                let mut all = found.metadata.labels.unwrap_or_default();
                let named = wanted.iter().filter_map(|label| all.remove_entry(label));
                return named.collect();
            }
            Err(error) => {
                let why = Some(error.to_string());
                if why != said {
                    eprintln!("memlane-csi: waiting for the labels of node {node}: {error}");
                }
                said = why;
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}
