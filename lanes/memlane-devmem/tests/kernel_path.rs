//! The kernel's own path, run against a kernel that is a test: contents, tokens, limits, errors, and nothing lost after
//! any of them.

mod emulated;

use emulated::{BINDING, ENOMEM, ETOOSMALL, Emulated, PAGE, SENDS};
use memlane_devmem::error::{AccessError, Fault, ReceiveError};
use memlane_devmem::io::kernel::Link;
use memlane_devmem::io::{Binding, Path, Stream, Terms, Wait};
use memlane_devmem::{DeviceRegion, Fragment};
use memlane_sys::Errno;
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;

const DEVICE: u64 = 32 * PAGE;
const KEPT: u64 = 8 * PAGE;
const LINK: Link = Link {
    receive: Some(BINDING),
    send: Some(SENDS),
};

struct World {
    binding: Arc<Binding>,
    kernel: Arc<Emulated>,
    stream: Option<Stream>,
}

impl World {
    fn new(kept: u64, terms: Terms) -> World {
        let bytes = DEVICE + kept;
        let region = DeviceRegion::create(&format!("memfd:{bytes}").parse().unwrap()).unwrap();
        let binding = Binding::beside(region, 4096, kept).unwrap();
        let kernel = Emulated::new(&binding, DEVICE);
        let (socket, _) = std::os::unix::net::UnixStream::pair().unwrap();
        let socket = Arc::new(socket.into());
        let stream = LINK.stream_by(kernel.clone(), socket, &binding, &terms);
        World {
            binding,
            kernel,
            stream: Some(stream),
        }
    }

    fn stream(&mut self) -> &mut Stream {
        self.stream.as_mut().unwrap()
    }

    fn receive(&mut self) -> Result<Vec<Fragment>, ReceiveError> {
        let mut fragments = Vec::new();
        let bytes = self.stream().receive(&mut fragments)?;
        let sum: u64 = fragments.iter().map(|f| u64::from(f.len)).sum();
        assert_eq!(sum, bytes);
        Ok(fragments)
    }

    fn read(&mut self, fragment: Fragment) -> Vec<u8> {
        let mut bytes = vec![0; fragment.len as usize];
        self.stream().read(fragment.token, 0, &mut bytes).unwrap();
        bytes
    }

    /// Everything that was received has been given back, to whom it belongs.
    fn is_whole(&self) {
        let pool = self.binding.counts();
        assert_eq!(pool.free, pool.chunks, "chunks beside the device");
        let (out, _) = self.kernel.counts();
        assert_eq!(out, 0, "tokens of the kernel's");
        assert_eq!(self.kernel.state().strange, 0, "tokens that were not out");
    }

    fn closes(mut self) {
        drop(self.stream.take());
        self.is_whole();
        assert!(self.kernel.state().ended);
    }
}

fn byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

fn bytes(from: u64, len: u64) -> Vec<u8> {
    (from..from + len).map(byte).collect()
}

#[test]
fn payload_stays_where_the_interface_put_it_and_goes_back_by_the_kernel_s_tokens() {
    let mut world = World::new(KEPT, Terms::default());
    assert_eq!(world.stream().path(), Path::Kernel);
    assert_eq!(world.receive(), Err(ReceiveError::WouldBlock));
    assert!(world.kernel.arrives(&bytes(0, 10_000)));
    let fragments = world.receive().unwrap();
    assert_eq!(fragments.len(), 3);
    let mut at = 0;
    for fragment in &fragments {
        assert_eq!(world.read(*fragment), bytes(at, fragment.len.into()));
        at += u64::from(fragment.len);
    }
    let counts = world.stream().counts();
    assert_eq!(
        (counts.received, counts.bounced, counts.beside),
        (10_000, 0, 0)
    );
    assert_eq!(world.kernel.counts().0, 3);
    assert_eq!(world.stream().release_all(&fragments[..2]), 2);
    assert_eq!(world.stream().release_all(&fragments[..2]), 0, "once");
    assert_eq!(world.kernel.counts().0, 1);
    world.closes();
}

#[test]
fn what_comes_beside_the_device_is_copied_in_order_and_counted() {
    let mut world = World::new(KEPT, Terms::default());
    world.kernel.arrives_whole(&bytes(0, 100));
    assert!(world.kernel.arrives(&bytes(100, 50)));
    world.kernel.arrives_whole(&bytes(150, 5000));
    world.kernel.arrives_elsewhere(&bytes(5150, 7));
    let mut at = 0;
    while world.kernel.waits() {
        for fragment in world.receive().unwrap() {
            assert_eq!(world.read(fragment), bytes(at, fragment.len.into()));
            let on_device = fragment.offset < DEVICE;
            assert_eq!(on_device, at == 100, "at {at}");
            at += u64::from(fragment.len);
        }
    }
    assert_eq!(at, 5157);
    let counts = world.stream().counts();
    assert_eq!(
        (counts.received, counts.bounced, counts.beside),
        (5157, 5107, 5107)
    );
    world.closes();
}

#[test]
fn a_region_that_keeps_nothing_says_what_came_beside_the_device() {
    let mut world = World::new(0, Terms::default());
    assert!(world.kernel.arrives(&bytes(0, 50)));
    world.kernel.arrives_whole(&bytes(50, 10));
    let refused = Err(ReceiveError::Interface(Fault::Beside(10)));
    assert_eq!(world.receive(), refused);
    assert_eq!(world.receive(), refused, "there is nothing behind a gap");
    world.closes();
}

#[test]
fn another_binding_s_payload_is_an_error_of_steering_and_costs_no_token() {
    let mut world = World::new(KEPT, Terms::default());
    assert!(world.kernel.arrives(&bytes(0, 50)));
    assert!(world.kernel.arrives_by(&bytes(50, 50), 99));
    let fault = Fault::Steering {
        theirs: 99,
        ours: BINDING,
    };
    assert!(fault.to_string().contains("flow steering"));
    assert_eq!(world.receive(), Err(ReceiveError::Interface(fault)));
    assert_eq!(world.kernel.counts(), (0, 32));
    world.closes();
}

#[test]
fn bytes_beyond_the_region_are_not_believed() {
    for (at, len) in [(DEVICE - 10, 11), (DEVICE, 1), (u64::MAX - 4095, 4096)] {
        let mut world = World::new(KEPT, Terms::default());
        world.kernel.tells_of(at, len);
        let fault = ReceiveError::Interface(Fault::Outside(at));
        assert_eq!(world.receive(), Err(fault));
        world.closes();
    }
}

#[test]
fn each_refusal_of_a_receive_says_what_it_means_and_loses_nothing() {
    for (errno, says) in [
        (19, "ENODEV"),
        (14, "EFAULT"),
        (12, "ENOMEM"),
        (525, "ETOOSMALL"),
    ] {
        let mut world = World::new(KEPT, Terms::default());
        assert!(world.kernel.arrives(&bytes(0, 5000)));
        world.kernel.state().receive_fails.push_back(Errno(errno));
        let refused = world.receive().unwrap_err();
        assert_eq!(
            refused,
            ReceiveError::Interface(Fault::Refused(Errno(errno)))
        );
        assert!(refused.to_string().contains(says), "{refused}");
        assert_eq!(
            world.receive().unwrap().len(),
            2,
            "what waits is still there"
        );
        world.closes();
    }
    let mut world = World::new(KEPT, Terms::default());
    world.kernel.state().receive_fails.push_back(Errno(104));
    assert_eq!(world.receive(), Err(ReceiveError::Kernel(Errno(104))));
    world.closes();
}

#[test]
fn no_more_is_asked_for_than_there_are_tokens() {
    let terms = Terms {
        fragments: 4,
        ..Terms::default()
    };
    let mut world = World::new(KEPT, terms);
    for n in 0..8 {
        assert!(world.kernel.arrives(&bytes(n * 100, 100)));
    }
    // Two rooms are kept for what could come beside the device.
    let first = world.receive().unwrap();
    assert_eq!(first.len(), 2);
    let second = world.receive().unwrap();
    assert_eq!(second.len(), 1);
    assert_eq!(world.receive(), Err(ReceiveError::NoRoom));
    assert_eq!(world.stream().wait(Wait::Room, Duration::ZERO), Ok(false));
    assert_eq!(world.stream().release_all(&first), 2);
    let limit = Duration::from_secs(30);
    assert_eq!(world.stream().wait(Wait::Room, limit), Ok(true));
    let third = world.receive().unwrap();
    assert_eq!(world.read(third[0]), bytes(300, 100));
    assert_eq!(world.kernel.state().receive_fails.len(), 0);
    world.closes();
}

/// 2000 fragments of a byte each, and every second one goes back: as many ranges as tokens.
#[test]
fn many_tokens_go_back_in_calls_of_128_ranges_and_1024_tokens() {
    let terms = Terms {
        burst: 1,
        ..Terms::default()
    };
    let mut world = World::new(KEPT, terms);
    world.kernel.state().never_again = true;
    assert!(world.kernel.arrives(&bytes(0, 2000)));
    let mut held = Vec::new();
    while world.kernel.waits() {
        held.extend(world.receive().unwrap());
    }
    assert_eq!(held.len(), 2000);
    let mut nth = 0;
    let (odd, even) = held.into_iter().partition::<Vec<_>, _>(|_| {
        nth += 1;
        nth % 2 == 0
    });
    assert_eq!(world.stream().release_all(&odd), 1000);
    assert_eq!(world.kernel.state().most_ranges, 128);
    assert_eq!(world.kernel.counts().0, 1000);
    // The rest has owners, who all give back at once.
    let owned: Vec<_> = even
        .iter()
        .map(|f| world.stream().own(*f).unwrap())
        .collect();
    world.kernel.state().release_fails.extend([ENOMEM; 999]);
    drop(owned);
    assert_eq!(world.kernel.counts(), (0, 32));
    world.closes();
}

#[test]
fn a_stream_that_ends_with_many_fragments_out_gives_them_back_1024_at_a_time() {
    let terms = Terms {
        burst: 1,
        ..Terms::default()
    };
    let mut world = World::new(KEPT, terms);
    assert!(world.kernel.arrives(&bytes(0, 2000)));
    while world.kernel.waits() {
        world.receive().unwrap();
    }
    let kernel = Arc::clone(&world.kernel);
    world.closes();
    let state = kernel.state();
    assert_eq!((state.releases, state.most_tokens), (2, 1024));
}

#[test]
fn tokens_that_the_kernel_does_not_take_are_offered_again() {
    let mut world = World::new(KEPT, Terms::default());
    assert!(world.kernel.arrives(&bytes(0, 4 * PAGE)));
    let fragments = world.receive().unwrap();
    assert_eq!(fragments.len(), 4);
    world.kernel.state().release_fails.push_back(ENOMEM);
    assert_eq!(world.stream().release_all(&fragments[..2]), 2);
    assert_eq!(world.kernel.counts().0, 4, "it did not take them");
    assert_eq!(world.stream().release_all(&fragments[2..3]), 1);
    assert_eq!(world.kernel.counts().0, 1, "now it has all three");
    world.closes();
}

#[test]
fn a_release_that_is_done_in_part_is_tried_again() {
    let mut world = World::new(KEPT, Terms::default());
    assert!(world.kernel.arrives(&bytes(0, 6 * PAGE)));
    let fragments = world.receive().unwrap();
    world.kernel.state().stingy.extend([2, 3]);
    assert_eq!(world.stream().release_all(&fragments), 6);
    assert_eq!(world.kernel.counts(), (0, 32));
    let state = world.kernel.state();
    assert_eq!(state.releases, 3);
    drop(state);
    world.kernel.state().strange = 0;
    world.closes();
}

#[test]
fn a_fragment_with_an_owner_outlives_its_stream_and_goes_back_after_it() {
    let mut world = World::new(KEPT, Terms::default());
    assert!(world.kernel.arrives(&bytes(0, 100)));
    let fragments = world.receive().unwrap();
    let mine = world.stream().own(fragments[0]).unwrap();
    drop(world.stream.take());
    assert!(world.kernel.state().ended, "the peer sees the end");
    assert_eq!(world.kernel.counts().0, 1);
    let mut seen = vec![0; 100];
    let at = mine.fragment().offset;
    mine.binding().region().read(at, &mut seen).unwrap();
    assert_eq!(seen, bytes(0, 100));
    std::thread::spawn(move || drop(mine)).join().unwrap();
    world.is_whole();
}

#[test]
fn bytes_that_are_being_sent_keep_their_place_until_the_kernel_is_done() {
    let mut world = World::new(KEPT, Terms::default());
    assert!(world.kernel.arrives(&bytes(0, 5000)));
    world.kernel.arrives_whole(&bytes(5000, 300));
    let fragments = world.receive().unwrap();
    for fragment in &fragments {
        let sent = world.stream().send(fragment.offset, fragment.len);
        assert_eq!(sent, Ok(fragment.len));
    }
    assert_eq!(world.stream().counts().flying, 3);
    // Released, as far as the user is concerned; but nobody may write there yet.
    assert_eq!(world.stream().release_all(&fragments), 3);
    assert_eq!(world.kernel.counts().0, 2);
    assert_eq!(world.binding.counts().free, 7);
    assert_eq!(world.stream().wait(Wait::Sent, Duration::ZERO), Ok(false));
    world.kernel.transmits(0, false);
    assert_eq!(world.stream().wait(Wait::Sent, Duration::ZERO), Ok(false));
    assert_eq!(world.kernel.counts().0, 1);
    world.kernel.transmits(0, true);
    world.kernel.transmits(0, true);
    assert_eq!(world.stream().wait(Wait::Sent, Duration::ZERO), Ok(true));
    assert_eq!(world.kernel.state().wire, bytes(0, 5300));
    let counts = world.stream().counts();
    assert_eq!(
        (counts.sent, counts.sent_copied, counts.flying),
        (5300, 2, 0)
    );
    assert_eq!(world.kernel.counts(), (0, 32));
    world.closes();
}

/// `World`'s socket has lost its peer: poll(2) has something to say at once, again and again.
#[test]
fn the_end_of_sends_is_waited_for_also_when_the_connection_is_gone() {
    let mut world = World::new(KEPT, Terms::default());
    assert_eq!(world.stream().send(0, 100), Ok(100));
    let limit = Duration::from_millis(20);
    assert_eq!(world.stream().wait(Wait::Sent, limit), Ok(false));
    let kernel = Arc::clone(&world.kernel);
    let interface = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        kernel.transmits(0, false);
    });
    let limit = Duration::from_secs(30);
    assert_eq!(world.stream().wait(Wait::Sent, limit), Ok(true));
    interface.join().unwrap();
    world.closes();
}

#[test]
fn a_stream_that_is_closed_in_mid_send_is_aborted_and_gives_everything_back() {
    let mut world = World::new(KEPT, Terms::default());
    assert!(world.kernel.arrives(&bytes(0, 100)));
    let fragments = world.receive().unwrap();
    let at = fragments[0].offset;
    assert_eq!(world.stream().send(at, 100), Ok(100));
    world.stream().release_all(&fragments);
    let kernel = Arc::clone(&world.kernel);
    world.closes();
    assert!(kernel.state().aborted);
}

#[test]
fn each_refusal_of_a_send_says_what_it_means() {
    let mut world = World::new(KEPT, Terms::default());
    for (errno, says) in [
        (22, "EINVAL"),
        (19, "ENODEV"),
        (113, "EHOSTUNREACH"),
        (90, "EMSGSIZE"),
    ] {
        world.kernel.state().send_fails.push_back(Errno(errno));
        let refused = world.stream().send(0, 10).unwrap_err();
        assert_eq!(refused, AccessError::Interface(Errno(errno)));
        assert!(refused.to_string().contains(says), "{refused}");
    }
    let outside = world.stream().send(DEVICE + KEPT - 1, 2);
    assert_eq!(outside, Err(AccessError::Outside));
    // No memory to tell of it: that is for good only if nothing else is out.
    world.kernel.state().send_fails.push_back(Errno(105));
    let refused = world.stream().send(0, 10).unwrap_err();
    assert!(refused.to_string().contains("optmem_max"), "{refused}");
    assert_eq!(world.stream().send(0, 10), Ok(10));
    world.kernel.state().send_fails.push_back(Errno(105));
    let full = Err(AccessError::Device(Errno::AGAIN));
    assert_eq!(world.stream().send(0, 10), full);
    world.kernel.state().window = 4;
    assert_eq!(world.stream().send(0, 10), Ok(4));
    assert_eq!(world.stream().send(4, 6), full);
    world.kernel.transmits(0, false);
    world.kernel.transmits(0, false);
    world.closes();
}

#[derive(Clone, Debug)]
enum Step {
    /// A packet: split, whole, or to another queue.
    Arrives {
        len: u64,
        how: u8,
    },
    Receive,
    Release {
        from: usize,
        count: usize,
    },
    Own {
        nth: usize,
    },
    Forget {
        nth: usize,
    },
    Relay {
        nth: usize,
    },
    Transmits {
        nth: usize,
        copied: bool,
    },
    /// Of the next release.
    Fails,
    Stingy {
        freed: u32,
    },
    Again,
    TooSmall,
}

fn step() -> impl Strategy<Value = Step> {
    let nth = || any::<usize>();
    prop_oneof![
        6 => (1..9000_u64, 0..6_u8).prop_map(|(len, how)| Step::Arrives { len, how }),
        6 => Just(Step::Receive),
        4 => (nth(), 1..20_usize).prop_map(|(from, count)| Step::Release { from, count }),
        1 => nth().prop_map(|nth| Step::Own { nth }),
        1 => nth().prop_map(|nth| Step::Forget { nth }),
        2 => nth().prop_map(|nth| Step::Relay { nth }),
        3 => (0..4_usize, any::<bool>()).prop_map(|(nth, copied)| Step::Transmits { nth, copied }),
        1 => Just(Step::Fails),
        1 => (1..3_u32).prop_map(|freed| Step::Stingy { freed }),
        1 => Just(Step::Again),
        1 => Just(Step::TooSmall),
    ]
}

/// What the user knows: what is out, and which bytes it must have.
#[derive(Default)]
struct User {
    sent: u64,
    came: u64,
    out: Vec<(Fragment, u64)>,
    owned: Vec<(memlane_devmem::io::Owned, u64)>,
    relayed: Vec<(u64, u32)>,
}

impl User {
    fn step(&mut self, world: &mut World, step: &Step) {
        match *step {
            Step::Arrives { len, how } => self.arrives(world, len, how),
            Step::Receive => self.receive(world),
            Step::Release { from, count } => self.release(world, from, count),
            Step::Own { nth } if !self.out.is_empty() => {
                let (fragment, at) = self.out.swap_remove(nth % self.out.len());
                let owned = world.stream().own(fragment).unwrap();
                self.owned.push((owned, at));
            }
            Step::Forget { nth } if !self.owned.is_empty() => {
                self.owned.swap_remove(nth % self.owned.len());
            }
            Step::Relay { nth } if !self.out.is_empty() => {
                let (fragment, at) = self.out[nth % self.out.len()];
                let sent = world.stream().send(fragment.offset, fragment.len);
                assert_eq!(sent, Ok(fragment.len));
                self.relayed.push((at, fragment.len));
            }
            Step::Transmits { nth, copied } => self.transmits(world, nth, copied),
            Step::Fails => world.kernel.state().release_fails.push_back(ENOMEM),
            Step::Stingy { freed } => world.kernel.state().stingy.push_back(freed),
            Step::Again => world.kernel.state().receive_fails.push_back(Errno::AGAIN),
            Step::TooSmall => world.kernel.state().receive_fails.push_back(ETOOSMALL),
            _ => {}
        }
    }

    fn arrives(&mut self, world: &World, len: u64, how: u8) {
        let payload = bytes(self.sent, len);
        let came = match how {
            0 => {
                world.kernel.arrives_whole(&payload);
                true
            }
            1 => {
                world.kernel.arrives_elsewhere(&payload);
                true
            }
            _ => world.kernel.arrives(&payload),
        };
        self.sent += if came { len } else { 0 };
    }

    fn receive(&mut self, world: &mut World) {
        let fragments = world.receive().unwrap_or_default();
        for fragment in fragments {
            self.out.push((fragment, self.came));
            self.came += u64::from(fragment.len);
        }
    }

    fn release(&mut self, world: &mut World, from: usize, count: usize) {
        let from = from % (self.out.len() + 1);
        let end = self.out.len().min(from + count);
        let fragments: Vec<_> = self.out.drain(from..end).map(|(f, _)| f).collect();
        let released = world.stream().release_all(&fragments);
        assert_eq!(released as usize, fragments.len());
    }

    /// What goes out is what lay there when it was sent.
    fn transmits(&mut self, world: &World, nth: usize, copied: bool) {
        if nth < world.kernel.flying() {
            world.kernel.transmits(nth, copied);
            let (at, len) = self.relayed.remove(nth);
            let wire = std::mem::take(&mut world.kernel.state().wire);
            assert!(wire == bytes(at, len.into()), "other bytes were sent");
        }
    }

    /// What is out is as it came.
    fn check(&self, world: &mut World) {
        for (fragment, at) in &self.out {
            assert!(world.read(*fragment) == bytes(*at, fragment.len.into()));
        }
        for (owned, at) in &self.owned {
            let fragment = owned.fragment();
            let mut seen = vec![0; fragment.len as usize];
            world
                .binding
                .region()
                .read(fragment.offset, &mut seen)
                .unwrap();
            assert!(seen == bytes(*at, fragment.len.into()));
        }
        let out = world.stream().counts().out as usize;
        assert_eq!(out, self.out.len() + self.owned.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn whatever_happens_bytes_are_in_order_and_no_chunk_or_token_is_lost_or_doubled(
        steps in prop::collection::vec(step(), 1..150),
        fragments in 2..40_u32,
        burst in prop_oneof![Just(1 << 20), 1..6000_u32],
    ) {
        let mut world = World::new(KEPT, Terms { fragments, burst, require: None });
        let mut user = User::default();
        for step in &steps {
            user.step(&mut world, step);
            user.check(&mut world);
        }
        // Tokens that were freed in part are asked for again, which the kernel finds strange and passes over.
        world.kernel.state().release_fails.clear();
        world.kernel.state().stingy.clear();
        let strange = std::mem::take(&mut world.kernel.state().strange);
        let stingy = steps.iter().any(|step| matches!(step, Step::Stingy { .. }));
        prop_assert!(strange == 0 || stingy);
        drop(world.stream.take());
        drop(user.owned);
        world.is_whole();
        let waits = world.kernel.state().waiting_pages();
        prop_assert_eq!(world.kernel.counts().1 + waits, 32, "no page is lost");
    }
}
