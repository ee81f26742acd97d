//! What mainline's RNBD client and server said to each other, byte by byte (`verify/memlane-system/tests/rdma_vectors.rs`).
//!
//! A line is a message: who sent it (`client`, `server`), how (`private`: the private data of a connection request or of its
//! answer; `send`; `write`: an RDMA write, and to which address), its immediate, if it has one, as it is on the wire, and its bytes in hex. Comments begin with `#`.

const TEXT: &str = include_str!("../vectors/mainline-rnbd.txt");
const HEAD: &str = "\
# Messages between rnbd-client and rnbd-server of Linux 6.12 (Debian), over rxe between two virtual machines.
# Captured by: MEMLANE_WRITE_VECTORS=1 cargo test -p memlane-system --test rdma_vectors -- --ignored
";

/// How a message was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// As the private data of a connection request, or of its answer.
    Private,
    /// As a message.
    Send,
    /// As an RDMA write to this address of the receiver's.
    Write(u64),
}

/// One message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Said {
    /// Was it the client?
    pub by_client: bool,
    /// How.
    pub how: How,
    /// Its immediate.
    pub immediate: Option<u32>,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// The lines without comments.
pub fn lines() -> impl Iterator<Item = &'static str> {
    TEXT.lines().filter(|line| !line.starts_with('#'))
}

/// The conversation.
///
/// # Panics
/// If a line of the file is not as described.
pub fn conversation() -> Vec<Said> {
    lines().map(read).collect()
}

fn read(line: &str) -> Said {
    let words: Vec<&str> = line.split(' ').collect();
    let (said, bytes) = (&words[..words.len() - 1], words[words.len() - 1]);
    let number = |word: &str| u64::from_str_radix(word, 16).expect("a number in hex");
    let (how, rest) = match said[1] {
        "private" => (How::Private, &said[2..]),
        "send" => (How::Send, &said[2..]),
        "write" => (How::Write(number(said[2])), &said[3..]),
        other => panic!("{other}: {line}"),
    };
    let immediate = rest.first().filter(|word| **word != "invalidate");
    Said {
        by_client: said[0] == "client",
        how,
        immediate: immediate.map(|word| u32::try_from(number(word)).expect("32 bits")),
        bytes: unhex(bytes),
    }
}

fn unhex(text: &str) -> Vec<u8> {
    if text == "-" {
        return Vec::new();
    }
    let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("hex");
    (0..text.len()).step_by(2).map(byte).collect()
}

/// Writes the file anew.
///
/// # Panics
/// If it cannot be written.
pub fn write(lines: &[String]) {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/vectors/mainline-rnbd.txt");
    std::fs::write(file, format!("{HEAD}{}\n", lines.join("\n"))).expect("written");
}
