//! A kernel for tests: what `Documentation/networking/devmem.rst`, `net/ipv4/tcp.c` and `net/core/sock.c` say of
//! fragments, tokens, limits and errors, over any region. What cannot be (a token twice, a page that is written while
//! somebody has it) stops the test.

use memlane_devmem::Range;
use memlane_devmem::engine::Span;
use memlane_devmem::io::Binding;
use memlane_devmem::io::kernel::calls::{Calls, SPANS_MAX};
use memlane_devmem::wire::control::{DMABUF, LINEAR, SOL_SOCKET};
use memlane_sys::Errno;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

pub(crate) const PAGE: u64 = 4096;
/// The binding that receives, and the one to send from.
pub(crate) const BINDING: u32 = 7;
pub(crate) const SENDS: u32 = 8;
/// `CMSG_SPACE(sizeof(struct dmabuf_cmsg))`, in words.
const TOLD: usize = 5;
pub(crate) const ENOMEM: Errno = Errno(12);
pub(crate) const ETOOSMALL: Errno = Errno(525);

/// Bytes that wait in the socket.
#[derive(Clone, Debug)]
enum Waiting {
    /// On the device, by this binding's number.
    Device { at: u64, len: u64, binding: u32 },
    /// Of a packet whose headers were not split off.
    Linear(Vec<u8>),
    /// Of a queue that is bound to nothing.
    Plain(Vec<u8>),
}

#[derive(Debug, Default)]
pub(crate) struct State {
    waiting: VecDeque<Waiting>,
    /// Who has a page: what waits, and what is out.
    holders: BTreeMap<u64, u32>,
    free: Vec<u64>,
    /// Those that are out, and their pages.
    out: BTreeMap<u32, u64>,
    /// The lowest number is given out first, as the kernel does; or always another one.
    pub(crate) never_again: bool,
    next: u32,
    pub(crate) ended: bool,
    pub(crate) aborted: bool,
    /// What the next calls answer instead.
    pub(crate) receive_fails: VecDeque<Errno>,
    pub(crate) release_fails: VecDeque<Errno>,
    pub(crate) send_fails: VecDeque<Errno>,
    /// How many tokens each of the next releases frees at most.
    pub(crate) stingy: VecDeque<u32>,
    /// A release was done in part, and is to be tried again before anybody receives: its tokens would have others.
    in_part: bool,
    /// Tokens in releases that were not out.
    pub(crate) strange: u64,
    pub(crate) releases: u64,
    pub(crate) most_ranges: usize,
    pub(crate) most_tokens: u32,
    /// Sends: what is still to be read from the region, and the numbers that were told.
    flying: VecDeque<(u32, Vec<Span>)>,
    sends: u32,
    pub(crate) window: u64,
    told: VecDeque<(u32, u32, bool)>,
    pub(crate) wire: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct Emulated {
    region: Arc<Binding>,
    state: Mutex<State>,
}

impl Emulated {
    /// An interface that has the first `device` bytes of a region.
    pub(crate) fn new(region: &Arc<Binding>, device: u64) -> Arc<Emulated> {
        let state = State {
            free: (0..device / PAGE).rev().map(|n| n * PAGE).collect(),
            window: u64::MAX,
            ..State::default()
        };
        Arc::new(Emulated {
            region: Arc::clone(region),
            state: Mutex::new(state),
        })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// A packet that is split and steered; `false`: no page is free, and it is dropped.
    pub(crate) fn arrives(&self, payload: &[u8]) -> bool {
        self.arrives_by(payload, BINDING)
    }

    pub(crate) fn arrives_by(&self, payload: &[u8], binding: u32) -> bool {
        let mut state = self.state();
        let pages = payload.len().div_ceil(usize::try_from(PAGE).unwrap());
        if state.free.len() < pages {
            return false;
        }
        for part in payload.chunks(usize::try_from(PAGE).unwrap()) {
            let at = state.free.pop().unwrap();
            assert_eq!(state.holders.insert(at, 1), None, "a page has two users");
            self.region.region().write(at, part).unwrap();
            let len = part.len() as u64;
            state
                .waiting
                .push_back(Waiting::Device { at, len, binding });
        }
        true
    }

    /// The kernel says where, and is wrong.
    pub(crate) fn tells_of(&self, at: u64, len: u64) {
        let binding = BINDING;
        let mut state = self.state();
        *state.holders.entry(at / PAGE * PAGE).or_default() += 1;
        state
            .waiting
            .push_back(Waiting::Device { at, len, binding });
    }

    pub(crate) fn arrives_whole(&self, payload: &[u8]) {
        let payload = payload.to_vec();
        self.state().waiting.push_back(Waiting::Linear(payload));
    }

    pub(crate) fn arrives_elsewhere(&self, payload: &[u8]) {
        let payload = payload.to_vec();
        self.state().waiting.push_back(Waiting::Plain(payload));
    }

    /// The interface reads what the `nth` send that is out has, puts it on the wire and says so.
    pub(crate) fn transmits(&self, nth: usize, copied: bool) {
        let mut state = self.state();
        let Some((number, spans)) = state.flying.remove(nth) else {
            return;
        };
        for span in spans {
            let mut bytes = vec![0; span.len as usize];
            self.region.region().read(span.offset, &mut bytes).unwrap();
            state.wire.extend(bytes);
        }
        match state.told.back_mut() {
            // Neighbours are told together, as the kernel does.
            Some((_, last, same)) if *same == copied && last.wrapping_add(1) == number => {
                *last = number;
            }
            _ => state.told.push_back((number, number, copied)),
        }
    }

    pub(crate) fn flying(&self) -> usize {
        self.state().flying.len()
    }

    pub(crate) fn waits(&self) -> bool {
        !self.state().waiting.is_empty()
    }

    /// Tokens that are out; pages that nobody has.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let state = self.state();
        (state.out.len(), state.free.len())
    }
}

impl State {
    /// Pages of what nobody has received yet.
    pub(crate) fn waiting_pages(&self) -> usize {
        self.holders.len()
    }

    fn hold(&mut self, page: u64) -> u32 {
        *self.holders.entry(page).or_default() += 1;
        let lowest = (0..).find(|token| !self.out.contains_key(token));
        let token = if self.never_again {
            self.next
        } else {
            lowest.unwrap()
        };
        self.next += 1;
        self.out.insert(token, page);
        token
    }

    fn drop_page(&mut self, page: u64) {
        let holders = self.holders.get_mut(&page).expect("a page that is out");
        *holders -= 1;
        if *holders == 0 {
            self.holders.remove(&page);
            self.free.push(page);
        }
    }

    /// One stretch of at most `most` bytes, with what is told of it; `None`: another kind of packet comes next.
    fn take(
        &mut self,
        most: u64,
        plain: bool,
        beside: &mut &mut [u8],
    ) -> Option<(u64, Option<[u64; TOLD]>)> {
        let first = self.waiting.pop_front()?;
        match first {
            Waiting::Device { at, len, binding } if !plain => {
                let page = at / PAGE * PAGE;
                let now = len.min(most);
                let token = self.hold(page);
                if now < len {
                    let rest = Waiting::Device {
                        at: at + now,
                        len: len - now,
                        binding,
                    };
                    self.waiting.push_front(rest);
                } else {
                    self.drop_page(page);
                }
                Some((now, Some(message(DMABUF, at, [low(now), token, binding]))))
            }
            Waiting::Linear(bytes) if !plain => {
                let now = self.copy(bytes, most, beside, Waiting::Linear);
                Some((now, Some(message(LINEAR, 0, [low(now), 0, 0]))))
            }
            Waiting::Plain(bytes) if plain => {
                Some((self.copy(bytes, most, beside, Waiting::Plain), None))
            }
            other => {
                self.waiting.push_front(other);
                None
            }
        }
    }

    fn copy(
        &mut self,
        bytes: Vec<u8>,
        most: u64,
        beside: &mut &mut [u8],
        again: fn(Vec<u8>) -> Waiting,
    ) -> u64 {
        let now = bytes.len().min(usize::try_from(most).unwrap());
        let (place, rest) = std::mem::take(beside).split_at_mut(now);
        place.copy_from_slice(&bytes[..now]);
        *beside = rest;
        if now < bytes.len() {
            self.waiting.push_front(again(bytes[now..].to_vec()));
        }
        now as u64
    }
}

fn low(number: u64) -> u32 {
    u32::try_from(number).unwrap()
}

/// `struct cmsghdr` and `struct dmabuf_cmsg`.
fn message(kind: i32, offset: u64, [len, token, binding]: [u32; 3]) -> [u64; TOLD] {
    let two = |a: u32, b: u32| {
        let bytes = [a.to_ne_bytes(), b.to_ne_bytes()].concat();
        u64::from_ne_bytes(bytes.try_into().unwrap())
    };
    let kinds = two(SOL_SOCKET.unsigned_abs(), kind.unsigned_abs());
    [40, kinds, offset, two(len, token), two(binding, 0)]
}

impl Calls for Emulated {
    fn receive(&self, mut beside: &mut [u8], told: &mut [u64]) -> Result<(usize, usize), Errno> {
        let mut state = self.state();
        assert!(
            !state.in_part,
            "numbers are handed out that are being given back"
        );
        if let Some(errno) = state.receive_fails.pop_front() {
            return Err(errno);
        }
        let plain = match state.waiting.front() {
            None if state.ended => return Ok((0, 0)),
            None => return Err(Errno::AGAIN),
            Some(first) => matches!(first, Waiting::Plain(_)),
        };
        let (mut bytes, mut words, most) = (0, 0, beside.len() as u64);
        while bytes < most {
            if !plain && words + TOLD > told.len() {
                // Never a message that is cut off: the data stops short.
                return if bytes == 0 {
                    Err(ETOOSMALL)
                } else {
                    Ok((usize::try_from(bytes).unwrap(), words * 8))
                };
            }
            let Some((now, message)) = state.take(most - bytes, plain, &mut beside) else {
                break;
            };
            bytes += now;
            if let Some(message) = message {
                told[words..words + TOLD].copy_from_slice(&message);
                words += TOLD;
            }
        }
        Ok((usize::try_from(bytes).unwrap(), words * 8))
    }

    fn release(&self, ranges: &[Range]) -> Result<u32, Errno> {
        let mut state = self.state();
        state.in_part = false;
        if ranges.is_empty() || ranges.len() > 128 {
            return Err(Errno::INVAL);
        }
        if let Some(errno) = state.release_fails.pop_front() {
            return Err(errno);
        }
        state.releases += 1;
        state.most_ranges = state.most_ranges.max(ranges.len());
        let asked = ranges.iter().map(|range| range.count).sum();
        state.most_tokens = state.most_tokens.max(asked);
        let most = state.stingy.pop_front().unwrap_or(1024);
        let tokens = ranges.iter().flat_map(|r| r.start..r.start + r.count);
        let mut freed = 0;
        for token in tokens.take(1024) {
            if freed == most {
                // Time for others, before it is tried again.
                state.in_part = true;
                drop(state);
                std::thread::sleep(std::time::Duration::from_micros(20));
                return Ok(freed);
            }
            match state.out.remove(&token) {
                Some(page) => {
                    state.drop_page(page);
                    freed += 1;
                }
                None => state.strange += 1,
            }
        }
        Ok(freed)
    }

    fn send(&self, binding: u32, spans: &[Span]) -> Result<usize, Errno> {
        let mut state = self.state();
        if let Some(errno) = state.send_fails.pop_front() {
            return Err(errno);
        }
        if binding != SENDS || spans.len() > SPANS_MAX {
            return Err(Errno::INVAL);
        }
        let mut taken = Vec::new();
        let mut bytes = 0;
        for span in spans {
            let len = u64::from(span.len).min(state.window);
            state.window -= len;
            bytes += len;
            let len = low(len);
            taken.push(Span { len, ..*span });
        }
        if bytes == 0 {
            return Err(Errno::AGAIN);
        }
        let number = state.sends;
        state.sends += 1;
        state.flying.push_back((number, taken));
        Ok(usize::try_from(bytes).unwrap())
    }

    fn errors(&self, told: &mut [u64]) -> Result<usize, Errno> {
        let Some((first, last, copied)) = self.state().told.pop_front() else {
            return Err(Errno::AGAIN);
        };
        let mut bytes = 32_u64.to_ne_bytes().to_vec();
        // SOL_IP, IP_RECVERR; errno, origin ZEROCOPY, type, code, pad; info, data.
        bytes.extend([0_i32, 11].iter().flat_map(|word| word.to_ne_bytes()));
        bytes.extend([0, 0, 0, 0, 5, 0, u8::from(copied), 0]);
        bytes.extend([first, last].iter().flat_map(|word| word.to_ne_bytes()));
        for (word, bytes) in told.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_ne_bytes(bytes.try_into().unwrap());
        }
        Ok(bytes.len())
    }

    fn end(&self) {
        self.state().ended = true;
    }

    fn abort(&self) {
        let mut state = self.state();
        state.aborted = true;
        state.flying.clear();
    }
}
