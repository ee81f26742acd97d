//! Whoever is dropped while fragments are out: bindings, streams, sockets, in every order; and nothing is left open.

use memlane_devmem::DeviceRegion;
use memlane_devmem::io::{Binding, Stream, Terms, Wait};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

fn bound() -> Arc<Binding> {
    let region = DeviceRegion::create(&"memfd:64K".parse().unwrap()).unwrap();
    Binding::new(region, 4096).unwrap()
}

/// A stream with three chunks out, and its peer.
fn received(binding: &Arc<Binding>) -> (Stream, Vec<memlane_devmem::Fragment>, UnixStream) {
    let (mut there, here) = UnixStream::pair().unwrap();
    there.write_all(&[7; 10_000]).unwrap();
    let mut stream = Stream::new(here.into(), binding, &Terms::default());
    let mut fragments = Vec::new();
    let mut total = 0;
    while total < 10_000 {
        assert_eq!(
            stream.wait(Wait::Payload, Duration::from_secs(30)),
            Ok(true)
        );
        total += stream.receive(&mut fragments).unwrap();
    }
    (stream, fragments, there)
}

/// Descriptors of this process that are memfds of regions.
fn regions() -> usize {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let targets = fds.filter_map(|fd| std::fs::read_link(fd.path()).ok());
    targets
        .filter(|target| {
            target
                .to_string_lossy()
                .starts_with("/memfd:memlane-device")
        })
        .count()
}

/// One test, as others of this process would make regions meanwhile.
#[test]
fn a_region_lives_as_long_as_anything_of_it_is_out_and_no_longer() {
    let before = regions();
    // The user's handle goes first: the stream has its own, and bytes stay where they are.
    let binding = bound();
    let (stream, fragments, there) = received(&binding);
    drop(binding);
    assert_eq!(regions(), before + 1);
    let mut seen = [0; 10];
    stream.read(fragments[0].token, 0, &mut seen).unwrap();
    assert_eq!(seen, [7; 10]);
    // Then the stream: a fragment with an owner keeps the region, whatever else was out.
    let mine = stream.own(fragments[0]).unwrap();
    drop((stream, there));
    assert_eq!(regions(), before + 1);
    let counts = mine.binding().counts();
    assert_eq!(counts.free, counts.chunks - 1, "his chunk alone is out");
    mine.binding()
        .region()
        .read(mine.fragment().offset, &mut seen)
        .unwrap();
    assert_eq!(seen, [7; 10]);
    drop(mine);
    assert_eq!(regions(), before, "the region is still there");

    // A stream that dies with fragments out gives them back to the others, again and again.
    let binding = bound();
    for _ in 0..200 {
        let (stream, fragments, there) = received(&binding);
        let out = binding.counts();
        // One more may be open, and partly filled.
        assert!(out.free <= out.chunks - 3, "{out:?}");
        // Some are given back before, some twice, some never.
        assert_eq!(
            stream.release(&[fragments[0].into(), fragments[0].into()]),
            Ok(1)
        );
        drop(there);
        drop(stream);
        let counts = binding.counts();
        assert_eq!(counts.free, counts.chunks);
    }
    drop(binding);
    assert_eq!(regions(), before);
}
