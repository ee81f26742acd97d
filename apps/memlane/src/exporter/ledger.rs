//! Sums counters by program, so that they never go down.
//!
//! When a process ends, its counters stay in the sum of its program as long as the exporter runs. Series have the name of
//! the program as their label, and the number of names is limited. A process id as the label would make a new series for
//! every process that ever ran.

use std::collections::{BTreeMap, HashMap};

use memlane_core::stats::ConnState;
use memlane_observe::counters::Counters;
use memlane_observe::processes::{self, Process, Survey};

/// Most names that have series of their own. All others share [`OTHER`], because a process chooses its name itself.
const NAMES: usize = 100;
const OTHER: &str = "other";

/// Identity of a process: its id, its start in clock ticks, and the random id of its page.
type Key = (u32, u64, u64);

/// The counters of all processes that were seen.
#[derive(Default, Debug)]
pub(super) struct Ledger {
    /// Running processes: the name under which each was seen first, and its counters when it was seen last.
    known: HashMap<Key, (String, Counters)>,
    /// Sums of processes that have ended, by program.
    ended: BTreeMap<String, Counters>,
    /// Names with series of their own.
    names: Vec<String>,
}

/// All processes of one program together.
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
    /// Size of the rings, in bytes.
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
    /// Takes in a survey, and returns the sums of each program.
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

    /// Takes in one process, and returns the name under which it counts. `None`: it has ended.
    fn see(&mut self, process: &Process) -> Option<String> {
        let key = (process.pid, process.started()?, process.page.gid);
        let sums = Counters::of(&process.page);
        if let Some((name, before)) = self.known.get_mut(&key) {
            // While a connection ends, its bytes are missing from the page for a moment.
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

    /// Moves processes that have ended to the sums. Only the kernel's answer counts: a page that could not be read now may
    /// be readable next time.
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
