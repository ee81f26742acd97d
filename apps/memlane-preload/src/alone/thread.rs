//! What a thread of a program without libc has of the library's: a stack for its calls, and thread-local memory.
//!
//! The program's own FS is Go's. While a call is served, FS points into the thread's [`Block`].

use crate::golang::stack::{BLOCK_AT, SIZE, Stack};
use core::cell::UnsafeCell;
use core::mem::offset_of;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use memlane_sys::syscall;

/// Room for the library's thread-local variables; tidy checks that they fit.
const VARIABLES: usize = 2560;
/// What lies between them and the address in FS. Go's signal handlers look there for the goroutine, at −8.
const GO_S: usize = 64;
/// The distance from the first variable to the address in FS.
pub(super) const TLS_ROOM: usize = VARIABLES + GO_S;
/// What lies at the address in FS. C code expects its address there, and a word against overflows of the stack at 40, which
/// may be zero.
const TCB: usize = 64;
/// Where the address in FS lies in a block.
pub(crate) const TCB_AT: usize = offset_of!(Block, control);
/// Where Go's handlers look for the goroutine.
pub(crate) const GOROUTINE_AT: usize = TCB_AT - size_of::<usize>();

/// A thread's block, above the stack on which its calls are served. The thread's GS holds its address. A thread that has not
/// made a call yet has inherited another thread's.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) stack: Stack,
    /// FS of the thread whose block it is, which no other living thread has. Written by the thread that takes the block,
    /// before it sets `state`.
    pub(crate) owner: AtomicUsize,
    /// [`LIVE`], [`TAKEN`], or 0: the kernel sets that when the thread ends (`set_tid_address`). A thread reads this before
    /// `owner`: acquire and release make sure that it does not see `LIVE` beside an old owner.
    pub(crate) state: AtomicU32,
    /// The block that was made before this one. Written before the block is in the list.
    pub(crate) next: AtomicPtr<Block>,
    variables: Variables,
    control: [AtomicUsize; TCB / 8],
}

/// The library's thread-local variables. Its file asks for this alignment.
#[repr(C, align(64))]
#[derive(Debug)]
struct Variables(UnsafeCell<[u64; TLS_ROOM / 8]>);

// SAFETY: only the thread whose block it is reads and writes them, by way of FS.
unsafe impl Sync for Variables {}

const _: () =
    assert!(TCB_AT.is_multiple_of(64) && offset_of!(Block, variables) + TLS_ROOM == TCB_AT);
const _: () = assert!(BLOCK_AT.is_multiple_of(64) && BLOCK_AT + size_of::<Block>() <= SIZE);

/// The thread lives.
pub(crate) const LIVE: u32 = 1;
/// A new thread is taking the block of one that has ended.
pub(crate) const TAKEN: u32 = 2;

/// The block of the first thread, until the program begins. It stands on the program's own stack.
pub(super) static FIRST: Block = Block::new();

/// All blocks, the youngest first. Blocks are never taken out.
pub(crate) static BLOCKS: AtomicPtr<Block> = AtomicPtr::new(core::ptr::null_mut());

impl Block {
    const fn new() -> Block {
        Block {
            stack: Stack::given(),
            owner: AtomicUsize::new(0),
            state: AtomicU32::new(0),
            next: AtomicPtr::new(core::ptr::null_mut()),
            variables: Variables(UnsafeCell::new([0; TLS_ROOM / 8])),
            control: [const { AtomicUsize::new(0) }; TCB / 8],
        }
    }
}

/// Makes a block the calling thread's. `is_new`: it is fresh memory; otherwise it was a thread's that has ended, and is
/// [`TAKEN`].
///
/// # Safety
/// Nobody else uses the block, and FS does not point into it.
pub(crate) unsafe extern "C" fn settle(block: *mut Block, owner: usize, is_new: usize) {
    // SAFETY: within the block, which is the caller's alone.
    let block = unsafe {
        let variables = (&raw mut (*block).variables).cast::<u64>();
        let mut i = 0;
        while i < TLS_ROOM / 8 {
            variables.add(i).write_volatile(0);
            i += 1;
        }
        &*block
    };
    block.stack.begin();
    let control = core::ptr::from_ref(&block.control) as usize;
    block.control[0].store(control, Ordering::Relaxed);
    block.owner.store(owner, Ordering::Relaxed);
    block.state.store(LIVE, Ordering::Release);
    // SAFETY: the kernel writes a zero to the word when this thread ends. Blocks are never unmapped.
    let _ = unsafe { syscall!(libc::SYS_set_tid_address, block.state.as_ptr()) };
    if is_new != 0 {
        list(block);
    }
}

fn list(block: &Block) {
    let at = core::ptr::from_ref(block).cast_mut();
    let mut first = BLOCKS.load(Ordering::Relaxed);
    loop {
        block.next.store(first, Ordering::Relaxed);
        match BLOCKS.compare_exchange(first, at, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(other) => first = other,
        }
    }
}
