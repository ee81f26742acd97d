//! Points at which tests kill the plugin, as SIGKILL would at that moment.

/// A named point between two steps. Builds with the feature `faults` end here if `MEMLANE_CSI_DIES_AT` names it.
#[cfg(feature = "faults")]
pub(crate) fn step(name: &str) {
    if std::env::var("MEMLANE_CSI_DIES_AT").is_ok_and(|at| at == name) {
        let own = rustix::process::getpid();
        let _ = rustix::process::kill_process(own, rustix::process::Signal::KILL);
    }
}

/// Nothing, in builds for users.
#[cfg(not(feature = "faults"))]
pub(crate) fn step(_name: &str) {}
