//! The kernel takes merged segments: what is sent to a TAP device in segments comes into the machine as large frames, which a
//! packet socket sees. For root; skipped otherwise.

mod frames;

use frames::Recipe;
use memlane_packet::Meta;
use memlane_packet_ends::kernel::Interface;
use memlane_packet_ends::segment::Cut;
use memlane_packet_ends::{End, More, Sent, afpacket, lend, tap};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::process::Command;
use std::time::{Duration, Instant};

/// A network of this thread's own, with a TAP device and a packet socket on it. `None`: not here.
fn network() -> Option<(Interface, Interface)> {
    let skipped = |why: &str| eprintln!("SKIPPED merge_kernel: {why}");
    // SAFETY: only the namespaces of this thread, which a test has to itself.
    if let Err(errno) = unsafe { unshare_unsafe(UnshareFlags::NEWNET) } {
        skipped(&format!("no network namespace: {errno}"));
        return None;
    }
    let Ok(mut taps) = tap::open_queues("merge0", 1) else {
        skipped("no TAP device");
        return None;
    };
    let up = Command::new("ip")
        .args(["link", "set", "merge0", "up"])
        .status();
    if !up.is_ok_and(|status| status.success()) {
        skipped("no ip");
        return None;
    }
    let socket = afpacket::open("merge0").expect("a packet socket");
    Some((taps.remove(0), socket))
}

/// The next frame that came into the machine by the device and begins like `frame`.
fn next(socket: &mut Interface, frame: &[u8]) -> (Vec<u8>, Meta) {
    let began = Instant::now();
    let mut found = None;
    while found.is_none() && began.elapsed() < Duration::from_secs(5) {
        let came = socket.receive(1, &mut |one| {
            let mut bytes = vec![0; one.len()];
            one.copy_out(0, &mut bytes);
            // Not the kernel's own, such as router solicitations.
            if bytes[..14] == frame[..14] {
                found = Some((bytes, one.meta()));
            }
            More::No
        });
        came.expect("a device that is there");
    }
    found.expect("a frame within five seconds")
}

#[test]
fn the_kernel_takes_segments_that_were_merged() {
    let Some((mut tap, mut socket)) = network() else {
        return;
    };
    for (ipv6, payload) in [(false, 60_000), (true, 60_000), (false, 3000), (true, 1449)] {
        let recipe = Recipe {
            ipv6,
            payload,
            ..Recipe::default()
        };
        let whole = recipe.bytes();
        let gso = recipe.gso(1448).gso.expect("it is large");
        let mut cut = Cut::new(&whole, gso).expect("TCP");
        let mut all = Vec::new();
        while let Some(one) = cut.segment(&whole) {
            let bytes = [one.headers, one.payload].concat();
            lend(&bytes, Meta::default(), &mut |frame| {
                assert_eq!(tap.send(frame), Ok(Sent::Queued));
                More::Yes
            });
            all.push(bytes);
            cut.advance();
        }
        assert_eq!(tap.flush(), Ok(()));
        let (bytes, meta) = next(&mut socket, &whole);
        assert_eq!(meta.gso, Some(gso), "ipv6 {ipv6}, {payload} bytes");
        let mut cut = Cut::new(&bytes, gso).expect("TCP");
        for segment in &all {
            let again = cut.segment(&bytes).expect("as many as were sent");
            assert!([again.headers, again.payload].concat() == *segment);
            cut.advance();
        }
        assert!(!cut.is_left());
    }
    assert_eq!(tap.counts().failed, 0);
}
