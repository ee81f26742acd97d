//! Two programs on two machines that share a region of memory: the lane opens, and costs nobody a byte.
//!
//! Needs root for the namespaces that stand in for machines, and CAP_BPF and CAP_PERFMON for the agents.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::FileExt as _;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use memlane_system::containers::{Between, Machines};
use memlane_system::harness::Built;
use memlane_system::pair::Pair;
use memlane_system::real::script;

/// Bytes of a region.
const REGION: u64 = 64 << 20;
/// Whose end something is, as an index.
const CLIENT: usize = 0;
const SERVER: usize = 1;

#[test]
fn the_lane_opens_between_two_machines() {
    if let Some(machines) = Machines::new("two-machines", Between::Cable, REGION) {
        machines.pair().open_and_carry();
    }
}

#[test]
fn the_lane_opens_where_addresses_are_translated_between_them() {
    if let Some(machines) = Machines::new("two-machines-nat", Between::Nat, REGION) {
        machines.pair().open_and_carry();
    }
}

/// The processes of an earlier pair are gone; what they had is given to later ones, many times over.
#[test]
fn memory_of_processes_that_are_gone_serves_others() {
    let Some(machines) = Machines::new("many-pairs", Between::Cable, REGION) else {
        return;
    };
    for _ in 0..40 {
        machines.pair().open_and_carry();
    }
}

#[test]
fn an_agent_that_is_killed_costs_nothing_and_the_next_one_introduces_again() {
    let Some(mut machines) = Machines::new("agent-dies", Between::Cable, REGION) else {
        return;
    };
    let mut before = machines.pair();
    before.open_and_carry();
    for end in 0..2 {
        machines.agents[end].kill();
        before.flood(4 << 20);
        machines.agents[end].restart();
    }
    machines.pair().open_and_carry();
    before.flood(4 << 20);
}

/// The client or the server of a script, with memlane, on its machine.
struct Half {
    child: Child,
    /// Not the child's: it would be closed by who waits for the parent.
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

/// What runs that on its machine.
fn half(machines: &Machines, end: usize, [program, role]: [&str; 2]) -> Command {
    let networks = &machines.networks;
    let namespace = [networks.client(), networks.server()][end];
    let memlane = Built::find().memlane;
    let memlane = memlane.expect("`cargo build --release` first");
    let mut command = networks.command(namespace, "setsid");
    command.arg(memlane).args(["run", "--upgrade", "eager"]);
    command.args(["--domain", &machines.agents[end].directory()]);
    command.args(["--", "python3"]).arg(script(program));
    command.args([role, networks.server_address(), "4242"]);
    command
}

impl Half {
    fn start(machines: &Machines, end: usize, program: [&str; 2]) -> Half {
        let mut command = half(machines, end, program);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let answers = BufReader::new(child.stdout.take().expect("piped"));
        let orders = child.stdin.take().expect("piped");
        Half {
            child,
            orders,
            answers,
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("it speaks");
        line
    }

    fn goes_on(&mut self) {
        writeln!(self.orders, "go on").expect("it hears");
    }
}

/// More clients at a time than there is memory for: those for whom there is none go by TCP. When all of them are gone, others have
/// the lane, though nobody has told the server to look.
#[test]
fn a_server_lets_go_of_what_it_shared_with_clients_that_are_gone() {
    let Some(machines) = Machines::new("clients-in-crowds", Between::Cable, REGION) else {
        return;
    };
    let mut server = Half::start(&machines, SERVER, ["turns.py", "server"]);
    assert_eq!(server.line(), "listens\n");
    let one_client = || {
        let mut client = half(&machines, CLIENT, ["turns.py", "client"]);
        let ended = client.env("MEMLANE_STATS_ON_EXIT", "1").output();
        let ended = ended.expect("it starts");
        let told = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.stdout, b"done\n", "{told}");
        told.contains("1 upgraded")
    };
    let in_memory = std::thread::scope(|scope| {
        let crowd: Vec<_> = (0..20).map(|_| scope.spawn(one_client)).collect();
        let ended = crowd.into_iter().map(|client| client.join().expect("well"));
        ended.filter(|has_lane| *has_lane).count()
    });
    assert!((1..20).contains(&in_memory), "{in_memory}");
    std::thread::sleep(Duration::from_millis(1500));
    // The first makes the server look, and may come too early itself.
    one_client();
    assert!(one_client());
    drop(server.orders);
    server.child.wait().expect("it ends");
}

/// A server whose child is about to go on alone, and a client whose bytes wait for the child.
fn that_part(machines: &Machines, client: &str) -> [Half; 2] {
    let server = Half::start(machines, SERVER, ["parting.py", "server"]);
    std::thread::sleep(Duration::from_millis(500));
    let mut client = Half::start(machines, CLIENT, ["parting.py", client]);
    assert_eq!(client.line(), "waits\n");
    [server, client]
}

/// A server's child goes on with a connection that its parent had. What the two processes share with the other machine is not given
/// to others as long as the child lives.
#[test]
fn memory_that_a_child_has_inherited_serves_nobody_else() {
    let Some(machines) = Machines::new("child-goes-on", Between::Cable, REGION) else {
        return;
    };
    let [mut server, mut client] = that_part(&machines, "client");
    server.child.wait().expect("the parent ends");
    // Time for the agents to notice, and others who take all memory that there is.
    std::thread::sleep(Duration::from_millis(1500));
    let mut others: Vec<Pair> = (0..4).map(|_| machines.pair()).collect();
    others.iter_mut().for_each(Pair::open_and_carry);
    server.goes_on();
    client.goes_on();
    let sent = client.line();
    assert!(sent.starts_with("done "), "{sent:?}");
    assert_eq!(server.line(), sent);
    client.child.wait().expect("it ends");
}

/// What a client has sent before it ended waits in the ring until the server's child reads it, though both who made the connection
/// are gone.
#[test]
fn what_lies_in_a_ring_for_a_child_is_there_when_both_who_connected_are_gone() {
    let Some(machines) = Machines::new("child-is-left", Between::Cable, REGION) else {
        return;
    };
    let [mut server, mut client] = that_part(&machines, "leaving");
    client.goes_on();
    let sent = client.line();
    assert!(sent.starts_with("done "), "{sent:?}");
    client.child.wait().expect("it ends");
    server.child.wait().expect("the parent ends");
    std::thread::sleep(Duration::from_millis(1500));
    let mut others: Vec<Pair> = (0..7).map(|_| machines.pair()).collect();
    others.iter_mut().for_each(Pair::open_and_carry);
    server.goes_on();
    assert_eq!(server.line(), sent);
}

/// A third machine of the domain writes nonsense over the whole region, again and again. It can spoil what is in the rings, for
/// that is memory it may write; nobody crashes or hangs, and nothing else is disturbed.
#[test]
fn a_machine_that_scribbles_costs_nobody_more_than_their_connections_between_machines() {
    let Some(machines) = Machines::new("scribbler", Between::Cable, REGION) else {
        return;
    };
    let mut spoilt = machines.pair();
    spoilt.open_and_carry();
    for (n, end) in [&mut spoilt.client, &mut spoilt.server]
        .into_iter()
        .enumerate()
    {
        end.tell(&format!("both {n} 1000000000 1000000000"));
    }
    let file = File::options().write(true).open(machines.region());
    let file = file.expect("the region");
    let mut noise = vec![0_u8; 1 << 20];
    let (begin, mut seed) = (Instant::now(), 1_u64);
    while begin.elapsed() < Duration::from_secs(3) {
        for word in noise.chunks_exact_mut(8) {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            word.copy_from_slice(&seed.to_le_bytes());
        }
        for at in (0..REGION).step_by(noise.len()) {
            file.write_all_at(&noise, at).expect("the region is there");
        }
    }
    // What has begun is lost or not; who begins now is on TCP, and whole.
    let mut later = machines.pair();
    for _ in 0..50 {
        later.flood(1 << 16);
    }
    for end in [&mut spoilt.client, &mut spoilt.server] {
        assert!(!end.has_crashed());
    }
}
