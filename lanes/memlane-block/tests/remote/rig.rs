//! A client whose reopener and whose server take steps when the test says so.

use super::{Shared, TestSession};
use memlane_block::client::clock::Clock;
use memlane_block::client::error::OpenError;
use memlane_block::client::reopener::Reopener;
use memlane_block::client::{Access, Client, Opening, Options, RemoteVolume};
use memlane_block::volume::{Done, Errno, Io, Op, Queue};
use std::sync::{Arc, Weak};
use std::time::Duration;

pub struct Rig {
    pub session: Arc<TestSession>,
    /// What the client holds of the session.
    pub shared: Weak<Shared>,
    pub client: Option<Client>,
    pub reopener: Reopener,
    tags: u64,
}

impl Rig {
    /// A server with volumes: the name of each, and its size in bytes.
    pub fn new(volumes: &[(&str, u64)]) -> Rig {
        Rig::with(volumes, Options::default())
    }

    pub fn with(volumes: &[(&str, u64)], options: Options) -> Rig {
        let clock = Clock::manual();
        let session = TestSession::new(7, 16, clock.clone());
        for (name, size) in volumes {
            session.world().machine.add(name, *size);
        }
        let shared = Arc::new(Shared(Arc::clone(&session)));
        let weak = Arc::downgrade(&shared);
        let options = Options { clock, ..options };
        let (client, reopener) = Client::driven(shared, options).unwrap();
        Rig {
            session,
            shared: weak,
            client: Some(client),
            reopener,
            tags: 1 << 32,
        }
    }

    /// What can be done without time passing, is done.
    pub fn drive(&mut self) {
        for _ in 0..20 {
            self.reopener.step();
            self.session.settle();
        }
    }

    /// Lets time pass, and does everything that becomes due.
    pub fn pass(&mut self, time: Duration) {
        let steps = 40;
        for _ in 0..steps {
            self.session.advance(time / steps);
            self.drive();
        }
    }

    pub fn try_open(&mut self, name: &str, access: Access) -> Result<Arc<RemoteVolume>, OpenError> {
        let client = self.client.as_ref().expect("a client");
        let opening = client.begin_open(name, access);
        self.answer(&opening)
    }

    pub fn take_over(&mut self, name: &str) -> Result<Arc<RemoteVolume>, OpenError> {
        let client = self.client.as_ref().expect("a client");
        let opening = client.begin_take_over(name, Access::ReadWrite);
        self.answer(&opening)
    }

    fn answer(&mut self, opening: &Opening) -> Result<Arc<RemoteVolume>, OpenError> {
        for _ in 0..200 {
            self.drive();
            if let Some(opened) = opening.poll() {
                return opened;
            }
            self.session.advance(Duration::from_secs(1));
        }
        panic!("neither opened nor refused");
    }

    pub fn open(&mut self, name: &str) -> Arc<RemoteVolume> {
        self.try_open(name, Access::ReadWrite).unwrap()
    }

    pub fn restart(&mut self, machine_too: bool) {
        self.session.kill(machine_too);
        self.session.restart();
    }

    /// One request, to its end, while little time passes.
    pub fn ask(&mut self, queue: &mut Box<dyn Queue>, io: Io) -> Result<(), Errno> {
        self.done(queue, io).result
    }

    pub fn done(&mut self, queue: &mut Box<dyn Queue>, io: Io) -> Done {
        queue.submit(io);
        let mut all = Vec::new();
        for _ in 0..100 {
            queue.reap(&mut all);
            if let Some(done) = all.pop() {
                assert!(all.is_empty());
                return done;
            }
            self.drive();
            self.session.advance(Duration::from_millis(1));
        }
        panic!("it does not end");
    }

    pub fn write(&mut self, queue: &mut Box<dyn Queue>, at: u64, byte: u8) -> Result<(), Errno> {
        let io = self.writing(queue, at, byte);
        self.ask(queue, io)
    }

    /// A write of one block.
    pub fn writing(&mut self, queue: &mut Box<dyn Queue>, at: u64, byte: u8) -> Io {
        let lease = queue.lease(512).unwrap().expect("memory");
        assert!(lease.fill(0, &[byte; 512]));
        self.tags += 1;
        Io::data(self.tags, Op::Write, at, 512, lease)
    }

    pub fn read(&mut self, queue: &mut Box<dyn Queue>, at: u64) -> u8 {
        let lease = queue.lease(512).unwrap().expect("memory");
        let done = self.done(queue, Io::data(9, Op::Read, at, 512, lease));
        assert_eq!(done.result, Ok(()));
        let mut block = [0; 512];
        assert!(done.lease.unwrap().take(0, &mut block));
        assert!(block.iter().all(|byte| *byte == block[0]));
        block[0]
    }

    pub fn flush(&mut self, queue: &mut Box<dyn Queue>) -> Result<(), Errno> {
        self.ask(queue, Io::bare(8, Op::Flush, 0, 0))
    }
}
