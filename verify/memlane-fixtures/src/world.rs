//! A queue with both its ends in one process, over real memory files.

use memlane_core::region::Region;
use memlane_packet::Offloads;
use memlane_packet::engine::QueueMemory;
use memlane_packet::engine::back::{Back, BackConfig};
use memlane_packet::engine::front::{Buffers, Front};
use memlane_packet::engine::grant::Mode;
use memlane_packet::io::Regions;
use memlane_packet::layout::{PAGE, QueueLayout};
use memlane_sys::fd::duplicate;
use std::sync::Arc;

/// Every offload.
pub const OFFLOADS: Offloads = Offloads {
    gso4: true,
    gso6: true,
};

/// Memory of one queue: its rings and grants, and the two regions that the front grants.
#[derive(Debug)]
pub struct World {
    /// Rings and the grant table.
    pub memory: QueueMemory,
    /// The region that the front sends from. The back may only read it.
    pub tx: Arc<Region>,
    /// The region that the front receives into.
    pub rx: Arc<Region>,
    order: u8,
}

impl World {
    /// A queue of `1 << ring_log2` slots in each ring and that many buffers of `1 << order` pages in each region.
    ///
    /// # Panics
    /// If there are no such sizes, or no memory.
    pub fn new(ring_log2: u8, grants: u32, order: u8) -> World {
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

    /// The front's engine.
    ///
    /// # Panics
    /// If its buffers do not fit the rings.
    pub fn front(&self) -> Front {
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

    /// Both regions as a back has them: by file descriptor.
    ///
    /// # Panics
    /// If no descriptor is left.
    pub fn regions(&self) -> Regions {
        let files = [&self.tx, &self.rx];
        let lens = files.map(|region| region.len());
        let files = files.map(|region| duplicate(region.fd().expect("ours")).expect("a number"));
        Regions::new(files.into(), &lens).expect("sealed")
    }

    /// The back's engine.
    pub fn back(&self, mode: Mode, max_grants: u32) -> Back<Regions> {
        let config = BackConfig {
            mode,
            max_grants,
            idle_ms: 1000,
            offloads: OFFLOADS,
        };
        Back::new(self.memory.clone(), config, self.regions())
    }
}
