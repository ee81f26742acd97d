//! `memlane check --container A B`: why connections between two containers, or processes, get the memory lane or stay on TCP,
//! step by step. It starts nothing and sends nothing: it looks at what is there.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use memlane_observe::processes;
use memlane_socket::config::DEFAULT_DOMAIN;
use memlane_socket::protocol::agent::SOCKET;
use memlane_sys::Errno;
use memlane_sys::sock;
use serde::Serialize;

use crate::cli::exit::{Exit, fail};
use crate::run::program;

/// The library's name in a process's mappings.
const LIBRARY: &str = "libmemlane_preload";
/// Programs that know containers by name.
const ENGINES: [&str; 2] = ["podman", "docker"];

/// One thing that was looked at.
#[derive(Serialize, Debug)]
struct Step {
    /// Whose: the name on the command line; nothing: of both.
    of: Option<String>,
    what: &'static str,
    well: bool,
    detail: String,
    to_do: Option<&'static str>,
}

/// All steps, and the verdict.
#[derive(Serialize, Debug)]
pub(super) struct Between {
    schema: &'static str,
    version: &'static str,
    steps: Vec<Step>,
    /// Connections between the two get the memory lane.
    lane: bool,
    exit_code: u8,
    #[serde(skip)]
    pub(super) exit: Exit,
}

/// One of the two.
struct Side {
    name: String,
    pid: u32,
}

pub(super) fn look(names: &[String]) -> anyhow::Result<Between> {
    let sides: Vec<Side> = names
        .iter()
        .map(|name| find(name))
        .collect::<anyhow::Result<_>>()?;
    let mut steps = Vec::new();
    for side in &sides {
        steps.extend(of_process(side));
    }
    steps.extend(of_both(&sides));
    let lane = steps.iter().all(|step| step.well);
    let exit = if lane { Exit::Ok } else { Exit::FellBack };
    Ok(Between {
        schema: "memlane.check-between/1",
        version: env!("CARGO_PKG_VERSION"),
        steps,
        lane,
        exit_code: exit.code(),
        exit,
    })
}

/// A process id, or the name of a container.
fn find(name: &str) -> anyhow::Result<Side> {
    let pid = match name.parse() {
        Ok(pid) => Some(pid),
        Err(_) => ENGINES.iter().find_map(|engine| first_of(engine, name)),
    };
    let there = pid.filter(|pid: &u32| Path::new(&format!("/proc/{pid}")).exists());
    match there {
        Some(pid) => Ok(Side {
            name: name.to_owned(),
            pid,
        }),
        None => Err(fail(
            Exit::Failed,
            format!(
                "{name} is no process, and no container that podman or docker knows and that runs (name a pid instead)"
            ),
        )),
    }
}

/// The first process of a container, by its engine.
fn first_of(engine: &str, name: &str) -> Option<u32> {
    let said = Command::new(engine)
        .args(["inspect", "--format", "{{.State.Pid}}", "--", name])
        .output()
        .ok()?;
    let pid = String::from_utf8(said.stdout).ok()?.trim().parse().ok()?;
    (pid != 0).then_some(pid)
}

fn of_process(side: &Side) -> Vec<Step> {
    let step = |what, found: Result<String, (String, &'static str)>| {
        let (well, detail, to_do) = match found {
            Ok(detail) => (true, detail, None),
            Err((why, to_do)) => (false, why, Some(to_do)),
        };
        Step {
            of: Some(side.name.clone()),
            what,
            well,
            detail,
            to_do,
        }
    };
    vec![
        step("program", program_of(side.pid)),
        step("library", library_in(side.pid)),
        step("page", page_of(side.pid)),
    ]
}

type Found = Result<String, (String, &'static str)>;

fn program_of(pid: u32) -> Found {
    let path = PathBuf::from(format!("/proc/{pid}/exe"));
    let shown = fs::read_link(&path).map_or_else(|_| "?".into(), |path| path.display().to_string());
    match program::obstacle(&path) {
        None => Ok(shown),
        Some(why) => Err((
            format!("{shown} is {why}"),
            "it stays on TCP; a dynamically linked build does not",
        )),
    }
}

fn library_in(pid: u32) -> Found {
    let maps = read(pid, "maps")?;
    if let Some(line) = maps.lines().find(|line| line.contains(LIBRARY)) {
        let path = line.split_whitespace().next_back().unwrap_or_default();
        return Ok(path.to_owned());
    }
    let preload = variable(pid, "LD_PRELOAD").filter(|value| value.contains(LIBRARY));
    Err(match preload {
        None => (
            "LD_PRELOAD does not name the library".to_owned(),
            "start it with memlane run, --device memlane.dev/lane=on, or memlane enable",
        ),
        Some(value) => (
            format!("LD_PRELOAD={value} was not found by the loader"),
            "mount the library's tree at that place: memlane agent install shows how",
        ),
    })
}

fn page_of(pid: u32) -> Found {
    match processes::process(pid) {
        Some(process) => Ok(format!("{} connections so far", process.page.conns.len())),
        None => Err((
            "it shows no page".to_owned(),
            "it has made no TCP socket yet, or MEMLANE_DISABLE is set, or it is another process of the container that serves",
        )),
    }
}

/// What must be the same for both, or lead from one to the other.
fn of_both(sides: &[Side]) -> Vec<Step> {
    let [one, other] = sides else {
        return Vec::new();
    };
    let step = |what, found: Found| {
        let (well, detail, to_do) = match found {
            Ok(detail) => (true, detail, None),
            Err((why, to_do)) => (false, why, Some(to_do)),
        };
        Step {
            of: None,
            what,
            well,
            detail,
            to_do,
        }
    };
    let networks = [one, other].map(|side| namespace(side.pid, "net"));
    if networks[0].is_some() && networks[0] == networks[1] {
        let detail = "the same network namespace: no agent is needed".to_owned();
        return vec![step("network", Ok(detail))];
    }
    let detail = "two network namespaces: an agent introduces them".to_owned();
    let mut steps = vec![step("network", Ok(detail))];
    let domains = [one, other].map(domain_of);
    for (side, domain) in [one, other].into_iter().zip(&domains) {
        let mut of_side = step(
            "agent",
            domain
                .as_ref()
                .map(|d| d.shown.clone())
                .map_err(Clone::clone),
        );
        of_side.of = Some(side.name.clone());
        steps.push(of_side);
    }
    if let [Ok(one), Ok(other)] = &domains {
        steps.push(step("domain", one.is_the_same_as(other)));
    }
    steps
}

/// The domain of a process, as the host sees its directory.
struct Domain {
    shown: String,
    directory: (u64, u64),
}

impl Domain {
    fn is_the_same_as(&self, other: &Domain) -> Found {
        match self.directory == other.directory {
            true => Ok("both are in the same domain".to_owned()),
            false => Err((
                format!("{} and {} are two domains", self.shown, other.shown),
                "mount one directory of the host into both (--domain, MEMLANE_DOMAIN)",
            )),
        }
    }
}

fn domain_of(side: &Side) -> Result<Domain, (String, &'static str)> {
    let named = variable(side.pid, "MEMLANE_DOMAIN");
    let domain = named.unwrap_or_else(|| DEFAULT_DOMAIN.to_owned());
    if domain == "off" {
        return Err(("MEMLANE_DOMAIN is off".to_owned(), "unset it"));
    }
    let root = format!("/proc/{}/root{domain}", side.pid);
    let directory = fs::metadata(&root).map_err(|e| {
        (
            format!("{domain} is not there: {e}"),
            "mount the agent's directory into the container (memlane agent install)",
        )
    })?;
    let socket = format!("{root}/{SOCKET}");
    match sock::unix_seqpacket_to(socket.as_bytes()) {
        Ok(_) => Ok(Domain {
            shown: domain,
            directory: (directory.dev(), directory.ino()),
        }),
        Err(Errno(number)) => Err((
            format!(
                "no agent answers at {domain}/{SOCKET}: {}",
                io::Error::from_raw_os_error(number)
            ),
            "start it on the host: systemctl start memlane-agent",
        )),
    }
}

fn namespace(pid: u32, kind: &str) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok()
}

/// A variable of the environment that a process was started with.
fn variable(pid: u32, name: &str) -> Option<String> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    environment
        .split(|&b| b == 0)
        .filter_map(|pair| std::str::from_utf8(pair).ok()?.split_once('='))
        .find_map(|(key, value)| (key == name).then(|| value.to_owned()))
}

fn read(pid: u32, file: &str) -> Result<String, (String, &'static str)> {
    let bytes = fs::read(format!("/proc/{pid}/{file}")).map_err(|e| {
        (
            format!("/proc/{pid}/{file}: {e}"),
            "only its own user and root may look: try as root",
        )
    })?;
    // Names of files are any bytes.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

impl Between {
    /// For people.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for step in &self.steps {
            let of = step.of.as_deref().unwrap_or("both");
            let mark = if step.well { "ok" } else { "NO" };
            text.push_str(&format!(
                "{mark}  {of:<16} {:<8} {}\n",
                step.what, step.detail
            ));
            if let Some(to_do) = step.to_do {
                text.push_str(&format!("    {:<16} {:<8} → {to_do}\n", "", ""));
            }
        }
        text.push_str(match self.lane {
            true => "Connections between them get the memory lane.\n",
            false => "Connections between them stay on TCP.\n",
        });
        text
    }
}
