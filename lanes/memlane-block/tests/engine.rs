//! An engine takes whatever comes, and is there where io_uring is not.

use memlane_block::store::{Backing, Completion, Direct, Engine, Mode, StoreKind, StoreRequest};
use memlane_block::volume::{Errno, Flags, Op};
use memlane_core::region::Region;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::collections::HashSet;
use std::os::fd::AsFd as _;
use std::process::Command;
use std::sync::Arc;

fn memory_file(size: u64) -> Arc<Backing> {
    let fd = rustix::fs::memfd_create("disk", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
    rustix::fs::ftruncate(&fd, size).expect("its size");
    Arc::new(Backing::open(fd.as_fd(), Mode::Claim, Direct::Off).expect("opened"))
}

fn finish(engine: &mut Engine, n: usize) -> Vec<Completion> {
    let mut done = Vec::new();
    while done.len() < n {
        let before = done.len();
        engine.complete(&mut done);
        if done.len() == before {
            let fd = engine.fd();
            let limit = Timespec {
                tv_sec: 20,
                tv_nsec: 0,
            };
            let mut fds = [PollFd::new(&fd, PollFlags::IN)];
            let woken = rustix::event::poll(&mut fds, Some(&limit));
            assert_ne!(woken, Ok(0), "{} of {n} are done", done.len());
        }
    }
    done
}

#[test]
fn more_requests_than_any_queue_holds_all_end() {
    // More than a ring's entries, and than its results.
    const MANY: u64 = 12_000;
    for kind in [StoreKind::Auto, StoreKind::Threads] {
        let backing = memory_file(MANY * 512);
        let data = Region::create(c"data", 512, false).expect("memory");
        let mut engine = Engine::new(kind).expect("an engine");
        for id in 0..MANY {
            // Of every kind that a store does in its own way.
            let (op, flags) = match id % 5 {
                0 => (Op::Flush, Flags::NONE),
                1 => (Op::WriteZeroes, Flags::NONE),
                2 => (Op::Read, Flags::NONE),
                3 => (Op::Write, Flags::PREFLUSH),
                _ => (Op::Write, Flags::FUA),
            };
            let data = matches!(op, Op::Read | Op::Write).then(|| data.bytes());
            let backing = Arc::clone(&backing);
            let (at, len) = (id * 512, 512);
            engine.submit(StoreRequest {
                id,
                backing,
                op,
                at,
                len,
                flags,
                data,
            });
        }
        let done = finish(&mut engine, usize::try_from(MANY).expect("small"));
        assert!(done.iter().all(|done| done.result == Ok(())));
        let ids: HashSet<u64> = done.iter().map(|done| done.id).collect();
        assert_eq!(ids.len() as u64, MANY, "{kind:?}: one end each");
    }
}

#[test]
fn a_request_that_nobody_has_checked_is_refused_and_nothing_is_touched() {
    let data = Region::create(c"data", 4096, false).expect("memory");
    for kind in [StoreKind::Auto, StoreKind::Threads] {
        let mut engine = Engine::new(kind).expect("an engine");
        let backing = memory_file(4096);
        let requests = [(None, 4096), (data.bytes().part(0, 512), 4096)];
        for (id, (data, len)) in (0..).zip(requests) {
            let backing = Arc::clone(&backing);
            let (op, at, flags) = (Op::Read, 0, Flags::NONE);
            engine.submit(StoreRequest {
                id,
                backing,
                op,
                at,
                len,
                flags,
                data,
            });
        }
        for done in finish(&mut engine, 2) {
            assert_eq!(done.result, Err(Errno(libc::EIO)));
        }
    }
}

#[test]
fn a_signal_of_another_thread_wakes_the_engines_thread_once() {
    for kind in [StoreKind::Auto, StoreKind::Threads] {
        let mut engine = Engine::new(kind).expect("an engine");
        let readable = |engine: &Engine, seconds| {
            let fd = engine.fd();
            let limit = Timespec {
                tv_sec: seconds,
                tv_nsec: 0,
            };
            rustix::event::poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)) == Ok(1)
        };
        for _ in 0..3 {
            let wakeup = engine.wakeup();
            let other = std::thread::spawn(move || wakeup.signal());
            assert!(readable(&engine, 20), "{kind:?}");
            other.join().expect("signalled");
            let mut none = Vec::new();
            engine.complete(&mut none);
            engine.complete(&mut none);
            assert!(none.is_empty() && !readable(&engine, 0), "{kind:?}");
        }
    }
}

const FORBIDDEN: &str = "MEMLANE_TEST_NO_URING";

#[test]
fn where_io_uring_is_forbidden_threads_do_the_work() {
    if std::env::var_os(FORBIDDEN).is_none() {
        let myself = std::env::current_exe().expect("this test");
        let status = Command::new(myself)
            .args(["--exact", "where_io_uring_is_forbidden_threads_do_the_work"])
            .env(FORBIDDEN, "1")
            .status();
        assert!(status.expect("a child").success());
        return;
    }
    forbid_io_uring();
    assert!(Engine::new(StoreKind::Ring).is_err());
    let mut engine = Engine::new(StoreKind::Auto).expect("an engine");
    assert_eq!(engine.kind(), StoreKind::Threads);
    let backing = memory_file(4096);
    let data = Region::create(c"data", 4096, false).expect("memory");
    let (op, flags, data) = (Op::Write, Flags::FUA, Some(data.bytes()));
    engine.submit(StoreRequest {
        id: 1,
        backing,
        op,
        at: 0,
        len: 4096,
        flags,
        data,
    });
    assert_eq!(finish(&mut engine, 1)[0].result, Ok(()));
}

/// As a container's seccomp filter does.
fn forbid_io_uring() {
    let step = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter {
        code: u16::try_from(code).expect("a code"),
        jt,
        jf,
        k,
    };
    let number = u32::try_from(libc::SYS_io_uring_setup).expect("a number");
    let denied = libc::SECCOMP_RET_ERRNO | libc::EPERM.unsigned_abs();
    let mut filter = [
        // The system call's number.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, number),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, denied),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: 4,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the kernel copies the program, which is there.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        assert_eq!(
            libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program),
            0
        );
    }
}

#[test]
fn an_engine_that_is_dropped_never_looks_at_the_memory_again() {
    const EACH: usize = 64 << 10;
    const MANY: usize = 64;
    let name = format!("memlane-engine-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    for kind in [StoreKind::Auto, StoreKind::Threads] {
        for round in 0..10 {
            let file = std::fs::File::create_new(&path).expect("a file");
            std::fs::remove_file(&path).expect("removed");
            let len = EACH * MANY;
            file.set_len(len as u64).expect("its size");
            let backing = Backing::open(file.as_fd(), Mode::Claim, Direct::Off).expect("opened");
            let backing = Arc::new(backing);
            let data = Region::create(c"data", len, false).expect("memory");
            let fill = |byte: u8| {
                let bytes = vec![byte; len];
                // SAFETY: `bytes` is as long.
                assert!(unsafe { data.bytes().copy_in(0, bytes.as_ptr(), len) });
            };
            fill(1);
            let mut engine = Engine::new(kind).expect("an engine");
            for n in 0..MANY {
                engine.submit(StoreRequest {
                    id: n as u64,
                    backing: Arc::clone(&backing),
                    op: Op::Write,
                    at: (n * EACH) as u64,
                    len: u32::try_from(EACH).expect("small"),
                    flags: Flags::FUA,
                    data: data.bytes().part(n * EACH, EACH),
                });
            }
            engine.complete(&mut Vec::new());
            drop(engine);
            fill(2);
            // What the kernel still had in hand would come now.
            for _ in 0..3 {
                rustix::fs::fsync(&file).expect("flushed");
            }
            let mut there = vec![0; len];
            std::os::unix::fs::FileExt::read_exact_at(&file, &mut there, 0).expect("read");
            assert!(!there.contains(&2), "{kind:?} round {round}");
        }
    }
}
