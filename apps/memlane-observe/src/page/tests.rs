use std::cell::Cell;

use proptest::prelude::*;

use super::*;

/// A page in memory, as a library would make it.
struct Made(Vec<u8>);

impl Made {
    fn new(entries: usize) -> Made {
        let mut page = Made(vec![0; HEADER_LEN + 512 * CONN_ENTRY_LEN]);
        page.u64(offset_of!(Header, magic), MAGIC);
        page.u32(offset_of!(Header, version), VERSION);
        page.u32(offset_of!(Header, header_len), 4096);
        page.u32(offset_of!(Header, conn_entry_len), 192);
        page.u32(offset_of!(Header, conn_capacity), 512);
        page.u64(offset_of!(Header, page_len), 4096 + 512 * 192);
        page.u32(
            offset_of!(Header, conn_high),
            u32::try_from(entries).unwrap(),
        );
        for index in 0..entries {
            page.entry(index, offset_of!(ConnEntry, state), 4);
        }
        page
    }

    fn u32(&mut self, at: usize, value: u32) {
        self.0[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }

    fn u64(&mut self, at: usize, value: u64) {
        self.0[at..at + 8].copy_from_slice(&value.to_ne_bytes());
    }

    fn entry(&mut self, index: usize, field: usize, value: u32) {
        self.u32(HEADER_LEN + index * CONN_ENTRY_LEN + field, value);
    }

    fn read(&self) -> Result<Page, PageError> {
        Page::read(&self.0.as_slice())
    }
}

impl Source for &[u8] {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let rest = usize::try_from(offset)
            .ok()
            .and_then(|at| self.get(at..))
            .unwrap_or(&[]);
        let n = rest.len().min(buffer.len());
        buffer[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }

    fn size(&self) -> io::Result<u64> {
        Ok((**self).len() as u64)
    }
}

#[test]
fn a_good_page_gives_its_counters_and_connections() {
    let mut made = Made::new(300);
    made.u32(offset_of!(Header, pid), 77);
    made.u64(
        offset_of!(Header, counters) + 8 * Counter::RingFull as usize,
        9,
    );
    made.u32(offset_of!(Header, reasons), Reason::CLOSING.0);
    made.u64(offset_of!(Header, reasons) + 8, 3);
    made.entry(299, offset_of!(ConnEntry, ports), (80 << 16) | 1234);
    let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1];
    let at = HEADER_LEN + 299 * CONN_ENTRY_LEN + offset_of!(ConnEntry, local_ip);
    made.0[at..at + 16].copy_from_slice(&mapped);
    made.0[at + 31] = 1;
    let page = made.read().unwrap();
    assert_eq!((page.pid, page.counter(Counter::RingFull)), (77, 9));
    let given = Fallback {
        reason: Reason::CLOSING,
        client: 3,
        server: 0,
    };
    assert_eq!(page.fallbacks, [given]);
    assert_eq!(page.conns.len(), 300);
    let expected = (
        "127.0.0.1:1234".parse().unwrap(),
        "[::1]:80".parse().unwrap(),
    );
    assert_eq!(page.conns[299].addresses, Some(expected));
    assert_eq!(page.conns[0].addresses, None);
}

#[test]
fn a_page_that_lies_about_itself_is_refused() {
    type Lie = fn(&mut Made);
    let lies: [(Lie, PageError); 8] = [
        (|m| m.u64(0, 0), PageError::Magic),
        (|m| m.u32(8, 2), PageError::Version(2)),
        (|m| m.u32(12, 64), PageError::Lengths),
        (|m| m.u64(16, u64::MAX), PageError::Lengths),
        (
            |m| m.u32(offset_of!(Header, conn_entry_len), 0),
            PageError::Lengths,
        ),
        (
            |m| m.u32(offset_of!(Header, conn_capacity), u32::MAX),
            PageError::Lengths,
        ),
        (|m| m.0.truncate(5000), PageError::Short),
        (|m| m.0.truncate(100), PageError::Short),
    ];
    for (index, (lie, error)) in lies.into_iter().enumerate() {
        let mut made = Made::new(1);
        lie(&mut made);
        assert_eq!(made.read().unwrap_err(), error, "lie {index}");
    }
}

#[test]
fn an_impossible_number_of_connections_is_capped() {
    let mut made = Made::new(1);
    made.u32(offset_of!(Header, conn_high), u32::MAX);
    let page = made.read().unwrap();
    assert_eq!(page.conns.len(), 1);
}

#[test]
fn impossible_entries_are_counted_and_left_out() {
    let mut made = Made::new(3);
    made.entry(0, offset_of!(ConnEntry, state), 6);
    made.entry(1, offset_of!(ConnEntry, role), 2);
    made.entry(2, offset_of!(ConnEntry, state), 0);
    let page = made.read().unwrap();
    assert_eq!((page.bad_entries, page.conns.len()), (2, 0));
}

#[test]
fn an_entry_that_is_used_anew_is_not_taken_for_the_old_connection() {
    let mut made = Made::new(2);
    made.entry(1, offset_of!(ConnEntry, ports), (80 << 16) | 1234);
    let conn = made.read().unwrap().conns.remove(1);
    made.entry(1, offset_of!(ConnEntry, tx_ring_bytes), 5);
    let again = conn.again(&made.0.as_slice()).unwrap();
    assert_eq!((again.index, again.tx.ring_bytes), (1, 5));
    made.entry(1, offset_of!(ConnEntry, since_ns), 1);
    assert!(conn.again(&made.0.as_slice()).is_none());
    made.entry(1, offset_of!(ConnEntry, since_ns), 0);
    made.entry(1, offset_of!(ConnEntry, ports), (80 << 16) | 1235);
    assert!(conn.again(&made.0.as_slice()).is_none());
}

/// Changes one entry's `seq` and `fd` at every read, until it has been read `until` times.
struct Restless {
    page: Vec<u8>,
    until: u32,
    reads: Cell<u32>,
}

impl Source for Restless {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let n = self.page.as_slice().read_at(buffer, offset)?;
        let entry = usize::try_from(offset).unwrap();
        if entry >= HEADER_LEN {
            let reads = self.reads.get().min(self.until);
            self.reads.set(reads + 1);
            buffer[..4].copy_from_slice(&reads.to_ne_bytes());
            let fd = offset_of!(ConnEntry, fd);
            buffer[fd..fd + 4].copy_from_slice(&reads.to_ne_bytes());
        }
        Ok(n)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.page.len() as u64)
    }
}

#[test]
fn an_entry_that_changes_is_read_again_until_it_stands_still() {
    let source = |until| Restless {
        page: Made::new(1).0,
        until,
        reads: Cell::new(0),
    };
    let page = Page::read(&source(10)).unwrap();
    assert_eq!((page.conns[0].fd, page.bad_entries), (10, 0));
}

#[test]
fn an_entry_that_never_stands_still_or_stays_odd_is_given_up() {
    for until in [u32::MAX, 11] {
        let source = Restless {
            page: Made::new(1).0,
            until,
            reads: Cell::new(0),
        };
        let page = Page::read(&source).unwrap();
        assert_eq!((page.conns.len(), page.bad_entries), (0, 1));
    }
}

proptest! {
    #[test]
    fn no_bytes_can_upset_the_reader(garbage in proptest::collection::vec(any::<u8>(), 0..9000)) {
        let _ = Page::read(&garbage.as_slice());
    }

    #[test]
    fn no_scribble_into_a_good_page_can_upset_the_reader(
        scribbles in proptest::collection::vec((0usize..HEADER_LEN + 512 * CONN_ENTRY_LEN - 8, any::<u64>()), 1..60),
        cut in 0usize..HEADER_LEN + 512 * CONN_ENTRY_LEN,
    ) {
        let mut made = Made::new(400);
        for (at, value) in scribbles {
            made.u64(at, value);
        }
        let whole = made.read();
        prop_assert!(whole.is_err() || whole.unwrap().conns.len() <= 512);
        made.0.truncate(cut);
        let _ = made.read();
    }
}
