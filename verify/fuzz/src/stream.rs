//! A stream of the tcp device's frames, cut into arbitrary pieces.

use memlane_core::access::{SharedBytes, copy};
use memlane_transport::io::frame::{FrameError, HEADER, Header, WriteTarget};
use memlane_transport::io::inflow::{Granted, Inflow, Received};
use std::ptr::NonNull;

/// Where the memory is that may be written, as its owner counts, and what opens it.
pub(crate) const BASE: u64 = 0x1000;
pub(crate) const KEY: u32 = 7;
const ROOM: usize = 4096;
const GUARD: usize = 64;
/// Most bytes of a message.
const MOST: usize = 300;

struct Memory(Vec<u8>);

impl Granted for Memory {
    fn window(&mut self, place: &WriteTarget) -> Option<SharedBytes> {
        let base = NonNull::new(self.0[GUARD..].as_mut_ptr())?;
        // SAFETY: the vector is as long as that, and nobody else touches it while a stream is taken in.
        let all = unsafe { SharedBytes::new(base, ROOM) };
        let at = usize::try_from(place.addr.checked_sub(BASE)?).ok()?;
        let granted = all.part(at, usize::try_from(place.span()).ok()?)?;
        (place.key == KEY).then_some(granted)
    }
}

type Outcome = (Vec<Received>, Option<FrameError>, Vec<u8>);

/// Takes a stream in, in pieces of at most `most` bytes.
fn take_in(mut rest: &[u8], most: usize) -> Outcome {
    let mut memory = Memory(vec![0; GUARD + ROOM + GUARD]);
    let (mut inflow, mut received) = (Inflow::new(MOST), Vec::new());
    loop {
        match inflow.next(&mut memory) {
            Ok(Some(one)) => {
                assert!(!matches!(&one, Received::Send(bytes, _) if bytes.len() > MOST));
                received.push(one);
            }
            Err(error) => return (received, Some(error), memory.0),
            Ok(None) if rest.is_empty() => return (received, None, memory.0),
            Ok(None) => {
                let mut count = 0;
                for piece in inflow.room() {
                    let now = piece.len.min(rest.len()).min(most - count);
                    // SAFETY: a part of what there is room for; `rest` is as long.
                    unsafe { copy(piece.base, rest.as_ptr(), now) };
                    (rest, count) = (&rest[now..], count + now);
                }
                assert!(count > 0, "no room for more");
                inflow.came(count);
            }
        }
    }
}

/// Frames of a peer: nothing lands outside of what was granted, and however the stream is cut, the same comes out.
pub fn tcp_stream(bytes: &[u8]) -> bool {
    let Some((cut, stream)) = bytes.split_first() else {
        return false;
    };
    if let Some(header) = stream.first_chunk::<HEADER>()
        && let Ok(read) = Header::decode(header)
    {
        assert_eq!(read.encode(), *header, "a bit that nobody looked at");
    }
    let whole = take_in(stream, usize::MAX);
    let guards = whole.2[..GUARD].iter().chain(&whole.2[GUARD + ROOM..]);
    assert!(guards.copied().all(|byte| byte == 0), "outside");
    assert!(take_in(stream, 1 + usize::from(*cut)) == whole);
    !whole.0.is_empty()
}
