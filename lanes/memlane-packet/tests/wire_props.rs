//! Messages of the link: whatever comes is a message that says the same when it is said again, or none.

use memlane_packet::Mode;
use memlane_packet::Offloads;
use memlane_packet::wire::{Attach, Hello, LEN, Message};
use proptest::prelude::*;

fn offloads() -> impl Strategy<Value = Offloads> {
    any::<[bool; 2]>().prop_map(|[gso4, gso6]| Offloads { gso4, gso6 })
}

fn message() -> impl Strategy<Value = Message> {
    let hello = (any::<[bool; 3]>(), offloads(), any::<(u16, u8, u64)>());
    let hello = hello.prop_map(|(modes, offloads, (queues, ring_log2, memory))| {
        Message::Hello(Hello {
            modes,
            offloads,
            queues,
            ring_log2,
            memory,
        })
    });
    let attach = (
        0..3_usize,
        offloads(),
        any::<(u16, u8, u32, u64, u64, u64)>(),
    );
    let attach = attach.prop_map(
        |(mode, offloads, (queues, ring_log2, grants, control, tx, rx))| {
            let mode = Mode::ALL[mode];
            Message::Attach(Attach {
                mode,
                offloads,
                queues,
                ring_log2,
                grants,
                control,
                tx,
                rx,
            })
        },
    );
    prop_oneof![
        hello,
        attach,
        Just(Message::Attached),
        any::<u16>().prop_map(Message::Refused),
        any::<u16>().prop_map(Message::Detach),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_message_is_read_as_it_was_said(message in message()) {
        prop_assert_eq!(Message::decode(&message.encode()), Ok(message));
    }

    #[test]
    fn a_message_with_wrong_bytes_is_none_or_says_just_these(
        message in message(), at in 0..LEN, byte in any::<u8>(), len in 0..=LEN,
    ) {
        let mut bytes = message.encode();
        bytes[at] = byte;
        if let Ok(read) = Message::decode(&bytes) {
            prop_assert_eq!(read.encode(), bytes);
        }
        if len < LEN {
            prop_assert!(Message::decode(&bytes[..len]).is_err());
        }
    }
}
