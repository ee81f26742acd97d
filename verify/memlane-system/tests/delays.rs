//! A failed handshake delays nobody. Of the calls that a program under memlane makes, only its own may wait; the
//! library's few other waits are limited to some milliseconds. strace shows the calls; it does not measure how long
//! they take on a busy machine.

mod handshake;

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use handshake::{Meeting, chunk};
use memlane_socket::protocol::wire::MessageKind;
use memlane_system::harness::{TempDir, plain_only};
use memlane_system::pair::{DEFAULT, PATIENCE, Pair, Settings};
use memlane_system::real::Reason;

/// Longest that the library may ask to wait, at a time and in all.
const MOST: Duration = Duration::from_millis(5);
const MOST_IN_ALL: Duration = Duration::from_millis(20);
/// Turns on the CPU that it may give up.
const YIELDS: usize = 200;

/// System calls that may wait. What the programs (`ends/end.c`) themselves wait in is [`is_the_program_s`].
const WAITS: &str = "poll,ppoll,select,pselect6,epoll_wait,epoll_pwait,epoll_pwait2,nanosleep,clock_nanosleep,futex,\
                     recvfrom,recvmsg,recvmmsg,sendto,sendmsg,sendmmsg,connect,accept,accept4,flock,wait4,waitid,pause,\
                     rt_sigtimedwait,rt_sigsuspend,io_getevents,semtimedop,sched_yield";

/// What one process asked the kernel for.
struct Trace {
    _dir: TempDir,
    file: PathBuf,
}

impl Trace {
    /// `None`: strace is not there, or may not trace.
    fn new() -> Option<Trace> {
        let mut strace = Command::new("strace");
        let may = strace.args(["-qq", "-o", "/dev/null", "true"]).status();
        if plain_only() || !may.is_ok_and(|status| status.success()) {
            eprintln!("SKIPPED delays: strace is not there, or may not trace");
            return None;
        }
        let dir = TempDir::new("delays");
        let file = dir.path().join("calls");
        Some(Trace { _dir: dir, file })
    }

    /// What starts a program under it. The tracer is the child: the program keeps the number that its parent knows.
    fn under(&self) -> Vec<&str> {
        let file = self.file.to_str().expect("a plain name");
        vec!["strace", "-D", "-q", "-e", WAITS, "-o", file]
    }

    /// All of them: the program has ended, or is about to.
    fn calls(&self) -> Vec<String> {
        let start = Instant::now();
        loop {
            let text = std::fs::read_to_string(&self.file).expect("what strace writes");
            if text
                .lines()
                .last()
                .is_some_and(|line| line.starts_with("+++"))
            {
                let calls = text.lines().filter(|line| !line.starts_with(['+', '-']));
                return calls.map(str::to_owned).collect();
            }
            assert!(start.elapsed() < PATIENCE, "it does not end: {text}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Nothing but the program's own calls has waited for long.
    fn nobody_waited(&self) {
        let calls = self.calls();
        assert!(calls.len() > 10, "strace has seen nothing: {calls:?}");
        let yields = calls.iter().filter(|call| call.starts_with("sched_yield"));
        assert!(yields.count() <= YIELDS, "it gives its turns away");
        let mut in_all = Duration::ZERO;
        for call in calls.iter().filter(|call| !is_the_program_s(call)) {
            let limit = limit(call).unwrap_or_else(|| panic!("it may wait for ever: {call}"));
            assert!(limit <= MOST, "{call}");
            in_all += limit;
        }
        assert!(in_all <= MOST_IN_ALL, "{in_all:?} in all");
    }
}

/// A send or receive on the connection itself that waits as the program wants, and how it came about.
fn is_the_program_s(call: &str) -> bool {
    let plain = ["recvfrom(", "sendto("]
        .iter()
        .any(|name| call.starts_with(name));
    let tcp = call.starts_with("sendmsg(") && call.contains("msg_name=NULL");
    let inet = ["connect(", "accept("]
        .iter()
        .any(|name| call.starts_with(name));
    ((plain || tcp) && !call.contains("MSG_DONTWAIT")) || (inet && !call.contains("AF_UNIX"))
}

/// How long a call may wait; `None`: as long as it takes.
fn limit(call: &str) -> Option<Duration> {
    let name = call.split('(').next().unwrap_or_default();
    let (asked, _answer) = call.rsplit_once(" = ")?;
    let asked = asked.trim_end().strip_suffix(')')?;
    let behind = |text: &str| -> Option<u64> {
        let (_, rest) = asked.rsplit_once(text)?;
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    };
    match name {
        "sched_yield" => Some(Duration::ZERO),
        "ppoll" | "pselect6" | "nanosleep" | "clock_nanosleep" | "epoll_pwait2" => Some(
            Duration::from_secs(behind("tv_sec=")?) + Duration::from_nanos(behind("tv_nsec=")?),
        ),
        "poll" | "epoll_wait" | "epoll_pwait" => {
            let last = asked.rsplit(", ").next()?;
            last.parse().ok().map(Duration::from_millis)
        }
        "recvmsg" | "recvfrom" | "recvmmsg" | "sendmsg" | "sendto" | "sendmmsg" => {
            asked.contains("MSG_DONTWAIT").then_some(Duration::ZERO)
        }
        "futex" => asked.contains("FUTEX_WAKE").then_some(Duration::ZERO),
        "flock" => asked.contains("LOCK_NB").then_some(Duration::ZERO),
        _ => None,
    }
}

/// Both sides of a pair, each traced once while the other one does `settings`; both give up.
fn pair_gives_up(other: &Settings<'_>, spoil: Option<&str>) {
    for traced in ["client", "server"] {
        let Some(trace) = Trace::new() else { return };
        let under = trace.under();
        let watched = Settings {
            under: &under,
            ..DEFAULT
        };
        let mut pair = match traced {
            "client" => Pair::start(other, &watched),
            _ => Pair::start(&watched, other),
        };
        if let Some(what) = spoil {
            let end = if traced == "client" {
                &mut pair.client
            } else {
                &mut pair.server
            };
            end.does(&format!("spoil {what}"));
        }
        let start = Instant::now();
        while !(pair.client.gave_up() && pair.server.gave_up()) {
            assert!(start.elapsed() < PATIENCE, "{}", pair.describe());
            pair.exchange();
        }
        drop(pair);
        trace.nobody_waited();
    }
}

#[test]
fn a_peer_that_is_not_there_delays_nobody() {
    let absent = [("MEMLANE_DISABLE", "1")];
    let plain = Settings {
        env: &absent,
        ..DEFAULT
    };
    pair_gives_up(&plain, None);
}

#[test]
fn a_peer_that_declines_delays_nobody() {
    let other_club = [("MEMLANE_EID", "BLUE")];
    let declines = Settings {
        env: &other_club,
        ..DEFAULT
    };
    pair_gives_up(&declines, None);
}

#[test]
fn a_program_that_lacks_what_the_lane_needs_is_not_delayed() {
    for what in [
        "nomemfd",
        "nounix",
        "noproc",
        "norandom",
        "descriptors",
        "memory",
    ] {
        pair_gives_up(&DEFAULT, Some(what));
    }
}

/// The victim of a liar, traced.
fn victim(meet: impl FnOnce(&Settings<'_>) -> Meeting, lie: impl FnOnce(&mut Meeting)) {
    let Some(trace) = Trace::new() else { return };
    let under = trace.under();
    let mut meeting = meet(&Settings {
        under: &under,
        ..DEFAULT
    });
    lie(&mut meeting);
    drop(meeting);
    trace.nobody_waited();
}

#[test]
fn liars_delay_nobody() {
    // A forged tuple.
    victim(Meeting::with_server, |meeting| {
        let mut m = meeting.message(MessageKind::Proposal);
        m.tuple.local.port ^= 1;
        let proof = meeting.proof();
        meeting.propose(&m.encode(), &[&proof]);
        meeting.ends_on_tcp(Reason::NOT_PROVEN);
    });
    // No message at all, cut short, or too long; and then a wrong token.
    victim(Meeting::with_client, |meeting| {
        meeting.proposed();
        let good = meeting.message(MessageKind::Accept).encode();
        let long = [&good[..], &[0; 5000]].concat();
        let to = meeting.to;
        for bytes in [&[][..], &good[..7], &good[..good.len() - 1], &long] {
            meeting.answer(bytes, &[]);
            meeting.exchange();
            meeting.to = to;
        }
        let mut m = meeting.message(MessageKind::Accept);
        m.token ^= 1;
        let proof = meeting.proof();
        meeting.answer(&m.encode(), &[&proof, &chunk()]);
        meeting.ends_on_tcp(Reason::PEER_MISBEHAVED);
    });
}

/// Silence: nothing is given up for half a minute, and nobody waits meanwhile.
#[test]
fn a_peer_that_does_not_answer_delays_nobody() {
    victim(Meeting::with_client, |meeting| {
        meeting.proposed();
        let start = Instant::now();
        for _ in 0..300 {
            meeting.exchange();
        }
        assert!(start.elapsed() < PATIENCE);
    });
    victim(Meeting::with_server, |meeting| {
        assert_eq!(meeting.accepted().0.kind, MessageKind::Accept);
        for _ in 0..300 {
            meeting.exchange();
        }
    });
}

/// Canary: what this looks for is found.
#[test]
fn a_wait_that_is_too_long_is_seen() {
    let ms = |ms| Some(Duration::from_millis(ms));
    assert_eq!(
        limit("poll([{fd=3, events=POLLIN}], 1, 40) = 0 (Timeout)"),
        ms(40)
    );
    assert_eq!(
        limit("ppoll([], 0, {tv_sec=0, tv_nsec=1000000}, NULL, 0) = 0 (Timeout)"),
        ms(1)
    );
    assert_eq!(
        limit("clock_nanosleep(CLOCK_REALTIME, 0, {tv_sec=2, tv_nsec=0}, NULL) = 0"),
        ms(2000)
    );
    for forever in [
        "poll([{fd=3, events=POLLIN}], 1, -1) = 1",
        "ppoll([{fd=3, events=POLLIN}], 1, NULL, NULL, 0) = 1",
        "recvmsg(9, {msg_namelen=0}, 0) = 5",
        "futex(0x7f, FUTEX_WAIT_PRIVATE, 1, NULL) = 0",
        "flock(3, LOCK_EX) = 0",
        "wait4(-1, NULL, 0, NULL) = 7",
    ] {
        assert_eq!(limit(forever), None, "{forever}");
        assert!(!is_the_program_s(forever));
    }
    assert!(is_the_program_s(
        "recvfrom(4, \"abc\", 100, 0, NULL, NULL) = 3"
    ));
}
