use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::super::{screen, text};
use super::*;

/// A process with one connection on the memory lane, that has carried so much.
fn seen(pid: u32, name: &str, carried: u64) -> Seen {
    let mut sums = Counters::default();
    sums.set(Counter::TxRingBytes, carried);
    sums.set(Counter::RxTcpBytes, carried / 3);
    sums.set(Counter::TxCalls, carried / 100);
    sums.reasons = [(Reason::TOO_YOUNG.0, (2, 1)), (Reason::CLOSING.0, (1, 0))].into();
    Seen {
        key: (pid, 1000, 7),
        name: name.into(),
        sums,
        conns: vec![
            conn(0, ConnState::Memlane, carried),
            conn(1, ConnState::Tcp, 0),
            conn(2, ConnState::New, 0),
        ],
    }
}

fn conn(index: usize, state: ConnState, sent: u64) -> Conn {
    let port = 40_000 + u16::try_from(index).unwrap();
    let ring = Flow {
        ring_size: 65_536,
        ring_used: Some(16_384),
        ring_bytes: sent,
        ..Flow::default()
    };
    let none = Flow {
        ring_used: Some(0),
        ..Flow::default()
    };
    let flow = if state == ConnState::Memlane {
        ring
    } else {
        none
    };
    Conn {
        index,
        state,
        fd: 5,
        accepted: false,
        addresses: Some((
            format!("127.0.0.1:{port}").parse().unwrap(),
            "127.0.0.1:80".parse().unwrap(),
        )),
        inode: 0,
        since_ns: 1,
        lane: 0,
        peer_pid: 0,
        peer_comm: String::new(),
        peer_uid: 0,
        reason: match state {
            ConnState::Tcp => Reason::TOO_YOUNG,
            _ => Reason::NONE,
        },
        peer_reason: Reason::NONE,
        parked: false,
        tx: flow,
        rx: none,
    }
}

/// Two looks, two seconds apart.
fn watched() -> Model {
    let begin = Instant::now();
    let sample = |seconds, processes| Sample {
        at: begin + Duration::from_secs(seconds),
        processes,
        unreadable: 0,
    };
    let mut model = Model::new(View::Processes, Sort::Rate, String::new());
    model.take(sample(
        0,
        vec![seen(11, "quiet", 3000), seen(22, "nginx", 3000)],
    ));
    model.take(sample(
        2,
        vec![
            seen(11, "quiet", 3000),
            seen(22, "nginx", 3000 + (6 << 20)),
            seen(33, "redis-server", 9),
        ],
    ));
    model
}

fn shown(model: &mut Model, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let look = screen::Look { colors: true };
    terminal
        .draw(|frame| screen::draw(frame, model, look))
        .unwrap();
    text(&terminal, 0)
}

fn pids(model: &Model) -> Vec<u32> {
    model.rows().iter().map(|row| row.pid).collect()
}

fn press(model: &mut Model, keys: &str) {
    for key in keys.chars() {
        model.press(match key {
            '\n' => Press::Enter,
            '\x1b' => Press::Escape,
            key => Press::Char(key),
        });
    }
}

#[test]
fn rates_are_those_between_two_looks_and_the_busiest_comes_first() {
    let model = watched();
    let rows = model.rows();
    assert_eq!(pids(&model), [22, 11, 33]);
    assert_eq!(
        (rows[0].rates.sent, rows[0].rates.received),
        (3 << 20, 1 << 20)
    );
    assert_eq!(rows[0].rates.memory_percent(), Some(75));
    assert_eq!(
        (rows[0].open, rows[0].reason.as_str()),
        ((1, 1), "TOO_YOUNG")
    );
    assert_eq!(rows[0].fill.percent(), Some(25));
    // Of one that is new, nobody knows since when it has counted.
    assert_eq!(rows[2].rates, Rates::default());
    assert_eq!((model.totals.processes, model.totals.memory), (3, 3));
}

#[test]
fn a_screen_of_80_columns_shows_it_all() {
    let mut model = watched();
    let screen = shown(&mut model, 80, 12);
    let lines: Vec<&str> = screen.lines().collect();
    assert_eq!(
        lines[..4],
        [
            "memlane top: 3 processes, 3 connections on the memory lane, 3 on TCP",
            "sent 3.0M/s, received 1.0M/s, 75% through memory; 31k calls/s",
            "    PID NAME              MEM   TCP SENT/s RECV/s  MEM% CALL/s  RING REASON",
            "     22 nginx               1     1   3.0M   1.0M   75%    31k   25% TOO_YOUNG",
        ],
        "{screen}"
    );
    assert!(
        lines[11].starts_with("q quit  c connections  s sort: rate"),
        "{screen}"
    );
    press(&mut model, "c/nginx\n");
    let screen = shown(&mut model, 80, 12);
    let lines: Vec<&str> = screen.lines().collect();
    assert_eq!(
        lines[2..5],
        [
            "PROCESS        LOCAL             PEER              SENT/s RECV/s  RING LANE",
            "nginx/22       127.0.0.1:40000   127.0.0.1:80        3.0M      0   25% MEMLANE",
            "nginx/22       127.0.0.1:40001   127.0.0.1:80           0      0       TOO_YOUNG",
        ],
        "{screen}"
    );
    assert_eq!(lines[5], "");
    assert!(lines[11].contains("filter \"nginx\""), "{screen}");
}

#[test]
fn keys_sort_filter_pause_scroll_and_quit() {
    let mut model = watched();
    press(&mut model, "ssss");
    assert_eq!(model.sort, Sort::Name);
    assert_eq!(pids(&model), [22, 11, 33]);
    press(&mut model, "sr");
    assert_eq!((model.sort, pids(&model)), (Sort::Pid, vec![33, 22, 11]));
    press(&mut model, "<<<<<");
    assert_eq!(model.sort, Sort::Rate);
    press(&mut model, "/REDIS");
    assert!(model.typing && pids(&model) == [33]);
    press(&mut model, "q");
    assert!(!model.over, "it is a letter of the filter");
    press(&mut model, "\x1b");
    assert!(!model.typing && model.filter.is_empty());
    press(&mut model, "p?");
    assert!(model.paused && model.help);
    assert!(shown(&mut model, 80, 24).contains("PAUSED"));
    assert!(shown(&mut model, 80, 24).contains("sort by the next"));
    press(&mut model, "qp");
    assert!(
        !model.help && !model.paused && !model.over,
        "the first key ends the help"
    );
    shown(&mut model, 80, 5);
    model.press(Press::End);
    assert_eq!((model.room, model.top), (1, 2));
    model.press(Press::PageUp);
    model.press(Press::Up);
    model.press(Press::Up);
    assert_eq!(model.top, 0);
    press(&mut model, "q");
    assert!(model.over);
}

#[test]
fn no_size_is_too_small_and_another_size_is_another_screen() {
    let mut model = watched();
    for (width, height) in [(1, 1), (10, 2), (79, 3), (20, 4), (300, 100)] {
        for keys in ["", "c", "?", "x/", "\n"] {
            press(&mut model, keys);
            let screen = shown(&mut model, width, height);
            assert_eq!(screen.lines().count(), usize::from(height));
        }
    }
    model.press(Press::Down);
    model.press(Press::End);
    shown(&mut model, 80, 30);
    assert_eq!(model.top, 0, "with more room nothing is left out");
}

#[test]
fn numbers_that_cannot_be_are_shown_all_the_same() {
    let begin = Instant::now();
    let mut model = Model::new(View::Connections, Sort::Rings, String::new());
    for (seconds, carried) in [(0, u64::MAX), (1, 0), (1, u64::MAX), (2, u64::MAX)] {
        let mut odd = seen(u32::MAX, "0123456789abcde", carried);
        odd.conns[0].tx.ring_used = None;
        odd.conns[0].addresses = None;
        model.take(Sample {
            at: begin + Duration::from_secs(seconds),
            processes: vec![odd],
            unreadable: u64::MAX,
        });
        let screen = shown(&mut model, 80, 24);
        assert!(screen.contains("/4294967295"), "{screen}");
        press(&mut model, "c");
        shown(&mut model, 80, 24);
        press(&mut model, "c");
    }
}
