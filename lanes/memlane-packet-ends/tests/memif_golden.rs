//! docs/formats/memif.md shows the bytes that the code makes, and the code reads them back.

use memlane_fixtures::golden;
use memlane_packet_ends::memif::layout::{Desc, NEXT};
use memlane_packet_ends::memif::wire::{
    AddRing, Hello, Init, MODE_ETHERNET, Message, Text, VERSION,
};

#[test]
fn messages_are_as_the_page_shows_them() {
    let messages = [
        ("ack", Message::Ack),
        (
            "hello",
            Message::Hello(Hello {
                name: Text::new("memlane"),
                min_version: VERSION,
                max_version: VERSION,
                max_region: 31,
                max_m2s: 14,
                max_s2m: 15,
                max_log2: 13,
            }),
        ),
        (
            "init",
            Message::Init(Init {
                version: VERSION,
                id: 0x0102_0304,
                mode: MODE_ETHERNET,
                secret: Text::new("sesame"),
                name: Text::new("memlane"),
            }),
        ),
        (
            "add region",
            Message::AddRegion {
                index: 1,
                size: 0x0001_0203_0405,
            },
        ),
        (
            "add ring, from client to server",
            Message::AddRing(AddRing {
                s2m: true,
                index: 2,
                region: 1,
                offset: 0x0102_0340,
                log2: 10,
                private: 0x0506,
            }),
        ),
        ("connect", Message::Connect(Text::new("memif0"))),
        ("connected", Message::Connected(Text::new("memif0"))),
        (
            "disconnect",
            Message::Disconnect {
                code: 1,
                reason: Text::new("tx ring: a buffer of no bytes"),
            },
        ),
    ];
    for (name, message) in messages {
        let bytes = message.encode();
        let told = golden::dump(name, &bytes);
        let page = golden::page("memif");
        assert!(page.contains(&told), "the page does not show\n{told}");
        assert_eq!(Message::decode(&bytes), Ok(message), "{name}");
    }
}

#[test]
fn a_descriptor_is_as_the_page_shows_it() {
    let desc = Desc {
        flags: NEXT,
        region: 2,
        length: 0x0000_0800,
        offset: 0x0304_0506,
        metadata: 0x0708_090a,
    };
    let bytes: Vec<u8> = desc.words().iter().flat_map(|w| w.to_le_bytes()).collect();
    let told = golden::dump("descriptor, with another behind it", &bytes);
    let page = golden::page("memif");
    assert!(page.contains(&told), "the page does not show\n{told}");
    assert_eq!(Desc::from_words(desc.words()), desc);
}

#[test]
fn texts_of_others_show_nothing_that_a_terminal_obeys() {
    let text = Text::<32>::new("a\u{1b}[2Jb");
    assert_eq!(text.to_string(), "a?[2Jb");
    assert_eq!(Text::<4>::new("äöü").bytes(), "ä".as_bytes());
    assert_eq!(Text::<4>::new("abcd").bytes(), b"abc");
}
