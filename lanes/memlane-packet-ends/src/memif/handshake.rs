//! What decides in the handshake, at either end: messages in, messages out. Descriptors are beside it.

use super::layout::{LOG2_MAX, ring_len};
use super::rings::Buffers;
use super::wire::{AddRing, Hello, Init, MODE_ETHERNET, Message, SECRET, Text, VERSION};
use core::fmt;

/// Queues of an interface, in each direction.
pub const QUEUES_MAX: u16 = 16;
/// Regions that a server takes.
pub const REGIONS_MAX: u16 = 32;
/// Bytes of a buffer, unless it is said otherwise: DPDK's and libmemif's default. A DPDK server writes as much into
/// each as its own buffers have, without a look at their length, so less is asking for trouble.
pub const BUFFER: u32 = 2048;
/// Between buffers, so that they do not begin at the same place of their pages: those share one set of a cache.
const GAP: u32 = 64;

/// What a client asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientTerms {
    /// The interface's number at the server.
    pub id: u32,
    /// What lets us in; empty: nothing.
    pub secret: String,
    /// Our interface's name.
    pub name: String,
    /// 1 to 16, in each direction. If the server takes fewer, it is fewer.
    pub queues: u16,
    /// Rings of 2^this slots: 1 to 14. If the server takes fewer, it is fewer.
    pub ring_log2: u8,
    /// Bytes of a buffer: 64 to 65536. Longer frames take several.
    pub buffer: u32,
}

impl Default for ClientTerms {
    /// DPDK's: interface 0, one queue, rings of 1024 slots, buffers of 2 KiB.
    fn default() -> ClientTerms {
        ClientTerms {
            id: 0,
            secret: String::new(),
            name: "memlane".to_owned(),
            queues: 1,
            ring_log2: 10,
            buffer: BUFFER,
        }
    }
}

/// What a server takes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerTerms {
    /// The interface's number.
    pub id: u32,
    /// What a client must say to be let in; empty: nothing.
    pub secret: String,
    /// Our interface's name.
    pub name: String,
    /// 1 to 16, in each direction.
    pub queues: u16,
    /// Rings of at most 2^this slots.
    pub ring_log2: u8,
    /// Bytes of a client's regions together, at most.
    pub memory: u64,
}

impl Default for ServerTerms {
    /// All that there is, of 1 GiB.
    fn default() -> ServerTerms {
        ServerTerms {
            id: 0,
            secret: String::new(),
            name: "memlane".to_owned(),
            queues: QUEUES_MAX,
            ring_log2: LOG2_MAX,
            memory: 1 << 30,
        }
    }
}

/// Why one side does not take what the other says. The text goes to the other side, too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal(pub &'static str);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// What a client has decided after the server's hello.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// In each direction.
    pub queues: u16,
    /// Of all rings.
    pub ring_log2: u8,
    /// Bytes of region 0: S2M rings, M2S rings, their buffers in the same order.
    pub len: u32,
    buffer: u32,
}

impl Plan {
    /// What becomes of terms and a hello.
    ///
    /// # Errors
    /// They don't go together, or the terms make no sense.
    pub fn new(terms: &ClientTerms, hello: &Hello) -> Result<Plan, Refusal> {
        if !(1..=QUEUES_MAX).contains(&terms.queues) || !(1..=LOG2_MAX).contains(&terms.ring_log2) {
            return Err(Refusal("1 to 16 queues, rings of 2^1 to 2^14 slots"));
        }
        if !(64..=65536).contains(&terms.buffer) {
            return Err(Refusal("buffers have 64 to 65536 bytes"));
        }
        if hello.min_version > VERSION || hello.max_version < VERSION {
            return Err(Refusal("the server does not speak memif 2.0"));
        }
        let most = hello.max_s2m.min(hello.max_m2s).saturating_add(1);
        let mut plan = Plan {
            queues: terms.queues.min(most),
            ring_log2: terms.ring_log2.min(hello.max_log2),
            len: 0,
            buffer: terms.buffer,
        };
        if plan.ring_log2 == 0 {
            return Err(Refusal("the server takes rings of one slot only"));
        }
        let rings = 2 * u64::from(plan.queues);
        let slots = 1_u64 << plan.ring_log2;
        let len = rings * (ring_len(plan.ring_log2) as u64 + slots * u64::from(plan.stride()));
        plan.len = u32::try_from(len.next_multiple_of(4096)).map_err(|_| {
            Refusal("more than 4 GiB of buffers: take fewer queues, slots or bytes for each")
        })?;
        Ok(plan)
    }

    fn stride(&self) -> u32 {
        self.buffer.next_multiple_of(GAP) + GAP
    }

    /// The number of a ring, of all.
    fn number(&self, s2m: bool, index: u16) -> u32 {
        u32::from(index) + if s2m { 0 } else { u32::from(self.queues) }
    }

    /// Where a ring lies.
    pub fn ring(&self, s2m: bool, index: u16) -> AddRing {
        // All is less than `len`, which is a u32.
        let each = u32::try_from(ring_len(self.ring_log2)).unwrap_or(u32::MAX);
        AddRing {
            s2m,
            index,
            region: 0,
            offset: self.number(s2m, index) * each,
            log2: self.ring_log2,
            private: 0,
        }
    }

    /// Where its buffers lie.
    pub fn buffers(&self, s2m: bool, index: u16) -> Buffers {
        let each = u32::try_from(ring_len(self.ring_log2)).unwrap_or(u32::MAX);
        let behind = 2 * u32::from(self.queues) * each;
        Buffers {
            region: 0,
            offset: behind + (self.number(s2m, index) << self.ring_log2) * self.stride(),
            stride: self.stride(),
            len: self.buffer,
        }
    }

    /// What the client says, one after another; each but the last is answered by an ack. A descriptor goes with
    /// regions and rings.
    pub fn messages(&self, terms: &ClientTerms) -> Vec<Message> {
        let mut all = vec![
            Message::Init(Init {
                version: VERSION,
                id: terms.id,
                mode: MODE_ETHERNET,
                secret: Text::new(&terms.secret),
                name: Text::new("memlane"),
            }),
            Message::AddRegion {
                index: 0,
                size: self.len.into(),
            },
        ];
        for s2m in [true, false] {
            all.extend((0..self.queues).map(|n| Message::AddRing(self.ring(s2m, n))));
        }
        all.push(Message::Connect(Text::new(&terms.name)));
        all
    }
}

/// What a server does after a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Answers by an ack.
    Ack,
    /// Keeps the descriptor as its next region, and acks.
    Region,
    /// Keeps it as the doorbell of its next ring, and acks.
    Doorbell,
    /// Maps everything, begins, says that it is connected.
    Connect,
}

/// A server's half of the handshake.
#[derive(Debug)]
pub struct Server {
    terms: ServerTerms,
    known: bool,
    /// Sizes.
    regions: Vec<u64>,
    rings: Vec<AddRing>,
    peer: Text<32>,
}

impl Server {
    /// Before the first message.
    pub fn new(terms: &ServerTerms) -> Server {
        Server {
            terms: terms.clone(),
            known: false,
            regions: Vec::new(),
            rings: Vec::new(),
            peer: Text::new(""),
        }
    }

    /// The first message.
    pub fn hello(&self) -> Message {
        let highest = self.terms.queues.clamp(1, QUEUES_MAX) - 1;
        Message::Hello(Hello {
            name: Text::new("memlane"),
            min_version: VERSION,
            max_version: VERSION,
            max_region: REGIONS_MAX - 1,
            max_m2s: highest,
            max_s2m: highest,
            max_log2: self.terms.ring_log2.clamp(1, LOG2_MAX),
        })
    }

    /// Takes a message of the client; `descriptor`: did one come with it?
    ///
    /// # Errors
    /// It is out of place, or more than was offered.
    pub fn take(&mut self, message: &Message, descriptor: bool) -> Result<Step, Refusal> {
        if !self.known && !matches!(message, Message::Init(_)) {
            return Err(Refusal("Unexpected message"));
        }
        match message {
            Message::Init(init) if !self.known => self.init(init).map(|()| Step::Ack),
            Message::AddRegion { index, size } => self
                .region(*index, *size, descriptor)
                .map(|()| Step::Region),
            Message::AddRing(ring) => self.ring(*ring, descriptor).map(|()| Step::Doorbell),
            Message::Connect(name) => {
                if self.rings.is_empty() {
                    return Err(Refusal("No rings"));
                }
                self.whole()?;
                self.peer = *name;
                Ok(Step::Connect)
            }
            Message::Disconnect { .. } => Err(Refusal("The other side has gone")),
            _ => Err(Refusal("Unexpected message")),
        }
    }

    fn init(&mut self, init: &Init) -> Result<(), Refusal> {
        if init.version != VERSION {
            return Err(Refusal("Incompatible memif version"));
        }
        if init.id != self.terms.id {
            return Err(Refusal("ID not found"));
        }
        if init.mode != MODE_ETHERNET {
            return Err(Refusal("Only ethernet mode supported"));
        }
        let wanted = Text::<SECRET>::new(&self.terms.secret);
        if !self.terms.secret.is_empty() && init.secret != wanted {
            return Err(Refusal("Incorrect secret"));
        }
        self.known = true;
        Ok(())
    }

    fn region(&mut self, index: u16, size: u64, descriptor: bool) -> Result<(), Refusal> {
        if !descriptor {
            return Err(Refusal("Missing region fd"));
        }
        if usize::from(index) != self.regions.len() || index >= REGIONS_MAX {
            return Err(Refusal("Invalid region index"));
        }
        let all = self
            .regions
            .iter()
            .try_fold(size, |sum, one| sum.checked_add(*one));
        if size == 0 || all.is_none_or(|all| all > self.terms.memory) {
            return Err(Refusal("Regions of no bytes, or of too many"));
        }
        self.regions.push(size);
        Ok(())
    }

    fn ring(&mut self, ring: AddRing, descriptor: bool) -> Result<(), Refusal> {
        if !descriptor {
            return Err(Refusal("Missing interrupt fd"));
        }
        let before = self.rings.iter().filter(|other| other.s2m == ring.s2m);
        let most = self.terms.queues.clamp(1, QUEUES_MAX);
        if usize::from(ring.index) != before.count() || ring.index >= most {
            return Err(Refusal("Invalid ring index"));
        }
        if !(1..=self.terms.ring_log2.clamp(1, LOG2_MAX)).contains(&ring.log2) {
            return Err(Refusal("Invalid ring size"));
        }
        if ring.private != 0 {
            return Err(Refusal("Private headers are not supported"));
        }
        let size = self.regions.get(usize::from(ring.region));
        let end = u64::from(ring.offset) + ring_len(ring.log2) as u64;
        if size.is_none_or(|size| end > *size) || !ring.offset.is_multiple_of(8) {
            return Err(Refusal("Ring outside of its region, or not aligned"));
        }
        self.rings.push(ring);
        Ok(())
    }

    /// Two rings in one place would let a client have us write where we read.
    fn whole(&self) -> Result<(), Refusal> {
        let mut places: Vec<_> = self
            .rings
            .iter()
            .map(|ring| {
                (
                    ring.region,
                    u64::from(ring.offset),
                    ring_len(ring.log2) as u64,
                )
            })
            .collect();
        places.sort_unstable();
        let overlap = places
            .windows(2)
            .any(|two| two[0].0 == two[1].0 && two[0].1 + two[0].2 > two[1].1);
        if overlap {
            return Err(Refusal("Rings overlap"));
        }
        Ok(())
    }

    /// Sizes of the regions.
    pub fn regions(&self) -> &[u64] {
        &self.regions
    }

    /// The rings, in the order of their doorbells.
    pub fn rings(&self) -> &[AddRing] {
        &self.rings
    }

    /// What the client calls its interface.
    pub fn peer(&self) -> Text<32> {
        self.peer
    }
}
