//! io_uring's zero-copy receive: what its completions say, and how buffers go back.
//!
//! One request, armed once, completes again and again: each completion names bytes of the *area*, the memory that the
//! interface was given. What was read goes back by the *refill ring*, which the kernel reads: each completion that named
//! bytes is one entry there. Numbers and structures: `include/uapi/linux/io_uring/zcrx.h`, as of Linux 6.15;
//! `Documentation/networking/iou-zcrx.rst`.

use super::Span;
use crate::error::Fault;
use memlane_sys::Errno;
use std::collections::VecDeque;

/// Above this bit an offset names its area (`IORING_ZCRX_AREA_SHIFT`).
const AREA_SHIFT: u32 = 48;
/// ENOSPC: the completions' ring was full; EAGAIN, EINTR. The request is over, the stream is not.
const PAUSES: [i32; 3] = [28, 11, 4];
/// ENOMEM: likewise, as no buffer was free to copy into.
const STARVED: i32 = 12;
/// EFAULT: bytes that the interface did not put into the area, and that cannot be copied there: it is a dma-buf.
const ASTRAY: i32 = 14;

/// One entry of the completions' ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// Of this arming (`user_data`).
    pub number: u64,
    /// Bytes, 0: the stream's end, or an error.
    pub result: i32,
    /// The request goes on (`IORING_CQE_F_MORE`).
    pub more: bool,
    /// Where they lie (`struct io_uring_zcrx_cqe`).
    pub offset: u64,
}

/// Memory that the interface was given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Area {
    /// Bytes.
    pub bytes: u64,
    /// What names it in entries of the refill ring (`rq_area_token`).
    pub token: u64,
}

/// How a stream has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Over,
    Failed(Errno),
    Broken(Fault),
}

/// One stream's request.
#[derive(Debug)]
pub struct Flow {
    area: Area,
    number: u64,
    armed: bool,
    starved: bool,
    end: Option<End>,
}

/// What to tell the stream's user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Said {
    /// It goes on.
    Goes,
    /// It goes on when buffers have come back.
    Starved,
    /// The peer sends nothing more.
    Over,
    /// The kernel's error.
    Failed(Errno),
    /// What came makes no sense.
    Broken(Fault),
}

impl Flow {
    /// Not armed yet.
    pub fn new(area: Area) -> Flow {
        Flow {
            area,
            number: 0,
            armed: false,
            starved: false,
            end: None,
        }
    }

    /// The number to arm it with, if it is to be armed.
    pub fn to_arm(&mut self) -> Option<u64> {
        if self.armed || self.end.is_some() {
            return None;
        }
        self.armed = true;
        self.starved = false;
        self.number += 1;
        Some(self.number)
    }

    /// It could not be armed.
    pub fn not_armed(&mut self) {
        self.armed = false;
    }

    /// Will it complete by itself?
    pub fn is_armed(&self) -> bool {
        self.armed
    }

    /// How it stands, behind all that was taken.
    pub fn said(&self) -> Said {
        match self.end {
            None if self.starved => Said::Starved,
            None => Said::Goes,
            Some(End::Over) => Said::Over,
            Some(End::Failed(errno)) => Said::Failed(errno),
            Some(End::Broken(fault)) => Said::Broken(fault),
        }
    }

    /// Bytes that have come, if it names some.
    pub fn take(&mut self, completion: Completion) -> Option<Span> {
        // Nothing is behind an end, and what is left of an older request is nothing.
        if completion.number != self.number || self.end.is_some() {
            return None;
        }
        self.armed = completion.more;
        let span = match u32::try_from(completion.result) {
            Ok(0) => {
                self.end = (!completion.more).then_some(End::Over);
                return None;
            }
            Ok(len) => self.span(completion.offset, len),
            Err(_) => {
                self.fails(completion.result);
                return None;
            }
        };
        span.inspect_err(|fault| self.end = Some(End::Broken(*fault)))
            .ok()
    }

    fn span(&self, named: u64, len: u32) -> Result<Span, Fault> {
        let offset = named & ((1 << AREA_SHIFT) - 1);
        let ours = named >> AREA_SHIFT == self.area.token >> AREA_SHIFT;
        let end = offset.checked_add(u64::from(len));
        match end.filter(|end| ours && *end <= self.area.bytes) {
            Some(_) => Ok(Span { offset, len }),
            None => Err(Fault::Outside(named)),
        }
    }

    fn fails(&mut self, result: i32) {
        // A request that fails is over, whatever else it says.
        self.armed = false;
        let errno = Errno(result.wrapping_neg());
        self.end = match errno.0 {
            STARVED => {
                self.starved = true;
                None
            }
            pause if PAUSES.contains(&pause) => None,
            ASTRAY => Some(End::Broken(Fault::Refused(errno))),
            _ => Some(End::Failed(errno)),
        };
    }
}

/// An entry of the refill ring (`struct io_uring_zcrx_rqe`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Area and offset.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
}

/// What is out, and what waits for room in the refill ring.
#[derive(Debug)]
pub struct Refill {
    token: u64,
    entries: u32,
    tail: u32,
    /// By name: what came with one completion. `None`: the name is free.
    held: Vec<Option<Span>>,
    free: Vec<u32>,
    waiting: VecDeque<Entry>,
}

impl Refill {
    /// For a ring of `entries` entries, a power of two.
    pub fn new(area: Area, entries: u32) -> Refill {
        Refill {
            token: area.token,
            entries,
            tail: 0,
            held: Vec::new(),
            free: Vec::new(),
            waiting: VecDeque::new(),
        }
    }

    /// Names bytes that a completion has named.
    pub fn hold(&mut self, span: Span) -> u64 {
        if let Some(name) = self.free.pop() {
            self.held[name as usize] = Some(span);
            return u64::from(name);
        }
        self.held.push(Some(span));
        self.held.len() as u64 - 1
    }

    /// How many are out.
    pub fn out(&self) -> usize {
        self.held.len() - self.free.len()
    }

    /// They go back; a name that is nobody's, or comes twice, is passed over.
    pub fn give(&mut self, names: &[u64]) {
        for name in names {
            let place = usize::try_from(*name).ok();
            let held = place.and_then(|place| self.held.get_mut(place)?.take());
            let Some(span) = held else {
                continue;
            };
            // It is a place of `held`, of which there are no more.
            self.free.extend(u32::try_from(*name));
            self.waiting.push_back(Entry {
                offset: self.token | span.offset,
                len: span.len,
            });
        }
    }

    /// Writes what waits, as far as there is room when the kernel has read to `head`; the new tail, to be published
    /// behind what was written. `None`: nothing has changed.
    pub fn flush(&mut self, head: u32, mut write: impl FnMut(u32, Entry)) -> Option<u32> {
        let unread = self.tail.wrapping_sub(head);
        // A head beyond our tail is no head: nothing is written that could overwrite what was not read.
        let room = self.entries.checked_sub(unread)?;
        let before = self.tail;
        for _ in 0..room {
            let Some(entry) = self.waiting.pop_front() else {
                break;
            };
            write(self.tail & (self.entries - 1), entry);
            self.tail = self.tail.wrapping_add(1);
        }
        (self.tail != before).then_some(self.tail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AREA: Area = Area {
        bytes: 1 << 20,
        token: 3 << AREA_SHIFT,
    };

    fn named(number: u64, result: i32, offset: u64) -> Completion {
        Completion {
            number,
            result,
            more: true,
            offset: AREA.token | offset,
        }
    }

    fn armed() -> Flow {
        let mut flow = Flow::new(AREA);
        assert_eq!(flow.to_arm(), Some(1));
        assert_eq!(flow.to_arm(), None, "once");
        flow
    }

    #[test]
    fn completions_name_bytes_of_the_area_and_of_nothing_else() {
        let mut flow = armed();
        let last = AREA.bytes - 100;
        let span = Span {
            offset: last,
            len: 100,
        };
        assert_eq!(flow.take(named(1, 100, last)), Some(span));
        assert_eq!(flow.take(named(9, 100, last)), None, "not this request");
        for wrong in [
            named(1, 101, last),
            named(1, 1, AREA.bytes),
            named(1, i32::MAX, (1 << AREA_SHIFT) - 1),
            Completion {
                offset: 0,
                ..named(1, 1, 0)
            },
        ] {
            let mut flow = armed();
            assert_eq!(flow.take(wrong), None, "{wrong:?}");
            assert!(matches!(flow.said(), Said::Broken(Fault::Outside(_))));
            assert_eq!(flow.take(named(1, 1, 0)), None, "nothing behind it");
            assert_eq!(flow.to_arm(), None);
        }
    }

    #[test]
    fn a_request_that_is_over_is_armed_again_and_a_stream_that_is_over_is_not() {
        for pause in PAUSES {
            let mut flow = armed();
            assert_eq!(flow.take(named(1, -pause, 0)), None);
            assert_eq!(flow.said(), Said::Goes);
            assert_eq!(flow.to_arm(), Some(2));
        }
        let mut flow = armed();
        assert_eq!(flow.take(named(1, -STARVED, 0)), None);
        assert_eq!((flow.said(), flow.is_armed()), (Said::Starved, false));
        assert_eq!((flow.to_arm(), flow.said()), (Some(2), Said::Goes));
        let mut flow = armed();
        let last = Completion {
            more: false,
            ..named(1, 5, 0)
        };
        assert!(flow.take(last).is_some());
        assert_eq!(flow.to_arm(), Some(2), "bytes, and over all the same");
        assert_eq!(flow.take(named(1, 5, 0)), None, "of the older request");
        let end = Completion {
            more: false,
            ..named(2, 0, 0)
        };
        assert_eq!(flow.take(end), None);
        assert_eq!((flow.said(), flow.to_arm()), (Said::Over, None));
        let mut flow = armed();
        flow.take(named(1, -104, 0));
        assert_eq!(flow.said(), Said::Failed(Errno(104)));
        assert_eq!(flow.to_arm(), None);
        let mut flow = armed();
        flow.take(named(1, i32::MIN, 0));
        assert!(matches!(flow.said(), Said::Failed(_)));
        let mut flow = armed();
        flow.take(named(1, -ASTRAY, 0));
        let astray = Said::Broken(Fault::Refused(Errno(ASTRAY)));
        assert_eq!(flow.said(), astray);
    }

    #[test]
    fn what_is_given_back_twice_goes_back_once() {
        let mut refill = Refill::new(AREA, 4);
        let span = Span { offset: 8, len: 5 };
        let name = refill.hold(span);
        refill.give(&[name, name, 7, u64::MAX]);
        refill.give(&[name]);
        let mut written = Vec::new();
        let tail = refill.flush(0, |at, entry| written.push((at, entry)));
        let entry = Entry {
            offset: AREA.token | 8,
            len: 5,
        };
        assert_eq!((tail, written), (Some(1), vec![(0, entry)]));
        assert_eq!(refill.out(), 0);
        assert_eq!(refill.flush(1, |_, _| panic!("again")), None);
    }

    #[test]
    fn a_ring_that_is_not_read_is_not_overwritten() {
        let mut refill = Refill::new(AREA, 4);
        let names: Vec<u64> = (0..7)
            .map(|n| refill.hold(Span { offset: n, len: 1 }))
            .collect();
        refill.give(&names);
        let mut written = Vec::new();
        let mut flush = |refill: &mut Refill, head| {
            refill.flush(head, |at, entry| written.push((at, entry.offset & 0xff)))
        };
        assert_eq!(flush(&mut refill, 0), Some(4));
        assert_eq!(flush(&mut refill, 0), None, "full");
        assert_eq!(flush(&mut refill, 2), Some(6));
        // A head that was never our tail.
        for wrong in [7, 1, u32::MAX, 1 << 31] {
            assert_eq!(flush(&mut refill, wrong), None, "{wrong}");
        }
        assert_eq!(flush(&mut refill, 6), Some(7));
        let expected: Vec<_> = (0..7_u32).map(|n| (n & 3, u64::from(n))).collect();
        assert_eq!(written, expected);
    }
}
