//! Who is alive: threads are asked for, not only processes.

use memlane_sys::proc::{alive, pid, tid};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// The kernel forgets a thread shortly after `join` has returned.
fn wait_for_its_end(tid: i32) -> bool {
    let start = Instant::now();
    while alive(tid) {
        if start.elapsed() > Duration::from_secs(20) {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

#[test]
fn a_second_thread_is_alive_until_it_has_ended() {
    let (tell, told) = channel();
    let (release, released) = channel::<()>();
    let thread = std::thread::spawn(move || {
        tell.send(tid()).unwrap();
        let _ = released.recv();
    });
    let second = told.recv().unwrap();
    assert!(second != pid() && second != tid());
    assert!(alive(second) && alive(tid()) && alive(pid()));
    release.send(()).unwrap();
    thread.join().unwrap();
    assert!(wait_for_its_end(second));
}

#[test]
fn a_process_that_has_been_waited_for_is_not_alive() {
    let mut child = std::process::Command::new("/bin/true").spawn().unwrap();
    let id = child.id().cast_signed();
    child.wait().unwrap();
    assert!(!alive(id));
    assert!(alive(1), "not ours, and alive");
}
