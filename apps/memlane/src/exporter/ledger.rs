//! Sums counters by program, or by program and container, so that they never go down.
//!
//! When a process ends, its counters stay in the sum of its program as long as the exporter runs. Series have the name of
//! the program as their label, and the number of names is limited. A process id as the label would make a new series for
//! every process that ever ran. Containers have names of their own, too, so the series of one that has gone are forgotten
//! after a while.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use memlane_core::stats::ConnState;
use memlane_observe::containers::Containers;
use memlane_observe::counters::Counters;
use memlane_observe::processes::{self, Process, Survey};

/// Most names that have series of their own. All others share [`OTHER`], because a process chooses its name itself.
const NAMES: usize = 100;
/// The same where containers have series of their own: more than a node has pods.
const NAMES_IN_CONTAINERS: usize = 1000;
const OTHER: &str = "other";
/// How long the series of a container stay after its last process: some intervals at which Prometheus looks.
const KEPT: Duration = Duration::from_secs(600);

/// Whose series they are.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(super) struct Name {
    program: String,
    place: Option<Place>,
}

/// The container that a program is in.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Place {
    /// Of a pod, where it is one's.
    pod: Option<[String; 2]>,
    container: String,
}

impl Place {
    /// Reads the name that an engine gave: that of a pod's container is `NAMESPACE/POD/CONTAINER`.
    fn named(name: &str) -> Place {
        let mut parts = name.splitn(3, '/').map(str::to_owned);
        match (parts.next(), parts.next(), parts.next()) {
            (Some(namespace), Some(pod), Some(container)) => Place {
                pod: Some([namespace, pod]),
                container,
            },
            _ => Place {
                pod: None,
                container: name.to_owned(),
            },
        }
    }
}

impl Name {
    fn of(program: &str) -> Name {
        Name {
            program: program.to_owned(),
            place: None,
        }
    }

    /// As labels.
    pub(super) fn labels(&self) -> Vec<(&str, &str)> {
        let mut labels = vec![("program", self.program.as_str())];
        if let Some(place) = &self.place {
            labels.push(("container", &place.container));
            if let Some([namespace, pod]) = &place.pod {
                labels.extend([("namespace", namespace.as_str()), ("pod", pod)]);
            }
        }
        labels
    }
}

/// Identity of a process: its id, its start in clock ticks, and the random id of its page.
type Key = (u32, u64, u64);

/// The counters of all processes that were seen.
#[derive(Default, Debug)]
pub(super) struct Ledger {
    /// Running processes: the name under which each was seen first, and its counters when it was seen last.
    known: HashMap<Key, (Name, Counters)>,
    /// Sums of processes that have ended, by name.
    ended: BTreeMap<Name, Counters>,
    /// Names with series of their own, and when a process with each was seen last.
    names: BTreeMap<Name, Instant>,
    /// Containers have series of their own.
    by_container: bool,
}

/// All processes with one name together.
#[derive(Default, Debug)]
pub(super) struct Program {
    pub(super) name: Name,
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
    /// `by_container`: programs in containers have series of their own.
    pub(super) fn new(by_container: bool) -> Ledger {
        Ledger {
            by_container,
            ..Ledger::default()
        }
    }

    /// Takes in a survey, and returns the sums of each name.
    pub(super) fn update(&mut self, survey: &Survey) -> Vec<Program> {
        let mut open: BTreeMap<Name, (u64, Open)> = BTreeMap::new();
        // Only looked at for processes that are new.
        let mut containers = None;
        for process in &survey.processes {
            if let Some(name) = self.see(process, &mut containers) {
                let (count, open) = open.entry(name).or_default();
                *count += 1;
                open.add(process);
            }
        }
        self.bury(processes::started);
        self.forget(Instant::now());
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
    fn see(&mut self, process: &Process, containers: &mut Option<Containers>) -> Option<Name> {
        let key = (process.pid, process.started()?, process.page.gid);
        let sums = Counters::of(&process.page);
        if let Some((name, before)) = self.known.get_mut(&key) {
            // While a connection ends, its bytes are missing from the page for a moment.
            before.raise(&sums);
            return Some(name.clone());
        }
        let mut name = Name::of(&process.comm);
        if self.by_container {
            let containers = containers.get_or_insert_default();
            let container = containers.of(process.pid);
            name.place = container.map(|container| Place::named(&container.name));
        }
        let name = self.bounded(name);
        self.known.insert(key, (name.clone(), sums));
        Some(name)
    }

    /// This name, or that which all others share.
    fn bounded(&mut self, name: Name) -> Name {
        let most = match self.by_container {
            true => NAMES_IN_CONTAINERS,
            false => NAMES,
        };
        if !self.names.contains_key(&name) && self.names.len() >= most {
            return Name::of(OTHER);
        }
        self.names.insert(name.clone(), Instant::now());
        name
    }

    /// Forgets what containers have counted that have been gone for a while.
    fn forget(&mut self, now: Instant) {
        for (name, _) in self.known.values() {
            if let Some(seen) = self.names.get_mut(name) {
                *seen = now;
            }
        }
        self.names.retain(|name, seen| {
            let stays = name.place.is_none() || now.saturating_duration_since(*seen) < KEPT;
            if !stays {
                self.ended.remove(name);
            }
            stays
        });
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
            .insert((NOBODY, 100, 1), (Name::of("nginx"), sums(5)));
        ledger
            .known
            .insert((NOBODY + 1, 101, 2), (Name::of("nginx"), sums(6)));
        // The first has ended, and its number is another's.
        ledger.bury(|pid| Some(if pid == NOBODY { 200 } else { 101 }));
        ledger.bury(|_| Some(101));
        let programs = ledger.update(&Survey::default());
        assert_eq!(programs.len(), 1);
        assert_eq!(programs[0].name.labels(), [("program", "nginx")]);
        assert_eq!(programs[0].sums.get(Counter::TxRingBytes), 11);
        assert_eq!(
            ledger.ended[&Name::of("nginx")],
            sums(11),
            "no such process: gone"
        );
    }

    #[test]
    fn names_of_programs_are_bounded() {
        let mut ledger = Ledger::default();
        for n in 0..NAMES {
            let name = Name::of(&format!("p{n}"));
            assert_eq!(ledger.bounded(name.clone()), name);
        }
        assert_eq!(ledger.bounded(Name::of("one too many")), Name::of(OTHER));
        assert_eq!(ledger.bounded(Name::of("p3")), Name::of("p3"));
    }

    #[test]
    fn a_container_has_labels_of_its_own_and_is_forgotten_a_while_after_its_end() {
        let mut ledger = Ledger::new(true);
        let of = |container: &str| Name {
            place: Some(Place::named(container)),
            ..Name::of("redis")
        };
        let (pod, plain) = (of("shop/cache-0/redis"), of("cache"));
        let labels = [
            ("program", "redis"),
            ("container", "redis"),
            ("namespace", "shop"),
            ("pod", "cache-0"),
        ];
        assert_eq!(pod.labels(), labels);
        let labels = [("program", "redis"), ("container", "cache")];
        assert_eq!(plain.labels(), labels);
        for name in [&pod, &Name::of("redis")] {
            ledger.bounded(name.clone());
            ledger.ended.insert(name.clone(), sums(5));
        }
        let begin = Instant::now();
        ledger.forget(begin + KEPT / 2);
        assert_eq!(ledger.ended.len(), 2);
        // A process that still runs keeps its container.
        ledger
            .known
            .insert((NOBODY, 100, 1), (pod.clone(), sums(6)));
        ledger.forget(begin + KEPT * 2);
        assert_eq!(ledger.ended.len(), 2);
        ledger.known.clear();
        ledger.forget(begin + KEPT * 4);
        let left: Vec<&Name> = ledger.ended.keys().collect();
        assert_eq!(left, [&Name::of("redis")], "what is in no container stays");
        assert!(!ledger.names.contains_key(&pod));
    }
}
