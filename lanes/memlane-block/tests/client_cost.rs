//! What the client adds to a request: no memory, and how many nanoseconds (printed, not judged).

use memlane_block::client::{Access, Client, Options};
use memlane_block::volume::{Done, Io, Lease, Lender, Op, Volume as _};
use memlane_block::wire::{CAPS, Message, OpenRsp, SessInfoRsp, VERSION};
use memlane_core::region::Region;
use memlane_transport::port::{Completion, LeaseError, News, Port, Session, Submission};
use memlane_transport::wire::Geometry;
use rustix::event::{EventfdFlags, eventfd};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Counts what is allocated.
struct Counting;

thread_local! {
    /// By this thread: the harness has others.
    static ALLOCATED: Cell<u64> = const { Cell::new(0) };
}

fn allocated() -> u64 {
    ALLOCATED.with(Cell::get)
}

// SAFETY: it does what the system's allocator does.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A session whose server has answered before it is asked.
struct AtOnce {
    memory: Region,
    pool: Arc<Pool>,
    quiet: OwnedFd,
}

struct Pool(Mutex<Vec<u32>>);

impl Lender for Pool {
    fn give_back(&self, number: u32) {
        self.0.lock().unwrap().push(number);
    }
}

fn never() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC).unwrap()
}

impl Session for AtOnce {
    fn port(&self) -> std::io::Result<Box<dyn Port>> {
        Ok(Box::new(AtOncePort {
            memory: self.memory.bytes(),
            pool: Arc::clone(&self.pool),
            done: Vec::with_capacity(64),
            quiet: never(),
        }))
    }

    fn geometry(&self) -> Option<Geometry> {
        Geometry::new(512, 8192, 4096).ok()
    }

    fn news(&self) -> Option<News> {
        None
    }

    fn news_fd(&self) -> BorrowedFd<'_> {
        self.quiet.as_fd()
    }
}

struct AtOncePort {
    memory: memlane_core::access::SharedBytes,
    pool: Arc<Pool>,
    done: Vec<Completion>,
    quiet: OwnedFd,
}

impl Port for AtOncePort {
    fn lease(&mut self, len: u32) -> Result<Option<Lease>, LeaseError> {
        let number = self.pool.0.lock().unwrap().pop();
        Ok(number.map(|number| {
            let bytes = self.memory.part(number as usize * 4096, len as usize);
            Lease::new(bytes.unwrap(), number, Arc::clone(&self.pool) as _)
        }))
    }

    fn submit(&mut self, submission: Submission) {
        let answer = match Message::decode(&submission.usr).unwrap() {
            Message::SessInfo(_) => SessInfoRsp {
                version: VERSION,
                caps: CAPS,
                boot: [1; 16],
            }
            .encode()
            .to_vec(),
            Message::Open(_) => open_rsp().encode().to_vec(),
            _ => Vec::new(),
        };
        if let Some(lease) = &submission.lease {
            assert!(lease.fill(0, &answer));
        }
        self.done.push(Completion {
            tag: submission.tag,
            result: Ok(()),
            lease: submission.lease,
        });
    }

    fn push(&mut self) {}

    fn reap(&mut self, into: &mut Vec<Completion>) -> usize {
        let n = self.done.len();
        into.append(&mut self.done);
        n
    }

    fn arm(&mut self) -> bool {
        !self.done.is_empty()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.quiet.as_fd()
    }

    fn wait(&mut self, _limit: Option<Duration>) {}
}

fn open_rsp() -> OpenRsp {
    OpenRsp {
        device_id: 7,
        sectors: 1 << 20,
        max_io_sectors: 8,
        max_write_zeroes_sectors: 0,
        max_discard_sectors: 0,
        discard_granularity: 4096,
        physical_block: 4096,
        logical_block: 512,
        max_segments: 1,
        fua: true,
        writeback: true,
        flags: None,
        loan: None,
    }
}

#[test]
fn a_request_takes_no_memory() {
    let session = Arc::new(AtOnce {
        memory: Region::create(c"test-leases", 64 * 4096, false).unwrap(),
        pool: Arc::new(Pool(Mutex::new((0..64).collect()))),
        quiet: never(),
    });
    let (client, mut reopener) = Client::driven(session, Options::default()).unwrap();
    let opening = client.begin_open("disk", Access::ReadWrite);
    while opening.poll().is_none() {
        if reopener.step().is_none() {
            panic!("over");
        }
        if let Some(volume) = opening.poll() {
            measure(&volume.unwrap());
            return;
        }
    }
}

fn measure(volume: &memlane_block::client::RemoteVolume) {
    let mut queue = volume.queue().unwrap();
    let mut done: Vec<Done> = Vec::with_capacity(64);
    let mut round = |op| {
        for i in 0..32 {
            let lease = queue.lease(4096).unwrap().unwrap();
            queue.submit(Io::data(i, op, i * 4096, 4096, lease));
        }
        queue.push();
        assert_eq!(queue.reap(&mut done), 32);
        assert!(done.drain(..).all(|done| done.result.is_ok()));
    };
    for op in [Op::Read, Op::Write] {
        (0..100).for_each(|_| round(op));
        let (before, began) = (allocated(), Instant::now());
        (0..1000).for_each(|_| round(op));
        let (took, requests) = (began.elapsed(), 32_000);
        let memory = allocated() - before;
        println!("{op:?}: {} ns each", took.as_nanos() / requests);
        assert_eq!(memory, 0, "of {requests} requests");
    }
}
