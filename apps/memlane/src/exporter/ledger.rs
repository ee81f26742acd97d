//! Counters by program that never go down: what a process has counted stays in its program's sum when it has ended, as
//! long as the exporter lives. Labels are names of programs, of which there is a bounded number; a process id would be a
//! new series for each process that ever ran.

use std::collections::{BTreeMap, HashMap};

use memlane_core::stats::ConnState;
use memlane_observe::counters::Counters;
use memlane_observe::processes::{self, Process, Survey};

/// Most names that are told apart. The others are `OTHER` together: a process chooses its name itself.
const NAMES: usize = 100;
const OTHER: &str = "other";

/// A process, whatever has its number now: that, its start in ticks, its page's random id.
type Key = (u32, u64, u64);

/// What was seen of all processes.
#[derive(Default, Debug)]
pub(super) struct Ledger {
    /// Those that live, by the name under which they were seen first, with what they had counted then.
    known: HashMap<Key, (String, Counters)>,
    /// Of those that have ended.
    ended: BTreeMap<String, Counters>,
    /// Names that have series of their own.
    names: Vec<String>,
}

/// A program: all its processes together.
#[derive(Default, Debug)]
pub(super) struct Program {
    pub(super) name: String,
    /// Processes that run now.
    pub(super) processes: u64,
    pub(super) sums: Counters,
    pub(super) open: Open,
}

/// Connections and rings that are open now.
#[derive(Default, Debug)]
pub(super) struct Open {
    pub(super) memory: u64,
    pub(super) tcp: u64,
    pub(super) handshake: u64,
    /// Bytes that the rings of both directions hold at most.
    pub(super) tx_ring_bytes: u64,
    pub(super) rx_ring_bytes: u64,
}

impl Open {
    fn add(&mut self, process: &Process) {
        for conn in &process.page.conns {
            match conn.state {
                ConnState::Free | ConnState::New => {}
                ConnState::Tcp | ConnState::Downgraded => self.tcp += 1,
                ConnState::Pending => self.handshake += 1,
                ConnState::Memlane => self.memory += 1,
            }
            self.tx_ring_bytes += u64::from(conn.tx.ring_size);
            self.rx_ring_bytes += u64::from(conn.rx.ring_size);
        }
    }
}

impl Ledger {
    /// Takes in what was seen now, and says what there is of each program.
    pub(super) fn update(&mut self, survey: &Survey) -> Vec<Program> {
        let mut open: BTreeMap<String, (u64, Open)> = BTreeMap::new();
        for process in &survey.processes {
            if let Some(name) = self.see(process) {
                let (count, open) = open.entry(name).or_default();
                *count += 1;
                open.add(process);
            }
        }
        self.bury(processes::started);
        let mut sums = self.ended.clone();
        for (name, counted) in self.known.values() {
            sums.entry(name.clone()).or_default().add(counted);
        }
        let programs = sums.into_iter().map(|(name, sums)| {
            let (processes, open) = open.remove(&name).unwrap_or_default();
            Program {
                name,
                processes,
                sums,
                open,
            }
        });
        programs.collect()
    }

    /// Its name here; `None`: it has ended meanwhile.
    fn see(&mut self, process: &Process) -> Option<String> {
        let key = (process.pid, process.started()?, process.page.gid);
        let sums = Counters::of(&process.page);
        if let Some((name, before)) = self.known.get_mut(&key) {
            // While a connection ends, its bytes are for a moment in no sum.
            before.raise(&sums);
            return Some(name.clone());
        }
        let name = self.name(&process.comm);
        self.known.insert(key, (name.clone(), sums));
        Some(name)
    }

    fn name(&mut self, comm: &str) -> String {
        if !self.names.iter().any(|name| name == comm) {
            if self.names.len() == NAMES {
                return OTHER.into();
            }
            self.names.push(comm.into());
        }
        comm.into()
    }

    /// Those that have ended, by the kernel's word: one whose page could not be read just now may be back.
    fn bury(&mut self, started: impl Fn(u32) -> Option<u64>) {
        let ended = &mut self.ended;
        self.known.retain(|(pid, ticks, _), (name, sums)| {
            let lives = started(*pid) == Some(*ticks);
            if !lives {
                ended.entry(name.clone()).or_default().add(sums);
            }
            lives
        });
    }
}

#[cfg(test)]
mod tests {
    use memlane_core::stats::Counter;

    use super::*;

    /// Above all process numbers.
    const NOBODY: u32 = 1 << 30;

    fn sums(bytes: u64) -> Counters {
        let mut sums = Counters::default();
        sums.set(Counter::TxRingBytes, bytes);
        sums
    }

    #[test]
    fn what_a_process_has_counted_outlives_it_and_is_counted_once() {
        let mut ledger = Ledger::default();
        ledger
            .known
            .insert((NOBODY, 100, 1), ("nginx".into(), sums(5)));
        ledger
            .known
            .insert((NOBODY + 1, 101, 2), ("nginx".into(), sums(6)));
        // The first has ended, and its number is another's.
        ledger.bury(|pid| Some(if pid == NOBODY { 200 } else { 101 }));
        ledger.bury(|_| Some(101));
        let programs = ledger.update(&Survey::default());
        assert_eq!(programs.len(), 1);
        assert_eq!(programs[0].name, "nginx");
        assert_eq!(programs[0].sums.get(Counter::TxRingBytes), 11);
        assert_eq!(ledger.ended["nginx"], sums(11), "no such process: gone");
    }

    #[test]
    fn names_of_programs_are_bounded() {
        let mut ledger = Ledger::default();
        for n in 0..NAMES {
            assert_eq!(ledger.name(&format!("p{n}")), format!("p{n}"));
        }
        assert_eq!(ledger.name("one too many"), OTHER);
        assert_eq!(ledger.name("p3"), "p3");
    }
}
