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

/// What iperf3 sends at once over TCP, unless `-l` says otherwise (`DEFAULT_TCP_BLKSIZE` in iperf_api.h).
const BLOCK: usize = 128 << 10;

/// How many bytes of two random blocks may be equal by chance where one ends early.
const BY_CHANCE: usize = 4;

/// A client of iperf3 3.12 with `-F`: what it sends of `file`.
///
/// That version loses bytes where a send takes a part of a block, on any transport: it moves the rest of the block to the
/// front of its buffer, reads the next bytes of the file over it, and sends the whole buffer. What arrives is therefore
/// not always the file, but it is always what these rules make of it.
#[derive(Clone)]
pub struct Diskfile<'a> {
    unread: &'a [u8],
    buffer: Vec<u8>,
    /// Bytes of the buffer that the last send left over.
    left: usize,
}

impl<'a> Diskfile<'a> {
    /// A client that has read nothing of `file` yet.
    #[must_use]
    pub fn new(file: &'a [u8]) -> Diskfile<'a> {
        Diskfile {
            unread: file,
            buffer: vec![0; BLOCK],
            left: 0,
        }
    }

    /// Whether the client can have sent `arrived`, whatever part of a block each send took.
    #[must_use]
    pub fn explains(mut self, mut arrived: &[u8]) -> bool {
        loop {
            let block = self.fill();
            let same = common_prefix(&self.buffer[..block], arrived);
            if same == arrived.len() {
                return true;
            }
            if same < block {
                let parts = same.saturating_sub(BY_CHANCE).max(1)..=same;
                return parts.rev().any(|sent| {
                    let mut next = self.clone();
                    next.keep_the_rest(sent, block);
                    next.explains(&arrived[sent..])
                });
            }
            if block == 0 {
                return false;
            }
            self.left = 0;
            arrived = &arrived[block..];
        }
    }

    /// Reads from the file as the client does; the bytes that it sends next.
    fn fill(&mut self) -> usize {
        let wanted = self.unread.len().min(BLOCK - self.left);
        let (read, unread) = self.unread.split_at(wanted);
        self.buffer[..wanted].copy_from_slice(read);
        self.unread = unread;
        self.left + wanted
    }

    /// A send took `sent` bytes of `block`.
    fn keep_the_rest(&mut self, sent: usize, block: usize) {
        self.buffer.copy_within(sent..block, 0);
        self.left = block - sent;
    }
}

fn common_prefix(one: &[u8], other: &[u8]) -> usize {
    one.iter()
        .zip(other)
        .take_while(|(one, other)| one == other)
        .count()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::real::blob;

    #[test]
    fn whole_sends_carry_the_file() {
        let file = blob(1, 3 * BLOCK + 5);
        assert!(Diskfile::new(&file).explains(&file));
        assert!(Diskfile::new(&file).explains(&file[..BLOCK + 9]));
    }

    #[test]
    fn a_send_of_a_part_repeats_what_lay_behind_it() {
        let file = blob(2, 3 * BLOCK);
        let (sent, rest) = (BLOCK - 3072, 3072);
        // The next read takes the place of the rest, and of all but the end of the block.
        let mut arrived = file[..BLOCK - rest].to_vec();
        arrived.extend_from_slice(&file[BLOCK..BLOCK + sent]);
        arrived.extend_from_slice(&file[BLOCK - rest..BLOCK]);
        arrived.extend_from_slice(&file[BLOCK + sent..2 * BLOCK + sent]);
        assert!(Diskfile::new(&file).explains(&arrived));
    }

    #[test]
    fn a_changed_byte_has_no_explanation() {
        let file = blob(3, 3 * BLOCK);
        for at in [0, BLOCK + 77, 3 * BLOCK - 1] {
            let mut arrived = file.clone();
            arrived[at] ^= 1;
            assert!(!Diskfile::new(&file).explains(&arrived), "byte {at}");
        }
        let twice = [&file[..BLOCK], &file[..BLOCK]].concat();
        assert!(!Diskfile::new(&file).explains(&twice));
        for lost in [1, 4096, BLOCK] {
            let rest = [&file[..BLOCK + 9], &file[BLOCK + 9 + lost..]].concat();
            assert!(!Diskfile::new(&file).explains(&rest), "{lost} bytes");
        }
        let longer = [&file[..], &[0; 64]].concat();
        assert!(!Diskfile::new(&file).explains(&longer));
    }
}
