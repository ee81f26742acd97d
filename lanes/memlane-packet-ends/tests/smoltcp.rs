//! smoltcp over ends: two of its stacks over the lane, and one against the kernel's TCP over a TAP device (for root;
//! skipped otherwise). What is sent arrives, all of it, in order, and unchanged.

mod frames;

use frames::Recipe;
use memlane_packet::Offloads;
use memlane_packet::io::{BackTerms, FrontTerms, Listener, connect};
use memlane_packet::{Meta, Mode};
use memlane_packet_ends::headers::find;
use memlane_packet_ends::port::Port;
use memlane_packet_ends::segment::fill_in_blank;
use memlane_packet_ends::smoltcp::{DeviceCounts, EndDevice};
use memlane_packet_ends::{End, EndCounts, EndError, Frame, More, Sent, Sleep, lend, tap};
use rustix::event::PollFd;
use rustix::thread::{UnshareFlags, unshare_unsafe};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, RxToken, TxToken};
use smoltcp::socket::tcp;
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, IpAddress, IpCidr};
use std::hash::{DefaultHasher, Hasher};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
const PORT: u16 = 5201;
const FRONT: [u8; 4] = [198, 51, 100, 1];
const BACK: [u8; 4] = [198, 51, 100, 2];

/// The bytes that are sent: no two stretches are alike.
fn content(at: usize, into: &mut [u8]) {
    for (n, byte) in into.iter_mut().enumerate() {
        let word = ((at + n) as u64 / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        *byte = word.to_le_bytes()[(at + n) % 8];
    }
}

fn hash_of_content(len: usize) -> u64 {
    let mut bytes = vec![0; len];
    content(0, &mut bytes);
    let mut hasher = DefaultHasher::new();
    hasher.write(&bytes);
    hasher.finish()
}

/// A stack with one TCP socket.
struct Stack<E: End> {
    device: EndDevice<E>,
    interface: Interface,
    sockets: SocketSet<'static>,
    socket: SocketHandle,
    began: std::time::Instant,
}

impl<E: End> Stack<E> {
    fn new(end: E, address: [u8; 4], mtu: usize) -> Stack<E> {
        let mut device = EndDevice::new(end, mtu).expect("an end that is there");
        let hardware = EthernetAddress([2, 0, 0, 0, 0, address[3]]);
        let config = Config::new(hardware.into());
        let mut interface = Interface::new(config, &mut device, Instant::ZERO);
        let [a, b, c, d] = address;
        interface.update_ip_addrs(|all| {
            let own = IpCidr::new(IpAddress::v4(a, b, c, d), 24);
            all.push(own).expect("the first one");
        });
        let buffer = || tcp::SocketBuffer::new(vec![0; 256 << 10]);
        let mut sockets = SocketSet::new(vec![]);
        let socket = sockets.add(tcp::Socket::new(buffer(), buffer()));
        Stack {
            device,
            interface,
            sockets,
            socket,
            began: std::time::Instant::now(),
        }
    }

    fn tcp(&mut self) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(self.socket)
    }

    fn connect(&mut self, to: [u8; 4]) {
        let socket = self.sockets.get_mut::<tcp::Socket<'_>>(self.socket);
        let [a, b, c, d] = to;
        let remote = (IpAddress::v4(a, b, c, d), PORT);
        let context = self.interface.context();
        socket
            .connect(context, remote, 40_000)
            .expect("a free socket");
    }

    /// Polls and sleeps until `ready`.
    fn run(&mut self, mut ready: impl FnMut(&mut tcp::Socket<'static>) -> bool) {
        loop {
            let now = i64::try_from(self.began.elapsed().as_micros()).expect("short");
            let now = Instant::from_micros_const(now);
            self.interface
                .poll(now, &mut self.device, &mut self.sockets);
            if ready(self.tcp()) {
                self.device.flush().expect("a link");
                return;
            }
            let socket = self.tcp();
            let what = (socket.state(), self.device.counts(), self.device.ended());
            assert!(self.began.elapsed() < LIMIT && what.2.is_none(), "{what:?}");
            let delay = self.interface.poll_delay(now, &self.sockets);
            let delay = delay.map_or(Duration::from_millis(100), Duration::from);
            self.device.wait(delay).expect("a link");
        }
    }

    /// Sends `len` bytes, and closes.
    fn send(&mut self, len: usize) {
        let mut at = 0;
        self.run(|socket| {
            while at < len && socket.can_send() {
                let sent = socket.send(|room| {
                    let n = room.len().min(len - at);
                    content(at, &mut room[..n]);
                    (n, n)
                });
                at += sent.expect("open");
            }
            at == len
        });
        self.tcp().close();
    }

    /// Takes all bytes until the other side closes: how many, and their hash.
    fn take(&mut self) -> (usize, u64) {
        let (mut len, mut hasher) = (0, DefaultHasher::new());
        self.run(|socket| {
            while socket.can_recv() {
                let took = socket.recv(|bytes| {
                    hasher.write(bytes);
                    (bytes.len(), bytes.len())
                });
                len += took.expect("open");
            }
            len > 0 && !socket.may_recv()
        });
        (len, hasher.finish())
    }

    /// Until the other side has all, and knows that this is the end.
    fn finish(mut self) -> DeviceCounts {
        self.tcp().close();
        let mut rounds = 0;
        self.run(|socket| {
            rounds += 1;
            let over = [tcp::State::Closed, tcp::State::TimeWait];
            over.contains(&socket.state()) || rounds > 1000
        });
        self.device.counts()
    }
}

#[test]
fn two_stacks_talk_tcp_over_the_lane() {
    const LEN: usize = 4 << 20;
    for (mode, mtu) in [(Mode::Persistent, 1500), (Mode::Copy, 9000)] {
        let name = format!("@memlane-smoltcp-{mode:?}-{}", std::process::id());
        let listener = Listener::bind(&name).expect("a name of our own");
        let over = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&over);
        let front = std::thread::spawn(move || {
            let terms = FrontTerms {
                mode: Some(mode),
                ..FrontTerms::default()
            };
            let (link, mut queues) = connect(&name, &terms).expect("a link");
            let port = Port::new("front".into(), queues.remove(0), &link);
            let mut stack = Stack::new(port, FRONT, mtu);
            stack.connect(BACK);
            stack.run(|socket| socket.may_send());
            stack.send(LEN);
            let answer = stack.take();
            // The other side still waits to hear that all has come.
            stack.run(|_| is_over.load(Relaxed));
            (answer, stack.device.counts(), link)
        });
        let (link, mut queues) = listener
            .accept(&BackTerms::default(), LIMIT)
            .expect("a link");
        let port = Port::new("back".into(), queues.remove(0), &link);
        let mut stack = Stack::new(port, BACK, mtu);
        stack.tcp().listen(PORT).expect("a free socket");
        assert_eq!(stack.take(), (LEN, hash_of_content(LEN)), "{mode:?}");
        stack.send(1 << 20);
        stack.run(|socket| socket.send_queue() == 0);
        over.store(true, Relaxed);
        let (answer, front, _link) = front.join().expect("no panic");
        assert_eq!(answer, (1 << 20, hash_of_content(1 << 20)), "{mode:?}");
        let back = stack.device.counts();
        assert_eq!((front.damaged, back.damaged), (0, 0));
        assert!(front.sent >= (LEN / mtu) as u64, "{front:?}");
    }
}

/// A network of this thread's own: a TAP device whose other side is the kernel with an address. `None`: not here.
fn kernel() -> Option<memlane_packet_ends::kernel::Interface> {
    // SAFETY: only the namespaces of this thread, which a test has to itself.
    if let Err(errno) = unsafe { unshare_unsafe(UnshareFlags::NEWNET) } {
        eprintln!("SKIPPED smoltcp: no network namespace: {errno}");
        return None;
    }
    let Ok(mut taps) = tap::open_queues("smol0", 1) else {
        eprintln!("SKIPPED smoltcp: no TAP device");
        return None;
    };
    for args in ["addr add 198.51.100.1/24 dev smol0", "link set smol0 up"] {
        let status = Command::new("ip").args(args.split(' ')).status();
        if !status.is_ok_and(|status| status.success()) {
            eprintln!("SKIPPED smoltcp: no ip");
            return None;
        }
    }
    Some(taps.remove(0))
}

#[test]
fn the_kernel_sends_in_large_frames_and_takes_blank_checksums() {
    const LEN: usize = 8 << 20;
    let Some(tap) = kernel() else {
        return;
    };
    // In this network, as threads are where who made them is.
    let listener = TcpListener::bind(("198.51.100.1", PORT)).expect("an address of its own");
    let peer = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        stream.set_read_timeout(Some(LIMIT)).expect("a time");
        let mut bytes = vec![0; LEN];
        content(0, &mut bytes);
        stream.write_all(&bytes).expect("a connection");
        stream.shutdown(Shutdown::Write).expect("a connection");
        read_all(&mut stream)
    });
    let mut stack = Stack::new(tap, BACK, 1500);
    stack.connect(FRONT);
    assert_eq!(stack.take(), (LEN, hash_of_content(LEN)));
    stack.send(LEN);
    let counts = stack.finish();
    assert_eq!(peer.join().expect("no panic"), (LEN, hash_of_content(LEN)));
    assert!(counts.large > 0 && counts.damaged == 0, "{counts:?}");
}

fn read_all(stream: &mut TcpStream) -> (usize, u64) {
    let (mut len, mut hasher) = (0, DefaultHasher::new());
    let mut bytes = vec![0; 64 << 10];
    loop {
        let n = stream.read(&mut bytes).expect("a connection");
        if n == 0 {
            return (len, hasher.finish());
        }
        hasher.write(&bytes[..n]);
        len += n;
    }
}

/// Gives frames that it has, and shows those that it is sent.
#[derive(Debug)]
struct Giver(std::vec::IntoIter<(Vec<u8>, Meta)>, Vec<(Vec<u8>, Meta)>);

impl End for Giver {
    fn name(&self) -> &'static str {
        "giver"
    }
    fn offloads(&self) -> Offloads {
        Offloads::default()
    }
    fn receive(
        &mut self,
        most: usize,
        take: &mut dyn FnMut(&Frame<'_>) -> More,
    ) -> Result<usize, EndError> {
        for n in 0..most {
            let Some((bytes, meta)) = self.0.next() else {
                return if n > 0 {
                    Ok(n)
                } else {
                    Err(EndError::Finished)
                };
            };
            if lend(&bytes, meta, take) == More::No {
                return Ok(n + 1);
            }
        }
        Ok(most)
    }
    fn send(&mut self, frame: &Frame<'_>) -> Result<Sent, EndError> {
        let mut bytes = vec![0; frame.len()];
        frame.copy_out(0, &mut bytes);
        self.1.push((bytes, frame.meta()));
        Ok(Sent::Queued)
    }
    fn sleeps(&mut self, _: Sleep) -> Result<bool, EndError> {
        Ok(false)
    }
    fn watch<'a>(&'a self, _: Sleep, _: &mut Vec<PollFd<'a>>) {}
    fn counts(&self) -> EndCounts {
        EndCounts::default()
    }
}

#[test]
fn frames_whose_checksum_is_wrong_do_not_come_to_the_stack() {
    let recipe = |tcp, ipv6| Recipe {
        tcp,
        ipv6,
        ..Recipe::default()
    };
    let (mut frames, mut expected) = (Vec::new(), 0);
    for (tcp, ipv6) in [(true, false), (true, true), (false, false), (false, true)] {
        let blank = recipe(tcp, ipv6).bytes();
        let mut good = blank.clone();
        assert!(fill_in_blank(&mut good));
        let mut bad = good.clone();
        *bad.last_mut().expect("bytes") ^= 1;
        let vouched = Meta {
            data_validated: true,
            ..Meta::default()
        };
        let left_blank = Meta {
            csum_blank: true,
            ..Meta::default()
        };
        let all = [
            (good, Meta::default()),
            (bad.clone(), Meta::default()),
            (bad, vouched),
            (blank.clone(), left_blank),
            (blank, Meta::default()),
        ];
        frames.extend(all);
        expected += 3;
    }
    let mut none = recipe(false, false).bytes();
    none[40..42].fill(0);
    frames.push((none, Meta::default()));
    let mut piece = recipe(true, false).bytes();
    piece[20] = 0x20;
    frames.push((piece, Meta::default()));
    let mut arp = recipe(true, false).bytes();
    arp[13] = 6;
    frames.push((arp, Meta::default()));
    let mut icmp = recipe(true, false).bytes();
    icmp[23] = 1;
    frames.push((icmp, Meta::default()));
    let mut listener = Recipe {
        options: 1,
        ..recipe(true, true)
    };
    listener.payload = 200;
    let mut listener = listener.bytes();
    // Behind an extension header.
    listener[54] = 58;
    frames.push((listener.clone(), Meta::default()));
    listener[54] = 44;
    frames.push((listener, Meta::default()));
    expected += 4;
    let given = frames.len() as u64;
    let mut device = EndDevice::new(Giver(frames.into_iter(), Vec::new()), 1500).expect("an end");
    let mut came = 0;
    while let Some((rx, _)) = device.receive(Instant::ZERO) {
        rx.consume(|bytes| assert!(bytes.len() >= 100));
        came += 1;
    }
    let counts = device.counts();
    assert_eq!((came, counts.received), (expected, expected));
    assert_eq!(counts.damaged, given - expected);
    assert_eq!(device.ended(), Some(EndError::Finished));
}

#[test]
fn checksums_are_left_blank_as_the_lane_has_them() {
    let mut device = EndDevice::new(Giver(Vec::new().into_iter(), Vec::new()), 1500);
    let device = device.as_mut().expect("an end");
    let mut expected = Vec::new();
    for (tcp, ipv6) in [(true, false), (true, true), (false, false), (false, true)] {
        let recipe = Recipe {
            tcp,
            ipv6,
            ..Recipe::default()
        };
        // With the pseudo header's sum in the checksum's place, which the stack does not write.
        let frame = recipe.bytes();
        let mut written = frame.clone();
        let found = find(&frame, frame.len()).expect("a transport header");
        let at = found.at + found.checksum;
        written[at..at + 2].fill(0);
        let token = device.transmit(Instant::ZERO).expect("room");
        token.consume(written.len(), |room| room.copy_from_slice(&written));
        let blank = Meta {
            csum_blank: true,
            data_validated: true,
            gso: None,
        };
        expected.push((frame, blank));
    }
    let mut arp = Recipe::default().bytes();
    arp[13] = 6;
    let token = device.transmit(Instant::ZERO).expect("room");
    token.consume(arp.len(), |room| room.copy_from_slice(&arp));
    expected.push((arp, Meta::default()));
    assert!(device.end().1 == expected);
    assert_eq!(device.counts().sent, 5);
}
