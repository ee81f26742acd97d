//! The path `zcrx`: against a kernel that is played here (pages, completions, a refill ring that it reads when it likes),
//! and as far as this machine's own goes, which is its refusal.

use memlane_devmem::engine::zcrx::{Area, Completion};
use memlane_devmem::error::{Fault, ReceiveError, ZcrxError};
use memlane_devmem::io::kernel::Interface;
use memlane_devmem::io::zcrx::{From, Link, RefillRing, Ring, lacks, stream_by};
use memlane_devmem::io::{Binding, Path, Stream, Terms, Wait};
use memlane_devmem::{DeviceRegion, Fragment, Range};
use memlane_sys::Errno;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(30);
const PAGE: u64 = 4096;
const TOKEN: u64 = 5 << 48;
/// `ENOSPC`, `ENOMEM`.
const FULL: i32 = 28;
const STARVED: i32 = 12;

fn byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

fn bound(pages: u64) -> Arc<Binding> {
    let spec = format!("memfd:{}", pages * PAGE).parse().unwrap();
    Binding::beside(DeviceRegion::create(&spec).unwrap(), 4096, 0).unwrap()
}

/// The kernel's side.
#[derive(Debug)]
struct World {
    binding: Arc<Binding>,
    refill: Arc<RefillRing>,
    /// Pages that nobody has; references to each.
    free: Vec<u64>,
    users: Vec<u32>,
    /// What the socket has; how much of it was handed out.
    inbox: u64,
    handed: u64,
    closed: bool,
    armed: Option<u64>,
    done: VecDeque<Completion>,
    /// Places in the completions' ring.
    room: usize,
    /// What the next request is refused with.
    refuses: Option<i32>,
    /// Returns that named nothing that was out.
    strange: u32,
}

impl World {
    fn new(binding: &Arc<Binding>, refill: &Arc<RefillRing>, room: usize) -> World {
        let pages = binding.region().len() as u64 / PAGE;
        World {
            binding: Arc::clone(binding),
            refill: Arc::clone(refill),
            free: (0..pages).collect(),
            users: vec![0; usize::try_from(pages).unwrap()],
            inbox: 0,
            handed: 0,
            closed: false,
            armed: None,
            done: VecDeque::new(),
            room,
            refuses: None,
            strange: 0,
        }
    }

    fn read_refill(&mut self) {
        while let Some(entry) = self.refill.read() {
            let page = (entry.offset & ((1 << 48) - 1)) / PAGE;
            let place = usize::try_from(page).unwrap_or(usize::MAX);
            let users = self.users.get_mut(place);
            match users.filter(|users| **users > 0 && entry.offset >> 48 == TOKEN >> 48) {
                None => self.strange += 1,
                Some(users) => {
                    *users -= 1;
                    if *users == 0 {
                        self.free.push(page);
                    }
                }
            }
        }
    }

    fn post(&mut self, number: u64, result: i32, more: bool, offset: u64) {
        self.done.push_back(Completion {
            number,
            result,
            more,
            offset: TOKEN | offset,
        });
        if !more {
            self.armed = None;
        }
    }

    /// Bytes of the socket become completions, as far as there is room for both; packets are of `mss` bytes.
    fn works(&mut self, mss: u64) {
        self.read_refill();
        while let Some(number) = self.armed {
            let left = self.inbox - self.handed;
            if left == 0 {
                if self.closed {
                    self.post(number, 0, false, 0);
                }
                return;
            }
            if self.done.len() + 1 >= self.room {
                // The last place is for the one that says so.
                return self.post(number, -FULL, false, 0);
            }
            let Some(page) = self.free.pop() else {
                return self.post(number, -STARVED, false, 0);
            };
            // Two packets lie in a page, if they are short: two completions, two references.
            let mut at = 0;
            while at + mss <= PAGE && self.handed < self.inbox && at < 2 * mss {
                if self.done.len() + 1 >= self.room {
                    break;
                }
                let len = mss.min(self.inbox - self.handed);
                let bytes: Vec<u8> = (self.handed..self.handed + len).map(byte).collect();
                let offset = page * PAGE + at;
                self.binding.region().write(offset, &bytes).unwrap();
                self.users[usize::try_from(page).unwrap()] += 1;
                self.handed += len;
                let len = i32::try_from(len).unwrap();
                self.post(number, len, true, offset);
                at += mss;
            }
        }
    }
}

#[derive(Debug)]
struct Played {
    world: Arc<Mutex<World>>,
    mss: u64,
    bell: Arc<OwnedFd>,
}

impl Ring for Played {
    fn arm(&mut self, number: u64) -> Result<(), Errno> {
        let mut world = self.world.lock().unwrap();
        assert!(world.armed.is_none(), "armed twice");
        if let Some(errno) = world.refuses {
            return Err(Errno(errno));
        }
        world.armed = Some(number);
        world.works(self.mss);
        Ok(())
    }

    fn reap(&mut self, most: usize, into: &mut Vec<Completion>) -> Result<(), Errno> {
        let mut world = self.world.lock().unwrap();
        world.works(self.mss);
        let most = most.min(world.done.len());
        into.extend(world.done.drain(..most));
        Ok(())
    }

    fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (there, listener.accept().unwrap().0)
}

struct Scene {
    binding: Arc<Binding>,
    world: Arc<Mutex<World>>,
    stream: Stream,
    /// Whoever writes here rings the bell.
    peer: TcpStream,
}

fn scene(pages: u64, entries: u32, room: usize, mss: u64, fragments: u32) -> Scene {
    let binding = bound(pages);
    let refill = Arc::new(RefillRing::own(entries).unwrap());
    let world = Arc::new(Mutex::new(World::new(&binding, &refill, room)));
    let (peer, here) = pair();
    let socket = Arc::new(OwnedFd::from(here));
    let ring = Box::new(Played {
        world: Arc::clone(&world),
        mss,
        bell: Arc::clone(&socket),
    });
    let area = Area {
        bytes: pages * PAGE,
        token: TOKEN,
    };
    let terms = Terms {
        fragments,
        ..Terms::default()
    };
    let stream = stream_by(ring, refill, area, socket, &binding, &terms);
    assert_eq!(stream.path(), Path::Zcrx);
    Scene {
        binding,
        world,
        stream,
        peer,
    }
}

impl Scene {
    fn comes(&self, bytes: u64) {
        self.world.lock().unwrap().inbox += bytes;
    }

    fn all_pages_are_back(&self) {
        let mut world = self.world.lock().unwrap();
        world.read_refill();
        assert_eq!(world.free.len(), world.users.len(), "pages were lost");
        assert_eq!(world.strange, 0, "returns that were nobody's");
    }
}

fn check(stream: &Stream, fragments: &[Fragment], mut at: u64) -> u64 {
    for fragment in fragments {
        let mut seen = vec![0; fragment.len as usize];
        stream.read(fragment.token, 0, &mut seen).unwrap();
        let right = seen.iter().zip(at..).all(|(seen, at)| *seen == byte(at));
        assert!(right, "other bytes at {at}");
        at += u64::from(fragment.len);
    }
    at
}

#[test]
fn what_comes_is_named_and_goes_back_once() {
    let mut scene = scene(4, 8, 64, 1000, 64);
    scene.comes(5500);
    let mut fragments = Vec::new();
    assert_eq!(scene.stream.receive(&mut fragments), Ok(5500));
    assert_eq!(check(&scene.stream, &fragments, 0), 5500);
    let counts = scene.stream.counts();
    assert_eq!((counts.received, counts.bounced, counts.out), (5500, 0, 6));
    assert_eq!(
        scene.stream.receive(&mut fragments),
        Err(ReceiveError::WouldBlock)
    );
    let all = Range {
        start: 0,
        count: 1000,
    };
    assert_eq!(scene.stream.release(&[all, all]), Ok(6));
    assert_eq!(scene.stream.release(&[all]), Ok(0), "not again");
    scene.all_pages_are_back();
    scene.world.lock().unwrap().closed = true;
    assert_eq!(scene.stream.receive(&mut fragments), Ok(0));
    assert_eq!(scene.stream.receive(&mut fragments), Ok(0), "and again");
}

/// The request ends when the completions' ring is full; whoever waits then must be woken by what comes later.
#[test]
fn a_request_that_ended_is_armed_before_anybody_waits() {
    let mut scene = scene(64, 32, 4, 1000, 64);
    scene.comes(30_000);
    let (mut fragments, mut total) = (Vec::new(), 0);
    while total < 30_000 {
        total += scene.stream.receive(&mut fragments).unwrap();
        let world = scene.world.lock().unwrap();
        let woken = world.armed.is_some() || !world.done.is_empty();
        assert!(woken, "nobody would be woken at {total}");
    }
    assert_eq!(check(&scene.stream, &fragments, 0), 30_000);
}

#[test]
fn a_receiver_that_gives_nothing_back_is_told_so_and_loses_nothing() {
    let mut scene = scene(4, 8, 64, 1000, 64);
    scene.comes(20_000);
    let mut held = Vec::new();
    let why = loop {
        match scene.stream.receive(&mut held) {
            Ok(_) => {}
            Err(why) => break why,
        }
    };
    assert_eq!(why, ReceiveError::NoRoom);
    let total = check(&scene.stream, &held, 0);
    assert_eq!(total, 8000, "two packets in each of four pages");
    assert_eq!(scene.stream.wait(Wait::Room, Duration::ZERO), Ok(false));
    scene.stream.release_all(&held);
    assert_eq!(scene.stream.wait(Wait::Room, LIMIT), Ok(true));
    held.clear();
    assert!(scene.stream.receive(&mut held).unwrap() > 0);
    check(&scene.stream, &held, total);
}

#[test]
fn a_stream_that_ends_and_owners_that_stay_give_every_page_back() {
    let mut scene = scene(8, 2, 64, 4000, 64);
    scene.comes(30_000);
    let mut fragments = Vec::new();
    assert_eq!(scene.stream.receive(&mut fragments), Ok(30_000));
    let mine = scene.stream.own(fragments[3]).unwrap();
    let Scene {
        binding,
        world,
        stream,
        peer: _peer,
    } = scene;
    drop(stream);
    let mut seen = [0; 100];
    let at = mine.fragment().offset;
    binding.region().read(at, &mut seen).unwrap();
    assert!(
        seen.iter()
            .zip(12_000..)
            .all(|(seen, at)| *seen == byte(at))
    );
    std::thread::spawn(move || drop(mine)).join().unwrap();
    // A ring of two: who plays the kernel reads it now and then, and what waited follows with the next return only.
    let mut world = world.lock().unwrap();
    world.read_refill();
    assert_eq!(world.strange, 0);
}

#[test]
fn completions_that_make_no_sense_end_the_stream() {
    for (result, offset) in [
        (100, 4 * PAGE - 99),
        (1, u64::from(u32::MAX)),
        (100, 1 << 47),
    ] {
        let mut scene = scene(4, 8, 64, 1000, 64);
        let mut fragments = Vec::new();
        let _ = scene.stream.receive(&mut fragments);
        {
            let mut world = scene.world.lock().unwrap();
            let number = world.armed.unwrap();
            world.post(number, result, true, offset);
            world.post(number, 7, true, 0);
        }
        let broken = scene.stream.receive(&mut fragments).unwrap_err();
        assert!(
            matches!(broken, ReceiveError::Interface(Fault::Outside(_))),
            "{broken}"
        );
        assert_eq!(
            scene.stream.receive(&mut fragments),
            Err(broken),
            "for good"
        );
        assert_eq!(fragments, []);
    }
}

#[test]
fn whoever_waits_for_payload_is_woken_by_the_ring() {
    let mut scene = scene(4, 8, 64, 1000, 64);
    let mut fragments = Vec::new();
    let nothing = scene.stream.receive(&mut fragments);
    assert_eq!(nothing, Err(ReceiveError::WouldBlock));
    let now = scene.stream.wait(Wait::Payload, Duration::ZERO);
    assert_eq!(now, Ok(false));
    scene.comes(700);
    (&scene.peer).write_all(b"ring").unwrap();
    assert_eq!(scene.stream.wait(Wait::Payload, LIMIT), Ok(true));
    assert_eq!(scene.stream.receive(&mut fragments), Ok(700));
}

#[test]
fn an_error_of_the_socket_is_told_behind_the_last_byte() {
    let mut scene = scene(4, 8, 64, 1000, 64);
    let mut fragments = Vec::new();
    let _ = scene.stream.receive(&mut fragments);
    scene.comes(1500);
    {
        let mut world = scene.world.lock().unwrap();
        let number = world.armed.unwrap();
        world.works(1000);
        world.post(number, -104, false, 0);
    }
    assert_eq!(scene.stream.receive(&mut fragments), Ok(1500));
    let reset = Err(ReceiveError::Kernel(Errno(104)));
    assert_eq!(scene.stream.receive(&mut fragments), reset);
}

#[test]
fn a_request_that_is_refused_is_told_behind_the_last_byte_and_tried_again() {
    let mut scene = scene(16, 32, 4, 1000, 64);
    let mut fragments = Vec::new();
    let _ = scene.stream.receive(&mut fragments);
    scene.comes(9000);
    // Another thread than the ring's: EEXIST.
    scene.world.lock().unwrap().refuses = Some(17);
    let came = scene.stream.receive(&mut fragments).unwrap();
    assert!(came > 0);
    let wrong = scene.stream.receive(&mut fragments).unwrap_err();
    assert_eq!(wrong, ReceiveError::Interface(Fault::Thread));
    assert!(wrong.to_string().contains("thread"), "{wrong}");
    scene.world.lock().unwrap().refuses = None;
    while check(&scene.stream, &fragments, 0) < 9000 {
        scene.stream.receive(&mut fragments).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever comes, is held and goes back when: each byte once, in order, and every page is back in the end.
    #[test]
    fn no_byte_and_no_page_is_lost_or_doubled(
        steps in proptest::collection::vec((0_u64..9000, 0_usize..12, any::<bool>()), 1..40),
        pages in 2_u64..12,
        entries in 0_u32..5,
        room in 3_usize..20,
        mss in 1_u64..4097,
        fragments in 2_u32..40,
    ) {
        let mut scene = scene(pages, 1 << entries, room, mss.max(64), fragments);
        let mut held: Vec<Fragment> = Vec::new();
        let (mut sent, mut total) = (0, 0);
        let mut came = Vec::new();
        for (bytes, released, first) in steps {
            scene.comes(bytes);
            sent += bytes;
            came.clear();
            match scene.stream.receive(&mut came) {
                Ok(_) => total = check(&scene.stream, &came, total),
                Err(ReceiveError::WouldBlock | ReceiveError::NoRoom) => {}
                Err(other) => panic!("{other}"),
            }
            held.append(&mut came);
            for _ in 0..released.min(held.len()) {
                let one = if first { held.remove(0) } else { held.pop().unwrap() };
                prop_assert_eq!(scene.stream.release(&[one.into(), one.into()]), Ok(1));
            }
        }
        scene.world.lock().unwrap().closed = true;
        let mut stuck = 0;
        loop {
            came.clear();
            match scene.stream.receive(&mut came) {
                Ok(0) => break,
                Ok(_) => {
                    total = check(&scene.stream, &came, total);
                    stuck = 0;
                }
                Err(ReceiveError::WouldBlock | ReceiveError::NoRoom) => stuck += 1,
                Err(other) => panic!("{other}"),
            }
            prop_assert!(stuck < 1000, "nothing comes any more");
            held.append(&mut came);
            scene.stream.release_all(&held);
            held.clear();
        }
        prop_assert_eq!(total, sent);
        scene.stream.release_all(&held);
        prop_assert_eq!(scene.stream.counts().out, 0);
        // What waited for room in the refill ring goes with each look.
        for _ in 0..1000 {
            scene.world.lock().unwrap().read_refill();
            let _ = scene.stream.receive(&mut came);
        }
        scene.all_pages_are_back();
    }
}

// ---- this machine's kernel --------------------------------------------------

#[test]
fn a_region_that_has_chunks_for_others_is_not_given_away() {
    let spec = "memfd:64K".parse().unwrap();
    let binding = Binding::new(DeviceRegion::create(&spec).unwrap(), 4096).unwrap();
    let refused = Link::open(&binding, From::Anywhere).unwrap_err();
    assert_eq!(refused, ZcrxError::Shared);
}

#[test]
fn each_refusal_of_the_kernel_is_a_sentence() {
    let nowhere = Interface {
        name: "nowhere".into(),
        index: 0x7fff_fffe,
    };
    let mut cases = vec![(nowhere, "namespace")];
    if let Ok(lo) = Interface::find("lo") {
        let why = lacks(&lo);
        eprintln!("lo: {why:?}");
        assert_eq!(why.len(), 1, "the loopback interface cannot: {why:?}");
        cases.push((lo, "driver"));
    }
    for (interface, says) in cases {
        for queue in [0, 77] {
            let tried = Link::open(&bound(4), From::Queue(&interface, queue));
            let why = tried.expect_err("no such interface can");
            let text = why.to_string();
            eprintln!("{}: {text}", interface.name);
            assert!(text.len() > 20, "{text}");
            match why {
                ZcrxError::NoRing(_) | ZcrxError::TooOld | ZcrxError::Permission => {
                    return eprintln!("SKIPPED: {text}");
                }
                ZcrxError::Interface(name, why) => {
                    assert_eq!(name, interface.name);
                    assert!(why.contains(says), "{why}");
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Linux 7.1 can do it without an interface: everything is copied, and all else is as with one.
#[test]
fn without_an_interface_where_the_kernel_can() {
    let binding = bound(2048);
    let link = match Link::open(&binding, From::Anywhere) {
        Ok(link) => link,
        Err(why) => {
            assert!(why.to_string().len() > 20, "{why}");
            return eprintln!("SKIPPED: {why}");
        }
    };
    let (mut there, here) = pair();
    let many = 1_000_000;
    let sender = std::thread::spawn(move || {
        let all: Vec<u8> = (0..many).map(byte).collect();
        there.write_all(&all).unwrap();
    });
    // Another thread than the one that has opened it.
    let receiver = std::thread::spawn(move || {
        let mut stream = link.stream(here.into(), &Terms::default());
        let (mut total, mut fragments) = (0, Vec::new());
        loop {
            fragments.clear();
            match stream.receive(&mut fragments) {
                Ok(0) => return total,
                Err(ReceiveError::WouldBlock) => {
                    assert_eq!(stream.wait(Wait::Payload, LIMIT), Ok(true));
                }
                came => drop(came.unwrap()),
            }
            total = check(&stream, &fragments, total);
            stream.release_all(&fragments);
        }
    });
    sender.join().unwrap();
    assert_eq!(receiver.join().unwrap(), many);
}
