//! Worlds out of a seed: users of volumes, their reopener, and a server that dies now and then, one step at a time.
//!
//! `MEMLANE_SEED=n cargo test -p memlane-block --test client_worlds` runs the world of that seed alone;
//! `MEMLANE_WORLDS=n` runs more of them.

mod remote;

use memlane_block::client::clock::Clock;
use memlane_block::client::reopener::Reopener;
use memlane_block::client::{Access, Client, Options, Patience, RemoteVolume};
use memlane_block::volume::{Done, Errno, Flags, Io, Op, Queue, Volume as _};
use memlane_sim::oracle::{self, Op as Event};
use memlane_sim::rng::Rng;
use remote::{Shared, TestSession};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const WORLDS: u64 = 1500;
const BLOCKS: usize = 6;
const NAMES: [&str; 2] = ["alpha", "beta"];

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Each seed's world, in turn; a failure names its seed.
fn worlds(run: fn(u64) -> Seen) -> Seen {
    let many = number("MEMLANE_WORLDS").unwrap_or(WORLDS);
    let seeds = number("MEMLANE_SEED").map_or(0..many, |seed| seed..seed + 1);
    let mut sum = Seen::default();
    for seed in seeds {
        let world = std::panic::catch_unwind(|| run(seed));
        let seen = world.unwrap_or_else(|_| panic!("seed {seed}: MEMLANE_SEED={seed} shows it"));
        sum.add(&seen);
    }
    println!("{sum:?}");
    sum
}

#[derive(Default, Debug)]
struct Seen {
    done: u64,
    failed: u64,
    restarts: u64,
    reboots: u64,
    replays: u64,
    waits: u64,
    strangers: u64,
    lost: u64,
}

impl Seen {
    fn add(&mut self, other: &Seen) {
        self.done += other.done;
        self.failed += other.failed;
        self.restarts += other.restarts;
        self.reboots += other.reboots;
        self.replays += other.replays;
        self.waits += other.waits;
        self.strangers += other.strangers;
        self.lost += other.lost;
    }
}

/// One queue, and what its user has under way.
struct User {
    volume: usize,
    queue: Box<dyn Queue>,
    under_way: BTreeMap<u64, Op>,
}

struct World {
    rng: Rng,
    session: Arc<TestSession>,
    reopener: Reopener,
    volumes: Vec<Arc<RemoteVolume>>,
    users: Vec<User>,
    dead: bool,
    tags: u64,
    seen: Seen,
}

impl World {
    fn new(seed: u64, patience: Duration, users: usize) -> World {
        let clock = Clock::manual();
        let session = TestSession::new(seed ^ 0x5eed, 12, clock.clone());
        for name in NAMES {
            session.world().machine.add(name, BLOCKS as u64 * 512);
        }
        session.world().limit = patience;
        let options = Options {
            patience: Patience::Queue(patience),
            clock,
            ..Options::default()
        };
        let shared = Arc::new(Shared(Arc::clone(&session)));
        let (client, mut reopener) = Client::driven(shared, options).unwrap();
        let volumes = NAMES.map(|name| {
            let opening = client.begin_open(name, Access::ReadWrite);
            loop {
                reopener.step();
                session.happen();
                if let Some(opened) = opening.poll() {
                    return opened.unwrap();
                }
            }
        });
        let volumes = volumes.to_vec();
        let user = |i: usize| {
            let volume = i % NAMES.len();
            let queue = volumes[volume].queue().unwrap();
            User {
                volume,
                queue,
                under_way: BTreeMap::new(),
            }
        };
        let users = (0..users).map(user).collect();
        World {
            rng: Rng::new(seed),
            session,
            reopener,
            volumes,
            users,
            dead: false,
            tags: 0,
            seen: Seen::default(),
        }
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.rng.below(n as u64)).unwrap()
    }

    /// Something that is not a user's doing.
    fn nature(&mut self, kills: u64, machine_too: u64) {
        match self.rng.below(8) {
            0..=3 => {
                self.session.happen();
            }
            4 | 5 => {
                self.reopener.step();
            }
            6 => {
                let some = Duration::from_micros(self.rng.below(20_000));
                self.session.advance(some);
            }
            _ => self.trouble(kills, machine_too),
        }
    }

    fn trouble(&mut self, kills: u64, machine_too: u64) {
        let up = self.session.world().up;
        if self.dead {
            if self.rng.chance(40) {
                self.restart();
            }
        } else if !up {
            // A path comes back: the same server is there.
            self.session.world().up = self.rng.chance(50);
        } else if self.rng.chance(kills) {
            let machine = self.rng.chance(machine_too);
            self.session.kill(machine);
            self.dead = true;
            self.seen.reboots += u64::from(machine);
        } else if self.rng.chance(5) {
            self.session.world().up = false;
        }
    }

    fn restart(&mut self) {
        self.session.restart();
        self.dead = false;
        self.seen.restarts += 1;
    }

    /// Peace: everything that is under way comes to its end.
    fn finish(&mut self, mut done: impl FnMut(&mut World, usize, Done)) {
        if self.dead {
            self.restart();
        }
        self.session.world().up = true;
        for _ in 0..3000 {
            self.reopener.step();
            self.session.settle();
            self.session.advance(Duration::from_millis(5));
            for user in 0..self.users.len() {
                for each in self.reap(user) {
                    done(self, user, each);
                }
            }
            if self.users.iter().all(|user| user.under_way.is_empty()) {
                return;
            }
        }
        panic!("somebody waits for ever");
    }

    fn reap(&mut self, user: usize) -> Vec<Done> {
        let mut all = Vec::new();
        let user = &mut self.users[user];
        user.queue.reap(&mut all);
        for done in &all {
            assert!(user.under_way.remove(&done.tag).is_some(), "done twice");
            self.seen.done += u64::from(done.result.is_ok());
            self.seen.failed += u64::from(done.result.is_err());
        }
        all
    }

    fn over(mut self) -> Seen {
        for volume in &self.volumes {
            let stats = volume.stats();
            self.seen.replays += stats.replays;
            self.seen.waits += stats.waits;
            self.seen.lost += u64::from(volume.losses());
        }
        self.seen.strangers += u64::from(self.session.world().machine.strangers);
        self.users.clear();
        self.volumes.clear();
        self.seen
    }

    /// A block full of one number, if there is memory for it.
    fn lease(&mut self, user: usize, value: u64) -> Option<memlane_block::volume::Lease> {
        let lease = self.users[user].queue.lease(512).unwrap()?;
        assert!(lease.fill(0, &value.to_le_bytes().repeat(64)));
        Some(lease)
    }

    fn submit(&mut self, user: usize, io: Io) {
        let user = &mut self.users[user];
        user.under_way.insert(io.tag, io.op);
        user.queue.submit(io);
        if self.rng.chance(50) {
            user.queue.push();
        }
    }
}

fn value(done: &Done) -> u64 {
    let mut block = [0; 512];
    assert!(done.lease.as_ref().unwrap().take(0, &mut block));
    let value = &block[..8];
    assert!(block.chunks(8).all(|word| word == value), "half a block");
    u64::from_le_bytes(value.try_into().unwrap())
}

// ---- each block a register ---------------------------------------------------

fn registers(seed: u64) -> Seen {
    let patience = [40, 30_000][usize::try_from(seed % 2).unwrap()];
    let mut world = World::new(seed, Duration::from_millis(patience), 4);
    let mut history: BTreeMap<u64, Event> = BTreeMap::new();
    let mut step = 0;
    let note = |history: &mut BTreeMap<u64, Event>, done: Done, step: u64| {
        let Some(event) = history.get_mut(&done.tag) else {
            return;
        };
        match done.result {
            Ok(()) => {
                event.end = Some(step);
                if !event.write {
                    event.value = value(&done);
                }
            }
            Err(errno) => assert_eq!(errno, Errno(libc::EIO)),
        }
    };
    for _ in 0..500 {
        step += 1;
        let user = world.below(world.users.len());
        match world.rng.below(10) {
            0..=2 if world.users[user].under_way.len() < 4 => {
                world.tags += 1;
                let (tag, write) = (world.tags, world.rng.chance(60));
                let block = world.below(BLOCKS);
                let place = world.users[user].volume * 100 + block;
                // A write that may be executed again by the next server has its block for itself, but for reads.
                let writing = |event: &Event| event.write && event.block == place;
                let mut under_way = world.users.iter().flat_map(|user| user.under_way.keys());
                if write && under_way.any(|tag| history.get(tag).is_some_and(writing)) {
                    continue;
                }
                let Some(lease) = world.lease(user, tag) else {
                    continue;
                };
                let event = Event {
                    block: place,
                    write,
                    value: tag,
                    begin: step,
                    end: None,
                };
                history.insert(tag, event);
                let op = if write { Op::Write } else { Op::Read };
                world.submit(user, Io::data(tag, op, block as u64 * 512, 512, lease));
            }
            3 if world.rng.chance(20) => {
                world.tags += 1;
                let tag = world.tags;
                world.submit(user, Io::bare(tag, Op::Flush, 0, 0));
            }
            4..=5 => {
                for done in world.reap(user) {
                    note(&mut history, done, step);
                }
            }
            _ => world.nature(12, 0),
        }
    }
    world.finish(|_, _, done| {
        step += 1;
        note(&mut history, done, step);
    });
    let history: Vec<Event> = history.into_values().collect();
    if let Err(violation) = oracle::judge(&history) {
        panic!("{violation:?}");
    }
    assert_eq!(world.session.world().under_way(), 0);
    world.over()
}

#[test]
fn whatever_the_server_does_each_block_stays_a_register_and_every_request_ends() {
    let seen = worlds(registers);
    if number("MEMLANE_SEED").is_none() {
        // Worlds in which nothing happens show nothing.
        let rare = [seen.failed, seen.restarts, seen.replays, seen.waits];
        assert!(rare.iter().all(|n| *n > WORLDS / 10), "{seen:?}");
        assert!(seen.strangers > WORLDS / 10 && seen.done > WORLDS * 20);
        assert_eq!(seen.lost, 0, "no machine lost its memory");
    }
}

// ---- what was flushed is there -----------------------------------------------

/// What one user may rely on, of the blocks of its volume. Each block has one writer, whose values grow.
#[derive(Clone, Default)]
struct Promise {
    /// What was acknowledged to whoever wrote it.
    acknowledged: BTreeMap<u64, u64>,
    /// What was acknowledged before a flush last failed: nobody relies on that any more.
    excused: BTreeMap<usize, BTreeMap<u64, u64>>,
    /// What was acknowledged when each flush that is under way was submitted.
    before: BTreeMap<u64, BTreeMap<u64, u64>>,
    writes: BTreeMap<u64, (u64, u64)>,
    durable_writes: Vec<u64>,
}

fn durability(seed: u64) -> Seen {
    let mut world = World::new(seed, Duration::from_secs(30), 4);
    let mut promises = [Promise::default(), Promise::default()];
    for _ in 0..400 {
        let user = world.below(world.users.len());
        let volume = world.users[user].volume;
        match world.rng.below(10) {
            0..=3 => begin(&mut world, &mut promises[volume], user),
            4..=5 => {
                for done in world.reap(user) {
                    ended(&mut world, &mut promises[volume], user, &done);
                }
            }
            _ => world.nature(12, 50),
        }
    }
    world.finish(|world, user, done| {
        let volume = world.users[user].volume;
        ended(world, &mut promises[volume], user, &done);
    });
    world.over()
}

/// Two users of each volume: the even blocks are one's, the odd ones the other's.
fn begin(world: &mut World, promise: &mut Promise, user: usize) {
    world.tags += 1;
    let tag = world.tags;
    if world.rng.chance(25) {
        promise.before.insert(tag, promise.acknowledged.clone());
        return world.submit(user, Io::bare(tag, Op::Flush, 0, 0));
    }
    let block = world.rng.below(BLOCKS as u64 / 2) * 2 + (user as u64 / 2) % 2;
    if promise.writes.values().any(|(other, _)| *other == block) {
        return;
    }
    let Some(lease) = world.lease(user, tag) else {
        return;
    };
    promise.writes.insert(tag, (block, tag));
    let mut io = Io::data(tag, Op::Write, block * 512, 512, lease);
    if world.rng.chance(15) {
        promise.durable_writes.push(tag);
        io = io.with(Flags::FUA);
    }
    world.submit(user, io);
}

fn ended(world: &mut World, promise: &mut Promise, user: usize, done: &Done) {
    let volume = world.users[user].volume;
    let durable = |world: &mut World, block: u64| {
        let mut world = world.session.world();
        let at = usize::try_from(block).unwrap() * 512;
        let bytes = &world.machine.disk(NAMES[volume]).durable[at..at + 8];
        u64::from_le_bytes(bytes.try_into().unwrap())
    };
    if let Some((block, value)) = promise.writes.remove(&done.tag) {
        assert_eq!(done.result, Ok(()), "writes are sent again");
        promise.acknowledged.insert(block, value);
        if promise.durable_writes.contains(&done.tag) {
            assert!(durable(world, block) >= value, "FUA, and not there");
        }
        return;
    }
    let before = promise.before.remove(&done.tag).expect("a flush");
    if done.result.is_err() {
        let excused = promise.excused.entry(user).or_default();
        excused.clone_from(&promise.acknowledged);
        return;
    }
    let excused = promise.excused.get(&user).cloned().unwrap_or_default();
    for (block, value) in before {
        let told = excused.get(&block).is_some_and(|told| *told >= value);
        let there = durable(world, block);
        assert!(
            told || there >= value,
            "block {block} of {volume}: {value} was acknowledged and flushed, {there} is there"
        );
    }
}

#[test]
fn a_flush_that_succeeds_means_that_everything_acknowledged_before_is_safe_whatever_dies() {
    let seen = worlds(durability);
    if number("MEMLANE_SEED").is_none() {
        let rare = [seen.failed, seen.reboots, seen.replays, seen.lost];
        assert!(rare.iter().all(|n| *n > WORLDS / 10), "{seen:?}");
        assert!(seen.restarts > seen.reboots);
    }
}
