//! What goes wrong: a number that stays the same, and words.

use core::cell::{Cell, RefCell};
use core::ffi::{CStr, c_char, c_int};
use memlane_devmem::error::{AccessError, ReceiveError, RegionError, ReleaseError};
use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Error numbers. Never renumbered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub(crate) enum Code {
    Again = -1,
    NoRoom = -2,
    TimedOut = -3,
    Invalid = -4,
    Handle = -5,
    Missing = -6,
    Path = -7,
    System = -8,
    Token = -9,
    Outside = -10,
    TooMany = -11,
    Busy = -12,
    Bug = -13,
    Device = -14,
}

impl Code {
    /// All, with the header's names.
    pub(crate) const ALL: [(Code, &CStr); 14] = [
        (Code::Again, c"MEMLANE_AGAIN"),
        (Code::NoRoom, c"MEMLANE_NO_ROOM"),
        (Code::TimedOut, c"MEMLANE_TIMED_OUT"),
        (Code::Invalid, c"MEMLANE_INVALID"),
        (Code::Handle, c"MEMLANE_HANDLE"),
        (Code::Missing, c"MEMLANE_MISSING"),
        (Code::Path, c"MEMLANE_PATH"),
        (Code::System, c"MEMLANE_SYSTEM"),
        (Code::Token, c"MEMLANE_TOKEN"),
        (Code::Outside, c"MEMLANE_OUTSIDE"),
        (Code::TooMany, c"MEMLANE_TOO_MANY"),
        (Code::Busy, c"MEMLANE_BUSY"),
        (Code::Bug, c"MEMLANE_BUG"),
        (Code::Device, c"MEMLANE_DEVICE"),
    ];
}

/// Why a call failed.
#[derive(Debug)]
pub(crate) struct Fault {
    code: Code,
    errno: i32,
    words: String,
}

pub(crate) type Result<T> = core::result::Result<T, Fault>;

impl Fault {
    pub(crate) fn new(code: Code, words: impl Into<String>) -> Fault {
        let words = words.into();
        Fault {
            code,
            errno: 0,
            words,
        }
    }

    /// The kernel's.
    pub(crate) fn system(what: &str, error: &std::io::Error) -> Fault {
        Fault {
            code: Code::System,
            errno: error.raw_os_error().unwrap_or(0),
            words: format!("{what}: {error}"),
        }
    }

    /// As the lane has it.
    pub(crate) fn kernel(errno: i32, words: String) -> Fault {
        Fault {
            code: Code::System,
            errno,
            words,
        }
    }
}

impl From<RegionError> for Fault {
    fn from(error: RegionError) -> Fault {
        let words = error.to_string();
        match error {
            RegionError::Missing(_) => Fault::new(Code::Missing, words),
            RegionError::Kernel(_, errno) => Fault::kernel(errno.0, words),
            RegionError::Device(_) => Fault::new(Code::Device, words),
            _ => Fault::new(Code::Invalid, words),
        }
    }
}

impl From<ReceiveError> for Fault {
    fn from(error: ReceiveError) -> Fault {
        let words = error.to_string();
        match error {
            ReceiveError::WouldBlock => Fault::new(Code::Again, words),
            ReceiveError::NoRoom => Fault::new(Code::NoRoom, words),
            ReceiveError::Kernel(errno) => Fault::kernel(errno.0, words),
            ReceiveError::Unprepared(_) => Fault::new(Code::Path, words),
            ReceiveError::Copy(_) | ReceiveError::Interface(_) => Fault::new(Code::Device, words),
        }
    }
}

impl From<AccessError> for Fault {
    fn from(error: AccessError) -> Fault {
        const EAGAIN: i32 = 11;
        let words = error.to_string();
        match error {
            AccessError::NoSuchToken(_) => Fault::new(Code::Token, words),
            AccessError::Outside => Fault::new(Code::Outside, words),
            AccessError::Device(errno) if errno.0 == EAGAIN => Fault::new(Code::Again, words),
            AccessError::Device(errno) | AccessError::Interface(errno) => {
                Fault::kernel(errno.0, words)
            }
            _ => Fault::new(Code::Device, words),
        }
    }
}

impl From<ReleaseError> for Fault {
    fn from(error: ReleaseError) -> Fault {
        Fault::new(Code::TooMany, error.to_string())
    }
}

thread_local! {
    static WORDS: RefCell<CString> = RefCell::default();
    static ERRNO: Cell<i32> = const { Cell::new(0) };
}

/// Runs a call: its number, or that of what went wrong, which this thread can ask about. A panic ends here, too.
pub(crate) fn guard(call: impl FnOnce() -> Result<i64>) -> i64 {
    let fault = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(number)) => return number,
        Ok(Err(fault)) => fault,
        Err(_) => Fault::new(Code::Bug, "a bug in memlane: please report it"),
    };
    let code = fault.code;
    remember(fault);
    code as i64
}

/// As [`guard`], for functions that return an `int`; no number of ours is larger.
pub(crate) fn guard_int(call: impl FnOnce() -> Result<i64>) -> c_int {
    c_int::try_from(guard(call)).unwrap_or(c_int::MAX)
}

fn remember(fault: Fault) {
    // Too late in a thread's life for a word of it: the number tells.
    let _ = ERRNO.try_with(|errno| errno.set(fault.errno));
    let mut words = fault.words.into_bytes();
    words.retain(|byte| *byte != 0);
    let words = CString::new(words).unwrap_or_default();
    let _ = WORDS.try_with(|last| last.replace(words));
}

pub(crate) fn last_words() -> *const c_char {
    WORDS
        .try_with(|words| words.borrow().as_ptr())
        .unwrap_or(c"".as_ptr())
}

pub(crate) fn last_errno() -> c_int {
    ERRNO.try_with(Cell::get).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_number_and_the_thread_lives_on() {
        let number = guard(|| panic!("planted by this test"));
        assert_eq!(number, Code::Bug as i64);
        // SAFETY: it ends, and lives until this thread's next failure.
        let words = unsafe { CStr::from_ptr(last_words()) };
        assert!(words.to_str().is_ok_and(|words| words.contains("bug")));
        assert_eq!(guard(|| Ok(7)), 7);
    }

    #[test]
    fn words_are_of_this_thread_and_end_where_c_ends_them() {
        guard(|| Err(Fault::new(Code::Invalid, "a\0b")));
        // SAFETY: as above.
        assert_eq!(unsafe { CStr::from_ptr(last_words()) }, c"ab");
        let other = std::thread::spawn(|| {
            // SAFETY: as above.
            unsafe { CStr::from_ptr(last_words()) }.to_bytes().len()
        });
        assert_eq!(other.join().unwrap(), 0);
    }
}
