//! Capture files (`pcap`, version 2.4; draft-ietf-opsawg-pcap): frames into one, and out of one again.
//!
//! | bytes | file header | | bytes | before each frame |
//! |---|---|---|---|---|
//! | 4 | magic a1b2c3d4 (µs) or a1b23c4d (ns), in the writer's byte order | | 4 | seconds since 1970 |
//! | 2, 2 | version 2, 4 | | 4 | µs or ns |
//! | 4, 4 | 0, 0 | | 4 | bytes that follow |
//! | 4 | bytes of a frame, at most | | 4 | bytes that the frame had |
//! | 4 | 1: Ethernet | | | |

use super::{End, EndCounts, EndError, More, Sent, Sleep, headers, lend};
use memlane_packet::Meta;
use memlane_packet::engine::chain::Frame;
use memlane_packet::layout::{PACKET_MAX, PACKET_MIN};
use memlane_sys::Errno;
use rustix::event::PollFd;
use std::fs::File;
use std::io::{BufReader, BufWriter, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const MICROS: u32 = 0xa1b2_c3d4;
const NANOS: u32 = 0xa1b2_3c4d;
const ETHERNET: u32 = 1;
const FILE_HEADER: usize = 24;
const RECORD: usize = 16;
/// Bytes of a frame in a file of ours, at most: `PACKET_MAX`.
const LONGEST: u32 = 0xffff;
/// Longest record that is believed: libpcap's `MAXIMUM_SNAPLEN`.
const RECORD_MAX: usize = 262_144;

fn device(error: &std::io::Error) -> EndError {
    // EIO, if there is no number.
    EndError::Device(Errno(error.raw_os_error().unwrap_or(5)))
}

/// Writes what it is sent to a file. Nothing comes from it.
#[derive(Debug)]
pub struct Capture {
    file: BufWriter<File>,
    name: String,
    /// Bytes of a frame that are written.
    snap: usize,
    frame: Box<[u8]>,
    counts: EndCounts,
}

impl Capture {
    /// Begins a file anew.
    ///
    /// # Errors
    /// The file's.
    pub fn create(path: &Path) -> Result<Capture, EndError> {
        Capture::create_short(path, LONGEST)
    }

    /// Begins a file anew, with the first `snap` bytes of each frame, 1 to 65535.
    ///
    /// # Errors
    /// The file's.
    pub fn create_short(path: &Path, snap: u32) -> Result<Capture, EndError> {
        let snap = snap.clamp(1, LONGEST);
        let file = File::create(path).map_err(|error| device(&error))?;
        let mut file = BufWriter::with_capacity(256 << 10, file);
        let mut header = Vec::with_capacity(FILE_HEADER);
        header.extend(NANOS.to_le_bytes());
        header.extend([2, 0, 4, 0]);
        header.extend([0; 8]);
        header.extend(snap.to_le_bytes());
        header.extend(ETHERNET.to_le_bytes());
        file.write_all(&header).map_err(|error| device(&error))?;
        Ok(Capture {
            file,
            name: format!("pcap:{}", path.display()),
            snap: snap as usize,
            frame: vec![0; PACKET_MAX].into(),
            counts: EndCounts::default(),
        })
    }

    fn record(&mut self, len: usize) -> std::io::Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.unwrap_or_default();
        let mut head = [0; RECORD];
        // Until the year 2106.
        let seconds = u32::try_from(now.as_secs()).unwrap_or(u32::MAX);
        let kept = len.min(self.snap);
        let [part, whole] = [kept, len].map(|n| u32::try_from(n).unwrap_or(LONGEST));
        let words = [seconds, now.subsec_nanos(), part, whole];
        for (bytes, word) in head.chunks_exact_mut(4).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        self.file.write_all(&head)?;
        self.file.write_all(&self.frame[..kept])
    }
}

impl End for Capture {
    fn name(&self) -> &str {
        &self.name
    }

    fn receive(
        &mut self,
        _: usize,
        _: &mut dyn FnMut(&Frame<'_>) -> More,
    ) -> Result<usize, EndError> {
        Ok(0)
    }

    fn send(&mut self, frame: &Frame<'_>) -> Result<Sent, EndError> {
        let len = frame.copy_out(0, &mut self.frame);
        if frame.meta().csum_blank && frame.meta().gso.is_none() {
            let bytes = &mut self.frame[..len];
            if let Some(found) = headers::find(&bytes[..len.min(headers::LOOK)], len) {
                headers::fill_in(bytes, found.at, found.checksum, found.end);
            }
        }
        self.record(len).map_err(|error| device(&error))?;
        self.counts.count_sent(len);
        Ok(Sent::Queued)
    }

    /// Before a sleep all is in the file: who looks at it sees what there was.
    fn sleeps(&mut self, _: Sleep) -> Result<bool, EndError> {
        self.file.flush().map_err(|error| device(&error))?;
        Ok(true)
    }

    fn watch<'a>(&'a self, _: Sleep, _: &mut Vec<PollFd<'a>>) {}

    fn counts(&self) -> EndCounts {
        self.counts
    }
}

/// What a replay does at the end of its file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Again {
    Never,
    /// Begins again. Were there frames since the last beginning?
    Loop {
        some: bool,
    },
}

/// Frames out of a file, as fast as they go or as they once came. What is sent to it is gone.
#[derive(Debug)]
pub struct Replay {
    file: BufReader<File>,
    name: String,
    big_endian: bool,
    nanos: bool,
    paced: bool,
    again: Again,
    /// When the first frame went, and its time.
    began: Option<(Instant, Duration)>,
    /// A frame that was read and is not yet due: bytes, time.
    next: Option<(usize, Duration)>,
    /// Nothing is read behind the end, nor behind what is no record.
    ended: Option<EndError>,
    frame: Box<[u8]>,
    counts: EndCounts,
}

impl Replay {
    /// Opens a file; `paced`: frames keep their distances.
    ///
    /// # Errors
    /// The file's, or it is no capture of Ethernet frames.
    pub fn open(path: &Path, paced: bool) -> Result<Replay, EndError> {
        let file = File::open(path).map_err(|error| device(&error))?;
        let mut replay = Replay {
            file: BufReader::with_capacity(256 << 10, file),
            name: format!("replay:{}", path.display()),
            big_endian: false,
            nanos: false,
            paced,
            again: Again::Never,
            began: None,
            next: None,
            ended: None,
            frame: vec![0; RECORD_MAX].into(),
            counts: EndCounts::default(),
        };
        let mut header = [0; FILE_HEADER];
        if !replay.fill(&mut header)? {
            return Err(EndError::Malformed(
                "the file is shorter than a capture's header",
            ));
        }
        replay.understand(&header)?;
        Ok(replay)
    }

    /// Has it begin again at the end of its file, for ever.
    #[must_use]
    pub fn looped(mut self) -> Replay {
        self.again = Again::Loop { some: false };
        self
    }

    /// At the end of the file: back to the first frame, unless that was all.
    fn rewind(&mut self) -> Result<(), EndError> {
        // A file without a frame that can be sent would go round for ever.
        if self.again != (Again::Loop { some: true }) {
            return Err(EndError::Finished);
        }
        self.again = Again::Loop { some: false };
        let to = SeekFrom::Start(FILE_HEADER as u64);
        self.file.seek(to).map_err(|error| device(&error))?;
        self.began = None;
        Ok(())
    }

    fn understand(&mut self, header: &[u8; FILE_HEADER]) -> Result<(), EndError> {
        let magic = [header[0], header[1], header[2], header[3]];
        self.big_endian = matches!(u32::from_be_bytes(magic), MICROS | NANOS);
        self.nanos = match self.word(header, 0) {
            MICROS => false,
            NANOS => true,
            _ => {
                return Err(EndError::Malformed(
                    "no capture file (pcapng is not read: convert it)",
                ));
            }
        };
        // The upper bits may say how long a check sequence is.
        if self.word(header, 20) & 0x0fff_ffff != ETHERNET {
            return Err(EndError::Malformed(
                "a capture of something else than Ethernet",
            ));
        }
        Ok(())
    }

    fn word(&self, bytes: &[u8], at: usize) -> u32 {
        let four = bytes.get(at..at + 4).and_then(|four| four.try_into().ok());
        let four = four.unwrap_or_default();
        if self.big_endian {
            u32::from_be_bytes(four)
        } else {
            u32::from_le_bytes(four)
        }
    }

    /// Reads as many bytes; `false`: the file ends before.
    fn fill(&mut self, into: &mut [u8]) -> Result<bool, EndError> {
        match self.file.read_exact(into) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(device(&error)),
        }
    }

    /// Has the next frame in `self.frame`; (its bytes, its time).
    fn load(&mut self) -> Result<(usize, Duration), EndError> {
        loop {
            let mut head = [0; RECORD];
            if !self.fill(&mut head)? {
                self.rewind()?;
                continue;
            }
            let [seconds, part, len, whole] = [0, 4, 8, 12].map(|at| self.word(&head, at));
            let unit = if self.nanos { 1 } else { 1000 };
            let time =
                Duration::from_secs(seconds.into()) + Duration::from_nanos(u64::from(part) * unit);
            let (len, whole) = (len as usize, whole as usize);
            if len > RECORD_MAX {
                return Err(EndError::Malformed(
                    "a record is longer than any: the file is damaged",
                ));
            }
            let mut frame = std::mem::take(&mut self.frame);
            let there = self.fill(&mut frame[..len]);
            self.frame = frame;
            if !there? {
                return Err(EndError::Malformed("the file ends within a frame"));
            }
            // Not cut off when it was captured, and what can be sent.
            if len == whole && (PACKET_MIN..=PACKET_MAX).contains(&len) {
                if let Again::Loop { some } = &mut self.again {
                    *some = true;
                }
                return Ok((len, time));
            }
            self.counts.failed += 1;
        }
    }

    fn next_due(&self) -> Option<Instant> {
        let ((began, first), (_, time)) = (self.began?, self.next?);
        self.paced
            .then(|| began.checked_add(time.saturating_sub(first)))?
    }
}

impl End for Replay {
    fn name(&self) -> &str {
        &self.name
    }

    fn receive(
        &mut self,
        most: usize,
        take: &mut dyn FnMut(&Frame<'_>) -> More,
    ) -> Result<usize, EndError> {
        for n in 0..most {
            let (len, time) = match self.next {
                Some(next) => next,
                None => match self.ended.map_or_else(|| self.load(), Err) {
                    Ok(next) => next,
                    Err(error) => {
                        self.ended = Some(error);
                        // Told next time: what came before it goes first.
                        return if n > 0 { Ok(n) } else { Err(error) };
                    }
                },
            };
            self.next = Some((len, time));
            self.began.get_or_insert_with(|| (Instant::now(), time));
            if self.next_due().is_some_and(|due| due > Instant::now()) {
                return Ok(n);
            }
            self.next = None;
            self.counts.count_received(len);
            if lend(&self.frame[..len], Meta::default(), take) == More::No {
                return Ok(n + 1);
            }
        }
        Ok(most)
    }

    fn send(&mut self, frame: &Frame<'_>) -> Result<Sent, EndError> {
        self.counts.count_sent(frame.len());
        Ok(Sent::Queued)
    }

    fn sleeps(&mut self, until: Sleep) -> Result<bool, EndError> {
        let waits = self.next_due().is_some_and(|due| due > Instant::now());
        Ok(!until.frames || waits)
    }

    fn watch<'a>(&'a self, _: Sleep, _: &mut Vec<PollFd<'a>>) {}

    fn due(&self) -> Option<Instant> {
        self.next_due()
    }

    fn counts(&self) -> EndCounts {
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(label: &str) -> std::path::PathBuf {
        let name = format!("memlane-pcap-{label}-{}", std::process::id());
        std::env::temp_dir().join(name)
    }

    fn all(replay: &mut Replay, most: usize) -> (Vec<Vec<u8>>, EndError) {
        let mut frames = Vec::new();
        loop {
            let came = replay.receive(most, &mut |frame| {
                let mut bytes = vec![0; frame.len()];
                frame.copy_out(0, &mut bytes);
                frames.push(bytes);
                More::Yes
            });
            if let Err(error) = came {
                assert_eq!(replay.receive(most, &mut |_| More::Yes), Err(error));
                return (frames, error);
            }
        }
    }

    fn replay(bytes: &[u8], most: usize) -> (Vec<Vec<u8>>, EndError) {
        static SERIAL: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let n = SERIAL.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = place(&format!("in{n}"));
        std::fs::write(&path, bytes).unwrap();
        let opened = Replay::open(&path, false);
        std::fs::remove_file(&path).unwrap();
        match opened {
            Ok(mut replay) => all(&mut replay, most),
            Err(error) => (Vec::new(), error),
        }
    }

    /// Written out by hand: µs, big endian, two frames, of which the first was cut off.
    fn by_hand() -> Vec<u8> {
        let mut file = vec![0xa1, 0xb2, 0xc3, 0xd4, 0, 2, 0, 4];
        file.extend([0; 8]);
        file.extend([0, 0, 0xff, 0xff, 0, 0, 0, 1]);
        file.extend([0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 20, 0, 0, 0, 60]);
        file.extend([1; 20]);
        file.extend([0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0, 15, 0, 0, 0, 15]);
        file.extend([2; 15]);
        file
    }

    #[test]
    fn what_was_captured_is_replayed() {
        let path = place("roundtrip");
        let mut capture = Capture::create(&path).unwrap();
        let frames = [vec![1; 14], vec![2; 60], vec![3; PACKET_MAX]];
        for bytes in &frames {
            lend(bytes, Meta::default(), &mut |frame| {
                assert_eq!(capture.send(frame), Ok(Sent::Queued));
                More::Yes
            });
        }
        assert_eq!(capture.sleeps(Sleep::FOR_FRAMES), Ok(true));
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(bytes.len(), 24 + 3 * 16 + 14 + 60 + PACKET_MAX);
        assert_eq!(replay(&bytes, 2), (frames.to_vec(), EndError::Finished));
    }

    #[test]
    fn of_long_frames_as_much_is_written_as_was_asked_for() {
        let path = place("snap");
        let mut capture = Capture::create_short(&path, 20).unwrap();
        for len in [15, 60] {
            lend(&[7; 60][..len], Meta::default(), &mut |frame| {
                assert_eq!(capture.send(frame), Ok(Sent::Queued));
                More::Yes
            });
        }
        assert_eq!(capture.sleeps(Sleep::FOR_FRAMES), Ok(true));
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(bytes.len(), 24 + 2 * 16 + 15 + 20);
        assert_eq!(bytes[16..20], [20, 0, 0, 0]);
        assert_eq!(bytes[24 + 31 + 8..][..8], [20, 0, 0, 0, 60, 0, 0, 0]);
        // The long one is no frame any more.
        assert_eq!(replay(&bytes, 2), (vec![vec![7; 15]], EndError::Finished));
    }

    #[test]
    fn a_loop_begins_again_and_ends_where_there_is_nothing_to_send() {
        let open = |bytes: &[u8], paced| {
            let path = place(&format!("loop{}", bytes.len()));
            std::fs::write(&path, bytes).unwrap();
            let replay = Replay::open(&path, paced).unwrap().looped();
            std::fs::remove_file(&path).unwrap();
            replay
        };
        let whole = by_hand();
        for paced in [false, true] {
            let mut replay = open(&whole, paced);
            let mut lens = Vec::new();
            let mut note = |frame: &Frame<'_>| {
                lens.push(frame.len());
                More::Yes
            };
            assert_eq!(replay.receive(5, &mut note), Ok(5));
            assert_eq!(lens, [15; 5]);
        }
        // Its one record was cut off; none at all; torn at the end.
        for (len, error) in [(60, EndError::Finished), (24, EndError::Finished)] {
            let came = open(&whole[..len], false).receive(5, &mut |_| More::Yes);
            assert_eq!(came, Err(error), "{len}");
        }
        let mut torn = open(&whole[..whole.len() - 1], false);
        let came = torn.receive(5, &mut |_| More::Yes);
        assert!(matches!(came, Err(EndError::Malformed(_))), "{came:?}");
    }

    #[test]
    fn other_writers_files_are_read_and_cut_frames_passed_by() {
        let expected = (vec![vec![2; 15]], EndError::Finished);
        assert_eq!(replay(&by_hand(), 32), expected);
    }

    #[test]
    fn a_damaged_file_ends_with_a_reason_after_its_whole_frames() {
        let whole = by_hand();
        for n in 0..whole.len() {
            let (frames, error) = replay(&whole[..n], 32);
            // At the end of a record a file may end; within its head it is taken for that.
            let torn = n < 24 || (40..60).contains(&n) || (76..91).contains(&n);
            assert_eq!(
                matches!(error, EndError::Malformed(_)),
                torn,
                "{n}: {error}"
            );
            assert_eq!(frames.len(), 0, "{n}");
        }
        let mut long = whole.clone();
        long.extend([0, 0, 0, 1, 0, 0, 0, 3, 0x7f, 0, 0, 15, 0, 0, 0, 15]);
        // What is behind it looks like a record, and must not be taken for one.
        long.extend(&whole[60..]);
        let (frames, error) = replay(&long, 32);
        assert_eq!(
            (frames.len(), matches!(error, EndError::Malformed(_))),
            (1, true)
        );
        for (at, byte) in [(0, 0), (23, 2)] {
            let mut other = whole.clone();
            other[at] = byte;
            assert!(matches!(replay(&other, 1).1, EndError::Malformed(_)));
        }
    }

    #[test]
    fn paced_frames_keep_their_distance() {
        let mut file = by_hand();
        file.extend([0, 0, 0, 1, 0, 1, 0x11, 0x73, 0, 0, 0, 15, 0, 0, 0, 15]);
        file.extend([3; 15]);
        let path = place("paced");
        std::fs::write(&path, file).unwrap();
        let mut replay = Replay::open(&path, true).unwrap();
        std::fs::remove_file(&path).unwrap();
        let mut yes = |_: &Frame<'_>| More::Yes;
        // 70000 µs after the first.
        assert_eq!(replay.receive(32, &mut yes), Ok(1));
        let (began, _) = replay.began.unwrap();
        let due = replay.due().map(|due| due.duration_since(began));
        assert_eq!(due, Some(Duration::from_millis(70)));
    }
}
