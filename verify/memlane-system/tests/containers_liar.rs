//! A member of the domain that has been introduced to a program, and lies to it over the channel: the program stays on TCP,
//! with every byte, and lets go of all that the channel brought.
//!
//! Needs root for the namespaces, and CAP_BPF and CAP_PERFMON for the agent.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use memlane_socket::protocol::agent::{self, Answer, Outcome, Question, Role};
use memlane_socket::protocol::wire::{LEN, Message, MessageKind};
use memlane_sys::fd::{self, Fd};
use memlane_sys::sock::{self, Tuple};
use memlane_system::blocks::skip;
use memlane_system::containers::{Agent, Between, Networks, in_namespace};
use memlane_system::harness::plain_only;
use memlane_system::pair::{Alone, DEFAULT, End, Settings};
use memlane_system::real::Reason;
use memlane_system::real::held::channels_of;

/// The liar, in the client's namespace, and the program that it has been introduced to.
struct Meeting {
    victim: Alone,
    stream: TcpStream,
    channel: Option<Fd>,
    seed: u64,
    _agent: Agent,
    _networks: Networks,
}

impl Meeting {
    /// `None`, and a word on standard error, where it cannot be.
    fn new(test: &'static str) -> Option<Meeting> {
        if plain_only() {
            return None;
        }
        let networks =
            Networks::new(Between::Nat).map_err(|why| eprintln!("SKIPPED {test}: {why}"));
        let agent = Agent::start(test).map_err(|why| skip(test, &why));
        let (networks, agent) = (networks.ok()?, agent.ok()?);
        let domain = agent.directory();
        let settings = Settings {
            under: &["ip", "netns", "exec", networks.server()],
            flags: &["--domain", &domain],
            ..DEFAULT
        };
        let (victim, port) = End::listening_at(&settings, networks.server_address());
        let stream = in_namespace(networks.client(), || {
            TcpStream::connect((networks.reached_at(), port)).expect("it listens")
        });
        stream.set_nodelay(true).expect("a socket");
        let mut meeting = Meeting {
            victim,
            stream,
            channel: None,
            seed: 0,
            _agent: agent,
            _networks: networks,
        };
        meeting.channel = Some(meeting.introduced(&domain));
        Some(meeting)
    }

    /// Asks the agent until the victim has asked, too.
    fn introduced(&mut self, domain: &str) -> Fd {
        let path = format!("{domain}/{}", agent::SOCKET);
        let asks = sock::unix_seqpacket_to(path.as_bytes()).expect("an agent");
        let fd = self.stream.as_raw_fd();
        let question = Question {
            id: 1,
            fd,
            inode: fd::stat(fd).expect("a socket").ino,
            role: Role::Connected,
        };
        let end = Instant::now() + Duration::from_secs(10);
        sock::send_to_peer(asks.raw(), &question.encode(), &[]).expect("it hears");
        while Instant::now() < end {
            self.exchange();
            let mut bytes = [0; agent::LEN];
            let Ok(mut got) = sock::recv_with_fds(asks.raw(), &mut bytes) else {
                continue;
            };
            match Answer::decode(&bytes).expect("an answer").outcome {
                Outcome::Meet { .. } => return got.fds[0].take().expect("an end"),
                Outcome::Across(_) => panic!("there is no other machine"),
                Outcome::Refuse(_) => {
                    sock::send_to_peer(asks.raw(), &question.encode(), &[]).expect("it hears");
                }
            }
        }
        panic!("not introduced");
    }

    /// A few bytes there and back.
    fn exchange(&mut self) {
        self.seed += 1;
        self.stream.write_all(&[7; 100]).expect("it is there");
        self.victim.end.does("take 100");
        self.victim.end.tell(&format!("send {} 100", self.seed));
        let mut bytes = [0; 100];
        self.stream.read_exact(&mut bytes).expect("it is there");
        self.victim.end.answer();
    }

    fn say(&self, bytes: &[u8], fds: &[i32]) {
        let channel = self.channel.as_ref().expect("a channel");
        let _ = sock::send_to_peer(channel.raw(), bytes, fds);
    }

    /// Exchanges until the victim has given up, and a little on.
    fn until_it_stays_on_tcp(mut self, why: &[Reason]) {
        let end = Instant::now() + Duration::from_secs(10);
        while !self.victim.end.gave_up() {
            assert!(Instant::now() < end, "{:?}", self.victim.end.conn());
            self.exchange();
        }
        for _ in 0..20 {
            self.exchange();
        }
        let conn = self.victim.end.conn().expect("a page");
        assert!(!conn.on_lane() && why.contains(&conn.reason), "{conn:?}");
        let left = channels_of(self.victim.end.pid());
        assert!(left <= 1, "{left} sockets are left: the agent's is one");
    }

    /// What an honest peer would say.
    fn message(&self, kind: MessageKind) -> Message {
        let fd = self.stream.as_raw_fd();
        let tuple = Tuple {
            local: sock::local_addr(fd).expect("connected"),
            remote: sock::remote_addr(fd).expect("connected"),
        };
        let mut m = Message::new(kind, tuple);
        (m.gid, m.id) = (0x6c69_6172, 1 << 32 | 7);
        m
    }
}

#[test]
fn rubbish_over_the_channel_proves_nothing() {
    for rubbish in [
        vec![0; LEN],
        vec![0xff; LEN],
        vec![7; 3],
        vec![1; LEN + 100],
    ] {
        let Some(meeting) = Meeting::new("rubbish") else {
            return;
        };
        meeting.say(&rubbish, &[]);
        meeting.until_it_stays_on_tcp(&[Reason::NOT_PROVEN, Reason::VERSION]);
    }
}

#[test]
fn a_channel_that_ends_at_once_is_the_end_of_the_handshake() {
    let Some(mut meeting) = Meeting::new("ends") else {
        return;
    };
    meeting.channel = None;
    meeting.until_it_stays_on_tcp(&[Reason::CLOSING]);
}

#[test]
fn an_answer_that_nobody_asked_for_is_not_taken() {
    let Some(meeting) = Meeting::new("unasked") else {
        return;
    };
    for kind in [MessageKind::Accept, MessageKind::Confirm] {
        let mut m = meeting.message(kind);
        (m.token, m.chunk, m.slot, m.ring_size) = (1, 0, 0, 256 << 10);
        meeting.say(&m.encode(), &[]);
    }
    let mut m = meeting.message(MessageKind::Decline);
    m.reason = Reason::CNF_ERR.0;
    meeting.say(&m.encode(), &[]);
    meeting.until_it_stays_on_tcp(&[Reason::PEER_DECLINED]);
}

#[test]
fn a_confirm_with_a_chunk_that_is_none_is_refused() {
    let Some(mut meeting) = Meeting::new("confirm") else {
        return;
    };
    meeting.say(&meeting.message(MessageKind::Proposal).encode(), &[]);
    // It has told of a DMB of its own.
    let accept = loop {
        meeting.exchange();
        let mut bytes = [0; LEN];
        let channel = meeting.channel.as_ref().expect("a channel");
        if let Ok(got) = sock::recv_with_fds(channel.raw(), &mut bytes) {
            assert!(got.fds[0].is_some(), "its chunk");
            break Message::decode(&bytes).expect("a message");
        }
    };
    assert_eq!(accept.kind, MessageKind::Accept);
    let mut confirm = meeting.message(MessageKind::Confirm);
    confirm.echo = accept.id;
    (
        confirm.token,
        confirm.chunk,
        confirm.slot,
        confirm.ring_size,
    ) = (9, 0, 0, 256 << 10);
    let file = memlane_sys::mem::memfd(c"memlane-liar", 4096, false).expect("a memfd");
    meeting.say(
        &confirm.encode(),
        &[file.raw(), file.raw(), file.raw(), file.raw()],
    );
    meeting.until_it_stays_on_tcp(&[Reason::MEMORY, Reason::RELEASE, Reason::PEER_MISBEHAVED]);
}

#[test]
fn one_that_says_nothing_keeps_nobody_from_talking() {
    let Some(mut meeting) = Meeting::new("silent") else {
        return;
    };
    let begin = Instant::now();
    for _ in 0..300 {
        meeting.exchange();
    }
    assert!(
        begin.elapsed() < Duration::from_secs(3),
        "{:?}",
        begin.elapsed()
    );
}
