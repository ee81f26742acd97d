//! Tests of invariant 5: how often the memory lane copies a byte. One connection's ring leads back to itself; the
//! hooks' bodies send to it and read from it.

use super::looped::{Looped, looped};
use crate::hooks::calls::io;
use crate::iov::count::COPIED;
use crate::state::process;

const N: usize = 100_000;

fn bytes() -> Vec<u8> {
    (0..N).map(|i| (i * 7 + i / 251).to_le_bytes()[0]).collect()
}

/// Reads `N` bytes in pieces of odd sizes. All of them must have come by the ring.
fn receive(l: &Looped) -> Vec<u8> {
    let mut got = Vec::new();
    let mut piece = vec![0u8; 7777];
    while got.len() < N {
        let n = io::recv(
            l.fd,
            piece.as_mut_ptr().cast(),
            piece.len(),
            libc::MSG_DONTWAIT,
        );
        assert!(n > 0, "after {} bytes", got.len());
        got.extend_from_slice(&piece[..n.cast_unsigned()]);
    }
    assert_eq!(memlane_sys::sock::tcp_counts(l.fd).unwrap().written, 0);
    got
}

fn counted(body: impl FnOnce()) -> usize {
    COPIED.set(0);
    body();
    COPIED.get()
}

#[test]
fn a_byte_is_copied_once_into_the_ring_and_once_out_of_it() {
    let (l, sent) = (looped(), bytes());
    // Three times, so that a message also crosses the end of the ring.
    for _ in 0..3 {
        let copies = counted(|| {
            assert_eq!(io::send(l.fd, sent.as_ptr().cast(), N, 0), N.cast_signed());
        });
        assert_eq!(copies, N, "send");
        let copies = counted(|| assert_eq!(receive(&l), sent));
        assert_eq!(copies, N, "receive");
    }
    process::forget(l.fd);
    drop(l.conn);
}

#[test]
fn sendfile_adds_one_copy() {
    use std::io::Write as _;
    let (l, sent) = (looped(), bytes());
    let file = memlane_sys::mem::memfd(c"file", N, false).unwrap();
    let path = format!("/proc/self/fd/{}", file.raw());
    std::fs::OpenOptions::new()
        .write(true)
        .open(path)
        .unwrap()
        .write_all(&sent)
        .unwrap();
    let mut at = 0i64;
    let copies = counted(|| {
        assert_eq!(
            io::sendfile(l.fd, file.raw(), &raw mut at, N),
            N.cast_signed()
        );
        assert_eq!(receive(&l), sent);
    });
    assert_eq!((copies, at), (3 * N, i64::try_from(N).unwrap()));
    process::forget(l.fd);
    drop(l.conn);
}

/// The counters see every copy: no other code of the lane calls the copying functions.
#[test]
fn bytes_are_copied_in_the_places_that_count_them_and_nowhere_else() {
    let own = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    for file in [
        "iov.rs",
        "hooks/calls/io.rs",
        "protocol/lane/copying.rs",
        "protocol/lane/mod.rs",
        "protocol/lane/outbox.rs",
        "protocol/lane/recv.rs",
        "protocol/lane/send.rs",
    ] {
        let text = std::fs::read_to_string(own.join(file)).unwrap();
        let (text, _tests) = text.split_once("\nmod tests {").unwrap_or((&text, ""));
        let lines: Vec<&str> = text.lines().collect();
        for (i, line) in lines.iter().enumerate() {
            let copies = [
                "copy_in(",
                "copy_in_by(",
                "copy_out(",
                "access::copy(",
                "copy_nonoverlapping",
                "copy_from_slice",
                "device.write(",
            ];
            if copies.iter().any(|name| line.contains(name)) {
                let after = lines[i..lines.len().min(i + 3)].join(" ");
                assert!(
                    after.contains("copied("),
                    "{file}:{}: not counted: {line}",
                    i + 1
                );
                found.push(file);
            }
        }
    }
    assert_eq!(
        found,
        [
            "iov.rs",
            "iov.rs",
            "protocol/lane/copying.rs",
            "protocol/lane/outbox.rs",
            "protocol/lane/outbox.rs"
        ]
    );
}
