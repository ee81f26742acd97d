//! The agents of several machines over one region, in one thread and by a clock of the test's: every order of events, and a
//! machine that writes anything anywhere.

use memlane_agent::across::extents::Lifetime;
use memlane_agent::across::layout::{EXTENTS_AT, MEMORY_AT, PARTICIPANTS_AT, RINGS_AT};
use memlane_agent::across::participants::Identity;
use memlane_agent::across::region::Region;
use memlane_agent::across::relay::{Act, Party, Relay};
use memlane_agent::kernel::{ESTABLISHED, INITIAL_USER_NAMESPACE, Record};
use memlane_agent::pairs::{Asker, Key, Pairs, Verdict};
use memlane_socket::protocol::agent::{Across, Parting, Refusal, Role};
use proptest::prelude::*;
use rustix::fd::OwnedFd;
use rustix::fs::MemfdFlags;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

/// Room for two pairs of programs.
const REGION_LEN: usize = MEMORY_AT + 4 * 18 * 65_536;

/// A program: the machine that it runs on, and its number there.
type Program = (usize, u64);

/// What a program has been given.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Has {
    across: Across,
    channel: u64,
}

/// One machine, and its agent if it runs.
struct Machine {
    name: String,
    boot: u64,
    relay: Option<Relay>,
    pairs: Pairs,
    programs: BTreeSet<u64>,
    /// What has come over channels.
    heard: Vec<(u64, Vec<u8>)>,
    ended: BTreeSet<u64>,
}

struct World {
    memory: OwnedFd,
    now: Instant,
    machines: Vec<Machine>,
    next: u64,
    /// Questions that wait for an answer, and since when.
    open: BTreeMap<(usize, u64, u64), Instant>,
    refused: Vec<Refusal>,
    /// What living programs have and have not let go of, by peer.
    has: BTreeMap<Program, BTreeMap<u64, Has>>,
}

impl World {
    fn new(machines: usize) -> World {
        let memory = rustix::fs::memfd_create("region", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&memory, REGION_LEN as u64).unwrap();
        let mut world = World {
            memory,
            now: Instant::now(),
            machines: Vec::new(),
            next: 1,
            open: BTreeMap::new(),
            refused: Vec::new(),
            has: BTreeMap::new(),
        };
        for machine in 0..machines {
            world.machines.push(Machine {
                name: format!("m{machine}"),
                boot: 1,
                relay: None,
                pairs: Pairs::new(64),
                programs: BTreeSet::new(),
                heard: Vec::new(),
                ended: BTreeSet::new(),
            });
            world.start(machine);
        }
        world.pass(300);
        world
    }

    /// `None`: it is no region of ours any more.
    fn map(&self) -> Option<Region> {
        let memory = rustix::io::fcntl_dupfd_cloexec(&self.memory, 0).unwrap();
        Region::map(Path::new("region"), memory).ok()
    }

    /// A word of the region, as anybody may write it.
    fn scribble(&self, word: usize, value: u64) {
        let at = (word * 8) as u64;
        rustix::io::pwrite(&self.memory, &value.to_le_bytes(), at).unwrap();
    }

    fn start(&mut self, machine: usize) {
        let Some(region) = self.map() else {
            return;
        };
        let m = &mut self.machines[machine];
        let boot = m.boot.to_string();
        let identity = Identity::of(&m.name, &boot, Path::new("/x"), m.name.clone());
        let mut seed = self.next << 32 | machine as u64;
        self.next += 1;
        let random = Box::new(move || {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            seed
        });
        m.relay = Relay::join(region, identity, random, &|_| {}, self.now).ok();
    }

    /// The agent ends. Its programs' channels, life lines and questions end with it; what they have mapped stays.
    fn stop(&mut self, machine: usize) {
        self.machines[machine].relay = None;
        self.machines[machine].pairs = Pairs::new(64);
        self.open.retain(|&(at, ..), _| at != machine);
    }

    /// All of its programs end, too.
    fn reboot(&mut self, machine: usize) {
        self.stop(machine);
        self.machines[machine].programs.clear();
        self.has.retain(|&(at, _), _| at != machine);
        self.machines[machine].boot += 1;
        self.start(machine);
    }

    fn program(&mut self, machine: usize) -> Program {
        let number = self.next;
        self.next += 1;
        self.machines[machine].programs.insert(number);
        (machine, number)
    }

    /// A program ends.
    fn end(&mut self, (machine, number): Program) {
        let m = &mut self.machines[machine];
        m.programs.remove(&number);
        if let Some(relay) = &mut m.relay {
            relay.process_gone(number);
        }
        self.open
            .retain(|&(at, process, _), _| (at, process) != (machine, number));
        self.has.remove(&(machine, number));
    }

    fn part(&mut self, program: Program, peer: u64) {
        let Some(has) = self.has.get_mut(&program).and_then(|all| all.remove(&peer)) else {
            return;
        };
        let serial = has.across.serial;
        if let Some(relay) = &mut self.machines[program.0].relay {
            relay.part(party(program.1), Parting { peer, serial });
        }
    }

    /// A new connection of the program at its connecting end with the other one; both ask.
    fn connect(&mut self, client: Program, server: Program) {
        let connection = u32::try_from(self.next).unwrap() * 64;
        self.next += 1;
        self.asks(client, connection, Role::Connected, 0);
        self.asks(server, connection, Role::Accepted, 0);
    }

    fn asks(&mut self, (machine, number): Program, connection: u32, role: Role, made_by: u32) {
        let id = self.next;
        self.next += 1;
        let record = end_of(connection, role, made_by);
        let asker = Asker {
            process: number,
            id,
        };
        let m = &mut self.machines[machine];
        let Some(relay) = &mut m.relay else {
            return;
        };
        if m.pairs.ask(asker, role, &record, self.now) == Verdict::Wait {
            self.open.insert((machine, number, id), self.now);
            relay.ask(
                party(number),
                Key::of(&record, role),
                role,
                &mut m.pairs,
                self.now,
            );
        }
    }

    /// So many milliseconds pass.
    fn pass(&mut self, ms: u32) {
        for _ in 0..ms {
            self.now += Duration::from_millis(1);
            for machine in 0..self.machines.len() {
                self.turn(machine);
            }
        }
    }

    fn turn(&mut self, machine: usize) {
        let now = self.now;
        let m = &mut self.machines[machine];
        let Some(relay) = &mut m.relay else {
            return;
        };
        let mut over = Vec::new();
        m.pairs.expire(now, |asker| over.push(asker));
        for asker in over {
            self.open.remove(&(machine, asker.process, asker.id));
            self.refused.push(Refusal::Nobody);
        }
        let programs = &m.programs;
        let parties = |number: u64| programs.contains(&number).then(|| party(number));
        if relay.next() <= now {
            relay.turn(&mut m.pairs, &parties, now);
        }
        for act in relay.acts() {
            match act {
                Act::Introduce {
                    asker,
                    across,
                    channel,
                    ..
                } => {
                    self.open.remove(&(machine, asker.process, asker.id));
                    let its = self.has.entry((machine, asker.process)).or_default();
                    its.insert(across.peer, Has { across, channel });
                }
                Act::Refuse(asker, why) => {
                    self.open.remove(&(machine, asker.process, asker.id));
                    self.refused.push(why);
                }
                Act::Deliver(channel, bytes) => m.heard.push((channel, bytes)),
                Act::EndChannel(channel) => drop(m.ended.insert(channel)),
                Act::EndLine(_) => {}
            }
        }
    }

    fn tally(&self, machine: usize) -> u64 {
        let relay = self.machines[machine].relay.as_ref().unwrap();
        relay.tally(self.now).extents
    }

    /// The one thing that a program has.
    fn only(&self, program: Program) -> Has {
        let all = self.has.get(&program).expect("it has met somebody");
        assert_eq!(all.len(), 1);
        *all.values().next().unwrap()
    }

    /// No memory is written by two, or read by two.
    fn is_sound(&self) {
        let all = || self.has.values().flat_map(BTreeMap::values);
        let each = |of: fn(&Has) -> u64| {
            let places: Vec<u64> = all().map(of).collect();
            let distinct: BTreeSet<u64> = places.iter().copied().collect();
            assert_eq!(places.len(), distinct.len(), "{:?}", self.has);
        };
        each(|has| has.across.own);
        each(|has| has.across.theirs);
    }
}

/// A process that lives: this one.
fn party(number: u64) -> Party {
    let pid = i32::try_from(std::process::id()).unwrap();
    Party {
        number,
        name: number << 8 | 7,
        lifetime: Lifetime::of(pid).unwrap(),
    }
}

/// One end of a connection, as its kernel shows it.
fn end_of(connection: u32, role: Role, made_by: u32) -> Record {
    let (client, server) = (connection, connection ^ 0x5555_0000);
    let (sends_from, receives_from, inode) = match role {
        Role::Connected => (client, server + 1, u64::from(connection)),
        Role::Accepted => (server + 1, client + 1, u64::from(connection) + 1),
    };
    Record {
        fd: 3,
        state: ESTABLISHED,
        inode,
        sends_from,
        receives_from,
        network: 1,
        owner: if made_by == 0 {
            INITIAL_USER_NAMESPACE
        } else {
            77
        },
        made_by,
    }
}

#[test]
fn two_ends_meet_within_some_milliseconds_and_messages_pass_in_order() {
    let mut world = World::new(2);
    let (client, server) = (world.program(0), world.program(1));
    world.connect(client, server);
    world.pass(30);
    let (one, other) = (world.only(client), world.only(server));
    assert_eq!(one.across.own, other.across.theirs);
    assert_eq!(one.across.theirs, other.across.own);
    let sent: Vec<Vec<u8>> = (0..40).map(|n| vec![n; usize::from(n) * 11 + 1]).collect();
    for bytes in &sent {
        let relay = world.machines[0].relay.as_mut().unwrap();
        assert!(relay.said(one.channel, bytes));
    }
    let relay = world.machines[0].relay.as_mut().unwrap();
    relay.channel_ended(one.channel);
    world.pass(30);
    let heard = world.machines[1]
        .heard
        .iter()
        .map(|(_, bytes)| bytes.clone());
    assert_eq!(heard.collect::<Vec<_>>(), sent);
    assert!(world.machines[1].ended.contains(&other.channel));
}

#[test]
fn an_end_that_waits_is_found_soon_when_the_other_one_asks() {
    for roles in [
        [Role::Accepted, Role::Connected],
        [Role::Connected, Role::Accepted],
    ] {
        let mut world = World::new(2);
        let programs = [world.program(0), world.program(1)];
        world.asks(programs[0], 640, roles[0], 0);
        world.pass(100);
        world.asks(programs[1], 640, roles[1], 0);
        // Its agent looks after a sixteenth of the time that it has waited; the other one, at once.
        world.pass(100 / 16 + 5);
        world.only(programs[0]);
        world.only(programs[1]);
    }
}

/// A guest with one CPU has other things to do.
#[test]
fn an_agent_looks_seldom_when_nothing_comes() {
    let mut world = World::new(2);
    let program = world.program(0);
    world.asks(program, 640, Role::Connected, 0);
    let (end, mut looks) = (world.now + Duration::from_secs(1), 0);
    let next = |world: &World| world.machines[0].relay.as_ref().unwrap().next();
    while next(&world) < end {
        world.now = next(&world);
        world.turn(0);
        looks += 1;
    }
    assert!((50..200).contains(&looks), "{looks} looks in a second");
}

#[test]
fn a_message_that_is_too_long_ends_its_channel() {
    let mut world = World::new(2);
    let (client, server) = (world.program(0), world.program(1));
    world.connect(client, server);
    world.pass(30);
    let channel = world.only(client).channel;
    let relay = world.machines[0].relay.as_mut().unwrap();
    assert!(!relay.said(channel, &[0; 449]));
    assert!(relay.said(channel, &[0; 448]));
}

#[test]
fn a_network_that_an_ordinary_user_has_made_meets_nobody_of_another_machine() {
    for [client_by, server_by] in [[1_000, 0], [0, 1_000], [1_000, 1_000]] {
        let mut world = World::new(2);
        let (client, server) = (world.program(0), world.program(1));
        world.asks(client, 640, Role::Connected, client_by);
        world.asks(server, 640, Role::Accepted, server_by);
        world.pass(30);
        assert_eq!(world.refused, [Refusal::Untrusted; 2]);
        assert_eq!((world.tally(0), world.tally(1)), (0, 0));
    }
}

#[test]
fn two_machines_that_say_they_have_the_same_end_are_both_refused() {
    let mut world = World::new(3);
    let (client, liar, server) = (world.program(0), world.program(1), world.program(2));
    world.asks(client, 640, Role::Connected, 0);
    world.asks(liar, 640, Role::Connected, 0);
    world.pass(30);
    world.asks(server, 640, Role::Accepted, 0);
    world.pass(1_100);
    assert_eq!(
        world.refused,
        [Refusal::Forged, Refusal::Forged, Refusal::Nobody]
    );
}

#[test]
fn a_machine_that_is_silent_is_asked_nothing_and_keeps_what_it_has() {
    let mut world = World::new(2);
    let (client, server) = (world.program(0), world.program(1));
    world.connect(client, server);
    world.pass(30);
    let paused = world.machines[1].relay.take();
    world.pass(2_000);
    let late = world.program(0);
    world.asks(late, 999_936, Role::Connected, 0);
    world.end(client);
    world.pass(10_000);
    assert_eq!(
        (world.refused.pop(), world.tally(0)),
        (Some(Refusal::Nobody), 1)
    );
    world.machines[1].relay = paused;
    world.part(server, world.only(server).across.peer);
    world.pass(200);
    assert_eq!((world.tally(0), world.tally(1)), (0, 0));
}

#[derive(Clone, Debug)]
enum Event {
    Connect(usize, usize),
    Part(usize, usize),
    End(usize),
    Restart(usize),
    Reboot(usize),
    Pass(u32),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (0..6_usize, 0..6_usize).prop_map(|(a, b)| Event::Connect(a, b)),
        6 => (0..6_usize, 0..2_usize).prop_map(|(a, b)| Event::Part(a, b)),
        1 => (0..6_usize).prop_map(Event::End),
        1 => (0..3_usize).prop_map(Event::Restart),
        1 => (0..3_usize).prop_map(Event::Reboot),
        8 => (0..60_u32).prop_map(Event::Pass),
    ]
}

/// Six programs on three machines.
struct Life {
    world: World,
    programs: Vec<Program>,
}

impl Life {
    fn new() -> Life {
        let mut world = World::new(3);
        let programs = (0..6).map(|n| world.program(n % 3)).collect();
        Life { world, programs }
    }

    fn happens(&mut self, event: &Event) {
        let world = &mut self.world;
        match *event {
            Event::Connect(a, b) if a % 3 != b % 3 => {
                world.connect(self.programs[a], self.programs[b]);
            }
            Event::Connect(..) => {}
            Event::Part(a, nth) => {
                let its = world.has.get(&self.programs[a]);
                let peer = its.and_then(|all| all.keys().nth(nth).copied());
                if let Some(peer) = peer {
                    world.part(self.programs[a], peer);
                }
            }
            Event::End(a) => {
                world.end(self.programs[a]);
                self.programs[a] = world.program(a % 3);
            }
            Event::Restart(machine) => {
                world.stop(machine);
                world.start(machine);
            }
            Event::Reboot(machine) => {
                world.reboot(machine);
                for a in 0..6 {
                    if a % 3 == machine {
                        self.programs[a] = world.program(machine);
                    }
                }
            }
            Event::Pass(ms) => world.pass(ms),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, max_shrink_iters: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_no_memory_is_given_twice_and_nobody_waits_for_ever(
        events in prop::collection::vec(event(), 1..80)
    ) {
        let mut life = Life::new();
        for event in &events {
            life.happens(event);
            life.world.is_sound();
        }
        life.world.pass(2_500);
        life.world.is_sound();
        prop_assert!(life.world.open.is_empty(), "{:?}", life.world.open);
    }

    /// Who scribbles can keep others from meeting, and no more.
    #[test]
    fn whatever_lies_in_the_region_no_agent_panics_or_has_anybody_wait_for_ever(
        events in prop::collection::vec((event(), prop::collection::vec(scribble(), 0..8)), 1..30)
    ) {
        let mut life = Life::new();
        for (event, scribbles) in &events {
            life.happens(event);
            for &(word, value) in scribbles {
                life.world.scribble(word, value);
            }
            life.world.pass(1);
        }
        life.world.pass(2_500);
        prop_assert!(life.world.open.is_empty(), "{:?}", life.world.open);
    }
}

/// Any word of the tables, most often one that is in use, and any value, most often one that means something.
fn scribble() -> impl Strategy<Value = (usize, u64)> {
    let within = |from: usize, words: usize| from / 8..from / 8 + words;
    let ring = |from: usize, to: usize| RINGS_AT + (from * 32 + to) * (128 + 16 * 512);
    let word = prop_oneof![
        within(0, 3),
        within(PARTICIPANTS_AT, 3 * 16),
        within(EXTENTS_AT, 4 * 16),
        within(ring(0, 1), 24 + 64),
        within(ring(1, 2), 24 + 64),
        within(ring(2, 0), 24 + 64),
        within(0, MEMORY_AT / 8),
    ];
    let value = prop_oneof![
        any::<u64>(),
        0..40_u64,
        (0..40_u64, 0..3_u64).prop_map(|(place, boot)| place << 56 | boot),
        Just(u64::MAX),
    ];
    (word, value)
}

/// After the scribbling, agents that are restarted meet again, if nothing but their messages and their own entries was hit.
#[test]
fn what_an_agent_writes_itself_it_writes_again() {
    let mut world = World::new(2);
    for word in PARTICIPANTS_AT / 8..PARTICIPANTS_AT / 8 + 32 {
        world.scribble(word, u64::MAX);
    }
    for ring in [1, 32] {
        for word in 0..24 {
            let at = RINGS_AT + ring * (128 + 16 * 512);
            world.scribble(at / 8 + word, 0xdead_beef);
        }
    }
    world.pass(1_500);
    let (client, server) = (world.program(0), world.program(1));
    world.connect(client, server);
    world.pass(30);
    world.only(client);
    world.only(server);
}
