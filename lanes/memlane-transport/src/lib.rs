//! memlane's transport lane: requests between machines, over many paths, each executed once (IBTRS).
//!
//! *Set the memory up once; after that, move only descriptors.* A session is a set of **chunks** of the server's
//! memory, made when it starts. A request takes a **permit**, which is the number of a chunk; its bytes are written
//! there by the client's device, and a 32-bit immediate says where to look. One message each way, and no more.
//!
//! ```text
//!  Client ── path 0 ══ connections 0, 1, … ══╗             chunks (client writes, backend reads)
//!   permits, policy, fail-over               ╠══ Server ── what was done with each permit
//!         ── path 1 ══ connections 0, 1, … ══╝             backend
//! ```
//!
//! A session has many **paths**; each time one comes up, that is an incarnation of it, with an **epoch**. When one
//! goes down, its requests are sent again by another, at once. That is safe because of two things, both the server's:
//! it remembers, for each permit, which use of it (**generation**) it has begun and how that ended, so a second copy
//! joins the first or is given its result; and before a second copy comes, a **fence** has closed what was left of
//! the dead epoch, so nothing from the past reaches a chunk after its permit was given away anew.
//!
//! | room | what |
//! |---|---|
//! | [`wire`] | bytes that leave the process: mainline RTRS 2.x, and ours in its reserved bytes |
//! | [`engine`] | what decides: [`Client`](engine::client::Client), [`Server`](engine::server::Server); time and bytes come in |
//! | [`port`], [`lease`], [`message`] | what users of a session see, on both sides |
//! | [`stats`], [`error`] | what is counted, what can go wrong |
//!
//! This half has no descriptors and no threads. A driver does what the engines say:
//!
//! ```
//! use memlane_transport::engine::client::{self, Client, Request};
//! use memlane_transport::engine::server::{self, Chunks, LinkId, Server, SessionId};
//! use memlane_transport::engine::{Direction, Inbound, Time};
//! use memlane_transport::wire::{Geometry, SgDesc};
//!
//! // Four chunks of 8 KiB: the memory of the one session.
//! const CHUNK: usize = 8192;
//! struct Memory(Vec<u8>);
//! impl Chunks for Memory {
//!     fn table(&self, _: SessionId, _: LinkId) -> Vec<SgDesc> {
//!         vec![SgDesc { addr: 0, key: 7, len: 4 * 8192 }]
//!     }
//!     fn copy(&self, _: SessionId, chunk: u16, at: u32, into: &mut [u8]) {
//!         let at = usize::from(chunk) * CHUNK + at as usize;
//!         into.copy_from_slice(&self.0[at..at + into.len()]);
//!     }
//! }
//!
//! let now = Time::ZERO;
//! let mut memory = Memory(vec![0; 4 * CHUNK]);
//! let geometry = Geometry::new(4, 8192, 4096).unwrap();
//! let mut server = Server::new(server::Config::new(geometry, 1));
//! let mut client = Client::new(client::Config::new("example", [1; 16]));
//! client.add_path(now);
//!
//! let (data, mut disk, mut asked, mut done) = (b"hello", Vec::new(), false, false);
//! let (mut conns, mut busy) = (Vec::new(), true);
//! while busy {
//!     busy = false;
//!     while let Some(action) = client.poll_action() {
//!         busy = true;
//!         let link = |conn| LinkId(conns.iter().position(|c| *c == conn).unwrap() as u64);
//!         match action {
//!             client::Action::Connect { conn, private } => {
//!                 conns.push(conn);
//!                 server.on_connect(now, LinkId(conns.len() as u64 - 1), &private);
//!             }
//!             client::Action::Send { conn, bytes } => {
//!                 server.on_message(now, link(conn), Inbound::Send(&bytes), &memory);
//!             }
//!             client::Action::Post(post) => {
//!                 // This is the device's part: payload and header straight into the chunk.
//!                 let at = post.chunk.addr as usize;
//!                 memory.0[at..at + data.len()].copy_from_slice(data);
//!                 let tail = at + post.tail_at as usize;
//!                 memory.0[tail..tail + post.tail.len()].copy_from_slice(&post.tail);
//!                 server.on_message(now, link(post.conn), Inbound::Immediate(post.imm), &memory);
//!             }
//!             other => panic!("{other:?}"),
//!         }
//!     }
//!     while let Some(action) = server.poll_action() {
//!         busy = true;
//!         let conn = |link: LinkId| conns[link.0 as usize];
//!         match action {
//!             server::Action::Open(_) => {}
//!             server::Action::Accept(link, private) => client.on_accepted(now, conn(link), &private),
//!             server::Action::Send(link, bytes) => {
//!                 client.on_message(now, conn(link), Inbound::Send(&bytes));
//!             }
//!             server::Action::Execute(job) => {
//!                 disk = memory.0[..job.len as usize].to_vec();
//!                 server.finished(job.session, job.permit, job.generation, 0);
//!             }
//!             server::Action::Reply { link, imm, .. } => {
//!                 client.on_message(now, conn(link), Inbound::Immediate(imm));
//!             }
//!             other => panic!("{other:?}"),
//!         }
//!     }
//!     while let Some(event) = client.poll_event() {
//!         busy = true;
//!         match event {
//!             client::Event::PathUp(_) => {
//!                 let request = Request {
//!                     direction: Direction::Write,
//!                     usr: b"to the disk".as_slice().into(),
//!                     len: data.len() as u32,
//!                     into: None,
//!                     hint: 0,
//!                 };
//!                 client.submit(now, request).unwrap();
//!                 asked = true;
//!             }
//!             client::Event::Done { result, .. } => done = result.is_ok(),
//!             other => panic!("{other:?}"),
//!         }
//!     }
//! }
//! assert!(asked && done);
//! assert_eq!(disk, data);
//! ```

// What tests of the crate share with those beside it says the crate's name.
#[cfg(test)]
extern crate self as memlane_transport;

pub mod engine;
pub mod error;
pub mod io;
pub mod lease;
pub mod message;
pub mod port;
pub mod stats;
pub mod wire;
