//! One entry of a submission queue (`struct io_uring_sqe`).

use core::ptr::NonNull;

/// Bytes of an entry. With `IORING_SETUP_SQE128` there are as many behind it, which matter to commands of devices only.
pub(super) const LEN: usize = 64;

/// Operations (`enum io_uring_op`).
pub mod op {
    /// `IORING_OP_NOP`.
    pub const NOP: u8 = 0;
    /// `IORING_OP_READV`.
    pub const READV: u8 = 1;
    /// `IORING_OP_READ_FIXED`.
    pub const READ_FIXED: u8 = 4;
    /// `IORING_OP_POLL_ADD`.
    pub const POLL_ADD: u8 = 6;
    /// `IORING_OP_RECVMSG`.
    pub const RECVMSG: u8 = 10;
    /// `IORING_OP_CLOSE`.
    pub const CLOSE: u8 = 19;
    /// `IORING_OP_READ`.
    pub const READ: u8 = 22;
    /// `IORING_OP_WRITE`.
    pub const WRITE: u8 = 23;
    /// `IORING_OP_RECV`.
    pub const RECV: u8 = 27;
    /// `IORING_OP_EPOLL_CTL`.
    pub const EPOLL_CTL: u8 = 29;
    /// `IORING_OP_SPLICE`.
    pub const SPLICE: u8 = 30;
    /// `IORING_OP_TEE`.
    pub const TEE: u8 = 33;
    /// `IORING_OP_READ_MULTISHOT`.
    pub const READ_MULTISHOT: u8 = 49;
    /// `IORING_OP_RECV_ZC`.
    pub const RECV_ZC: u8 = 58;

    /// Operations whose field `fd` is no descriptor of a file or socket that they use: `NOP`, `POLL_REMOVE`, `TIMEOUT`,
    /// `TIMEOUT_REMOVE`, `ASYNC_CANCEL`, `LINK_TIMEOUT`, `OPENAT`, `FILES_UPDATE`, `STATX`, `MADVISE`, `OPENAT2`,
    /// `PROVIDE_BUFFERS`, `REMOVE_BUFFERS`, `RENAMEAT` to `MSG_RING`, `SETXATTR`, `GETXATTR`, `SOCKET`, `WAITID`, the three of
    /// futexes, `FIXED_FD_INSTALL`, `PIPE`.
    const WITHOUT_FD: [u8; 29] = [
        NOP, 7, 11, 12, 14, 15, 18, 20, 21, 25, 28, 31, 32, 35, 36, 37, 38, 39, 40, 42, 44, 45, 50,
        51, 52, 53, 54, 62, EPOLL_CTL,
    ];

    /// Does the operation use the descriptor in field `fd`? Of one that is not known, this assumes so.
    pub fn uses_fd(opcode: u8) -> bool {
        !WITHOUT_FD.contains(&opcode)
    }

    /// Does the operation take bytes from its descriptor, or wait for some?
    pub fn receives(opcode: u8) -> bool {
        matches!(
            opcode,
            READV
                | READ_FIXED
                | POLL_ADD
                | RECVMSG
                | READ
                | RECV
                | SPLICE
                | TEE
                | READ_MULTISHOT
                | RECV_ZC
        )
    }
}

/// `IOSQE_FIXED_FILE`: `fd` is an index of the registered files.
const FIXED_FILE: u8 = 1;
/// `IOSQE_BUFFER_SELECT`: the kernel chooses a buffer.
const BUFFER_SELECT: u8 = 1 << 5;
/// `IORING_RECV_MULTISHOT`, in `ioprio` of an operation that receives.
const RECV_MULTISHOT: u16 = 1 << 1;
/// `IORING_RECVSEND_BUNDLE`, likewise in `ioprio`: several chosen buffers.
const RECVSEND_BUNDLE: u16 = 1 << 4;

/// An entry that the program has filled and the kernel has not taken. The program does not touch it until the kernel has: it
/// is the kernel's, and for the time of the call ours.
#[derive(Clone, Copy, Debug)]
pub struct Entry(NonNull<u8>);

impl Entry {
    /// The entry at `at`.
    ///
    /// # Safety
    /// `LEN` bytes from there on stay mapped while the entry is used, and `at` is aligned to 8 bytes.
    pub(super) unsafe fn at(at: NonNull<u8>) -> Entry {
        Entry(at)
    }

    /// A field; volatile, so that it is read once, whatever a program that breaks the rules does meanwhile.
    fn read<T: Copy>(self, offset: usize) -> T {
        // SAFETY: inside the entry, and aligned as the kernel's structure is; any bytes are an integer.
        unsafe { self.0.add(offset).cast::<T>().as_ptr().read_volatile() }
    }

    fn write<T>(self, offset: usize, value: T) {
        // SAFETY: inside the entry, and aligned as the kernel's structure is.
        unsafe {
            self.0
                .add(offset)
                .cast::<T>()
                .as_ptr()
                .write_volatile(value)
        };
    }

    /// The operation.
    pub fn opcode(self) -> u8 {
        self.read(0)
    }

    fn flags(self) -> u8 {
        self.read(1)
    }

    fn io_flags(self) -> u16 {
        self.read(2)
    }

    /// The descriptor, if that is what the field holds: not an index of registered files.
    pub fn fd(self) -> Option<i32> {
        let plain = self.flags() & FIXED_FILE == 0 && op::uses_fd(self.opcode());
        // A CLOSE with an index here closes a registered file.
        let of_table = self.opcode() == op::CLOSE && self.index() != 0;
        (plain && !of_table).then(|| self.read(4))
    }

    /// The descriptor that `SPLICE` and `TEE` read from.
    pub fn source(self) -> Option<i32> {
        matches!(self.opcode(), op::SPLICE | op::TEE).then(|| self.read(44))
    }

    fn index(self) -> u32 {
        self.read(44)
    }

    /// `EPOLL_CTL`: set, operation, descriptor and event, as epoll_ctl(2) has them.
    pub fn epoll_ctl(self) -> (i32, i32, i32, *mut libc::epoll_event) {
        // The kernel, too, takes the lower half of the offset as the descriptor.
        (
            self.read(4),
            self.read(24),
            self.read(8),
            self.addr() as *mut _,
        )
    }

    /// Address of the data, the message, or the list of buffers.
    pub fn addr(self) -> usize {
        self.read(16)
    }

    /// Bytes, or buffers of the list.
    pub fn count(self) -> u32 {
        self.read(24)
    }

    /// The operation's own flags: `MSG_*`, or the events of a poll.
    pub fn op_flags(self) -> u32 {
        self.read(28)
    }

    /// Is the buffer one that the program has named, for one result?
    pub fn has_own_buffer(self) -> bool {
        let many = self.io_flags() & (RECV_MULTISHOT | RECVSEND_BUNDLE) != 0;
        self.flags() & BUFFER_SELECT == 0 && !many
    }

    /// Makes an `EPOLL_CTL` one of another set, descriptor and operation, with the same event.
    pub fn becomes_change(self, epfd: i32, operation: i32, fd: i32) {
        self.write(4, epfd);
        self.write(8, i64::from(fd));
        self.write(24, operation);
    }

    /// Makes it an operation without effect, whose result is 0.
    pub fn becomes_nop(self) {
        self.becomes(op::NOP, -1, 0, 0);
    }

    /// Makes it a write of `len` bytes at `addr` into `sink`, a descriptor of /dev/null, so that its result is `len`.
    pub fn becomes_result(self, sink: i32, addr: usize, len: u32) {
        self.becomes(op::WRITE, sink, addr as u64, len);
    }

    /// Makes it a read of `len` bytes to `addr` from `source`.
    pub fn becomes_read(self, source: i32, addr: usize, len: u32) {
        self.becomes(op::READ, source, addr as u64, len);
    }

    /// The number that the program knows it by, and links to other entries, stay.
    fn becomes(self, opcode: u8, fd: i32, addr: u64, len: u32) {
        self.write(0, opcode);
        self.write(1, self.flags() & !(FIXED_FILE | BUFFER_SELECT));
        self.write(2, 0_u16);
        self.write(4, fd);
        self.write(8, 0_u64);
        self.write(16, addr);
        self.write(24, len);
        self.write(28, 0_u32);
        self.write(40, 0_u16);
        self.write(44, 0_u32);
    }
}
