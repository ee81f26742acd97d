//! The capture file: pcapng (draft-ietf-opsawg-pcapng), Ethernet frames as the kernel's loopback
//! interface has them (libpcap reads several interfaces of raw IP as a mistake), times in nanoseconds, one interface
//! for each lane.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// LINKTYPE_ETHERNET.
const ETHERNET: u16 = 1;

/// A capture that grows.
pub(super) struct Capture {
    to: Box<dyn Write>,
    written: u64,
    most: u64,
    pub(super) packets: u64,
}

/// Files in turn: the newest has the name that was asked for, older ones have numbers.
pub(super) struct Turns {
    path: PathBuf,
    size: u64,
    count: u32,
}

impl Turns {
    pub(super) fn new(path: &Path, size: u64, count: u32) -> io::Result<Turns> {
        let other = path == Path::new("-") || path.metadata().is_ok_and(|meta| !meta.is_file());
        if other {
            return Err(io::Error::other(
                "--rotate needs a file that can be renamed",
            ));
        }
        Ok(Turns {
            path: path.to_owned(),
            size,
            count,
        })
    }

    /// `a.pcapng`, `a.1.pcapng`, `a.2.pcapng`, …: how many turns ago it was written.
    fn name(&self, ago: u32) -> PathBuf {
        if ago == 0 {
            return self.path.clone();
        }
        match self.path.extension() {
            Some(ending) => {
                let mut number = std::ffi::OsString::from(format!("{ago}."));
                number.push(ending);
                self.path.with_extension(number)
            }
            None => self.path.with_extension(ago.to_string()),
        }
    }

    /// The next one's turn: `capture` goes on there.
    pub(super) fn next(&self, capture: &mut Capture) -> io::Result<()> {
        capture.flush()?;
        for ago in (1..self.count).rev() {
            match std::fs::rename(self.name(ago - 1), self.name(ago)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        let packets = capture.packets;
        *capture = Capture::create(&self.path, self.size)?;
        capture.packets = packets;
        Ok(())
    }
}

/// What became of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Put {
    Done,
    /// It would be longer than it may be.
    Full,
}

impl Capture {
    /// At `path` (`-` is standard output), for its owner's eyes only; `most` bytes at most.
    pub(super) fn create(path: &Path, most: u64) -> io::Result<Capture> {
        let to: Box<dyn Write> = if path == Path::new("-") {
            Box::new(BufWriter::with_capacity(1 << 20, io::stdout()))
        } else {
            Box::new(BufWriter::with_capacity(1 << 20, private(path)?))
        };
        Capture::over(to, most)
    }

    fn over(to: Box<dyn Write>, most: u64) -> io::Result<Capture> {
        let mut capture = Capture {
            to,
            written: 0,
            most,
            packets: 0,
        };
        capture.begin()?;
        Ok(capture)
    }

    fn begin(&mut self) -> io::Result<()> {
        let mut section = Vec::new();
        section.extend_from_slice(&0x1A2B_3C4D_u32.to_le_bytes());
        section.extend_from_slice(&1_u16.to_le_bytes());
        section.extend_from_slice(&0_u16.to_le_bytes());
        section.extend_from_slice(&u64::MAX.to_le_bytes()); // its length is not known yet
        let program = concat!("memlane ", env!("CARGO_PKG_VERSION"));
        option(&mut section, 4, program.as_bytes());
        option(&mut section, 0, &[]);
        self.block(0x0A0D_0D0A, &section)?;
        for (name, what) in [
            ("tcp", "bytes that went by TCP"),
            ("memlane", "bytes that went through shared memory"),
        ] {
            let mut interface = Vec::new();
            interface.extend_from_slice(&ETHERNET.to_le_bytes());
            interface.extend_from_slice(&[0; 6]); // reserved; no limit to a packet's length
            option(&mut interface, 2, name.as_bytes());
            option(&mut interface, 3, what.as_bytes());
            option(&mut interface, 9, &[9]); // nanoseconds
            option(&mut interface, 0, &[]);
            self.block(1, &interface)?;
        }
        self.to.flush()
    }

    /// One packet: `head` and `payload` are what is there of its `length` bytes.
    pub(super) fn packet(
        &mut self,
        lane: u8,
        time_ns: u64,
        head: &[u8],
        payload: &[u8],
        length: usize,
    ) -> io::Result<Put> {
        let there = head.len() + payload.len();
        let mut front = [0u8; 20];
        let (high, low) = (time_ns >> 32, time_ns & 0xffff_ffff);
        for (at, word) in [u64::from(lane), high, low, there as u64, length as u64]
            .into_iter()
            .enumerate()
        {
            let word = u32::try_from(word).unwrap_or(u32::MAX);
            front[4 * at..4 * at + 4].copy_from_slice(&word.to_le_bytes());
        }
        let padding = &[0u8; 3][..there.next_multiple_of(4) - there];
        let total = 12 + front.len() + there + padding.len();
        if self.written + total as u64 > self.most {
            return Ok(Put::Full);
        }
        self.parts(6, &[&front, head, payload, padding])?;
        self.packets += 1;
        Ok(Put::Done)
    }

    /// What was written so far can be read.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }

    /// Says at the end how many records were lost.
    pub(super) fn end(&mut self, dropped: u64, time_ns: u64) -> io::Result<()> {
        let mut statistics = Vec::new();
        statistics.extend_from_slice(&1_u32.to_le_bytes());
        let (high, low) = (time_ns >> 32, time_ns & 0xffff_ffff);
        for word in [high, low] {
            let word = u32::try_from(word).unwrap_or(0);
            statistics.extend_from_slice(&word.to_le_bytes());
        }
        option(&mut statistics, 5, &dropped.to_le_bytes()); // isb_ifdrop
        option(&mut statistics, 0, &[]);
        self.block(5, &statistics)?;
        self.to.flush()
    }

    fn block(&mut self, kind: u32, body: &[u8]) -> io::Result<()> {
        self.parts(kind, &[body])
    }

    fn parts(&mut self, kind: u32, parts: &[&[u8]]) -> io::Result<()> {
        let total = 12 + parts.iter().map(|p| p.len()).sum::<usize>();
        let length = u32::try_from(total).unwrap_or(u32::MAX).to_le_bytes();
        self.to.write_all(&kind.to_le_bytes())?;
        self.to.write_all(&length)?;
        for part in parts {
            self.to.write_all(part)?;
        }
        self.to.write_all(&length)?;
        self.written += total as u64;
        Ok(())
    }
}

/// Payload is nobody else's business, also in a file that was there before.
fn private(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)?;
    if file.metadata()?.is_file() {
        file.set_permissions(Permissions::from_mode(0o600))?;
        file.set_len(0)?;
    }
    Ok(file)
}

/// An option of a block; number 0 ends them.
fn option(to: &mut Vec<u8>, number: u16, value: &[u8]) {
    to.extend_from_slice(&number.to_le_bytes());
    to.extend_from_slice(&u16::try_from(value.len()).unwrap_or(0).to_le_bytes());
    to.extend_from_slice(value);
    to.resize(to.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_take_turns_and_the_oldest_goes() {
        let dir = std::env::temp_dir().join(format!("memlane-turns-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        for (name, older, oldest) in [
            ("a.pcapng", "a.1.pcapng", "a.2.pcapng"),
            ("plain", "plain.1", "plain.2"),
        ] {
            let path = dir.join(name);
            let turns = Turns::new(&path, 3000, 2).unwrap();
            let mut capture = Capture::create(&path, 3000).unwrap();
            for turn in 0..5_u8 {
                while capture
                    .packet(1, 5, &[turn; 40], &[turn; 101], 141)
                    .unwrap()
                    == Put::Done
                {}
                if turn < 4 {
                    turns.next(&mut capture).unwrap();
                }
            }
            capture.end(0, 6).unwrap();
            // Each begins as a capture does, and says whose turn it was.
            for (name, turn) in [(name, 4), (older, 3)] {
                let bytes = std::fs::read(dir.join(name)).unwrap();
                assert_eq!(bytes[..4], 0x0A0D_0D0A_u32.to_le_bytes(), "{name}");
                assert!(bytes.windows(40).any(|w| w == [turn; 40]), "{name}");
                assert!(bytes.len() <= 3100);
                let mode = std::fs::metadata(dir.join(name))
                    .unwrap()
                    .permissions()
                    .mode();
                assert_eq!(mode & 0o777, 0o600);
            }
            assert!(!dir.join(oldest).exists());
        }
        assert!(Turns::new(Path::new("-"), 3000, 2).is_err());
        assert!(Turns::new(Path::new("/dev/null"), 3000, 2).is_err());
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_capture_is_not_longer_than_it_may_be_and_nobody_else_may_read_it() {
        let dir = std::env::temp_dir().join(format!("memlane-capture-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("a.pcapng");
        std::fs::write(&path, vec![7u8; 100_000]).unwrap();
        let mut capture = Capture::create(&path, 3000).unwrap();
        let mut put = 0;
        while capture.packet(1, 5, &[0x45; 40], &[1; 101], 141).unwrap() == Put::Done {
            put += 1;
        }
        capture.end(3, 6).unwrap();
        assert_eq!(capture.packets, put);
        let meta = std::fs::metadata(&path).unwrap();
        assert_eq!(meta.permissions().mode() & 0o777, 0o600);
        assert!((2500..3100).contains(&meta.len()), "{}", meta.len());
        // Each block's length stands at both of its ends.
        let bytes = std::fs::read(&path).unwrap();
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        let mut at = 0;
        while at < bytes.len() {
            let length = word(at + 4);
            assert_eq!(word(at + length - 4), length);
            at += length;
        }
        assert_eq!(at, bytes.len());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
