//! Ports, and waiting for servers without connecting to them.

use std::time::{Duration, Instant};

pub use crate::harness::free_port;

/// True as soon as somebody listens on `port`, by /proc/net/tcp: a trial
/// connection would show up in the server's statistics.
pub fn listening(port: u16) -> bool {
    listening_beside("self", port)
}

/// The same in the network namespace of a process.
pub fn listening_beside(process: &str, port: u16) -> bool {
    ["tcp", "tcp6"].iter().any(|table| {
        let table = format!("/proc/{process}/net/{table}");
        let text = std::fs::read_to_string(table).unwrap_or_default();
        text.lines().skip(1).any(|line| is_listener(line, port))
    })
}

fn is_listener(line: &str, port: u16) -> bool {
    let mut words = line.split_whitespace();
    let (Some(local), Some(state)) = (words.nth(1), words.nth(1)) else {
        return false;
    };
    state == "0A"
        && local
            .rsplit(':')
            .next()
            .is_some_and(|p| u16::from_str_radix(p, 16) == Ok(port))
}

/// Waits until somebody listens on `port`.
pub fn wait_listening(port: u16, who: &str) {
    let what = format!("{who} to listen on port {port}");
    wait_until(&what, Duration::from_secs(30), || listening(port));
}

/// Waits until `done` says so.
pub fn wait_until(what: &str, limit: Duration, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + limit;
    while !done() {
        assert!(Instant::now() < end, "waited {limit:?} in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_listener_is_seen_and_a_free_port_is_free() {
        let port = free_port();
        assert!(!listening(port));
        let socket = TcpListener::bind(("127.0.0.1", port)).expect("free");
        assert!(listening(port));
        assert_ne!(free_port(), port);
        drop(socket);
    }
}
