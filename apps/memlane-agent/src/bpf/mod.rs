//! BPF programs without a compiler: a few instructions put together by hand, and the system call that takes them.

pub mod assembler;
pub mod call;
