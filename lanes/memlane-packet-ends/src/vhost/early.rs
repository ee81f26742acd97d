//! A ring that is enabled before features are agreed on, as QEMU does when it makes a network device: the crate takes
//! that for a fault, so the message is taken off the socket before it sees it.
//!
//! `VhostUserHeader`, little-endian: request u32, flags u32 (bits 0 and 1 the version, 2 a reply, 3 one is wanted), size
//! u32; then a `vhost_vring_state`: index u32, num u32 (`docs/interop/vhost-user.rst`).

use super::device::Device;
use rustix::net::{RecvFlags, recv};
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use vhost::vhost_user::{Error, Result, VhostUserBackendReqHandlerMut as _};

const SET_VRING_ENABLE: u32 = 18;
const HEADER: usize = 12;
const BODY: u32 = 8;
const VERSION: u32 = 1;
const REPLY: u32 = 4;
const WANTS_REPLY: u32 = 8;

fn word(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..at + 4).and_then(|four| four.try_into().ok());
    u32::from_le_bytes(word.unwrap_or_default())
}

/// Takes that message, if it is the next one and comes early; `false`: it is for the crate to say what comes next.
pub(super) fn take(mut socket: &UnixStream, device: &Mutex<Device>) -> Result<bool> {
    let lock = || memlane_wait::mutex::lock(device);
    if lock().has_features() {
        return Ok(false);
    }
    let mut header = [0; HEADER];
    let flags = RecvFlags::PEEK | RecvFlags::WAITALL;
    let peeked = recv(socket, &mut header[..], flags).map_or(0, |(n, _)| n);
    let (request, size) = (word(&header, 0), word(&header, 8));
    if peeked < HEADER || request != SET_VRING_ENABLE || size != BODY {
        return Ok(false);
    }
    let mut message = [0; HEADER + BODY as usize];
    let all = socket.read_exact(&mut message);
    all.map_err(|_| Error::PartialMessage)?;
    let (index, on) = (word(&message, HEADER), word(&message, HEADER + 4));
    if on > 1 {
        return Err(Error::InvalidParam);
    }
    lock().set_vring_enable(index, on == 1)?;
    if word(&message, 4) & WANTS_REPLY != 0 && lock().replies() {
        let words = [SET_VRING_ENABLE, VERSION | REPLY, BODY, 0, 0];
        let reply: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
        let told = socket.write_all(&reply);
        told.map_err(|_| Error::PartialMessage)?;
    }
    Ok(true)
}
