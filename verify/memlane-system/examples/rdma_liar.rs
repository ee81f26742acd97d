//! A client over RDMA that lies, for `--test rdma_liar`: `rdma_liar ADDRESS:PORT LIE`. It exits with 0 if the server has refused it,
//! or ended its connection, in time.

use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use memlane_core::access::SharedBytes;
use memlane_core::region::Region;
use memlane_transport::wire::{
    CONN_LEN, ConnReq, Control, Geometry, Immediate, Request, RequestKind,
};
use memlane_verbs::{
    Capacity, Completed, Completion, Data, Domain, Event, Id, Pair, Piece, Registration, Verb,
    Verbs,
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// How long the server may take to end a connection.
const PATIENCE: Duration = Duration::from_secs(20);
/// More than any message may have.
const BUFFER: usize = 1 << 20;

/// A connection, and memory of its own.
struct Liar {
    pair: Option<Pair>,
    registration: Option<Registration>,
    region: Arc<Region>,
    id: Arc<Id>,
}

/// What the server did about a connection.
#[derive(Debug, PartialEq)]
enum Outcome {
    Accepted,
    Refused,
    Ended,
}

impl Liar {
    /// Up to where the connection could be asked for.
    fn resolved(to: &SocketAddr) -> Result<Liar> {
        let id = Id::new(Verbs::find()?)?;
        id.resolve(None, to, Duration::from_secs(2))?;
        let mut liar = Liar {
            pair: None,
            registration: None,
            region: Arc::new(Region::create(c"liar", BUFFER, false).map_err(|e| e.0.to_string())?),
            id: Arc::new(id),
        };
        while !matches!(liar.event()?, Event::AddressResolved) {}
        liar.id.resolve_route(Duration::from_secs(2))?;
        while !matches!(liar.event()?, Event::RouteResolved) {}
        let domain = Domain::new(&liar.id)?;
        let capacity = Capacity {
            sends: 256,
            receives: 256,
            inline: 0,
        };
        let mut pair = Pair::new(&liar.id, &domain, capacity)?;
        let bytes = liar.region.bytes();
        let owner = Arc::clone(&liar.region);
        // SAFETY: the region is mapped as long as it lives.
        let registration = unsafe { domain.register(bytes, 0, owner)? };
        for number in 0..64 {
            pair.receive(number, piece(&registration, &bytes, 65536)?)?;
        }
        (liar.pair, liar.registration) = (Some(pair), Some(registration));
        Ok(liar)
    }

    /// The next thing that happens to the connection.
    fn event(&mut self) -> Result<Event> {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(event) = self.id.event()? {
                return Ok(event);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err("the server does nothing".into());
            }
            let fd = self.id.as_fd();
            let mut fds = [rustix::event::PollFd::new(
                &fd,
                rustix::event::PollFlags::IN,
            )];
            rustix::event::poll(&mut fds, Some(&left.try_into()?))?;
        }
    }

    /// What the server makes of it.
    fn outcome(&mut self) -> Result<Outcome> {
        loop {
            match self.event()? {
                Event::Established(_) => return Ok(Outcome::Accepted),
                Event::Rejected(..) | Event::Failed(_) => return Ok(Outcome::Refused),
                Event::Disconnected => return Ok(Outcome::Ended),
                _ => {}
            }
        }
    }

    /// Connects with this private data.
    fn connects(to: &SocketAddr, private: &[u8]) -> Result<(Liar, Outcome)> {
        let mut liar = Liar::resolved(to)?;
        liar.id.connect(private)?;
        let outcome = liar.outcome()?;
        Ok((liar, outcome))
    }

    /// A connection that the server believes.
    fn accepted(to: &SocketAddr, cid: u16, session: [u8; 16]) -> Result<Liar> {
        let (liar, outcome) = Liar::connects(to, &asks(cid, session))?;
        match outcome {
            Outcome::Accepted => Ok(liar),
            other => Err(format!("{other:?}").into()),
        }
    }

    /// Posts `len` bytes that begin with `bytes`.
    fn posts(&mut self, verb: Verb, bytes: &[u8], len: usize) -> Result<()> {
        let memory = self.region.bytes();
        // SAFETY: the bytes are readable for their length; the window checks its own bounds.
        unsafe { memory.copy_in(0, bytes.as_ptr(), bytes.len()) };
        let registration = self.registration.as_ref().expect("registered");
        let pieces = [piece(registration, &memory, len)?, Piece::NONE];
        let pair = self.pair.as_mut().expect("a queue pair");
        Ok(pair.send(0, verb, Data::Registered(&pieces), true)?)
    }

    /// Waits until the server has ended the connection, or the device says that it has failed.
    fn is_ended(&mut self) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if matches!(self.id.event()?, Some(Event::Disconnected)) {
                return Ok(());
            }
            let mut found: Vec<Completion> = Vec::new();
            self.pair.as_mut().expect("a queue pair").poll(&mut found)?;
            if found.iter().any(|c| matches!(c.what, Completed::Failed(_))) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Err("the server keeps the connection".into())
    }

    /// The server's first message that is a table of chunks.
    fn introduced(&mut self) -> Result<Control> {
        self.posts(Verb::Send, &introduction(), introduction().len())?;
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            let mut found: Vec<Completion> = Vec::new();
            self.pair.as_mut().expect("a queue pair").poll(&mut found)?;
            for completion in found {
                if let Completed::Message { len, .. } = completion.what {
                    let mut bytes = vec![0; len as usize];
                    // SAFETY: the vector is writable for its length; the window checks its own bounds.
                    unsafe {
                        self.region
                            .bytes()
                            .copy_out(0, bytes.as_mut_ptr(), bytes.len())
                    };
                    return Ok(Control::decode(&bytes)?);
                }
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Err("the server does not answer".into())
    }
}

fn piece(registration: &Registration, bytes: &SharedBytes, len: usize) -> Result<Piece> {
    let part = bytes.part(0, len).ok_or("too long")?;
    Ok(registration.piece(&part).ok_or("not registered")?)
}

/// A connection request without a fault.
fn asks(cid: u16, session: [u8; 16]) -> [u8; CONN_LEN] {
    ConnReq {
        cid,
        cid_num: 2,
        recon_cnt: 0,
        path: session,
        session,
        first_conn: true,
        caps: None,
    }
    .encode()
}

fn introduction() -> Vec<u8> {
    let name = "liar".to_owned();
    Control::InfoReq { name }.encode()
}

/// Not twice the same.
fn fresh() -> [u8; 16] {
    let mut bytes = [0; 16];
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    bytes.copy_from_slice(&now.map_or(1, |now| now.as_nanos()).to_le_bytes());
    bytes
}

/// Both connections of a path, introduced; and its chunks' address and key.
fn session(to: &SocketAddr) -> Result<(Liar, Liar, u64, u32)> {
    let uuid = fresh();
    let mut control = Liar::accepted(to, 0, uuid)?;
    let data = Liar::accepted(to, 1, uuid)?;
    match control.introduced()? {
        Control::InfoRsp { chunks } => Ok((control, data, chunks[0].addr, chunks[0].key)),
        other => Err(format!("{other:?}").into()),
    }
}

fn is_refused(to: &SocketAddr, private: &[u8]) -> Result<()> {
    match Liar::connects(to, private)?.1 {
        Outcome::Accepted => Err("the server believes it".into()),
        Outcome::Refused | Outcome::Ended => Ok(()),
    }
}

/// Writes these bytes to where the first chunk is, with this immediate, and a key that is wrong in these bits; waits for the end.
fn writes(to: &SocketAddr, immediate: u32, bytes: &[u8], wrong_bits: u32) -> Result<()> {
    let (_control, mut data, addr, key) = session(to)?;
    let verb = Verb::WriteImmediate {
        to: addr,
        key: key ^ wrong_bits,
        immediate,
    };
    data.posts(verb, bytes, 64)?;
    data.is_ended()
}

fn tells(to: &SocketAddr, lie: &str) -> Result<()> {
    let geometry = Geometry::new(128, 128 << 10, 4096)?;
    let request = |id, offset| geometry.request(id, offset).encode();
    match lie {
        "magic" => is_refused(to, &[0xa5; CONN_LEN]),
        "version" => {
            let mut private = asks(0, fresh());
            private[5] = 99;
            is_refused(to, &private)
        }
        "short" => is_refused(to, &[1, 2, 3]),
        "leaves" => {
            drop(Liar::resolved(to)?);
            let liar = Liar::resolved(to)?;
            liar.id.connect(&asks(0, fresh()))?;
            drop(liar);
            drop(Liar::accepted(to, 0, fresh())?);
            drop(session(to)?);
            Ok(())
        }
        "silent" => Liar::accepted(to, 0, fresh())?.is_ended(),
        "half" => {
            let mut control = Liar::accepted(to, 0, fresh())?;
            control.posts(Verb::Send, &introduction(), introduction().len())?;
            control.is_ended()
        }
        "long" => {
            let mut control = Liar::accepted(to, 0, fresh())?;
            control.posts(Verb::Send, &introduction(), BUFFER)?;
            control.is_ended()
        }
        "foreign" => writes(to, request(127, 0) | 0x0fff_ffff, &[0; 64], 0),
        "garbage" => writes(to, request(0, 0), &[0xee; 64], 0),
        "user" => {
            let header = Request {
                usr_len: u16::MAX,
                kind: RequestKind::Write,
                replay: None,
            };
            writes(to, request(0, 0), &header.encode(), 0)
        }
        "key" => writes(to, request(0, 0), &[0; 64], 0xff00),
        "beyond" => {
            let (_control, mut data, addr, key) = session(to)?;
            let to = addr + (1 << 40);
            data.posts(Verb::Write { to, key }, &[0; 64], 64)?;
            data.is_ended()
        }
        "flood" => {
            let (_control, mut data, addr, key) = session(to)?;
            let immediate = Immediate::Heartbeat.encode();
            for _ in 0..200 {
                let verb = Verb::WriteImmediate {
                    to: addr,
                    key,
                    immediate,
                };
                if data.posts(verb, &[0; 64], 64).is_err() {
                    break;
                }
            }
            std::thread::sleep(Duration::from_secs(1));
            Ok(())
        }
        other => Err(format!("no such lie: {other}").into()),
    }
}

fn main() {
    let mut words = std::env::args().skip(1);
    let (to, lie) = (words.next(), words.next());
    let to: SocketAddr = to.and_then(|to| to.parse().ok()).expect("ADDRESS:PORT");
    let lie = lie.expect("a lie");
    match tells(&to, &lie) {
        Ok(()) => println!("{lie}: the server did not fall for it"),
        Err(error) => {
            println!("{lie}: {error}");
            std::process::exit(1);
        }
    }
}
