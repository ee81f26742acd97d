//! A peer that speaks the handshake by itself, correctly or not, to a program under memlane.
#![allow(dead_code)] // each test file uses its own part of it

use std::ffi::CStr;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::time::Instant;

use memlane_core::layout::{CHUNK_MAGIC, DMB_WORDS_LEN, DMBS_AT, LAYOUT_VERSION, chunk_len};
use memlane_socket::protocol::wire::{self, Message, MessageKind};
use memlane_sys::fd::{self, Fd};
use memlane_sys::mem::{self, SEALS_FIXED};
use memlane_sys::sock::{self, Received, Tuple, UnixName};
use memlane_system::pair::{Alone, End, PATIENCE, Settings};
use memlane_system::real::Reason;

pub(crate) const RING: u32 = 256 << 10;
pub(crate) const SLOT: u16 = 5;
pub(crate) const TOKEN: u64 = 0x1122_3344_5566_7788;
pub(crate) const ID: u64 = 0x0000_0001_0000_0007;

/// Where a word of the DMB at [`SLOT`] lies in its chunk.
pub(crate) fn word(offset: usize) -> u64 {
    (DMBS_AT + usize::from(SLOT) * DMB_WORDS_LEN + offset) as u64
}

/// A memfd with the words of a chunk in it, as an honest peer makes it.
pub(crate) fn chunk() -> Fd {
    chunk_with(
        chunk_len(RING as usize),
        SEALS_FIXED,
        LAYOUT_VERSION,
        CHUNK_MAGIC,
    )
}

pub(crate) fn chunk_with(len: usize, seals: i32, version: u32, magic: u64) -> Fd {
    const NAME: &CStr = c"memlane-liar";
    let file = mem::memfd(NAME, len, false).expect("a memfd");
    put(&file, 0, &magic.to_ne_bytes());
    put(&file, 8, &RING.to_ne_bytes());
    put(&file, 12, &version.to_ne_bytes());
    put(&file, word(128), &1_u32.to_ne_bytes()); // PARKED
    put(&file, word(136), &TOKEN.to_ne_bytes());
    mem::add_seals(file.raw(), seals).expect("seals");
    file
}

/// Has the victim said that it will never touch the DMB in this chunk (again)?
pub(crate) fn is_let_go_of(file: &Fd) -> bool {
    let mut active = [0; 4];
    assert_eq!(fd::read_at(file.raw(), &mut active, word(392)), Ok(4));
    u32::from_ne_bytes(active) == 2 // docs/formats/chunk.md
}

pub(crate) fn put(file: &Fd, at: u64, bytes: &[u8]) {
    assert_eq!(fd::write_at(file.raw(), bytes, at), Ok(bytes.len()));
}

fn boot_id() -> [u64; 2] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("a boot id");
    let hex: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    [&hex[..16], &hex[16..32]].map(|half| u64::from_str_radix(half, 16).expect("hex"))
}

fn fnv(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// The peer, and the program that it lies to.
pub(crate) struct Meeting {
    pub(crate) victim: Alone,
    pub(crate) stream: TcpStream,
    /// As the liar sees it.
    pub(crate) tuple: Tuple,
    mailbox: Fd,
    /// Where the victim's mailbox is, once it has written, and its id of the connection.
    pub(crate) to: Option<(UnixName, u64)>,
    seed: u64,
    said: u64,
}

impl Meeting {
    /// The victim accepts.
    pub(crate) fn with_server(settings: &Settings<'_>) -> Meeting {
        let (victim, port) = End::listening(settings);
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        Meeting::new(victim, stream)
    }

    /// The victim connects.
    pub(crate) fn with_client(settings: &Settings<'_>) -> Meeting {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let victim = End::connecting(settings, port);
        let (stream, _) = listener.accept().expect("it connects");
        Meeting::new(victim, stream)
    }

    fn new(victim: Alone, stream: TcpStream) -> Meeting {
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        stream.set_nodelay(true).expect("a socket");
        let fd = stream.as_raw_fd();
        let tuple = Tuple {
            local: sock::local_addr(fd).expect("connected"),
            remote: sock::remote_addr(fd).expect("connected"),
        };
        Meeting {
            victim,
            stream,
            tuple,
            mailbox: sock::unix_datagram(None).expect("a mailbox"),
            to: None,
            seed: 0,
            said: 0,
        }
    }

    /// What an honest peer would say.
    pub(crate) fn message(&self, kind: MessageKind) -> Message {
        let mut m = Message::new(kind, self.tuple);
        (m.gid, m.boot, m.id) = (0x6c69_6172, boot_id(), ID);
        m.echo = self.to.as_ref().map_or(0, |(_, id)| *id);
        if matches!(kind, MessageKind::Accept | MessageKind::Confirm) {
            (m.token, m.chunk, m.slot, m.ring_size) = (TOKEN, 3, SLOT, RING);
        }
        m
    }

    /// What shows that it is the other end.
    pub(crate) fn proof(&self) -> Fd {
        fd::open_path_of(self.stream.as_raw_fd()).expect("a handle")
    }

    /// The name at which the victim, who accepted, awaits a Proposal.
    pub(crate) fn rendezvous(&self) -> UnixName {
        UnixName::abstract_name(&wire::rendezvous_name(&self.tuple)).expect("a name")
    }

    /// Says this to the victim's rendezvous name, as soon as there is one.
    pub(crate) fn propose(&mut self, bytes: &[u8], fds: &[&Fd]) {
        let (start, name) = (Instant::now(), self.rendezvous());
        let fds: Vec<i32> = fds.iter().map(|fd| fd.raw()).collect();
        while sock::send_with_fds(self.mailbox.raw(), &name, bytes, &fds).is_err() {
            assert!(start.elapsed() < PATIENCE, "no rendezvous name");
            self.exchange();
        }
    }

    /// Says this to the victim's mailbox.
    pub(crate) fn answer(&self, bytes: &[u8], fds: &[&Fd]) {
        let (to, _) = self.to.as_ref().expect("it has written");
        let fds: Vec<i32> = fds.iter().map(|fd| fd.raw()).collect();
        sock::send_with_fds(self.mailbox.raw(), to, bytes, &fds).expect("it is there");
    }

    /// What the victim writes to the liar's mailbox next.
    pub(crate) fn mail(&mut self) -> (Message, Received) {
        let own = self.mailbox.raw();
        self.mail_at(own)
    }

    /// Is there anything in the liar's mailbox?
    pub(crate) fn has_mail(&self) -> bool {
        let mut bytes = [0; wire::LEN + 1];
        sock::recv_with_fds(self.mailbox.raw(), &mut bytes).is_ok()
    }

    /// What it writes to `at`.
    fn mail_at(&mut self, at: i32) -> (Message, Received) {
        let start = Instant::now();
        let mut bytes = [0; wire::LEN + 1];
        loop {
            if let Ok(got) = sock::recv_with_fds(at, &mut bytes) {
                let len = got.len.expect("a whole message");
                let m = Message::decode(&bytes[..len]).expect("a message");
                let from = got.from.as_ref().map(UnixName::as_bytes).expect("a name");
                let from = UnixName::abstract_name(from).expect("a name");
                self.to = Some((from, m.id));
                return (m, got);
            }
            assert!(start.elapsed() < PATIENCE, "no mail: {:?}", self.conn());
            self.exchange();
        }
    }

    /// An honest Proposal; what the victim answers.
    pub(crate) fn accepted(&mut self) -> (Message, Received) {
        let (m, proof) = (self.message(MessageKind::Proposal), self.proof());
        self.propose(&m.encode(), &[&proof]);
        self.mail()
    }

    /// Waits for the Proposal of the victim, who connected.
    pub(crate) fn proposed(&mut self) -> (Message, Received) {
        let view = self.tuple.mirrored();
        let name = UnixName::abstract_name(&wire::rendezvous_name(&view)).expect("a name");
        let named = sock::unix_datagram(Some(&name)).expect("the name is free");
        self.mail_at(named.raw())
    }

    fn conn(&self) -> Option<memlane_system::real::lane::Conn> {
        self.victim.end.conn()
    }

    /// Sends this many bytes to it and receives as many from it, by TCP; each must arrive as it was.
    pub(crate) fn say(&mut self, bytes: usize) {
        self.seed += 1;
        let ours: Vec<u8> = (0..bytes)
            .map(|n| (n as u64 * 7 + self.seed).to_le_bytes()[0])
            .collect();
        self.victim.end.tell(&format!("take {bytes}"));
        self.stream.write_all(&ours).expect("it takes them");
        self.said += bytes as u64;
        let taken = self.victim.end.answer().taken;
        assert_eq!(taken, fnv(&ours), "{bytes} bytes to it: {:?}", self.conn());
        self.hear(bytes);
    }

    /// Receives this many bytes from it, by TCP.
    pub(crate) fn hear(&mut self, bytes: usize) {
        self.seed += 1;
        let order = format!("send {} {bytes}", self.seed);
        self.victim.end.tell(&order);
        let mut theirs = vec![0; bytes];
        self.stream.read_exact(&mut theirs).expect("it sends them");
        let sent = self.victim.end.answer().sent;
        assert_eq!(sent, fnv(&theirs), "{bytes} bytes of it: {:?}", self.conn());
    }

    /// Bytes that the liar has sent.
    pub(crate) fn said(&self) -> u64 {
        self.said
    }

    pub(crate) fn exchange(&mut self) {
        self.say(100);
    }

    /// The victim gives up the lane for this reason, and loses no byte over it.
    pub(crate) fn ends_on_tcp(&mut self, reason: Reason) {
        let start = Instant::now();
        while !self.victim.end.gave_up() {
            assert!(start.elapsed() < PATIENCE, "still {:?}", self.conn());
            self.exchange();
        }
        self.say(300_000);
        let conn = self.conn().expect("a page");
        assert_eq!(conn.reason.name(), reason.name(), "{conn:?}");
        assert_eq!(conn.bytes[..2], [0, 0], "{conn:?}");
    }

    /// The victim opens the lane, whatever was said before.
    pub(crate) fn ends_on_lane(&mut self) {
        let start = Instant::now();
        while !self.conn().is_some_and(|conn| conn.on_lane()) {
            assert!(start.elapsed() < PATIENCE, "still {:?}", self.conn());
            self.exchange();
        }
        self.say(300_000);
    }
}
