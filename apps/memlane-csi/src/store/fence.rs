//! Taking a volume from a session that has it open, by the server's own command.

use std::path::PathBuf;

use serde::Deserialize;
use tonic::Status;

use crate::command::run;
use crate::volume_id::VolumeId;

/// The server that serves a store, as the `memlane` command of this machine reaches it.
pub struct Server {
    /// The `memlane` command.
    pub memlane: PathBuf,
    /// The server's name, as `memlane vol --server` takes it.
    pub name: Option<String>,
}

/// Of `memlane vol ls --json`: what matters here.
#[derive(Deserialize)]
struct Listed {
    served: Vec<Open>,
}

#[derive(Deserialize)]
struct Open {
    volume: String,
    opened_by: Vec<String>,
}

impl Server {
    /// Takes a volume from a node's session, or from all sessions.
    pub(super) fn release(&self, id: &VolumeId, node: Option<&str>) -> Result<(), Status> {
        for (volume, holder) in self.open(id, node)? {
            let mut words = vec!["vol", "release", volume.as_str(), holder.as_str()];
            if let Some(name) = &self.name {
                words.extend(["--server", name]);
            }
            run(&self.memlane, &words).map_err(|why| {
                Status::internal(format!("taking volume {id} from session {holder}: {why}"))
            })?;
        }
        Ok(())
    }

    /// Names of the volume at the server, and the sessions that have it open by them.
    fn open(&self, id: &VolumeId, node: Option<&str>) -> Result<Vec<(String, String)>, Status> {
        let said = run(&self.memlane, &["vol", "ls", "--json"])
            .map_err(|why| Status::internal(format!("asking the server: {why}")))?;
        let listed: Listed = serde_json::from_str(&said)
            .map_err(|error| Status::internal(format!("memlane vol ls: {error}")))?;
        let wanted = node.map(|node| id.session(node));
        let mut found = Vec::new();
        for open in listed.served {
            let name = open.volume.rsplit('/').next().unwrap_or_default();
            if name.strip_suffix(".ro").unwrap_or(name) != id.key() {
                continue;
            }
            // What follows the name says who that is.
            let holders = open
                .opened_by
                .iter()
                .filter_map(|one| one.split(' ').next());
            let holders =
                holders.filter(|one| wanted.as_deref().is_none_or(|wanted| wanted == *one));
            found.extend(holders.map(|one| (open.volume.clone(), one.to_owned())));
        }
        Ok(found)
    }
}
