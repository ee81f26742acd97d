//! Links between threads and processes: terms, what is refused, sleeping and waking, deaths, coming back.

use memlane_fixtures::frames::{copied, frame};
use memlane_packet::io::{
    BackQueue, BackTerms, FrontQueue, FrontTerms, Link, Listener, connect, connect_until,
};
use memlane_packet::layout::{PAGE, QueueLayout};
use memlane_packet::wire::WireError;
use memlane_packet::wire::{Attach, Hello, LEN, Message, Refusal, VERSION};
use memlane_packet::{AttachError, Detach, Meta, Mode, PacketPort, Sent, Sleep};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, recv, sendmsg, socket_with,
};
use std::io::{BufRead as _, BufReader, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// No wait of these tests is longer, on however loaded a machine.
const PATIENCE: Duration = Duration::from_secs(30);

fn name(what: &str) -> String {
    format!("@memlane-packet-test-{what}-{}", std::process::id())
}

type Ends = ((Link, Vec<FrontQueue>), (Link, Vec<BackQueue>));

fn pair(what: &str, front: FrontTerms, back: &BackTerms) -> Result<Ends, AttachError> {
    let name = name(what);
    let listener = Listener::bind(&name)?;
    let front = std::thread::spawn(move || connect(&name, &front));
    let back = listener.accept(back, PATIENCE);
    let front = front.join().expect("no panic")?;
    Ok((front, back?))
}

// ---- terms ------------------------------------------------------------------

#[test]
fn the_best_mode_that_is_offered_is_taken() {
    let cases = [
        ([true; 3], Mode::Persistent),
        ([false, true, true], Mode::Map),
        ([false, false, true], Mode::Copy),
    ];
    for (modes, mode) in cases {
        let offer = BackTerms {
            modes,
            ..BackTerms::default()
        };
        let ((front, _), (back, _)) = pair("best", FrontTerms::default(), &offer).unwrap();
        assert_eq!((front.mode(), back.mode()), (mode, mode));
    }
}

#[test]
fn what_is_not_offered_is_said_before_memory_is_made() {
    let offer = BackTerms {
        modes: [true, false, true],
        queues: 2,
        ring_log2: 8,
        memory: 8 << 20,
        ..BackTerms::default()
    };
    let wanted = FrontTerms::default();
    for terms in [
        FrontTerms {
            mode: Some(Mode::Map),
            ..wanted
        },
        FrontTerms {
            queues: 3,
            ..wanted
        },
        FrontTerms {
            ring_log2: 9,
            ..wanted
        },
        FrontTerms { order: 4, ..wanted },
    ] {
        // The back hears that the socket was closed; only the front knows why.
        let refused = pair("terms", terms, &offer).map(|_| ()).unwrap_err();
        assert!(matches!(refused, AttachError::NotOffered(_)), "{refused:?}");
    }
    for terms in [
        FrontTerms {
            queues: 0,
            ..wanted
        },
        FrontTerms {
            queues: 17,
            ..wanted
        },
        FrontTerms {
            ring_log2: 4,
            ..wanted
        },
        FrontTerms { order: 5, ..wanted },
    ] {
        let refused = pair("terms", terms, &offer).map(|_| ()).unwrap_err();
        assert!(matches!(refused, AttachError::Config(_)), "{refused:?}");
    }
}

#[test]
fn a_back_that_has_to_fill_its_queues_takes_no_front_with_fewer_and_says_so() {
    let offer = BackTerms {
        queues: 2,
        queues_least: 2,
        ..BackTerms::default()
    };
    let with = |queues| FrontTerms {
        queues,
        ..FrontTerms::default()
    };
    let refused = pair("fewer", with(1), &offer).map(|_| ()).unwrap_err();
    assert!(
        matches!(refused, AttachError::Refused(4)) && refused.to_string().contains("same number"),
        "{refused}"
    );
    let ((_, fronts), (_, backs)) = pair("enough", with(2), &offer).unwrap();
    assert_eq!((fronts.len(), backs.len()), (2, 2));
}

#[test]
fn a_file_that_is_no_socket_is_not_taken_for_one_that_a_dead_back_left() {
    let path = std::env::temp_dir().join(format!("memlane-packet-file-{}", std::process::id()));
    std::fs::write(&path, "precious").unwrap();
    let bound = Listener::bind(path.to_str().unwrap()).map(|_| ());
    assert!(matches!(bound, Err(AttachError::Socket(_))), "{bound:?}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn offloads_are_those_that_both_can() {
    let mut offer = BackTerms::default();
    offer.offloads.gso6 = false;
    let ((link, mut front), (_, mut back)) =
        pair("offloads", FrontTerms::default(), &offer).unwrap();
    assert!(link.offloads().gso4 && !link.offloads().gso6);
    let (bytes, four) = frame(0, 3000);
    let (_, six) = frame(1, 3000);
    let mut send = |meta| {
        front[0].send(bytes.len(), meta, |room| {
            assert_eq!(room.copy_in(0, &bytes), 3000)
        })
    };
    assert_eq!(send(six), Ok(Sent::Refused));
    assert_eq!(send(four), Ok(Sent::Queued));
    front[0].flush().unwrap();
    let taken = back[0].receive(8, |f| assert_eq!(copied(f), (bytes.clone(), four)));
    assert_eq!(taken, Ok(1));
}

// ---- traffic ----------------------------------------------------------------

/// Echoes what comes until the other side is gone; how many.
fn echo(queue: &mut impl PacketPort) -> usize {
    let mut echoed = 0;
    loop {
        let mut came = Vec::new();
        match queue.receive(16, |f| came.push(copied(f))) {
            Err(_) => return echoed,
            Ok(0) if queue.wait(Sleep::FOR_FRAMES, PATIENCE).is_err() => return echoed,
            Ok(n) => echoed += n,
        }
        for (bytes, meta) in came {
            if put(queue, &bytes, meta).is_err() {
                return echoed;
            }
        }
        if queue.flush().is_err() {
            return echoed;
        }
    }
}

/// Sends, and waits for room if there is none.
fn put(queue: &mut impl PacketPort, bytes: &[u8], meta: Meta) -> Result<(), Detach> {
    loop {
        let sent = queue.send(bytes.len(), meta, |room| {
            assert_eq!(room.copy_in(0, bytes), bytes.len());
        })?;
        match sent {
            Sent::Queued => return Ok(()),
            Sent::Refused => panic!("{} bytes refused", bytes.len()),
            Sent::Full(slots) => {
                queue.flush()?;
                queue.wait(Sleep::for_room(slots), Duration::from_millis(5))?;
            }
        }
    }
}

/// Sends frames of all sizes and checks that they come back; `at_once` under way.
fn check_echo(queue: &mut impl PacketPort, frames: u64, at_once: u64) {
    let len = |n: u64| 14 + usize::try_from(n * 7919 % 65_522).unwrap();
    let (mut sent, mut back) = (0, 0);
    let end = Instant::now() + PATIENCE;
    while back < frames {
        while sent < frames && sent - back < at_once {
            let (bytes, meta) = frame(sent, len(sent));
            put(queue, &bytes, meta).unwrap();
            sent += 1;
        }
        queue.flush().unwrap();
        let came = queue.receive(16, |f| {
            assert_eq!(copied(f), frame(back, len(back)));
            back += 1;
        });
        if came == Ok(0) {
            queue
                .wait(Sleep::FOR_FRAMES, Duration::from_secs(1))
                .unwrap();
        }
        assert!(Instant::now() < end, "{sent} sent, {back} back");
    }
}

#[test]
fn four_queues_carry_frames_of_all_sizes_in_each_mode_while_both_sides_sleep() {
    for mode in Mode::ALL {
        let terms = FrontTerms {
            mode: Some(mode),
            queues: 4,
            ring_log2: 6,
            ..FrontTerms::default()
        };
        let ((front, fronts), (back, backs)) =
            pair("queues", terms, &BackTerms::default()).unwrap();
        std::thread::scope(|s| {
            let echoes: Vec<_> = backs
                .into_iter()
                .map(|mut queue| s.spawn(move || echo(&mut queue)))
                .collect();
            let checks: Vec<_> = fronts
                .into_iter()
                .map(|mut queue| s.spawn(move || check_echo(&mut queue, 150, 3)))
                .collect();
            checks.into_iter().for_each(|check| check.join().unwrap());
            // The queues are gone: that ends the echoes.
            let echoed: usize = echoes.into_iter().map(|echo| echo.join().unwrap()).sum();
            assert_eq!(echoed, 4 * 150);
        });
        drop(front);
        assert_eq!(back.ended(), Some(Detach::PeerDetached(0)));
    }
}

#[test]
fn a_wait_ends_when_its_time_is_over() {
    let ((_front, mut fronts), (_back, mut backs)) =
        pair("time", FrontTerms::default(), &BackTerms::default()).unwrap();
    let short = Duration::from_millis(20);
    let start = Instant::now();
    assert_eq!(fronts[0].wait(Sleep::FOR_FRAMES, short), Ok(false));
    assert_eq!(backs[0].wait(Sleep::FOR_FRAMES, short), Ok(false));
    assert!(start.elapsed() >= 2 * short);
}

// ---- what is refused ---------------------------------------------------------

/// A socket that is connected to `name`, and has heard the back's hello.
fn stranger(name: &str) -> OwnedFd {
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    );
    let socket = socket.unwrap();
    let at = SocketAddrUnix::new_abstract_name(name.trim_start_matches('@').as_bytes()).unwrap();
    rustix::net::connect(&socket, &at).unwrap();
    socket
}

fn say(socket: &OwnedFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
    }
    sendmsg(
        socket,
        &[IoSlice::new(bytes)],
        &mut control,
        SendFlags::NOSIGNAL,
    )
    .unwrap();
}

fn hear(socket: &OwnedFd) -> Option<Message> {
    let mut bytes = [0; LEN + 1];
    let (n, _) = recv(socket, &mut bytes[..], RecvFlags::empty()).ok()?;
    Message::decode(bytes.get(..n)?).ok()
}

fn layout() -> QueueLayout {
    QueueLayout::new(5, 64).unwrap()
}

fn attach() -> Attach {
    Attach {
        mode: Mode::Persistent,
        offloads: memlane_packet::Offloads::default(),
        queues: 1,
        ring_log2: 5,
        grants: 64,
        control: layout().len as u64,
        tx: 32 * PAGE as u64,
        rx: 32 * PAGE as u64,
    }
}

fn region(len: usize) -> memlane_core::region::Region {
    memlane_core::region::Region::create(c"test", len, false).unwrap()
}

fn fd(region: &memlane_core::region::Region) -> BorrowedFd<'_> {
    // SAFETY: the region has it, and outlives the borrow.
    unsafe { BorrowedFd::borrow_raw(region.fd().unwrap()) }
}

/// What the back says to a front that sends this, and to itself.
fn back_says(bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> (Option<Message>, AttachError) {
    // Each its own: a process that another test is just starting still has an earlier one's socket.
    static SERIAL: AtomicU32 = AtomicU32::new(0);
    let name = name(&format!("say-{}", SERIAL.fetch_add(1, Ordering::Relaxed)));
    let listener = Listener::bind(&name).unwrap();
    let offer = BackTerms {
        modes: [true, false, true],
        queues: 2,
        memory: 1 << 20,
        ..BackTerms::default()
    };
    std::thread::scope(|s| {
        let back = s.spawn(|| listener.accept(&offer, PATIENCE).map(|_| ()).unwrap_err());
        let socket = stranger(&name);
        assert!(matches!(
            hear(&socket),
            Some(Message::Hello(Hello { queues: 2, .. }))
        ));
        say(&socket, bytes, descriptors);
        let heard = hear(&socket);
        (heard, back.join().unwrap())
    })
}

#[test]
fn a_front_that_asks_for_what_cannot_be_is_told_why() {
    let ok = attach();
    let memory = [layout().len, 32 * PAGE, 32 * PAGE].map(region);
    let (doorbell, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let all = [
        fd(&memory[0]),
        fd(&memory[1]),
        fd(&memory[2]),
        doorbell.as_fd(),
    ];
    for wrong in [
        Attach {
            mode: Mode::Map,
            ..ok
        },
        Attach { queues: 0, ..ok },
        Attach { queues: 3, ..ok },
        Attach {
            ring_log2: 13,
            ..ok
        },
        Attach { ring_log2: 4, ..ok },
        Attach { grants: 63, ..ok },
        Attach {
            grants: u32::MAX,
            ..ok
        },
        Attach {
            control: ok.control + 4096,
            ..ok
        },
        Attach { tx: u64::MAX, ..ok },
        Attach { rx: 1 << 20, ..ok },
        Attach { rx: 0, ..ok },
    ] {
        let (heard, _) = back_says(&Message::Attach(wrong).encode(), &all);
        assert_eq!(
            heard,
            Some(Message::Refused(Refusal::Terms as u16)),
            "{wrong:?}"
        );
    }
}

#[test]
fn descriptors_that_are_not_what_they_must_be_are_refused() {
    let bytes = Message::Attach(attach()).encode();
    let memory = [layout().len, 32 * PAGE, 32 * PAGE].map(region);
    let [control, tx, rx] = [0, 1, 2].map(|n| fd(&memory[n]));
    let (doorbell, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let (datagrams, _other) = std::os::unix::net::UnixDatagram::pair().unwrap();
    let null = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/null")
        .unwrap();
    let shorter = region(PAGE);
    let unsealed = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&unsealed, 32 * PAGE as u64).unwrap();
    let (doorbell, null, datagrams) = (doorbell.as_fd(), null.as_fd(), datagrams.as_fd());
    let cases: [(&[BorrowedFd<'_>], Refusal); 9] = [
        (&[], Refusal::Descriptors),
        (&[control, tx, rx], Refusal::Descriptors),
        (&[control, tx, rx, doorbell, doorbell], Refusal::Descriptors),
        (&[control, tx, rx, null], Refusal::Descriptors),
        (&[control, tx, rx, datagrams], Refusal::Descriptors),
        (&[null, tx, rx, doorbell], Refusal::Memory),
        (&[fd(&shorter), tx, rx, doorbell], Refusal::Memory),
        (&[control, fd(&shorter), rx, doorbell], Refusal::Memory),
        (&[control, tx, unsealed.as_fd(), doorbell], Refusal::Memory),
    ];
    for (n, (descriptors, refusal)) in cases.iter().enumerate() {
        let (heard, _) = back_says(&bytes, descriptors);
        assert_eq!(heard, Some(Message::Refused(*refusal as u16)), "case {n}");
    }
}

#[test]
fn bytes_that_are_no_message_end_that_front_only() {
    let good = Message::Attach(attach()).encode();
    let mut other_version = good;
    other_version[8] = 9;
    let mut reserved = good;
    reserved[18] = 1;
    let cases: [(&[u8], WireError); 6] = [
        (&good[..47], WireError::Length(47)),
        (&[0; 49], WireError::Length(49)),
        (&[7; 48], WireError::Magic(0x0707_0707_0707_0707)),
        (&other_version, WireError::Version(9)),
        (&reserved, WireError::Field("reserved")),
        (
            &Message::Attached.encode(),
            WireError::Field("the answer to hello"),
        ),
    ];
    for (bytes, why) in cases {
        let (_, error) = back_says(bytes, &[]);
        assert!(
            matches!(error, AttachError::Wire(wire) if wire == why),
            "{error:?} for {why:?}"
        );
    }
}

#[test]
fn a_back_that_talks_nonsense_or_says_no_is_told_to_the_front() {
    let name = name("nonsense");
    let hello = Hello {
        modes: [true; 3],
        offloads: memlane_packet::Offloads::default(),
        queues: 1,
        ring_log2: 8,
        memory: 1 << 30,
    };
    let mut newer = Message::Hello(hello).encode();
    newer[8..10].copy_from_slice(&(VERSION + 1).to_le_bytes());
    let answers: [(Vec<u8>, Option<Message>); 3] = [
        (newer.into(), None),
        (Message::Attached.encode().into(), None),
        (
            Message::Hello(hello).encode().into(),
            Some(Message::Refused(2)),
        ),
    ];
    for (first, second) in answers {
        let at =
            SocketAddrUnix::new_abstract_name(name.trim_start_matches('@').as_bytes()).unwrap();
        let door = socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        );
        let door = door.unwrap();
        rustix::net::bind(&door, &at).unwrap();
        rustix::net::listen(&door, 1).unwrap();
        let target = name.clone();
        let front =
            std::thread::spawn(move || connect(&target, &FrontTerms::default()).map(|_| ()));
        let socket = rustix::net::accept(&door).unwrap();
        say(&socket, &first, &[]);
        if let Some(second) = second {
            assert!(matches!(hear(&socket), Some(Message::Attach(_))));
            say(&socket, &second.encode(), &[]);
        }
        let error = front.join().unwrap().unwrap_err();
        assert!(
            matches!(error, AttachError::Wire(_) | AttachError::Refused(2)),
            "{error:?}"
        );
    }
}

#[test]
fn a_name_that_a_dead_back_left_is_taken_over_and_a_live_ones_is_not() {
    let folder = std::env::temp_dir().join(format!("memlane-packet-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("back.sock");
    let at = path.to_str().unwrap();
    let left = std::os::unix::net::UnixListener::bind(&path).unwrap();
    drop(left);
    let listener = Listener::bind(at).expect("nobody listens there");
    let taken = Listener::bind(at).map(|_| ()).unwrap_err();
    assert!(matches!(taken, AttachError::Socket(_)), "{taken:?}");
    drop(listener);
    assert!(!path.exists());
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_back_that_lets_nobody_in_does_not_keep_who_knocks_waiting() {
    let name = name("full-door");
    let listener = Listener::bind(&name).unwrap();
    let (done, tried) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let address = SocketAddrUnix::new_abstract_name(&name.as_bytes()[1..]).unwrap();
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let mut waiting = Vec::new();
        loop {
            let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
            let socket = socket.unwrap();
            if rustix::net::connect(&socket, &address).is_err() {
                break;
            }
            waiting.push(socket);
        }
        let refused = connect(&name, &FrontTerms::default()).map(|_| ());
        done.send((waiting.len(), refused))
    });
    let (waiting, refused) = tried.recv_timeout(PATIENCE).expect("it waits");
    assert!(waiting > 0);
    assert!(
        matches!(refused, Err(AttachError::Socket(_))),
        "{refused:?}"
    );
    drop(listener);
}

/// Users of a name that has no permissions must be of one user.
#[test]
fn a_stranger_at_an_abstract_name_is_turned_away() {
    if rustix::process::geteuid().as_raw() != 0 {
        eprintln!("SKIPPED: only root can be another user");
        return;
    }
    if Command::new("python3").arg("--version").output().is_err() {
        eprintln!("SKIPPED: no python3");
        return;
    }
    let name = name("stranger");
    let listener = Listener::bind(&name).unwrap();
    let stranger = Command::new("sh")
        .args(["-c", STRANGER, "sh", name.trim_start_matches('@')])
        .uid(65534)
        .spawn();
    let mut stranger = stranger.unwrap();
    let came = listener.accept(&BackTerms::default(), PATIENCE).map(|_| ());
    assert!(
        matches!(came, Err(AttachError::Stranger(65534))),
        "{came:?}"
    );
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

/// Connects, and waits to be killed.
const STRANGER: &str = r#"exec python3 -c '
import socket, sys, time
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.connect("\0" + sys.argv[1])
time.sleep(60)' "$1""#;

// ---- deaths -----------------------------------------------------------------

const BACK: &str = "MEMLANE_PACKET_TEST_BACK";
const FRONT: &str = "MEMLANE_PACKET_TEST_FRONT";

/// A process of its own that runs one of the tests below, which are nothing by themselves.
struct Process(Child);

impl Process {
    fn start(variable: &str, name: &str, test: &str) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture"])
            .env(variable, name)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(
            lines.any(|line| line.unwrap() == "ready"),
            "it did not begin"
        );
        Process(child)
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn back_process() {
    let Ok(name) = std::env::var(BACK) else {
        return;
    };
    let listener = Listener::bind(&name).unwrap();
    println!("\nready");
    let (_link, mut queues) = listener.accept(&BackTerms::default(), PATIENCE).unwrap();
    echo(&mut queues[0]);
}

#[test]
fn front_process() {
    let Ok(name) = std::env::var(FRONT) else {
        return;
    };
    let (_link, mut queues) = connect(&name, &FrontTerms::default()).unwrap();
    for n in 0..5 {
        let (bytes, meta) = frame(n, 2000);
        put(&mut queues[0], &bytes, meta).unwrap();
    }
    queues[0].flush().unwrap();
    println!("\nready");
    std::thread::sleep(PATIENCE);
}

/// The kernel closes a dead process's descriptors one after another.
fn told(link: &Link) -> Detach {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(why) = link.ended() {
            return why;
        }
        assert!(Instant::now() < end, "the socket does not end");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn wait_for_the_end(queue: &mut impl PacketPort, sleeping: bool) -> Detach {
    let end = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < end, "a death is not noticed");
        let outcome = match queue.receive(16, |_| ()) {
            Ok(0) if sleeping => queue.wait(Sleep::FOR_FRAMES, PATIENCE).map(|_| ()),
            other => other.map(|_| ()),
        };
        if let Err(why) = outcome {
            return why;
        }
    }
}

#[test]
fn a_killed_back_is_noticed_asleep_or_awake_and_its_successor_is_found() {
    let name = name("killed");
    let mut process = Process::start(BACK, &name, "back_process");
    for sleeping in [true, false] {
        let terms = FrontTerms::default();
        let end = Instant::now() + PATIENCE;
        let (link, mut queues) = connect_until(&name, &terms, end).unwrap();
        check_echo(&mut queues[0], 200, 8);
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            process.kill();
        });
        assert_eq!(wait_for_the_end(&mut queues[0], sleeping), Detach::PeerGone);
        assert_eq!(told(&link), Detach::PeerGone);
        assert_eq!(
            queues[0].send(64, Meta::default(), |_| ()),
            Err(Detach::PeerGone)
        );
        killer.join().unwrap();
        process = Process::start(BACK, &name, "back_process");
    }
    let end = Instant::now() + PATIENCE;
    let (_link, mut queues) = connect_until(&name, &FrontTerms::default(), end).unwrap();
    check_echo(&mut queues[0], 200, 8);
}

#[test]
fn a_front_finds_a_back_that_comes_later() {
    let name = name("later");
    let there = name.clone();
    let front = std::thread::spawn(move || {
        connect_until(&there, &FrontTerms::default(), Instant::now() + PATIENCE).map(|_| ())
    });
    std::thread::sleep(Duration::from_millis(100));
    let listener = Listener::bind(&name).unwrap();
    listener.accept(&BackTerms::default(), PATIENCE).unwrap();
    front.join().unwrap().unwrap();
    let nobody = connect_until(
        "@memlane-nobody-is-here",
        &FrontTerms::default(),
        Instant::now(),
    );
    assert!(matches!(nobody, Err(AttachError::Socket(_))));
}

#[test]
fn the_last_frames_of_a_killed_front_are_still_taken() {
    let name = name("front-killed");
    let listener = Listener::bind(&name).unwrap();
    let back =
        std::thread::spawn(move || listener.accept(&BackTerms::default(), PATIENCE).unwrap());
    let mut process = Process::start(FRONT, &name, "front_process");
    let (_link, mut queues) = back.join().unwrap();
    process.kill();
    let mut came = 0;
    let end = loop {
        let took = queues[0].receive(2, |f| {
            assert_eq!(copied(f), frame(came, 2000));
            came += 1;
        });
        let slept = took.and_then(|_| queues[0].wait(Sleep::FOR_FRAMES, PATIENCE));
        if let Err(end) = slept {
            break end;
        }
    };
    assert_eq!((came, end), (5, Detach::PeerGone));
}

#[test]
fn a_back_that_is_frozen_for_a_while_loses_nothing() {
    let name = name("frozen");
    let process = Process::start(BACK, &name, "back_process");
    let end = Instant::now() + PATIENCE;
    let (_link, mut queues) = connect_until(&name, &FrontTerms::default(), end).unwrap();
    check_echo(&mut queues[0], 50, 8);
    process.signal(rustix::process::Signal::STOP);
    let thaw = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(500));
        process.signal(rustix::process::Signal::CONT);
        process
    });
    // More than the rings take: the sender waits, and nothing is lost.
    check_echo(&mut queues[0], 400, 8);
    drop(thaw.join().unwrap());
}

#[test]
fn a_reason_to_detach_is_told_to_the_other_side() {
    let ((front, _fronts), (back, _backs)) =
        pair("reason", FrontTerms::default(), &BackTerms::default()).unwrap();
    assert_eq!((front.ended(), back.ended()), (None, None));
    back.close(&Detach::Slot(memlane_packet::error::Ring::Tx, "as a test"));
    assert_eq!(front.ended(), Some(Detach::PeerDetached(1)));
}
