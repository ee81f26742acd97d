//! What anybody would write to join two TAP devices: read, write, a thread for each direction. To be compared with.
//!
//! The hidden `memlane-bench peer copier`: the first device is in the network namespace in which it runs, the second one in
//! another. Both have vnet headers and all offloads of TCP, so that frames of up to 64 KiB go through; a header goes as
//! it came.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::PathBuf;

use anyhow::Context as _;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::out;

/// A vnet header and the longest frame.
const MOST: usize = 12 + 65_550;
/// What it says when frames can come.
pub(super) const READY: &str = "both devices are open";

#[derive(clap::Args, Debug)]
pub(crate) struct Copier {
    first: String,
    /// Of the second one.
    namespace: PathBuf,
    second: String,
}

pub(crate) fn run(copier: &Copier) -> anyhow::Result<()> {
    let first = open(&copier.first)?;
    let space =
        File::open(&copier.namespace).with_context(|| copier.namespace.display().to_string())?;
    move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network))
        .context("into the second namespace")?;
    let second = open(&copier.second)?;
    out::stderr(&format!("{READY}\n"));
    std::thread::scope(|scope| {
        let there = scope.spawn(|| copy(&first, &second));
        let back = scope.spawn(|| copy(&second, &first));
        let ended = [there, back].map(|thread| thread.join());
        ended
            .into_iter()
            .try_for_each(|end| end.map_err(|_| anyhow::anyhow!("a direction ended badly"))?)
    })
}

fn copy(mut from: &File, mut to: &File) -> anyhow::Result<()> {
    let mut frame = vec![0; MOST];
    loop {
        let len = from.read(&mut frame).context("reading a frame")?;
        // A frame that the other device does not take is lost, as on any wire.
        let _ = to.write(&frame[..len]);
    }
}

fn open(name: &str) -> anyhow::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/net/tun");
    let file = file.context("/dev/net/tun")?;
    // SAFETY: an all-zero ifreq is a valid one, without a name.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let room = request.ifr_name.len();
    anyhow::ensure!(name.len() < room, "{name}: too long for a device");
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = libc::c_char::try_from(from).context("the name of a device")?;
    }
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    request.ifr_ifru.ifru_flags = libc::c_short::try_from(flags)?;
    // SAFETY: TUNSETIFF reads and writes one ifreq, which this is.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    anyhow::ensure!(done == 0, "{name}: {}", std::io::Error::last_os_error());
    let offloads = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6;
    // SAFETY: TUNSETOFFLOAD takes its flags as the argument itself.
    let done = unsafe {
        libc::ioctl(
            file.as_raw_fd(),
            libc::TUNSETOFFLOAD,
            libc::c_ulong::from(offloads),
        )
    };
    anyhow::ensure!(done == 0, "{name}: {}", std::io::Error::last_os_error());
    Ok(file)
}
