//! What mainline's RNBD client and server say to each other, captured between two guests.
//!
//! `MEMLANE_WRITE_VECTORS=1 ./dev test-kernels` writes `verify/memlane-fixtures/vectors/mainline-rnbd.txt` anew; tests of the
//! transport and of volumes read it. Without that, the conversation is held and taken apart.
#![cfg(target_arch = "x86_64")]

mod rdma;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use memlane_fixtures::guest::Running;
use memlane_fixtures::mainline;
use memlane_system::harness::TempDir;
use rdma::{MAINLINE_CLIENT, guest, kernel};

/// Modules of the kernel's server, whose disk is a file.
const SERVER: &[&str] = &[
    "loop",
    "rtrs-core",
    "rtrs-server",
    "rnbd-server",
    "virtio_pci",
    "virtio_net",
];

const DEVICE: &str = r"
export PATH=/bin
/opt/ip link set lo up
/opt/ip link set eth0 up
/opt/ip addr add 192.0.2.$ME/24 dev eth0
/opt/rdma link add r0 type rxe netdev eth0
";

const SERVES: &str = r"
truncate -s 16M /tmp/disk
losetup /dev/loop0 /tmp/disk
echo server-is-up
read word </dev/console
";

/// One request of each kind, none longer than a sector.
const ASKS: &str = r#"
ping -c 1 192.0.2.1 >/dev/null
echo "sessname=vectors path=ip:192.0.2.2@ip:192.0.2.1 device_path=/dev/loop0 access_mode=rw" \
    >/sys/devices/virtual/rnbd-client/ctl/map_device
/opt/dd if=/dev/zero of=/dev/rnbd0 bs=512 count=1 seek=7 oflag=direct,dsync status=none
/opt/dd if=/dev/rnbd0 of=/dev/null bs=512 count=1 skip=7 iflag=direct status=none
/opt/dd if=/dev/zero of=/dev/rnbd0 bs=512 count=1 seek=8 oflag=direct conv=fsync status=none
/opt/blkdiscard -o 1048576 -l 65536 /dev/rnbd0
/opt/blkdiscard -z -o 2097152 -l 65536 /dev/rnbd0
echo normal >/sys/block/rnbd0/rnbd/unmap_device
sleep 1
"#;

/// The longest write that is kept. What is longer is data.
const LONGEST: usize = 1024;

// ---- the capture file ----

fn u32_le(bytes: &[u8], at: usize) -> Option<usize> {
    let four = bytes.get(at..at + 4)?.try_into().ok()?;
    usize::try_from(u32::from_le_bytes(four)).ok()
}

/// The frames of a pcap file in this machine's order.
fn frames(file: &[u8]) -> Vec<&[u8]> {
    let (mut at, mut found) = (24, Vec::new());
    while let Some(len) = u32_le(file, at + 8) {
        let Some(frame) = file.get(at + 16..at + 16 + len) else {
            break;
        };
        found.push(frame);
        at += 16 + len;
    }
    found
}

/// What a frame carries for InfiniBand's transport: the last byte of its sender's address, and the packet without its
/// checksum. RoCE version 2: UDP to port 4791.
fn packet(frame: &[u8]) -> Option<(u8, &[u8])> {
    let is_ip = frame.get(12..14)? == [8, 0] && frame.get(14)? >> 4 == 4;
    let ip = frame.get(14..).filter(|_| is_ip)?;
    let udp = ip.get(usize::from(ip[0] & 15) * 4..)?;
    let is_roce = *ip.get(9)? == 17 && udp.get(2..4)? == 4791_u16.to_be_bytes();
    let len = usize::from(u16::from_be_bytes(udp.get(4..6)?.try_into().ok()?));
    let packet = udp.get(8..len - 4).filter(|_| is_roce)?;
    Some((ip[15], packet))
}

// ---- InfiniBand's packets ----

/// Of the connection manager's datagrams: bytes before private data of a request, and of its answer. The address header of
/// `rdma_cm` comes before a request's.
const REQUEST: (u16, usize) = (0x10, 24 + 140 + 36);
const REPLY: (u16, usize) = (0x13, 24 + 36);
/// Bytes of private data that RTRS's messages have.
const PRIVATE: usize = 56;

/// The private data in a datagram of the connection manager.
fn private_data(datagram: &[u8]) -> Option<&[u8]> {
    let is_cm = *datagram.get(1)? == 7;
    let kind = u16::from_be_bytes(datagram.get(16..18)?.try_into().ok()?);
    let (_, at) = [REQUEST, REPLY].into_iter().find(|(id, _)| *id == kind)?;
    datagram.get(at..at + PRIVATE).filter(|_| is_cm)
}

/// A message that comes in several packets.
#[derive(Default)]
struct Parts {
    /// Of a write: where it begins at the receiver.
    at: Option<u64>,
    bytes: Vec<u8>,
}

/// Puts packets of reliable connections together. Returns a line for each message that is complete.
#[derive(Default)]
struct Reader {
    parts: BTreeMap<(u8, [u8; 3]), Parts>,
    /// Packets that were seen: some are sent twice.
    seen: BTreeMap<(u8, [u8; 3]), Vec<u32>>,
}

impl Reader {
    fn read(&mut self, from: u8, packet: &[u8]) -> Option<String> {
        let side = if from == 1 { "server" } else { "client" };
        let opcode = *packet.first()?;
        let padding = usize::from(packet[1] >> 4 & 3);
        let queue: [u8; 3] = packet.get(5..8)?.try_into().ok()?;
        let number = u32::from_be_bytes(packet.get(8..12)?.try_into().ok()?) & 0xff_ffff;
        let body = packet.get(12..packet.len() - padding)?;
        if opcode == 0x64 {
            let private = private_data(body.get(8..)?)?;
            return Some(format!("{side} private {}", hex(private)));
        }
        let (is_write, is_first, is_last, has_immediate, has_key) = match opcode {
            0x00 => (false, true, false, false, false),
            0x01 => (false, false, false, false, false),
            0x02 => (false, false, true, false, false),
            0x03 => (false, false, true, true, false),
            0x04 => (false, true, true, false, false),
            0x05 => (false, true, true, true, false),
            0x06 => (true, true, false, false, false),
            0x07 => (true, false, false, false, false),
            0x08 => (true, false, true, false, false),
            0x09 => (true, false, true, true, false),
            0x0a => (true, true, true, false, false),
            0x0b => (true, true, true, true, false),
            0x16 => (false, false, true, false, true),
            0x17 => (false, true, true, false, true),
            _ => return None,
        };
        let seen = self.seen.entry((from, queue)).or_default();
        if seen.contains(&number) {
            return None;
        }
        seen.push(number);
        let head = 16 * usize::from(is_write && is_first);
        let more = 4 * usize::from(has_immediate || has_key);
        let parts = self.parts.entry((from, queue)).or_default();
        if is_first {
            let at = is_write.then(|| body.get(..8)?.try_into().ok());
            *parts = Parts {
                at: at.flatten().map(u64::from_be_bytes),
                ..Parts::default()
            };
        }
        parts.bytes.extend(body.get(head + more..)?);
        if !is_last {
            return None;
        }
        let whole = std::mem::take(parts);
        let mut line = match whole.at {
            Some(at) => format!("{side} write {at:x}"),
            None => format!("{side} send"),
        };
        if has_immediate {
            let _ = write!(line, " {}", hex(body.get(head..head + 4)?));
        }
        if has_key {
            line += " invalidate";
        }
        let is_message = whole.at.is_none() || whole.bytes.len() <= LONGEST;
        is_message.then(|| format!("{line} {}", hex(&whole.bytes)))
    }
}

fn hex(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "-".into();
    }
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The conversation: a line for each message.
fn conversation(capture: &Path) -> Vec<String> {
    let file = std::fs::read(capture).expect("the capture file");
    let mut reader = Reader::default();
    let packets = frames(&file).into_iter().filter_map(packet);
    packets
        .filter_map(|(from, packet)| reader.read(from, packet))
        .collect()
}

// ---- the story ----

/// Holds the conversation between two kernels, and returns the capture file; `None`: something is missing here.
fn captured(test: &str, folder: &Path) -> Option<PathBuf> {
    let kernel = kernel(test, MAINLINE_CLIENT)?;
    let capture = folder.join("capture");
    let link = folder.join("link");
    let machine = |me: u8, modules: &[&str]| {
        let server = if me == 1 { "on" } else { "off" };
        let netdev = format!(
            "stream,id=link,server={server},addr.type=unix,addr.path={}",
            link.display()
        );
        let device = format!("virtio-net-pci,netdev=link,mac=52:54:00:00:01:0{me},romfile=");
        let dump = format!("filter-dump,id=dump,netdev=link,file={}", capture.display());
        let mut arguments = vec!["-netdev", &netdev, "-device", &device];
        if me == 1 {
            arguments.extend(["-object", &dump]);
        }
        let one = guest(&kernel, modules, folder).expect("programs of this machine");
        one.arguments(&arguments)
    };
    let script = |me: u8, story: &str| format!("ME={me}\n{DEVICE}{story}");
    let mut server: Running = machine(1, SERVER).start(&script(1, SERVES));
    assert!(server.hears("server-is-up"), "{}", server.console());
    let modules = [MAINLINE_CLIENT, &["virtio_pci", "virtio_net"]].concat();
    let client = machine(2, &modules).start(&script(2, ASKS)).finish();
    server.types("over");
    let served = server.finish();
    assert!(
        client.ok && served.ok,
        "{}\n{}",
        client.console,
        served.console
    );
    Some(capture)
}

#[test]
#[ignore = "boots guests: ./dev test-kernels"]
fn the_kernels_conversation_is_made_of_messages_as_they_were_written_down() {
    let folder = TempDir::new("rdma-vectors");
    let Some(capture) = captured("rdma-vectors", folder.path()) else {
        return;
    };
    let said = conversation(&capture);
    if std::env::var_os("MEMLANE_WRITE_VECTORS").is_some() {
        mainline::write(&said);
    }
    let kinds = |lines: &[String]| -> Vec<String> {
        let words = lines.iter().map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            format!("{} {}", words[0], words[1])
        });
        let mut kinds: Vec<String> = words.collect();
        kinds.sort();
        kinds.dedup();
        kinds
    };
    let written: Vec<String> = mainline::lines().map(str::to_owned).collect();
    assert_eq!(
        kinds(&said),
        kinds(&written),
        "compared with the file of this build"
    );
    assert!(said.len() > 20, "{said:?}");
}
