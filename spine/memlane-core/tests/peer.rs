//! The proof of being the other end: who passes it and who does not.

use memlane_core::peer::{Policy, prove};
use memlane_core::reason::Reason;
use memlane_sys::fd::{Fd, open_path_of};
use memlane_sys::mem::memfd;
use memlane_sys::proc;
use memlane_sys::sock::{
    Cred, Tuple, UnixName, local_addr, recv_with_fds, remote_addr, send_with_fds, unix_datagram,
    unix_name_of,
};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::time::{Duration, Instant};

/// (the connecting end, the accepting end)
fn connection(listen: &str, connect: &str) -> Option<(TcpStream, TcpStream)> {
    let listener = match TcpListener::bind((listen, 0)) {
        Ok(listener) => listener,
        Err(e) => {
            eprintln!("SKIPPED: no {listen} on this machine: {e}");
            return None;
        }
    };
    let client = TcpStream::connect((connect, listener.local_addr().unwrap().port())).unwrap();
    let server = listener.accept().unwrap().0;
    Some((client, server))
}

fn v4() -> (TcpStream, TcpStream) {
    connection("127.0.0.1", "127.0.0.1").unwrap()
}

fn tuple_of(s: &TcpStream) -> Tuple {
    Tuple {
        local: local_addr(s.as_raw_fd()).unwrap(),
        remote: remote_addr(s.as_raw_fd()).unwrap(),
    }
}

fn me() -> Cred {
    // SAFETY: only asks.
    let gid = unsafe { libc::getegid() };
    let (pid, uid) = (proc::pid(), proc::euid());
    Cred { pid, uid, gid }
}

/// Does `own` accept `proof` from this process?
fn judge(own: &TcpStream, proof: &Fd) -> Result<(), Reason> {
    prove(
        &tuple_of(own),
        own.as_raw_fd(),
        &me(),
        proof,
        Policy::SameUid,
    )
}

fn handle_of(s: &impl AsRawFd) -> Fd {
    open_path_of(s.as_raw_fd()).unwrap()
}

fn owned(file: impl IntoRawFd) -> Fd {
    // SAFETY: into_raw_fd gives the ownership to us.
    unsafe { Fd::from_raw(file.into_raw_fd()) }
}

// ---- accepted ----

#[test]
fn each_end_accepts_the_other_over_ipv4_ipv6_and_mapped_addresses() {
    for (listen, connect) in [
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "::1"),
        ("::", "127.0.0.1"),
    ] {
        let Some((client, server)) = connection(listen, connect) else {
            continue;
        };
        assert_eq!(judge(&client, &handle_of(&server)), Ok(()), "{listen}");
        assert_eq!(judge(&server, &handle_of(&client)), Ok(()), "{listen}");
    }
}

/// A child process that connects to us (as `uid`, if told), sends its proof and waits to be killed.
struct Prover(libc::pid_t);

impl Prover {
    fn start(listener: &TcpListener, mailbox: &UnixName, uid: Option<u32>) -> Prover {
        let port = listener.local_addr().unwrap().port();
        // SAFETY: the child makes plain system calls only and never returns.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            let failed_at = prove_to_parent(port, mailbox, uid);
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(failed_at) };
        }
        Prover(child)
    }
}

impl Drop for Prover {
    fn drop(&mut self) {
        // SAFETY: our own child, not yet waited for.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

#[allow(clippy::cast_possible_truncation)] // 2
const AF_INET: libc::sa_family_t = libc::AF_INET as libc::sa_family_t;
#[allow(clippy::cast_possible_truncation)] // 16
const ADDR_LEN: libc::socklen_t = size_of::<libc::sockaddr_in>() as libc::socklen_t;

/// The child's life; returns where it failed (it does not return if nothing did).
fn prove_to_parent(port: u16, mailbox: &UnixName, uid: Option<u32>) -> i32 {
    // SAFETY: plain system calls on values that live over them.
    unsafe {
        libc::alarm(60); // an orphan must not stay
        if let Some(uid) = uid
            && libc::setresuid(uid, uid, uid) != 0
        {
            return 1;
        }
        let sock = libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0);
        let mut to: libc::sockaddr_in = std::mem::zeroed();
        to.sin_family = AF_INET;
        to.sin_port = port.to_be();
        to.sin_addr.s_addr = u32::from_be_bytes([127, 0, 0, 1]).to_be();
        if libc::connect(sock, (&raw const to).cast(), ADDR_LEN) != 0 {
            return 2;
        }
        let Ok(handle) = open_path_of(sock) else {
            return 3;
        };
        let Ok(from) = unix_datagram(None) else {
            return 4;
        };
        if send_with_fds(from.raw(), mailbox, b"it is me", &[handle.raw()]).is_err() {
            return 5;
        }
        loop {
            libc::pause();
        }
    }
}

/// Our end, the child's credentials as the kernel gave them, and its proof.
fn meet_child(uid: Option<u32>) -> (Prover, TcpStream, Cred, Fd) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mailbox = unix_datagram(None).unwrap();
    let child = Prover::start(&listener, &unix_name_of(mailbox.raw()).unwrap(), uid);
    let start = Instant::now();
    let got = loop {
        match recv_with_fds(mailbox.raw(), &mut [0; 64]) {
            Ok(got) => break got,
            Err(e) => {
                assert!(
                    start.elapsed() < Duration::from_secs(20),
                    "no proof from the child: {e}"
                );
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    };
    assert_eq!(got.cred.pid, child.0);
    let [proof, ..] = got.fds;
    (
        child,
        listener.accept().unwrap().0,
        got.cred,
        proof.unwrap(),
    )
}

#[test]
fn another_process_that_holds_the_other_end_is_accepted() {
    let (_child, own, cred, proof) = meet_child(None);
    assert_eq!(
        prove(
            &tuple_of(&own),
            own.as_raw_fd(),
            &cred,
            &proof,
            Policy::SameUid
        ),
        Ok(())
    );
}

#[test]
fn another_user_is_accepted_by_any_and_refused_by_same_uid() {
    if proc::euid() != 0 {
        eprintln!("SKIPPED: needs root to become another user");
        return;
    }
    let (_child, own, cred, proof) = meet_child(Some(65534));
    assert_eq!(cred.uid, 65534);
    let ask = |policy| prove(&tuple_of(&own), own.as_raw_fd(), &cred, &proof, policy);
    assert_eq!(ask(Policy::Any), Ok(()));
    assert_eq!(ask(Policy::SameUid), Err(Reason::PEER_REFUSED));
}

// ---- refused ----

#[test]
fn a_handle_of_another_socket_proves_nothing() {
    let ((own, _theirs), (other, _)) = (v4(), v4());
    assert_eq!(judge(&own, &handle_of(&other)), Err(Reason::NOT_PROVEN));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    assert_eq!(judge(&own, &handle_of(&listener)), Err(Reason::NOT_PROVEN));
    let unix = unix_datagram(None).unwrap();
    assert_eq!(
        judge(&own, &open_path_of(unix.raw()).unwrap()),
        Err(Reason::NOT_PROVEN)
    );
}

#[test]
fn our_own_end_proves_nothing() {
    let (own, _theirs) = v4();
    assert_eq!(judge(&own, &handle_of(&own)), Err(Reason::NOT_PROVEN));
}

#[test]
fn files_pipes_and_memory_prove_nothing() {
    let (own, _theirs) = v4();
    let file = owned(std::fs::File::open("/proc/self/exe").unwrap());
    assert_eq!(judge(&own, &file), Err(Reason::NOT_PROVEN));
    assert_eq!(
        judge(&own, &memfd(c"not a socket", 4096, false).unwrap()),
        Err(Reason::NOT_PROVEN)
    );
    assert_eq!(
        judge(&own, &owned(std::io::pipe().unwrap().0)),
        Err(Reason::NOT_PROVEN)
    );
}

/// A socket *file* is a socket by its mode, on another filesystem, where inode
/// numbers may be anybody's choice.
#[test]
fn a_socket_file_proves_nothing() {
    let (own, _theirs) = v4();
    let path = std::env::temp_dir().join(format!("memlane-peer-{}.sock", proc::pid()));
    let _ = std::fs::remove_file(&path);
    let _bound = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let c_path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the path is NUL-terminated; the new descriptor is ours.
    let file = unsafe { Fd::from_raw(libc::open(c_path.as_ptr(), libc::O_PATH | libc::O_CLOEXEC)) };
    std::fs::remove_file(&path).unwrap();
    assert!(file.raw() >= 0);
    assert_eq!(judge(&own, &file), Err(Reason::NOT_PROVEN));
}

#[test]
fn a_descriptor_that_is_not_open_proves_nothing() {
    let (own, _theirs) = v4();
    // SAFETY: no such descriptor exists; closing it does nothing.
    let nothing = unsafe { Fd::from_raw(i32::MAX) };
    assert_eq!(judge(&own, &nothing), Err(Reason::NOT_PROVEN));
}

#[test]
fn an_end_that_has_been_closed_is_no_peer_any_more() {
    let (own, theirs) = v4();
    let proof = handle_of(&theirs);
    assert_eq!(judge(&own, &proof), Ok(()));
    let tuple = tuple_of(&own);
    drop(theirs);
    let judged = || prove(&tuple, own.as_raw_fd(), &me(), &proof, Policy::Any);
    let mut verdict = judged();
    // A child that another test is just making may have the descriptor for a moment, too.
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while verdict.is_ok() && std::time::Instant::now() < end {
        std::thread::sleep(std::time::Duration::from_millis(1));
        verdict = judged();
    }
    assert!(
        matches!(verdict, Err(Reason::CLOSING | Reason::NOT_SAME_HOST)),
        "{verdict:?}"
    );
}

/// A reset takes the other socket away at once: nothing is found there, as on another host.
#[test]
fn a_connection_that_was_reset_is_closing() {
    let (own, mut theirs) = v4();
    let (tuple, proof) = (tuple_of(&own), handle_of(&theirs));
    (&own).write_all(b"unread").unwrap();
    theirs.read_exact(&mut [0]).unwrap();
    drop(theirs);
    while (&own).write(b"more").is_ok() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let verdict = prove(&tuple, own.as_raw_fd(), &me(), &proof, Policy::Any);
    assert_eq!(verdict, Err(Reason::CLOSING));
}

#[test]
fn an_end_that_has_shut_its_stream_down_is_closing() {
    let (own, theirs) = v4();
    theirs.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(judge(&own, &handle_of(&theirs)), Err(Reason::CLOSING));
}

#[test]
fn a_connection_whose_other_end_is_not_here_is_not_on_this_host() {
    let (own, theirs) = v4();
    let mut tuple = tuple_of(&own);
    tuple.remote.ip[15] = 77; // 127.0.0.77: nobody connected from there
    let verdict = prove(
        &tuple,
        own.as_raw_fd(),
        &me(),
        &handle_of(&theirs),
        Policy::Any,
    );
    assert_eq!(verdict, Err(Reason::NOT_SAME_HOST));
}
