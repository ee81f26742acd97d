//! `memlane ss`: every connection of every process under memlane.

use std::net::SocketAddr;

use memlane_core::reason::Reason;
use memlane_core::stats::ConnState;
use memlane_observe::containers::{Container, Containers};
use memlane_observe::kernel_sockets::KernelSockets;
use memlane_observe::page::{Conn, Flow};
use memlane_observe::processes::{Process, Survey};
use memlane_observe::rings;
use serde::Serialize;

use crate::cli::out;

/// Why `--node` may have nothing to show.
const NO_CONTAINERS: &str = "no program in a container has a connection; in a pod, this command needs the host's process ids (hostPID: true)";
/// Longest address, in characters, that is shown in full without `-w`.
const NARROW: usize = 25;

/// List connections, and show which lane each one is on.
///
/// The list has the connections of all programs that run under memlane and that you may examine: your own, or everybody's
/// as root.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// List sockets that are not connected, too
    #[arg(short, long)]
    all: bool,
    /// Show descriptor numbers, and the process and the user at the other end
    #[arg(short, long)]
    processes: bool,
    /// Show full addresses, exact numbers, and the reason for TCP as a sentence
    #[arg(short, long)]
    wide: bool,
    /// List only the connections of this process
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// List only connections of programs in containers, by the names of these: for a node of a cluster, where a container of a
    /// pod is shown as NAMESPACE/POD/CONTAINER
    #[arg(long)]
    node: bool,
    /// Report which processes could not be read
    #[arg(short, long)]
    verbose: bool,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut survey = match args.pid {
        Some(pid) => Survey::of(pid)?,
        None => Survey::all()?,
    };
    rings::measure(&mut survey);
    if args.verbose {
        out::warn(&survey.unseen());
    }
    let mut rows = rows(&survey, args.all);
    if args.node {
        keep_containers(&mut rows);
        if rows.is_empty() {
            out::warn(NO_CONTAINERS);
        }
    }
    let text = match args.json {
        true => out::json(&Document::new(&survey, &rows))?,
        false => table(&rows, args),
    };
    out::print(&text)
}

/// Leaves the connections of programs in containers, sorted by the containers' names.
fn keep_containers(rows: &mut Vec<Row<'_>>) {
    rows.retain(|row| row.container.is_some());
    // A stable sort: within a container, processes stay together.
    rows.sort_by(|a, b| a.container_name().cmp(&b.container_name()));
}

/// One connection, with what the kernel knows of it.
struct Row<'a> {
    process: &'a Process,
    conn: &'a Conn,
    addresses: Option<(SocketAddr, SocketAddr)>,
    inode: u64,
    listening: bool,
    container: Option<Container>,
    peer_container: Option<Container>,
}

fn rows(survey: &Survey, all: bool) -> Vec<Row<'_>> {
    let mut sockets = KernelSockets::default();
    let mut containers = Containers::default();
    let mut rows = Vec::new();
    for process in &survey.processes {
        let container = containers.of(process.pid);
        for conn in &process.page.conns {
            if all || conn.state != ConnState::New {
                let mut row = Row::new(process, conn, &mut sockets);
                row.container.clone_from(&container);
                // Without its name, the number may be one of another pid namespace.
                let peer_is_seen = !conn.peer_comm.is_empty();
                row.peer_container = peer_is_seen.then(|| containers.of(conn.peer_pid)).flatten();
                rows.push(row);
            }
        }
    }
    rows
}

impl<'a> Row<'a> {
    fn new(process: &'a Process, conn: &'a Conn, sockets: &mut KernelSockets) -> Row<'a> {
        let mut row = Row {
            process,
            conn,
            addresses: conn.addresses,
            inode: conn.inode,
            listening: false,
            container: None,
            peer_container: None,
        };
        if row.addresses.is_some() {
            return row;
        }
        // The descriptor may have been reused since: an inode that is known must agree.
        if let Some((inode, socket)) = sockets.find(process.pid, conn.fd)
            && (conn.inode == 0 || conn.inode == inode)
        {
            row.inode = inode;
            row.listening = socket.listening;
            row.addresses = Some((socket.local, socket.peer));
        }
        row
    }

    fn container_name(&self) -> Option<&str> {
        self.container.as_ref().map(|container| &*container.name)
    }

    fn state(&self) -> &'static str {
        match self.conn.state {
            ConnState::New if self.listening => "LISTEN",
            ConnState::New | ConnState::Free => "INIT",
            ConnState::Pending => "HANDSHAKE",
            ConnState::Tcp | ConnState::Memlane => "ACTIVE",
            ConnState::Downgraded => "DOWNGRADED",
        }
    }

    /// The peer's address; `None` for a socket that is not connected.
    fn peer(&self) -> Option<SocketAddr> {
        let connected = self.conn.state != ConnState::New;
        self.addresses.filter(|_| connected).map(|(_, peer)| peer)
    }
}

/// `MEMLANE`, with the direction that is copied, if any; or `TCP` with its reason (own/peer's), in the format of smcss.
pub(crate) fn mode(conn: &Conn) -> String {
    let (own, peer) = (conn.reason, conn.peer_reason);
    if conn.state == ConnState::Memlane {
        match (conn.tx.copied, conn.rx.copied) {
            (false, false) => "MEMLANE",
            (true, true) => "MEMLANE:copy",
            (true, false) => "MEMLANE:copy-tx",
            (false, true) => "MEMLANE:copy-rx",
        }
        .to_owned()
    } else if own == Reason::NONE {
        "TCP".to_owned()
    } else if peer == Reason::NONE {
        format!("TCP 0x{:08x} {}", own.0, own.name())
    } else {
        format!(
            "TCP 0x{:08x}/0x{:08x} {}/{}",
            own.0,
            peer.0,
            own.name(),
            peer.name()
        )
    }
}

fn header(processes: bool, wide: bool, containers: bool) -> Vec<&'static str> {
    let mut header = vec!["State", "Local", "Peer", "Process"];
    if processes {
        header.extend(["Fd", "Peer-Process", "Peer-Uid"]);
    }
    if containers {
        header.extend(["Container", "Peer-Container"]);
    }
    header.extend(["Mode", "Ring-Tx", "Ring-Rx"]);
    header.extend(["Tx-Ring", "Tx-TCP", "Rx-Ring", "Rx-TCP"]);
    if wide {
        header.extend(["Sends", "Receives", "Parked", "Inode", "Reason"]);
    }
    header
}

fn table(rows: &[Row<'_>], args: &Args) -> String {
    let containers = args.node
        || rows
            .iter()
            .any(|row| row.container.is_some() || row.peer_container.is_some());
    let header = header(args.processes, args.wide, containers);
    let right = [
        "Ring-Tx", "Ring-Rx", "Tx-Ring", "Tx-TCP", "Rx-Ring", "Rx-TCP", "Fd", "Peer-Uid", "Sends",
        "Receives", "Inode",
    ];
    let lines = rows.iter().map(|row| line(row, args, containers)).collect();
    out::columns(&header, &right, lines)
}

fn line(row: &Row<'_>, args: &Args, containers: bool) -> Vec<String> {
    let conn = row.conn;
    let number = |n: u64| match args.wide {
        true => n.to_string(),
        false => out::human(n),
    };
    let mut cells = vec![
        row.state().to_owned(),
        address(row.addresses.map(|(local, _)| local), args.wide),
        address(row.peer(), args.wide),
        format!("{}/{}", row.process.comm, row.process.pid),
    ];
    if args.processes {
        cells.extend([conn.fd.to_string(), peer_process(conn), peer_uid(conn)]);
    }
    if containers {
        let name = |container: &Option<Container>| container.as_ref().map(|c| c.name.clone());
        let both = [&row.container, &row.peer_container];
        cells.extend(both.map(|container| name(container).unwrap_or_else(|| "-".to_owned())));
    }
    cells.push(mode(conn));
    cells.extend([&conn.tx, &conn.rx].map(|flow| ring_use(flow, &number)));
    let flows = [
        conn.tx.ring_bytes,
        conn.tx.tcp_bytes,
        conn.rx.ring_bytes,
        conn.rx.tcp_bytes,
    ];
    cells.extend(flows.map(number));
    if args.wide {
        cells.extend([
            conn.tx.calls.to_string(),
            conn.rx.calls.to_string(),
            if conn.parked { "yes" } else { "no" }.to_owned(),
            row.inode.to_string(),
            sentence(conn),
        ]);
    }
    cells
}

fn address(address: Option<SocketAddr>, wide: bool) -> String {
    let Some(address) = address else {
        return "-".to_owned();
    };
    let full = address.to_string();
    match wide || full.len() <= NARROW {
        true => full,
        false => {
            let port = format!("..:{}", address.port());
            format!("{}{port}", &full[..NARROW - port.len()])
        }
    }
}

fn ring_use(flow: &Flow, number: &impl Fn(u64) -> String) -> String {
    match flow.ring_size {
        0 => "-".to_owned(),
        size => {
            let used = flow.ring_used.map(|n| number(n.into()));
            let used = used.unwrap_or_else(|| "-".to_owned());
            format!("{used}/{}", number(size.into()))
        }
    }
}

fn peer_process(conn: &Conn) -> String {
    match (conn.peer_pid, conn.peer_comm.as_str()) {
        (0, _) => "-".to_owned(),
        (pid, "") => pid.to_string(),
        (pid, comm) => format!("{comm}/{pid}"),
    }
}

/// The peer's user, which is known only together with its process.
fn peer_uid(conn: &Conn) -> String {
    match conn.peer_pid {
        0 => "-".to_owned(),
        _ => conn.peer_uid.to_string(),
    }
}

fn sentence(conn: &Conn) -> String {
    if conn.reason == Reason::NONE || conn.state == ConnState::Memlane {
        return "-".to_owned();
    }
    match conn.peer_reason {
        Reason::NONE => conn.reason.text().to_owned(),
        peer => format!("{}; the peer: {}", conn.reason.text(), peer.text()),
    }
}

#[derive(Serialize)]
struct Document {
    schema: &'static str,
    version: &'static str,
    processes_read: usize,
    processes_unreadable: u64,
    pages_skipped: usize,
    entries_skipped: u64,
    connections: Vec<ConnDocument>,
}

#[derive(Serialize)]
struct ConnDocument {
    pid: u32,
    process: String,
    fd: u32,
    role: &'static str,
    state: &'static str,
    mode: &'static str,
    local: Option<AddressDocument>,
    peer: Option<AddressDocument>,
    peer_pid: Option<u32>,
    peer_uid: Option<u32>,
    inode: Option<u64>,
    container: Option<ContainerDocument>,
    peer_container: Option<ContainerDocument>,
    since_unix_nanoseconds: u64,
    reason: Option<ReasonDocument>,
    peer_reason: Option<ReasonDocument>,
    parked: bool,
    tx: FlowDocument,
    rx: FlowDocument,
}

#[derive(Serialize)]
struct AddressDocument {
    address: String,
    port: u16,
}

#[derive(Serialize)]
struct ContainerDocument {
    engine: &'static str,
    id: String,
    name: String,
}

/// A reason for TCP, as all JSON documents show it.
#[derive(Serialize, Clone, Debug)]
pub(crate) struct ReasonDocument {
    pub(crate) code: u32,
    pub(crate) name: &'static str,
    pub(crate) text: &'static str,
}

#[derive(Serialize)]
struct FlowDocument {
    ring_size_bytes: u32,
    ring_window_bytes: Option<u32>,
    ring_used_bytes: Option<u32>,
    copied: bool,
    ring_bytes: u64,
    tcp_bytes: u64,
    calls: u64,
}

impl Document {
    fn new(survey: &Survey, rows: &[Row<'_>]) -> Document {
        let skipped = survey.processes.iter().map(|p| p.page.bad_entries).sum();
        Document {
            schema: "memlane.ss/1",
            version: env!("CARGO_PKG_VERSION"),
            processes_read: survey.processes.len(),
            processes_unreadable: survey.unreadable,
            pages_skipped: survey.bad_pages.len(),
            entries_skipped: skipped,
            connections: rows.iter().map(ConnDocument::new).collect(),
        }
    }
}

impl ConnDocument {
    fn new(row: &Row<'_>) -> ConnDocument {
        let conn = row.conn;
        let memlane = conn.state == ConnState::Memlane;
        ConnDocument {
            pid: row.process.pid,
            process: row.process.comm.clone(),
            fd: conn.fd,
            role: if conn.accepted { "server" } else { "client" },
            state: row.state(),
            mode: if memlane { "memlane" } else { "tcp" },
            local: row.addresses.map(|(local, _)| local.into()),
            peer: row.peer().map(AddressDocument::from),
            peer_pid: (conn.peer_pid != 0).then_some(conn.peer_pid),
            peer_uid: (conn.peer_pid != 0).then_some(conn.peer_uid),
            inode: (row.inode != 0).then_some(row.inode),
            container: row.container.clone().map(ContainerDocument::from),
            peer_container: row.peer_container.clone().map(ContainerDocument::from),
            since_unix_nanoseconds: conn.since_ns,
            reason: ReasonDocument::of(conn.reason).filter(|_| !memlane),
            peer_reason: ReasonDocument::of(conn.peer_reason).filter(|_| !memlane),
            parked: conn.parked,
            tx: conn.tx.into(),
            rx: conn.rx.into(),
        }
    }
}

impl ReasonDocument {
    pub(crate) fn of(reason: Reason) -> Option<ReasonDocument> {
        (reason != Reason::NONE).then(|| ReasonDocument {
            code: reason.0,
            name: reason.name(),
            text: reason.text(),
        })
    }
}

impl From<Container> for ContainerDocument {
    fn from(container: Container) -> ContainerDocument {
        let Container { engine, id, name } = container;
        ContainerDocument { engine, id, name }
    }
}

impl From<SocketAddr> for AddressDocument {
    fn from(address: SocketAddr) -> AddressDocument {
        AddressDocument {
            address: address.ip().to_string(),
            port: address.port(),
        }
    }
}

impl From<Flow> for FlowDocument {
    fn from(flow: Flow) -> FlowDocument {
        FlowDocument {
            ring_size_bytes: flow.ring_size,
            ring_window_bytes: flow.ring_window,
            ring_used_bytes: flow.ring_used,
            copied: flow.copied,
            ring_bytes: flow.ring_bytes,
            tcp_bytes: flow.tcp_bytes,
            calls: flow.calls,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_column_is_explained_in_the_guide() {
        let guide = include_str!("../../../docs/guides/seeing.md");
        for column in header(true, true, true) {
            assert!(guide.contains(&format!("| `{column}` |")), "{column}");
        }
    }

    #[test]
    fn a_long_address_is_cut_but_keeps_its_port() {
        let v6: SocketAddr = "[2001:db8:1111:2222:3333:4444:5555:6666]:54321"
            .parse()
            .unwrap();
        let short = address(Some(v6), false);
        assert_eq!(short.len(), NARROW);
        assert!(short.starts_with("[2001:db8:") && short.ends_with("..:54321"));
        assert_eq!(address(Some(v6), true), v6.to_string());
        assert_eq!(address(None, false), "-");
    }
}
