//! The hidden programs that `check` starts under the library: an echo server, a
//! client that verifies what comes back, and a probe that only holds a connection.

use std::io::{BufRead, Read, Write, stdin, stdout};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context, ensure};

/// Sizes of one cycle of rounds: single bytes, usual requests, more than a read takes at once.
const SIZES: [usize; 6] = [1, 100, 1, 4096, 14, 64 * 1024];
/// Bytes of one write.
const CHUNK: usize = 8192;
/// Longest silence before the stream is taken for dead.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(clap::Args, Debug)]
pub(crate) struct ClientArgs {
    target: String,
}

#[derive(clap::Args, Debug)]
pub(crate) struct ProbeArgs {
    target: String,
    #[arg(long)]
    send: Option<String>,
    #[arg(long, default_value_t = 0)]
    rounds: u32,
}

fn say(line: &str) -> anyhow::Result<()> {
    let mut out = stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// Echoes every connection until stdin ends.
pub(crate) fn server() -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").context("cannot listen on 127.0.0.1")?;
    say(&listener.local_addr()?.to_string())?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || echo(stream));
        }
    });
    hold();
    Ok(())
}

fn echo(mut stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let mut buffer = vec![0; CHUNK];
    while let Ok(n @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..n]).is_err() {
            return;
        }
    }
}

/// Waits until whoever started us closes the pipe or dies.
fn hold() {
    let _ = std::io::copy(&mut stdin().lock(), &mut std::io::sink());
}

/// For each line on stdin: one cycle of rounds, answered by `ok BYTES`.
pub(crate) fn client(args: &ClientArgs) -> anyhow::Result<()> {
    let mut stream = connect(&args.target)?;
    let mut noise = Noise(0x9e37_79b9_7f4a_7c15);
    say(&stream.local_addr()?.to_string())?;
    for line in stdin().lock().lines() {
        line?;
        let mut sum = 0;
        for size in SIZES {
            round(&mut stream, &mut noise, size)?;
            sum += size;
        }
        say(&format!("ok {sum}"))?;
    }
    Ok(())
}

fn round(stream: &mut TcpStream, noise: &mut Noise, size: usize) -> anyhow::Result<()> {
    let sent = noise.bytes(size);
    for chunk in sent.chunks(CHUNK) {
        stream.write_all(chunk).context("sending")?;
    }
    let mut got = vec![0; size];
    stream.read_exact(&mut got).context("receiving")?;
    ensure!(
        sent == got,
        "the echo of {size} bytes differs from what was sent"
    );
    Ok(())
}

/// Connects, sends what it was told to (by default nothing), and holds the connection.
pub(crate) fn probe(args: &ProbeArgs) -> anyhow::Result<()> {
    let mut stream = connect(&args.target)?;
    say(&format!("{} {}", stream.local_addr()?, stream.peer_addr()?))?;
    if let Some(text) = &args.send {
        let mut buffer = vec![0; 64 * 1024];
        for _ in 0..args.rounds {
            stream.write_all(text.as_bytes()).context("sending")?;
            if stream.read(&mut buffer).context("no answer")? == 0 {
                break;
            }
        }
    }
    say("sent")?;
    hold();
    Ok(())
}

fn connect(target: &str) -> anyhow::Result<TcpStream> {
    let stream =
        TcpStream::connect(target).with_context(|| format!("cannot connect to {target}"))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Bytes that differ from round to round (xorshift).
struct Noise(u64);

impl Noise {
    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            bytes.extend_from_slice(&self.0.to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_echo_comes_back_whole_and_a_changed_byte_is_noticed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            echo(listener.accept().unwrap().0);
            let (mut liar, _) = listener.accept().unwrap();
            let mut bytes = [0; 100];
            liar.read_exact(&mut bytes).unwrap();
            bytes[99] ^= 1;
            liar.write_all(&bytes).unwrap();
        });
        let mut noise = Noise(1);
        let mut honest = connect(&at).unwrap();
        for size in SIZES {
            round(&mut honest, &mut noise, size).unwrap();
        }
        drop(honest);
        assert!(round(&mut connect(&at).unwrap(), &mut noise, 100).is_err());
    }

    #[test]
    fn every_round_sends_other_bytes() {
        let mut noise = Noise(1);
        assert_ne!(noise.bytes(13), noise.bytes(13));
    }
}
