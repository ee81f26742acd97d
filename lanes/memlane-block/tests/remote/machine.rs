//! The server's machine: volumes with a volatile cache, and a server process that forgets which it has opened.

use memlane_block::volume::{Flags, Info, Op};
use memlane_block::wire::{CAPS, IoMsg, Message, OpenRsp, SECTOR, SessInfoRsp, VERSION, Wish};
use memlane_sim::rng::Rng;
use std::collections::BTreeMap;

/// How a request went, and what is to be read.
pub struct Verdict {
    pub errno: u16,
    pub answer: Vec<u8>,
}

fn errno(errno: i32) -> Verdict {
    Verdict {
        errno: u16::try_from(errno).expect("an error number"),
        answer: Vec::new(),
    }
}

fn fine(answer: &[u8]) -> Verdict {
    Verdict {
        errno: 0,
        answer: answer.to_vec(),
    }
}

/// A volume.
pub struct Disk {
    pub info: Info,
    /// What is read.
    pub now: Vec<u8>,
    /// What is there after a power failure.
    pub durable: Vec<u8>,
    /// OPEN fails with this.
    pub refuse: Option<u16>,
    /// What was executed, in order.
    pub log: Vec<IoMsg>,
}

impl Disk {
    pub fn resize(&mut self, size: u64) {
        self.info.size = size;
        let size = usize::try_from(size).expect("a size");
        self.now.resize(size, 0);
        self.durable.resize(size, 0);
    }
}

pub struct Machine {
    pub disks: BTreeMap<String, Disk>,
    /// Open volumes, by number.
    pub open: BTreeMap<u32, String>,
    pub caps: u16,
    pub boot: [u8; 16],
    pub said_hello: bool,
    /// Numbers are 1, 2, …, not random: those of the past hit other volumes.
    pub counts: bool,
    ids: Rng,
    /// SESS_INFO, OPEN, CLOSE that came.
    pub hellos: u32,
    pub opens: u32,
    pub closes: u32,
    /// What the last OPEN wished.
    pub wish: Wish,
    /// Requests for numbers that are not open.
    pub strangers: u32,
}

impl Machine {
    pub fn new(seed: u64) -> Machine {
        Machine {
            disks: BTreeMap::new(),
            open: BTreeMap::new(),
            caps: CAPS,
            boot: [1; 16],
            said_hello: false,
            counts: false,
            ids: Rng::new(seed),
            hellos: 0,
            opens: 0,
            closes: 0,
            wish: Wish::default(),
            strangers: 0,
        }
    }

    pub fn add(&mut self, name: &str, size: u64) {
        let info = Info {
            size,
            block: 512,
            preferred: 4096,
            max_io: 1 << 20,
            max_trim: 1 << 20,
            read_only: false,
            cached: true,
            trim: true,
            zeroes: true,
            extents: true,
        };
        let bytes = vec![0; usize::try_from(size).expect("a size")];
        let disk = Disk {
            info,
            now: bytes.clone(),
            durable: bytes,
            refuse: None,
            log: Vec::new(),
        };
        self.disks.insert(name.into(), disk);
    }

    pub fn disk(&mut self, name: &str) -> &mut Disk {
        self.disks.get_mut(name).expect("a volume")
    }

    /// The server is gone; with the machine goes what was in its cache, or a part of that.
    pub fn die(&mut self, machine_too: bool, rng: &mut Rng) {
        self.open.clear();
        self.said_hello = false;
        if !machine_too {
            return;
        }
        self.boot = u128::from(rng.any() | 1).to_le_bytes();
        for disk in self.disks.values_mut() {
            for (now, durable) in disk.now.chunks_mut(512).zip(disk.durable.chunks_mut(512)) {
                if rng.chance(50) {
                    durable.copy_from_slice(now);
                } else {
                    now.copy_from_slice(durable);
                }
            }
        }
    }

    pub fn start(&mut self) {
        self.open.clear();
    }

    pub fn execute(&mut self, usr: &[u8], data: &[u8]) -> Verdict {
        match Message::decode(usr) {
            Err(_) => errno(libc::EPROTO),
            Ok(Message::SessInfo(hello)) => {
                self.hellos += 1;
                self.said_hello = true;
                let rsp = SessInfoRsp {
                    version: VERSION,
                    caps: hello.caps & self.caps,
                    boot: self.boot,
                };
                fine(&rsp.encode())
            }
            Ok(Message::Open(open)) => {
                self.opens += 1;
                self.wish = open.wish;
                self.open(&open.name)
            }
            Ok(Message::Close(close)) => {
                self.closes += 1;
                match self.open.remove(&close.device_id) {
                    Some(_) => fine(&[]),
                    None => errno(libc::ENODEV),
                }
            }
            Ok(Message::Io(io)) => self.io(&io, data),
        }
    }

    fn open(&mut self, name: &str) -> Verdict {
        // A volume has many spellings.
        let name = name.trim_start_matches('/');
        let caps = self.caps;
        let Some(disk) = self.disks.get(name).filter(|_| self.said_hello) else {
            return errno(libc::ENOENT);
        };
        if let Some(refuse) = disk.refuse {
            return errno(refuse.into());
        }
        let known = self.open.iter().find(|(_, open)| *open == name);
        let id = match known {
            Some((id, _)) => *id,
            None if self.counts => 1 + u32::try_from(self.open.len()).expect("few"),
            None => u32::try_from(self.ids.any() >> 32).expect("32 bits"),
        };
        let rsp = OpenRsp::of(id, &disk.info, caps);
        self.open.insert(id, name.into());
        fine(&rsp.encode())
    }

    fn io(&mut self, io: &IoMsg, data: &[u8]) -> Verdict {
        let name = self.open.get(&io.device_id);
        let Some(disk) = name.and_then(|name| self.disks.get_mut(name)) else {
            self.strangers += 1;
            return errno(libc::ENODEV);
        };
        disk.log.push(*io);
        let (at, len) = (io.sector * u64::from(SECTOR), u64::from(io.len));
        if io.op != Op::Flush && at + len > disk.info.size {
            return errno(libc::EINVAL);
        }
        let span = usize::try_from(at).expect("an offset");
        let span = span..span + io.len as usize;
        if io.flags.has(Flags::PREFLUSH) {
            disk.durable.clone_from(&disk.now);
        }
        match io.op {
            Op::Read => return fine(&disk.now[span]),
            Op::Flush => disk.durable.clone_from(&disk.now),
            Op::Write => disk.now[span.clone()].copy_from_slice(data),
            Op::Trim | Op::WriteZeroes => disk.now[span.clone()].fill(0),
            Op::Extents => {
                let mut record = len.to_le_bytes().to_vec();
                record.resize(32, 0);
                return fine(&record);
            }
        }
        if io.flags.has(Flags::FUA) {
            disk.durable[span.clone()].copy_from_slice(&disk.now[span]);
        }
        fine(&[])
    }
}
