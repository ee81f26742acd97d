//! The handshake: two sockets that are connected become a link.

use super::doorbell::Doorbell;
use super::link::Link;
use super::memory::Regions;
use super::queue::{BackQueue, FrontQueue};
use super::socket::{owned, receive, send};
use crate::engine::QueueMemory;
use crate::engine::back::{Back, BackConfig};
use crate::engine::front::{Buffers, Front};
use crate::engine::grant::Mode;
use crate::error::AttachError;
use crate::layout::{ORDER_MAX, PAGE, QUEUES_MAX, QueueLayout, RING_LOG2_DEFAULT, RING_LOG2_MAX};
use crate::offload::Offloads;
use crate::wire::{Attach, Hello, Message, Refusal, WireError};
use memlane_core::region::Region;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// For each message of the handshake.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// What a front wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrontTerms {
    /// `None`: the best that the back offers.
    pub mode: Option<Mode>,
    /// 1 to 16; more than the back offers is an error.
    pub queues: u16,
    /// Slots of each ring are 2^this, 5 to 12.
    pub ring_log2: u8,
    /// A buffer has 2^this pages, 0 to 4.
    pub order: u8,
    /// Segmentation that it can use; what the back does not offer is left out.
    pub offloads: Offloads,
}

impl Default for FrontTerms {
    /// One queue of netif's own size, buffers of one page, all offloads.
    fn default() -> FrontTerms {
        FrontTerms {
            mode: None,
            queues: 1,
            ring_log2: RING_LOG2_DEFAULT,
            order: 0,
            offloads: Offloads {
                gso4: true,
                gso6: true,
            },
        }
    }
}

/// What a back offers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BackTerms {
    /// By [`Mode::ALL`]'s order.
    pub modes: [bool; 3],
    /// Queues, at most 16.
    pub queues: u16,
    /// Queues that a front must have at least: 1, unless each of them is joined to something.
    pub queues_least: u16,
    /// Slots of each ring, at most 2^this.
    pub ring_log2: u8,
    /// Mappings kept for each direction of a queue. `None`: one for each slot, which is all that our fronts use.
    pub max_grants: Option<u32>,
    /// Mappings not used for so long are given up; zero: never.
    pub idle: Duration,
    /// Segmentation that it can use.
    pub offloads: Offloads,
    /// Bytes of a front's memory that it takes, at most.
    pub memory: u64,
}

impl Default for BackTerms {
    /// Everything; mappings are kept for 60 s (blkback's `persistent_grant_unused_seconds`), memory up to 1 GiB.
    fn default() -> BackTerms {
        BackTerms {
            modes: [true; 3],
            queues: QUEUES_MAX,
            queues_least: 1,
            ring_log2: RING_LOG2_MAX,
            max_grants: None,
            idle: Duration::from_secs(60),
            offloads: Offloads {
                gso4: true,
                gso6: true,
            },
            memory: 1 << 30,
        }
    }
}

/// The front's half of the handshake, over a connected socket.
///
/// # Errors
/// No link came to be.
pub fn front(socket: OwnedFd, terms: &FrontTerms) -> Result<(Link, Vec<FrontQueue>), AttachError> {
    let (message, _) = receive(&socket, Instant::now() + ANSWER_WITHIN)?;
    let Message::Hello(hello) = message else {
        return Err(WireError::Field("the first message is no hello").into());
    };
    let mode = agree(&hello, terms)?;
    let mut memory = FrontMemory::create(terms, hello.memory)?;
    let attach = Attach {
        mode,
        offloads: both(hello.offloads, terms.offloads),
        queues: terms.queues,
        ring_log2: terms.ring_log2,
        grants: memory.layout.grants,
        control: memory.control.len() as u64,
        tx: memory.tx.len() as u64,
        rx: memory.rx.len() as u64,
    };
    let engines = memory.engines(terms, attach.offloads)?;
    let mut queues = Vec::new();
    let mut theirs = Vec::new();
    for engine in engines {
        let (doorbell, end) = Doorbell::pair().map_err(AttachError::Memory)?;
        queues.push(FrontQueue::new(engine, doorbell));
        theirs.push(end);
    }
    memory.hand_over(&socket, attach, &theirs)?;
    match receive(&socket, Instant::now() + ANSWER_WITHIN)?.0 {
        Message::Attached => Ok((Link::new(socket, mode, attach.offloads), queues)),
        Message::Refused(code) => Err(AttachError::Refused(code)),
        _ => Err(WireError::Field("the answer to attach").into()),
    }
}

fn agree(hello: &Hello, terms: &FrontTerms) -> Result<Mode, AttachError> {
    if terms.queues == 0 || terms.queues > QUEUES_MAX || terms.order > ORDER_MAX {
        return Err(AttachError::Config(
            "1 to 16 queues, buffers of 2^0 to 2^4 pages",
        ));
    }
    if terms.queues > hello.queues {
        return Err(AttachError::NotOffered("this number of queues"));
    }
    if terms.ring_log2 > hello.ring_log2 {
        return Err(AttachError::NotOffered("rings of that many slots"));
    }
    let offered = |mode: &Mode| hello.modes[*mode as usize];
    let mode = match terms.mode {
        Some(mode) => Some(mode).filter(offered),
        None => Mode::ALL.into_iter().find(offered),
    };
    mode.ok_or(AttachError::NotOffered("that mode"))
}

fn both(one: Offloads, other: Offloads) -> Offloads {
    Offloads {
        gso4: one.gso4 && other.gso4,
        gso6: one.gso6 && other.gso6,
    }
}

/// A link's memory. It is new for each attach: what an earlier back still has mapped is nobody's any more.
struct FrontMemory {
    layout: QueueLayout,
    control: Arc<Region>,
    tx: Arc<Region>,
    rx: Arc<Region>,
}

impl FrontMemory {
    fn create(terms: &FrontTerms, most: u64) -> Result<FrontMemory, AttachError> {
        let grants = 2_u32.checked_shl(terms.ring_log2.into()).unwrap_or(0);
        let layout = QueueLayout::new(terms.ring_log2, grants);
        let layout = layout.ok_or(AttachError::Config("rings have 2^5 to 2^12 slots"))?;
        let queues = usize::from(terms.queues);
        let buffers = (PAGE << terms.order) * layout.slots as usize * queues;
        if 2 * buffers as u64 > most {
            return Err(AttachError::NotOffered(
                "so much memory: take fewer queues, slots or pages",
            ));
        }
        let control = Region::create(c"memlane-packet", layout.len * queues, false);
        // The back reads what is sent, and nobody else shall write it.
        let tx = Region::create_for_readers(c"memlane-packet-tx", buffers);
        let rx = Region::create(c"memlane-packet-rx", buffers, false);
        Ok(FrontMemory {
            layout,
            control: Arc::new(control.map_err(AttachError::Memory)?),
            tx: Arc::new(tx.map_err(AttachError::Memory)?),
            rx: Arc::new(rx.map_err(AttachError::Memory)?),
        })
    }

    fn engines(&self, terms: &FrontTerms, offloads: Offloads) -> Result<Vec<Front>, AttachError> {
        let engine = |queue: u16| {
            let memory = QueueMemory::new(&self.control, self.layout, queue)?;
            let buffers = |region: &Arc<Region>, number| Buffers {
                region: Arc::clone(region),
                number,
                first_page: (u32::from(queue) * self.layout.slots) << terms.order,
                order: terms.order,
            };
            Front::new(memory, buffers(&self.tx, 0), buffers(&self.rx, 1), offloads)
        };
        let engines: Option<Vec<Front>> = (0..terms.queues).map(engine).collect();
        engines.ok_or(AttachError::Config("sizes do not fit each other"))
    }

    fn hand_over(
        &mut self,
        socket: &OwnedFd,
        attach: Attach,
        doorbells: &[OwnedFd],
    ) -> Result<(), AttachError> {
        let regions = [&self.control, &self.tx, &self.rx];
        let numbers = regions.map(|region| region.fd().unwrap_or(-1));
        // SAFETY: regions that were created here have their descriptors, and live until this is back.
        let numbers = numbers.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) });
        let doorbells = doorbells.iter().map(AsFd::as_fd);
        let all: Vec<BorrowedFd<'_>> = numbers.into_iter().chain(doorbells).collect();
        send(socket, &Message::Attach(attach), &all)
    }
}

/// The back's half of the handshake, over a connected socket.
///
/// # Errors
/// No link came to be; the front has been told why.
pub fn back(socket: OwnedFd, terms: &BackTerms) -> Result<(Link, Vec<BackQueue>), AttachError> {
    let hello = Hello {
        modes: terms.modes,
        offloads: terms.offloads,
        queues: terms.queues.min(QUEUES_MAX),
        ring_log2: terms.ring_log2.min(RING_LOG2_MAX),
        memory: terms.memory,
    };
    send(&socket, &Message::Hello(hello), &[])?;
    let (message, descriptors) = receive(&socket, Instant::now() + ANSWER_WITHIN)?;
    let Message::Attach(attach) = message else {
        return Err(WireError::Field("the answer to hello").into());
    };
    match take_over(&hello, terms, attach, descriptors) {
        Ok(queues) => {
            send(&socket, &Message::Attached, &[])?;
            Ok((Link::new(socket, attach.mode, attach.offloads), queues))
        }
        Err((refusal, error)) => {
            // That it cannot be told is no news: the link is none.
            let _ = send(&socket, &Message::Refused(refusal as u16), &[]);
            Err(error)
        }
    }
}

fn take_over(
    hello: &Hello,
    terms: &BackTerms,
    attach: Attach,
    descriptors: Vec<OwnedFd>,
) -> Result<Vec<BackQueue>, (Refusal, AttachError)> {
    let wrong = |field| (Refusal::Terms, AttachError::Wire(WireError::Field(field)));
    let layout = check(hello, &attach).map_err(wrong)?;
    if attach.queues < terms.queues_least {
        let error = AttachError::Config(
            "the front has fewer queues: start both sides with the same number of them",
        );
        return Err((Refusal::Queues, error));
    }
    if descriptors.len() != 3 + usize::from(attach.queues) {
        let error = AttachError::Descriptors("another number than the queues need");
        return Err((Refusal::Descriptors, error));
    }
    let mut descriptors = descriptors.into_iter();
    let memory = |error| (Refusal::Memory, AttachError::Memory(error));
    let [Some(control), Some(tx), Some(rx)] = [(); 3].map(|()| descriptors.next().map(owned))
    else {
        return Err((Refusal::Descriptors, AttachError::Descriptors("too few")));
    };
    let len = |len: u64| usize::try_from(len).unwrap_or(usize::MAX);
    let control = Arc::new(Region::attach(control, len(attach.control)).map_err(memory)?);
    let regions = Regions::new(vec![tx, rx], &[len(attach.tx), len(attach.rx)]).map_err(memory)?;
    let config = BackConfig {
        mode: attach.mode,
        max_grants: terms.max_grants.unwrap_or(layout.slots).min(layout.grants),
        idle_ms: u64::try_from(terms.idle.as_millis()).unwrap_or(u64::MAX),
        offloads: attach.offloads,
    };
    let mut queues = Vec::new();
    for (queue, doorbell) in (0..attach.queues).zip(descriptors) {
        let no_doorbell = |_| {
            (
                Refusal::Descriptors,
                AttachError::Descriptors("no doorbell"),
            )
        };
        let doorbell = Doorbell::of(doorbell).map_err(no_doorbell)?;
        let memory = QueueMemory::new(&control, layout, queue);
        let memory = memory.ok_or_else(|| wrong("control memory"))?;
        queues.push(BackQueue::new(
            Back::new(memory, config, regions.clone()),
            doorbell,
        ));
    }
    Ok(queues)
}

/// Is that what was offered, and does it add up?
fn check(hello: &Hello, attach: &Attach) -> Result<QueueLayout, &'static str> {
    if !hello.modes[attach.mode as usize] {
        return Err("mode");
    }
    if both(hello.offloads, attach.offloads) != attach.offloads {
        return Err("offloads");
    }
    if attach.queues == 0 || attach.queues > hello.queues {
        return Err("queues");
    }
    if attach.ring_log2 > hello.ring_log2 {
        return Err("ring size");
    }
    let layout = QueueLayout::new(attach.ring_log2, attach.grants).ok_or("ring size or grants")?;
    if attach.control != (layout.len * usize::from(attach.queues)) as u64 {
        return Err("control memory");
    }
    let memory = attach.tx.checked_add(attach.rx).ok_or("memory")?;
    if memory > hello.memory || attach.tx == 0 || attach.rx == 0 {
        return Err("memory");
    }
    Ok(layout)
}
