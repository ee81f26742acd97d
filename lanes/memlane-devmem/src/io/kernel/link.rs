//! A stream by the kernel's own path: what it tells becomes fragments, what they were is told back.

use super::calls::{Calls, Real};
use crate::engine::Span;
use crate::engine::tokens::{RANGES_MAX, Range, TOKENS_MAX};
use crate::error::{Fault, ReceiveError};
use crate::io::ways::{Giver, Most, Placed, Placer, Sink};
use crate::io::{Binding, Path, Stream, Terms};
use crate::wire::control::{self, Stretch};
use memlane_sys::Errno;
use memlane_wait::mutex::lock;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};

/// What the kernel has been told beforehand: which bindings a stream's bytes go into and come out of. The bindings are
/// their owner's ([`Bound`](super::Bound)), who keeps them as long as the stream is to receive and send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// The binding that receives ([`Bound::id`](super::Bound::id)); `None`: any payload on a device is a fault.
    pub receive: Option<u32>,
    /// The one to send from; `None`: what is sent is copied.
    pub send: Option<u32>,
}

impl Link {
    /// A stream of a connected TCP socket. Of `binding`'s region, the interface has all but what the
    /// [pool](Binding::beside) has.
    ///
    /// # Errors
    /// The socket cannot send without a copy.
    pub fn stream(
        self,
        socket: OwnedFd,
        binding: &Arc<Binding>,
        terms: &Terms,
    ) -> Result<Stream, Errno> {
        let socket = Arc::new(socket);
        let calls = Real(Arc::clone(&socket));
        if self.send.is_some() {
            calls.allow_zerocopy()?;
        }
        Ok(self.stream_by(Arc::new(calls), socket, binding, terms))
    }

    /// A stream that uses these calls instead of the kernel's; `socket` is only waited for.
    pub fn stream_by(
        self,
        calls: Arc<dyn Calls>,
        socket: Arc<OwnedFd>,
        binding: &Arc<Binding>,
        terms: &Terms,
    ) -> Stream {
        let sink: Option<Box<dyn Sink>> = match self.send {
            Some(id) => Some(Box::new(Outflow {
                calls: Arc::clone(&calls),
                binding: id,
            })),
            None => None,
        };
        let counts = binding.counts();
        let kept = u64::from(counts.chunks) * u64::from(counts.chunk);
        let beside = if kept == 0 { BESIDE } else { kept };
        let burst = u64::from(terms.burst).min(beside).max(1);
        let placer = Kernel {
            returns: Arc::new(Returns {
                calls,
                debt: Mutex::new(Vec::new()),
            }),
            binding: self.receive,
            device: binding.region().len() as u64 - kept,
            keeps: kept > 0,
            beside: vec![0; usize::try_from(burst).unwrap_or(0)].into(),
            came_beside: 0,
            told: vec![0; STRETCHES * TOLD / 8],
            broken: None,
        };
        Stream::placed(socket, binding, Box::new(placer), sink, terms)
    }
}

/// Stretches that one receive tells of, at most.
const STRETCHES: usize = 1024;
/// Bytes of a control message that tells of one (`CMSG_SPACE(sizeof(struct dmabuf_cmsg))`).
const TOLD: usize = 40;
/// Bytes of one receive where none can be kept beside the device: the length of the caller's buffer limits both.
const BESIDE: u64 = 1 << 20;

#[derive(Debug)]
struct Kernel {
    returns: Arc<Returns>,
    binding: Option<u32>,
    /// Bytes of the region that the interface has: the first ones.
    device: u64,
    /// Is there room for what comes beside it?
    keeps: bool,
    beside: Box<[u8]>,
    came_beside: usize,
    told: Vec<u64>,
    /// Some bytes of the stream could not be kept: there is nothing behind them.
    broken: Option<Fault>,
}

impl Placer for Kernel {
    fn path(&self) -> Path {
        Path::Kernel
    }

    fn comes_beside(&self) -> bool {
        self.keeps
    }

    fn receive(&mut self, most: Most, found: &mut Vec<Placed>) -> Result<u64, ReceiveError> {
        if let Some(fault) = self.broken {
            return Err(ReceiveError::Interface(fault));
        }
        self.came_beside = 0;
        let (bytes, told) = self.ask(most)?;
        let stretches = self.stretches(bytes, told);
        let placed = stretches.and_then(|stretches| self.place(&stretches, found));
        placed.map_err(|fault| {
            self.broken = Some(fault);
            ReceiveError::Interface(fault)
        })?;
        Ok(bytes as u64)
    }

    fn beside(&self) -> &[u8] {
        &self.beside[..self.came_beside]
    }

    fn giver(&self) -> Arc<dyn Giver> {
        Arc::clone(&self.returns) as Arc<dyn Giver>
    }
}

impl Kernel {
    /// Bytes of payload, and of what is told of them.
    fn ask(&mut self, most: Most) -> Result<(usize, usize), ReceiveError> {
        let bytes = self.beside.len().min(most.bytes as usize);
        let words = most.stretches.min(STRETCHES) * TOLD / 8;
        let (beside, told) = (&mut self.beside[..bytes], &mut self.told[..words]);
        // Not while somebody gives back: the numbers of what he gives are handed out again.
        let mut debt = self.returns.debt();
        // Nobody may have any other to give back, and then no page would ever be free again.
        self.returns.settle(&mut debt);
        let came = self.returns.calls.receive(beside, told);
        drop(debt);
        let (came, told) = came.map_err(|errno| match errno {
            Errno::AGAIN => ReceiveError::WouldBlock,
            errno if MEANT.contains(&errno.0) => ReceiveError::Interface(Fault::Refused(errno)),
            errno => ReceiveError::Kernel(errno),
        })?;
        Ok((came.min(bytes), told.min(words * 8)))
    }

    /// What the kernel tells of the `bytes` that came. If it tells nothing, they are plain bytes, of a queue that is bound
    /// to no device.
    fn stretches(&self, bytes: usize, told: usize) -> Result<Vec<Stretch>, Fault> {
        let words = &self.told[..told.div_ceil(8)];
        let text: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let stretches = control::stretches(&text[..told]).map_err(|_| Fault::Told)?;
        if stretches.is_empty() && bytes > 0 {
            let plain = u32::try_from(bytes).map_err(|_| Fault::Told)?;
            return Ok(vec![Stretch::Linear(plain)]);
        }
        let len = |stretch: &Stretch| match stretch {
            Stretch::Linear(len) => u64::from(*len),
            Stretch::Device { fragment, .. } => u64::from(fragment.len),
        };
        let sum: u64 = stretches.iter().map(len).sum();
        if sum == bytes as u64 {
            return Ok(stretches);
        }
        self.return_all(&stretches);
        Err(Fault::Told)
    }

    fn place(&mut self, stretches: &[Stretch], found: &mut Vec<Placed>) -> Result<(), Fault> {
        for stretch in stretches {
            let placed = match self.placed(*stretch) {
                Ok(placed) => placed,
                Err(fault) => {
                    found.clear();
                    self.return_all(stretches);
                    return Err(fault);
                }
            };
            if let Placed::Beside(bytes) = placed {
                self.came_beside += bytes as usize;
            }
            found.push(placed);
        }
        Ok(())
    }

    fn placed(&self, stretch: Stretch) -> Result<Placed, Fault> {
        let (fragment, theirs) = match stretch {
            Stretch::Linear(bytes) if self.keeps => return Ok(Placed::Beside(bytes)),
            Stretch::Linear(bytes) => return Err(Fault::Beside(bytes)),
            Stretch::Device { fragment, binding } => (fragment, binding),
        };
        if self.binding != Some(theirs) {
            let ours = self.binding.unwrap_or(0);
            return Err(Fault::Steering { theirs, ours });
        }
        let end = fragment.offset.checked_add(u64::from(fragment.len));
        if end.is_none_or(|end| end > self.device) {
            return Err(Fault::Outside(fragment.offset));
        }
        let span = Span {
            offset: fragment.offset,
            len: fragment.len,
        };
        let name = u64::from(fragment.token);
        Ok(Placed::There { span, name })
    }

    fn return_all(&self, stretches: &[Stretch]) {
        let name = |stretch: &Stretch| match stretch {
            Stretch::Linear(_) => None,
            Stretch::Device { fragment, .. } => Some(u64::from(fragment.token)),
        };
        let names: Vec<u64> = stretches.iter().filter_map(name).collect();
        self.returns.give(&names);
    }
}

/// Numbers that mean something here: ENODEV, EFAULT, ENOMEM, ETOOSMALL.
const MEANT: [i32; 4] = [19, 14, 12, 525];

/// Tokens on their way back to the kernel.
#[derive(Debug)]
struct Returns {
    calls: Arc<dyn Calls>,
    /// Those that it did not take yet. Who has this lock is the only one who talks with the kernel of tokens: between
    /// two tries of the same ones none of them may be handed out again.
    debt: Mutex<Vec<u32>>,
}

impl Returns {
    fn debt(&self) -> MutexGuard<'_, Vec<u32>> {
        lock(&self.debt)
    }

    /// Gives back as much as the kernel takes.
    fn settle(&self, debt: &mut Vec<u32>) {
        debt.sort_unstable();
        let mut done = 0;
        while done < debt.len() {
            let batch = batch(&debt[done..]);
            if !self.give_some(&debt[done..done + batch]) {
                break;
            }
            done += batch;
        }
        debt.drain(..done);
    }

    /// One batch; `false`: the kernel refuses just now.
    fn give_some(&self, tokens: &[u32]) -> bool {
        let ranges = ranges(tokens);
        let mut left = tokens.len();
        while left > 0 {
            match self.calls.release(&ranges) {
                Ok(0) => break,
                Ok(freed) => left = left.saturating_sub(freed as usize),
                Err(_) => return false,
            }
        }
        // What is left is not out, to the kernel: a socket that was closed below us.
        true
    }
}

impl Giver for Returns {
    fn give(&self, names: &[u64]) {
        let mut debt = self.debt();
        // They came as 32 bits.
        debt.extend(names.iter().filter_map(|name| u32::try_from(*name).ok()));
        self.settle(&mut debt);
    }

    fn ended(&self) {
        // What it did not take before; owners of fragments keep the socket open.
        self.give(&[]);
        self.calls.end();
    }
}

/// How many of these tokens, in order, one call takes.
fn batch(tokens: &[u32]) -> usize {
    let mut ranges = 0;
    let mut last = None;
    for (n, token) in tokens.iter().enumerate() {
        let follows = last.is_some_and(|last: u32| last.checked_add(1) == Some(*token));
        ranges += usize::from(!follows);
        if ranges > RANGES_MAX || n == TOKENS_MAX as usize {
            return n;
        }
        last = Some(*token);
    }
    tokens.len()
}

fn ranges(tokens: &[u32]) -> Vec<Range> {
    let mut ranges: Vec<Range> = Vec::new();
    for token in tokens {
        match ranges.last_mut() {
            Some(last) if last.start.checked_add(last.count) == Some(*token) => last.count += 1,
            _ => ranges.push(Range {
                start: *token,
                count: 1,
            }),
        }
    }
    ranges
}

/// Out of a binding's memory.
#[derive(Debug)]
struct Outflow {
    calls: Arc<dyn Calls>,
    binding: u32,
}

/// Words of one answer of the error queue: `struct cmsghdr`, `sock_extended_err`, the address of who complains.
const ERROR_WORDS: usize = 16;

impl Sink for Outflow {
    fn send(&self, spans: &[Span]) -> Result<u64, Errno> {
        let sent = self.calls.send(self.binding, spans);
        sent.map(|bytes| bytes as u64)
    }

    fn done(&self, told: &mut dyn FnMut(u32, u32, bool)) -> Result<(), Errno> {
        let mut words = [0; ERROR_WORDS];
        loop {
            let len = match self.calls.errors(&mut words) {
                Err(Errno::AGAIN) => return Ok(()),
                len => len?,
            };
            let text: Vec<u8> = words
                .iter()
                .flat_map(|word: &u64| word.to_ne_bytes())
                .collect();
            let over = control::over(&text[..len.min(text.len())]).map_err(|_| Errno::PROTO)?;
            for over in over {
                told(over.first, over.last, over.copied);
            }
        }
    }

    fn abort(&self) {
        self.calls.abort();
    }
}
