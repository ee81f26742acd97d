//! The vectors of `docs/formats/nbd.md` are what the code says.

use memlane_block_frontends::nbd::negotiate::{Negotiation, Offer, Tls};
use memlane_block_frontends::nbd::wire::{self, Request, chunk, cmd, cmd_flag, error, opt};

const COOKIE: u64 = 0x0102_0304_0506_0708;

/// The bytes below a line that begins so, up to an empty line.
fn vector(title: &str) -> Vec<u8> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/formats/nbd.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, vectors) = page.split_once("## Golden vectors").unwrap();
    let mut lines = vectors.lines().skip_while(|line| !line.starts_with(title));
    assert!(lines.next().is_some(), "no vector {title:?}");
    let lines = lines.take_while(|line| !line.is_empty() && *line != "```");
    let bytes = lines.flat_map(str::split_whitespace);
    bytes
        .map(|byte| u8::from_str_radix(byte, 16).unwrap())
        .collect()
}

#[test]
fn the_vectors_of_the_page_are_what_is_sent() {
    let request = Request {
        flags: cmd_flag::FUA,
        command: cmd::WRITE,
        cookie: COOKIE,
        at: 4096,
        len: 512,
    };
    assert_eq!(vector("request: WRITE"), request.encode());
    let reply = wire::simple_reply(error::ENOSPC, COOKIE);
    assert_eq!(vector("simple reply"), reply);
    let header = wire::chunk_header(wire::REPLY_FLAG_DONE, chunk::OFFSET_DATA, COOKIE, 520);
    assert_eq!(vector("chunk"), header);

    let offers = [Offer {
        name: "a".into(),
        description: String::new(),
        size: 1 << 20,
        flags: 0x0d0d,
        blocks: (512, 4096),
    }];
    let mut negotiation = Negotiation::new(&offers, Tls::Absent);
    assert_eq!(vector("server's greeting"), negotiation.output());
    let mut said = vec![0, 0, 0, 3];
    said.extend(wire::IHAVEOPT.to_be_bytes());
    said.extend(opt::GO.to_be_bytes());
    said.extend([0, 0, 0, 6, 0, 0, 0, 0, 0, 0]);
    negotiation.feed(&said);
    assert_eq!(vector("answer to NBD_OPT_GO"), negotiation.output());
}
