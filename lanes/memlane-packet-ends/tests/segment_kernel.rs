//! The kernel's own segmentation as the oracle: a large frame that is sent by a packet socket to a TAP device without
//! offloads comes out of it in segments, and ours are the same, byte for byte. For root; skipped otherwise.

mod frames;

use frames::Recipe;
use memlane_packet::{Gso, Meta};
use memlane_packet_ends::segment::Cut;
use memlane_packet_ends::{End, More, Sent, afpacket, kernel::Interface, lend, tap};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::process::Command;
use std::time::{Duration, Instant};

/// A network of this thread's own, with a TAP device and a packet socket on it. `None`: not here.
fn network() -> Option<(Interface, Interface)> {
    let skipped = |why: &str| eprintln!("SKIPPED segment_kernel: {why}");
    // SAFETY: only the namespaces of this thread, which a test has to itself.
    if let Err(errno) = unsafe { unshare_unsafe(UnshareFlags::NEWNET) } {
        skipped(&format!("no network namespace: {errno}"));
        return None;
    }
    let Ok(mut taps) = tap::open_queues("seg0", 1) else {
        skipped("no TAP device");
        return None;
    };
    let up = Command::new("ip")
        .args(["link", "set", "seg0", "mtu", "9000", "up"])
        .status();
    if !up.is_ok_and(|status| status.success()) {
        skipped("no ip");
        return None;
    }
    let socket = afpacket::open("seg0").expect("a packet socket");
    Some((taps.remove(0), socket))
}

/// What the kernel makes of a frame: those of its segments that it has got ready.
fn by_kernel(
    (out, into): &mut (Interface, Interface),
    frame: &[u8],
    meta: Meta,
    expected: usize,
) -> Vec<Vec<u8>> {
    lend(frame, meta, &mut |frame| {
        assert_eq!(into.send(frame), Ok(Sent::Queued));
        More::Yes
    });
    let mut all = Vec::new();
    let began = Instant::now();
    while all.len() < expected && began.elapsed() < Duration::from_secs(5) {
        let came = out.receive(64, &mut |one| {
            let mut bytes = vec![0; one.len()];
            one.copy_out(0, &mut bytes);
            assert_eq!(one.meta().gso, None);
            assert!(!one.meta().csum_blank, "the kernel was to sum up");
            // Not the kernel's own, such as router solicitations.
            if bytes[..6] == frame[..6] {
                all.push(bytes);
            }
            More::Yes
        });
        came.expect("a device that is there");
    }
    all
}

fn by_us(frame: &[u8], gso: Gso) -> Vec<Vec<u8>> {
    let mut cut = Cut::new(frame, gso).expect("TCP");
    let mut all = Vec::new();
    while let Some(segment) = cut.segment(frame) {
        all.push([segment.headers, segment.payload].concat());
        cut.advance();
    }
    all
}

fn cases() -> Vec<(Recipe, u16)> {
    let mut cases = Vec::new();
    let mut state = 1_u64;
    let mut random = |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % below
    };
    for n in 0..400_u64 {
        let mut small = |below| u8::try_from(random(below)).expect("small");
        let mut recipe = Recipe {
            ipv6: n % 2 == 1,
            options: small(3),
            tcp_options: small(11),
            flags: small(256),
            ..Recipe::default()
        };
        recipe.flags &= !0x06; // neither SYN nor RST: nobody has those cut
        if n % 5 == 0 {
            recipe.tags = vec![0x8100];
        }
        let mut wide = |below| u16::try_from(random(below)).expect("16 bits");
        recipe.id = wide(65536);
        recipe.sequence = u32::from(wide(65536)) << 16 | 0xff00;
        let size = 500 + wide(2000);
        recipe.payload = usize::from(size) + 1 + usize::from(wide(60_000));
        cases.push((recipe, size));
    }
    cases
}

#[test]
fn segments_are_the_kernel_s_byte_for_byte() {
    let Some(mut network) = network() else {
        return;
    };
    let mut compared = 0;
    for (recipe, size) in cases() {
        let (frame, meta) = (recipe.bytes(), recipe.gso(size));
        let ours = by_us(&frame, meta.gso.expect("it was asked for"));
        let kernels = by_kernel(&mut network, &frame, meta, ours.len());
        assert_eq!(kernels.len(), ours.len(), "{recipe:?}");
        for (n, (kernels, ours)) in kernels.iter().zip(&ours).enumerate() {
            assert!(
                kernels == ours,
                "{size} {n}: {recipe:?}\n{kernels:02x?}\n{ours:02x?}"
            );
        }
        compared += ours.len();
    }
    assert!(compared > 4000, "{compared}");
}
