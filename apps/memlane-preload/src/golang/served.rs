//! Which system calls of a Go program go to a body. The door makes all others itself.

/// The numbers that `numbers::call` does not merely pass on.
#[rustfmt::skip]
const HOOKED: [i64; 44] = [
    // bytes
    libc::SYS_read, libc::SYS_write, libc::SYS_readv, libc::SYS_writev, libc::SYS_preadv2, libc::SYS_pwritev2,
    libc::SYS_recvfrom, libc::SYS_sendto, libc::SYS_sendfile, libc::SYS_splice,
    // messages
    libc::SYS_recvmsg, libc::SYS_sendmsg, libc::SYS_recvmmsg, libc::SYS_sendmmsg,
    // lives
    libc::SYS_socket, libc::SYS_connect, libc::SYS_listen, libc::SYS_accept, libc::SYS_accept4, libc::SYS_shutdown,
    libc::SYS_close, libc::SYS_close_range, libc::SYS_dup, libc::SYS_dup2, libc::SYS_dup3,
    // options
    libc::SYS_fcntl, libc::SYS_ioctl, libc::SYS_setsockopt, libc::SYS_getsockopt,
    // polled
    libc::SYS_poll, libc::SYS_ppoll, libc::SYS_select, libc::SYS_pselect6,
    // sets
    libc::SYS_epoll_create1, libc::SYS_epoll_create, libc::SYS_epoll_ctl, libc::SYS_epoll_wait, libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    // other
    libc::SYS_seccomp, libc::SYS_prctl, libc::SYS_io_uring_setup, libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
];

/// Numbers beyond this one have no hook.
pub(super) const NUMBERS: usize = 512;

/// 1 for each number that goes to a body.
pub(super) static SERVED: [u8; NUMBERS] = served();

const fn served() -> [u8; NUMBERS] {
    let mut table = [0; NUMBERS];
    let mut i = 0;
    while i < HOOKED.len() {
        table[HOOKED[i] as usize] = 1;
        i += 1;
    }
    table[libc::SYS_execve as usize] = 1;
    table
}
