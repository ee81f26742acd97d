//! Header split: headers and payload together are the frame, whatever comes; a payload is copied once, from the
//! front's memory to the device's; and no chunk is lost.

mod frames;

use frames::{Recipe, recipes};
use memlane_core::region::Region;
use memlane_packet::io::{BackTerms, FrontTerms, Listener, connect};
use memlane_packet::{Meta, Mode, PacketPort, Part, Sent, Sleep};
use memlane_packet_ends::headers::find;
use memlane_packet_ends::port::Port;
use memlane_packet_ends::split::rules::Rule;
use memlane_packet_ends::split::{
    DeviceMemory, Fragment, OwnedFragment, Receiver, Split, SplitCounts, SplitEnd, Splitter, Terms,
    Token, Whole,
};
use memlane_packet_ends::{End, More, lend};
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;

const CHUNK: usize = 1024;

fn rules(texts: &[&str]) -> Vec<Rule> {
    let read = |text: &&str| text.parse().unwrap_or_else(|wrong| panic!("{wrong}"));
    texts.iter().map(read).collect()
}

fn device(len: usize) -> Arc<Region> {
    Arc::new(Region::create(c"device", len, false).expect("memory"))
}

fn read(device: &Region, fragments: &[Fragment]) -> Vec<u8> {
    let mut all = Vec::new();
    for fragment in fragments {
        let mut bytes = vec![0_u8; fragment.len];
        // SAFETY: as many bytes, and the region is alive.
        let there = unsafe {
            let into = bytes.as_mut_ptr();
            device.bytes().copy_out(fragment.offset, into, fragment.len)
        };
        assert!(there, "outside of the region: {fragment:?}");
        all.extend(bytes);
    }
    all
}

const CHECKED: Meta = Meta {
    csum_blank: false,
    data_validated: true,
    gso: None,
};

/// What became of a frame.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Became {
    headers: Vec<u8>,
    payload: Vec<u8>,
    fragments: Vec<Fragment>,
    padding: usize,
    whole: Option<Whole>,
}

fn split(splitter: &mut Splitter<Arc<Region>>, frame: &[u8], meta: Meta) -> Became {
    let device = Arc::clone(splitter.device());
    let mut became = None;
    lend(frame, meta, &mut |frame| {
        splitter.split(frame, |split| {
            assert_eq!(split.meta, meta);
            became = Some(Became {
                headers: split.headers.to_vec(),
                payload: read(&device, split.fragments),
                fragments: split.fragments.to_vec(),
                padding: split.padding,
                whole: split.whole,
            });
        });
        More::Yes
    });
    became.expect("it was told")
}

fn splitter(len: usize, texts: &[&str]) -> Splitter<Arc<Region>> {
    let terms = Terms {
        region: 3,
        chunk: CHUNK,
        unchecked: false,
    };
    Splitter::new(device(len), rules(texts), terms).expect("good terms")
}

fn tokens(fragments: &[Fragment]) -> Vec<Token> {
    fragments.iter().map(|fragment| fragment.token).collect()
}

/// What holds for whatever comes.
fn check(frame: &[u8], became: &Became) {
    let mut all = became.headers.clone();
    all.extend(&became.payload);
    assert_eq!(all.len() + became.padding, frame.len());
    assert!(all == frame[..all.len()], "other bytes");
    if became.whole.is_some() {
        assert_eq!((became.fragments.len(), became.padding), (0, 0));
    }
    for (n, fragment) in became.fragments.iter().enumerate() {
        assert!(fragment.len > 0 && fragment.len <= CHUNK && fragment.region == 3);
        assert!(fragment.len == CHUNK || n + 1 == became.fragments.len());
        assert_eq!(fragment.offset % CHUNK, 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn headers_and_payload_are_the_frame_s(recipe in recipes(20_000)) {
        let frame = recipe.bytes();
        let mut splitter = splitter(64 << 10, &["tcp", "udp"]);
        let became = split(&mut splitter, &frame, CHECKED);
        check(&frame, &became);
        // Another one's view of the same headers.
        let found = find(&frame[..frame.len().min(256)], frame.len()).expect("TCP or UDP");
        prop_assert_eq!(became.whole, None);
        prop_assert_eq!(became.headers.len(), found.payload);
        prop_assert_eq!(became.payload.len(), found.end - found.payload);
        prop_assert_eq!(became.padding, recipe.padding);
        let counts = splitter.counts();
        prop_assert_eq!(counts.host_bytes, found.payload as u64);
        prop_assert_eq!(counts.device_bytes, (found.end - found.payload) as u64);
        prop_assert_eq!(splitter.outstanding(), became.fragments.len());
        prop_assert_eq!(splitter.give_back(&tokens(&became.fragments)), became.fragments.len());
        prop_assert_eq!(splitter.outstanding(), 0);
    }

    #[test]
    fn rules_are_for_their_flows_only(recipe in recipes(2000), port in any::<u16>(), host in any::<Option<u8>>()) {
        let host = host.unwrap_or(recipe.hosts[0]);
        let net = match recipe.ipv6 {
            true => format!("[2001:db8::{host:x}]"),
            false => format!("198.51.100.{host}"),
        };
        let kind = if recipe.tcp { "tcp" } else { "udp" };
        let text = format!("{kind} src {net} dst *:{port}-65535");
        let mut splitter = splitter(64 << 10, &["udp src 203.0.113.1", &text]);
        let became = split(&mut splitter, &recipe.bytes(), CHECKED);
        let expected = recipe.hosts[0] == host && recipe.ports[1] >= port;
        prop_assert_eq!(became.whole, (!expected).then_some(Whole::NoMatch));
        check(&recipe.bytes(), &became);
    }

    /// Nothing out of bounds, nothing lost, whatever lies there.
    #[test]
    fn damaged_frames_are_split_or_whole(
        recipe in recipes(3000), keep in 0..3100_usize, chunks in 1..5_usize, unchecked in any::<bool>(),
        flips in proptest::collection::vec((0..120_usize, any::<u8>()), 0..8),
    ) {
        let mut frame = recipe.bytes();
        for (at, byte) in flips {
            if let Some(place) = frame.get_mut(at) {
                *place = byte;
            }
        }
        frame.truncate(keep);
        if frame.is_empty() {
            return Ok(());
        }
        let mut splitter = splitter(chunks * CHUNK, &["tcp", "udp"]);
        let meta = Meta { data_validated: !unchecked, ..CHECKED };
        let became = split(&mut splitter, &frame, meta);
        check(&frame, &became);
        prop_assert!(!unchecked || became.whole.is_some());
        if became.whole.is_none() {
            let found = find(&frame[..frame.len().min(256)], frame.len()).expect("as we saw");
            prop_assert_eq!(became.headers.len(), found.payload);
        }
        prop_assert_eq!(splitter.outstanding(), became.fragments.len());
    }
}

fn reason(frame: &[u8], meta: Meta) -> Option<Whole> {
    let mut splitter = splitter(4 * CHUNK, &["tcp", "udp"]);
    let became = split(&mut splitter, frame, meta);
    check(frame, &became);
    let counts = splitter.counts();
    let counted = [
        (None, counts.split),
        (Some(Whole::NoMatch), counts.no_match),
        (Some(Whole::Fragmented), counts.fragmented),
        (Some(Whole::Encapsulated), counts.encapsulated),
        (Some(Whole::Torn), counts.torn),
        (Some(Whole::Unchecked), counts.unchecked),
        (Some(Whole::NoChunk), counts.no_chunk),
    ];
    for (why, n) in counted {
        assert_eq!(n, u64::from(why == became.whole), "{why:?}");
    }
    became.whole
}

#[test]
fn what_cannot_be_split_is_whole_with_its_reason() {
    let plain = Recipe::default().bytes();
    let changed = |changes: &[(usize, u8)]| {
        let mut frame = plain.clone();
        for (at, byte) in changes {
            frame[*at] = *byte;
        }
        frame
    };
    assert_eq!(reason(&plain, CHECKED), None);
    let blank = Meta {
        csum_blank: true,
        ..Meta::default()
    };
    assert_eq!(reason(&plain, blank), None);
    assert_eq!(reason(&plain, Meta::default()), Some(Whole::Unchecked));
    for (what, frame, why) in [
        ("ARP", changed(&[(13, 6)]), Whole::NoMatch),
        ("ICMP", changed(&[(23, 1)]), Whole::NoMatch),
        ("a first piece", changed(&[(20, 0x20)]), Whole::Fragmented),
        ("a last piece", changed(&[(21, 9)]), Whole::Fragmented),
        ("IP in IP", changed(&[(23, 4)]), Whole::Encapsulated),
        ("GRE", changed(&[(23, 47)]), Whole::Encapsulated),
        ("IPv5", changed(&[(14, 0x55)]), Whole::Torn),
        (
            "a TCP header of 16 bytes",
            changed(&[(46, 0x40)]),
            Whole::Torn,
        ),
        (
            "a TCP header behind the end",
            changed(&[(17, 45)]),
            Whole::Torn,
        ),
        ("longer than it is", changed(&[(16, 9)]), Whole::Torn),
        ("only Ethernet", plain[..13].to_vec(), Whole::Torn),
    ] {
        assert_eq!(reason(&frame, CHECKED), Some(why), "{what}");
    }
    let six = Recipe {
        ipv6: true,
        options: 1,
        ..Recipe::default()
    };
    let mut piece = six.bytes();
    piece[20] = 44;
    assert_eq!(reason(&piece, CHECKED), Some(Whole::Fragmented));
    let mut long = Recipe {
        ipv6: true,
        options: 5,
        payload: 2000,
        ..Recipe::default()
    };
    assert_eq!(reason(&long.bytes(), CHECKED), None);
    let mut headers = long.bytes();
    // An extension header of 256 bytes.
    headers[55] = 31;
    assert_eq!(reason(&headers, CHECKED), Some(Whole::Torn));
    long.payload = 5 * CHUNK;
    assert_eq!(reason(&long.bytes(), CHECKED), Some(Whole::NoChunk));
    let udp = Recipe {
        tcp: false,
        ..Recipe::default()
    };
    let mut frame = udp.bytes();
    assert_eq!(reason(&frame, CHECKED), None);
    frame[39] -= 1;
    assert_eq!(
        reason(&frame, CHECKED),
        Some(Whole::Torn),
        "UDP says another length"
    );
}

#[test]
fn chunks_come_back_and_those_of_others_do_not() {
    let mut splitter = splitter(4 * CHUNK, &["tcp"]);
    let recipe = Recipe {
        payload: 3 * CHUNK + 1,
        ..Recipe::default()
    };
    for round in 0..10 {
        let first = split(&mut splitter, &recipe.bytes(), CHECKED);
        assert_eq!((first.whole, first.fragments.len()), (None, 4), "{round}");
        // No chunk is left; what has no payload needs none.
        let next = split(&mut splitter, &Recipe::default().bytes(), CHECKED);
        assert_eq!(next.whole, Some(Whole::NoChunk));
        let bare = Recipe {
            payload: 0,
            padding: 6,
            ..Recipe::default()
        };
        let bare = split(&mut splitter, &bare.bytes(), CHECKED);
        assert_eq!(
            (bare.whole, bare.fragments.len(), bare.padding),
            (None, 0, 6)
        );
        let all = tokens(&first.fragments);
        assert_eq!(splitter.give_back(&[Token(all[0].0 ^ 0x4000_0000)]), 0);
        assert_eq!(splitter.give_back(&all[1..]), 3);
        assert_eq!(splitter.give_back(&all), 1, "the others are back already");
        assert_eq!(splitter.outstanding(), 0);
    }
    assert_eq!(splitter.counts().strange_tokens, 10 * 4);
}

#[test]
fn terms_that_cannot_be_are_refused() {
    for (len, chunk) in [
        (4096, 512),
        (4096, 3000),
        (1 << 20, 128 << 10),
        (1024, 4096),
    ] {
        let terms = Terms {
            chunk,
            ..Terms::default()
        };
        assert!(
            Splitter::new(device(len), Vec::new(), terms).is_err(),
            "{chunk}"
        );
    }
}

/// Where bytes came from, and how many: not of memory of our own.
struct Watched {
    memory: Arc<Region>,
    stretches: usize,
    bytes: usize,
}

/// What the kernel says is mapped at an address.
fn mapped_at(address: usize) -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux");
    let found = maps.lines().find(|line| {
        let range = line.split(' ').next().unwrap_or_default();
        let (from, to) = range.split_once('-').unwrap_or_default();
        let bound = |text| usize::from_str_radix(text, 16).unwrap_or(0);
        (bound(from)..bound(to)).contains(&address)
    });
    found.unwrap_or_default().to_owned()
}

impl DeviceMemory for Watched {
    fn len(&self) -> usize {
        self.memory.len()
    }
    fn write(&mut self, at: usize, from: &Part<'_>) -> memlane_sys::Result<()> {
        let source = mapped_at(from.as_ptr() as usize);
        assert!(
            source.contains("/memfd:"),
            "not the front's memory: {source}"
        );
        self.stretches += 1;
        self.bytes += from.len();
        self.memory.write(at, from)
    }
}

/// Frames over a link, split at its back.
#[test]
fn a_payload_is_copied_once_from_the_front_s_memory_to_the_device() {
    const LIMIT: Duration = Duration::from_secs(30);
    let name = format!("@memlane-split-{}", std::process::id());
    let listener = Listener::bind(&name).expect("a name of our own");
    let recipes: Vec<_> = [0, 10, 1448, 8948, 65_000]
        .into_iter()
        .map(|payload| Recipe {
            payload,
            ..Recipe::default()
        })
        .collect();
    let frames: Vec<_> = recipes.iter().map(Recipe::bytes).collect();
    let sent = frames.clone();
    let front = std::thread::spawn(move || {
        let terms = FrontTerms {
            mode: Some(Mode::Persistent),
            ..FrontTerms::default()
        };
        let (link, mut queues) = connect(&name, &terms).expect("a link");
        for frame in &sent {
            let meta = match frame.len() {
                ..2000 => CHECKED,
                _ => Recipe::default().gso(1448),
            };
            let queued = queues[0].send(frame.len(), meta, |room| {
                room.copy_in(0, frame);
            });
            assert_eq!(queued, Ok(Sent::Queued));
        }
        queues[0].flush().expect("a link");
        (link, queues)
    });
    let (link, mut queues) = listener
        .accept(&BackTerms::default(), LIMIT)
        .expect("a link");
    let (_front_link, _front_queues) = front.join().expect("no panic");
    assert_eq!(queues[0].wait(Sleep::FOR_FRAMES, LIMIT), Ok(true));
    let memory = device(1 << 20);
    let watched = Watched {
        memory: Arc::clone(&memory),
        stretches: 0,
        bytes: 0,
    };
    let rules = rules(&["tcp dst 198.51.100.2:5201"]);
    let mut splitter = Splitter::new(watched, rules, Terms::default()).expect("good terms");
    let mut port = Port::new("back".into(), queues.remove(0), &link);
    let mut came = Vec::new();
    let received = splitter.receive(&mut port, 32, &mut |split| {
        assert_eq!(split.whole, None);
        came.push([split.headers, &read(&memory, split.fragments)].concat());
        More::Yes
    });
    assert_eq!(received, Ok(frames.len()));
    assert!(came == frames, "other bytes");
    let counts = splitter.counts();
    let payload: usize = recipes.iter().map(|recipe| recipe.payload).sum();
    let headers = frames.iter().map(Vec::len).sum::<usize>() - payload;
    assert_eq!(splitter.device().bytes, payload);
    // Each stretch ends with a page of the front's or a chunk of ours.
    assert!(splitter.device().stretches <= 2 * payload.div_ceil(4096) + frames.len());
    assert_eq!(
        (counts.device_bytes, counts.host_bytes),
        (payload as u64, headers as u64)
    );
    assert_eq!(
        port.queue().stats().copied,
        0,
        "nor has the kernel copied any"
    );
}

#[test]
fn a_device_that_fails_costs_no_frame_and_no_chunk() {
    let mut region = Region::create(c"device", 1 << 20, false).expect("memory");
    let read_only = Region::attach_read_only(region.take_fd().expect("ours"), 1 << 20);
    let read_only = Arc::new(read_only.expect("sealed"));
    let frame = Recipe {
        payload: 9000,
        ..Recipe::default()
    };
    let frame = frame.bytes();
    let mut splitter = Splitter::new(read_only, rules(&["tcp"]), Terms::default()).expect("good");
    let became = split(&mut splitter, &frame, CHECKED);
    assert_eq!((became.whole, became.headers), (Some(Whole::Device), frame));
    assert_eq!(splitter.outstanding(), 0);
    assert_eq!(splitter.counts().device, 1);
}

/// At the end: what was counted, what is still held.
type Last = (SplitCounts, Vec<OwnedFragment>);

/// Keeps the fragments of the last frames, and what it was told.
#[derive(Debug, Default)]
struct Keeps {
    kept: std::collections::VecDeque<OwnedFragment>,
    most: usize,
    whole: Vec<Whole>,
    over: Arc<std::sync::Mutex<Option<Last>>>,
}

impl Receiver for Keeps {
    fn take(&mut self, split: &Split<'_>, held: &mut Vec<OwnedFragment>) {
        assert_eq!(split.fragments.len(), held.len());
        self.whole.extend(split.whole);
        self.kept.extend(held.drain(..));
        while self.kept.len() > self.most {
            self.kept.pop_front();
        }
    }

    fn over(&mut self, counts: SplitCounts) {
        let kept = self.kept.drain(..).collect();
        *self.over.lock().unwrap() = Some((counts, kept));
    }
}

fn datagram(payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![2; 12];
    let udp = u16::try_from(8 + payload.len()).unwrap();
    frame.extend([8, 0, 0x45, 0]);
    frame.extend((20 + udp).to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
    frame.extend([0, 7, 0x23, 0x28]);
    frame.extend(udp.to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(payload);
    frame
}

#[test]
fn fragments_with_owners_come_back_from_any_thread_and_outlive_the_splitter() {
    let mut splitter = splitter(4 * CHUNK, &["udp dst *:9000"]);
    let mut held = Vec::new();
    let mut show = |splitter: &mut Splitter<Arc<Region>>, byte: u8| {
        let frame = datagram(&[byte; CHUNK]);
        let became = split(splitter, &frame, CHECKED);
        held.extend(became.fragments.iter().map(|f| splitter.hold(f)));
        became.whole
    };
    for byte in 0..4 {
        assert_eq!(show(&mut splitter, byte), None);
    }
    assert_eq!(show(&mut splitter, 4), Some(Whole::NoChunk));
    let (one, three) = (held.remove(1), held.remove(2));
    std::thread::spawn(move || drop((one, three)))
        .join()
        .unwrap();
    let device = Arc::clone(splitter.device());
    let became = split(&mut splitter, &datagram(&[9; 2 * CHUNK]), CHECKED);
    assert_eq!((became.whole, became.fragments.len()), (None, 2));
    assert_eq!(splitter.outstanding(), 4);
    assert_eq!(splitter.give_back(&tokens(&became.fragments)), 2);
    // What is held was not overwritten, and is there after the splitter.
    drop(splitter);
    for (held, byte) in held.iter().zip([0, 2]) {
        assert_eq!(read(&device, &[held.fragment()]), [byte; CHUNK]);
    }
    drop(held);
}

#[test]
fn an_owner_that_gives_back_twice_or_for_another_frees_nothing_else() {
    let mut splitter = splitter(4 * CHUNK, &["udp"]);
    let became = split(&mut splitter, &datagram(&[1; 10]), CHECKED);
    let mine = became.fragments[0];
    let (one, two) = (splitter.hold(&mine), splitter.hold(&mine));
    let forged = splitter.hold(&Fragment {
        token: Token(mine.token.0 ^ 1),
        ..mine
    });
    drop((one, two, forged));
    splitter.take_back();
    assert_eq!(splitter.outstanding(), 0);
    assert_eq!(splitter.counts().strange_tokens, 2);
}

#[test]
fn an_end_that_splits_hands_on_what_its_user_keeps_and_frees_the_rest() {
    let keeps = Keeps {
        most: 2,
        ..Keeps::default()
    };
    let over = Arc::clone(&keeps.over);
    let mut end = SplitEnd::new(splitter(3 * CHUNK, &["udp dst *:9000"]), keeps);
    for n in 0..100_u8 {
        let frame = match n % 10 {
            9 => vec![0; 60],
            _ => datagram(&[n; CHUNK]),
        };
        lend(&frame, CHECKED, &mut |frame| {
            assert_eq!(end.send(frame), Ok(Sent::Queued));
            More::Yes
        });
    }
    assert_eq!(
        (end.counts().sent, end.receive(9, &mut |_| More::Yes)),
        (100, Ok(0))
    );
    drop(end);
    let (counts, kept) = over.lock().unwrap().take().expect("it was told");
    assert_eq!(
        (counts.split, counts.no_match, counts.no_chunk),
        (90, 10, 0)
    );
    assert_eq!(counts.device_bytes, 90 * CHUNK as u64);
    assert_eq!(counts.strange_tokens, 0);
    assert_eq!(kept.len(), 2);
}
