//! A queue whose both ends are here, over real memory files.
#![allow(dead_code)] // each test uses a part

use memlane_core::region::Region;
use memlane_packet::engine::QueueMemory;
use memlane_packet::engine::back::{Back, BackConfig};
use memlane_packet::engine::chain::{Frame, Offloads};
use memlane_packet::engine::front::{Buffers, Front};
use memlane_packet::engine::grant::Mode;
use memlane_packet::io::Regions;
use memlane_packet::layout::{PAGE, QueueLayout};
use memlane_packet::{Gso, GsoKind, Meta};
use memlane_sys::fd::duplicate;
use std::sync::Arc;

pub(crate) const OFFLOADS: Offloads = Offloads {
    gso4: true,
    gso6: true,
};

pub(crate) struct World {
    pub(crate) memory: QueueMemory,
    pub(crate) tx: Arc<Region>,
    pub(crate) rx: Arc<Region>,
    order: u8,
}

impl World {
    pub(crate) fn new(ring_log2: u8, grants: u32, order: u8) -> World {
        let layout = QueueLayout::new(ring_log2, grants).expect("sizes that there are");
        let control = Arc::new(Region::create(c"control", layout.len, false).expect("memory"));
        let len = (PAGE << order) << ring_log2;
        World {
            memory: QueueMemory::new(&control, layout, 0).expect("it is that long"),
            tx: Arc::new(Region::create_for_readers(c"tx", len).expect("memory")),
            rx: Arc::new(Region::create(c"rx", len, false).expect("memory")),
            order,
        }
    }

    pub(crate) fn front(&self) -> Front {
        let buffers = |region: &Arc<Region>, number| Buffers {
            region: Arc::clone(region),
            number,
            first_page: 0,
            order: self.order,
        };
        let front = Front::new(
            self.memory.clone(),
            buffers(&self.tx, 0),
            buffers(&self.rx, 1),
            OFFLOADS,
        );
        front.expect("it fits")
    }

    pub(crate) fn regions(&self) -> Regions {
        let files = [&self.tx, &self.rx];
        let lens = files.map(|region| region.len());
        let files = files.map(|region| duplicate(region.fd().expect("ours")).expect("a number"));
        Regions::new(files.into(), &lens).expect("sealed")
    }

    pub(crate) fn back(&self, mode: Mode, max_grants: u32) -> Back<Regions> {
        let config = BackConfig {
            mode,
            max_grants,
            idle_ms: 1000,
            offloads: OFFLOADS,
        };
        Back::new(self.memory.clone(), config, self.regions())
    }
}

/// xorshift64*: seeded, so a failure can be run again.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    #[allow(clippy::cast_possible_truncation)] // that is meant
    pub(crate) fn word(&mut self) -> u32 {
        self.next() as u32
    }
}

/// A frame that can be told from all others, and what it says of itself.
pub(crate) fn frame(number: u64, len: usize) -> (Vec<u8>, Meta) {
    let mut random = Random(number + 1);
    let mut bytes: Vec<u8> = (0..len).map(|_| random.next().to_le_bytes()[3]).collect();
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    let gso = match number % 5 {
        0 => Some(GsoKind::Tcp4),
        1 => Some(GsoKind::Tcp6),
        _ => None,
    };
    let meta = Meta {
        csum_blank: number.is_multiple_of(2),
        data_validated: number.is_multiple_of(3),
        gso: gso.map(|kind| Gso { kind, size: 1448 }),
    };
    (bytes, meta)
}

/// A copy of what was lent.
pub(crate) fn copied(frame: &Frame<'_>) -> (Vec<u8>, Meta) {
    let mut bytes = vec![0; frame.len()];
    assert_eq!(frame.copy_out(0, &mut bytes), bytes.len());
    let parts: usize = frame.parts().map(|part| part.len()).sum();
    assert_eq!(parts, frame.len());
    (bytes, frame.meta())
}
