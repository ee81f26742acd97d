//! What a service manager wants and gives: readiness, an orderly end, sockets.

use std::os::fd::{FromRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};

use anyhow::Context as _;
use memlane_transport::io::Inherited;

use crate::cli::exit::{Exit, fail};

/// Tells systemd, if it asked to be told.
pub(crate) fn ready() {
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
}

/// Tells systemd that this process is about to end, if it asked to be told.
pub(crate) fn stopping() {
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
}

/// Sockets at which a service manager listens for us (sd_listen_fds(3)). To be asked once.
pub(crate) fn sockets() -> anyhow::Result<Vec<Inherited>> {
    let named = |(number, name): (i32, String)| {
        // SAFETY: the variables name this process and say that the descriptor was opened for it; it was looked at just
        // now, and nobody asks twice.
        let socket = unsafe { OwnedFd::from_raw_fd(number) };
        Inherited::new(socket)
            .with_context(|| format!("descriptor {number} ({name:?}) of the service manager"))
    };
    let given = sd_notify::listen_fds_with_names()
        .context("the descriptors of the service manager (LISTEN_FDS, LISTEN_FDNAMES)");
    given
        .and_then(|all| all.map(named).collect())
        .map_err(|error| fail(Exit::Usage, format!("{error:#}")))
}

/// What the handler rings; -1: nobody waits.
static END: AtomicI32 = AtomicI32::new(-1);

extern "C" fn end(_: libc::c_int) {
    let one = 1_u64.to_ne_bytes();
    // SAFETY: `one` is readable for its length; write(2) may be called in a signal handler.
    unsafe {
        // Rung already if it fails.
        libc::write(END.load(Ordering::Relaxed), one.as_ptr().cast(), one.len());
    }
}

/// Readable from the first SIGINT or SIGTERM on. Whoever is told that this process is ready may end it at once, so this
/// comes first.
pub(crate) fn bell_of_the_end() -> anyhow::Result<OwnedFd> {
    bell_of(&[libc::SIGINT, libc::SIGTERM])
}

/// Readable from the first of these on.
pub(crate) fn bell_of(signals: &[libc::c_int]) -> anyhow::Result<OwnedFd> {
    use std::os::fd::IntoRawFd as _;
    // Kept until the process ends: the handler has its number.
    let bell = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?;
    let waiting = bell.try_clone()?;
    END.store(bell.into_raw_fd(), Ordering::Relaxed);
    for signal in signals.iter().copied() {
        // SAFETY: the handler loads an atomic and writes to a descriptor, and does nothing else.
        let before = unsafe { libc::signal(signal, end as *const () as libc::sighandler_t) };
        if before == libc::SIG_ERR {
            return Err(std::io::Error::last_os_error().into());
        }
    }
    Ok(waiting)
}

/// Waits for SIGINT or SIGTERM, of which there may have been one since [`bell_of_the_end`].
pub(crate) fn wait_for_the_end(bell: &OwnedFd) -> anyhow::Result<()> {
    while let Err(errno) = rustix::io::read(bell, &mut [0_u8; 8]) {
        anyhow::ensure!(
            errno == rustix::io::Errno::INTR,
            "waiting for signals: {errno}"
        );
    }
    stopping();
    Ok(())
}
