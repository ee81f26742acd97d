//! Runs iperf3 and reads its JSON.

use std::time::Duration;

use super::net::{free_port, wait_listening};
use super::proc::Done;
use super::stage::Stage;

const LIMIT: Duration = Duration::from_secs(60);

/// One test of iperf3: what the client and the server left.
///
/// # Panics
/// If one of them fails or hangs.
pub fn iperf3(stage: &Stage, client_args: &[&str], server_args: &[&str]) -> (Done, Done) {
    let port = free_port().to_string();
    let mut server = stage.command("iperf3");
    server
        .args(["-s", "-1", "-B", "127.0.0.1", "-p", &port])
        .args(server_args);
    let server = stage.start("iperf3-server", server);
    wait_listening(port.parse().expect("a number"), "iperf3");
    let mut client = stage.command("iperf3");
    client
        .args(["-c", "127.0.0.1", "-p", &port, "-J"])
        .args(client_args);
    let client = stage.start("iperf3-client", client);
    let client = client.wait(LIMIT).success();
    (client, server.wait(LIMIT).success())
}

/// `bytes` of a summary in iperf3's JSON.
///
/// # Panics
/// If there is no such summary.
pub fn bytes_of(json: &str, summary: &str) -> u64 {
    let at = json
        .find(&format!("\"{summary}\":"))
        .unwrap_or_else(|| panic!("{json}"));
    let rest = &json[at..];
    let at = rest.find("\"bytes\":").expect("bytes") + "\"bytes\":".len();
    let digits = rest[at..]
        .trim_start()
        .chars()
        .take_while(char::is_ascii_digit);
    digits.collect::<String>().parse().expect("a number")
}
