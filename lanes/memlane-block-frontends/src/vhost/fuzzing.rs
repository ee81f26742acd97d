//! For `verify/fuzz`: a guest's memory, as its ring and its requests are read.

use super::request::{S_OK, What, parse, transfer};
use super::worker::LONG;
use memlane_block::volume::Info;
use memlane_core::access::SharedBytes;
use memlane_virtio::chain::pieces_of;
use std::ptr::NonNull;
use virtio_queue::{Queue, QueueT as _};
use vm_memory::{Bytes as _, GuestAddress, GuestMemoryMmap};

/// Bytes of memory that such a guest has.
const MEMORY: usize = 8192;
/// Its ring: how many descriptors, and where the other two parts are.
const RING: u16 = 16;
const AVAILABLE: u64 = 0x100;
const USED: u64 = 0x140;

/// The first byte says what the volume can do, the others are the guest's memory from 0 on: 16 descriptors, at 0x100
/// what is available, at 0x140 what is used. True if a request is understood.
///
/// # Panics
/// Something that was believed is not so.
#[must_use]
pub fn requests(bytes: &[u8]) -> bool {
    let Some((kind, contents)) = bytes.split_first() else {
        return false;
    };
    let info = Info {
        size: 1 << 20,
        block: if kind & 1 == 0 { 512 } else { 4096 },
        preferred: 4096,
        max_io: 65536,
        max_trim: 1 << 16,
        read_only: kind & 2 != 0,
        cached: true,
        trim: kind & 4 == 0,
        zeroes: kind & 8 == 0,
        extents: true,
    };
    let ranges = [(GuestAddress(0), MEMORY)];
    let Ok(memory) = GuestMemoryMmap::<()>::from_ranges(&ranges) else {
        return false;
    };
    let contents = &contents[..contents.len().min(MEMORY)];
    memory
        .write_slice(contents, GuestAddress(0))
        .expect("it fits");
    let mut queue = Queue::new(RING).expect("a power of two");
    queue.set_avail_ring_address(Some(u32::try_from(AVAILABLE).unwrap_or(0)), Some(0));
    queue.set_used_ring_address(Some(u32::try_from(USED).unwrap_or(0)), Some(0));
    queue.set_ready(true);
    let mut understood = false;
    for _ in 0..RING {
        let Some(chain) = queue.pop_descriptor_chain(&memory) else {
            break;
        };
        let head = chain.head_index();
        let mut pieces = Vec::new();
        let whole = pieces_of(chain, LONG, &mut pieces);
        let request = parse(&memory, pieces.into_iter(), || whole, &info);
        check(&request.what, &info);
        if let What::Data { len, .. } = &request.what {
            let mut window = vec![0_u8; usize::try_from(*len).expect("inside of the volume")];
            let start = NonNull::new(window.as_mut_ptr()).expect("a vector");
            // SAFETY: `window` is so long, and outlives it.
            let shared = unsafe { SharedBytes::new(start, window.len()) };
            for to_guest in [false, true] {
                let _ = transfer(&memory, &request.pieces, 0, shared, to_guest);
                let _ = transfer(&memory, &request.pieces, *len, shared, to_guest);
            }
        }
        understood |= !matches!(request.what, What::Refused(_));
        if let Some(status) = request.status {
            let _ = memory.write_obj(S_OK, status);
        }
        let _ = queue.add_used(&memory, head, 1);
    }
    understood
}

fn check(what: &What, info: &Info) {
    let inside = |at: u64, len: u64| {
        let block = u64::from(info.block);
        assert!(len > 0 && at.is_multiple_of(block) && len.is_multiple_of(block));
        assert!(at < info.size && len <= info.size - at);
    };
    match what {
        What::Data { at, len, .. } => inside(*at, *len),
        What::Ranges { each, .. } => {
            assert!(!info.read_only && !each.is_empty());
            each.iter().for_each(|(at, len)| inside(*at, *len));
        }
        What::Flush | What::Id | What::Refused(_) => {}
    }
}
