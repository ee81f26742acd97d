//! Interfaces of the kernel: several queues share what comes by flows, and an interface that goes says so (TAP devices,
//! too). For root; skipped otherwise.

mod frames;

use frames::Recipe;
use memlane_packet::Meta;
use memlane_packet_ends::generate::Sink;
use memlane_packet_ends::join::{Join, Over, Side, Terms};
use memlane_packet_ends::{End, EndError, More, Sent, afpacket, kernel::Interface, lend, tap};
use memlane_sys::Errno;
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

fn ip(args: &str) -> bool {
    let status = Command::new("ip").args(args.split(' ')).status();
    status.is_ok_and(|status| status.success())
}

/// A network of this thread's own, with a cable from `one` to `two`; `false`: not here.
fn cable() -> bool {
    // SAFETY: only the namespaces of this thread, which a test has to itself.
    if let Err(errno) = unsafe { unshare_unsafe(UnshareFlags::NEWNET) } {
        eprintln!("SKIPPED afpacket: no network namespace: {errno}");
        return false;
    }
    let there = ip("link add one type veth peer name two");
    if !there || !ip("link set one up") || !ip("link set two up") {
        eprintln!("SKIPPED afpacket: no veth devices");
        return false;
    }
    true
}

fn send(into: &mut Interface, frame: &[u8]) {
    lend(frame, Meta::default(), &mut |frame| {
        assert_eq!(into.send(frame), Ok(Sent::Queued));
        More::Yes
    });
}

/// Those of our frames that have come so far: the ports that they are between, and a number.
fn taken(from: &mut Interface) -> Vec<([u8; 4], u32)> {
    let mut found = Vec::new();
    let came = from.receive(10_000, &mut |frame| {
        let mut head = [0; 42];
        frame.copy_out(0, &mut head);
        if head[..2] == [2, 0] && head[12..14] == [8, 0] {
            let number = u32::from_be_bytes([head[38], head[39], head[40], head[41]]);
            found.push((head[34..38].try_into().expect("four"), number));
        }
        More::Yes
    });
    came.expect("an interface that is there");
    found
}

fn until<T>(mut ready: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = ready() {
            return found;
        }
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "it takes too long"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn each_flow_has_its_queue_both_ways_and_no_frame_comes_twice() {
    const FLOWS: u16 = 60;
    const EACH: u32 = 10;
    if !cable() {
        return;
    }
    let mut far = afpacket::open("one").expect("a packet socket");
    let mut queues = afpacket::open_queues("two", 3).expect("packet sockets");
    let names: Vec<_> = queues.iter().map(|queue| queue.name().to_owned()).collect();
    assert_eq!(
        names,
        ["afpacket:two/0", "afpacket:two/1", "afpacket:two/2"]
    );
    let mut came = vec![Vec::new(); 3];
    for flow in 0..FLOWS {
        for n in 0..EACH {
            let there = Recipe {
                ports: [10_000 + flow, 5201],
                sequence: u32::from(flow) << 16 | n,
                ..Recipe::default()
            };
            let back = Recipe {
                ports: [5201, 10_000 + flow],
                hosts: [2, 1],
                ..there.clone()
            };
            send(&mut far, &there.bytes());
            send(&mut far, &back.bytes());
        }
        // The kernel drops what is more than its backlog (net.core.netdev_max_backlog), where it has no time for it.
        let so_far = usize::from(flow + 1) * EACH as usize * 2;
        until(|| {
            for (queue, came) in queues.iter_mut().zip(&mut came) {
                came.extend(taken(queue));
            }
            (came.iter().map(Vec::len).sum::<usize>() >= so_far).then_some(())
        });
    }
    let expected = usize::from(FLOWS) * EACH as usize * 2;
    let mut owners = BTreeMap::new();
    let mut times = BTreeMap::new();
    for (queue, came) in came.iter().enumerate() {
        assert!(!came.is_empty(), "queue {queue} has none");
        for (ports, number) in came {
            // The port that is not 5201: of both directions.
            let flow = number >> 16;
            assert_eq!(*owners.entry(flow).or_insert(queue), queue, "flow {flow}");
            *times.entry((ports, number)).or_insert(0) += 1;
        }
    }
    assert_eq!(times.len(), expected);
    assert!(times.values().all(|n| *n == 1));
    // What one queue sends goes out, and comes to none of the others; so does what others of this machine send.
    for queue in &mut queues {
        send(queue, &Recipe::default().bytes());
    }
    let mut other = afpacket::open("two").expect("a packet socket");
    send(&mut other, &Recipe::default().bytes());
    let mut out = 0;
    until(|| {
        out += taken(&mut far).len();
        (out >= 4).then_some(())
    });
    assert_eq!(
        queues
            .iter_mut()
            .map(|queue| taken(queue).len())
            .sum::<usize>(),
        0
    );
}

#[test]
fn an_interface_that_was_down_goes_on_and_one_that_is_removed_ends_with_a_reason() {
    if !cable() {
        return;
    }
    let mut far = afpacket::open("one").expect("a packet socket");
    let mut near = afpacket::open("two").expect("a packet socket");
    assert_eq!(near.due(), None);
    assert!(ip("link set two down"));
    assert_eq!(taken(&mut near), []);
    assert!(near.due().is_some(), "it is looked at again");
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(near.woken(), Ok(()), "down is not gone");
    assert!(ip("link set two up"));
    until(|| {
        // Lost, until the cable is up.
        send(&mut far, &Recipe::default().bytes());
        (!taken(&mut near).is_empty()).then_some(())
    });
    assert_eq!(near.due(), None);
    let mut join = Join::new(Box::new(near), Box::new(Sink::new()), Terms::default())
        .expect("ends that are there");
    let joined = std::thread::spawn(move || join.run(&[]));
    // Asleep, and with nobody who sends.
    std::thread::sleep(Duration::from_millis(100));
    assert!(ip("link del two"));
    until(|| joined.is_finished().then_some(()));
    let gone = EndError::Device(Errno(19));
    assert_eq!(joined.join().expect("no panic"), Over::Ended(Side::A, gone));
}

#[test]
fn who_sends_by_an_interface_that_is_removed_is_told() {
    if !cable() {
        return;
    }
    let mut near = afpacket::open_queues("two", 2)
        .expect("packet sockets")
        .remove(0);
    assert!(ip("link del two"));
    let mut sent = Ok(Sent::Queued);
    // The first word is that it is down; it may already be that it is gone.
    for _ in 0..2 {
        lend(&Recipe::default().bytes(), Meta::default(), &mut |frame| {
            sent = near.send(frame);
            More::Yes
        });
    }
    assert_eq!(sent, Err(EndError::Device(Errno(19))));
}

#[test]
fn an_interface_that_is_removed_while_it_is_down_ends_too() {
    if !cable() {
        return;
    }
    let mut near = afpacket::open("two").expect("a packet socket");
    assert!(ip("link set two down"));
    assert_eq!(taken(&mut near), []);
    // Says nothing to the socket. On a slow machine it may be time for the next look already.
    assert!(ip("link del two"));
    let gone = until(|| {
        if let Err(gone) = near.receive(1, &mut |_| More::Yes) {
            return Some(gone);
        }
        let due = near.due().expect("it is looked at again");
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        near.woken().err()
    });
    assert_eq!(gone, EndError::Device(Errno(19)));
}

#[test]
fn a_tap_that_is_removed_is_gone_in_both_directions() {
    if !cable() {
        return;
    }
    let open = || tap::open_queues("three", 1).map(|mut queues| queues.remove(0));
    let mut near = match open() {
        Ok(near) => near,
        Err(why) => return eprintln!("SKIPPED tap: {why}"),
    };
    assert!(ip("link set three up"));
    taken(&mut near);
    assert!(ip("link del three"));
    let gone = Err(EndError::Device(Errno(19)));
    assert_eq!(near.receive(1, &mut |_| More::Yes).map(drop), gone);
    lend(&Recipe::default().bytes(), Meta::default(), &mut |frame| {
        assert_eq!(near.send(frame).map(drop), gone);
        More::Yes
    });
}
