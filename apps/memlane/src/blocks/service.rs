//! What a service manager wants: readiness, and an orderly end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Tells systemd, if it asked to be told.
pub(super) fn ready() {
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
}

static ENDED: AtomicBool = AtomicBool::new(false);

extern "C" fn end(_: libc::c_int) {
    ENDED.store(true, Ordering::Relaxed);
}

/// Waits for SIGINT or SIGTERM.
pub(super) fn wait_for_the_end() -> anyhow::Result<()> {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the handler stores to an atomic and does nothing else.
        let before = unsafe { libc::signal(signal, end as *const () as libc::sighandler_t) };
        if before == libc::SIG_ERR {
            return Err(std::io::Error::last_os_error().into());
        }
    }
    while !ENDED.load(Ordering::Relaxed) {
        // A signal ends the sleep of the thread that takes it, which may be another one.
        std::thread::sleep(Duration::from_millis(50));
    }
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    Ok(())
}
