//! Device memory: the kernel's control messages beside a stream, and the answers of its netlink families.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use memlane_devmem::engine::Span;
use memlane_devmem::io::kernel::Link;
use memlane_devmem::io::kernel::calls::Calls;
use memlane_devmem::io::{Binding, Terms};
use memlane_devmem::wire::control::{self, DMABUF, LINEAR, SOL_SOCKET, Stretch};
use memlane_devmem::wire::ethtool::{self, Split};
use memlane_devmem::wire::netdev;
use memlane_devmem::{DeviceRegion, Range};
use memlane_netlink::{Answer, Attributes, answers};
use memlane_sys::Errno;

/// The interface's part of the region, and what is kept beside it.
const DEVICE: u64 = 64 << 10;
const KEPT: u64 = 16 << 10;
const BINDING: u32 = 7;

/// A kernel that tells some bytes, once, and remembers what it gets back.
#[derive(Debug)]
struct Teller {
    bytes: usize,
    told: Mutex<Option<Vec<u8>>>,
    back: Mutex<Vec<u32>>,
}

impl Calls for Teller {
    fn receive(&self, beside: &mut [u8], told: &mut [u64]) -> Result<(usize, usize), Errno> {
        let told_now = self.told.lock().unwrap().take().ok_or(Errno::AGAIN)?;
        let len = told_now.len().min(size_of_val(told));
        for (word, bytes) in told.iter_mut().zip(told_now[..len].chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_ne_bytes(whole);
        }
        Ok((self.bytes.min(beside.len()), len))
    }

    fn release(&self, ranges: &[Range]) -> Result<u32, Errno> {
        assert!((1..=128).contains(&ranges.len()), "EINVAL");
        let mut back = self.back.lock().unwrap();
        let before = back.len();
        for range in ranges {
            back.extend((0..range.count).map(|n| range.start + n));
        }
        assert!(back.len() - before <= 1024, "more than one call looks at");
        Ok(u32::try_from(back.len() - before).expect("1024"))
    }

    fn send(&self, _: u32, _: &[Span]) -> Result<usize, Errno> {
        Err(Errno::INVAL)
    }

    fn errors(&self, told: &mut [u64]) -> Result<usize, Errno> {
        self.receive(&mut [], told).map(|(_, len)| len)
    }

    fn end(&self) {}

    fn abort(&self) {}
}

thread_local! {
    static REGION: Arc<Binding> = region();
}

fn region() -> Arc<Binding> {
    let spec = format!("memfd:{}", DEVICE + KEPT)
        .parse()
        .expect("a region");
    let region = DeviceRegion::create(&spec).expect("memory");
    Binding::beside(region, 4096, KEPT).expect("chunks")
}

/// Two bytes give the length of a receive; control messages about it follow. Believed if the messages name the bytes.
pub fn devmem_told(bytes: &[u8]) -> bool {
    let Some((count, told)) = bytes.split_first_chunk() else {
        return false;
    };
    let _ = control::over(told);
    let teller = Arc::new(Teller {
        bytes: usize::from(u16::from_le_bytes(*count)),
        told: Mutex::new(Some(told.to_vec())),
        back: Mutex::new(Vec::new()),
    });
    REGION.with(|binding| received(binding, &teller, told))
}

fn received(binding: &Arc<Binding>, teller: &Arc<Teller>, told: &[u8]) -> bool {
    let link = Link {
        receive: Some(BINDING),
        send: None,
    };
    let (socket, _) = UnixStream::pair().expect("sockets");
    let socket = Arc::new(OwnedFd::from(socket));
    let calls = Arc::clone(teller) as Arc<dyn Calls>;
    let mut stream = link.stream_by(calls, socket, binding, &Terms::default());
    let mut fragments = Vec::new();
    let came = stream.receive(&mut fragments);
    let sum: u64 = fragments.iter().map(|f| u64::from(f.len)).sum();
    assert_eq!(sum, came.unwrap_or(0));
    for fragment in &fragments {
        let end = fragment.offset.checked_add(u64::from(fragment.len));
        assert!(
            end.is_some_and(|end| end <= DEVICE + KEPT),
            "beyond the region"
        );
    }
    drop(stream);
    let counts = binding.counts();
    assert_eq!(counts.free, counts.chunks, "a chunk is lost");
    // Also of what makes no sense otherwise: no token is kept.
    let room = told.len().min(1024 * 40);
    for stretch in control::stretches(&told[..room]).unwrap_or_default() {
        if let Stretch::Device { fragment, .. } = stretch {
            assert!(
                teller.back.lock().unwrap().contains(&fragment.token),
                "a token is lost"
            );
        }
    }
    !fragments.is_empty()
}

/// A datagram about request 3. Believed: it says something about a binding, a queue, rings or commands.
pub fn devmem_netlink(bytes: &[u8]) -> bool {
    let mut said = false;
    for answer in answers(bytes, 3).unwrap_or_default() {
        match answer {
            Answer::Done => {}
            Answer::Failed(number, words) => {
                assert!((1..=4095).contains(&number));
                let plain = |words: String| !words.chars().any(char::is_control);
                assert!(words.is_none_or(plain));
            }
            Answer::Data(told) => {
                let rings = ethtool::rings_of(&told);
                let split = ethtool::split(&told);
                assert_eq!(split == Split::Off, rings.split == Some(1));
                said |= netdev::bound(&told).is_some() || netdev::rx_queue(&told).is_some();
                said |= split != Split::Unknown;
                said |= !netdev::control::commands(&told).is_empty();
            }
        }
    }
    said
}

fn message(kind: i32, offset: u64, rest: [u32; 4]) -> Vec<u8> {
    let mut bytes = 40_u64.to_ne_bytes().to_vec();
    bytes.extend(
        [SOL_SOCKET, kind]
            .iter()
            .flat_map(|word| word.to_ne_bytes()),
    );
    bytes.extend(offset.to_ne_bytes());
    bytes.extend(rest.iter().flat_map(|word| word.to_ne_bytes()));
    bytes
}

/// Seeds of [`devmem_told`].
pub fn told() -> Vec<(&'static str, Vec<u8>)> {
    let of = |bytes: u16, messages: &[Vec<u8>]| {
        [bytes.to_le_bytes().to_vec(), messages.concat()].concat()
    };
    let page = |at: u64, token: u32| message(DMABUF, at, [4096, token, BINDING, 0]);
    let linear = |len: u32| message(LINEAR, 0, [len, 0, 0, 0]);
    let many: Vec<_> = (0..15).map(|n| page(u64::from(n) * 4096, n * 2)).collect();
    vec![
        ("plain", of(100, &[])),
        ("pages", of(8192, &[page(0, 5), page(4096, 6)])),
        ("both", of(4396, &[linear(100), page(8192, 1), linear(200)])),
        ("many", of(15 * 4096, &many)),
        (
            "another",
            of(100, &[message(DMABUF, 0, [100, 3, BINDING + 1, 0])]),
        ),
        (
            "beyond",
            of(100, &[message(DMABUF, DEVICE - 50, [100, 3, BINDING, 0])]),
        ),
        ("too_few", of(5000, &[page(0, 9)])),
    ]
}

fn datagram(kind: u16, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(16 + body.len()).expect("short");
    let mut bytes = len.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(0x300_u16.to_ne_bytes());
    bytes.extend(3_u32.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend(body);
    bytes
}

/// Seeds of [`devmem_netlink`].
pub fn datagrams() -> Vec<(&'static str, Vec<u8>)> {
    let told = |list: &Attributes| datagram(0x1b, &[&[1, 1, 0, 0], list.as_bytes()].concat());
    let queue = Attributes::default().u32(1, 4).u32(3, 0).u32(5, 9);
    let rings = ethtool::set_rings(
        3,
        ethtool::Rings {
            split: Some(2),
            from: Some(256),
        },
    );
    let operation = Attributes::default().nested(1, &Attributes::default().u32(1, 13));
    let commands = Attributes::default().nested(6, &operation);
    let words = Attributes::default().text(1, "tcp-data-split is disabled");
    let refused = [&(-22_i32).to_ne_bytes()[..], &[0; 16], words.as_bytes()].concat();
    vec![
        (
            "queues",
            [told(&queue), told(&queue), datagram(3, &[0; 4])].concat(),
        ),
        ("bound", told(&Attributes::default().u32(4, 77))),
        ("rings", told(&rings)),
        ("commands", told(&commands)),
        ("refused", datagram(2, &refused)),
    ]
}
