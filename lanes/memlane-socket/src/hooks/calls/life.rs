//! How descriptors begin and end: socket, connect, accept, dup, shutdown, close.

use crate::real;
use crate::real::{errno, set_errno};
use crate::state::conn::{Conn, Role, SEEN_DATA};
use crate::state::process::{self, conn_of};
use core::ffi::c_int;
use core::sync::atomic::Ordering;
use libc::{sockaddr, socklen_t};
use memlane_core::reason::Reason;

/// `socket(2)`.
pub fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let fd = real!(socket(domain, kind, protocol));
    if fd < 0 {
        return fd;
    }
    let tcp = matches!(domain, libc::AF_INET | libc::AF_INET6)
        && kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) == libc::SOCK_STREAM
        && matches!(protocol, 0 | libc::IPPROTO_TCP);
    if !tcp || !process::enabled() {
        process::forget(fd);
        return fd;
    }
    let keep = errno();
    if let Some(conn) = process::open_conn(fd, Role::Connected, kind & libc::SOCK_NONBLOCK != 0) {
        crate::state::stats::open_entry(&conn);
    }
    set_errno(keep);
    fd
}

/// `connect(2)`.
pub fn connect(fd: c_int, to: *const sockaddr, len: socklen_t) -> c_int {
    let family = if to.is_null() || len < 2 || crate::iov::is_nowhere(to.cast(), len as usize) {
        0
    } else {
        // SAFETY: the program's address, readable for `len` bytes as it promised its call.
        unsafe { (*to).sa_family }
    };
    if i32::from(family) == libc::AF_UNSPEC && process::known(fd) && !process::is_borrowed() {
        before_close(fd); // this disconnects: the stream ends here
    }
    let r = real!(connect(fd, to, len));
    let begun = r == 0 || errno() == libc::EINPROGRESS || errno() == libc::EINTR;
    if begun && process::beyond(fd) {
        let keep = errno();
        if memlane_sys::sock::is_tcp(fd) {
            crate::state::stats::out_of_range(Role::Connected);
        }
        set_errno(keep);
    }
    if begun
        && let Some(conn) = conn_of(fd)
        && conn.seen.fetch_or(SEEN_DATA, Ordering::Relaxed) & SEEN_DATA == 0
    {
        let keep = errno();
        crate::protocol::upgrade::connected(&conn);
        if crate::state::trace::on() {
            crate::state::trace::opened(&conn);
        }
        set_errno(keep);
    }
    r
}

/// `listen(2)`: a listening socket carries no stream, so it is not tracked.
pub fn listen(fd: c_int, backlog: c_int) -> c_int {
    let r = real!(listen(fd, backlog));
    if r == 0 && !process::is_borrowed() {
        if process::known(fd) {
            let keep = errno();
            process::appear();
            set_errno(keep);
        }
        process::forget(fd);
    }
    r
}

/// `accept(2)`.
pub fn accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    let new = real!(accept(fd, addr, len));
    accepted(fd, new, false);
    new
}

/// `accept4(2)`.
pub fn accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
    let new = real!(accept4(fd, addr, len, flags));
    accepted(fd, new, flags & libc::SOCK_NONBLOCK != 0);
    new
}

fn accepted(listener: c_int, new: c_int, nonblock: bool) {
    if new < 0 {
        return;
    }
    if !process::enabled() {
        return process::forget(new);
    }
    let keep = errno();
    if accepts_tcp(listener, new) {
        if let Some(conn) = process::open_conn(new, Role::Accepted, nonblock) {
            crate::state::stats::open_entry(&conn);
            crate::protocol::upgrade::connected(&conn);
            if crate::state::trace::on() {
                crate::state::trace::opened(&conn);
            }
        } else if process::beyond(new) {
            crate::state::stats::out_of_range(Role::Accepted);
        }
    } else {
        process::forget(new);
    }
    set_errno(keep);
}

/// Is what was accepted a TCP connection? What a TCP listener accepts always is, so its protocol is noted. One of MPTCP
/// accepts both kinds.
fn accepts_tcp(listener: c_int, new: c_int) -> bool {
    if process::is_tcp_listener(listener) {
        return true;
    }
    let is_tcp = |fd| {
        let protocol = memlane_sys::sock::option::<i32>(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL);
        protocol == Ok(libc::IPPROTO_TCP)
    };
    let tcp = is_tcp(new);
    if tcp && is_tcp(listener) && !process::is_borrowed() {
        process::note_tcp_listener(listener);
    }
    tcp
}

/// `shutdown(2)`: ends the lane first, because TCP carries the ends of the stream.
pub fn shutdown(fd: c_int, how: c_int) -> c_int {
    if let Some(conn) = conn_of(fd) {
        super::touch(&conn);
        if matches!(how, libc::SHUT_WR | libc::SHUT_RDWR) {
            crate::protocol::lane::end_tx(&conn);
            if crate::state::trace::on() {
                crate::state::trace::closing(
                    &conn,
                    false,
                    crate::protocol::lane::unread(&conn) > 0,
                );
            }
        }
        if matches!(how, libc::SHUT_RD | libc::SHUT_RDWR) {
            crate::protocol::lane::end_rx(&conn);
        }
        let _ =
            conn.barred
                .compare_exchange(0, Reason::CLOSING.0, Ordering::AcqRel, Ordering::Relaxed);
    }
    real!(shutdown(fd, how))
}

/// Prepares for a close of `fd`, or for a call that replaces it by another descriptor: `fd` refers to nothing from now on.
pub fn before_close(fd: c_int) {
    process::forget_closing(fd, |conn| {
        if conn.upgraded() || crate::state::trace::on() {
            ends(conn);
        }
    });
}

/// Ends a connection's lane, and tells a tracer, before the last descriptor of this process is closed.
#[inline(never)]
fn ends(conn: &Conn) {
    let keep = errno();
    if crate::state::trace::on() {
        crate::state::trace::closing(conn, true, crate::protocol::lane::unread(conn) > 0);
    }
    crate::protocol::lane::naps::keep_for_reader(conn);
    crate::protocol::lane::closing(conn);
    crate::protocol::lane::naps::await_reader(conn);
    set_errno(keep);
}

/// `close(2)`.
pub fn close(fd: c_int) -> c_int {
    if process::is_hidden(fd) {
        set_errno(libc::EBADF);
        return -1;
    }
    if process::known(fd) && !process::is_borrowed() {
        before_close(fd);
    }
    process::will_close(fd);
    real!(close(fd))
}

/// `close_range(2)`: leaves the library's own descriptors open.
pub fn close_range(first: u32, last: u32, flags: c_int) -> c_int {
    let borrowed = process::is_borrowed();
    if flags & libc::CLOSE_RANGE_CLOEXEC.cast_signed() == 0 && !borrowed {
        forget_range(first, last);
        process::will_close_all(first, last);
    }
    if borrowed {
        return kernel_close_range(first, last, flags);
    }
    let mut from = first;
    while let Some(own) =
        process::next_hidden(i32::try_from(from).unwrap_or(i32::MAX)).map(|h| h.cast_unsigned())
        && own <= last
    {
        if own > from {
            let r = kernel_close_range(from, own - 1, flags);
            if r != 0 {
                return r;
            }
        }
        from = own + 1;
    }
    if from > last {
        0
    } else {
        kernel_close_range(from, last, flags)
    }
}

fn kernel_close_range(first: u32, last: u32, flags: c_int) -> c_int {
    // SAFETY: no pointers are passed.
    match unsafe { memlane_sys::syscall!(libc::SYS_close_range, first, last, flags) } {
        Ok(_) => 0,
        Err(e) => {
            set_errno(e.0);
            -1
        }
    }
}

fn forget_range(first: u32, last: u32) {
    let end = i64::from(last).saturating_add(1).min(process::fd_high());
    for fd in i64::from(first)..end {
        let fd = i32::try_from(fd).unwrap_or(i32::MAX);
        if process::known(fd) {
            before_close(fd);
        }
    }
}

/// `closefrom(3)`.
pub fn closefrom(first: c_int) {
    if close_range(first.max(0).cast_unsigned(), u32::MAX, 0) != 0 {
        for fd in first.max(0)..65536 {
            close(fd);
        }
    }
}

/// `dup(2)`.
pub fn dup(old: c_int) -> c_int {
    let new = real!(dup(old));
    duplicated(old, new);
    new
}

/// `dup2(2)`.
pub fn dup2(old: c_int, new: c_int) -> c_int {
    replace(old, new, || real!(dup2(old, new)))
}

/// `dup3(2)`.
pub fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    if old == new {
        return real!(dup3(old, new, flags));
    }
    replace(old, new, || real!(dup3(old, new, flags)))
}

fn replace(old: c_int, new: c_int, call: impl Fn() -> c_int) -> c_int {
    if process::is_hidden(new)
        && !process::is_borrowed()
        && memlane_sys::fd::status_flags(old).is_ok()
        && let Some(moved) = process::evade(new)
    {
        crate::protocol::upgrade::renumbered(new, moved);
    }
    if old != new
        && process::known(new)
        && !process::is_borrowed()
        && memlane_sys::fd::status_flags(old).is_ok()
    {
        before_close(new);
    }
    let r = call();
    if old != new && r == new {
        process::will_close(new); // a call that fails replaces nothing
    }
    if old != new {
        duplicated(old, r);
    }
    r
}

/// Makes `new` refer to what `old` refers to.
pub fn duplicated(old: c_int, new: c_int) {
    if new < 0 {
        return;
    }
    let keep = errno();
    if process::is_borrowed() {
        // In the child of a vfork the tables are the parent's; the child's exec reads this mark.
        super::pass::to_child(old);
        set_errno(keep);
        return;
    }
    process::dup_entry(old, new);
    if process::beyond(new) {
        super::pass::out_of_range(old);
    }
    if new <= 2
        && let Some(conn) = conn_of(new)
    {
        crate::protocol::upgrade::bar(&conn, Reason::UNHOOKED_IO); // stdio writes to it without calling a hook
    }
    set_errno(keep);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::conn::TxMode;
    use crate::state::process::FDS;
    use crate::state::thread::Thread;
    use core::sync::atomic::AtomicPtr;
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::sync::{Mutex, MutexGuard, PoisonError};

    /// All tests have one thread's state: they take turns while they hold what this returns.
    fn as_the_preload_library_starts() -> MutexGuard<'static, ()> {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        static STATE: AtomicPtr<Thread> = AtomicPtr::new(core::ptr::null_mut());
        unsafe extern "C" fn state() -> *mut Thread {
            STATE.load(Ordering::Relaxed)
        }
        // SAFETY: all-zero is a thread's initial value.
        let zero = Box::new(unsafe { core::mem::zeroed::<Thread>() });
        STATE.store(Box::leak(zero), Ordering::Relaxed);
        crate::state::thread::set_locator(state);
        // SAFETY: a name of libc, looked up in libc.
        real::TABLE.fill(|name| unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) as usize });
        crate::hooks::start::start(true);
        turn
    }

    /// How often the reason `FD_RANGE` was given, as client and as server.
    fn given() -> (u64, u64) {
        let reasons = &process::header().expect("a page").reasons;
        let slot = reasons
            .iter()
            .find(|slot| slot.code.load(Ordering::Relaxed) == Reason::FD_RANGE.0);
        slot.map_or((0, 0), |slot| {
            let times = |side: &core::sync::atomic::AtomicU64| side.load(Ordering::Relaxed);
            (times(&slot.client), times(&slot.server))
        })
    }

    /// A copy of `stream` with a descriptor number beyond the table.
    fn copied_high(stream: &TcpStream) -> TcpStream {
        let first = c_int::try_from(FDS).expect("small in tests");
        // SAFETY: no pointers; the new descriptor belongs to nobody else.
        unsafe {
            let fd = libc::fcntl(stream.as_raw_fd(), libc::F_DUPFD_CLOEXEC, first);
            assert!(fd >= first);
            TcpStream::from_raw_fd(fd)
        }
    }

    #[test]
    fn a_descriptor_beyond_the_table_stays_on_tcp_and_says_why() {
        let _turn = as_the_preload_library_starts();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let fd = socket(libc::AF_INET, libc::SOCK_STREAM, 0);
        // SAFETY: just made.
        let low = unsafe { TcpStream::from_raw_fd(fd) };
        let client = copied_high(&low);
        let to = libc::sockaddr_in {
            sin_family: 2,
            sin_port: port.to_be(),
            sin_addr: libc::in_addr {
                s_addr: u32::from_ne_bytes([127, 0, 0, 1]),
            },
            sin_zero: [0; 8],
        };
        let (address, len) = (core::ptr::from_ref(&to).cast(), size_of_val(&to));
        let len = socklen_t::try_from(len).expect("small");
        assert_eq!(connect(client.as_raw_fd(), address, len), 0);
        assert_eq!(given(), (1, 0));

        let (server, _) = listener.accept().expect("a connection");
        accepted(-1, copied_high(&server).into_raw_fd(), false);
        assert_eq!(given(), (1, 1));

        // A descriptor that is tracked until it has a copy that is not.
        accepted(-1, server.as_raw_fd(), false);
        let conn = conn_of(server.as_raw_fd()).expect("tracked");
        let barred = || Reason(conn.barred.load(Ordering::Relaxed));
        assert_eq!((given(), barred()), ((1, 1), Reason::NONE));
        duplicated(server.as_raw_fd(), copied_high(&server).into_raw_fd());
        assert_eq!((given(), barred()), ((1, 2), Reason::FD_RANGE));
    }

    /// One exchange over a connection that this library makes, connects and closes. Returns its place in the pool.
    fn exchange(listener: &TcpListener, between: impl FnOnce(c_int)) -> &'static Conn {
        let fd = socket(libc::AF_INET, libc::SOCK_STREAM, 0);
        let to = libc::sockaddr_in {
            sin_family: 2,
            sin_port: listener.local_addr().expect("bound").port().to_be(),
            sin_addr: libc::in_addr {
                s_addr: u32::from_ne_bytes([127, 0, 0, 1]),
            },
            sin_zero: [0; 8],
        };
        let len = socklen_t::try_from(size_of_val(&to)).expect("small");
        assert_eq!(connect(fd, core::ptr::from_ref(&to).cast(), len), 0);
        let conn = conn_of(fd).expect("tracked").conn();
        let (mut server, _) = listener.accept().expect("a connection");
        let mut bytes = [0; 5];
        assert_eq!(
            super::super::io::send(fd, b"there".as_ptr().cast(), 5, 0),
            5
        );
        server.read_exact(&mut bytes).expect("sent");
        server.write_all(b"again").expect("sent");
        let at = bytes.as_mut_ptr().cast();
        assert_eq!(super::super::io::recv(fd, at, 5, 0), 5);
        between(fd);
        assert_eq!(close(fd), 0);
        conn
    }

    /// Are the fields fresh that a new connection does not reset after one that was as it was made?
    fn is_fresh(conn: &Conn) -> bool {
        let shared = conn.shared();
        let zero = |words: &[&core::sync::atomic::AtomicU64]| {
            words.iter().all(|word| word.load(Ordering::Relaxed) == 0)
        };
        // SAFETY: the connection is closed: nobody else reads it.
        let has_begun = unsafe { !(*conn.hs.get()).has_not_begun() };
        !has_begun
            && conn.tx_dmb.load(Ordering::Relaxed).is_null()
            && conn.rx_dmb.load(Ordering::Relaxed).is_null()
            && conn.worn.load(Ordering::Relaxed) == 0
            && shared.worn.load(Ordering::Relaxed) == 0
            && shared.rx_gate.is_fresh()
            && shared.tx_gate.is_fresh()
            && shared.tx_to_parked.load(Ordering::Relaxed) == 0
            && !conn.has_registrations()
            && zero(&[
                &conn.tx_ready_since,
                &conn.tx_ready_rx_calls,
                &conn.looked_after,
                &shared.rx_taken,
                &shared.rx_flight,
                &shared.tx_sent,
                &shared.tx_flight,
                &shared.tx_full,
                &shared.tx_waited,
            ])
    }

    #[test]
    fn a_place_is_reset_whole_only_after_a_connection_that_has_used_more_than_tcp() {
        let _turn = as_the_preload_library_starts();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let epoll = || {
            let set = real!(epoll_create1(0));
            process::open_ep(set);
            set
        };
        let set = epoll();
        let short = exchange(&listener, |_| {});
        assert!(is_fresh(short), "{short:?}");
        let watched = exchange(&listener, |fd| {
            let mut event = libc::epoll_event { events: 1, u64: 7 };
            let added =
                crate::hooks::wait::epoll::ctl(set, libc::EPOLL_CTL_ADD, fd, &raw mut event);
            assert_eq!(added, 0);
            assert!(conn_of(fd).expect("tracked").has_registrations());
            let ready = &process::ep_of(set).expect("a set").ready_head;
            assert!(
                ready.load(Ordering::Relaxed).is_null(),
                "only the kernel can have news"
            );
        });
        assert!(
            core::ptr::eq(short, watched) && is_fresh(watched),
            "{watched:?}"
        );
        let ended = exchange(&listener, |fd| {
            let conn = conn_of(fd).expect("tracked");
            conn.shared().tx_gate.set(TxMode::Ended); // as if it had had a lane
            conn.shared().tx_flight.store(9, Ordering::Relaxed);
        });
        assert!(core::ptr::eq(short, ended) && !is_fresh(ended));
        let is_reset = |fd| {
            let conn = conn_of(fd).expect("tracked");
            let shown = process::entry(&conn)
                .expect("counts")
                .ports
                .load(Ordering::Relaxed);
            assert!(is_fresh(&conn) && shown == 0, "reset before it is used");
        };
        let next = exchange(&listener, is_reset);
        assert!(core::ptr::eq(short, next) && is_fresh(next));
        let begun = exchange(&listener, |fd| {
            let conn = conn_of(fd).expect("tracked");
            // SAFETY: no other thread uses the connection.
            unsafe { (*conn.hs.get()).tries = 1 };
            process::entry(&conn)
                .expect("counts")
                .ports
                .store(7, Ordering::Relaxed);
        });
        assert!(core::ptr::eq(short, begun) && !is_fresh(begun));
        exchange(&listener, is_reset);
        assert_eq!(close(set), 0);
    }

    #[test]
    fn a_listener_replaced_by_a_call_without_a_hook_is_served_as_what_it_is() {
        let _turn = as_the_preload_library_starts();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let client = TcpStream::connect(listener.local_addr().expect("bound"));
        let fd = listener.as_raw_fd();
        let accept_one = || accept(fd, core::ptr::null_mut(), core::ptr::null_mut());
        assert_eq!(close(accept_one()), 0);
        assert!(process::is_tcp_listener(fd));
        drop(client);

        let path = std::env::temp_dir().join(format!("memlane-life-{}", std::process::id()));
        let other = UnixListener::bind(&path).expect("a path");
        let mut client = UnixStream::connect(&path).expect("it listens");
        std::fs::remove_file(&path).expect("just made");
        // SAFETY: no pointers; the listener's number becomes the other's, and both own what they close.
        let replaced = unsafe { memlane_sys::syscall!(libc::SYS_dup3, other.as_raw_fd(), fd, 0) };
        assert!(replaced.is_ok() && process::is_tcp_listener(fd));
        let server = accept_one();
        // More exchanges than a connection has before it tries to get a lane.
        for _ in 0..40 {
            let mut bytes = [0; 5];
            client.write_all(b"there").expect("sent");
            let got = super::super::io::recv(server, bytes.as_mut_ptr().cast(), 5, 0);
            assert_eq!((got, &bytes), (5, b"there"));
            let sent = super::super::io::send(server, b"again".as_ptr().cast(), 5, 0);
            client.read_exact(&mut bytes).expect("received");
            assert_eq!((sent, &bytes), (5, b"again"));
        }
        let conn = conn_of(server).expect("taken for a TCP connection");
        assert!(!conn.upgraded());
        assert_eq!(close(server), 0);
    }

    /// Its connections are of TCP if the client knows no MPTCP, and else they are not.
    #[test]
    fn a_listener_of_mptcp_is_not_taken_for_one_of_tcp() {
        let _turn = as_the_preload_library_starts();
        let fd = socket(libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_MPTCP);
        if fd < 0 {
            return eprintln!("SKIPPED: this kernel has no MPTCP");
        }
        assert_eq!(listen(fd, 1), 0);
        // SAFETY: just made.
        let listener = unsafe { TcpListener::from_raw_fd(fd) };
        let port = listener.local_addr().expect("bound by listen").port();
        let client = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        let server = accept(fd, core::ptr::null_mut(), core::ptr::null_mut());
        assert!(conn_of(server).is_some(), "a TCP connection");
        assert!(!process::is_tcp_listener(fd));
        drop(client);
        assert_eq!(close(server), 0);
    }
}
