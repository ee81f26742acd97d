//! How the kubelet of this node gets to know the plugin: it looks for sockets in its folder `plugins_registry`, and asks
//! each one what is behind it.

mod authority;

use std::path::{Path, PathBuf};

use tokio::sync::mpsc::{self, Receiver, Sender};
use tonic::{Request, Response, Status};

use crate::endpoint::{Endpoint, EndpointError};
use crate::proto::registration::registration_server::{Registration as Called, RegistrationServer};
use crate::proto::registration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};

/// The interface's version, as kubelets compare it: all of CSI 1.
const VERSION: &str = "1.0.0";

/// A socket in the kubelet's folder, and what the kubelet says there.
pub struct Registration {
    socket: Endpoint,
    plugin: PathBuf,
}

/// Why the plugin is not known to the kubelet.
#[derive(Debug)]
pub enum RegistrationError {
    /// The kubelet does not want it.
    Refused(String),
    /// The socket does not work any more.
    Broken(tonic::transport::Error),
}

impl std::fmt::Display for RegistrationError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RegistrationError::Refused(why) => write!(f, "the kubelet refuses this plugin: {why}"),
            RegistrationError::Broken(error) => write!(f, "the kubelet's socket: {error}"),
        }
    }
}

impl std::error::Error for RegistrationError {}

impl Registration {
    /// Listens in the kubelet's folder `plugins_registry`, for the plugin that listens at the path `plugin`. Both paths are
    /// the same for the kubelet as here.
    ///
    /// # Errors
    /// As [`Endpoint::listen`].
    pub fn listen(folder: &Path, plugin: &Path) -> Result<Registration, EndpointError> {
        let socket = Endpoint::listen(&folder.join(format!("{}-reg.sock", crate::DRIVER)))?;
        Ok(Registration {
            socket,
            plugin: plugin.to_path_buf(),
        })
    }

    /// Answers the kubelet, and ends only where the plugin cannot be known to it. A kubelet that was restarted asks again.
    ///
    /// # Errors
    /// Says why.
    pub async fn serve(self) -> Result<(), RegistrationError> {
        let (refused, refusal) = mpsc::channel(1);
        let answers = Answers {
            plugin: self.plugin,
            refused,
        };
        let server = tonic::transport::Server::builder()
            .add_service(RegistrationServer::new(answers))
            .serve_with_incoming(authority::incoming(self.socket.listener));
        tokio::select! {
            ended = server => ended.map_err(RegistrationError::Broken),
            why = first(refusal) => Err(RegistrationError::Refused(why)),
        }
    }
}

async fn first(mut refusal: Receiver<String>) -> String {
    match refusal.recv().await {
        Some(why) => why,
        // Nobody can refuse any more.
        None => std::future::pending().await,
    }
}

struct Answers {
    plugin: PathBuf,
    refused: Sender<String>,
}

#[tonic::async_trait]
impl Called for Answers {
    async fn get_info(
        &self,
        _request: Request<InfoRequest>,
    ) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "CSIPlugin".to_owned(),
            name: crate::DRIVER.to_owned(),
            endpoint: self.plugin.display().to_string(),
            supported_versions: vec![VERSION.to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        if !status.plugin_registered {
            // One is enough to end.
            let _ = self.refused.try_send(status.error);
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::registration::registration_client::RegistrationClient;

    #[tokio::test]
    async fn a_kubelet_hears_where_the_plugin_listens_and_may_refuse_it() {
        let folder = std::env::temp_dir().join(format!("memlane-csi-reg-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let plugin = Path::new("/var/lib/kubelet/plugins/csi.memlane.dev/csi.sock");
        let registration = Registration::listen(&folder, plugin).expect("free");
        let served = tokio::spawn(registration.serve());
        let socket = format!("unix://{}/csi.memlane.dev-reg.sock", folder.display());
        let mut kubelet = RegistrationClient::connect(socket).await.expect("listens");
        let info = kubelet.get_info(InfoRequest {}).await.expect("answered");
        let info = info.into_inner();
        assert_eq!(info.r#type, "CSIPlugin");
        assert_eq!(info.name, crate::DRIVER);
        assert_eq!(Path::new(&info.endpoint), plugin);
        let mut say = async |plugin_registered, error: &str| {
            let status = RegistrationStatus {
                plugin_registered,
                error: error.to_owned(),
            };
            kubelet.notify_registration_status(status).await
        };
        say(true, "").await.expect("answered");
        assert!(!served.is_finished());
        // It may end before it has answered.
        let _ = say(false, "no such version").await;
        let ended = served.await.expect("no panic").expect_err("refused");
        assert!(ended.to_string().ends_with("no such version"), "{ended}");
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}
