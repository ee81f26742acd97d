//! `memlane net link` under fire: the other side writes anything at any time, notifies endlessly, or does nothing at
//! all. The liar is detached and leaves nothing behind, and nobody else notices.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use memlane_system::blocks::Rng;
use memlane_system::blocks::machines::{Machines, Side};
use memlane_system::packets::hostile::netif::{
    Back, EXTRA, Front, GRANTS, Queue, REGION, RSP_EVENT, RSP_PROD, Ring,
};
use memlane_system::packets::hostile::victim::{Bystander, LINK_OVER, Victim};
use memlane_system::packets::hostile::{Heard, LIMIT, Memory, Socket, fire};

/// Numbers of the modes on the wire.
const MODES: [u8; 3] = [0, 1, 2];

/// Something that is nearly right, anywhere in what both sides can write.
fn scribble(queue: &Queue, data: [&Memory; 2], random: &mut Rng) {
    let ring = if random.below(2) == 0 {
        Ring::Tx
    } else {
        Ring::Rx
    };
    let word = |random: &mut Rng| u32::try_from(random.next() >> 32).unwrap_or(0);
    let edge = [0, 1, 13, 14, 4095, 4096, 0xffff, 0x7fff_ffff, u32::MAX];
    let pick = |random: &mut Rng| match random.below(3) {
        0 => edge[usize::try_from(random.below(9)).unwrap_or(0)],
        1 => word(random) % 64,
        _ => word(random),
    };
    match random.below(20) {
        0 => {
            let which = random.below(4) * 4;
            let near = queue.header(ring, which).wrapping_add(word(random) % 3);
            let far = random.below(16) == 0;
            let to = if far { pick(random) } else { near };
            queue.set_header(ring, which, to);
        }
        1..=5 => {
            let gref = word(random) % GRANTS;
            let flags = [1, 5, 5, 0, 2, 1 | 1 << 12, 1 | 9 << 12]
                [usize::try_from(random.below(7)).unwrap_or(0)];
            let region = u16::try_from(random.below(3)).unwrap_or(0);
            queue.grant(gref, flags, region, word(random) % 34);
        }
        6..=12 => {
            let at = word(random);
            queue.words(ring, at, &[pick(random), pick(random)]);
        }
        _ => {
            let at = u64::from(word(random)) % (REGION - 8);
            data[usize::try_from(random.below(2)).unwrap_or(0)]
                .put(at, &random.next().to_le_bytes());
        }
    }
}

#[test]
fn a_front_that_writes_anything_at_any_time_is_let_go_of_and_leaves_nothing_behind() {
    let bystander = Bystander::new();
    let mut victim = Victim::new("fire-front", "sink:", "back", &[]);
    let before = victim.idle();
    fire::until_noticed(45, 9, |seed| {
        let mode = MODES[usize::try_from(seed % 3).unwrap_or(0)];
        let mut front = Front::attach(&victim.socket, mode);
        let queue = Queue(front.queue.0.again());
        let [tx, rx] = [&front.tx, &front.rx].map(Memory::again);
        let (socket, mut len) = (front.socket.again(), 14);
        let scribble = |random: &mut Rng| scribble(&queue, [&tx, &rx], random);
        fire::attack(seed, &socket, scribble, || {
            front.work(len);
            len = len % 4000 + 13;
        })
    });
    victim.takes_from("gen:count=3000", "front", &[]);
    victim.holds_again(&before);
    let verdict = &victim.end()["ends"][0]["verdict"];
    // Frames of liars may be anything, but the honest ones are all there.
    assert_eq!(verdict["good"], 3000, "{verdict:#}");
    bystander.saw_nothing();
}

/// A packet of TCP that asks for what a kernel must look at twice: offloads that its headers bear out, or nearly.
fn large(front: &mut Front, random: &mut Rng) -> bool {
    let some = |random: &mut Rng, of: &[u8]| {
        of[usize::try_from(random.below(of.len() as u64)).unwrap_or(0)]
    };
    let mut frame = vec![2; 12];
    frame.extend([8, 0, some(random, &[0x45, 0x45, 0x45, 0x46, 0x4f, 0x65]), 0]);
    frame.extend([
        some(random, &[0x0f, 0x0f, 0xff]),
        0x80,
        0,
        0,
        some(random, &[0x40, 0, 0x20]),
        0,
        64,
    ]);
    frame.extend([
        some(random, &[6, 6, 17]),
        0,
        0,
        198,
        51,
        100,
        1,
        198,
        51,
        100,
        2,
    ]);
    frame.extend([
        0,
        80,
        0,
        80,
        0,
        0,
        0,
        1,
        0,
        0,
        0,
        1,
        some(random, &[0x50, 0x50, 0x80, 0xf0]),
        0x10,
        0,
        9,
        0,
        0,
        0,
        0,
    ]);
    front.tx.put(0, &frame);
    let size = [1448, 1, 0xffff][usize::try_from(random.below(3)).unwrap_or(0)];
    let gso = some(random, &[1, 1, 2, 0]);
    front.large(0x0f8e, 3 | EXTRA, [1 | size << 16, gso.into()])
}

#[test]
fn a_kernels_interface_survives_a_front_that_writes_anything() {
    let machines = match Machines::new("fire-tap", 0) {
        Ok(machines) => machines,
        Err(why) => return eprintln!("SKIPPED fire-tap: {why}"),
    };
    machines.ip(Side::Client, &["tuntap", "add", "tap0", "mode", "tap"]);
    machines.ip(
        Side::Client,
        &["addr", "add", "198.51.100.2/24", "dev", "tap0"],
    );
    machines.ip(Side::Client, &["link", "set", "tap0", "up"]);
    let socket = machines.dir().join("s");
    let mut command = machines.command(Side::Client, memlane_system::blocks::memlane());
    command.args([
        "net",
        "link",
        "tap:tap0",
        &format!("back:{}", socket.display()),
        "--json",
    ]);
    let mut victim = Victim::of(memlane_system::harness::Running::start(command), socket);
    // How many of them hit depends on who has a CPU when.
    fire::until_noticed(12, 0, |seed| {
        let mut front = Front::attach(
            &victim.socket,
            MODES[usize::try_from(seed % 3).unwrap_or(0)],
        );
        let mut random = Rng(seed);
        // First only what headers say, then anything.
        let (mut sent, end) = (0, Instant::now() + LIMIT);
        while sent < 200 {
            assert!(Instant::now() < end, "{}", victim.running.stderr());
            sent += u32::from(large(&mut front, &mut random));
        }
        assert!(
            matches!(front.socket.hear(Duration::ZERO), Heard::Nothing),
            "{}",
            victim.running.stderr()
        );
        let queue = Queue(front.queue.0.again());
        let [tx, rx] = [&front.tx, &front.rx].map(Memory::again);
        let socket = front.socket.again();
        let scribble = |random: &mut Rng| scribble(&queue, [&tx, &rx], random);
        fire::attack(seed, &socket, scribble, || {
            large(&mut front, &mut random);
        })
    });
    victim.says(LINK_OVER);
    let said = victim.honest("gen:count=100,rate=1000", "front", &[]);
    assert!(said.is_ok(), "{}", said.report());
    let said = victim.end();
    assert!(said["ends"][0]["sent"].as_u64() > Some(100), "{said:#}");
}

#[test]
fn a_back_that_writes_anything_at_any_time_is_let_go_of_and_leaves_nothing_behind() {
    let bystander = Bystander::new();
    let mut victim = Victim::new("fire-back", "gen:size=64-9000", "front", &["--ring", "32"]);
    let before = victim.idle();
    let door = Socket::listen(&victim.socket);
    fire::until_noticed(30, 6, |seed| {
        let mut back = Back::accept(&door);
        let queue = Queue(back.queue.0.again());
        let [rx, again] = [&back.rx, &back.rx].map(Memory::again);
        let socket = back.socket.again();
        let scribble = |random: &mut Rng| scribble(&queue, [&rx, &again], random);
        let mut len = 14;
        fire::attack(seed, &socket, scribble, || {
            back.work(len);
            len = len % 4000 + 13;
        })
    });
    drop(door);
    victim.holds_again(&before);
    victim.end();
    bystander.saw_nothing();
}

#[test]
fn doorbells_without_end_and_a_peer_that_does_nothing_cost_nobody_else_anything() {
    let bystander = Bystander::new();
    let victim = Victim::new("storm", "gen:size=1500", "back", &[]);
    let mut front = Front::attach(&victim.socket, 0);
    let doorbell = front.doorbell.try_clone().expect("a number");
    // A doorbell that is always rung, and one that is never heard: ours is full soon.
    let over = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let _ = (&doorbell).write(&[1; 4096]);
            }
        });
        let end = Instant::now() + Duration::from_secs(1);
        let mut frames = 0;
        while Instant::now() < end {
            frames += u32::from(front.work(64));
            front.queue.set_header(
                Ring::Rx,
                RSP_EVENT,
                front.queue.header(Ring::Rx, RSP_PROD).wrapping_add(1),
            );
        }
        over.store(true, Ordering::Relaxed);
        assert!(frames > 10, "frames are taken in the storm: {frames}");
    });
    // From now on it does nothing: frames wait in the generator, and nothing grows.
    let wait = Duration::from_millis(700);
    std::thread::sleep(Duration::from_millis(100));
    let (memory, ticks) = (victim.memory(), victim.ticks());
    std::thread::sleep(wait);
    let grown = victim.memory().saturating_sub(memory);
    assert!(grown < 1 << 20, "{grown} bytes while nobody took anything");
    let used = victim.ticks() - ticks;
    assert!(
        used < 20,
        "{used} ticks while there was nothing to do: it sleeps"
    );
    victim.end();
    bystander.saw_nothing();
}
