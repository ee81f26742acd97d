//! Lets the kubelet call a server of tonic's.
//!
//! The kubelet dials the sockets of its registry by their path, and its gRPC then names the path, with `%2F` in it, as the
//! *authority* of each call. The HTTP/2 library below tonic takes that for a protocol error, as RFC 9113 lets it. So what comes
//! from the kubelet goes through here, and the authority becomes `localhost`, which means the same at a unix socket. Nothing else
//! is changed, and nothing is decoded that need not be (RFC 7541: HPACK).

use std::io;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::net::{UnixListener, UnixStream};
use tokio_stream::wrappers::UnixListenerStream;
use tokio_stream::{Stream, StreamExt as _};

/// What a client sends first (RFC 9113, 3.4).
const PREFACE: usize = 24;
/// A frame's header: length, type, flags, stream.
const HEADER: usize = 9;
/// The longest frame, as nobody has agreed upon longer ones.
const LONGEST: usize = 16_384;
/// The type of frames with headers, and flags by which something lies before them.
const HEADERS: u8 = 1;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// The number of `:authority` in the table of names.
const AUTHORITY: usize = 1;
/// A string: its length, without compression, and itself.
const LOCALHOST: &[u8] = b"\x09localhost";

/// Connections of a socket, with an authority that tonic takes.
pub(crate) fn incoming(listener: UnixListener) -> impl Stream<Item = io::Result<DuplexStream>> {
    UnixListenerStream::new(listener).map(|socket| socket.map(through))
}

fn through(socket: UnixStream) -> DuplexStream {
    let (near, far) = tokio::io::duplex(4 * LONGEST);
    let (mut from_kubelet, mut to_kubelet) = socket.into_split();
    let (mut from_server, mut to_server) = tokio::io::split(near);
    tokio::spawn(async move {
        let _ = forward(&mut from_kubelet, &mut to_server).await;
        let _ = to_server.shutdown().await;
    });
    tokio::spawn(async move {
        let _ = tokio::io::copy(&mut from_server, &mut to_kubelet).await;
    });
    far
}

async fn forward(
    from: &mut (impl tokio::io::AsyncRead + Unpin),
    to: &mut (impl tokio::io::AsyncWrite + Unpin),
) -> io::Result<()> {
    let mut preface = [0; PREFACE];
    from.read_exact(&mut preface).await?;
    to.write_all(&preface).await?;
    loop {
        let mut header = [0; HEADER];
        from.read_exact(&mut header).await?;
        let length =
            usize::from(header[0]) << 16 | usize::from(header[1]) << 8 | usize::from(header[2]);
        if length > LONGEST {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut frame = header.to_vec();
        frame.resize(HEADER + length, 0);
        from.read_exact(&mut frame[HEADER..]).await?;
        to.write_all(&with_authority(frame)).await?;
    }
}

/// A frame with another authority, if it has one.
fn with_authority(frame: Vec<u8>) -> Vec<u8> {
    let is_plain = frame[3] == HEADERS && frame[4] & (PADDED | PRIORITY) == 0;
    let Some((from, to)) = is_plain.then(|| authority(&frame[HEADER..])).flatten() else {
        return frame;
    };
    let mut changed = frame;
    changed.splice(HEADER + from..HEADER + to, LOCALHOST.iter().copied());
    let length = u32::try_from(changed.len() - HEADER).unwrap_or(u32::MAX);
    changed[..3].copy_from_slice(&length.to_be_bytes()[1..]);
    changed
}

/// Where the string lies that is the authority, in a block of headers. `None`: there is none, or it is in a table already.
fn authority(block: &[u8]) -> Option<(usize, usize)> {
    let mut at = 0;
    while at < block.len() {
        let (prefix, has_value) = match block[at] {
            0x80.. => (7, false),
            0x40.. => (6, true),
            0x20.. => (5, false),
            _ => (4, true),
        };
        let (index, after) = integer(block, at, prefix)?;
        at = after;
        if !has_value {
            continue;
        }
        if index == 0 {
            at = string(block, at)?;
        }
        let end = string(block, at)?;
        if index == AUTHORITY {
            return Some((at, end));
        }
        at = end;
    }
    None
}

/// Where the string ends that begins here.
fn string(block: &[u8], at: usize) -> Option<usize> {
    let (length, after) = integer(block, at, 7)?;
    let end = after.checked_add(length)?;
    (end <= block.len()).then_some(end)
}

/// An integer in the low bits of a byte, and where it ends.
fn integer(block: &[u8], at: usize, bits: u32) -> Option<(usize, usize)> {
    let most = (1_usize << bits) - 1;
    let first = usize::from(*block.get(at)?) & most;
    if first < most {
        return Some((first, at + 1));
    }
    let (mut value, mut shift, mut at) = (most, 0, at + 1);
    loop {
        let byte = usize::from(*block.get(at)?);
        value = value.checked_add((byte & 0x7f) << shift)?;
        at += 1;
        if byte < 0x80 {
            return Some((value, at));
        }
        shift += 7;
        // Longer than any frame.
        if shift > 21 {
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, block: &[u8]) -> Vec<u8> {
        let length = u32::try_from(block.len()).expect("short").to_be_bytes();
        let mut frame = length[1..].to_vec();
        frame.extend([kind, flags, 0, 0, 0, 1]);
        frame.extend(block);
        frame
    }

    /// POST, http, a path, an authority, and a header with a name of its own.
    fn block(authority: &[u8]) -> Vec<u8> {
        let mut block = vec![0x83, 0x86, 0x44, 0x02];
        block.extend(b"/a");
        block.push(0x41);
        match authority.len() {
            short @ 0..127 => block.push(u8::try_from(short).expect("short")),
            long => block.extend([127, u8::try_from(long - 127).expect("not too long")]),
        }
        block.extend(authority);
        block.extend(b"\x40\x02te\x08trailers");
        block
    }

    #[test]
    fn an_authority_becomes_localhost_and_all_else_stays() {
        for authority in [
            &b"%2Fvar%2Flib%2Fkubelet"[..],
            b"",
            &[b'x'; 126],
            &[b'x'; 127],
            &[b'x'; 200],
        ] {
            let changed = with_authority(frame(HEADERS, 4, &block(authority)));
            assert_eq!(changed, frame(HEADERS, 4, &block(b"localhost")));
        }
    }

    #[test]
    fn what_has_no_authority_or_makes_no_sense_is_handed_on_as_it_is() {
        let indexed = [0x83, 0x86, 0xc0, 0xbf];
        let cut = &block(b"%2F")[..8];
        let endless = [0x41, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
        for block in [&indexed[..], cut, &endless, &[], &[0x41], &[0x7f]] {
            let whole = frame(HEADERS, 4, block);
            assert_eq!(with_authority(whole.clone()), whole, "{block:x?}");
        }
        let data = frame(0, 0, &block(b"%2F"));
        assert_eq!(with_authority(data.clone()), data);
        let padded = frame(HEADERS, PADDED, &block(b"%2F"));
        assert_eq!(with_authority(padded.clone()), padded);
    }
}
