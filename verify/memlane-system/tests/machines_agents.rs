//! The agents of two machines, here two network namespaces with one region of memory, and programs that speak the agent's
//! protocol: `memlane agent --device` as an administrator runs it.
//!
//! Needs root for the namespaces, and CAP_BPF and CAP_PERFMON for the agents.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use memlane_system::blocks::skip;
use memlane_system::containers::{Between, Networks};
use memlane_system::harness::{Built, TempDir, plain_only};
use memlane_system::real::{program, script};

const REGION_LEN: u64 = 64 << 20;

fn memlane(args: &[&str]) -> Command {
    let mut command = Command::new(
        Built::find()
            .memlane
            .expect("`cargo build --release` first"),
    );
    command.args(args);
    command
}

fn said(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    format!("{out}{err}")
}

/// A process that is spoken with, a line at a time. Killed when dropped.
struct Spoken {
    child: Child,
    orders: ChildStdin,
    lines: BufReader<ChildStdout>,
}

impl Spoken {
    fn start(command: &mut Command) -> Spoken {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        Spoken {
            orders: child.stdin.take().expect("piped"),
            lines: BufReader::new(child.stdout.take().expect("piped")),
            child,
        }
    }

    fn says(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("it speaks");
        line.trim().to_owned()
    }

    fn does(&mut self, order: &str) -> String {
        writeln!(self.orders, "{order}").expect("it listens");
        self.says()
    }

    fn kill(&mut self) {
        self.child.kill().expect("it is ours");
        self.child.wait().expect("a child");
    }
}

impl Drop for Spoken {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Two machines, and the memory that they share. All gone when dropped.
struct Machines {
    networks: Networks,
    folder: TempDir,
    region: PathBuf,
    agents: [Option<Spoken>; 2],
}

/// The two, by their place in [`Machines`].
const CLIENT: usize = 0;
const SERVER: usize = 1;

impl Machines {
    fn new(test: &str, between: Between) -> Option<Machines> {
        if plain_only() {
            return None;
        }
        let networks = Networks::new(between)
            .map_err(|why| skip(test, &why))
            .ok()?;
        let folder = TempDir::new(test);
        let region = PathBuf::from(format!("/dev/shm/memlane-{test}-{}", std::process::id()));
        let file = File::create(&region).expect("memory");
        file.set_len(REGION_LEN).expect("memory");
        let mut machines = Machines {
            networks,
            folder,
            region,
            agents: [None, None],
        };
        for machine in [CLIENT, SERVER] {
            if let Err(why) = machines.start(machine, "first") {
                skip(test, &why);
                return None;
            }
        }
        machines.see_each_other();
        Some(machines)
    }

    fn directory(&self, machine: usize) -> PathBuf {
        self.folder.path().join(["client", "server"][machine])
    }

    fn device(&self) -> String {
        format!("ivshmem:{}", self.region.display())
    }

    /// The agent of a machine, at the boot of this name. `Err` says why there can be none here.
    fn start(&mut self, machine: usize, boot: &str) -> Result<(), String> {
        let boot_id = self.folder.path().join(format!("boot{machine}"));
        std::fs::write(&boot_id, boot).expect("a file");
        let mut command = memlane(&["agent", "--device", &self.device(), "--boot-id"]);
        command.arg(&boot_id).arg(self.directory(machine));
        let mut agent = Spoken::start(command.stderr(Stdio::piped()));
        if !agent.says().starts_with("serves ") {
            let mut why = String::new();
            let err = agent.child.stderr.as_mut().expect("piped");
            std::io::Read::read_to_string(err, &mut why).expect("it ends");
            assert_eq!(
                agent.child.wait().expect("a child").code(),
                Some(3),
                "{why}"
            );
            return Err(why);
        }
        let shares = agent.says();
        assert!(shares.contains("can read and write all of it"), "{shares}");
        self.agents[machine] = Some(agent);
        Ok(())
    }

    fn kill_agent(&mut self, machine: usize) {
        self.agents[machine].take().expect("it runs").kill();
    }

    /// Waits until the agents of both are seen to run, and a little longer: they look as often as we do.
    fn see_each_other(&self) {
        let end = Instant::now() + Duration::from_secs(10);
        while self.table().matches("alive").count() != 2 {
            assert!(Instant::now() < end, "{}", self.table());
        }
    }

    fn table(&self) -> String {
        let table = memlane(&["agent", "machines", "--device", &self.device()]).output();
        said(&table.expect("memlane runs"))
    }

    /// Words of the region's table of extents that are in use: the receivers'.
    fn extents_used(&self) -> usize {
        let mut table = vec![0; 1024 * 128];
        let file = File::open(&self.region).expect("memory");
        file.read_exact_at(&mut table, 0x2000).expect("memory");
        let used = |entry: &&[u8]| entry[..8].iter().any(|&b| b != 0);
        table.chunks_exact(128).filter(used).count()
    }

    fn until_extents_used(&self, count: usize) {
        let end = Instant::now() + Duration::from_secs(10);
        while self.extents_used() != count {
            assert!(Instant::now() < end, "{} extents", self.extents_used());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn program(&self, machine: usize, port: &str) -> Spoken {
        let (namespace, role, address) = match machine {
            CLIENT => (
                self.networks.client(),
                "connect",
                self.networks.reached_at(),
            ),
            _ => (
                self.networks.server(),
                "accept",
                self.networks.server_address(),
            ),
        };
        let mut command = self
            .networks
            .command(namespace, &program("python3").display().to_string());
        command.arg(script("across.py")).arg(role);
        command.arg(self.directory(machine)).args([address, port]);
        Spoken::start(&mut command)
    }

    /// Two programs with a connection, and what each says of the other.
    fn meet(&self, port: &str) -> [(Spoken, String); 2] {
        let mut server = self.program(SERVER, port);
        self.wait_for_listener(port);
        let mut client = self.program(CLIENT, port);
        let (at_client, at_server) = (client.says(), server.says());
        [(client, at_client), (server, at_server)]
    }

    fn wait_for_listener(&self, port: &str) {
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            let mut command = self.networks.command(self.networks.server(), "ss");
            let listening = command
                .args(["-Hltn", "sport", "=", &format!(":{port}")])
                .output();
            if !listening.expect("ss").stdout.is_empty() {
                return;
            }
            assert!(Instant::now() < end, "nobody listens");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.region);
    }
}

fn numbers(met: &str) -> Vec<u64> {
    let words = met.strip_prefix("met ").unwrap_or_else(|| panic!("{met}"));
    words
        .split(' ')
        .map(|word| word.parse().expect("a number"))
        .collect()
}

/// They have met: what the one calls its own is what the other calls theirs, and they read what the other writes.
fn share_memory([(client, at_client), (server, at_server)]: &mut [(Spoken, String); 2]) {
    let [one, other] = [numbers(at_client), numbers(at_server)];
    assert_eq!((one[0], one[1], one[2]), (other[1], other[0], other[2]));
    assert_eq!(
        [one[4], other[4]],
        [3, 3],
        "a channel, the region and a life line"
    );
    assert_eq!(client.does("say proposal"), "said");
    assert_eq!(server.does("hear"), "proposal");
    assert_eq!(server.does("say accept"), "said");
    assert_eq!(client.does("hear"), "accept");
    assert_eq!(
        [client.does("read 4096"), client.does("write 4096")],
        ["0", "written"]
    );
    assert_eq!(server.does("read 4096"), "42");
    assert_eq!(
        [client.does("line"), server.does("line")],
        ["holds", "holds"]
    );
}

#[test]
fn programs_of_two_machines_meet_over_a_cable_and_a_kill_is_seen_at_the_other_end() {
    let Some(machines) = Machines::new("machines-cable", Between::Cable) else {
        return;
    };
    let mut both = machines.meet("4000");
    share_memory(&mut both);
    let [(mut client, _), (mut server, _)] = both;
    assert_eq!(machines.extents_used(), 2);
    client.kill();
    assert_eq!(server.does("wait"), "ended");
    // The server may still read what it has, and write: nobody else gets that memory before it lets go.
    assert_eq!(
        [server.does("read 4096"), server.does("write 4096")],
        ["42", "written"]
    );
    assert_eq!(machines.extents_used(), 2);
    assert_eq!(server.does("part"), "parted");
    machines.until_extents_used(0);
}

#[test]
fn programs_of_two_machines_meet_through_nat() {
    let Some(machines) = Machines::new("machines-nat", Between::Nat) else {
        return;
    };
    share_memory(&mut machines.meet("4000"));
}

#[test]
fn an_agent_that_is_killed_leaves_programs_their_memory_and_the_next_one_frees_it_when_they_end() {
    let Some(mut machines) = Machines::new("machines-restart", Between::Cable) else {
        return;
    };
    let mut both = machines.meet("4000");
    share_memory(&mut both);
    machines.kill_agent(CLIENT);
    machines.start(CLIENT, "first").expect("it ran before");
    machines.see_each_other();
    let mut others = machines.meet("4001");
    share_memory(&mut others);
    assert_eq!(machines.extents_used(), 4);
    for (program, _) in &mut both {
        program.kill();
    }
    machines.until_extents_used(2);
}

#[test]
fn a_machine_that_is_silent_keeps_its_memory_until_it_is_booted_again_or_forgotten() {
    let Some(mut machines) = Machines::new("machines-boot", Between::Cable) else {
        return;
    };
    let mut both = machines.meet("4000");
    share_memory(&mut both);
    // Pulled out: nothing of the client's machine runs any more, and nobody says so.
    machines.kill_agent(CLIENT);
    let [(mut client, _), (mut server, _)] = both;
    client.kill();
    std::thread::sleep(Duration::from_millis(1_500));
    assert_eq!(server.does("line"), "holds");
    machines.start(CLIENT, "second").expect("it ran before");
    assert_eq!(server.does("wait"), "ended");
    assert_eq!(server.does("part"), "parted");
    machines.until_extents_used(0);
    // Or an operator says that it is gone for ever.
    machines.see_each_other();
    let mut both = machines.meet("4001");
    share_memory(&mut both);
    let name = |line: &str| line.split_whitespace().next().map(str::to_owned);
    let places: Vec<String> = machines.table().lines().skip(1).filter_map(name).collect();
    let device = machines.device();
    let forget = |place: &str| {
        let forgotten = memlane(&["agent", "forget", "--device", &device, place]).output();
        forgotten.expect("memlane runs")
    };
    let refused = forget(&places[CLIENT]);
    assert!(!refused.status.success() && said(&refused).contains("stop it first"));
    machines.kill_agent(CLIENT);
    let [(mut client, _), (mut server, _)] = both;
    client.kill();
    let forgotten = forget(&places[CLIENT]);
    assert!(forgotten.status.success(), "{}", said(&forgotten));
    assert_eq!(server.does("wait"), "ended");
    drop(server);
    machines.until_extents_used(0);
}

#[test]
fn memory_that_is_not_to_be_used_is_refused_with_the_reason() {
    if plain_only() {
        return;
    }
    let folder = TempDir::new("machines-refused");
    let at = folder.path().join("region");
    let refused = |len: u64, begin: &[u8]| {
        let file = File::create(&at).expect("a file");
        file.set_len(len).expect("a file");
        file.write_all_at(begin, 0).expect("a file");
        let device = format!("ivshmem:{}", at.display());
        said(
            &memlane(&["agent", "machines", "--device", &device])
                .output()
                .expect("it runs"),
        )
    };
    let is_said = |said: String, what: &str| assert!(said.contains(what), "{said}");
    is_said(refused(1 << 20, b""), "are needed");
    is_said(refused((64 << 20) + 1, b""), "no whole number of pages");
    is_said(refused(64 << 20, b"somebody's"), "other contents");
    is_said(refused(64 << 20, b"MLACROSS\x09"), "version 9");
    let folder_itself = format!("ivshmem:{}", folder.path().display());
    let said_of_folder = memlane(&["agent", "machines", "--device", &folder_itself]).output();
    is_said(said(&said_of_folder.expect("it runs")), "Is a directory");
}
