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

/// Processor time that a process has taken so far, with its threads that have ended, to the nanosecond, in seconds; 0:
/// nobody told.
pub(crate) fn exact_cpu_seconds(pid: u32) -> f64 {
    let mut clock: libc::clockid_t = 0;
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `clock` is a live clock id, which the call fills.
    let found = unsafe { libc::clock_getcpuclockid(pid.cast_signed(), &raw mut clock) };
    // SAFETY: `time` is a live timespec, which the call fills; any number may be given as a clock.
    if found != 0 || unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return 0.0;
    }
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
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
    fn a_process_has_its_own_time_and_one_that_has_ended_has_none() {
        let (begin, us) = (Instant::now(), std::process::id());
        let before = exact_cpu_seconds(us);
        while begin.elapsed() < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        let (spent, other) = (exact_cpu_seconds(us) - before, own_cpu_seconds());
        assert!(before > 0.0 && spent > 0.0005, "{spent}");
        assert!((exact_cpu_seconds(us) - other).abs() < 0.5);
        let mut ended = Command::new("true").spawn().expect("true");
        ended.wait().expect("its end");
        assert_eq!(exact_cpu_seconds(ended.id()), 0.0);
    }

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
