//! Where server and client of a row are, and how the one reaches the other.

use std::ffi::OsString;
use std::process::Command;

use crate::runner::cables::{self, Cables};
use crate::runner::proc::find_program;

/// Which of the two programs.
pub(in crate::suites) use crate::runner::cables::Side as End;

/// The network of a server and its client.
pub(in crate::suites) struct Network {
    /// Two namespaces, unless both are in the one of the bench.
    cables: Option<Cables>,
    /// The address at which servers listen.
    listens: String,
    /// The address to which clients connect.
    reached: String,
    /// `--domain` of `memlane run`, for server and client: whose agent introduces the two.
    domains: Option<[String; 2]>,
}

impl Network {
    /// Both over 127.0.0.1. memlane looks for an agent wherever it does by default.
    pub(in crate::suites) fn loopback() -> Network {
        Network {
            cables: None,
            listens: "127.0.0.1".into(),
            reached: "127.0.0.1".into(),
            domains: None,
        }
    }

    /// Each in a namespace, with a cable between them.
    ///
    /// # Errors
    /// Why there can be none here.
    pub(in crate::suites) fn cable() -> anyhow::Result<Network> {
        let address = cables::address(0, End::Server);
        Ok(Network {
            cables: Some(Cables::new(1)?),
            listens: address.clone(),
            reached: address,
            domains: None,
        })
    }

    /// Each in a namespace, both at a bridge, and NAT between them.
    ///
    /// # Errors
    /// Why there can be none here.
    pub(in crate::suites) fn behind_nat() -> anyhow::Result<Network> {
        Ok(Network {
            cables: Some(Cables::behind_nat()?),
            listens: cables::SERVER.into(),
            reached: cables::ROUTER.into(),
            domains: None,
        })
    }

    /// The same with a domain: a folder, or `off`.
    pub(in crate::suites) fn with_domain(self, domain: impl Into<String>) -> Network {
        let domain = domain.into();
        self.with_domains([domain.clone(), domain])
    }

    /// The same with a domain each for server and client, as on two machines.
    pub(in crate::suites) fn with_domains(self, domains: [String; 2]) -> Network {
        Network {
            domains: Some(domains),
            ..self
        }
    }

    /// The address at which servers listen.
    pub(super) fn listens(&self) -> &str {
        &self.listens
    }

    /// The address to which clients connect.
    pub(super) fn reached(&self) -> &str {
        &self.reached
    }

    /// `--domain` of `memlane run`, if it is told.
    pub(super) fn domain(&self, end: End) -> Option<&str> {
        let [server, client] = self.domains.as_ref()?;
        Some(match end {
            End::Server => server,
            End::Client => client,
        })
    }

    /// A command that runs `program` where that end is, and becomes it.
    pub(super) fn command(&self, end: End, program: &OsString) -> Command {
        match &self.cables {
            None => Command::new(program),
            Some(cables) => {
                let mut command = Command::new(find_program("ip").unwrap_or_else(|| "ip".into()));
                command
                    .args(["netns", "exec", cables.name(end)])
                    .arg(program);
                command
            }
        }
    }

    /// Bytes that the client's cable has carried so far, both ways; `None`: there is none.
    pub(super) fn carried(&self) -> Option<u64> {
        self.cables.as_ref()?.carried()
    }
}
