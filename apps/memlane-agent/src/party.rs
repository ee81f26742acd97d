//! Who shares one allowance of questions: the processes of one container.
//!
//! A party is a control group, which is what engines make for each container. The file that names a process's group is
//! readable for everybody; a process whose file cannot be read shares with its user's others.

use core::time::Duration;
use std::collections::HashMap;
use std::time::Instant;

/// Questions a second of one party, in the long run. A question costs the agent about 20 µs, so this bounds what one party
/// can take of a CPU to a tenth.
pub const RATE: u32 = 5_000;
/// Questions that it may ask at once after a rest.
pub const BURST: u32 = 20_000;
/// Processes of one party that are connected at a time.
pub const PROCESSES: u32 = 1_024;

/// The name of a process's party.
pub fn party_of(pid: i32, uid: u32) -> String {
    let file = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    name_in(&file).map_or_else(|| format!("uid {uid}"), str::to_owned)
}

/// The group that `/proc/PID/cgroup` names: that of the unified hierarchy, and where there is none, the longest of the
/// others (systemd's and docker's all end in the container's id).
fn name_in(file: &str) -> Option<&str> {
    let groups = || {
        file.lines().filter_map(|line| {
            let mut fields = line.splitn(3, ':');
            Some((fields.next()?, fields.nth(1)?))
        })
    };
    let unified = groups().find(|&(id, path)| id == "0" && path != "/");
    unified
        .or_else(|| groups().max_by_key(|(_, path)| path.len()))
        .map(|(_, path)| path)
}

/// What a party may still ask, and how many of its processes are connected.
#[derive(Debug)]
struct Allowance {
    processes: u32,
    questions: f64,
    since: Instant,
}

/// All parties with a process that is connected.
#[derive(Debug, Default)]
pub struct Parties(HashMap<String, Allowance>);

impl Parties {
    /// A process of the party connects. `false`: too many are.
    pub fn join(&mut self, party: &str, now: Instant) -> bool {
        let allowance = self.0.entry(party.to_owned()).or_insert_with(|| Allowance {
            processes: 0,
            questions: f64::from(BURST),
            since: now,
        });
        let room = allowance.processes < PROCESSES;
        allowance.processes += u32::from(room);
        room
    }

    /// A process of the party that had joined is gone.
    pub fn leave(&mut self, party: &str) {
        if let Some(allowance) = self.0.get_mut(party) {
            allowance.processes -= 1;
            // One that has asked too much is remembered until it has rested: it would begin anew otherwise.
            if allowance.processes == 0 && allowance.questions >= f64::from(BURST) / 2.0 {
                self.0.remove(party);
            }
        }
    }

    /// How many of `wanted` questions the party may ask now; they count as asked.
    pub fn take(&mut self, party: &str, wanted: u32, now: Instant) -> u32 {
        let Some(allowance) = self.0.get_mut(party) else {
            return 0;
        };
        allowance.rest(now);
        let mut granted = 0;
        while granted < wanted && allowance.questions >= 1.0 {
            allowance.questions -= 1.0;
            granted += 1;
        }
        granted
    }

    /// Questions that were taken but not asked.
    pub fn give_back(&mut self, party: &str, unused: u32) {
        if let Some(allowance) = self.0.get_mut(party) {
            allowance.questions += f64::from(unused);
        }
    }

    /// Forgets parties that have gone and rested.
    pub fn forget_rested(&mut self, now: Instant) {
        self.0.retain(|_, allowance| {
            allowance.rest(now);
            allowance.processes > 0 || allowance.questions < f64::from(BURST) / 2.0
        });
    }
}

/// After this time, a party that has asked all it may can ask again.
pub const PAUSE: Duration = Duration::from_millis(10);

impl Allowance {
    fn rest(&mut self, now: Instant) {
        let rested = now.saturating_duration_since(self.since).as_secs_f64() * f64::from(RATE);
        self.questions = (self.questions + rested).min(f64::from(BURST));
        self.since = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_is_known_by_its_control_group() {
        assert_eq!(
            name_in("0::/system.slice/docker-4f.scope\n"),
            Some("/system.slice/docker-4f.scope")
        );
        assert_eq!(
            name_in("12:cpu:/\n5:memory:/docker/4f00\n1:name=systemd:/docker\n0::/\n"),
            Some("/docker/4f00")
        );
        assert_eq!(name_in(""), None);
    }

    #[test]
    fn a_party_that_has_asked_too_much_waits_and_others_do_not() {
        let (mut parties, now) = (Parties::default(), Instant::now());
        assert!(parties.join("flood", now) && parties.join("calm", now));
        assert_eq!(parties.take("flood", BURST + 5, now), BURST);
        assert_eq!(parties.take("flood", 1, now), 0);
        assert_eq!(parties.take("calm", 1, now), 1);
        let later = now + Duration::from_millis(1);
        assert_eq!(parties.take("flood", 100, later), RATE / 1_000);
    }

    #[test]
    fn a_flood_does_not_begin_anew_by_connecting_anew() {
        let (mut parties, now) = (Parties::default(), Instant::now());
        assert!(parties.join("flood", now));
        parties.take("flood", BURST, now);
        parties.leave("flood");
        assert!(parties.join("flood", now));
        assert_eq!(parties.take("flood", 1, now), 0);
        parties.leave("flood");
        parties.forget_rested(now + Duration::from_secs(60));
        assert!(parties.0.is_empty());
    }

    #[test]
    fn a_party_has_so_many_processes_and_no_more() {
        let (mut parties, now) = (Parties::default(), Instant::now());
        for _ in 0..PROCESSES {
            assert!(parties.join("many", now));
        }
        assert!(!parties.join("many", now));
        parties.leave("many");
        assert!(parties.join("many", now));
    }
}
