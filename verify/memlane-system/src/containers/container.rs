//! The surroundings of a program: a network namespace, the agent's directory, and where a server is as seen from there.

use std::net::IpAddr;
use std::process::{Command, Stdio};

/// A network namespace in which stock programs run.
#[derive(Clone, Debug)]
pub struct Container {
    /// The namespace's name.
    pub namespace: String,
    /// The directory of the agent's domain.
    pub domain: String,
    /// The address at which servers in it listen, or to which clients in it connect.
    pub address: String,
}

impl Container {
    /// The command as it runs in here, as another user if there is one. Arguments may be added to it.
    pub fn around(&self, inner: &Command, owner: Option<(u32, u32)>) -> Command {
        let mut outer = Command::new("ip");
        outer.args(["netns", "exec", &self.namespace]);
        if let Some((uid, gid)) = owner {
            let ids = [format!("--reuid={uid}"), format!("--regid={gid}")];
            outer.arg("setpriv").args(ids).arg("--clear-groups");
        }
        outer.arg(inner.get_program()).args(inner.get_args());
        for (name, value) in inner.get_envs() {
            match value {
                Some(value) => outer.env(name, value),
                None => outer.env_remove(name),
            };
        }
        if let Some(dir) = inner.get_current_dir() {
            outer.current_dir(dir);
        }
        outer.env("MEMLANE_DOMAIN", &self.domain);
        outer.stdin(Stdio::null());
        outer
    }

    /// Its address, as it stands in a URL.
    pub fn host(&self) -> String {
        match self.address.parse() {
            Ok(IpAddr::V6(address)) => format!("[{address}]"),
            _ => self.address.clone(),
        }
    }
}
