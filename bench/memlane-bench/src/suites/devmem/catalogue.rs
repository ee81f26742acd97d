//! What the device-memory suite's tables and plots show, and what memlane should reach.

use super::rows::{LANE, PYTHON, Part, ROWS, Row, STREAM, TOKENS};
use super::sinks::{RECV_COPY, SPLICE};
use super::tokens::WAYS;
use crate::catalogue::{Aim, Catalogue, Goal, Layout, Plot, To, View, goal, row};
use crate::published::Published;

/// Of the lane, at most (`memlane_devmem::io::lane`).
const RING: u64 = 2 << 20;

const METHOD: &[&str] = &[
    "Rounds alternate between the systems; medians (lowest–highest); ratios are of the same round",
    "Two processes, the sender on one CPU, the receiver on another, TCP over 127.0.0.1, one stream; the lane's sender is \
     memlane's, the others' any program; rates by the receiver's clock, after 0.1 s in which every byte is looked at; after \
     that the last byte of what came together is",
    "Copies: bytes that were copied for each byte of payload, at both ends, as counted where it happens: by the kernel (what \
     sendmsg, recvmsg and splice have moved between its buffers and memory), and by the programs (what bounced, and what the \
     lane's sender has written into the region)",
    "CPU: user and system time of both processes for a gigabyte; of these, the receiver's. Threads of the kernel are not in \
     it, and soft interrupts count for whoever was running, on one machine the sender",
    "recv() + copy: recv() into 256 KiB, the same again and again, then memcpy() into a mapped memfd; splice: through a pipe \
     of 1 MiB into that memfd; both go round as many bytes of it as the lane's receiver keeps before it hands them back",
    "Tokens: 4096 fragments of a chunk each are handed back, in as many calls as that takes; median of 12 times, of each round",
    "Fragments: a tenth, and half of them, are smaller than twice the size that is told, in each round",
];

pub(crate) fn catalogue() -> Catalogue {
    Catalogue {
        suite: "devmem",
        views: vec![stream(), costs(), tokens(), python()],
        goals: ROWS.iter().flat_map(goals).collect(),
        memory: None,
        method: METHOD,
        published: Published::parse(include_str!("../../../../published/devmem.json")),
    }
}

fn of(part: Part) -> Vec<crate::catalogue::Row> {
    let of = ROWS.iter().filter(|row| row.part == part);
    of.map(|one| row(one.row, one.about)).collect()
}

fn stream() -> View {
    let to = |of, to| (of, To::System(to), "throughput");
    View {
        id: "stream",
        title: "payload into a region",
        layout: Layout::Systems,
        systems: STREAM.to_vec(),
        rows: of(Part::Stream),
        metrics: &["throughput"],
        ratios: vec![
            to(LANE, RECV_COPY),
            to("mapped", RECV_COPY),
            to("staged", RECV_COPY),
            to(LANE, SPLICE),
            to("mapped", SPLICE),
        ],
        plots: vec![Plot::bars("throughput"), Plot::bars("receiver_cpu")],
    }
}

fn costs() -> View {
    let ours = STREAM.iter().filter(|system| system.ours);
    View {
        id: "costs",
        title: "what a byte costs",
        layout: Layout::Metrics,
        systems: STREAM.to_vec(),
        rows: of(Part::Stream),
        metrics: &[
            "kernel_copies",
            "program_copies",
            "cpu",
            "receiver_cpu",
            "fragment_half",
            "fragment_largest",
        ],
        ratios: ours
            .map(|s| (s.id, To::System(RECV_COPY), "receiver_cpu"))
            .collect(),
        plots: Vec::new(),
    }
}

/// The row of a way to hand tokens back.
pub(super) fn token_row((ranges, tokens): (u32, u32)) -> String {
    format!("tokens-{ranges}x{tokens}")
}

fn tokens() -> View {
    let about = |(ranges, tokens): (u32, u32)| match (ranges, tokens) {
        (1, 1) => "one by one".to_owned(),
        (ranges, 1) => format!("{ranges} ranges of 1 a call"),
        (1, tokens) => format!("1 range of {tokens} a call"),
        (ranges, tokens) => format!("{ranges} ranges of {tokens} a call"),
    };
    View {
        id: "tokens",
        title: "tokens handed back",
        layout: Layout::Systems,
        systems: TOKENS.to_vec(),
        rows: WAYS
            .iter()
            .map(|way| row(token_row(*way), about(*way)))
            .collect(),
        metrics: &["token"],
        ratios: Vec::new(),
        plots: Vec::new(),
    }
}

fn python() -> View {
    let to = |to| ("wheel", To::System(to), "throughput");
    View {
        id: "python",
        title: "tensors",
        layout: Layout::Systems,
        systems: PYTHON.to_vec(),
        rows: of(Part::Python),
        metrics: &["throughput", "cpu", "receiver_cpu"],
        ratios: vec![to("rust"), to("recv-into"), to("recv-into-fresh")],
        plots: vec![Plot::bars("throughput")],
    }
}

/// What memlane should reach in a row.
fn goals(row: &Row) -> Vec<Goal> {
    let goal = |of, to, times| {
        let aim = Aim::AtLeast(times);
        goal(row.row, "throughput", of, To::System(to), aim)
    };
    let mapped = goal("mapped", RECV_COPY, 1.1);
    match row.part {
        // What is kept must fit into the ring that the peer writes into.
        Part::Stream if row.hold > RING => vec![mapped],
        Part::Stream => vec![goal(LANE, RECV_COPY, 2.5), mapped],
        Part::Tokens => Vec::new(),
        Part::Python => vec![goal("wheel", "rust", 0.95)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aims_are_those_that_the_lane_was_built_for() {
        let goals = catalogue().goals;
        let of = |row: &str| {
            let goals = goals.iter().filter(|goal| goal.row == row);
            goals.map(|goal| (goal.of, goal.aim)).collect::<Vec<_>>()
        };
        let (lane, mapped) = (("lane", Aim::AtLeast(2.5)), ("mapped", Aim::AtLeast(1.1)));
        assert_eq!(of("kept-1m"), [lane, mapped]);
        assert_eq!(of("kept-32m"), [mapped]);
        assert_eq!(of("tensor"), [("wheel", Aim::AtLeast(0.95))]);
    }
}
