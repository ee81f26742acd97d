//! Who executes the program.

/// Who executes the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Executor {
    /// The thread that prepares for it.
    Caller,
    /// A child that this thread makes with `CLONE_VFORK`, as libc's `posix_spawn` does.
    Child,
}
