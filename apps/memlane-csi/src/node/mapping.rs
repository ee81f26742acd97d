//! Mapped volumes, by the `memlane` command. What shows a volume is a process of its own, which outlives the plugin.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use serde::Deserialize;
use tonic::Status;

use crate::command::run;
use crate::parameters::Frontend;
use crate::text::{is_plain, required};
use crate::volume_id::VolumeId;

/// In the publish context: where the store's server listens, as `memlane map` takes it.
pub const SERVERS: &str = "memlane.dev/servers";
/// In the contexts of a mirrored volume: where the server of this store listens.
#[must_use]
pub fn servers_of(store: &str) -> String {
    format!("{SERVERS}.{store}")
}

/// In the publish context: what the volume is called in the node's session.
pub const NAME: &str = "memlane.dev/name";

/// How a copy of a mirrored volume is mapped: the other one may be there while this server is away.
const MIRRORED: [&str; 2] = ["--wait", "5s"];

/// How long to wait for the answer to one read, and how long until a mapping is asked again what has become of it.
const ANSWER: Duration = Duration::from_secs(2);
const TURN: Duration = Duration::from_millis(20);

/// How long a device may take to appear.
const PATIENCE: Duration = Duration::from_secs(10);

/// How to run `memlane`.
#[derive(Clone, Debug)]
pub struct Memlane {
    /// The command.
    pub command: PathBuf,
    /// Words before the command, such as `nsenter …`: commands run on the host, where this plugin is in a container.
    pub through: Vec<String>,
    /// Words before a command that leaves a process behind, after `through`.
    pub apart: Vec<String>,
    /// Certificates for the store's servers, as `memlane map --tls` takes them.
    pub tls: Option<PathBuf>,
}

/// A mapped volume.
#[derive(Deserialize, Clone, Debug)]
pub(super) struct Mapped {
    volume: String,
    session: String,
    /// The device.
    pub(super) shown_as: PathBuf,
    pub(super) read_only: bool,
    /// `ok`, or what is wrong.
    pub(super) state: String,
    /// The paths of its session.
    #[serde(skip)]
    pub(super) paths: Arc<[SessionPath]>,
}

impl Mapped {
    /// Which volume it is. `None`: it is none of this node's, but of somebody who uses `memlane map` here.
    pub(super) fn id(&self, node: &str) -> Option<VolumeId> {
        let key = self.volume.strip_suffix(".ro").unwrap_or(&self.volume);
        VolumeId::of_session(&self.session, node, key)
    }

    /// Whether requests are answered.
    pub(super) fn works(&self) -> bool {
        self.state == "ok" && self.paths.iter().any(|path| path.state == "connected")
    }

    /// Whether a block can be read, past all caches. A server that is away answers nothing, and that is not waited for.
    fn is_readable(&self) -> bool {
        let (device, (done, answer)) = (self.shown_as.clone(), mpsc::channel());
        thread::spawn(move || {
            let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
            let mut block = Box::new(Block([0; 4096]));
            let device = rustix::fs::open(&device, flags, Mode::empty());
            let read = device.and_then(|device| rustix::io::pread(device, &mut block.0, 0));
            let _ = done.send(read.is_ok());
        });
        answer.recv_timeout(ANSWER).unwrap_or(true)
    }

    /// The server has refused it, or has given it to somebody else: it does not come back by itself.
    pub(super) fn is_over(&self) -> bool {
        self.state.starts_with("failed") || self.state == "closed"
    }
}

/// What a device reads into past all caches: `O_DIRECT` wants it aligned to the device's block, which is a page at most.
#[repr(align(4096))]
struct Block([u8; 4096]);

/// Of `memlane vol ls --json`.
#[derive(Deserialize)]
struct Listed {
    mapped: Vec<Place>,
}

#[derive(Deserialize)]
struct Place {
    shown_as: PathBuf,
}

/// Of `memlane map --json`.
#[derive(Deserialize)]
struct Shown {
    place: PathBuf,
}

/// Of `memlane session ls --json`.
#[derive(Deserialize)]
struct Sessions {
    sessions: Vec<Session>,
}

#[derive(Deserialize)]
struct Session {
    paths: Vec<SessionPath>,
    volumes: Vec<Mapped>,
}

/// A path of a session.
#[derive(Deserialize, Clone, Debug)]
pub(super) struct SessionPath {
    pub(super) path: String,
    pub(super) state: String,
    #[serde(default)]
    pub(super) last_error: Option<String>,
}

/// What a node needs to map a volume.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// Where the server of each copy listens.
    servers: BTreeMap<VolumeId, String>,
    name: String,
    pub(super) read_only: bool,
    frontend: Frontend,
}

impl Wanted {
    /// Reads the contexts of a call. What `ControllerPublishVolume` wrote there came by way of the orchestrator.
    pub(super) fn read(
        id: &VolumeId,
        publish: &HashMap<String, String>,
        volume: &HashMap<String, String>,
    ) -> Result<Wanted, Status> {
        let name = field(NAME, publish.get(NAME))?;
        let read_only = match name.strip_prefix(id.key()) {
            Some("") => false,
            Some(".ro") => true,
            _ => {
                let why = format!("{NAME} {name:?} is not a name of volume {id}");
                return Err(Status::invalid_argument(why));
            }
        };
        let mut servers = BTreeMap::new();
        for copy in id.copies() {
            let place = match copy.beside() {
                None => publish.get(SERVERS),
                // While its store is away, the one copy is published, and what is known of the other is where it was made.
                Some(_) => {
                    let named = servers_of(copy.store());
                    publish.get(&named).or_else(|| volume.get(&named))
                }
            };
            servers.insert(copy, list_of_servers(place)?);
        }
        Ok(Wanted {
            servers,
            name,
            read_only,
            frontend: Frontend::of_context(volume)?,
        })
    }
}

fn list_of_servers(said: Option<&String>) -> Result<String, Status> {
    let servers = field(SERVERS, said)?;
    match is_plain(&servers, ".:,[]/-_@") && !servers.starts_with('-') {
        true => Ok(servers),
        false => {
            let why = format!("{SERVERS} {servers:?} is no list of servers");
            Err(Status::invalid_argument(why))
        }
    }
}

fn field(name: &str, said: Option<&String>) -> Result<String, Status> {
    let said = said.map_or("", String::as_str);
    required(name, said, 1024).map(str::to_owned)
}

impl Memlane {
    fn run(&self, before: &[String], words: &[&str]) -> Result<String, Status> {
        let own = self.command.to_string_lossy();
        let mut all: Vec<&str> = self
            .through
            .iter()
            .chain(before)
            .map(String::as_str)
            .collect();
        all.push(own.as_ref());
        all.extend(words);
        run(Path::new(all[0]), &all[1..]).map_err(Status::unavailable)
    }

    /// What a node has mapped of a volume.
    pub(super) fn find(&self, node: &str, id: &VolumeId) -> Result<Option<Mapped>, Status> {
        let mut all = self.list()?.into_iter();
        Ok(all.find(|one| one.id(node).as_ref() == Some(id)))
    }

    /// What a node has mapped of a volume, after a look at whether the server still serves it. A mapping learns that its
    /// volume was taken away only from the answer to a request, and says so a moment later.
    pub(super) fn find_tried(&self, node: &str, id: &VolumeId) -> Result<Option<Mapped>, Status> {
        let begin = Instant::now();
        loop {
            match self.find(node, id)? {
                Some(found)
                    if found.works() && begin.elapsed() < ANSWER && !found.is_readable() =>
                {
                    thread::sleep(TURN);
                }
                found => return Ok(found),
            }
        }
    }

    /// The volumes of servers that are mapped here, by whomever. Servers are not asked: they may be away.
    pub(super) fn list(&self) -> Result<Vec<Mapped>, Status> {
        let said = self.run(&[], &["session", "ls", "--json"])?;
        let mut all = Vec::new();
        for session in read::<Sessions>(&said)?.sessions {
            let paths: Arc<[SessionPath]> = session.paths.into();
            let volumes = session.volumes.into_iter();
            all.extend(volumes.map(|mapped| Mapped {
                paths: Arc::clone(&paths),
                ..mapped
            }));
        }
        Ok(all)
    }

    /// What shows something here, also files that are mapped without a server.
    pub(super) fn shown(&self) -> Result<Vec<PathBuf>, Status> {
        let said = self.run(&[], &["vol", "ls", "--json"])?;
        let all = read::<Listed>(&said)?.mapped.into_iter();
        Ok(all.map(|one| one.shown_as).collect())
    }

    /// Maps a volume. One whose mapping died gets its old device back where the kernel kept it (ublk, nbd).
    pub(super) fn map(
        &self,
        node: &str,
        id: &VolumeId,
        wanted: &Wanted,
    ) -> Result<PathBuf, Status> {
        let session = id.session(node);
        let servers = wanted.servers.get(id).map_or("", String::as_str);
        let mut words = vec!["map", "--json", "--session", session.as_str()];
        words.extend(match wanted.read_only {
            // The store has published the volume to this node alone: whoever wrote to it before is not to do so again.
            false => ["--access", "rw", "--take-over"].as_slice(),
            true => &["--access", "ro"],
        });
        if id.beside().is_some() {
            words.extend(MIRRORED);
        }
        let tls = self.tls.as_ref().map(|folder| folder.to_string_lossy());
        words.extend(tls.as_deref().map(|tls| ["--tls", tls]).iter().flatten());
        words.extend(["--as", choose(wanted.frontend).name(), "--"]);
        words.extend([servers, wanted.name.as_str()]);
        let said = self.run(&self.apart, &words)?;
        let device = read::<Shown>(&said)?.place;
        wait_for(&device)?;
        Ok(device)
    }

    /// Ends a mapping; by force also one that is in use.
    pub(super) fn unmap(&self, mapped: &Mapped, force: bool) -> Result<(), Status> {
        let mut words = vec!["vol", "unmap", "--session", &mapped.session];
        words.extend(force.then_some("--force"));
        words.push(&mapped.volume);
        self.run(&[], &words).map(drop)
    }

    /// Removes what killed processes have left.
    pub(super) fn prune(&self) -> Result<(), Status> {
        self.run(&[], &["vol", "prune"]).map(drop)
    }
}

fn read<T: for<'a> Deserialize<'a>>(said: &str) -> Result<T, Status> {
    serde_json::from_str(said)
        .map_err(|error| Status::internal(format!("what memlane said is not understood: {error}")))
}

/// The frontend that is asked for, or the best that this node has.
fn choose(wanted: Frontend) -> Frontend {
    let has = |path: &str| Path::new(path).exists();
    match wanted {
        Frontend::Auto if has("/dev/ublk-control") => Frontend::Ublk,
        Frontend::Auto if has("/sys/module/nbd") || has("/dev/nbd0") => Frontend::NbdKernel,
        Frontend::Auto => Frontend::Loop,
        chosen => chosen,
    }
}

/// udev may make a device's node a moment later.
fn wait_for(device: &Path) -> Result<(), Status> {
    let begin = Instant::now();
    while super::mounts::device_number(device).is_none() {
        if begin.elapsed() > PATIENCE {
            let why = format!("{} did not become a block device", device.display());
            return Err(Status::unavailable(why));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_publish_context_that_names_another_volume_or_a_flag_is_refused() {
        let id = VolumeId::of_volume("a", "s").expect("a name");
        let read = |servers: &str, name: &str| {
            let publish = HashMap::from([
                (SERVERS.to_owned(), servers.to_owned()),
                (NAME.to_owned(), name.to_owned()),
            ]);
            Wanted::read(&id, &publish, &HashMap::new())
        };
        assert!(!read("192.0.2.1,[::1]:7", "v-a").expect("right").read_only);
        assert!(read("local:x", "v-a.ro").expect("right").read_only);
        for (servers, name) in [
            ("", "v-a"),
            ("--foreground", "v-a"),
            ("a b", "v-a"),
            ("local", "v-b"),
            ("local", "../v-a"),
            ("local", ""),
        ] {
            let error = read(servers, name).expect_err("wrong");
            assert_eq!(error.code(), tonic::Code::InvalidArgument, "{error}");
        }
    }
}
