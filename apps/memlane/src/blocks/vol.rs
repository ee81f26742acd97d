//! `memlane vol`: the volumes that are mapped here, and those that servers here have given out.

use std::fmt::Write as _;

use memlane_observe::control::{self, Role};
use serde::Serialize;

use super::documents::{Open, Server, Session, Volume};
use super::host::file;
use super::leftovers;
use super::requests::Request;
use crate::cli::exit::{Exit, fail};
use crate::cli::out::{self, human};

/// List and change volumes that are mapped here, and volumes that servers here serve
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand, Debug)]
enum What {
    /// List volumes
    Ls {
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Read a volume into device memory
    Read(crate::devmem::storage::Args),
    /// Show everything about a volume
    Show {
        volume: String,
        /// Session that has the volume, if several have it
        #[arg(long)]
        session: Option<String>,
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Change the size of a volume; run this on the server's machine, or where file:PATH is mapped
    Resize {
        volume: String,
        /// New size, such as 512M or 10G
        #[arg(value_parser = crate::cli::values::size)]
        size: u64,
        /// Name of the server, if several run here
        #[arg(long)]
        server: Option<String>,
    },
    /// Take a volume from a session that will not come back; run this on the server's machine
    Release {
        volume: String,
        /// Session that has the volume open
        session: String,
        /// Name of the server, if several run here
        #[arg(long)]
        server: Option<String>,
    },
    /// End a mapping and remove its device
    Unmap {
        volume: String,
        /// Session that has the volume, if several have it
        #[arg(long)]
        session: Option<String>,
        /// End the mapping even if the volume is in use
        #[arg(long)]
        force: bool,
    },
    /// Remove mounts, folders and loop devices that killed processes have left behind
    Prune,
    /// Open a mapped volume on the server again, now
    Remap {
        volume: String,
        /// Session that has the volume, if several have it
        #[arg(long)]
        session: Option<String>,
    },
}

impl Args {
    pub(crate) fn json(&self) -> bool {
        match &self.what {
            What::Ls { json } | What::Show { json, .. } => *json,
            What::Read(read) => read.json,
            _ => false,
        }
    }
}

/// The document of `vol ls --json`.
#[derive(Serialize)]
struct Document {
    schema: &'static str,
    mapped: Vec<Volume>,
    served: Vec<Open>,
}

/// The document of `vol show --json`.
#[derive(Serialize)]
struct Shown {
    schema: &'static str,
    #[serde(flatten)]
    volume: Volume,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    match args.what {
        What::Ls { json } => ls(json),
        What::Read(read) => crate::devmem::storage::run(&read),
        What::Show {
            volume,
            session,
            json,
        } => show(&volume, session.as_deref(), json),
        What::Resize {
            volume,
            size,
            server,
        } => resize(volume, size, server),
        What::Release {
            volume,
            session,
            server,
        } => tell_server(server, &Request::Release { volume, session }),
        What::Unmap {
            volume,
            session,
            force,
        } => {
            let request = |volume| Request::Unmap { volume, force };
            tell(&volume, session.as_deref(), request)
        }
        What::Prune => prune(),
        What::Remap { volume, session } => tell(&volume, session.as_deref(), |volume| {
            Request::Remap { volume }
        }),
    }
}

/// A mapped file is resized by the process behind it, anything else by its server.
fn resize(volume: String, size: u64, server: Option<String>) -> anyhow::Result<()> {
    if server.is_none() && file::path_of(&volume).is_some() {
        return tell(&volume, None, |volume| Request::Resize { volume, size });
    }
    tell_server(server, &Request::Resize { volume, size })
}

fn prune() -> anyhow::Result<()> {
    let cleared = leftovers::prune()?;
    match cleared.is_empty() {
        true => out::print("nothing is left of killed processes\n"),
        false => out::print(&format!("{}\n", cleared.join("\n"))),
    }
}

/// All sessions of this user.
pub(super) fn sessions() -> anyhow::Result<Vec<Session>> {
    described(Role::Session)
}

/// All servers of this user.
pub(super) fn servers() -> anyhow::Result<Vec<Server>> {
    described(Role::Server)
}

fn described<T: for<'a> serde::Deserialize<'a>>(role: Role) -> anyhow::Result<Vec<T>> {
    let mut found = Vec::new();
    for name in control::list(role)? {
        let told = control::ask(role, &name, &Request::Describe)
            .and_then(|value| Ok(value.map(serde_json::from_value).transpose()?));
        match told {
            Ok(told) => found.extend(told),
            // One that ends at this moment is not missed.
            Err(_) if !control::list(role)?.contains(&name) => {}
            // One of another version of memlane, say, does not keep the others from being shown.
            Err(error) => out::warn(&format!("{name} is left out: {error:#}")),
        }
    }
    Ok(found)
}

fn ls(json: bool) -> anyhow::Result<()> {
    let mapped: Vec<Volume> = sessions()?.into_iter().flat_map(|s| s.volumes).collect();
    let served: Vec<Open> = servers()?.into_iter().flat_map(|s| s.volumes).collect();
    if json {
        let schema = "memlane.vol/1";
        return out::print(&out::json(&Document {
            schema,
            mapped,
            served,
        })?);
    }
    let mut text = String::new();
    if mapped.is_empty() && served.is_empty() {
        text.push_str("no volume is mapped or open here\n");
    }
    if !mapped.is_empty() {
        text.push_str(&table(&mapped));
    }
    if !served.is_empty() {
        text.push_str(&served_table(&served));
    }
    out::print(&text)
}

fn table(volumes: &[Volume]) -> String {
    let rows = volumes.iter().map(|v| {
        vec![
            v.volume.clone(),
            // A file has a process behind it, but no session.
            if v.direct {
                "-".into()
            } else {
                v.session.clone()
            },
            format!("{:?}", v.access).to_lowercase(),
            human(v.size),
            v.shown_as.clone(),
            if v.lent {
                format!("{}, lent", v.state)
            } else {
                v.state.clone()
            },
        ]
    });
    out::columns(
        &["VOLUME", "SESSION", "ACCESS", "SIZE", "AS", "STATE"],
        &["SIZE"],
        rows.collect(),
    )
}

fn served_table(volumes: &[Open]) -> String {
    let rows = volumes.iter().map(|v| {
        vec![
            v.volume.clone(),
            human(v.size),
            v.opened_by.join(" "),
            v.last_error.clone().unwrap_or_default(),
        ]
    });
    out::columns(
        &["SERVED", "SIZE", "OPENED BY", "LAST ERROR"],
        &["SIZE"],
        rows.collect(),
    )
}

fn show(name: &str, session: Option<&str>, json: bool) -> anyhow::Result<()> {
    let volume = mapped(name, session)?;
    if json {
        let schema = "memlane.volume/1";
        return out::print(&out::json(&Shown { schema, volume })?);
    }
    let mut text = table(std::slice::from_ref(&volume));
    let c = volume.counters;
    let _ = writeln!(
        text,
        "  blocks of {} bytes{}\n  {} reads ({}), {} writes ({}), {} flushes, {} trims\n  {} errors, {} sent again",
        volume.block,
        if volume.read_only { ", read-only" } else { "" },
        c.reads,
        human(c.read_bytes),
        c.writes,
        human(c.written_bytes),
        c.flushes,
        c.trims,
        c.errors,
        c.replays,
    );
    if let Some(error) = &volume.last_error {
        let _ = writeln!(text, "  last error: {error}");
    }
    out::print(&text)
}

/// The mapped volume of this name, which must be the only one.
fn mapped(name: &str, session: Option<&str>) -> anyhow::Result<Volume> {
    let file = file::path_of(name).transpose()?;
    let complete = file.map(|path| file::volume_name(&path));
    let name = complete.as_deref().unwrap_or(name);
    let all = sessions()?.into_iter().flat_map(|s| s.volumes);
    let mut found: Vec<Volume> = all
        .filter(|v| v.volume == name && session.is_none_or(|session| v.session == session))
        .collect();
    match (found.pop(), found.len()) {
        (Some(volume), 0) => Ok(volume),
        (Some(_), _) => Err(fail(
            Exit::Usage,
            format!("several sessions have mapped {name:?}: choose one with --session"),
        )),
        (None, _) => Err(anyhow::anyhow!(
            "no volume {name:?} is mapped here; `memlane vol ls` lists the mapped volumes"
        )),
    }
}

fn tell(
    name: &str,
    session: Option<&str>,
    request: impl Fn(String) -> Request,
) -> anyhow::Result<()> {
    let volume = mapped(name, session)?;
    let said = control::ask(Role::Session, &volume.session, &request(volume.volume))?;
    print_reply(said, "the session ended meanwhile")
}

fn tell_server(server: Option<String>, request: &Request) -> anyhow::Result<()> {
    let names = control::list(Role::Server)?;
    let name = match (server, names.as_slice()) {
        (Some(name), _) => name,
        (None, [name]) => name.clone(),
        (None, []) => {
            return Err(anyhow::anyhow!(
                "no memlane server of this user runs here: run this on the server's machine"
            ));
        }
        (None, _) => {
            let text = format!(
                "several servers run here ({}): say which with --server",
                names.join(", ")
            );
            return Err(fail(Exit::Usage, text));
        }
    };
    let said = control::ask(Role::Server, &name, request)?;
    print_reply(said, "no such server runs here")
}

/// Prints the answer of a process. If there is no such process, `gone` is the error.
pub(super) fn print_reply(said: Option<serde_json::Value>, gone: &str) -> anyhow::Result<()> {
    match said {
        Some(serde_json::Value::String(text)) => out::print(&format!("{text}\n")),
        Some(value) => out::print(&out::json(&value)?),
        None => Err(anyhow::anyhow!("{gone}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::Reply;

    #[test]
    fn a_process_that_says_something_else_does_not_hide_the_others() {
        let name = format!("test-strange-{}", std::process::id());
        let listener = control::Listener::bind(Role::Session, &name).expect("a free name");
        std::thread::spawn(move || {
            listener.serve(|_: Request| Reply::Done("of another version".into()))
        });
        assert!(
            control::list(Role::Session)
                .expect("a table")
                .contains(&name)
        );
        let shown = sessions().expect("what the others say");
        assert!(shown.iter().all(|session| session.name != name));
    }
}
