//! Signal handlers. The library counts them, so that a wait that was spinning (and not in the kernel) when a handler
//! ran can end as the kernel's would: with `EINTR`, or with a restart.
//!
//! A table keeps the program's handler. The kernel gets ours, which counts and calls it. Handlers of faults (SIGSEGV
//! and its like) stay as they are.

// Indices and descriptor numbers are bounded by the tables' sizes, far below 2^31.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss
)]

use crate::real;
use crate::state::process;
use crate::state::thread;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use libc::siginfo_t;

const SIGNALS: usize = 65;
static HANDLERS: [AtomicUsize; SIGNALS] = [const { AtomicUsize::new(0) }; SIGNALS];
static FLAGS: [AtomicI32; SIGNALS] = [const { AtomicI32::new(0) }; SIGNALS];

fn is_ours(signal: c_int) -> bool {
    (1..SIGNALS as c_int).contains(&signal)
        && !matches!(
            signal,
            libc::SIGSEGV
                | libc::SIGBUS
                | libc::SIGILL
                | libc::SIGFPE
                | libc::SIGTRAP
                | libc::SIGSYS
                | libc::SIGABRT
                | libc::SIGKILL
                | libc::SIGSTOP
        )
}

extern "C" fn on_signal(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let t = thread::current();
    let at = usize::try_from(signal).unwrap_or(0).min(SIGNALS - 1);
    let flags = FLAGS[at].load(Ordering::Relaxed);
    t.restart
        .store(u32::from(flags & libc::SA_RESTART != 0), Ordering::Relaxed);
    t.signals.fetch_add(1, Ordering::Relaxed);
    let handler = HANDLERS[at].load(Ordering::Acquire);
    if handler == 0 {
        return;
    }
    if flags & libc::SA_SIGINFO != 0 {
        // SAFETY: the program registered a three-argument handler under this signal.
        let f = unsafe {
            core::mem::transmute::<usize, extern "C" fn(c_int, *mut siginfo_t, *mut c_void)>(
                handler,
            )
        };
        f(signal, info, context);
    } else {
        // SAFETY: the program registered a one-argument handler under this signal.
        let f = unsafe { core::mem::transmute::<usize, extern "C" fn(c_int)>(handler) };
        f(signal);
    }
}

/// `sigaction(2)`.
pub fn sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    if !process::enabled() || !is_ours(signal) {
        return real!(sigaction(signal, new, old));
    }
    let at = signal.cast_unsigned() as usize;
    let before = HANDLERS[at].load(Ordering::Acquire);
    let mut ours = core::mem::MaybeUninit::<libc::sigaction>::uninit();
    let mut given = new;
    if !new.is_null() {
        // SAFETY: the program's structure, as it promised its call.
        let n = unsafe { *new };
        if is_handler(n.sa_sigaction) {
            let mut o = n;
            o.sa_sigaction = on_signal as *const () as usize;
            o.sa_flags |= libc::SA_SIGINFO;
            HANDLERS[at].store(n.sa_sigaction, Ordering::Release);
            FLAGS[at].store(n.sa_flags, Ordering::Release);
            given = ours.write(o);
        }
    }
    let flags_before = FLAGS[at].load(Ordering::Relaxed);
    let r = real!(sigaction(signal, given, old));
    if r == 0 && !old.is_null() {
        // SAFETY: the kernel has just filled it.
        let o = unsafe { &mut *old };
        if o.sa_sigaction == on_signal as *const () as usize {
            o.sa_sigaction = before;
            if flags_before & libc::SA_SIGINFO == 0 {
                o.sa_flags &= !libc::SA_SIGINFO;
            }
        }
    }
    r
}

/// `signal(3)`. libc chooses the mask and the flags.
pub fn signal(number: c_int, handler: usize) -> usize {
    let Some(real) = real::signal() else {
        return libc::SIG_ERR;
    };
    if !process::enabled() || !is_ours(number) {
        // SAFETY: the program's own arguments.
        return unsafe { real(number, handler) };
    }
    let ours = on_signal as *const () as usize;
    let at = number.cast_unsigned() as usize;
    let before = HANDLERS[at].load(Ordering::Acquire);
    let is_function = is_handler(handler) && handler != libc::SIG_ERR;
    if is_function {
        HANDLERS[at].store(handler, Ordering::Release);
        FLAGS[at].store(libc::SA_RESTART, Ordering::Release);
    }
    // SAFETY: the program's own arguments, or a handler of this library's, which takes what the kernel passes.
    let old = unsafe { real(number, if is_function { ours } else { handler }) };
    if is_function {
        learn_whether_it_restarts(number);
    }
    if old == ours { before } else { old }
}

/// `siginterrupt(3)`, which changes the flags of a handler that is there.
pub fn siginterrupt(number: c_int, interrupts: c_int) -> c_int {
    let r = real!(siginterrupt(number, interrupts));
    if r == 0 && process::enabled() && is_ours(number) {
        learn_whether_it_restarts(number);
    }
    r
}

/// Asks the kernel whether a call that this signal interrupts is to go on.
fn learn_whether_it_restarts(number: c_int) {
    let mut now = core::mem::MaybeUninit::<libc::sigaction>::uninit();
    if real!(sigaction(number, core::ptr::null(), now.as_mut_ptr())) != 0 {
        return;
    }
    // SAFETY: libc has just filled it.
    let restarts = unsafe { now.assume_init() }.sa_flags & libc::SA_RESTART;
    let flags = &FLAGS[number.cast_unsigned() as usize];
    let others = flags.load(Ordering::Relaxed) & !libc::SA_RESTART;
    flags.store(others | restarts, Ordering::Release);
}

/// Is it a function of the program's? It may also say what to do without one, or be ours, which the program got from a
/// function of libc's that has no hook: then ours calls what it called before.
fn is_handler(handler: usize) -> bool {
    let ours = on_signal as *const () as usize;
    ![libc::SIG_DFL, libc::SIG_IGN, ours].contains(&handler)
}
