//! Messages of an NBD client, during and after the handshake.

use memlane_block::volume::Info;
use memlane_block_frontends::nbd::negotiate::{Negotiation, Offer, Step, Tls};
use memlane_block_frontends::nbd::request::{Piece, Span, Terms, Verdict, inner_blocks};
use memlane_block_frontends::nbd::wire::{self, REQUEST_LEN, Request, cmd};

/// The most bytes of replies, whatever is asked: the number of options times the longest reply to one.
const MOST_SAID: usize = 256 * 1024;

fn offers() -> Vec<Offer> {
    let names = ["", "disk", "another disk"];
    let offer = |name: &&str| Offer {
        name: (*name).into(),
        description: "for people".into(),
        size: 1 << 30,
        flags: wire::flag::HAS_FLAGS,
        blocks: (512, 4096),
    };
    names.iter().map(offer).collect()
}

/// Feeds `bytes`, `cut` more at a time; what was said, and how it ended.
fn talk(offers: &[Offer], tls: Tls, bytes: &[u8], cut: usize) -> (Vec<u8>, Step) {
    let mut negotiation = Negotiation::new(offers, tls);
    let mut said = negotiation.output();
    let (mut from, mut to) = (0, 0);
    loop {
        let (eaten, step) = negotiation.feed(&bytes[from..to]);
        assert!(eaten <= to - from, "more was eaten than was there");
        from += eaten;
        said.extend(negotiation.output());
        match step {
            Step::StartTls => negotiation.secured(),
            Step::More if eaten > 0 => {}
            Step::More if to < bytes.len() => to = bytes.len().min(to + cut),
            _ => return (said, step),
        }
    }
}

/// A handshake: bounded, and the same in whatever pieces it comes.
pub fn nbd_handshake(bytes: &[u8]) -> bool {
    let Some((how, bytes)) = bytes.split_first() else {
        return false;
    };
    let tls = [Tls::Absent, Tls::Offered, Tls::Required][usize::from(*how) % 3];
    let offers = offers();
    let (said, step) = talk(&offers, tls, bytes, bytes.len().max(1));
    let cut = 1 + usize::from(*how) % 50;
    assert_eq!(talk(&offers, tls, bytes, cut), (said.clone(), step));
    assert!(said.len() <= MOST_SAID, "{} bytes said", said.len());
    if let Step::Begin(agreed) = step {
        assert!(agreed.export < offers.len());
        assert!(agreed.structured || !agreed.allocation);
    }
    matches!(step, Step::Begin(_))
}

fn terms(seed: [u8; 4]) -> Option<Terms> {
    let info = Terms::whole_blocks(Info {
        size: u64::from(seed[0]) << (seed[1] % 40),
        block: 1 << (seed[2] % 18),
        preferred: 4096,
        max_io: (1 << 17) + u32::from(seed[3]) * 100,
        max_trim: (1 << 21) + u32::from(seed[3]) * 300,
        read_only: false,
        cached: true,
        trim: seed[2] & 0x80 == 0,
        zeroes: seed[2] & 0x40 == 0,
        extents: true,
    })?;
    Some(Terms {
        info,
        read_only: seed[3] & 1 != 0,
        structured: seed[3] & 2 != 0,
        allocation: seed[3] & 6 == 6,
        stopping: seed[3] & 0xf8 == 0xf8,
    })
}

/// Requests: what is served lies inside of the volume, and its pieces are it.
pub fn nbd_requests(bytes: &[u8]) -> bool {
    let Some((seed, bytes)) = bytes.split_first_chunk::<4>() else {
        return false;
    };
    let Some(terms) = terms(*seed) else {
        return false;
    };
    let mut served = false;
    for bytes in bytes.chunks_exact(REQUEST_LEN).take(16) {
        let bytes = bytes.try_into().expect("as many");
        let Some(request) = Request::decode(bytes) else {
            return served;
        };
        assert_eq!(&request.encode(), bytes);
        if terms.judge(&request) == Verdict::Serve {
            cut(&terms.info, &request);
            served = true;
        }
    }
    served
}

fn cut(info: &Info, request: &Request) {
    if request.command == cmd::FLUSH {
        return;
    }
    let end = request.at.checked_add(request.len.into()).expect("judged");
    assert!(end <= info.size, "behind the end");
    if matches!(request.command, cmd::READ | cmd::WRITE) {
        assert!(request.len <= wire::MAX_PAYLOAD);
    }
    let (mut at, mut end) = (request.at, end);
    let most = match request.command {
        cmd::TRIM | cmd::WRITE_ZEROES => info.max_trim,
        _ => info.max_io,
    };
    if request.command == cmd::TRIM {
        (at, end) = inner_blocks(at, end, info.block);
    }
    while at < end && request.command != cmd::BLOCK_STATUS {
        let n = match request.command {
            cmd::READ => {
                let span = Span::next(at, end, info.block, most);
                assert!(span.len <= most && span.at + u64::from(span.len) <= info.size);
                span.take
            }
            _ => Piece::next(at, end, info.block, most).len(),
        };
        assert!(n > 0, "no progress");
        at += u64::from(n);
        assert!(at <= end, "more than was asked");
    }
}

/// Seeds of [`nbd_handshake`].
pub fn handshakes() -> Vec<(&'static str, Vec<u8>)> {
    use wire::opt;
    let option = |option: u32, data: &[u8]| {
        let len = u32::try_from(data.len()).expect("short").to_be_bytes();
        let magic = wire::IHAVEOPT.to_be_bytes();
        [&magic[..], &option.to_be_bytes(), &len, data].concat()
    };
    let flags = 3u32.to_be_bytes().to_vec();
    let go = option(opt::GO, b"\0\0\0\x04disk\0\x02\0\x03\0\x01");
    let context = option(
        opt::SET_META_CONTEXT,
        b"\0\0\0\x04disk\0\0\0\x01\0\0\0\x0fbase:allocation",
    );
    let chunks = option(opt::STRUCTURED_REPLY, b"");
    let with = |how: u8, parts: &[&[u8]]| [&[how][..], &parts.concat()].concat();
    vec![
        ("go", with(0, &[&flags, &go])),
        (
            "export_name",
            with(9, &[&flags, &option(opt::EXPORT_NAME, b"disk")]),
        ),
        ("block_status", with(30, &[&flags, &chunks, &context, &go])),
        (
            "tls",
            with(2, &[&flags, &option(opt::STARTTLS, b""), &chunks, &go]),
        ),
        (
            "list",
            with(
                1,
                &[&flags, &option(opt::LIST, b""), &option(opt::ABORT, b"")],
            ),
        ),
    ]
}

/// Seeds of [`nbd_requests`].
pub fn requests() -> Vec<(&'static str, Vec<u8>)> {
    let request = |command, flags, at, len| Request {
        flags,
        command,
        cookie: 7,
        at,
        len,
    };
    let all = |seed: [u8; 4], requests: &[Request]| {
        let bytes = requests.iter().flat_map(Request::encode);
        seed.into_iter().chain(bytes).collect::<Vec<u8>>()
    };
    vec![
        (
            "in_blocks",
            all(
                [9, 30, 9, 2],
                &[
                    request(cmd::READ, 0, 4096, 1 << 20),
                    request(cmd::WRITE, 1, 0, 4096),
                ],
            ),
        ),
        (
            "not_in_blocks",
            all(
                [9, 30, 12, 0],
                &[
                    request(cmd::WRITE, 0, 5, 70_000),
                    request(cmd::WRITE_ZEROES, 2, 4097, 1 << 30),
                ],
            ),
        ),
        (
            "status",
            all(
                [1, 33, 9, 6],
                &[
                    request(cmd::BLOCK_STATUS, 8, 1, 99),
                    request(cmd::TRIM, 0, 511, 513),
                    request(cmd::FLUSH, 0, 0, 0),
                ],
            ),
        ),
    ]
}
