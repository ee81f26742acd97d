//! The few kernel calls that std has no name for.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn remember(_signal: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// From now on Ctrl-C ends the trial, so that its programs and files are cleared away.
pub(crate) fn watch_for_interrupts() {
    let handler: extern "C" fn(libc::c_int) = remember;
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler does one store into a static atomic, which is
        // async-signal-safe, and has the type that signal() wants.
        unsafe { libc::signal(signal, handler as *const () as libc::sighandler_t) };
    }
}

/// Whether somebody wants us to stop.
pub(crate) fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// CPUs that this process may run on, lowest first.
pub(crate) fn allowed_cpus() -> Vec<usize> {
    // SAFETY: an all-zero cpu_set_t is a valid, empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is a live cpu_set_t of the size given; pid 0 is this thread.
    let rc = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) };
    if rc != 0 {
        return vec![0];
    }
    (0..1024)
        // SAFETY: CPU_ISSET only reads the set, and the index is below its 1024 bits.
        .filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) })
        .collect()
}

/// Makes `command` start in its own process group, on the CPUs given, and end
/// when the bench dies.
pub(crate) fn confine(command: &mut Command, cpus: &[usize]) {
    let set = set_of(cpus);
    let pin = !cpus.is_empty();
    command.process_group(0);
    // SAFETY: between fork and exec the closure makes two async-signal-safe
    // system calls on memory that it owns and allocates nothing.
    unsafe {
        command.pre_exec(move || {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
            if pin {
                // A CPU that went away leaves the program unpinned, not unstarted.
                libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
            }
            Ok(())
        });
    }
}

/// This thread runs on one of these CPUs from now on, where that is permitted.
pub(crate) fn stay_on(cpus: &[usize]) {
    let set = set_of(cpus);
    // SAFETY: `set` is a live cpu_set_t of the size given; 0 is this thread.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) };
}

fn set_of(cpus: &[usize]) -> libc::cpu_set_t {
    // SAFETY: an all-zero cpu_set_t is a valid, empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &cpu in cpus.iter().filter(|&&cpu| cpu < 1024) {
        // SAFETY: the index is below the set's 1024 bits.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    set
}

/// Sends `signal` to the process group that `leader` started; whether anybody was there.
pub(crate) fn signal_group(leader: u32, signal: i32) -> bool {
    match i32::try_from(leader) {
        // SAFETY: kill takes two integers and touches no memory.
        Ok(pid) if pid > 1 => unsafe { libc::kill(-pid, signal) == 0 },
        _ => false,
    }
}

/// Processor time that a process has taken, with its threads and with the children that have ended, in seconds.
pub(crate) fn cpu_seconds(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after = stat.rfind(')').map_or("", |at| &stat[at + 1..]);
    // utime, stime, cutime, cstime: fields 14 to 17 of proc(5), counted after the name.
    let ticks: f64 = after
        .split_whitespace()
        .skip(11)
        .take(4)
        .filter_map(|field| field.parse::<f64>().ok())
        .sum();
    // USER_HZ is 100 on every Linux that has ever been.
    ticks / 100.0
}

/// Processor time that the threads of a process have taken so far, to the nanosecond, in seconds; 0: nobody told.
pub(crate) fn exact_cpu_seconds(pid: u32) -> f64 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    let threads = threads.into_iter().flatten().flatten();
    let nanoseconds = threads.filter_map(|thread| {
        let told = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        told.split_whitespace().next()?.parse::<f64>().ok()
    });
    nanoseconds.sum::<f64>() / 1e9
}

/// Processor time of the children that have ended and were waited for, in seconds.
pub(crate) fn children_cpu_seconds() -> f64 {
    used(libc::RUSAGE_CHILDREN)
}

/// Processor time of this process, in seconds.
pub(crate) fn own_cpu_seconds() -> f64 {
    used(libc::RUSAGE_SELF)
}

fn used(who: libc::c_int) -> f64 {
    // SAFETY: an all-zero rusage is valid, and the call fills it.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is a live rusage.
    unsafe { libc::getrusage(who, &raw mut usage) };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// As many descriptors as this process may have; how many that is.
pub(crate) fn raise_descriptor_limit() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is a live rlimit, which the first call fills and the second one reads.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) != 0 {
            return 0;
        }
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
    }
    limit.rlim_cur
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn the_time_of_children_that_have_ended_is_counted() {
        // A server with a process for each client: they are gone when it is asked.
        let script = "sh -c 'i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done'; sleep 30";
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        confine(&mut command, &[]);
        let mut shell = command.spawn().expect("sh");
        let begin = Instant::now();
        let mut counted = 0.0;
        while counted < 0.03 && begin.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(20));
            counted = cpu_seconds(shell.id());
        }
        signal_group(shell.id(), libc::SIGKILL);
        let _ = shell.wait();
        assert!(counted >= 0.03, "{counted}");
    }
}
