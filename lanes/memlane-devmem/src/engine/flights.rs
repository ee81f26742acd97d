//! What has been given to the kernel to send and may still be read by the interface, by the kernel's numbers for it.
//!
//! `MSG_ZEROCOPY`: the n-th send of a socket that took any bytes has number n, from 0, round 2³²; its end is told as a
//! range of numbers, in any order (`Documentation/networking/msg_zerocopy.rst`).

use std::collections::VecDeque;

/// Bytes of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// From its beginning.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
}

impl Span {
    fn meets(&self, other: &Span) -> bool {
        let end = |span: &Span| span.offset.saturating_add(u64::from(span.len));
        self.offset < end(other) && other.offset < end(self)
    }
}

#[derive(Debug)]
struct Flight {
    number: u32,
    spans: Vec<Span>,
}

/// The sends of a socket whose end has not been told.
#[derive(Debug, Default)]
pub struct Flights {
    next: u32,
    out: VecDeque<Flight>,
}

impl Flights {
    /// `bytes` of these were taken by one send, the first ones first.
    pub fn sent(&mut self, spans: &[Span], mut bytes: u64) {
        if bytes == 0 {
            return;
        }
        let mut taken = Vec::with_capacity(spans.len());
        for span in spans {
            let len = u32::try_from(bytes).unwrap_or(u32::MAX).min(span.len);
            if len > 0 {
                taken.push(Span { len, ..*span });
            }
            bytes -= u64::from(len);
        }
        self.out.push_back(Flight {
            number: self.next,
            spans: taken,
        });
        self.next = self.next.wrapping_add(1);
    }

    /// The kernel is done with numbers `first` to `last`; how many of them were out.
    pub fn done(&mut self, first: u32, last: u32) -> usize {
        let before = self.out.len();
        let among = last.wrapping_sub(first);
        self.out
            .retain(|flight| flight.number.wrapping_sub(first) > among);
        before - self.out.len()
    }

    /// May the interface still read one of these bytes?
    pub fn hold(&self, span: Span) -> bool {
        let mut spans = self.out.iter().flat_map(|flight| &flight.spans);
        spans.any(|flying| flying.meets(&span))
    }

    /// How many are out.
    pub fn out(&self) -> usize {
        self.out.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(offset: u64, len: u32) -> Span {
        Span { offset, len }
    }

    #[test]
    fn what_was_taken_is_held_until_its_number_is_told() {
        let mut flights = Flights::default();
        flights.sent(&[span(0, 10), span(100, 10)], 15);
        flights.sent(&[span(200, 1)], 0);
        flights.sent(&[span(5, 10)], 10);
        assert!(flights.hold(span(104, 1)) && !flights.hold(span(105, 5)));
        assert!(!flights.hold(span(200, 1)), "none of it was taken");
        assert!(flights.hold(span(9, 1)));
        assert_eq!((flights.done(7, 9), flights.done(0, 0)), (0, 1));
        assert!(flights.hold(span(9, 1)), "the second one has it, too");
        assert!(!flights.hold(span(104, 1)));
        assert_eq!(flights.done(1, 1), 1);
        assert_eq!(flights.out(), 0);
    }

    #[test]
    fn numbers_go_round() {
        let mut flights = Flights {
            next: u32::MAX,
            ..Flights::default()
        };
        for n in 0..3 {
            flights.sent(&[span(n * 10, 10)], 10);
        }
        assert_eq!(flights.done(u32::MAX, 0), 2);
        assert!(flights.hold(span(20, 10)) && !flights.hold(span(0, 20)));
    }
}
