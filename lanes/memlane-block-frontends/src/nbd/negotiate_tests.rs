use super::*;

fn offers() -> Vec<Offer> {
    let offer = |name: &str, size| Offer {
        name: name.into(),
        description: format!("about {name}"),
        size,
        flags: wire::flag::HAS_FLAGS,
        blocks: (512, 4096),
    };
    vec![offer("a", 4096), offer("b", 8192)]
}

fn message(option: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = wire::IHAVEOPT.to_be_bytes().to_vec();
    bytes.extend(option.to_be_bytes());
    bytes.extend(u32::try_from(data.len()).unwrap().to_be_bytes());
    bytes.extend(data);
    bytes
}

fn named(name: &[u8], rest: &[u8]) -> Vec<u8> {
    let len = u32::try_from(name.len()).unwrap();
    [&len.to_be_bytes(), name, rest].concat()
}

/// `(option, type, data)` of each reply.
fn replies(mut bytes: &[u8]) -> Vec<(u32, u32, Vec<u8>)> {
    let mut replies = Vec::new();
    while !bytes.is_empty() {
        assert_eq!(wire::u64_at(bytes, 0), Some(wire::OPTION_REPLY_MAGIC));
        let at = |i| wire::u32_at(bytes, i).unwrap();
        let end = 20 + at(16) as usize;
        replies.push((at(8), at(12), bytes[20..end].to_vec()));
        bytes = &bytes[end..];
    }
    replies
}

struct Talk<'a>(Negotiation<'a>);

impl<'a> Talk<'a> {
    fn begin(offers: &'a [Offer], tls: Tls) -> Talk<'a> {
        let mut talk = Talk(Negotiation::new(offers, tls));
        assert_eq!(talk.0.feed(&[0, 0, 0, 3]), (4, Step::More));
        assert_eq!(talk.0.output().len(), 18);
        talk
    }

    fn say(&mut self, option: u32, data: &[u8]) -> (Step, Vec<(u32, u32, Vec<u8>)>) {
        let bytes = message(option, data);
        let (eaten, step) = self.0.feed(&bytes);
        assert_eq!(eaten, bytes.len());
        (step, replies(&self.0.output()))
    }

    /// The type of the only or last reply.
    fn kind(&mut self, option: u32, data: &[u8]) -> u32 {
        self.say(option, data).1.last().unwrap().1
    }
}

#[test]
fn go_tells_what_was_asked_for_and_begins() {
    let offers = offers();
    let mut talk = Talk::begin(&offers, Tls::Absent);
    let wanted = [0, 3, 0, 1, 0, 2, 0, 3];
    let (step, replies) = talk.say(opt::GO, &named(b"b", &wanted));
    let agreed = Agreed {
        export: 1,
        structured: false,
        allocation: false,
    };
    assert_eq!(step, Step::Begin(agreed));
    let kinds: Vec<u32> = replies.iter().map(|r| r.1).collect();
    assert_eq!(
        kinds,
        [rep::INFO, rep::INFO, rep::INFO, rep::INFO, rep::ACK]
    );
    assert_eq!(replies[0].2, [0, 0, 0, 0, 0, 0, 0, 0, 0x20, 0, 0, 1]);
    assert_eq!(replies[1].2, b"\0\x01b");
    assert_eq!(replies[2].2, b"\0\x02about b");
    assert_eq!(replies[3].2, [0, 3, 0, 0, 2, 0, 0, 0, 0x10, 0, 2, 0, 0, 0]);
}

#[test]
fn info_is_like_go_but_goes_on() {
    let offers = offers();
    let mut talk = Talk::begin(&offers, Tls::Absent);
    let (step, replies) = talk.say(opt::INFO, &named(b"a", &[0, 0]));
    assert_eq!((step, replies.len()), (Step::More, 2));
    assert_eq!(
        talk.kind(opt::INFO, &named(b"nobody", &[0, 0])),
        rep::ERR_UNKNOWN
    );
    assert_eq!(
        talk.kind(opt::INFO, &named(b"a", &[0, 1])),
        rep::ERR_INVALID
    );
    assert_eq!(talk.kind(opt::INFO, &[0, 0, 0, 200, 1]), rep::ERR_INVALID);
}

#[test]
fn export_name_gets_zeroes_unless_it_said_no() {
    let offers = offers();
    for (flags, len) in [(1, 10 + 124), (3, 10)] {
        let mut negotiation = Negotiation::new(&offers, Tls::Absent);
        negotiation.output();
        negotiation.feed(&[0, 0, 0, flags]);
        let (_, step) = negotiation.feed(&message(opt::EXPORT_NAME, b""));
        assert!(matches!(step, Step::Begin(agreed) if agreed.export == 0));
        assert_eq!(negotiation.output().len(), len);
    }
    let mut talk = Talk::begin(&offers, Tls::Absent);
    assert_eq!(talk.say(opt::EXPORT_NAME, b"nobody"), (Step::Close, vec![]));
}

#[test]
fn block_status_needs_chunks_and_is_for_one_export_only() {
    let offers = offers();
    let mut talk = Talk::begin(&offers, Tls::Absent);
    let count = 1u32.to_be_bytes();
    let wanted = |query: &[u8]| named(b"a", &[&count[..], &named(query, b"")].concat());
    let base = wanted(b"base:allocation");
    assert_eq!(talk.kind(opt::SET_META_CONTEXT, &base), rep::ERR_INVALID);
    assert_eq!(talk.kind(opt::STRUCTURED_REPLY, b"x"), rep::ERR_INVALID);
    assert_eq!(talk.kind(opt::STRUCTURED_REPLY, b""), rep::ACK);
    let (_, said) = talk.say(opt::SET_META_CONTEXT, &base);
    assert_eq!(said[0].2, b"\0\0\0\x01base:allocation");
    let (_, said) = talk.say(opt::LIST_META_CONTEXT, &wanted(b"base:"));
    assert_eq!(said[0].2, b"\0\0\0\0base:allocation");
    let (_, said) = talk.say(opt::LIST_META_CONTEXT, &wanted(b"qemu:"));
    assert_eq!(said.len(), 1);
    let (step, _) = talk.say(opt::GO, &named(b"b", &[0, 0]));
    assert!(matches!(step, Step::Begin(agreed) if agreed.structured && !agreed.allocation));

    let mut talk = Talk::begin(&offers, Tls::Absent);
    talk.say(opt::STRUCTURED_REPLY, b"");
    talk.say(opt::SET_META_CONTEXT, &base);
    let (step, _) = talk.say(opt::GO, &named(b"", &[0, 0]));
    assert!(matches!(step, Step::Begin(agreed) if agreed.allocation));

    // A later choice, also one that fails, replaces the earlier.
    let mut talk = Talk::begin(&offers, Tls::Absent);
    talk.say(opt::STRUCTURED_REPLY, b"");
    talk.say(opt::SET_META_CONTEXT, &base);
    assert_eq!(talk.kind(opt::SET_META_CONTEXT, b"?"), rep::ERR_INVALID);
    let (step, _) = talk.say(opt::GO, &named(b"a", &[0, 0]));
    assert!(matches!(step, Step::Begin(agreed) if !agreed.allocation));
}

#[test]
fn nothing_is_told_before_tls_if_tls_is_required() {
    let offers = offers();
    let mut talk = Talk::begin(&offers, Tls::Required);
    for option in [opt::LIST, opt::STRUCTURED_REPLY, 77] {
        assert_eq!(talk.kind(option, b""), rep::ERR_TLS_REQD);
    }
    assert_eq!(talk.kind(opt::GO, &named(b"a", &[0, 0])), rep::ERR_TLS_REQD);
    assert_eq!(talk.kind(opt::STARTTLS, b"x"), rep::ERR_INVALID);
    assert_eq!(talk.say(opt::STARTTLS, b"").0, Step::StartTls);
    talk.0.secured();
    assert_eq!(talk.kind(opt::STARTTLS, b""), rep::ERR_INVALID);
    assert_eq!(talk.kind(opt::LIST, b""), rep::ACK);

    let mut talk = Talk::begin(&offers, Tls::Required);
    assert_eq!(talk.say(opt::EXPORT_NAME, b"a"), (Step::Close, vec![]));
}

/// What nbdkit once got wrong (CVE-2021-3716): a man in the middle asks for chunks before the client begins TLS.
#[test]
fn what_was_agreed_upon_in_the_clear_is_forgotten() {
    let offers = offers();
    let mut talk = Talk::begin(&offers, Tls::Offered);
    talk.say(opt::STRUCTURED_REPLY, b"");
    assert_eq!(talk.say(opt::STARTTLS, b"").0, Step::StartTls);
    talk.0.secured();
    let (step, _) = talk.say(opt::GO, &named(b"a", &[0, 0]));
    assert!(matches!(step, Step::Begin(agreed) if !agreed.structured));
}

#[test]
fn a_server_that_stops_says_so() {
    let offers = offers();
    let mut talk = Talk::begin(&offers, Tls::Absent);
    talk.0.stop();
    assert_eq!(talk.kind(opt::GO, &named(b"a", &[0, 0])), rep::ERR_SHUTDOWN);
    assert_eq!(talk.kind(opt::LIST, b""), rep::ERR_SHUTDOWN);
    let (step, replies) = talk.say(opt::ABORT, b"why not");
    assert_eq!((step, replies[0].1), (Step::Close, rep::ACK));
}

#[test]
fn nobody_haggles_for_ever_or_at_any_length() {
    let offers = offers();
    let mut talk = Talk::begin(&offers, Tls::Absent);
    for _ in 0..MAX_OPTIONS {
        assert_eq!(talk.say(99, b"").0, Step::More);
    }
    assert_eq!(talk.say(99, b"").0, Step::Close);

    let mut talk = Talk::begin(&offers, Tls::Absent);
    let mut header = wire::IHAVEOPT.to_be_bytes().to_vec();
    header.extend([0, 0, 0, 3, 0xff, 0xff, 0xff, 0xff]);
    assert_eq!(talk.0.feed(&header).1, Step::Close);
    assert_eq!(replies(&talk.0.output())[0].1, rep::ERR_TOO_BIG);
}

#[test]
fn flags_and_magics_that_nobody_knows_end_it() {
    let offers = offers();
    let mut negotiation = Negotiation::new(&offers, Tls::Absent);
    assert_eq!(negotiation.feed(&[0, 0, 0, 7]).1, Step::Close);
    let mut talk = Talk::begin(&offers, Tls::Absent);
    assert_eq!(talk.0.feed(&[b'x'; 16]).1, Step::Close);
}

#[test]
fn it_does_not_matter_in_which_pieces_it_comes() {
    let offers = offers();
    let mut all = vec![0, 0, 0, 3];
    all.extend(message(opt::LIST, b""));
    all.extend(message(opt::STRUCTURED_REPLY, b""));
    all.extend(message(opt::GO, &named(b"b", &[0, 1, 0, 3])));
    all.extend([7; 28]);
    let mut whole = Negotiation::new(&offers, Tls::Absent);
    let expected = whole.feed(&all);
    assert_eq!(expected.0, all.len() - 28);
    let mut pieces = Negotiation::new(&offers, Tls::Absent);
    let (mut from, mut last) = (0, (0, Step::More));
    for to in 0..=all.len() {
        if last.1 == Step::More {
            last = pieces.feed(&all[from..to]);
            from += last.0;
        }
    }
    assert_eq!((from, last.1), expected);
    assert_eq!(pieces.output(), whole.output());
}
