//! docs/formats/netif.md and packet-link.md show the bytes that the code makes, and the code reads them back.

use memlane_fixtures::golden;
use memlane_fixtures::world::World;
use memlane_packet::Offloads;
use memlane_packet::layout::{
    EXTRA_INFO, ExtraGso, GTF_ORDER_SHIFT, GTF_PERMIT_ACCESS, GTF_READONLY, GrantEntry, MORE_DATA,
    PAGE, QueueLayout, RSP_DROPPED, RX_DATA_VALIDATED, RxRequest, RxResponse, TX_CSUM_BLANK,
    TX_DATA_VALIDATED, TxRequest, TxResponse,
};
use memlane_packet::wire::{Attach, Hello, Message};
use memlane_packet::{Gso, GsoKind, Meta, Mode};
use std::fmt::Debug;

/// The page shows these bytes under this name, and they read back as `value`.
#[track_caller]
fn golden<T: Debug + PartialEq>(page: &str, name: &str, bytes: &[u8], value: &T, read: &T) {
    let told = golden::dump(name, bytes);
    assert!(
        golden::page(page).contains(&told),
        "the page does not show\n{told}"
    );
    assert_eq!(read, value, "{name}");
}

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn slots_are_as_the_page_shows_them() {
    let first = TxRequest {
        gref: 0x0102_0304,
        offset: 0x0140,
        flags: TX_CSUM_BLANK | TX_DATA_VALIDATED | MORE_DATA | EXTRA_INFO,
        id: 7,
        size: 9014,
    };
    let (words, name) = (first.words(), "tx request, the first of several");
    golden(
        "netif",
        name,
        &bytes(&words),
        &first,
        &TxRequest::from_words(words),
    );
    let dropped = TxResponse {
        id: 7,
        status: RSP_DROPPED,
    };
    let words = dropped.words();
    golden(
        "netif",
        "tx response, dropped",
        &bytes(&words),
        &dropped,
        &TxResponse::from_words(words),
    );
    let request = RxRequest { id: 7, gref: 263 };
    let words = request.words();
    golden(
        "netif",
        "rx request",
        &bytes(&words),
        &request,
        &RxRequest::from_words(words),
    );
    let response = RxResponse {
        id: 7,
        offset: 0x01c0,
        flags: RX_DATA_VALIDATED | MORE_DATA,
        status: 1514,
    };
    let words = response.words();
    golden(
        "netif",
        "rx response",
        &bytes(&words),
        &response,
        &RxResponse::from_words(words),
    );
    let extra = ExtraGso {
        kind: 1,
        flags: 0,
        size: 1448,
        gso: 2,
        features: 0,
    };
    let words = extra.words();
    golden(
        "netif",
        "extra info: TCP over IPv6 in segments of 1448",
        &bytes(&words),
        &extra,
        &ExtraGso::from_words(words),
    );
}

#[test]
fn grant_entries_are_as_the_page_shows_them() {
    let page = GrantEntry {
        flags: GTF_PERMIT_ACCESS | GTF_READONLY,
        region: 0,
        frame: 0x0001_0203,
    };
    let word = page.word();
    golden(
        "netif",
        "grant of a page, for reading",
        &word.to_le_bytes(),
        &page,
        &GrantEntry::from_word(word),
    );
    let large = GrantEntry {
        flags: GTF_PERMIT_ACCESS | 4 << GTF_ORDER_SHIFT,
        region: 1,
        frame: 32,
    };
    let word = large.word();
    golden(
        "netif",
        "grant of 16 pages",
        &word.to_le_bytes(),
        &large,
        &GrantEntry::from_word(word),
    );
    assert_eq!((page.bytes(), large.bytes()), (PAGE, 16 * PAGE));
}

/// What is in memory after a front has set up a queue and sent one packet.
#[test]
fn a_queue_is_as_the_page_shows_it() {
    let world = World::new(5, 64, 0);
    let mut front = world.front();
    let gso = Some(Gso {
        kind: GsoKind::Tcp4,
        size: 1448,
    });
    let meta = Meta {
        csum_blank: true,
        data_validated: false,
        gso,
    };
    front.send(5000, meta, |_| ()).unwrap();
    front.flush().unwrap();
    let layout = QueueLayout::new(5, 64).unwrap();
    assert_eq!(
        (layout.tx_at, layout.rx_at, layout.len),
        (4096, 8192, 12288)
    );
    let read = |at: usize, len: usize| {
        let mut bytes = vec![0; len];
        // SAFETY: the vector has that many bytes.
        let inside = unsafe {
            world
                .memory
                .control()
                .bytes()
                .copy_out(at, bytes.as_mut_ptr(), len)
        };
        assert!(inside);
        bytes
    };
    let shows = |name: &str, at, len| golden("netif", name, &read(at, len), &(), &());
    shows("grant table, its beginning", 0, 32);
    shows("tx ring with one packet", layout.tx_at, 64 + 3 * 12);
    shows("rx ring, its beginning", layout.rx_at, 64 + 2 * 8);
}

#[test]
fn messages_are_as_the_page_shows_them() {
    let offloads = Offloads {
        gso4: true,
        gso6: true,
    };
    let hello = Hello {
        modes: [true; 3],
        offloads,
        queues: 16,
        ring_log2: 12,
        memory: 1 << 30,
    };
    let attach = Attach {
        mode: Mode::Persistent,
        offloads,
        queues: 2,
        ring_log2: 8,
        grants: 512,
        control: 24576,
        tx: 2 << 20,
        rx: 2 << 20,
    };
    let copy = Attach {
        mode: Mode::Copy,
        ..attach
    };
    for (name, message) in [
        ("hello", Message::Hello(hello)),
        ("attach", Message::Attach(attach)),
        ("attach, by copies", Message::Attach(copy)),
        ("attached", Message::Attached),
        ("refused, as of its terms", Message::Refused(1)),
        ("detach, as of what the other wrote", Message::Detach(1)),
    ] {
        let bytes = message.encode();
        let read = Message::decode(&bytes).unwrap();
        golden("packet-link", name, &bytes, &message, &read);
    }
    assert_eq!(QueueLayout::new(8, 512).unwrap().len * 2, 24576);
}
