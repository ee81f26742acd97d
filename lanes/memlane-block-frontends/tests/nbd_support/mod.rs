//! What the NBD tests share: a server for one test, a client that can misbehave, stock programs.

#![allow(dead_code, reason = "each test takes what it needs")]

use memlane_block::volume::Volume;
use memlane_block_frontends::nbd::wire::{self, Request, cmd, opt, rep};
use memlane_block_frontends::nbd::{Export, Listen, Server, ServerConfig, Snapshot, StopHandle};
use std::collections::HashMap;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Nothing here takes this long; a test that hangs ends with an error instead.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A folder of this test's own, which goes with it.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("memlane-nbd-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.file(name).to_str().unwrap().into()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A server that runs as long as this lives.
pub(crate) struct Served {
    pub(crate) folder: Folder,
    pub(crate) socket: PathBuf,
    pub(crate) stop: StopHandle,
    thread: Option<JoinHandle<io::Result<()>>>,
}

pub(crate) fn export(name: &str, volume: impl Volume + 'static) -> Export {
    Export {
        name: name.into(),
        description: String::new(),
        volume: Arc::new(volume),
        read_only: false,
    }
}

impl Served {
    pub(crate) fn volume(volume: impl Volume + 'static) -> Served {
        Served::with(vec![export("", volume)], |_| {})
    }

    pub(crate) fn with(exports: Vec<Export>, change: impl FnOnce(&mut ServerConfig)) -> Served {
        let folder = Folder::new();
        let socket = folder.file("nbd.sock");
        let mut config = ServerConfig::new(vec![Listen::Unix(socket.clone())], exports);
        change(&mut config);
        let server = Server::bind(config).unwrap();
        let stop = server.stop_handle();
        Served {
            folder,
            socket,
            stop,
            thread: Some(std::thread::spawn(move || server.run())),
        }
    }

    pub(crate) fn uri(&self) -> String {
        self.uri_of("")
    }

    pub(crate) fn uri_of(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket.display())
    }

    pub(crate) fn connect(&self) -> Raw {
        Raw::connect(&self.socket)
    }

    /// A client in transmission, with chunks or without.
    pub(crate) fn client(&self, structured: bool) -> Raw {
        let mut raw = self.connect();
        raw.greet();
        raw.go("", structured);
        raw
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.stop.snapshot()
    }

    /// Looks again until it is so.
    pub(crate) fn until(&self, what: &str, so: impl Fn(&Snapshot) -> bool) {
        let begin = std::time::Instant::now();
        while !so(&self.snapshot()) {
            let late = begin.elapsed() > PATIENCE;
            assert!(!late, "never: {what}: {:?}", self.snapshot());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub(crate) fn end(&mut self) {
        self.stop.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap().unwrap();
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.end();
    }
}

/// A reply, put together again.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Reply {
    pub(crate) error: u32,
    pub(crate) data: Vec<u8>,
    /// Chunks of data that it came in; 0 for a simple reply.
    pub(crate) chunks: u32,
    /// Block status.
    pub(crate) extents: Vec<(u32, u32)>,
}

/// A client that says what it is told to say.
pub(crate) struct Raw {
    pub(crate) stream: UnixStream,
    structured: bool,
    asked: HashMap<u64, Request>,
    partial: HashMap<u64, Reply>,
    next: u64,
}

impl Raw {
    pub(crate) fn connect(path: &Path) -> Raw {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Raw {
            stream,
            structured: false,
            asked: HashMap::new(),
            partial: HashMap::new(),
            next: 1,
        }
    }

    pub(crate) fn bytes(&mut self, n: usize) -> Vec<u8> {
        let mut bytes = vec![0; n];
        self.stream.read_exact(&mut bytes).expect("an answer");
        bytes
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("sent");
    }

    /// Is it closed, with nothing more to read?
    pub(crate) fn is_closed(&mut self) -> bool {
        match self.stream.read(&mut [0]) {
            Ok(n) => n == 0,
            Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
        }
    }

    pub(crate) fn greet(&mut self) {
        let hello = self.bytes(18);
        assert_eq!(&hello[..16], b"NBDMAGICIHAVEOPT");
        assert_eq!(&hello[16..], [0, 3]);
        self.send(&3u32.to_be_bytes());
    }

    pub(crate) fn option_header(option: u32, len: u32) -> Vec<u8> {
        let mut bytes = wire::IHAVEOPT.to_be_bytes().to_vec();
        bytes.extend(option.to_be_bytes());
        bytes.extend(len.to_be_bytes());
        bytes
    }

    /// Sends an option and reads its replies, up to the last.
    pub(crate) fn option(&mut self, option: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let mut bytes = Raw::option_header(option, u32::try_from(data.len()).unwrap());
        bytes.extend(data);
        self.send(&bytes);
        self.option_replies(option)
    }

    pub(crate) fn option_replies(&mut self, option: u32) -> Vec<(u32, Vec<u8>)> {
        let mut replies = Vec::new();
        loop {
            let header = self.bytes(20);
            assert_eq!(wire::u64_at(&header, 0), Some(wire::OPTION_REPLY_MAGIC));
            assert_eq!(wire::u32_at(&header, 8), Some(option));
            let kind = wire::u32_at(&header, 12).unwrap();
            let data = self.bytes(wire::u32_at(&header, 16).unwrap() as usize);
            replies.push((kind, data));
            if kind == rep::ACK || kind >= 1 << 31 {
                return replies;
            }
        }
    }

    pub(crate) fn name(name: &str) -> Vec<u8> {
        let mut data = u32::try_from(name.len()).unwrap().to_be_bytes().to_vec();
        data.extend(name.as_bytes());
        data
    }

    /// Asks for block status too, if it takes chunks.
    pub(crate) fn go(&mut self, export: &str, structured: bool) {
        self.structured = structured;
        if structured {
            assert_eq!(self.option(opt::STRUCTURED_REPLY, &[])[0].0, rep::ACK);
            let mut query = Raw::name(export);
            query.extend(1u32.to_be_bytes());
            query.extend(Raw::name("base:allocation"));
            let replies = self.option(opt::SET_META_CONTEXT, &query);
            assert_eq!(replies[0].0, rep::META_CONTEXT);
        }
        let mut data = Raw::name(export);
        data.extend(0u16.to_be_bytes());
        let replies = self.option(opt::GO, &data);
        assert_eq!(replies.last().unwrap().0, rep::ACK, "{replies:?}");
    }

    /// Sends a request and gives its cookie.
    pub(crate) fn ask(
        &mut self,
        command: u16,
        flags: u16,
        at: u64,
        len: u32,
        payload: &[u8],
    ) -> u64 {
        let cookie = self.next;
        self.next += 1;
        let request = Request {
            flags,
            command,
            cookie,
            at,
            len,
        };
        self.asked.insert(cookie, request);
        let mut bytes = request.encode().to_vec();
        bytes.extend(payload);
        self.send(&bytes);
        cookie
    }

    /// The next reply, whosever it is.
    pub(crate) fn reply(&mut self) -> (u64, Reply) {
        loop {
            let magic = wire::u32_at(&self.bytes(4), 0).unwrap();
            if magic == wire::SIMPLE_REPLY_MAGIC {
                let rest = self.bytes(12);
                let cookie = wire::u64_at(&rest, 4).unwrap();
                let request = self.asked.remove(&cookie).expect("a cookie of ours");
                let error = wire::u32_at(&rest, 0).unwrap();
                let reads = request.command == cmd::READ && error == 0;
                let data = self.bytes(if reads { request.len as usize } else { 0 });
                let reply = Reply {
                    error,
                    data,
                    ..Reply::default()
                };
                assert!(!(self.structured && reads), "READ needs chunks");
                return (cookie, reply);
            }
            assert_eq!(magic, wire::STRUCTURED_REPLY_MAGIC);
            assert!(self.structured, "chunks were not asked for");
            if let Some(reply) = self.chunk() {
                return reply;
            }
        }
    }

    /// One chunk; the reply, if it was its last.
    fn chunk(&mut self) -> Option<(u64, Reply)> {
        let rest = self.bytes(16);
        let flags = wire::u16_at(&rest, 0).unwrap();
        let kind = wire::u16_at(&rest, 2).unwrap();
        let cookie = wire::u64_at(&rest, 4).unwrap();
        let data = self.bytes(wire::u32_at(&rest, 12).unwrap() as usize);
        let request = *self.asked.get(&cookie).expect("a cookie of ours");
        let reply = self.partial.entry(cookie).or_default();
        match kind {
            wire::chunk::NONE => assert!(data.is_empty()),
            wire::chunk::OFFSET_DATA => {
                reply.data.resize(request.len as usize, 0);
                let at = wire::u64_at(&data, 0).unwrap() - request.at;
                let at = usize::try_from(at).unwrap();
                reply.data[at..at + data.len() - 8].copy_from_slice(&data[8..]);
                reply.chunks += 1;
            }
            wire::chunk::BLOCK_STATUS => {
                let one = |d: &[u8]| (wire::u32_at(d, 0).unwrap(), wire::u32_at(d, 4).unwrap());
                reply.extents = data[4..].chunks(8).map(one).collect();
            }
            wire::chunk::ERROR => reply.error = wire::u32_at(&data, 0).unwrap(),
            other => panic!("chunk {other}"),
        }
        if flags & wire::REPLY_FLAG_DONE == 0 {
            return None;
        }
        self.asked.remove(&cookie);
        Some((cookie, self.partial.remove(&cookie).unwrap_or_default()))
    }

    /// A request, and its reply.
    pub(crate) fn call(
        &mut self,
        command: u16,
        flags: u16,
        at: u64,
        len: u32,
        payload: &[u8],
    ) -> Reply {
        let cookie = self.ask(command, flags, at, len, payload);
        let (of, reply) = self.reply();
        assert_eq!(of, cookie);
        reply
    }

    pub(crate) fn read(&mut self, at: u64, len: u32) -> Reply {
        self.call(cmd::READ, 0, at, len, &[])
    }

    pub(crate) fn write(&mut self, at: u64, bytes: &[u8]) -> Reply {
        let len = u32::try_from(bytes.len()).unwrap();
        self.call(cmd::WRITE, 0, at, len, bytes)
    }
}

/// Is this program here? If not, that is said.
pub(crate) fn have(program: &str) -> bool {
    let found = Command::new("sh")
        .args(["-c", "command -v \"$0\" >/dev/null", program])
        .status();
    let there = found.is_ok_and(|status| status.success());
    if !there {
        let strict = std::env::var_os("MEMLANE_TEST_REQUIRE_ALL").is_some_and(|v| v == "1");
        assert!(!strict, "{program} is not installed");
        eprintln!("SKIPPED: {program} is not installed");
    }
    there
}

/// Runs a program, within a minute.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.arg("60").arg(program).args(arguments);
    command.output().unwrap()
}

/// Runs a program that must succeed, and gives what it said.
pub(crate) fn ok(program: &str, arguments: &[&str]) -> String {
    let output = run(program, arguments);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr);
    let well = output.status.success();
    assert!(well, "{program} {arguments:?}: {said}{complained}");
    said
}

/// Bytes that are the same in every run and different everywhere.
pub(crate) fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let mut bytes: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| next()).collect();
    bytes.truncate(len);
    bytes
}
