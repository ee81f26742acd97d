//! Which machines take part, and which of them live.
//!
//! Each has a place in a table, which it keeps over restarts of its agent and over boots. An agent that is silent may belong to
//! a machine that is paused, so silence proves no death: a silent machine meets nobody, and keeps what it has.

use super::layout::{BOOT_BITS, MACHINES, NAME_LEN, Participant, holder};
use super::region::Region;
use core::fmt;
use core::sync::atomic::Ordering;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// How often an agent shows that it lives, or as soon after that as it looks at its mail.
pub const BEAT: Duration = Duration::from_millis(100);
/// A machine whose agent has not done so for this time is silent.
pub const SILENCE: Duration = Duration::from_secs(1);
/// How long an agent that finds its place taken looks whether somebody lives there.
const LOOK: Duration = Duration::from_millis(350);

/// Where the kernel names this boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Who a machine is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// Stays the same over boots; differs between two agents of one machine.
    pub machine: u128,
    /// Differs from boot to boot.
    pub boot: u64,
    /// For people.
    pub name: String,
}

impl Identity {
    /// That of this machine, for the agent that serves `domain`. `boot_id` is read in the place of the kernel's own name for
    /// this boot.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn here(domain: &Path, boot_id: Option<&Path>) -> io::Result<Identity> {
        let boot = std::fs::read_to_string(boot_id.unwrap_or(Path::new(BOOT_ID)))?;
        let name = rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned();
        Ok(Identity::of(&machine()?, boot.trim(), domain, name))
    }

    /// That of a machine with this id and boot id. Several agents of one machine serve several directories.
    pub fn of(machine: &str, boot: &str, domain: &Path, name: String) -> Identity {
        let domain = domain.as_os_str().as_encoded_bytes();
        Identity {
            machine: digest(&[machine.as_bytes(), domain]).max(1),
            boot: low(digest(&[boot.as_bytes()])) & BOOT_BITS | 1,
            name,
        }
    }
}

/// The machine's own id: that of its firmware, which clones of a disk do not share, or else that of its installation.
fn machine() -> io::Result<String> {
    match firmware_id() {
        Some(id) => Ok(id),
        None => Ok(std::fs::read_to_string("/etc/machine-id")?
            .trim()
            .to_owned()),
    }
}

/// The id that the machine's firmware has. `None`: it has none, or this process may not read it.
pub fn firmware_id() -> Option<String> {
    let id = std::fs::read_to_string("/sys/class/dmi/id/product_uuid").ok()?;
    let says_something = id.bytes().any(|b| b.is_ascii_hexdigit() && b != b'0');
    says_something.then(|| id.trim().to_ascii_lowercase())
}

/// FNV-1a of 128 bits over these parts, each with its length. It keeps apart; it protects nothing.
fn digest(parts: &[&[u8]]) -> u128 {
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let step = |hash: u128, byte: &u8| (hash ^ u128::from(*byte)).wrapping_mul(PRIME);
    parts
        .iter()
        .fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |hash, part| {
            let hash = part.len().to_le_bytes().iter().fold(hash, step);
            part.iter().fold(hash, step)
        })
}

/// The low half.
fn low(n: u128) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = n.to_le_bytes();
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

/// Why a machine cannot take part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JoinError {
    /// Another agent takes part under this machine's name.
    Twice,
    /// All places are taken.
    Full,
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JoinError::Twice => f.write_str(
                "another agent takes part in this region as this machine: two virtual machines have the same UUID and the same \
                 /etc/machine-id, or two agents the same directory",
            ),
            JoinError::Full => write!(
                f,
                "{MACHINES} machines take part in this region; memlane agent forget frees the place of one that is gone"
            ),
        }
    }
}

impl std::error::Error for JoinError {}

/// What is seen of another machine.
#[derive(Clone, Copy, Debug)]
struct Seen {
    epoch: u64,
    boot: u64,
    heartbeat: u64,
    /// When the heartbeat was first seen to stand where it does; `None`: it was never seen to move.
    moved: Option<Instant>,
}

/// This machine's place, and what is seen of the others.
pub(crate) struct Participants {
    place: usize,
    epoch: u64,
    identity: Identity,
    beat: u64,
    next_beat: Instant,
    seen: [Seen; MACHINES],
}

impl Participants {
    /// Takes part: in this machine's own place, if it has one, else in a free one. Waits
    /// for a moment where that place may be in use.
    pub(crate) fn join(
        region: &Region,
        identity: Identity,
        epoch: u64,
        wait: &dyn Fn(Duration),
        now: Instant,
    ) -> Result<Participants, JoinError> {
        let place = Participants::claim(region, &identity, epoch, wait)?;
        let nobody = Seen {
            epoch: 0,
            boot: 0,
            heartbeat: 0,
            moved: None,
        };
        let mut joined = Participants {
            place,
            epoch,
            identity,
            beat: load(&region.participant(place).heartbeat),
            next_beat: now,
            seen: [nobody; MACHINES],
        };
        joined.beat(region, now);
        joined.look(region, now);
        Ok(joined)
    }

    fn claim(
        region: &Region,
        identity: &Identity,
        epoch: u64,
        wait: &dyn Fn(Duration),
    ) -> Result<usize, JoinError> {
        let entries = || (0..MACHINES).map(|place| (place, region.participant(place)));
        // Others that begin at the same time take one free place each.
        for _ in 0..MACHINES {
            let own = entries().find(|(_, entry)| machine_of(entry) == identity.machine);
            // Nobody: an agent was killed just after it had claimed the place.
            let left = || entries().filter(|(_, entry)| machine_of(entry) == 0);
            let free = || left().find(|(_, entry)| load(&entry.epoch) == 0);
            let Some((place, entry)) = own.or_else(free).or_else(|| left().next()) else {
                return Err(JoinError::Full);
            };
            let (was, beat) = (load(&entry.epoch), load(&entry.heartbeat));
            if was != 0 {
                wait(LOOK);
                if load(&entry.epoch) != was || load(&entry.heartbeat) != beat {
                    return Err(JoinError::Twice);
                }
            }
            let order = Ordering::SeqCst;
            if entry
                .epoch
                .compare_exchange(was, epoch, order, order)
                .is_ok()
            {
                return Ok(place);
            }
        }
        Err(JoinError::Full)
    }

    /// This machine's place.
    pub(crate) fn place(&self) -> usize {
        self.place
    }

    /// The number of this run of the agent.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// How this machine is named in extents.
    pub(crate) fn holder(&self) -> u64 {
        holder(self.place, self.identity.boot)
    }

    /// Shows that this agent lives, when that is due. All of the entry is written: whoever has scribbled there has no lasting effect.
    pub(crate) fn beat(&mut self, region: &Region, now: Instant) {
        if now < self.next_beat {
            return;
        }
        self.next_beat = now + BEAT;
        self.beat = self.beat.wrapping_add(1);
        let entry = region.participant(self.place);
        let machine = self.identity.machine;
        let halves = [low(machine), low(machine >> 64)];
        for (word, half) in entry.machine.iter().zip(halves) {
            word.store(half, Ordering::Relaxed);
        }
        for (word, part) in entry.name.iter().zip(name_words(&self.identity.name)) {
            word.store(part, Ordering::Relaxed);
        }
        entry.boot.store(self.identity.boot, Ordering::Relaxed);
        entry.epoch.store(self.epoch, Ordering::Relaxed);
        entry.heartbeat.store(self.beat, Ordering::Release);
    }

    /// Looks at all others; the places where another agent, or none, is now.
    pub(crate) fn look(&mut self, region: &Region, now: Instant) -> Vec<usize> {
        let mut changed = Vec::new();
        for (place, seen) in self.seen.iter_mut().enumerate() {
            if place == self.place {
                continue;
            }
            let entry = region.participant(place);
            let (heartbeat, epoch) = (load(&entry.heartbeat), load(&entry.epoch));
            if epoch != seen.epoch {
                changed.push(place);
                (seen.epoch, seen.heartbeat, seen.moved) = (epoch, heartbeat, None);
            }
            seen.boot = load(&entry.boot) & BOOT_BITS;
            if heartbeat != seen.heartbeat {
                (seen.heartbeat, seen.moved) = (heartbeat, Some(now));
            }
        }
        changed
    }

    /// The machines that live, without this one: place, and number of the agent's run.
    pub(crate) fn living(&self, now: Instant) -> impl Iterator<Item = (usize, u64)> {
        let lives = move |seen: &Seen| {
            let moved = |at| now.saturating_duration_since(at) < SILENCE;
            seen.epoch != 0 && seen.moved.is_some_and(moved)
        };
        let places = self.seen.iter().enumerate();
        places
            .filter(move |(_, seen)| lives(seen))
            .map(|(place, seen)| (place, seen.epoch))
    }

    /// The number of the run of the agent at a place; 0: none.
    pub(crate) fn epoch_at(&self, place: usize) -> u64 {
        self.seen.get(place).map_or(0, |seen| seen.epoch)
    }

    /// How the machine at a place is named in extents; 0: there is none.
    pub(crate) fn holder_at(&self, place: usize) -> u64 {
        match self.seen.get(place) {
            Some(_) if place == self.place => self.holder(),
            Some(seen) if seen.epoch != 0 => holder(place, seen.boot),
            _ => 0,
        }
    }
}

fn load(word: &core::sync::atomic::AtomicU64) -> u64 {
    word.load(Ordering::Acquire)
}

fn machine_of(entry: &Participant) -> u128 {
    let [low, high] = [&entry.machine[0], &entry.machine[1]].map(|word| u128::from(load(word)));
    high << 64 | low
}

/// A name as its words, cut where it is too long.
fn name_words(name: &str) -> [u64; NAME_LEN / 8] {
    let mut bytes = [0; NAME_LEN];
    let fits = name.len().min(NAME_LEN);
    bytes[..fits].copy_from_slice(&name.as_bytes()[..fits]);
    let mut words = [0; NAME_LEN / 8];
    for (word, part) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = u64::from_le_bytes(*part);
    }
    words
}

/// A machine, as everybody who has the region sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Machine {
    /// Its place.
    pub place: usize,
    /// What it says that it is called.
    pub name: String,
    /// Which machine it is.
    pub machine: u128,
    /// Grows while its agent runs.
    pub heartbeat: u64,
}

/// All machines that have a place in a region.
pub fn machines(region: &Region) -> Vec<Machine> {
    let entries = (0..MACHINES).map(|place| (place, region.participant(place)));
    let taken = entries.filter(|(_, entry)| load(&entry.epoch) != 0);
    taken
        .map(|(place, entry)| Machine {
            place,
            name: name_of(entry),
            machine: machine_of(entry),
            heartbeat: load(&entry.heartbeat),
        })
        .collect()
}

/// Another machine wrote it: anything but letters, digits and a few signs is replaced.
fn name_of(entry: &Participant) -> String {
    let bytes = entry.name.iter().flat_map(|word| load(word).to_le_bytes());
    let fit = |b: u8| match b {
        b'.' | b'-' | b'_' => char::from(b),
        b if b.is_ascii_alphanumeric() => char::from(b),
        _ => '?',
    };
    bytes.take_while(|&b| b != 0).map(fit).collect()
}

/// Frees the place of a machine that will never come back.
pub fn forget(region: &Region, place: usize) {
    let entry = region.participant(place);
    for word in entry.machine.iter().chain(&entry.name) {
        word.store(0, Ordering::Relaxed);
    }
    entry.boot.store(0, Ordering::Relaxed);
    entry.heartbeat.store(0, Ordering::Relaxed);
    entry.epoch.store(0, Ordering::SeqCst);
}
