//! Which two sockets are the ends of one connection.
//!
//! Pure: questions and the time in, verdicts out. A connection is known by the two sequence numbers from which its two
//! directions count: 64 random bits that both ends' kernels hold, that no translation of addresses changes, and that the
//! agent never tells anybody.

use crate::kernel::{ESTABLISHED, INITIAL_USER_NAMESPACE, Record};
use core::time::Duration;
use memlane_socket::protocol::agent::Role;
use std::collections::{HashMap, VecDeque};
use std::time::Instant;

/// How long a question waits for the other end's. The ends ask after as many exchanges, so within one of each other; one that
/// was slow to begin is met by one of the other's later questions.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// Who asks, and which of his questions it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asker {
    /// The process's connection to the agent.
    pub process: u64,
    /// His own number of the question.
    pub id: u64,
}

/// What a connection is known by: the sequence numbers of the first byte in each direction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Key {
    from_client: u32,
    from_server: u32,
}

impl Key {
    /// The connecting end counts its SYN among the bytes that were acknowledged, so its own number is one too low.
    pub fn of(socket: &Record, role: Role) -> Key {
        match role {
            Role::Connected => Key {
                from_client: socket.sends_from.wrapping_add(1),
                from_server: socket.receives_from,
            },
            Role::Accepted => Key {
                from_client: socket.receives_from,
                from_server: socket.sends_from,
            },
        }
    }

    /// Both numbers in one word.
    pub(crate) fn as_word(self) -> u64 {
        u64::from(self.from_client) << 32 | u64::from(self.from_server)
    }

    /// From such a word.
    pub(crate) fn from_word(word: u64) -> Key {
        let half = |n: u64| u32::try_from(n & 0xffff_ffff).unwrap_or(0);
        Key {
            from_client: half(word >> 32),
            from_server: half(word),
        }
    }
}

/// One end that waits.
#[derive(Clone, Copy, Debug)]
struct Waiter {
    asker: Asker,
    role: Role,
    inode: u64,
    owner: u32,
    made_by: u32,
}

impl Waiter {
    /// Has the host's root made the user namespace that owns its network? Nobody else can give a socket there any numbers
    /// that he likes, unless root gives him the right to.
    fn is_roots(&self) -> bool {
        self.owner == INITIAL_USER_NAMESPACE || self.made_by == 0
    }
}

/// What is known of a connection.
#[derive(Clone, Copy, Debug)]
enum Known {
    /// One end has asked.
    One(Waiter),
    /// Both have met, or too many have asked: nobody else is let in.
    Closed,
}

/// What becomes of a question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The other end has not asked yet.
    Wait,
    /// It has: the two are introduced to each other.
    Meet(Asker),
    /// The socket is not established.
    NotEstablished,
    /// The two network namespaces belong to different users, who could have made the numbers up.
    Untrusted(Asker),
    /// More than two sockets have these numbers: somebody makes them up.
    Forged(Option<Asker>),
    /// Too many questions wait.
    Full,
}

/// All ends that wait in one domain.
#[derive(Debug)]
pub struct Pairs {
    known: HashMap<Key, Known>,
    /// When each entry of `known` is over, the oldest first.
    ends: VecDeque<(Instant, Key)>,
    most: usize,
}

impl Pairs {
    /// Nobody waits; at most `most` connections are remembered at a time.
    pub fn new(most: usize) -> Pairs {
        Pairs {
            known: HashMap::new(),
            ends: VecDeque::new(),
            most,
        }
    }

    /// Somebody asks for the other end of `socket`, of which it says that it has this role. (If that is not true, it finds
    /// nobody.)
    pub fn ask(&mut self, asker: Asker, role: Role, socket: &Record, now: Instant) -> Verdict {
        if socket.state != ESTABLISHED {
            return Verdict::NotEstablished;
        }
        let key = Key::of(socket, role);
        let this = Waiter {
            asker,
            role,
            inode: socket.inode,
            owner: socket.owner,
            made_by: socket.made_by,
        };
        match self.known.get(&key).copied() {
            // Each that is known has an end in this list, and so has each that was forgotten before its end.
            None if self.ends.len() >= self.most => Verdict::Full,
            None => {
                self.known.insert(key, Known::One(this));
                self.ends.push_back((now + PATIENCE, key));
                Verdict::Wait
            }
            // The same end asks once more.
            Some(Known::One(other)) if other.role == role && other.inode == this.inode => {
                self.known.insert(key, Known::One(this));
                Verdict::Wait
            }
            Some(Known::One(other)) => {
                self.known.insert(key, Known::Closed);
                judge(&this, &other)
            }
            Some(Known::Closed) => Verdict::Forged(None),
        }
    }

    /// Who waits at this end of a connection, and whether its network is one of root's. `None`: nobody does.
    pub fn waiting(&self, key: Key, role: Role) -> Option<(Asker, bool)> {
        match self.known.get(&key)? {
            Known::One(waiter) if waiter.role == role => Some((waiter.asker, waiter.is_roots())),
            _ => None,
        }
    }

    /// Whoever waits at this end of a connection meets a process of another machine, or is refused by one: nobody else is let in.
    pub fn close(&mut self, key: Key, role: Role) -> Option<Asker> {
        let (asker, _) = self.waiting(key, role)?;
        self.known.insert(key, Known::Closed);
        Some(asker)
    }

    /// Lets the ends of a connection ask again, of which nobody has met.
    pub fn reopen(&mut self, key: Key) {
        if matches!(self.known.get(&key), Some(Known::Closed)) {
            self.known.remove(&key);
        }
    }

    /// Forgets what is over, and hands `each` those that have waited in vain.
    pub fn expire(&mut self, now: Instant, mut each: impl FnMut(Asker)) {
        while let Some(&(end, key)) = self.ends.front()
            && end <= now
        {
            self.ends.pop_front();
            if let Some(Known::One(waiter)) = self.known.remove(&key) {
                each(waiter.asker);
            }
        }
    }

    /// When `expire` has something to do next.
    pub fn next_end(&self) -> Option<Instant> {
        self.ends.front().map(|&(end, _)| end)
    }

    /// Connections that are remembered.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Is none remembered?
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }
}

/// Two sockets with the same numbers: are they the two ends?
fn judge(this: &Waiter, other: &Waiter) -> Verdict {
    if this.role == other.role || this.inode == other.inode {
        return Verdict::Forged(Some(other.asker));
    }
    // Only root of the user namespace that owns a network can give a socket any numbers that he likes.
    let trusted = this.is_roots() && other.is_roots() || this.owner == other.owner;
    if trusted {
        Verdict::Meet(other.asker)
    } else {
        Verdict::Untrusted(other.asker)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT_ISN: u32 = 0xc528_76e4;
    const SERVER_ISN: u32 = 0x6a33_b23b;

    /// As the two kernels' counters show the two ends of one connection.
    fn end(role: Role) -> Record {
        let (sends_from, receives_from, inode) = match role {
            Role::Connected => (CLIENT_ISN, SERVER_ISN + 1, 11),
            Role::Accepted => (SERVER_ISN + 1, CLIENT_ISN + 1, 22),
        };
        Record {
            fd: 3,
            state: ESTABLISHED,
            inode,
            sends_from,
            receives_from,
            network: 1,
            owner: INITIAL_USER_NAMESPACE,
            made_by: 0,
        }
    }

    fn asker(process: u64) -> Asker {
        Asker { process, id: 7 }
    }

    #[test]
    fn the_two_ends_meet_whoever_asks_first() {
        for [first, second] in [
            [Role::Connected, Role::Accepted],
            [Role::Accepted, Role::Connected],
        ] {
            let (mut pairs, now) = (Pairs::new(8), Instant::now());
            assert_eq!(pairs.ask(asker(1), first, &end(first), now), Verdict::Wait);
            let met = pairs.ask(asker(2), second, &end(second), now);
            assert_eq!(met, Verdict::Meet(asker(1)));
        }
    }

    /// Its memory is refused to it each time, so that it may ask again each time.
    #[test]
    fn who_is_let_ask_again_and_again_is_remembered_a_bounded_number_of_times() {
        let (mut pairs, now) = (Pairs::new(8), Instant::now());
        let socket = end(Role::Accepted);
        let key = Key::of(&socket, Role::Accepted);
        for _ in 0..100 {
            pairs.ask(asker(1), Role::Accepted, &socket, now);
            pairs.close(key, Role::Accepted);
            pairs.reopen(key);
        }
        assert_eq!(pairs.ends.len(), 8);
        pairs.expire(now + PATIENCE, |_| {});
        let asked = pairs.ask(asker(1), Role::Accepted, &socket, now + PATIENCE);
        assert_eq!(asked, Verdict::Wait);
    }

    #[test]
    fn ends_of_two_connections_through_a_proxy_do_not_meet() {
        let (mut pairs, now) = (Pairs::new(8), Instant::now());
        pairs.ask(asker(1), Role::Connected, &end(Role::Connected), now);
        let other = Record {
            sends_from: 1,
            ..end(Role::Accepted)
        };
        assert_eq!(
            pairs.ask(asker(2), Role::Accepted, &other, now),
            Verdict::Wait
        );
    }

    #[test]
    fn who_lies_about_his_role_finds_nobody() {
        let (mut pairs, now) = (Pairs::new(8), Instant::now());
        pairs.ask(asker(1), Role::Connected, &end(Role::Connected), now);
        assert_eq!(
            pairs.ask(asker(2), Role::Connected, &end(Role::Accepted), now),
            Verdict::Wait
        );
    }

    #[test]
    fn a_third_socket_with_the_same_numbers_spoils_it_for_all() {
        let (mut pairs, now) = (Pairs::new(8), Instant::now());
        let forged = Record {
            inode: 33,
            ..end(Role::Accepted)
        };
        pairs.ask(asker(1), Role::Accepted, &end(Role::Accepted), now);
        assert_eq!(
            pairs.ask(asker(3), Role::Accepted, &forged, now),
            Verdict::Forged(Some(asker(1)))
        );
        assert_eq!(
            pairs.ask(asker(2), Role::Connected, &end(Role::Connected), now),
            Verdict::Forged(None)
        );
    }

    #[test]
    fn a_socket_in_a_network_namespace_of_a_users_own_meets_only_its_like() {
        let own = |role| Record {
            owner: 4_026_532_999,
            made_by: 1000,
            ..end(role)
        };
        let (mut pairs, now) = (Pairs::new(8), Instant::now());
        pairs.ask(asker(1), Role::Accepted, &end(Role::Accepted), now);
        assert_eq!(
            pairs.ask(asker(2), Role::Connected, &own(Role::Connected), now),
            Verdict::Untrusted(asker(1))
        );
        let mut pairs = Pairs::new(8);
        pairs.ask(asker(1), Role::Accepted, &own(Role::Accepted), now);
        assert_eq!(
            pairs.ask(asker(2), Role::Connected, &own(Role::Connected), now),
            Verdict::Meet(asker(1))
        );
    }

    #[test]
    fn user_namespaces_that_root_has_made_are_as_the_hosts_own() {
        let container = |role, owner| Record { owner, ..end(role) };
        let (mut pairs, now) = (Pairs::new(8), Instant::now());
        let (client, server) = (Role::Connected, Role::Accepted);
        pairs.ask(asker(1), server, &container(server, 4_026_532_111), now);
        assert_eq!(
            pairs.ask(asker(2), client, &container(client, 4_026_532_222), now),
            Verdict::Meet(asker(1))
        );
    }

    #[test]
    fn who_waits_in_vain_is_told_and_may_ask_again() {
        let (mut pairs, now) = (Pairs::new(8), Instant::now());
        pairs.ask(asker(1), Role::Accepted, &end(Role::Accepted), now);
        assert_eq!(
            pairs.ask(asker(1), Role::Accepted, &end(Role::Accepted), now),
            Verdict::Wait,
            "the same end once more"
        );
        let mut over = Vec::new();
        pairs.expire(now + PATIENCE - Duration::from_millis(1), |a| over.push(a));
        assert!(over.is_empty());
        pairs.expire(now + PATIENCE, |a| over.push(a));
        assert_eq!(over, [asker(1)]);
        assert!(pairs.is_empty() && pairs.next_end().is_none());
    }

    #[test]
    fn a_closed_socket_is_not_paired() {
        let closing = Record {
            state: 8,
            ..end(Role::Accepted)
        };
        let verdict = Pairs::new(8).ask(asker(1), Role::Accepted, &closing, Instant::now());
        assert_eq!(verdict, Verdict::NotEstablished);
    }

    #[test]
    fn no_more_wait_than_are_allowed() {
        let (mut pairs, now) = (Pairs::new(2), Instant::now());
        let socket = |n| Record {
            sends_from: n,
            ..end(Role::Accepted)
        };
        pairs.ask(asker(1), Role::Accepted, &socket(1), now);
        pairs.ask(asker(1), Role::Accepted, &socket(2), now);
        let third = pairs.ask(asker(1), Role::Accepted, &socket(3), now);
        assert_eq!((third, pairs.len()), (Verdict::Full, 2));
    }
}
