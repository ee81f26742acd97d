//! The pages of docs/formats, compared with the structures that they are about.

use super::{mentions, nothing_wrong, text};
use memlane_core::{layout, stats, sync, trace};

/// Name and offset of each field but fillers; does not compile if one is left out.
macro_rules! fields {
    ($at:expr, $type:ty, $name:ident: $($field:ident)+) => {{
        let _every_one = |it: &$type| { let $name { $($field: _),+ } = it; };
        let all = [$((stringify!($field), $at + std::mem::offset_of!($type, $field))),+];
        all.into_iter().filter(|(field, _)| !field.starts_with("reserved")).collect::<Vec<_>>()
    }};
}

/// Fields that have no table row which begins with their offset.
fn untold(page: &str, fields: &[(&str, usize)]) -> Vec<String> {
    let rows = page
        .lines()
        .filter_map(|line| line.strip_prefix('|')?.split_once('|'));
    let rows: Vec<(&str, &str)> = rows.map(|(at, rest)| (at.trim(), rest)).collect();
    let told = |&&(field, offset): &&(&str, usize)| {
        let mut rows = rows.iter().filter(|(at, _)| *at == offset.to_string());
        rows.any(|(_, rest)| mentions(rest, field))
    };
    let absent = fields.iter().filter(|field| !told(field));
    let absent = absent.map(|(field, offset)| format!("`{field}` at {offset}"));
    absent.collect()
}

/// Fields of a structure that lies in an array: in one line, in their order.
fn told_in_order(page: &str, fields: &[(&str, usize)]) -> bool {
    let place = |line: &str, field| {
        let spelled = [format!("{field}` ("), format!("{field} (")];
        spelled.iter().find_map(|text| line.find(text))
    };
    page.lines().any(|line| {
        let places: Option<Vec<_>> = fields.iter().map(|(f, _)| place(line, f)).collect();
        places.is_some_and(|places| places.is_sorted())
    })
}

type Fields = Vec<(&'static str, usize)>;

/// `numbers` and `names` are on the page, and each field of `rows` and of `element` where it is.
#[track_caller]
fn page_tells(file: &str, numbers: &[usize], names: &[&str], rows: &[Fields], element: Fields) {
    // 65,536 is for people.
    let page = text(file).unwrap_or_else(|| panic!("there is no {file}"));
    let digits = page.replace("65,536", "65536").replace("69,632", "69632");
    let words = numbers.iter().map(ToString::to_string);
    let words = words.chain(names.iter().map(ToString::to_string));
    let mut wrong: Vec<String> = words.filter(|word| !mentions(&digits, word)).collect();
    wrong.extend(rows.iter().flat_map(|fields| untold(&digits, fields)));
    if !told_in_order(&page, &element) {
        wrong.push(format!("in one line, as `name` (size): {element:?}"));
    }
    let what = format!("{file} does not tell (| offset | size | `field` |)");
    nothing_wrong(&wrong, &what);
}

#[test]
fn the_page_about_chunks_tells_the_real_offsets() {
    use layout::{
        CHUNK_MAGIC, ChunkHeader, DMB_WORDS_LEN, DMBS_AT, DmbWords, RINGS_AT, RUNS, ReadyWords,
        Run, RxWords, SLOTS, SentWords, TxWords, WaitWords,
    };
    use std::mem::offset_of;
    use sync::Cpu;
    let header = fields!(0, ChunkHeader, ChunkHeader: magic ring_size version reserved ready);
    let ready_at = offset_of!(ChunkHeader, ready);
    let ready = fields!(ready_at, ReadyWords, ReadyWords: bits looked asleep rings marked marks);
    let dmb = fields!(0, DmbWords<Cpu>, DmbWords:
        consumed rx sent tx runs windows waits
    );
    // The words of the three groups are also given from the start of the DMB.
    let rx_at = offset_of!(DmbWords<Cpu>, rx.0);
    let tx_at = offset_of!(DmbWords<Cpu>, tx.0);
    let rx = fields!(rx_at, RxWords<Cpu>, RxWords: flags rx_cpu token nap);
    let tx = fields!(tx_at, TxWords<Cpu>, TxWords: writing active);
    let sent_at = offset_of!(DmbWords<Cpu>, sent.0);
    let sent = fields!(sent_at, SentWords<Cpu>, SentWords:
        published runs_declared tx_cpu ready_since
    );
    let waits_at = offset_of!(DmbWords<Cpu>, waits.0);
    let waits = fields!(waits_at, WaitWords<Cpu>, WaitWords: nap room_at);
    let run = fields!(0, Run<Cpu>, Run: start end);
    let groups = ["rx", "sent", "tx", "waits"];
    let words = dmb.into_iter().filter(|(name, _)| !groups.contains(name));
    let numbers = [SLOTS, RUNS, DMB_WORDS_LEN, DMBS_AT, RINGS_AT];
    let magic = CHUNK_MAGIC.to_le_bytes();
    let names = [std::str::from_utf8(&magic).expect("ASCII")];
    let rows = [header, ready, words.collect(), rx, sent, tx, waits];
    page_tells("docs/formats/chunk.md", &numbers, &names, &rows, run);
}

#[test]
fn the_page_about_statistics_tells_the_real_offsets() {
    use stats::{
        CONN_CAPACITY, CONN_ENTRY_LEN, COUNTERS, ConnEntry, HEADER_LEN, Header, MAGIC, MEMFD_NAME,
        REASON_SLOTS, ReasonCount,
    };
    let header = fields!(0, Header, Header:
        magic version header_len page_len pid uid start_ns gid comm conn_capacity
        conn_entry_len conn_high flags ring_size spin_us upgrade mode reserved0 counters
        reasons tx_sizes rx_sizes reserved1
    );
    let reason = fields!(0, ReasonCount, ReasonCount: code reserved client server);
    let entry = fields!(0, ConnEntry, ConnEntry:
        seq state fd role ports peer_pid local_ip remote_ip inode since_ns reason
        peer_reason peer_uid parked tx_ring_size rx_ring_size tx_ring_bytes tx_tcp_bytes
        rx_ring_bytes rx_tcp_bytes tx_calls rx_calls copied tx_ring_window lane reserved
    );
    let numbers = [
        HEADER_LEN,
        CONN_ENTRY_LEN,
        CONN_CAPACITY,
        COUNTERS,
        REASON_SLOTS,
    ];
    let magic = MAGIC.to_le_bytes();
    let name = MEMFD_NAME.to_str().expect("ASCII");
    let names = [std::str::from_utf8(&magic).expect("ASCII"), name];
    let rows = [header, entry];
    page_tells(
        "docs/formats/stats-page.md",
        &numbers,
        &names,
        &rows,
        reason,
    );
}

#[test]
fn the_page_about_tracing_tells_the_real_offsets() {
    use trace::{MAGIC, MEMFD_NAME, Page, RECORD, RING_AT, RING_MAX, RING_MIN, SEGMENT};
    let page = fields!(0, Page, Page:
        on version magic ring_at pid uid reserved0 ring_size snaplen port tracer reserved1
        tail reserved2 head dropped_records dropped_bytes writers error reserved3
    );
    let number = |n: u64| usize::try_from(n).expect("64 bits");
    let text = super::text("docs/formats/trace-ring.md").expect("the page");
    let plain = text.replace(',', "");
    for n in [RING_AT, RECORD, SEGMENT, number(RING_MIN), number(RING_MAX)] {
        assert!(mentions(&plain, &n.to_string()), "{n}");
    }
    let magic = MAGIC.to_le_bytes();
    let name = MEMFD_NAME.to_str().expect("ASCII");
    let names = [std::str::from_utf8(&magic).expect("ASCII"), name];
    page_tells(
        "docs/formats/trace-ring.md",
        &[],
        &names,
        &[page],
        Vec::new(),
    );
}

#[test]
fn a_wrong_offset_in_a_page_would_be_found_out() {
    let page = "| 0 | 8 | `magic` |\n| 128 | 4 | `ready` |\n`start` (8), `end` (8)\n";
    assert!(untold(page, &[("magic", 0), ("ready", 128)]).is_empty());
    assert_eq!(untold(page, &[("ready", 4), ("magi", 0)]).len(), 2);
    assert!(told_in_order(page, &[("start", 0), ("end", 8)]));
    assert!(!told_in_order(page, &[("end", 0), ("start", 8)]));
}
